"""Annealing and the ladder: the Gaussian of the differences, estimates of the evidence, exchanges, and two hills."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import block_diag
from scipy.special import log_ndtr
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel

from nestgp import kernels
from nestgp.hyper import HalfStudentT
from nestgp.inference import NestedEP
from nestgp.predict import exact_log_probabilities
from nestgp.sampling import Ladder, annealed, below, chain, ladder, rungs
from nestgp.sampling import differences as differences_module
from nestgp.sampling import emulator as emulator_module
from nestgp.sampling import landscape as landscape_module
from nestgp.sampling.annealed import anneal, systematic
from nestgp.sampling.chain import Problem
from nestgp.sampling.differences import Differences
from nestgp.sampling.emulator import Emulator
from nestgp.sampling.factors import Factors
from nestgp.sampling.landscape import FLATTER, Landscape, Place, Point, Survey, climb
from nestgp.sampling.mixing import ess_bulk
from nestgp.sampling.rungs import Rung
from tests.oracles._types import Array, Labels
from tests.oracles.integrals import log_evidence_bruteforce

X4 = np.array([[-1.0], [-0.2], [0.4], [1.1]])
Y4 = np.array([0, 1, 2, 0])
X_NEW = np.array([[0.2]])
C = 3
SHARED = ConstantKernel(3.0) * RBF(0.8)
PER_CLASS = [ConstantKernel(3.0) * RBF(0.8), ConstantKernel(1.0) * RBF(0.5), ConstantKernel(2.0) * RBF(1.5)]
KERNELS = {"shared": SHARED, "per class": PER_CLASS}
#: Kernel, labels and classes: three classes, two of them, and four of which one is never seen.
PROBLEMS = {"shared": (SHARED, Y4, 3), "per class": (PER_CLASS, Y4, 3), "two": (SHARED, Y4 % 2, 2), "unseen": (SHARED, Y4, 4)}


def differences(
    kernel: Kernel | list[Kernel], y: Labels, n_classes: int, X: Array = X4, tol: float = 1e-10
) -> tuple[Differences, Any]:
    factors = Factors(kernel, X, n_classes)
    fit = NestedEP(tol=tol).infer(factors.jittered if isinstance(kernel, list) else factors.jittered[0], y, n_classes)
    return Differences(fit, factors, y), fit


#: Quantiles that stand for a standard normal variable.
NORMAL = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)


def curvature(g: Array, alpha: float) -> Array:
    """(log Φ + ½ α̃ g²)″ by differences."""
    h = 1e-3
    return alpha + (log_ndtr(g + h) - 2.0 * log_ndtr(g) + log_ndtr(g - h)) / h**2


def dense_gaussian(fit: Any, K: Array, y: Labels, c: int) -> tuple[Array, Array, Array]:
    """Mean and covariance of (f, u) under prior and sites on g, all dense, and the matrix that g is made with."""
    n = len(y)
    alpha, beta = fit.sites
    to_g = np.zeros((n * (c - 1), c * n + n))
    for i in range(n):
        for row, j in enumerate(j for j in range(c) if j != y[i]):
            to_g[i * (c - 1) + row, [y[i] * n + i, c * n + i]] += 1.0
            to_g[i * (c - 1) + row, j * n + i] -= 1.0
    prior = block_diag(*(K if K.ndim == 3 else [K] * c), np.eye(n))
    cov = np.linalg.inv(np.linalg.inv(prior) + to_g.T @ np.diag(alpha.ravel()) @ to_g)
    return cov @ to_g.T @ beta.ravel(), cov, to_g


@pytest.mark.parametrize("name", PROBLEMS)
def test_differences_against_dense(name: str) -> None:
    kernel, y, c = PROBLEMS[name]
    g, fit = differences(kernel, y, c)
    K = np.squeeze(g.factors.jittered)
    mean, cov, to_g = dense_gaussian(fit, K, y, c)
    to_g = to_g[g.order]
    G = to_g @ cov @ to_g.T
    np.testing.assert_allclose(g.mean, to_g @ mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(g.root @ g.root.T, G, rtol=1e-7, atol=1e-8 * G.max())
    np.testing.assert_allclose(g.covariance.times(np.eye(c * 4)), cov[: c * 4, : c * 4], rtol=1e-7, atol=1e-8)
    at = zip(g.mean, np.sqrt(np.diag(G)), g.alpha, strict=True)
    h = [float(np.mean(np.abs(curvature(mean + sd * NORMAL, alpha)))) for mean, sd, alpha in at]
    assert g.stiffness == pytest.approx(np.linalg.eigvalsh(g.root.T @ np.diag(h) @ g.root)[-1], rel=0.1)
    prior = block_diag(*(K if K.ndim == 3 else [K] * c), np.eye(4))
    alpha, beta = (part.ravel()[g.order] for part in fit.sites)
    A = np.eye(len(prior)) + prior @ to_g.T @ np.diag(alpha) @ to_g
    log_mass = 0.5 * (to_g.T @ beta) @ mean - 0.5 * np.linalg.slogdet(A)[1]
    assert g.log_mass == pytest.approx(log_mass, rel=1e-9)


@pytest.mark.parametrize("tiny", [0.0, 0.5, np.inf])
@pytest.mark.parametrize("name", PROBLEMS)
def test_covariance_of_all_latents(name: str, tiny: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Σ x = K x − K M K x, whether all, some or none of the sites count as tiny."""
    monkeypatch.setattr(differences_module, "TINY", tiny)
    kernel, y, c = PROBLEMS[name]
    g, _ = differences(kernel, y, c)
    assert (g.blocks.pi < 0.5).any()  # 1 at the observed class
    each = np.eye(c * len(X4))
    prior = g.blocks.multiply_kernel(each.reshape(c, len(X4), -1))
    expected = (prior - g.blocks.multiply_kernel(g.blocks.solve(prior))).reshape(each.shape)
    np.testing.assert_allclose(g.covariance.times(each), expected, atol=1e-10)


def test_log_ratio_and_its_gradient() -> None:
    g, _ = differences(SHARED, Y4, C)
    x = np.random.default_rng(0).standard_normal((8, 3))
    x[:, 2] *= 30.0  # far out, where Φ underflows
    at = g.mean + x.T @ g.root.T
    np.testing.assert_allclose(g.log_ratio(x), (log_ndtr(at) + 0.5 * g.alpha * at**2 - g.beta * at).sum(axis=1), rtol=1e-10)
    h = 1e-6
    steps = h * np.eye(8)[:, :, None]
    numeric = np.array([(g.log_ratio(x + s) - g.log_ratio(x - s)) / (2 * h) for s in steps])
    np.testing.assert_allclose(g.slope(x), numeric, rtol=2e-4, atol=1e-5)


def test_table_of_ratios() -> None:
    """φ/Φ between the entries of the table, below them and above."""
    x = np.random.default_rng(0).uniform(-25.0, 12.0, 2000)
    found = np.zeros((2000, 1), dtype=np.float32)
    differences_module._slopes_by_g(found, x, np.zeros(2000), np.zeros(2000), differences_module.RATIOS)
    np.testing.assert_allclose(found[:, 0], np.exp(stats.norm.logpdf(x) - log_ndtr(x)), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("size", [3, 256, 600])
def test_products_with_a_triangle_block_by_block(size: int) -> None:
    rng = np.random.default_rng(0)
    C, x = np.tril(rng.standard_normal((size, size))), rng.standard_normal((size, 2))
    np.testing.assert_allclose(differences_module.lower_times(C, x), C @ x, atol=1e-10)
    np.testing.assert_allclose(differences_module.transposed_lower_times(C, x), C.T @ x, atol=1e-10)


@pytest.mark.parametrize("name", PROBLEMS)
def test_latents_given_x_have_the_moments_of_the_sites(name: str) -> None:
    """Drawn for white x, f has the mean and covariance that the sites imply, and with g the right covariance."""
    kernel, y, c = PROBLEMS[name]
    g, fit = differences(kernel, y, c)
    mean, cov, to_g = dense_gaussian(fit, kernels.gram(kernel, X4), y, c)
    rng, n_draws = np.random.default_rng(1), 40_000
    x = rng.standard_normal((g.mean.size, n_draws))
    f = g.latents(x, rng).reshape(n_draws, -1)
    both = np.concatenate([f, g.mean + x.T @ g.root.T], axis=1)
    joint = np.concatenate([np.eye(len(cov))[: c * 4], to_g[g.order]])
    expected = joint @ cov @ joint.T
    scale = np.sqrt(np.diagonal(expected))
    np.testing.assert_allclose(both.mean(axis=0), joint @ mean, atol=4.5 * scale.max() / np.sqrt(n_draws))
    error = np.abs(np.cov(both.T) - expected) / np.outer(scale, scale)
    assert error.max() < 4.5 * np.sqrt(2.0 / n_draws)


def test_coordinates_of_differences() -> None:
    g, fit = differences(SHARED, Y4, C)
    x = np.random.default_rng(0).standard_normal((g.mean.size, 3))
    values = g.values(x)
    np.testing.assert_allclose(g.coordinates(values), x, atol=1e-6)
    alpha, beta = (part.ravel()[:, None] for part in fit.sites)  # in their own order
    ratio = np.sum(log_ndtr(values) - beta * values + 0.5 * alpha * values**2, axis=0)
    np.testing.assert_allclose(g.log_ratio(x), ratio, rtol=1e-9)


def test_values_and_slopes_of_a_population_around_one_belong_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annealed, "RESAMPLE_BELOW", 1.0)
    g, _ = differences(ConstantKernel(30.0) * RBF(0.8), Y4, C)
    move, seen = annealed._move, []

    def watched(g: Differences, x: Array, at: Any, *how: Any) -> Any:
        np.testing.assert_allclose(at[0], g.log_ratio(x), rtol=1e-10)
        np.testing.assert_allclose(at[1], g.slope(x), rtol=1e-4, atol=1e-5)
        seen.append(x.shape[1])
        return move(g, x, at, *how)

    monkeypatch.setattr(annealed, "_move", watched)
    rng = np.random.default_rng(0)
    anneal(g, 4, 3, 0.4, rng, through=rng.standard_normal(g.mean.size))
    assert seen == [1] * 3 + [4] * 3


def test_latents_given_x_agree_with_g_where_the_kernel_is_nearly_singular() -> None:
    """What g has beyond the contrasts of f is the noise of u, of variance 1/(1 + 1ᵀα̃)."""
    X = np.linspace(0.0, 4.0, 30)[:, None]
    y = np.digitize(X[:, 0], [1.3, 2.9])
    g, _ = differences(ConstantKernel(1e3) * RBF(3.0), y, C, X, tol=1e-3)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((g.mean.size, 2000))
    f = g.latents(x, rng).reshape(2000, -1)
    rest = g.root @ x - g.contrast @ (f - g.latent_mean).T
    np.testing.assert_allclose(rest.var(axis=1) / g.noise[g.order // 2], 1.0, atol=0.2)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize(("stages", "resample_below"), [(2, 0.0), (8, 1.01)])  # never, and at every stage
def test_estimate_of_the_evidence_is_unbiased(
    name: str, stages: int, resample_below: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(annealed, "RESAMPLE_BELOW", resample_below)
    kernel, y, c = PROBLEMS[name]
    g, _ = differences(kernel, y, c)
    exact = log_evidence_bruteforce(kernels.gram(kernel, X4), y, c, 2**11, 8)[0]
    rng = np.random.default_rng(2)
    ratios = np.exp([anneal(g, 4, stages, 0.4, rng).log_evidence - exact for _ in range(400)])
    error = ratios.std() / np.sqrt(len(ratios))
    assert error < 0.02
    assert abs(ratios.mean() - 1.0) < 4.0 * error + 1e-3


def test_factors_left_out_of_slopes_cost_acceptance_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an eighth of the factors followed, trajectories still keep the moments of x under Π Φ/t of all of them."""
    monkeypatch.setattr(differences_module, "LEFT_OUT", 10.0)
    g, _ = differences(ConstantKernel(30.0) * RBF(0.8), Y4, C)
    a, D = len(g.followed), g.mean.size
    assert 0 < a <= D // 2
    rng, n_particles = np.random.default_rng(0), 400_000
    x = rng.standard_normal((D, n_particles))
    at = g.mean[:, None] + g.root @ x
    by_g = np.exp(stats.norm.logpdf(at) - log_ndtr(at)) + g.alpha[:, None] * at - g.beta[:, None]
    np.testing.assert_allclose(g.slope(x), g.root[:a, :a].T @ by_g[:a], rtol=1e-3, atol=1e-4)
    share = np.exp(g.log_ratio(x) - g.log_ratio(x).max())
    x = x[:, systematic(share / share.sum(), rng)[0]]
    before = np.concatenate([x, x**2])
    value = g.log_ratio(x), g.slope(x)
    for _ in range(4):
        x, value, accepted = annealed._move(g, x, value, annealed._stage(1.0, g.stiffness, 0.6, rng), rng)
    assert 0.3 < accepted < 0.95
    change = np.concatenate([x, x**2]) - before
    errors = change.mean(axis=1) / (change.std(axis=1) / np.sqrt(n_particles / 4))  # a few were resampled several times
    assert np.abs(errors).max() < 4.5


def test_more_stages_leave_less_noise() -> None:
    g, _ = differences(ConstantKernel(200.0) * RBF(0.8), Y4, C)
    rng = np.random.default_rng(3)
    spread = [np.std([anneal(g, 4, stages, 0.4, rng).log_evidence for _ in range(60)]) for stages in (1, 16)]
    assert spread[1] < 0.5 * spread[0]


def test_systematic_resampling_keeps_shares() -> None:
    share, rng = np.array([0.5, 0.3, 0.15, 0.05]), np.random.default_rng(0)
    counts = np.array([np.bincount(systematic(share, rng)[0], minlength=4) for _ in range(2000)])
    assert np.all((counts >= np.floor(4 * share)) & (counts <= np.ceil(4 * share)))
    np.testing.assert_allclose(counts.mean(axis=0), 4 * share, atol=0.05)
    assert systematic(np.array([1.0 - 1e-17, 0.0]), rng)[0].max() <= 1


def test_systematic_resampling_around_one_that_is_held() -> None:
    """As resampling is, given that a place taken at random is its."""
    share, rng, held = np.array([0.1, 0.45, 0.3, 0.15]), np.random.default_rng(0), 2
    found = [systematic(share, rng, held) for _ in range(4000)]
    assert all(kept[place] == held for kept, place in found)
    counts = np.array([np.bincount(kept, minlength=4) for kept, _ in found])
    offsets = (np.arange(4000) + 0.5) / 4000
    free = np.array([np.bincount(np.searchsorted(np.cumsum(share), (np.arange(4) + u) / 4), minlength=4) for u in offsets])
    assert free[:, held].min() < free[:, held].max()  # so that it matters
    expected = np.average(free, axis=0, weights=free[:, held])
    np.testing.assert_allclose(counts.mean(axis=0), expected, rtol=0, atol=0.03)
    np.testing.assert_allclose(np.bincount([place for _, place in found if place is not None]) / 4000, 0.25, rtol=0, atol=0.03)


@pytest.mark.parametrize("resampled", [0.0, 0.7, 1.0])
def test_a_population_around_one_of_the_last_keeps_its_law(resampled: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the law of populations weighted by their estimates those have the harmonic mean p(y | θ), and x its posterior."""
    monkeypatch.setattr(annealed, "RESAMPLE_BELOW", resampled)  # never, where it is due, or always
    g, _ = differences(ConstantKernel(30.0) * RBF(0.8), Y4, C)
    rng = np.random.default_rng(0)
    free = [anneal(g, 3, 2, 0.4, rng) for _ in range(3000)]
    estimate = np.exp([population.log_evidence - g.log_mass for population in free])
    at_free = np.array([population.share @ g.log_ratio(population.x) for population in free])
    assert np.std(np.log(estimate)) > 0.4  # so that it matters
    population, found = free[0], []
    for _ in range(3000):
        x = population.x[:, rng.choice(3, p=population.share)]
        population = anneal(g, 3, 2, 0.4, rng, through=x)
        assert np.any(np.all(population.x == x[:, None], axis=0))
        found.append((np.exp(g.log_mass - population.log_evidence), population.share @ g.log_ratio(population.x)))
    inverse, at = np.array(found).T
    exact = estimate.mean()
    assert abs(inverse.mean() * exact - 1.0) < 4.0 * np.hypot(
        inverse.std() * exact / np.sqrt(ess_bulk(inverse[None])), estimate.std() / exact / np.sqrt(3000)
    )
    mean = np.average(at_free, weights=estimate)
    spread = np.sqrt(np.sum((estimate * (at_free - mean)) ** 2)) / estimate.sum()
    assert abs(at.mean() - mean) < 4.0 * np.hypot(at.std() / np.sqrt(ess_bulk(at[None])), spread)


@pytest.mark.parametrize("name", KERNELS)
def test_fixed_hyperparameters_against_brute_force(name: str) -> None:
    """p(y* | y) = Z(y, y*)/Z(y), each Z an orthant probability."""
    kernel = KERNELS[name]
    K = kernels.gram(kernel, np.concatenate([X4, X_NEW]))
    log_z = log_evidence_bruteforce(K[..., :4, :4], Y4, C, 2**11, 8)[0]
    expected = np.exp([log_evidence_bruteforce(K, np.append(Y4, k), C, 2**11, 8)[0] - log_z for k in range(C)])
    fit: Any = Ladder(250, 20, 2, particles=4, stages=5).sample(kernel, X4, Y4, C, np.random.default_rng(1))
    mean, cov = fit.posterior.latent(X_NEW)
    each = np.exp(exact_log_probabilities(mean[:, 0], cov[:, 0])).reshape(2, -1, C)
    error = each.std(axis=(0, 1)) / np.sqrt([ess_bulk(each[:, :, k]) for k in range(C)])
    assert error.max() < 0.015
    assert np.all(np.abs(each.mean(axis=(0, 1)) - expected) < 4.0 * np.hypot(error, 1e-3))


def place(theta: float, log_evidence: float) -> Place:
    return Place(np.array([theta]), log_evidence, 0.0, np.zeros(1), np.zeros(1))


def test_exchange_follows_metropolis() -> None:
    """Of the two orders of two θ, each stands as often as p_β(θ₁) p_β′(θ₂) says."""
    rng = np.random.default_rng(0)
    upper, lower = Rung(1.0, place(0.0, -1.0), np.eye(1)), Rung(0.3, place(1.0, -0.1), np.eye(1))
    first = []
    for _ in range(20_000):
        rungs.exchange(upper, lower, rng)
        first.append(upper.at.theta[0] == 0.0)
    log_odds = FLATTER * (1.0 - 0.3) * (-1.0 - -0.1)
    assert np.mean(first) == pytest.approx(1.0 / (1.0 + np.exp(-log_odds)), abs=0.015)


def tilted(slope: Array) -> Any:
    """An error of EP that is linear in θ."""
    return lambda theta: (float(slope @ theta), slope)


def landscape_of(problem: Problem, theta: Array, slope: Array) -> Landscape:
    """From EP at the rows of θ (m, p), its error linear."""
    points = [Ladder()._point(problem, at, None) for at in theta]
    return Landscape(problem, Survey.of([point for point in points if point is not None]), tilted(slope))


def test_points_have_the_evidence_of_ep_and_its_slope() -> None:
    problem = Problem(SHARED, X4, Y4, C, HalfStudentT(), np.ones(2))
    theta, h = kernels.theta(SHARED), 1e-4
    at = [theta, *(theta + s for s in h * np.eye(2)), *(theta - s for s in h * np.eye(2))]
    exact = [NestedEP(tol=1e-10).infer(kernels.gram(kernels.with_theta(SHARED, x), X4), Y4, C).log_evidence for x in at]
    point = Ladder()._point(problem, theta, None)
    assert point is not None
    assert point.log_evidence == pytest.approx(exact[0], abs=2e-3)  # EP at its tolerance of 1e-2
    np.testing.assert_allclose(point.slope, (np.array(exact[1:3]) - exact[3:]) / (2 * h), rtol=0.05, atol=0.02)


def test_density_of_a_rung_and_its_gradient() -> None:
    problem = Problem(SHARED, X4, Y4, C, HalfStudentT(), np.ones(2))
    centre, tilt, h = kernels.theta(SHARED), np.array([0.3, -0.2]), 1e-5
    landscape = landscape_of(problem, centre + 0.7 * np.random.default_rng(0).standard_normal((12, 2)), tilt)
    theta = centre + 0.2

    def value(theta: Array) -> float:
        found = landscape.at(theta)
        assert found is not None
        return found.tempered(0.6)[0]

    found = landscape.at(theta)
    assert found is not None
    exact = NestedEP(tol=1e-10).infer(kernels.gram(kernels.with_theta(SHARED, theta), X4), Y4, C).log_evidence
    expected = FLATTER * (0.6 * (exact + tilt @ theta) + problem.log_prior(theta)[0])
    assert found.tempered(0.6)[0] == pytest.approx(expected, abs=0.02)
    numeric = [(value(theta + s) - value(theta - s)) / (2 * h) for s in h * np.eye(2)]
    np.testing.assert_allclose(found.tempered(0.6)[1], numeric, rtol=1e-6, atol=1e-8)


ONE = ConstantKernel(3.0, "fixed") * RBF(0.8, (0.1, 10.0))
ONE_GRID = np.linspace(*np.log([0.1, 10.0]), 400)[1:-1, None]


def assert_moments(draws: Array, grid: Array, log_p: Array) -> None:
    """Mean and variance of a chain (m,) are those of a density on a grid."""
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    mean = weight @ grid
    for values, expected in ((draws, mean), ((draws - mean) ** 2, weight @ (grid - mean) ** 2)):
        chain = values[None]
        assert abs(chain.mean() - expected) < 4.0 * chain.std() / np.sqrt(ess_bulk(chain))


def test_a_rung_keeps_its_density() -> None:
    """Moments of θ along a chain of one rung against a grid."""
    beta, rng = 0.4, np.random.default_rng(0)
    landscape = landscape_of(Problem(ONE, X4, Y4, C, HalfStudentT(), np.ones(1)), ONE_GRID[::50], np.array([0.5]))
    log_p = np.array([found.tempered(beta)[0] for theta in ONE_GRID if (found := landscape.at(theta)) is not None])
    at = landscape.at(np.zeros(1))
    assert at is not None
    rung, draws = Rung(beta, at, np.array([[0.8]])), []
    rung.step.restart(1.0)  # about two thirds are accepted
    for _ in range(4000):
        rungs.move(landscape, rung, rng, False)
        draws.append(rung.at.theta[0])
    assert_moments(np.array(draws), ONE_GRID[:, 0], log_p)


@pytest.mark.parametrize("how", ["_take_over", "_wander"])
def test_the_rung_of_ep_keeps_its_density_whatever_the_emulator(how: str) -> None:
    """With an emulator that knows one point only, and that wrongly, the moments are those of EP's evidence."""
    problem, sampler, rng = Problem(ONE, X4, Y4, C, HalfStudentT(), np.ones(1)), Ladder(rungs=1), np.random.default_rng(0)
    error = tilted(np.array([0.5]))
    points = [sampler._point(problem, theta, None) for theta in ONE_GRID[::5]]
    log_p = FLATTER * np.array([point.corrected(error) + point.log_prior for point in points if point is not None])
    state = sampler.start(problem, rng)
    right = state.ep
    wrong = replace(right, slope=right.slope + 4.0)
    state.error, state.survey = error, Survey.of([wrong])
    landscape, draws = Landscape(problem, state.survey, error), []
    at = landscape.at(right.theta)
    assert at is not None
    state.rungs[0].at, state.rungs[0].metric = at, np.array([[0.8]])
    for _ in range(1500):
        for _ in range(4):
            rungs.move(landscape, state.rungs[0], rng, False)
        getattr(sampler, how)(landscape, state, rng, False)
        draws.append(state.ep.theta[0])
    emulated = [found.tempered(1.0)[0] for theta in ONE_GRID[::5] if (found := landscape.at(theta)) is not None]
    assert np.ptp(np.array(emulated) - log_p) > 2.0  # so that it matters
    assert_moments(np.array(draws), ONE_GRID[::5, 0], log_p)


def test_sweeps_keep_the_posterior_of_a_hyperparameter(monkeypatch: pytest.MonkeyPatch) -> None:
    """All moves together, few and noisy particles, a poor emulator: θ against a grid of the evidence by large populations."""
    kernel = ConstantKernel(30.0, "fixed") * RBF(0.8, (0.1, 10.0))
    problem, rng = Problem(kernel, X4, Y4, C, HalfStudentT(), np.ones(1)), np.random.default_rng(3)
    sampler = Ladder(100, 0, 1, rungs=1, particles=2, stages=1)
    grid = np.linspace(*np.log([0.1, 10.0]), 42)[1:-1]
    points = [point for theta in grid if (point := sampler._point(problem, np.array([theta]), None)) is not None]
    assert len(points) == len(grid)
    exact = [anneal(g, 3000, 4, 0.6, rng).log_evidence for at in points if (g := sampler._differences(problem, at)) is not None]
    log_p = np.array(exact) + [point.log_prior for point in points]
    state = sampler.start(problem, rng)
    state.survey = Survey.of(points[::6])
    landscape = Landscape(problem, state.survey)
    state.rungs[0].metric = np.array([[0.8]])
    state.freeze()
    # the emulated rung by itself, exactly, so that sweeps are few
    fine = [landscape.known(np.array([theta])) for theta in np.linspace(grid[0], grid[-1], 1500)]
    share = np.exp([place.tempered(1.0)[0] for place in fine])
    monkeypatch.setattr(ladder, "stir", lambda *_: setattr(state.rungs[0], "at", rng.choice(fine, p=share / share.sum())))
    draws, errors = [], []
    for _ in range(1500):
        sampler.sweep(problem, state, rng, warmup=False)
        draws.append(state.top.at.theta[0])
        errors.append(state.top.log_evidence - state.top.at.log_evidence)
    assert np.std(errors) > 0.5  # so that it matters
    assert_moments(np.array(draws), grid, log_p)


@pytest.mark.parametrize("flatter", [0.4, 1.0])
def test_the_top_keeps_its_density_whatever_the_rungs(flatter: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noisy but unbiased estimates of the evidence decide; the moments of θ on top are those of prior times evidence."""
    monkeypatch.setattr(landscape_module, "FLATTER", flatter)
    monkeypatch.setattr(ladder, "FLATTER", flatter)
    problem, sampler, rng = Problem(ONE, X4, Y4, C, HalfStudentT(), np.ones(1)), Ladder(rungs=1), np.random.default_rng(0)
    error = tilted(np.array([0.5]))
    points = [sampler._point(problem, theta, None) for theta in ONE_GRID[::5]]
    log_p = np.array([point.log_evidence + problem.log_prior(point.theta)[0] for point in points if point is not None])
    state = sampler.start(problem, rng)
    state.error, state.survey = error, Survey.of([point for point in points[::8] if point is not None])
    landscape, draws = Landscape(problem, state.survey, error), []
    state.rungs[0].at, state.rungs[0].metric = landscape.known(state.ep.theta), np.array([[0.8]])
    monkeypatch.setattr(sampler.__class__, "_differences", lambda *_: state.top)

    def estimate(_self: Any, _g: Any, at: Point, *_: Any, **__: Any) -> ladder.Top:
        return replace(state.top, at=at, log_evidence=at.log_evidence + 0.5 * rng.standard_normal() - 0.125)

    monkeypatch.setattr(sampler.__class__, "_anneal", estimate)
    for _ in range(2500):
        for _ in range(3):
            rungs.move(landscape, state.rungs[0], rng, False)
        sampler._take_over(landscape, state, rng, False)
        sampler._climb(problem, state, rng, False)
        draws.append(state.top.at.theta[0])
    assert_moments(np.array(draws), ONE_GRID[::5, 0], log_p)


@pytest.mark.parametrize("noise", [0.4, 1.2])
def test_error_of_ep_is_found_in_noise(noise: float) -> None:
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((150, 3)) * np.array([1.2, 1.5, 2.0])

    def error(theta: Array) -> float:
        return float(2.0 + 0.7 * theta[0] + np.tanh(2.0 * theta[1]))

    seen = np.array([error(at) for at in theta]) + noise * rng.standard_normal(150)
    smooth, new = emulated(30)[0].smoother(theta, seen), 0.8 * rng.standard_normal((100, 3))
    wrong = np.array([smooth(at)[0] - error(at) for at in new])
    assert np.sqrt(np.mean(wrong**2)) < 0.15 + 0.35 * noise < 0.8 * np.std([error(at) for at in new])


def test_nothing_is_made_of_noise_alone() -> None:
    rng = np.random.default_rng(1)
    theta, new = rng.standard_normal((30, 3)), rng.standard_normal((100, 3))
    smooth = emulated(30)[0].smoother(theta, 2.0 + 1.2 * rng.standard_normal(30))
    assert np.std([smooth(at)[0] for at in new]) < 0.3


def test_surprises_make_a_new_emulator() -> None:
    """One that has a wrong slope is replaced after a few runs of EP, and right then."""
    problem, sampler, rng = Problem(ONE, X4, Y4, C, HalfStudentT(), np.ones(1)), Ladder(rungs=1), np.random.default_rng(0)
    state = sampler.start(problem, rng)
    assert state.survey is not None
    right = state.points[0]
    before = Survey.of([replace(point, slope=point.slope + 20.0) for point in state.points], bold=True)
    state.survey, state.warmup_left = before, 1000
    for _ in range(6):
        sampler._renew(problem, state, rng, True)
    assert state.survey is not before
    near = [sampler._point(problem, right.theta + step, None) for step in (-0.3, 0.3)]
    wrong = [[abs(at.emulator(x.theta)[0] - x.log_evidence) for x in near if x is not None] for at in (before, state.survey)]
    assert len(wrong[0]) == 2
    assert max(wrong[1]) < 0.3 < max(wrong[0])


class TwoHills:
    """A density of θ = log ℓ, the Jacobian included, with two narrow hills at equal height; HMC never crosses between them."""

    centres, width = np.array([-1.0, 1.2]), 0.1

    def evaluate(self, names: Sequence[str], theta: Array, units: Array) -> tuple[float, Array]:
        x = (theta[0] - self.centres) / self.width
        log_p = -0.5 * x**2
        share = np.exp(log_p - np.logaddexp(*log_p))
        return float(np.logaddexp(*log_p) - theta[0]), np.array([-(share @ x) / self.width - 1.0])


def test_two_hills_have_their_shares() -> None:
    """The first rung's tilt favours the lesser hill; the top must find their exact shares.

    With evidences of 4 : 1, say, the rung has odds of 4^(0.6 τ), and so would a top that took every θ.
    """
    kernel, hills = ConstantKernel(3.0, "fixed") * RBF(0.8), TwoHills()
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    evidence = []
    for centre in hills.centres:
        each = [kernels.gram(kernels.with_theta(kernel, np.array([centre + hills.width * x])), X4) for x in nodes]
        evidence.append(weights @ np.exp([log_evidence_bruteforce(K, Y4, C, 2**10, 4)[0] for K in each]))
    expected = evidence[0] / sum(evidence)
    assert 0.6 < expected < 0.95

    problem, sampler = Problem(kernel, X4, Y4, C, hills, np.ones(1)), Ladder(rungs=1, particles=4, stages=5)
    rng = np.random.default_rng(0)
    state = sampler.start(problem, rng)
    slope = 0.4 * np.log(evidence[0] / evidence[1]) / np.diff(hills.centres)
    landscape = landscape_of(problem, np.linspace(-1.3, 1.5, 9)[:, None], slope)
    state.survey, state.error = landscape.survey, landscape.error
    places = [found for theta in np.linspace(-1.5, 1.7, 400) if (found := landscape.at(np.array([theta]))) is not None]
    share = np.exp([found.tempered(1.0)[0] for found in places])
    top, on_rung = [], []
    for _ in range(800):
        state.rungs[0].at = places[rng.choice(len(places), p=share / share.sum())]  # HMC would stay on one hill
        sampler._take_over(landscape, state, rng, False)
        on_rung.append(state.ep.theta[0] < 0.1)
        sampler._climb(problem, state, rng, False)
        top.append(state.top.at.theta[0] < 0.1)
    shares = np.array([top], dtype=float)
    error = shares.std() / np.sqrt(ess_bulk(shares))
    assert error < 0.025
    assert abs(shares.mean() - expected) < 4.0 * error
    odds = (evidence[0] / evidence[1]) ** (0.6 * FLATTER)  # EP's evidence is nearly the exact one here
    assert abs(np.mean(on_rung) - odds / (1.0 + odds)) < 0.1


def test_a_chain_that_goes_on_from_a_pickle_is_the_same() -> None:
    """Also where the fit of EP's rung was at hand, which is not kept."""
    problem, sampler = Problem(SHARED, X4, Y4, C, HalfStudentT(), np.ones(2)), Ladder(4, 14, 1, rungs=2, particles=4, stages=4)
    one = sampler.start(problem, np.random.default_rng(0))
    other, at_hand = pickle.loads(pickle.dumps(one)), 0
    one_rng, other_rng = np.random.default_rng(1), np.random.default_rng(1)
    for sweep in range(18):
        for state, rng in ((one, one_rng), (other, other_rng)):
            state.warmup_left = 13 - sweep
            if sweep == 14:
                state.freeze()
            sampler.sweep(problem, state, rng, sweep < 14)
        np.testing.assert_array_equal(one.f, other.f)
        np.testing.assert_array_equal(one.ep.theta, other.ep.theta)
        at_hand += one.whole is not None
        other = pickle.loads(pickle.dumps(other))
    assert at_hand > 2


def test_draws_repeated_from_one_population() -> None:
    """θ changes with every third draw at the most, the latents with nearly every one."""
    sampler = Ladder(30, 12, 1, rungs=2, particles=16, stages=4, repeat=3)
    fit: Any = sampler.sample(SHARED, X4, Y4, C, np.random.default_rng(0), prior=HalfStudentT())
    draws = fit.posterior.draws
    theta, f = draws.theta[0], draws.f[0].reshape(30, -1)
    changed = np.flatnonzero(np.any(np.diff(theta, axis=0) != 0.0, axis=1)) + 1
    assert len(changed) > 3
    assert np.all(changed % 3 == 0)
    assert len(np.unique(f, axis=0)) > 22


def noisy_steps() -> Problem:
    """Labels that a short lengthscale explains, and a long one with some mistakes."""
    X = np.sort(np.random.default_rng(3).uniform(-2.0, 2.0, 14))[:, None]
    y = np.where(np.arange(14) % 4 == 1, 1 - (X[:, 0] > 0), X[:, 0] > 0).astype(int)
    return Problem(ConstantKernel(10.0, "fixed") * RBF(1.0, (0.02, 20.0)), X, y, 2, HalfStudentT(), np.ones(1))


def test_climbs_end_on_top_of_hills() -> None:
    """From both sides of the valley to either top, higher with every point, and known to a chain that starts afterwards."""
    problem, sampler = noisy_steps(), Ladder(climbs=1)
    tops = []
    for start in (-3.0, 2.0):
        path = climb(problem, np.array([start]), partial(sampler._point, problem))
        log_p = [at.log_evidence + problem.log_prior(at.theta)[0] for at in path]
        assert np.all(np.diff(log_p) >= 0.0)
        assert abs(path[-1].slope + problem.log_prior(path[-1].theta)[1])[0] < 0.05
        tops.append(path[-1].theta[0])
    assert tops[0] < -1.0 < tops[1]
    known = tuple(sampler.explore(problem, np.random.default_rng(0)))
    state = sampler.start(replace(problem, known=known), np.random.default_rng(0))
    away = [min(abs(at.theta[0] - other.theta[0]) for other in state.points) for at in known]
    assert max(away) <= 0.1
    assert len(state.points) < len(known)  # repeated ones are left out


@pytest.mark.parametrize("sampled", [True, False])
def test_hills_are_looked_for_where_hyperparameters_are_sampled(capsys: pytest.CaptureFixture[str], sampled: bool) -> None:
    problem = noisy_steps()
    sampler = Ladder(4, 2, 1, rungs=1, particles=2, stages=2)
    prior = problem.prior if sampled else None
    sampler.sample(problem.kernel, problem.X, problem.y, 2, np.random.default_rng(0), prior=prior, verbose=1)
    assert ("looking for hills" in capsys.readouterr().err) == sampled


def test_a_second_look_begins_with_what_all_have_met() -> None:
    """It gives back other θ only, and every chain begins with those of all rounds."""
    problem, sampler = noisy_steps(), Ladder(n_warmup=20, climbs=1)
    first = tuple(sampler.explore(problem, np.random.default_rng(0)))
    second = sampler.explore(replace(problem, known=first), np.random.default_rng(1))
    assert second
    assert not {id(point) for point in second} & {id(point) for point in first}
    found = [
        chain._explore(replace(sampler, looks=looks), problem, np.random.default_rng(0).spawn(2), None, 0).known
        for looks in (1, 2)
    ]
    assert np.array_equal([at.theta for at in found[1][: len(found[0])]], [at.theta for at in found[0]])
    assert len(found[1]) > len(found[0])


def test_error_of_ep_is_known_before_chains_begin() -> None:
    """Where it was estimated in a look around, and from the start of every chain, against many estimates at one θ."""
    problem, sampler = noisy_steps(), Ladder(n_warmup=40, climbs=1)
    known = chain._explore(replace(sampler, looks=2), problem, np.random.default_rng(0).spawn(2), None, 0).known
    assert sum(np.isfinite(at.error) for at in known) == 2 * 10
    state = sampler.start(replace(problem, known=known), np.random.default_rng(0))
    assert len(state.errors) == 20
    assert state.error is not None
    theta = np.array([0.5])
    fit, factors = sampler._infer(problem, theta, None)
    g = Differences(fit, factors, problem.y)
    rng = np.random.default_rng(1)
    each = [anneal(g, 32, 20, 0.4, rng).log_evidence - fit.log_evidence for _ in range(20)]
    assert abs(state.error(theta)[0] - np.log(np.mean(np.exp(each)))) < 0.05


@pytest.mark.parametrize("depth", [10.0, 0.0])
def test_scouts_note_what_the_emulator_underrates_where_it_matters(depth: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With points enough, EP is run at θ of the second rung; the hill of short lengthscales is unknown to this emulator."""
    problem, sampler = noisy_steps(), Ladder(rungs=3)
    monkeypatch.setattr(ladder, "enough", lambda problem: 0)
    monkeypatch.setattr(below, "enough", lambda problem: 0)
    monkeypatch.setattr(emulator_module, "MATTERS", depth)
    monkeypatch.setattr(emulator_module, "MATTERS_EACH", 0.0)
    points = [sampler._point(problem, np.array([theta]), None) for theta in (0.2, 0.6, 1.0, 1.4)]
    state = below.BelowTop(cast(Point, points[0]), cast(list[Point], list(points)))
    state.begin(problem, sampler._betas(), np.random.default_rng(0), bold=False)
    landscape = Landscape(problem, cast(Survey, state.survey))
    state.rungs[1].at = landscape.known(np.array([0.8]))
    sampler._scout(landscape, state)
    assert len(state.points) == 4  # known well enough
    state.rungs[1].at = landscape.known(np.array([-0.6]))
    depth_there = landscape.survey.highest - cast(Point, sampler._point(problem, np.array([-0.6]), None)).log_evidence
    sampler._scout(landscape, state)
    assert [point.theta[0] for point in state.points[4:]] == ([-0.6] if depth_there < depth else [])
    assert 0.0 < depth_there < 10.0


def test_climbs_survive_where_ep_does_not_converge() -> None:
    assert climb(noisy_steps(), np.zeros(1), lambda theta, near: None) == []


def test_a_ladder_crosses_between_hills_of_the_evidence() -> None:
    """Lengthscales short and long explain these labels; with most of warm-up spent on one hill, each chain finds both."""
    problem = noisy_steps()
    kernel, X, y = problem.kernel, problem.X, problem.y
    rng = np.random.default_rng(3)
    fit: Any = Ladder(150, 60, 2, particles=8, stages=8, looks=2).sample(kernel, X, y, 2, rng, prior=HalfStudentT())
    log_scale = fit.posterior.draws.theta[:, :, 0]
    grid = np.linspace(*np.log([0.02, 20.0]), 80)[1:-1]
    ep = [NestedEP().infer(kernels.gram(kernels.with_theta(kernel, np.array([t])), X), y, 2).log_evidence for t in grid]
    log_p = np.array(ep) + [problem.log_prior(np.array([t]))[0] for t in grid]
    share = np.exp(log_p - log_p.max())[grid < -1.0].sum() / np.exp(log_p - log_p.max()).sum()
    assert 0.1 < share < 0.9
    assert np.all(np.abs((log_scale < -1.0).mean(axis=1) - share) < 0.2)  # EP's evidence is not quite the exact one


# ------------------------------------------------------------------------------------------------------ emulator


def bumps(theta: Array) -> tuple[float, Array]:
    """A smooth function of three variables with two hills, and its gradient."""
    centres, widths = np.array([[-1.0, 0.5, 0.0], [1.2, -0.5, 1.0]]), np.array([1.0, 2.0, 3.0])
    x = (theta - centres) / widths
    each = np.array([12.0, 9.0]) * np.exp(-0.5 * (x * x).sum(axis=1))
    return float(each.sum()), -(each[:, None] * x / widths).sum(axis=0)


def emulated(m: int, seed: int = 0) -> tuple[Emulator, Array]:
    theta = np.random.default_rng(seed).standard_normal((m, 3)) * np.array([1.2, 1.5, 2.0])
    value, slope = (np.array(part) for part in zip(*(bumps(at) for at in theta), strict=True))
    return Emulator.through(theta, value, slope), theta


def test_emulator_goes_through_its_points() -> None:
    emulator, theta = emulated(30)
    for at in theta:
        (value, slope), expected = emulator(at), bumps(at)
        assert value == pytest.approx(expected[0], abs=0.1)  # twice the noise that it allows for
        np.testing.assert_allclose(slope, expected[1], atol=0.15)
    assert [emulator.nearest(at + 1e-3)[0] for at in theta[:5]] == [0, 1, 2, 3, 4]


def test_emulator_predicts_better_from_more_points() -> None:
    new = np.random.default_rng(9).standard_normal((200, 3)) * np.array([1.2, 1.5, 2.0])
    each = [emulated(m)[0] for m in (10, 40, 160)]
    rms = [np.sqrt(np.mean([(emulator(at)[0] - bumps(at)[0]) ** 2 for at in new])) for emulator in each]
    assert rms[2] < 0.3 < rms[0]
    assert rms[0] > rms[1] > rms[2]


def test_of_too_many_points_those_are_kept_that_others_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many around the middle, and a few on one of the two hills: taken evenly, hardly one of them would be left."""
    rng, nothing = np.random.default_rng(0), cast(Any, None)
    theta = np.concatenate([0.3 * rng.standard_normal((144, 3)), np.array([2.2, -1.0, 2.0]) + 0.3 * rng.standard_normal((6, 3))])
    points = [Point(at, *bumps(at), nothing, 0.0) for at in theta]
    value = np.array([point.log_evidence for point in points])
    monkeypatch.setattr(landscape_module, "MOST_OBSERVATIONS", 4 * 30)
    survey = Survey.of(points)
    assert len(survey.points) == 30
    assert sum(point.theta[0] > 1.0 for point in survey.points) >= 3
    evenly = points[::5]
    few = Emulator.through(*(np.array(part) for part in zip(*((p.theta, p.log_evidence, p.slope) for p in evenly), strict=True)))
    assert survey.emulator.bold().wrong(theta, value).max() < 0.5 * few.bold().wrong(theta, value).max()


def test_emulator_learns_where_the_evidence_levels_off() -> None:
    """Steep below θ = 0, flat above: coordinates that bend there tell of new values what straight ones do not."""

    def levelling(theta: Array) -> tuple[Array, Array]:
        u = -np.logaddexp(0.0, -2.0 * theta)
        return 8.0 * np.tanh(u).sum(axis=1), 16.0 / np.cosh(u) ** 2 / (1.0 + np.exp(2.0 * theta))

    rng = np.random.default_rng(0)
    theta, new = rng.uniform(-3.0, 6.0, (2, 40, 2))
    value, slope = levelling(theta)
    bent = Emulator.through(theta, value, slope)
    straight = Emulator.given(theta, value, slope, bent.shape._replace(bend=np.full(2, 50.0)))
    wrong = [[emulator.bold()(at)[0] - levelling(at[None])[0][0] for at in new] for emulator in (bent, straight)]
    assert np.all(np.abs(bent.shape.bend) < 2.5)
    assert np.median(np.abs(wrong[0])) < 0.5 * np.median(np.abs(wrong[1]))


@pytest.mark.parametrize("p", [1, 2, 4])
def test_slope_of_the_emulators_likelihood(p: int) -> None:
    """By log ℓ, c and log σ, against central differences; one coordinate has levelled off at some points."""
    rng = np.random.default_rng(p)
    theta, slope = rng.normal(size=(2, 9, p))
    theta[:3, 0] += 30.0
    value, x, h = rng.normal(size=9), rng.normal(size=2 * p + 1), 1e-5
    found = emulator_module._minus_log_likelihood(x, theta, value, slope)[1]
    ends = [
        [emulator_module._minus_log_likelihood(x + s, theta, value, slope)[0] for s in (-step, step)]
        for step in h * np.eye(x.size)
    ]
    np.testing.assert_allclose(found, np.diff(ends)[:, 0] / (2 * h), rtol=1e-6, atol=1e-5)


def test_slope_of_the_emulator() -> None:
    emulator, _ = emulated(20)
    theta, h = np.array([0.3, -0.8, 1.1]), 1e-5
    numeric = [(emulator(theta + s)[0] - emulator(theta - s)[0]) / (2 * h) for s in h * np.eye(3)]
    np.testing.assert_allclose(emulator(theta)[1], numeric, rtol=1e-6)


def test_covariances_of_slopes_are_derivatives() -> None:
    """Of k = 1/(1 + ½ |u − u′|²), by central differences."""
    u, h = np.array([[0.3, -0.7], [1.1, 0.4]]), 1e-4
    steps = [np.zeros(2), np.array([h, 0.0]), np.array([0.0, h])]

    def derivative(a: int, b: int) -> float:
        def k(s: float, t: float) -> float:
            away = u[0] + s * steps[a] - u[1] - t * steps[b]
            return float(1.0 / (1.0 + 0.5 * away @ away))

        if a == 0 or b == 0:
            return k(0, 0) if a == b else (k(1, 1) - k(-1, -1)) / (2 * h)
        return (k(1, 1) - k(1, -1) - k(-1, 1) + k(-1, -1)) / (4 * h * h)

    expected = [[derivative(a, b) for b in range(3)] for a in range(3)]
    A = emulator_module._covariance(u)
    np.testing.assert_allclose(A[:3, 3:], expected, atol=1e-6)
    np.testing.assert_array_equal(A, A.T)
    assert np.linalg.eigvalsh(A)[0] > 0.0


def test_no_hills_are_promised_where_nobody_has_been() -> None:
    """A slope upwards at the edge of what was seen ends at one more than the largest value seen, and falls further out."""
    x = np.linspace(-1.0, 0.0, 12)[:, None]
    emulator = Emulator.through(x, 10.0 * x[:, 0], np.full((12, 1), 10.0))
    inside, edge, far, further = (emulator(np.array([at]))[0] for at in (-0.25, 0.05, 1.0, 4.0))
    assert inside == pytest.approx(-2.5, abs=0.1)
    assert edge == pytest.approx(0.5, abs=0.1)
    assert 1.0 > far > further + 0.5  # it would be 10 and 40
    h = 1e-6
    for at in (-0.3, 0.03, 0.4, 2.0):
        numeric = (emulator(np.array([at + h]))[0] - emulator(np.array([at - h]))[0]) / (2 * h)
        assert emulator(np.array([at]))[1][0] == pytest.approx(numeric, rel=1e-5)


def test_a_bold_emulator_has_no_limits() -> None:
    x = np.linspace(-1.0, 0.0, 12)[:, None]
    emulator = Emulator.through(x, 10.0 * x[:, 0], np.full((12, 1), 10.0))
    at = np.array([1.0])
    assert emulator.bold()(at)[0] > 5.0 > 1.0 > emulator(at)[0]
    assert emulator.bold()(x[3])[0] == emulator(x[3])[0]


def test_far_below_is_only_far_below() -> None:
    """A value of −10⁶ would leave nothing of the others."""
    theta = np.random.default_rng(0).standard_normal((30, 3)) * np.array([1.2, 1.5, 2.0])
    value, slope = (np.array(part) for part in zip(*(bumps(at) for at in theta), strict=True))
    theta, slope = np.append(theta, [[9.0, 0.0, 0.0]], axis=0), np.append(slope, [[-1e7, 0.0, 0.0]], axis=0)
    emulator = Emulator.through(theta, np.append(value, -1e6), slope)
    assert max(abs(emulator(at)[0] - bumps(at)[0]) for at in theta[:30]) < 0.3
    assert emulator(theta[30])[0] < value.max() - 40.0
