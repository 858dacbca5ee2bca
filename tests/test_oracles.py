"""The oracles agree with one another, with closed forms, and with the authors' reference values."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_ndtr, ndtr

from tests.oracles._types import Array, Labels
from tests.oracles.binary import binary_ep, binary_predict
from tests.oracles.dense import (
    dense_m,
    dense_m_eq41,
    dense_posterior,
    dense_predict,
    log_evidence_eq42,
    log_evidence_flat,
    marginal,
    site_block,
    site_block_from_contrasts,
    site_matrices,
    stacked_prior,
    stacked_sites,
)
from tests.oracles.finite import central_difference
from tests.oracles.inner import inner_ep
from tests.oracles.integrals import (
    bivariate_normal_cdf,
    class_probabilities_bvn,
    class_probabilities_qmc,
    log_evidence_bruteforce,
    log_likelihood,
    tilted_moments_grid,
    tilted_moments_qmc,
)
from tests.oracles.nested import NestedResult, nested_ep
from tests.oracles.reference import ReferenceCase, load_case, reference_directory, squared_exponential

CASES = ["A_toy1d", "B_2d_c4_s2_l0.5", "D_ard_d3"]
Solved = tuple[ReferenceCase, NestedResult]
assert_close = partial(assert_allclose, rtol=0)  # absolute errors only: the default rtol would add to atol


@pytest.fixture(scope="module", params=CASES)
def solved(request: pytest.FixtureRequest) -> Solved:
    """A reference case and its fixed point found by the sequential oracle."""
    try:
        case = load_case(request.param)
    except FileNotFoundError:
        pytest.skip(f"no reference values in {reference_directory()}; set NESTGP_SHARED to the folder above")
    return case, nested_ep(case.K, case.y, case.n_classes, tol=1e-11)


def small_problem(n: int, c: int, s2: float = 2.0, seed: int = 0) -> tuple[Array, Labels]:
    """Shared kernel matrix (n, n) of random 1-D inputs, and labels that contain every class if n >= c."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 1))
    return squared_exponential(x, x, s2, np.ones(1)), rng.permutation(np.arange(n) % c)


def random_cavity(c: int, scale: float, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(c, c))
    return np.sqrt(scale) * rng.normal(size=c), scale * (A @ A.T / c + 0.3 * np.eye(c))


def random_sites(c: int, y: Labels, seed: int = 3) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    alpha, beta = rng.uniform(0.05, 0.8, (c, len(y))), rng.normal(size=(c, len(y)))
    alpha[y, np.arange(len(y))] = beta[y, np.arange(len(y))] = 0.0
    return alpha, beta


# --- finite differences ---


def test_central_difference_is_exact_for_the_degree_it_claims() -> None:
    x = np.array([[0.5, -1.0], [2.0, 0.3]])
    assert_allclose(central_difference(lambda x: np.sum(x**2), x, 0.1), 2 * x, rtol=1e-13)
    # D(h) of x⁴ is 4x³ + 4xh², and Richardson removes the h² term.
    plain = central_difference(lambda x: x**4, 1.5, 0.1) - 4 * 1.5**3
    assert plain == pytest.approx(4 * 1.5 * 0.1**2, rel=1e-9)
    assert_allclose(central_difference(lambda x: x**4, 1.5, 0.1, richardson=True), 4 * 1.5**3, rtol=1e-12)


def test_central_difference_puts_the_input_axes_first() -> None:
    A = np.arange(6.0).reshape(2, 3)
    assert_close(central_difference(lambda x: A @ x, np.ones(3), 0.5), A.T, atol=1e-13)


# --- exact integrals ---


@pytest.mark.parametrize("gap", [-60.0, -8.0, -1.0, 0.0, 2.5, 30.0])
def test_likelihood_of_two_classes_is_binary_probit(gap: float) -> None:
    expected = log_ndtr(gap / np.sqrt(2))
    assert log_likelihood(np.array([0.0, gap]), 1) == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("c", [2, 3, 6, 10])
def test_likelihoods_sum_to_one_over_classes(c: int) -> None:
    f = np.random.default_rng(c).normal(scale=3.0, size=c)
    assert_allclose(sum(np.exp(log_likelihood(f, k)) for k in range(c)), 1.0, rtol=1e-12)
    assert log_likelihood(np.full(c, 0.7), 0) == pytest.approx(-np.log(c), rel=1e-12)


def test_bivariate_cdf_against_closed_forms() -> None:
    for rho in [-0.9, -0.3, 0.0, 0.5, 0.95]:
        quadrant = 0.25 + np.arcsin(rho) / (2 * np.pi)
        assert bivariate_normal_cdf(0.0, 0.0, rho) == pytest.approx(quadrant, rel=1e-13)
    assert bivariate_normal_cdf(0.4, -1.1, 0.0) == pytest.approx(ndtr(0.4) * ndtr(-1.1), rel=1e-14)
    # P(x < h) = P(x < h, y < k) + P(x < h, −y < −k).
    both = bivariate_normal_cdf(0.4, -1.1, 0.6) + bivariate_normal_cdf(0.4, 1.1, -0.6)
    assert both == pytest.approx(ndtr(0.4), rel=1e-13)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_class_probabilities_by_three_routes(scale: float) -> None:
    mean, cov = random_cavity(3, scale, seed=4)
    exact = class_probabilities_bvn(mean, cov)
    assert_allclose(exact.sum(), 1.0, rtol=1e-13)
    assert_close(class_probabilities_qmc(mean, cov), exact, atol=1e-7)
    assert_close([np.exp(tilted_moments_grid(mean, cov, k).log_z) for k in range(3)], exact, atol=1e-13)


@pytest.mark.parametrize("c", [4, 10])
def test_class_probabilities_without_latent_uncertainty_are_the_likelihood(c: int) -> None:
    f = np.random.default_rng(c).normal(size=c)
    expected = np.exp([log_likelihood(f, k) for k in range(c)])
    assert_close(class_probabilities_qmc(f, np.zeros((c, c))), expected, atol=3e-5)


@pytest.mark.parametrize("y", [0, 1, 2])
def test_grid_moments_are_the_derivatives_of_the_log_normaliser(y: int) -> None:
    mean, cov = random_cavity(3, 2.0, seed=5)
    grid = tilted_moments_grid(mean, cov, y)
    slope = central_difference(lambda m: tilted_moments_grid(m, cov, y).log_z, mean, 0.02, richardson=True)
    assert_close(grid.mean, mean + cov @ slope, atol=1e-7)
    jacobian = central_difference(lambda m: tilted_moments_grid(m, cov, y).mean, mean, 0.02, richardson=True)
    assert_close(grid.cov, cov @ jacobian, atol=1e-6)  # ∂E[f]/∂mean = Cov[f] cov⁻¹


@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_qmc_moments_are_within_their_error_of_the_grid(scale: float) -> None:
    mean, cov = random_cavity(3, scale, seed=6)
    estimate, error = tilted_moments_qmc(mean, cov, 1, n_points=2**12)
    grid = tilted_moments_grid(mean, cov, 1)
    for k in range(3):
        value, se, exact = np.asarray(estimate[k]), np.asarray(error[k]), np.asarray(grid[k])
        # The floor covers directions along which the moments do not depend on h, where the error is rounding.
        assert np.all(np.abs(value - exact) <= 5 * se + 1e-6 * scale)
        assert np.all(se <= 2e-3 * scale)


# --- inner EP ---


@pytest.mark.parametrize("seed", range(4))
def test_inner_ep_is_exact_for_two_classes(seed: int) -> None:
    mean, cov = random_cavity(2, 3.0, seed)
    d = np.array([1.0, -1.0])
    m, v = d @ mean, d @ cov @ d + 2  # the difference with both noise terms: p(y = 0) = Φ(m/√v)
    z = m / np.sqrt(v)
    ratio = np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z))
    result = inner_ep(mean, cov, 0)
    assert result.log_z == pytest.approx(log_ndtr(z), abs=1e-10)
    assert_close(result.mean, mean + cov @ d * ratio / np.sqrt(v), atol=1e-10)
    expected = cov - np.outer(cov @ d, cov @ d) * ratio * (z + ratio) / v
    assert_close(result.cov, expected, atol=1e-10)


@pytest.mark.parametrize("y", [0, 1, 2])
def test_inner_ep_is_close_to_the_grid_but_not_exact_for_three_classes(y: int) -> None:
    mean = np.array([0.3, -0.5, 0.2])
    cov = np.array([[1.0, 0.3, 0.1], [0.3, 1.5, 0.2], [0.1, 0.2, 0.8]])
    ep, exact = inner_ep(mean, cov, y), tilted_moments_grid(mean, cov, y)
    log_z_error = abs(ep.log_z - exact.log_z)
    errors = [log_z_error, np.abs(ep.mean - exact.mean).max(), np.abs(ep.cov - exact.cov).max()]
    assert max(errors) <= 5e-3  # measured: log Z 2e-3, mean 8e-4, covariance 4e-3
    # EP is an approximation: an error at rounding level would mean the two are the same computation.
    assert min(errors) >= 1e-5


@pytest.mark.parametrize("c", [2, 3, 5, 8])
def test_inner_ep_leaves_a_site_of_the_printed_form(c: int) -> None:
    mean, cov = random_cavity(c, 2.0, seed=c)
    result = inner_ep(mean, cov, 1)
    Pi, nu = site_block(result.alpha, result.beta, 1)
    assert_close(np.linalg.inv(result.cov) - np.linalg.inv(cov), Pi, atol=1e-11)
    site = np.linalg.solve(result.cov, result.mean) - np.linalg.solve(cov, mean)
    assert_close(site, nu, atol=1e-11)
    assert result.alpha[1] == result.beta[1] == 0.0


def test_inner_ep_from_other_sites_ends_at_the_same_place() -> None:
    mean, cov = random_cavity(4, 5.0, seed=1)
    cold = inner_ep(mean, cov, 2)
    warm = inner_ep(mean, cov, 2, init=(np.array([0.3, 0.1, 0.0, 0.5]), np.array([1.0, -0.5, 0.0, 0.2])))
    damped = inner_ep(mean, cov, 2, damping=0.5)
    for other in (warm, damped):
        for k in range(5):
            assert_close(np.asarray(cold[k]), np.asarray(other[k]), atol=1e-9)


def test_inner_ep_survives_a_hopeless_observation() -> None:
    mean = np.array([-60.0, 0.0, 0.0])
    result, exact = inner_ep(mean, np.eye(3), 0, tol=1e-9), tilted_moments_grid(mean, np.eye(3), 0)
    # So far out the tilted density is nearly Gaussian, and EP nearly exact.
    assert result.log_z == pytest.approx(exact.log_z, abs=1e-7)
    assert_close(result.mean, exact.mean, atol=1e-6)


def test_inner_ep_says_when_it_has_not_converged() -> None:
    mean, cov = random_cavity(4, 5.0, seed=1)
    with pytest.raises(RuntimeError, match="after 2 sweeps"):
        inner_ep(mean, cov, 2, sweeps=2)
    assert abs(inner_ep(mean, cov, 2, sweeps=2, tol=0.0).log_z - inner_ep(mean, cov, 2).log_z) > 1e-9


# --- dense algebra ---


@pytest.mark.parametrize("c", [2, 3, 6])
def test_site_blocks_before_and_after_simplification(c: int) -> None:
    rng = np.random.default_rng(c)
    for y in range(c):
        alpha, beta = rng.uniform(0.0, 2.0, c), rng.normal(size=c)
        alpha[y] = beta[y] = 0.0
        Pi, nu = site_block(alpha, beta, y)
        Pi_long, nu_long = site_block_from_contrasts(alpha, beta, y)
        assert_close(Pi, Pi_long, atol=1e-14)
        assert_close(nu, nu_long, atol=1e-14)
        assert_close(Pi.sum(axis=1), 0.0, atol=1e-14)
        assert_close(nu.sum(), 0.0, atol=1e-14)


@pytest.mark.parametrize("per_class", [False, True])
def test_dense_posterior_against_precision_form(per_class: bool) -> None:
    K, y = small_problem(5, 3)
    K = K + 0.5 * np.eye(5)  # well conditioned, so that K⁻¹ can be written out
    if per_class:
        K = np.array([K, 2 * K, 0.5 * K + 0.1])
    alpha, beta = random_sites(3, y)
    T, _, _ = stacked_sites(alpha, y)
    Pi, nu = site_matrices(alpha, beta, y)
    for i in range(5):
        assert_close(T[i::5, i::5], Pi[i], atol=1e-14)
    full = stacked_prior(K, 3)
    Sigma = np.linalg.inv(np.linalg.inv(full) + T)
    mu_dense, Sigma_dense = dense_posterior(K, alpha, beta, y)
    assert_close(Sigma_dense, Sigma, atol=1e-11)
    assert_close(mu_dense.ravel(), Sigma @ nu.ravel(), atol=1e-11)
    # At the training points themselves, prediction is the posterior marginal.
    mean, cov = dense_predict(K, K, np.diagonal(K, axis1=-2, axis2=-1), alpha, beta, y)
    assert_close(mean.T, mu_dense, atol=1e-11)
    assert_close(cov, [marginal(mu_dense, Sigma_dense, i)[1] for i in range(5)], atol=1e-11)


def test_eq41_and_eq43_equal_the_direct_forms() -> None:
    K, y = small_problem(6, 4)
    alpha, _ = random_sites(4, y)
    M, logdet = dense_m_eq41(K, alpha, y)
    assert_close(M, dense_m(K, alpha, y), atol=1e-12)
    T, _, _ = stacked_sites(alpha, y)
    assert logdet == pytest.approx(np.linalg.slogdet(np.eye(24) + stacked_prior(K, 4) @ T)[1], abs=1e-12)


# --- nested EP ---


def test_nested_ep_reaches_the_reference_fixed_point(solved: Solved) -> None:
    case, result = solved
    ep = case.values["ep"]
    assert result.log_z == pytest.approx(ep["logZ"], abs=1e-8)
    covs = [marginal(result.mu, result.Sigma, i)[1] for i in range(len(case.y))]
    assert_close(result.mu.T, ep["train_mean"], atol=1e-6)
    assert_close(covs, ep["train_cov"], atol=1e-6)
    assert_close(result.alpha, case.alpha, atol=1e-8)
    assert_close(result.beta, case.beta, atol=1e-8)
    assert_close(site_matrices(result.alpha, result.beta, case.y)[1].T, ep["site_nu"], atol=1e-8)


def test_reference_gradient_from_dlogz_dk(solved: Solved) -> None:
    case, result = solved
    contracted = [np.sum(result.gradient * dK) for dK in case.dK]
    assert_close(contracted, case.values["ep"]["grad_logZ"], atol=1e-7)


def test_reference_predictions(solved: Solved) -> None:
    case, result = solved
    ep = case.values["ep"]
    mean, cov = dense_predict(case.K, case.Kstar, case.Kss, result.alpha, result.beta, case.y)
    assert_close(mean, ep["test_mean"], atol=1e-6)
    assert_close(cov, ep["test_cov"], atol=1e-6)
    c = case.n_classes
    inner = [[np.exp(inner_ep(m, V, k).log_z) for k in range(c)] for m, V in zip(mean, cov, strict=True)]
    assert_close(inner, ep["test_prob_unnormalised_converged"], atol=1e-8)


def test_reference_exact_integrals(solved: Solved) -> None:
    case, _ = solved
    ep = case.values["ep"]
    exact = np.array(ep["test_prob_exact_integral"])[::5]
    latents = list(zip(np.array(ep["test_mean"])[::5], np.array(ep["test_cov"])[::5], strict=True))
    by_qmc = [class_probabilities_qmc(m, V, 2**11) for m, V in latents]
    assert_close(by_qmc, exact, atol=1e-5)
    if case.n_classes == 3:
        assert_close([class_probabilities_bvn(m, V) for m, V in latents], exact, atol=1e-8)


def test_two_forms_of_the_evidence_agree_at_the_reference_sites(solved: Solved) -> None:
    case, _ = solved
    printed = log_evidence_eq42(case.K, case.y, case.alpha, case.beta)
    assert log_evidence_flat(case.K, case.y, case.alpha, case.beta) == pytest.approx(printed, abs=1e-9)
    assert printed == pytest.approx(case.values["ep"]["logZ"], abs=1e-9)


@pytest.mark.parametrize(("n", "c"), [(4, 3), (6, 4), (5, 2)])
def test_two_forms_of_the_evidence_agree_with_kernels_per_class(n: int, c: int) -> None:
    K, y = small_problem(n, c)
    K = np.array([(1 + 0.5 * k) * K for k in range(c)])
    result = nested_ep(K, y, c)
    flat = log_evidence_flat(K, y, result.alpha, result.beta)
    assert flat == pytest.approx(result.log_z, abs=1e-9)


def test_evidence_gradient_against_differences_of_the_converged_evidence() -> None:
    K, y = small_problem(4, 3, seed=2)
    K = np.array([K, 1.5 * K, 0.7 * K]) + 0.1 * np.eye(4)
    gradient = nested_ep(K, y, 3, tol=1e-12).gradient
    rng = np.random.default_rng(7)
    for _ in range(6):
        direction = rng.normal(size=K.shape)
        direction += np.swapaxes(direction, 1, 2)

        def log_z(t: Array, direction: Array = direction) -> float:
            return nested_ep(K + t * direction, y, 3, tol=1e-12).log_z

        # Central differences of step h lose about 1e-13/h to rounding; Richardson leaves h⁴.
        numeric = central_difference(log_z, 0.0, 2e-3, richardson=True)
        assert_close(np.sum(gradient * direction), numeric, atol=1e-8)


def test_gradient_of_a_shared_kernel_is_the_sum_over_classes() -> None:
    K, y = small_problem(5, 3)
    shared, separate = nested_ep(K, y, 3), nested_ep(np.array([K] * 3), y, 3)
    assert shared.gradient.shape == (5, 5)
    assert_close(shared.gradient, separate.gradient.sum(axis=0), atol=1e-12)


def test_permuted_labels_permute_the_answer() -> None:
    K, y = small_problem(8, 4)
    order = np.array([2, 0, 3, 1])
    plain, permuted = nested_ep(K, y, 4, tol=1e-12), nested_ep(K, order[y], 4, tol=1e-12)
    assert permuted.log_z == pytest.approx(plain.log_z, abs=1e-11)
    assert_close(permuted.mu[order], plain.mu, atol=1e-9)
    assert_close(permuted.alpha[order], plain.alpha, atol=1e-9)


def test_nested_ep_says_when_it_has_not_converged() -> None:
    K, y = small_problem(6, 3)
    with pytest.raises(RuntimeError, match="after 3 sweeps"):
        nested_ep(K, y, 3, max_iter=3)


# --- two classes ---


@pytest.mark.parametrize("s2", [1.0, 50.0])
def test_two_classes_are_binary_probit_with_the_same_kernel(s2: float) -> None:
    rng = np.random.default_rng(8)
    x, x_test = rng.normal(size=(12, 1)), np.linspace(-3, 3, 7)[:, None]
    y = (x[:, 0] + rng.normal(scale=0.7, size=12) > 0).astype(np.int64)
    K, Kstar = (squared_exponential(x, other, s2, np.ones(1)) for other in (x, x_test))
    binary, nested = binary_ep(K, y), nested_ep(K, y, 2, tol=1e-12)
    assert nested.log_z == pytest.approx(binary.log_z, abs=1e-8)
    assert_close((nested.mu[1] - nested.mu[0]) / np.sqrt(2), binary.mean, atol=1e-8)
    # s = (f_1 − f_0)/√2, so the site on g = f_y − f_j of precision α/(1+α) is one on s of precision 2α/(1+α).
    alpha, beta = nested.alpha.sum(axis=0), nested.beta.sum(axis=0)
    assert_close(2 * alpha / (1 + alpha), binary.tau, atol=1e-8)
    assert_close(np.where(y == 1, 1, -1) * np.sqrt(2) * beta / (1 + alpha), binary.nu, atol=1e-8)

    d = np.array([-1.0, 1.0]) / np.sqrt(2)
    mean, cov = dense_predict(K, Kstar, np.full(7, s2), nested.alpha, nested.beta, y)
    s_mean, s_var, probability = binary_predict(binary, K, Kstar, np.full(7, s2))
    assert_close(mean @ d, s_mean, atol=1e-8)
    assert_close(np.einsum("i,mij,j->m", d, cov, d), s_var, atol=1e-8)
    inner = [np.exp(inner_ep(m, V, 1).log_z) for m, V in zip(mean, cov, strict=True)]
    assert_close(inner, probability, atol=1e-8)


# --- exact evidence ---


def test_bruteforce_evidence_against_closed_forms() -> None:
    K = np.array([[2.0, 1.2], [1.2, 1.5]])
    # One point: all classes alike by symmetry.
    assert log_evidence_bruteforce(K[:1, :1], np.array([3]), 4)[0] == pytest.approx(-np.log(4), abs=1e-5)
    # Two points of two classes: a quadrant with the correlation of v_1^1 − v_1^0 and v_2^1 − v_2^0.
    rho = K[0, 1] / np.sqrt((K[0, 0] + 1) * (K[1, 1] + 1))
    for y, sign in (([1, 1], 1), ([0, 1], -1)):
        expected = np.log(0.25 + sign * np.arcsin(rho) / (2 * np.pi))
        assert log_evidence_bruteforce(K, np.array(y), 2)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("c", "s2", "bound"), [(3, 1.0, 0.02), (3, np.exp(4.0), 0.12), (4, 2.0, 0.04)])
def test_ep_evidence_is_close_to_the_exact_one(c: int, s2: float, bound: float) -> None:
    K, y = small_problem(5, c, s2, seed=1)
    exact, error = log_evidence_bruteforce(K, y, c)
    assert error <= 5e-3
    approximate = nested_ep(K, y, c).log_z
    # The bounds are the EP errors measured here (0.010, 0.102, 0.025), rounded up.
    assert abs(approximate - exact) <= bound
    # For c >= 3 EP is below the exact value: equal ones would mean that EP was compared with itself.
    assert approximate < exact - 5 * error


def test_bruteforce_evidence_against_the_reference_value() -> None:
    try:
        case = load_case("A_toy1d")
    except FileNotFoundError:
        pytest.skip(f"no reference values in {reference_directory()}; set NESTGP_SHARED to the folder above")
    exact = case.values["exact"]
    estimate, error = log_evidence_bruteforce(case.K, case.y, case.n_classes, n_points=2**14)
    assert error <= 0.05
    assert abs(estimate - exact["logZ"]) <= 4 * (error + exact["logZ_se"])
