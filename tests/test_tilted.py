"""Inner EP against closed forms, a literal EP, grids and QMC: multinomial probit and other contrasts."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import quad
from scipy.special import erfcx, log_ndtr

from nestgp import tilted
from nestgp.tilted import Contrast
from tests.oracles._types import Array
from tests.oracles.dense import site_block
from tests.oracles.inner import inner_ep
from tests.oracles.integrals import bivariate_normal_cdf, log_orthant, tilted_moments_grid, tilted_moments_qmc

CONVERGE = (500, 1e-14, False)  # sweeps, inner_tol, parallel


def random_gaussian(c: int, scale: float, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((c, c))
    return np.sqrt(scale) * rng.standard_normal(c), scale * (A @ A.T / c + 0.3 * np.eye(c))


def packed(cov: Array) -> Array:
    return np.ascontiguousarray(cov[np.tril_indices(len(cov))])


class Updated(NamedTuple):
    """What update_sites says of one point."""

    valid: bool
    residual: float
    log_terms: float
    alpha: Array
    beta: Array
    scale: Array


def update_one(
    mean: Array,
    cov: Array,
    kind: int,
    contrast: Contrast,
    sites: tuple[Array, Array] | None = None,
    inner: tuple[int, float, bool] = CONVERGE,
) -> Updated:
    p = contrast.loading.shape[1]
    alpha, beta = (np.zeros(p), np.zeros(p)) if sites is None else sites
    new, scale = np.empty((2, 1, p)), np.empty((1, p))
    table = (contrast.index, contrast.coefficient, contrast.loading)
    args = (mean[:, None], packed(cov)[:, None], np.array([kind]), *table, alpha[None], beta[None])
    valid, residual, log_terms = tilted.update_sites(*args, *inner, *new, scale)
    return Updated(valid, residual, log_terms, new[0, 0], new[1, 0], scale[0])


def normalisers(mean: Array, cov: Array, contrast: Contrast) -> Array:
    out = np.empty((1, contrast.loading.shape[0]))
    table = (contrast.index, contrast.coefficient, contrast.loading)
    tilted.log_normalisers(mean[None], packed(cov)[None], *table, 500, 1e-13, out)
    return out[0]


class LiteralResult(NamedTuple):
    """Fixed point of EP on g ~ N(m, G) with factors Φ(g_j)."""

    log_z: float
    alpha: Array
    beta: Array


def literal_ep(m: Array, G: Array, sweeps: int = 500) -> LiteralResult:
    """Sequential EP, undamped: α̃_j = 1/v̂ − 1/v₋ and β̃_j = m̂/v̂ − m₋/v₋."""
    p = len(m)
    alpha, beta = np.zeros(p), np.zeros(p)
    log_terms = np.zeros(p)
    for _ in range(sweeps):
        for j in range(p):
            keep = np.eye(p) + G * alpha  # G may be singular: (G⁻¹ + T̃)⁻¹ = (I + G T̃)⁻¹ G
            S, mu = np.linalg.solve(keep, G), np.linalg.solve(keep, m + G @ beta)
            v = 1 / (1 / S[j, j] - alpha[j])
            mean = v * (mu[j] / S[j, j] - beta[j])
            z = mean / np.sqrt(1 + v)
            ratio = np.exp(-0.5 * z**2 - log_ndtr(z)) / np.sqrt(2 * np.pi)
            m_hat = mean + v * ratio / np.sqrt(1 + v)
            v_hat = v - v**2 * ratio * (z + ratio) / (1 + v)
            alpha[j], beta[j] = 1 / v_hat - 1 / v, m_hat / v_hat - mean / v
            spread = 1 + alpha[j] * v
            site = (
                -0.5 * np.log(spread)
                + (beta[j] * mean + 0.5 * beta[j] ** 2 * v - 0.5 * alpha[j] * mean**2) / spread
            )
            log_terms[j] = log_ndtr(z) - site
    A = np.eye(p) + G @ np.diag(alpha)
    x = np.linalg.solve(A, np.column_stack([m, G @ beta]))
    gaussian = (
        -0.5 * np.linalg.slogdet(A)[1] - 0.5 * m @ (alpha * x[:, 0]) + beta @ x[:, 0] + 0.5 * beta @ x[:, 1]
    )
    return LiteralResult(float(gaussian + log_terms.sum()), alpha, beta)


def random_contrast(kinds: int, p: int, c: int, seed: int = 0) -> tuple[Contrast, Array]:
    """Dense rows [C | h] with a few zeros, and the matrices themselves."""
    rng = np.random.default_rng(seed)
    matrices = rng.standard_normal((kinds, p, c + 1))
    matrices[:, 0, 0] = 0.0
    return Contrast.from_dense(matrices), matrices


# --- scalar pieces ---


@pytest.mark.parametrize(
    "z",
    [-1e3, -200.0, -50.0, -38.5, -20.0, -8.001, -8.0, -7.999, -5.0, -1.0, -1e-9, 0.0, 1e-9, 0.7, 6.0, 40.0],
)
def test_log_cdf_and_ratio_against_scipy(z: float) -> None:
    log_cdf, ratio, ratio_plus_z = tilted.log_ndtr_and_ratio(z)
    assert log_cdf == pytest.approx(log_ndtr(z), rel=2e-14)
    expected = np.sqrt(2 / np.pi) / erfcx(-z / np.sqrt(2))  # φ/Φ without a quotient of tiny numbers
    assert ratio == pytest.approx(expected, rel=2e-14)
    # r + z = 1/x − 2/x³ + 10/x⁵ − 74/x⁷ + 706/x⁹ … far out, where the difference itself has no digits.
    x = -z
    tail = 1 / x - 2 / x**3 + 10 / x**5 - 74 / x**7 + 706 / x**9 if z < -30 else expected + z
    assert ratio_plus_z == pytest.approx(tail, rel=1e-11 if z < -5 else 1e-13)


def test_log_cdf_on_a_fine_grid() -> None:
    z = np.linspace(-60.0, 40.0, 4001)
    found = np.array([tilted.log_ndtr_and_ratio(x) for x in z])
    assert_allclose(found[:, 0], log_ndtr(z), rtol=1e-13, atol=1e-300)
    assert (np.diff(found[:, 1]) <= 0).all()  # φ/Φ decreases
    assert (found[:, 2] > 0).all()
    assert (found[:, 1] * found[:, 2] <= 1.0 + 1e-15).all()  # the tilted variance stays positive


@pytest.mark.parametrize("v", [1e-6, 0.5, 20.0, 1e6])
@pytest.mark.parametrize("shift", [-6.0, -0.5, 0.0, 3.0])
def test_probit_moments_against_quadrature(v: float, shift: float) -> None:
    m = shift * np.sqrt(1 + v)
    log_z, m_hat, v_hat, loss = tilted.probit_moments(m, v)
    assert log_z == pytest.approx(log_ndtr(shift), abs=1e-14, rel=1e-13)
    sd = np.sqrt(v_hat)

    def moment(power: int) -> float:
        def integrand(t: float) -> float:
            g = m_hat + sd * t
            log_density = -0.5 * (g - m) ** 2 / v - 0.5 * np.log(2 * np.pi * v) + log_ndtr(g) - log_z
            return float(t**power * np.exp(log_density) * sd)

        step = (np.array([-9.0, 0.0, 9.0]) - m_hat) / sd  # where Φ rises, narrow against a wide Gaussian
        edges = np.concatenate(
            [[-12.0], step[np.abs(step) < 12.0], [12.0, 50.0]]
        )  # a far tail is exponential
        return float(sum(quad(integrand, a, b, limit=200)[0] for a, b in itertools.pairwise(edges)))

    # In units of the result: the tilted density has total 1, mean 0 and variance 1.
    assert_allclose([moment(0), moment(1), moment(2)], [1.0, 0.0, 1.0], atol=1e-7)
    assert loss == pytest.approx(1 - v_hat / v, abs=1e-14)


@pytest.mark.parametrize(
    ("m", "v", "alpha", "beta"), [(0.3, 0.5, 0.7, -1.0), (-2.0, 9.0, 0.0, 0.4), (1.0, 2.0, 3.0, 0.0)]
)
def test_site_integral_against_quadrature(m: float, v: float, alpha: float, beta: float) -> None:
    def integrand(g: float) -> float:
        return float(np.exp(-0.5 * (g - m) ** 2 / v - 0.5 * alpha * g**2 + beta * g) / np.sqrt(2 * np.pi * v))

    value = quad(integrand, -60, 60, limit=400, points=[m])[0]
    assert tilted.log_site_integral(m, v, alpha, beta) == pytest.approx(np.log(value), abs=1e-10)


# --- contrasts ---


def test_multinomial_probit_rows() -> None:
    table = tilted.multinomial_probit(3)
    dense = np.zeros((3, 2, 3))
    np.put_along_axis(dense, table.index, table.coefficient, axis=2)
    assert_array_equal(dense[1], [[-1, 1, 0], [0, 1, -1]])
    assert_array_equal(dense[0], [[1, -1, 0], [1, 0, -1]])
    assert_array_equal(table.loading, 1.0)
    assert table.index.shape[2] == 2  # two entries per row whatever c: V costs O(c²), not O(c⁴)


def test_from_dense_keeps_every_entry() -> None:
    contrast, matrices = random_contrast(3, 4, 5)
    dense = np.zeros((3, 4, 5))
    np.put_along_axis(dense, contrast.index, contrast.coefficient, axis=2)
    assert_array_equal(dense, matrices[..., :-1])
    assert_array_equal(contrast.loading, matrices[..., -1])


# --- multinomial probit ---


@pytest.mark.parametrize("scale", [0.1, 3.0, 300.0])
@pytest.mark.parametrize("c", [2, 3, 5, 10])
def test_sites_and_normaliser_equal_the_literal_inner_ep(c: int, scale: float) -> None:
    table = tilted.multinomial_probit(c)
    for seed in range(3):
        mean, cov = random_gaussian(c, scale, seed)
        log_z = normalisers(mean, cov, table)
        for y in range(c):
            expected = inner_ep(mean, cov, y, tol=1e-11)
            others = np.arange(c) != y
            found = update_one(mean, cov, y, table)
            assert found.valid
            assert_allclose(found.alpha, expected.alpha[others], rtol=1e-9, atol=1e-9)
            assert_allclose(found.beta, expected.beta[others], rtol=1e-9, atol=1e-9)
            assert log_z[y] == pytest.approx(expected.log_z, abs=1e-9)


@pytest.mark.parametrize("inner", [(1, 0.0, False), (3, 0.0, False), (500, 1e-14, True)])
def test_warm_sites_and_schedules(inner: tuple[int, float, bool]) -> None:
    # The moments given contain the sites: the update must take them out again before it matches moments.
    c, y = 4, 2
    table = tilted.multinomial_probit(c)
    mean, cov = random_gaussian(c, 2.0, 9)
    fixed = inner_ep(mean, cov, y)
    others = np.arange(c) != y
    at_fixed_point = update_one(
        fixed.mean, fixed.cov, y, table, (fixed.alpha[others], fixed.beta[others]), inner
    )
    assert at_fixed_point.residual <= 1e-10
    assert_allclose(at_fixed_point.alpha, fixed.alpha[others], atol=1e-10)
    assert_allclose(at_fixed_point.beta, fixed.beta[others], atol=1e-10)

    half = 0.5 * fixed.alpha, 0.5 * fixed.beta
    Pi, nu = site_block(*half, y)
    posterior = np.linalg.inv(np.linalg.inv(cov) + Pi)
    moved = update_one(
        posterior @ (np.linalg.solve(cov, mean) + nu),
        posterior,
        y,
        table,
        (half[0][others], half[1][others]),
        inner,
    )
    assert moved.residual > 1e-2
    partial = inner_ep(mean, cov, y, sweeps=inner[0], tol=0.0, init=half) if not inner[2] else fixed
    assert_allclose(moved.alpha, partial.alpha[others], atol=1e-9)
    assert_allclose(moved.beta, partial.beta[others], atol=1e-9)


@pytest.mark.parametrize("inner", [(1, 0.0, False), (2, 0.0, True), (500, 1e-13, False)])
def test_a_second_update_is_one_from_the_new_mean_and_the_old_cavity(inner: tuple[int, float, bool]) -> None:
    c, y = 4, 1
    contrast, others = tilted.multinomial_probit(c), np.arange(c) != y
    rng = np.random.default_rng(3)
    cavity = random_gaussian(c, 2.0, 9)[1]
    sites, ahead = np.zeros((2, 2, c))
    sites[:, others], ahead[:, others] = rng.uniform(0.1, 1.0, (2, 2, c - 1))
    before, after = (np.linalg.inv(np.linalg.inv(cavity) + site_block(*x, y)[0]) for x in (sites, ahead))
    mean, found = rng.standard_normal(c), np.empty((2, 1, c - 1))
    table = (contrast.index, contrast.coefficient, contrast.loading)
    args = (mean[:, None], packed(before)[:, None], np.array([y]), *table, sites[:, None, others], ahead[:, None, others])
    assert tilted.refine_sites(*args, *inner, *found)
    expected = update_one(mean, after, y, contrast, (ahead[0, others], ahead[1, others]), inner)
    assert_allclose(found[0, 0], expected.alpha, rtol=1e-10)
    assert_allclose(found[1, 0], expected.beta, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", [0.3, 3.0, 50.0])
def test_normaliser_is_near_the_grid_for_three_classes(scale: float) -> None:
    errors = []
    for seed in range(4):
        mean, cov = random_gaussian(3, scale, seed)
        log_z = normalisers(mean, cov, tilted.multinomial_probit(3))
        errors += [log_z[y] - tilted_moments_grid(mean, cov, y).log_z for y in range(3)]
    # EP's own error, measured: 0.007, 0.016, 0.022 at the three scales. Never 0: two computations, not one.
    assert np.abs(errors).max() <= {0.3: 0.009, 3.0: 0.02, 50.0: 0.03}[scale]
    assert np.abs(errors).max() >= 1e-4


@pytest.mark.parametrize("scale", [0.3, 3.0, 50.0])
def test_matched_moments_are_near_the_grid_for_three_classes(scale: float) -> None:
    worst = 0.0
    for seed in range(4):
        mean, cov = random_gaussian(3, scale, seed)
        for y in range(3):
            exact = tilted_moments_grid(mean, cov, y)
            new = update_one(mean, cov, y, tilted.multinomial_probit(3))
            alpha, beta = np.insert(new.alpha, y, 0.0), np.insert(new.beta, y, 0.0)
            Pi, nu = site_block(alpha, beta, y)
            S = np.linalg.inv(np.linalg.inv(cov) + Pi)
            error = S @ (np.linalg.solve(cov, mean) + nu) - exact.mean
            worst = max(worst, float(np.abs(error / np.sqrt(np.diag(exact.cov))).max()))
    # In standard deviations of the tilted density; measured 0.002, 0.015, 0.021.
    assert 1e-5 <= worst <= {0.3: 0.003, 3.0: 0.02, 50.0: 0.03}[scale]


@pytest.mark.parametrize("c", [4, 7, 10])
def test_normaliser_is_near_quasi_monte_carlo_for_many_classes(c: int) -> None:
    mean, cov = random_gaussian(c, 1.0, c)
    log_z = normalisers(mean, cov, tilted.multinomial_probit(c))
    for y in (0, c - 1):
        exact, error = tilted_moments_qmc(mean, cov, y, n_points=2**12, n_scrambles=8)
        assert error.log_z <= 5e-4
        assert abs(log_z[y] - exact.log_z) <= 0.015  # EP's error, measured 0.003 to 0.012


def test_a_hopeless_observation_keeps_its_digits() -> None:
    mean = np.array([-300.0, 0.0, 0.0])
    log_z = normalisers(mean, np.eye(3), tilted.multinomial_probit(3))
    exact = log_orthant(np.array([-300.0, -300.0]), np.array([[4.0, 2.0], [2.0, 4.0]]))[0]
    assert log_z[0] == pytest.approx(exact, abs=1e-3)  # the oracle's standard error is 2e-4
    assert log_z[1] == pytest.approx(np.log(0.5), abs=1e-12)


@pytest.mark.parametrize("cov", [np.diag([1.0, -5.0]), np.diag([np.nan, 1.0])])
def test_moments_without_variance_are_invalid_not_a_number(cov: Array) -> None:
    table = tilted.multinomial_probit(2)
    assert np.isnan(normalisers(np.zeros(2), cov, table)).all()
    assert not update_one(np.zeros(2), cov, 0, table).valid


# --- other contrasts ---


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_binary_probit_without_auxiliary_variable_is_exact(sign: float) -> None:
    contrast = Contrast.from_dense(np.array([[[sign, 0.0]]]))
    for m, v in [(0.3, 1.0), (-5.0, 4.0), (2.0, 100.0)]:
        mean, cov = np.array([m]), np.array([[v]])
        z = sign * m / np.sqrt(1 + v)
        assert normalisers(mean, cov, contrast)[0] == pytest.approx(log_ndtr(z), rel=1e-12)
        found = update_one(mean, cov, 0, contrast)
        v_post = 1 / (1 / v + found.alpha[0])
        m_post = v_post * (m / v + sign * found.beta[0])
        ratio = np.exp(-0.5 * z**2 - log_ndtr(z)) / np.sqrt(2 * np.pi)
        assert m_post == pytest.approx(m + sign * v * ratio / np.sqrt(1 + v), rel=1e-11)
        assert v_post == pytest.approx(v - v**2 * ratio * (z + ratio) / (1 + v), rel=1e-10)
        assert found.log_terms == pytest.approx(
            log_ndtr(z), rel=1e-12
        )  # without sites there is nothing to divide by


def test_factors_that_do_not_interact_are_exact() -> None:
    rng = np.random.default_rng(3)
    Q, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    rows = np.array([0.5, 2.0, 7.0])[:, None] * Q[:3]
    contrast = Contrast.from_dense(np.concatenate([rows, np.zeros((3, 1))], axis=1)[None])
    mean = rng.standard_normal(4)
    expected = log_ndtr(rows @ mean / np.sqrt(1 + np.array([0.25, 4.0, 49.0]))).sum()
    assert normalisers(mean, np.eye(4), contrast)[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("p", "c"), [(1, 3), (2, 2), (3, 4), (5, 3)])
def test_any_contrast_equals_the_literal_ep(p: int, c: int) -> None:
    contrast, matrices = random_contrast(2, p, c, seed=p)
    mean, cov = random_gaussian(c, 2.0, seed=c)
    log_z = normalisers(mean, cov, contrast)
    for kind in range(2):
        C, h = matrices[kind, :, :-1], matrices[kind, :, -1]
        expected = literal_ep(C @ mean, C @ cov @ C.T + np.outer(h, h))
        found = update_one(mean, cov, kind, contrast)
        assert log_z[kind] == pytest.approx(expected.log_z, abs=1e-9)
        assert_allclose(found.alpha, expected.alpha, rtol=1e-8, atol=1e-9)
        assert_allclose(found.beta, expected.beta, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("p", [1, 3])
def test_sites_of_any_contrast_are_taken_out_of_the_moments_that_contain_them(p: int) -> None:
    c = 4
    contrast, matrices = random_contrast(1, p, c, seed=7)
    C, h = matrices[0, :, :-1], matrices[0, :, -1]
    mean, cov = random_gaussian(c, 1.0, seed=5)
    rng = np.random.default_rng(0)
    alpha, beta = rng.uniform(0.1, 1.0, p), rng.standard_normal(p)
    # (f, u) with its sites, then u integrated out.
    W = np.block([[cov, np.zeros((c, 1))], [np.zeros((1, c)), np.ones((1, 1))]])
    rows = np.column_stack([C, h])
    S = np.linalg.inv(np.linalg.inv(W) + rows.T @ np.diag(alpha) @ rows)
    mu = S @ (np.linalg.solve(W, np.append(mean, 0.0)) + rows.T @ beta)
    found = update_one(mu[:c], S[:c, :c], 0, contrast, (alpha, beta))
    assert_allclose(found.scale, np.diag(rows @ S @ rows.T), rtol=1e-12)
    cold = update_one(mean, cov, 0, contrast)
    assert_allclose(found.alpha, cold.alpha, atol=1e-10)
    assert_allclose(found.beta, cold.beta, atol=1e-10)


def test_a_random_contrast_is_near_its_exact_integral() -> None:
    contrast, matrices = random_contrast(3, 2, 3, seed=2)
    mean, cov = random_gaussian(3, 1.0, seed=1)
    log_z = normalisers(mean, cov, contrast)
    for kind in range(3):
        C, h = matrices[kind, :, :-1], matrices[kind, :, -1]
        m, G = C @ mean, C @ cov @ C.T + np.outer(h, h) + np.eye(2)
        sd = np.sqrt(np.diag(G))
        exact = np.log(bivariate_normal_cdf(*(m / sd), G[0, 1] / sd.prod()))
        assert abs(log_z[kind] - exact) <= 1e-3  # EP's error, measured 6e-4, 9e-5, 2e-4
