"""Annealing and the ladder: the Gaussian of the differences, estimates of the evidence, exchanges, and two hills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from nestgp.sampling import Ladder, annealed, ladder
from nestgp.sampling.annealed import Differences, anneal, systematic
from nestgp.sampling.chain import Problem
from nestgp.sampling.factors import Factors
from nestgp.sampling.ladder import Evaluation, Places, Rung
from nestgp.sampling.mixing import ess_bulk
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
    G = to_g @ cov @ to_g.T
    np.testing.assert_allclose(g.mean, to_g @ mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(g.root @ g.root.T, G, rtol=1e-7, atol=1e-8 * G.max())
    np.testing.assert_allclose(g.cross, to_g @ cov[:, : c * 4], rtol=1e-7, atol=1e-8)
    at = zip(g.mean, np.sqrt(np.diag(G)), g.alpha, strict=True)
    h = [float(np.mean(np.abs(curvature(mean + sd * NORMAL, alpha)))) for mean, sd, alpha in at]
    assert g.stiffness == pytest.approx(np.linalg.eigvalsh(g.root.T @ np.diag(h) @ g.root)[-1], rel=0.1)
    prior = block_diag(*(K if K.ndim == 3 else [K] * c), np.eye(4))
    alpha, beta = (part.ravel() for part in fit.sites)
    A = np.eye(len(prior)) + prior @ to_g.T @ np.diag(alpha) @ to_g
    log_mass = 0.5 * (to_g.T @ beta) @ mean - 0.5 * np.linalg.slogdet(A)[1]
    assert g.log_mass == pytest.approx(log_mass, rel=1e-9)


def test_log_ratio_and_its_gradient() -> None:
    g, _ = differences(SHARED, Y4, C)
    x = np.random.default_rng(0).standard_normal((3, 8))
    x[2] *= 30.0  # far out, where Φ underflows
    value, slope = g.log_ratio(x)
    at = g.mean + x @ g.root.T
    np.testing.assert_allclose(value, (log_ndtr(at) + 0.5 * g.alpha * at**2 - g.beta * at).sum(axis=1), rtol=1e-10)
    h = 1e-6
    steps = h * np.eye(8)
    numeric = np.array([(g.log_ratio(x + s)[0] - g.log_ratio(x - s)[0]) / (2 * h) for s in steps]).T
    np.testing.assert_allclose(slope, numeric, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", PROBLEMS)
def test_latents_given_x_have_the_moments_of_the_sites(name: str) -> None:
    """Drawn for white x, f has the mean and covariance that the sites imply, and with g the right covariance."""
    kernel, y, c = PROBLEMS[name]
    g, fit = differences(kernel, y, c)
    mean, cov, to_g = dense_gaussian(fit, kernels.gram(kernel, X4), y, c)
    rng, n_draws = np.random.default_rng(1), 40_000
    x = rng.standard_normal((n_draws, g.mean.size))
    f = g.latents(x, rng).reshape(n_draws, -1)
    both = np.concatenate([f, g.mean + x @ g.root.T], axis=1)
    joint = np.concatenate([np.eye(len(cov))[: c * 4], to_g])
    expected = joint @ cov @ joint.T
    scale = np.sqrt(np.diagonal(expected))
    np.testing.assert_allclose(both.mean(axis=0), joint @ mean, atol=4.5 * scale.max() / np.sqrt(n_draws))
    error = np.abs(np.cov(both.T) - expected) / np.outer(scale, scale)
    assert error.max() < 4.5 * np.sqrt(2.0 / n_draws)


def test_latents_given_x_agree_with_g_where_the_kernel_is_nearly_singular() -> None:
    """What g has beyond the contrasts of f is the noise of u, of variance 1/(1 + 1ᵀα̃)."""
    X = np.linspace(0.0, 4.0, 30)[:, None]
    y = np.digitize(X[:, 0], [1.3, 2.9])
    g, _ = differences(ConstantKernel(1e3) * RBF(3.0), y, C, X, tol=1e-3)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2000, g.mean.size))
    f = g.latents(x, rng).reshape(len(x), -1)
    rest = (x @ g.root.T - (g.contrast @ (f - g.latent_mean).T).T).reshape(len(x), len(y), -1)
    np.testing.assert_allclose(rest.var(axis=0) / g.noise[:, None], 1.0, atol=0.2)


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


def test_more_stages_leave_less_noise() -> None:
    g, _ = differences(ConstantKernel(200.0) * RBF(0.8), Y4, C)
    rng = np.random.default_rng(3)
    spread = [np.std([anneal(g, 4, stages, 0.4, rng).log_evidence for _ in range(60)]) for stages in (1, 16)]
    assert spread[1] < 0.5 * spread[0]


def test_systematic_resampling_keeps_shares() -> None:
    share, rng = np.array([0.5, 0.3, 0.15, 0.05]), np.random.default_rng(0)
    counts = np.array([np.bincount(systematic(share, rng), minlength=4) for _ in range(2000)])
    assert np.all((counts >= np.floor(4 * share)) & (counts <= np.ceil(4 * share)))
    np.testing.assert_allclose(counts.mean(axis=0), 4 * share, atol=0.05)
    assert systematic(np.array([1.0 - 1e-17, 0.0]), rng).max() <= 1


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


def evaluation(theta: float, log_evidence: float) -> Evaluation:
    nothing: Any = None
    return Evaluation(np.array([theta]), log_evidence, 0.0, np.zeros(1), np.zeros(1), nothing)


def test_exchange_follows_metropolis() -> None:
    """Of the two orders of two θ, each stands as often as p_β(θ₁) p_β′(θ₂) says."""
    rng, tilt = np.random.default_rng(0), np.array([0.4])
    upper, lower = Rung(1.0, evaluation(0.0, -1.0), np.eye(1)), Rung(0.3, evaluation(1.0, -0.5), np.eye(1))
    first = []
    for _ in range(20_000):
        ladder._exchange(upper, lower, tilt, rng)
        first.append(upper.at.theta[0] == 0.0)
    log_odds = (1.0 - 0.3) * (-1.0 - (-0.5 + 0.4))
    assert np.mean(first) == pytest.approx(1.0 / (1.0 + np.exp(-log_odds)), abs=0.015)


def test_density_of_a_rung_and_its_gradient() -> None:
    problem, sampler = Problem(SHARED, X4, Y4, C, HalfStudentT(), np.ones(2)), Ladder()
    theta, tilt, h = kernels.theta(SHARED), np.array([0.3, -0.2]), 1e-4

    def value(theta: Array) -> float:
        found = sampler._evaluate(problem, theta, None)
        assert found is not None
        return found.tempered(0.6, tilt)[0]

    found = sampler._evaluate(problem, theta, None)
    assert found is not None
    exact = NestedEP(tol=1e-10).infer(kernels.gram(SHARED, X4), Y4, C).log_evidence
    assert found.tempered(0.6, tilt)[0] == pytest.approx(0.6 * (exact + tilt @ theta) + problem.log_prior(theta)[0], abs=2e-3)
    numeric = [(value(theta + s) - value(theta - s)) / (2 * h) for s in h * np.eye(2)]
    np.testing.assert_allclose(found.tempered(0.6, tilt)[1], numeric, rtol=0.05, atol=0.02)  # EP at its tolerance of 1e-2


def test_a_rung_keeps_its_density() -> None:
    """Moments of θ along a chain of one rung against a grid."""
    kernel, beta, tilt = ConstantKernel(3.0, "fixed") * RBF(0.8, (0.1, 10.0)), 0.4, np.array([0.5])
    problem, sampler, rng = Problem(kernel, X4, Y4, C, HalfStudentT(), np.ones(1)), Ladder(rungs=1), np.random.default_rng(0)
    grid = np.linspace(*np.log([0.1, 10.0]), 60)
    found = [sampler._evaluate(problem, np.array([theta]), None) for theta in grid[1:-1]]
    log_p = np.array([at.tempered(beta, tilt)[0] for at in found if at is not None])
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    mean = weight @ grid[1:-1]
    at = sampler._evaluate(problem, np.zeros(1), None)
    assert at is not None
    rung, draws = Rung(beta, at, np.array([[0.8]])), []
    rung.step.restart(1.0)  # about two thirds are accepted
    for _ in range(600):
        sampler._move(problem, rung, tilt, rng, False)
        draws.append(rung.at.theta[0])
    for values, expected in ((draws, mean), ((draws - mean) ** 2, weight @ (grid[1:-1] - mean) ** 2)):
        chain = np.array([values])
        assert abs(chain.mean() - expected) < 4.0 * chain.std() / np.sqrt(ess_bulk(chain))


def test_slope_of_the_error_is_found() -> None:
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((400, 3)) * np.array([1.0, 0.3, 2.0])
    error = 5.0 + theta @ np.array([0.7, 0.0, -0.4]) + 0.1 * rng.standard_normal(400)
    np.testing.assert_allclose(ladder._slope(theta, error), [0.7, 0.0, -0.4], atol=0.06)


def test_places_are_a_mixture_of_normals() -> None:
    rng, nothing = np.random.default_rng(0), ()
    theta, root = rng.standard_normal((5, 2)), np.array([[0.8, 0.0], [0.3, 0.5]])
    each = [stats.multivariate_normal(place, root @ root.T) for place in theta]
    at = theta[:2] + 0.3
    expected = [np.log(np.mean([part.pdf(x) for part in each])) for x in at]
    found = [Places(theta, nothing, root).log_density(x) for x in at]
    assert found[1] - found[0] == pytest.approx(expected[1] - expected[0], rel=1e-10)
    fits: Any = tuple(range(5))
    draws = [Places(theta, fits, root).draw(rng) for _ in range(20_000)]
    away = np.array([x - theta[int(fit)] for x, fit in draws])  # type: ignore[call-overload]
    np.testing.assert_allclose(np.cov(away.T), root @ root.T, atol=0.03)
    assert np.bincount([int(fit) for _, fit in draws]).min() > 3700  # type: ignore[call-overload]


class TwoHills:
    """A density of θ = log ℓ, the Jacobian included, with two narrow hills at equal height; HMC never crosses between them."""

    centres, width = np.array([-1.0, 1.2]), 0.1

    def evaluate(self, names: Sequence[str], theta: Array, units: Array) -> tuple[float, Array]:
        x = (theta[0] - self.centres) / self.width
        log_p = -0.5 * x**2
        share = np.exp(log_p - np.logaddexp(*log_p))
        return float(np.logaddexp(*log_p) - theta[0]), np.array([-(share @ x) / self.width - 1.0])


def test_two_hills_have_their_shares() -> None:
    """A rung whose tilt favours the lesser hill jumps between them; the top must find their exact shares.

    With evidences of 4 : 1, say, the rung has odds of 4^0.6; a top that took every θ would have them too, one without Z 4^1.6.
    """
    kernel, hills = ConstantKernel(3.0, "fixed") * RBF(0.8), TwoHills()
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    evidence = []
    for centre in hills.centres:
        each = [kernels.gram(kernels.with_theta(kernel, np.array([centre + hills.width * x])), X4) for x in nodes]
        evidence.append(weights @ np.exp([log_evidence_bruteforce(K, Y4, C, 2**10, 4)[0] for K in each]))
    expected = evidence[0] / sum(evidence)
    assert 0.6 < expected < 0.95

    problem, sampler = Problem(kernel, X4, Y4, C, hills, np.ones(1)), Ladder(rungs=1, jumps=2, particles=4, stages=5)
    rng = np.random.default_rng(0)
    state = sampler.start(problem, rng)
    state.tilt = 0.4 * np.log(evidence[0] / evidence[1]) / np.diff(hills.centres)
    rung, first, on_rung = state.rungs[0], [], []
    met = [sampler._evaluate(problem, np.array([centre]), None) for centre in hills.centres]
    theta, fits = np.array([at.theta for at in met if at is not None]), tuple(at.fit for at in met if at is not None)
    # the first hill twice, and both wider than they are
    rung.places = Places(theta[[0, 0, 1]], (fits[0], *fits), np.array([[0.15]]))
    for _ in range(800):
        sampler._jump(problem, rung, state.tilt, rng)
        sampler._climb(problem, state, rng, False)
        first.append(state.top.at.theta[0] < 0.1)
        on_rung.append(rung.at.theta[0] < 0.1)
    shares = np.array([first], dtype=float)
    error = shares.std() / np.sqrt(ess_bulk(shares))
    assert error < 0.025
    assert abs(shares.mean() - expected) < 4.0 * error
    odds = (evidence[0] / evidence[1]) ** 0.6  # EP's evidence is nearly the exact one here
    assert abs(np.mean(on_rung) - odds / (1.0 + odds)) < 0.1
