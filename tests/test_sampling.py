"""Samplers: their parts against dense formulas, their draws against brute force, and how runs start, stop and go on."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, WhiteKernel

from nestgp import GPClassifier, kernels
from nestgp import classifier as classifier_module
from nestgp.hyper import HalfStudentT, Objective
from nestgp.inference.result import Status
from nestgp.predict import exact_log_probabilities, softmax_exact_log_probabilities
from nestgp.sampling import EllipticalSlice, Gibbs, Hamiltonian, Ladder, ScaledMetropolis, chain
from nestgp.sampling.chain import METRIC_UPDATES, Problem
from nestgp.sampling.factors import JITTER, Factors
from nestgp.sampling.mixing import ess_bulk, summarise
from nestgp.sampling.mixture import Draws, MixturePosterior
from nestgp.sampling.moves import _gaussian, learn_metric
from nestgp.sampling.run import at_mode, find_mode
from nestgp.sampling.surrogate import Surrogate
from tests.oracles._types import Array
from tests.oracles.integrals import log_evidence_bruteforce
from tests.oracles.softmax import softmax_predictive

X4 = np.array([[-1.0], [-0.2], [0.4], [1.1]])
Y4 = np.array([0, 1, 2, 0])
X_NEW = np.array([[0.2]])
SHARED = ConstantKernel(3.0) * RBF(0.8)
PER_CLASS = [ConstantKernel(3.0) * RBF(0.8), ConstantKernel(1.0) * RBF(0.5), ConstantKernel(2.0) * RBF(1.5)]
KERNELS = {"shared": SHARED, "per class": PER_CLASS}


def dense(kernel: Kernel | list[Kernel], X: Array = X4) -> Array:
    """K of every class, (3, n, n)."""
    K = kernels.gram(kernel, X)
    return K if K.ndim == 3 else np.stack([K] * 3)


def problem_of(kernel: Kernel | list[Kernel], prior: HalfStudentT | None = None) -> Problem:
    return Problem(kernel, X4, Y4, 3, prior, np.ones(kernels.theta(kernel).size))


# Factors


@pytest.mark.parametrize("name", KERNELS)
def test_factors_against_dense(name: str) -> None:
    factors, K = Factors(KERNELS[name], X4, 3), dense(KERNELS[name])
    jittered = K + JITTER * K[:, :1, :1] * np.eye(4)
    L = np.broadcast_to(factors.prior_root, K.shape)
    np.testing.assert_allclose(L @ L.transpose(0, 2, 1), jittered, rtol=0.0, atol=1e-14 * K.max())
    assert factors.log_det_prior == pytest.approx(np.linalg.slogdet(jittered)[1].sum(), rel=1e-10)
    assert factors.log_det_noisy == pytest.approx(np.linalg.slogdet(K + np.eye(4))[1].sum(), rel=1e-12)
    inverse = np.broadcast_to(factors.noisy_inverse, K.shape)
    np.testing.assert_allclose(inverse, np.linalg.inv(K + np.eye(4)), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(np.broadcast_to(factors.prior_inverse, K.shape) @ jittered, np.stack([np.eye(4)] * 3), atol=1e-9)
    b = np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(factors.times(factors.K, b), np.einsum("knm,km->kn", K, b), rtol=1e-13)


class _Given:
    """In place of a generator: hands out the normals it was given, in turn."""

    def __init__(self, *normals: Array) -> None:
        self.normals = iter(normals)

    def standard_normal(self, shape: tuple[int, ...]) -> Array:
        return next(self.normals).reshape(shape)


@pytest.mark.parametrize("name", KERNELS)
def test_latents_given_auxiliaries_have_the_posterior_moments(name: str) -> None:
    """f is affine in v and in the normals it is made of, so its mean and covariance can be read off: K Q v and K Q."""
    factors, K = Factors(KERNELS[name], X4, 3), dense(KERNELS[name])
    gain = np.concatenate([np.concatenate([k @ np.linalg.inv(k + np.eye(4)) if i == j else np.zeros((4, 4))
                                           for j in range(3)], axis=1) for i, k in enumerate(K)])  # fmt: skip
    zero, basis = np.zeros(12), np.eye(12)

    def draw(v: Array, e1: Array, e2: Array) -> Array:
        rng: Any = _Given(e1, e2)
        return factors.draw_latents(v.reshape(3, 4), rng).ravel()

    mean = np.column_stack([draw(e, zero, zero) for e in basis])
    root = np.column_stack([draw(zero, e, zero) for e in basis] + [draw(zero, zero, e) for e in basis])
    np.testing.assert_allclose(mean, gain, atol=1e-12)
    np.testing.assert_allclose(root @ root.T, gain, atol=1e-7)  # the jitter of the prior draw


@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("name", KERNELS)
def test_gaussian_log_density_and_gradient(name: str, noisy: bool) -> None:
    problem = problem_of(KERNELS[name], HalfStudentT())
    theta = kernels.theta(problem.kernel) + 0.1
    x = np.random.default_rng(0).standard_normal((3, 4))
    value, gradient = _gaussian(problem, theta, x, noisy)
    K = dense(kernels.with_theta(problem.kernel, theta))
    K = K + (np.eye(4) if noisy else JITTER * K[:, :1, :1] * np.eye(4))
    expected = sum(stats.multivariate_normal(np.zeros(4), k).logpdf(row) for k, row in zip(K, x, strict=True))
    constant = -0.5 * x.size * np.log(2.0 * np.pi)  # the library leaves it out
    assert value - problem.log_prior(theta)[0] == pytest.approx(expected - constant, rel=1e-9)
    h = 1e-5
    steps = h * np.eye(theta.size)
    slope = [(_gaussian(problem, theta + s, x, noisy)[0] - _gaussian(problem, theta - s, x, noisy)[0]) / (2 * h) for s in steps]
    np.testing.assert_allclose(gradient, slope, rtol=1e-6, atol=1e-6)


# The prior of θ


@pytest.mark.parametrize(("kernel", "power"), [(ConstantKernel(2.0), 0.5), (RBF(2.0), 1.0), (WhiteKernel(2.0), 0.5)])
def test_log_prior_is_a_density_of_theta(kernel: Kernel, power: float) -> None:
    """It integrates to one over θ, up to what the bounds cut off, and equals the half-t of x = exp(power θ) times dx/dθ."""
    problem = Problem(kernel, X4, Y4, 3, HalfStudentT(), np.ones(1))
    low, high = kernels.bounds(kernel)[0]
    x_low, x_high = np.exp(power * np.array([low, high]))
    inside = 2.0 * (stats.t.cdf(x_high / 10.0, 4) - stats.t.cdf(x_low / 10.0, 4))
    mass = quad(lambda t: np.exp(problem.log_prior(np.array([t]))[0]), low, high, limit=200)[0]
    # ∫ p(x) |dx/dθ| dθ = 1; the constant d log x/dθ = power is not part of an unnormalised log density
    assert mass * power == pytest.approx(inside, rel=1e-6)
    theta, h = 0.7, 1e-6
    change = (np.exp(power * (theta + h)) - np.exp(power * (theta - h))) / (2 * h)
    expected = np.log(2.0 * stats.t.pdf(np.exp(power * theta) / 10.0, 4) / 10.0 * change / power)
    assert problem.log_prior(np.array([theta]))[0] == pytest.approx(expected, rel=1e-8)
    slope = [problem.log_prior(np.array([theta + s]))[0] for s in (-h, h)]
    assert problem.log_prior(np.array([theta]))[1][0] == pytest.approx((slope[1] - slope[0]) / (2 * h), rel=1e-6)


def test_log_prior_outside_the_bounds() -> None:
    problem = problem_of(ConstantKernel(1.0, (0.5, 2.0)), HalfStudentT())
    assert problem.log_prior(np.array([1.0]))[0] == -np.inf
    assert np.isfinite(problem.log_prior(np.array([0.6]))[0])


# Fixed hyperparameters against brute force


def with_error(each: Array, chains: int) -> tuple[Array, Array]:
    """Mean over draws (draws, c) of all chains, and its Monte Carlo standard error from the effective draws."""
    columns = each.reshape(chains, -1, each.shape[1])
    ess = np.array([ess_bulk(columns[:, :, k]) for k in range(each.shape[1])])
    return each.mean(axis=0), each.std(axis=0) / np.sqrt(ess)


@pytest.mark.parametrize(
    ("latent_move", "name", "n_draws"),
    [("hmc", "shared", 500), ("slice", "shared", 800), ("none", "shared", 1500), ("hmc", "per class", 500)],
)
def test_gibbs_against_brute_force(latent_move: str, name: str, n_draws: int) -> None:
    """p(y* | y) = Z(y, y*)/Z(y), each Z an orthant probability."""
    kernel = KERNELS[name]
    K = kernels.gram(kernel, np.concatenate([X4, X_NEW]))
    joint = [log_evidence_bruteforce(K, np.append(Y4, k), 3, 2**11, 8) for k in range(3)]
    log_z = log_evidence_bruteforce(K[..., :4, :4], Y4, 3, 2**11, 8)[0]
    expected = np.exp([value - log_z for value, _ in joint])
    assert expected.sum() == pytest.approx(1.0, abs=2e-3)
    sampler = Gibbs(n_draws=n_draws, n_warmup=100, n_chains=2, latent_move=latent_move)
    fit: Any = sampler.sample(kernel, X4, Y4, 3, np.random.default_rng(1))
    mean, cov = fit.posterior.latent(X_NEW)
    found, error = with_error(np.exp(exact_log_probabilities(mean[:, 0], cov[:, 0])), 2)
    assert error.max() < 0.015
    assert np.all(np.abs(found - expected) < 4.0 * np.hypot(error, 1e-3))


@pytest.mark.parametrize(
    "sampler",
    [ScaledMetropolis(250, 100, 2, updates=15), EllipticalSlice(250, 50, 2, updates=8), Hamiltonian(250, 50, 2)],
    ids=["smh", "ess", "hmc"],
)
def test_softmax_samplers_against_importance_sampling(sampler: ScaledMetropolis | EllipticalSlice | Hamiltonian) -> None:
    expected, its_error = softmax_predictive(kernels.gram(SHARED, np.concatenate([X4, X_NEW])), Y4, 3, 12, 8)
    fit: Any = sampler.sample(SHARED, X4, Y4, 3, np.random.default_rng(2))
    mean, cov = fit.posterior.latent(X_NEW)
    each = np.exp(softmax_exact_log_probabilities(mean[:, 0], cov[:, 0], points=512))
    found, error = with_error(each, 2)
    assert error.max() < 0.02
    assert np.all(np.abs(found - expected) < 4.0 * np.hypot(error, its_error))


def test_predictions_of_draws_where_the_kernel_matrix_is_nearly_singular() -> None:
    """Against extended precision: an explicit K⁻¹ would leave an error of 1e-3 in the variance."""
    X, X_new = np.linspace(-3.0, 3.0, 60)[:, None], np.array([[-2.03], [0.4], [3.2]])
    kernel: Any = ConstantKernel(np.exp(6.0)) * RBF(1.0)
    factors = Factors(kernel, X, 1)
    f = factors.draw_prior(np.random.default_rng(0))
    b = factors.prior_solve(f)
    draws = Draws(np.empty((1, 1, 0)), f[None, None], b[None, None], np.ones((1, 1, 60)))
    fixed = ConstantKernel(np.exp(6.0), "fixed") * RBF(1.0, "fixed")
    mean, cov = MixturePosterior(fixed, X, draws, False, {}).latent(X_new)
    k_star = kernel(X, X_new).astype(np.longdouble)
    L = longdouble_cholesky(factors.jittered[0].astype(np.longdouble))
    V, z = forward_solve(L, k_star), forward_solve(L, f.T.astype(np.longdouble))
    np.testing.assert_allclose(mean[0, :, 0], (V.T @ z)[:, 0].astype(float), rtol=0, atol=1e-6)
    np.testing.assert_allclose(cov[0, :, 0, 0], (kernel.diag(X_new) - (V**2).sum(axis=0)).astype(float), rtol=0, atol=1e-8)


def test_latents_of_draws_that_share_hyperparameters_with_their_neighbours() -> None:
    """Each as if it were alone; the last of one chain and the first of the next share θ too."""
    kernel: Any = ConstantKernel(2.0) * RBF(0.7)
    rng, X = np.random.default_rng(0), np.linspace(-1.0, 1.0, 5)[:, None]
    theta = np.array([[[0.1, 0.2], [0.1, 0.2]], [[0.1, 0.2], [0.4, -0.3]]])  # two chains of two
    b = rng.standard_normal((2, 2, 3, 5))
    mean, cov = MixturePosterior(kernel, X, Draws(theta, b, b, np.ones((2, 2, 5))), True, {}).latent(X + 0.1)
    for s in range(4):
        i, j = divmod(s, 2)
        part = (slice(i, i + 1), slice(j, j + 1))
        alone = Draws(theta[part], b[part], b[part], np.ones((1, 1, 5)))
        expected = MixturePosterior(kernels.with_theta(kernel, theta[i, j]), X, alone, True, {}).latent(X + 0.1)
        np.testing.assert_allclose(mean[s], expected[0][0], rtol=1e-12)
        np.testing.assert_allclose(cov[s], expected[1][0], rtol=1e-12)


def longdouble_cholesky(A: Any) -> Any:
    L = np.zeros_like(A)
    for j in range(len(A)):
        L[j, j] = np.sqrt(A[j, j] - L[j, :j] @ L[j, :j])
        L[j + 1 :, j] = (A[j + 1 :, j] - L[j + 1 :, :j] @ L[j, :j]) / L[j, j]
    return L


def forward_solve(L: Any, B: Any) -> Any:
    out = np.zeros_like(B)
    for j in range(len(L)):
        out[j] = (B[j] - L[j, :j] @ out[:j]) / L[j, j]
    return out


@pytest.mark.parametrize("sampler", [EllipticalSlice(5, 2, 1, updates=1), Gibbs(5, 2, 1)])
def test_training_rows_are_recorded_at_the_drawn_latents(sampler: EllipticalSlice | Gibbs) -> None:
    fit: Any = sampler.sample(SHARED, X4, Y4, 3, np.random.default_rng(3))
    draws = fit.posterior.draws
    if sampler.likelihood == "softmax":
        p = np.exp(draws.f[0]) / np.exp(draws.f[0]).sum(axis=1, keepdims=True)
        expected = p[:, Y4, np.arange(4)]
        np.testing.assert_allclose(draws.b[0] @ kernels.gram(SHARED, X4), draws.f[0], rtol=1e-6)  # b = K⁻¹f
    else:
        no_cov = np.zeros((4, 3, 3))
        expected = np.array([np.exp(exact_log_probabilities(f.T, no_cov))[np.arange(4), Y4] for f in draws.f[0]])
    np.testing.assert_allclose(draws.probability[0], expected, rtol=1e-6)


# Runs


def short(**options: Any) -> Gibbs:
    return Gibbs(**({"n_draws": 6, "n_warmup": 3, "n_chains": 2} | options))


def draws_of(sampler: Any, seed: int = 0, prior: Any = None, kernel: Any = SHARED, n_jobs: int | None = None) -> Any:
    return sampler.sample(kernel, X4, Y4, 3, np.random.default_rng(seed), prior=prior, n_jobs=n_jobs).posterior.draws


def assert_same(a: Any, b: Any) -> None:
    for name in ("theta", "f", "b", "probability"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


EVERY_SWEEP = {
    "gibbs-surrogate": short(),
    "ladder": Ladder(6, 3, 2, rungs=2, particles=4, stages=3),
    "gibbs-collapsed": short(hyper="collapsed"),
    "gibbs-joint": short(hyper="joint", latent_move="slice"),
    "smh": ScaledMetropolis(5, 2, 2, updates=3),
    "ess": EllipticalSlice(5, 2, 2, updates=2),
    "hmc": Hamiltonian(5, 2, 2),
}
every_sweep = pytest.mark.parametrize("sampler", EVERY_SWEEP.values(), ids=EVERY_SWEEP)


@pytest.mark.parametrize("method", [name for name in EVERY_SWEEP if name != "ladder"])
@pytest.mark.parametrize("name", KERNELS)
def test_state_belongs_to_one_theta(name: str, method: str) -> None:
    """After every sweep the factors and the whitening are those of θ, which has moved."""
    problem, rng, sampler = problem_of(KERNELS[name], HalfStudentT()), np.random.default_rng(8), EVERY_SWEEP[method]
    state = sampler.start(problem, rng)
    seen = {state.theta.tobytes()}
    for warmup in (True, True, True, False, False):
        sampler.sweep(problem, state, rng, warmup)
        K = problem.factors(state.theta).K
        np.testing.assert_array_equal(state.factors.K, K)
        np.testing.assert_array_equal(state.whitening.factors.K, K)
        seen.add(state.theta.tobytes())
    assert len(seen) > 2


@every_sweep
def test_same_seed_same_draws(sampler: Any) -> None:
    prior = HalfStudentT()
    first = draws_of(sampler, 1, prior)
    assert_same(first, draws_of(sampler, 1, prior))
    assert np.all(first.f != draws_of(sampler, 2, prior).f)
    assert np.all(first.b[0] != first.b[1])  # chains are different streams


def test_jobs_do_not_change_draws() -> None:
    assert_same(draws_of(short(), 1, HalfStudentT()), draws_of(short(), 1, HalfStudentT(), n_jobs=2))


def test_thinning_keeps_every_third_sweep() -> None:
    every, third = draws_of(short(n_draws=12)), draws_of(short(n_draws=4, thin=3))
    np.testing.assert_array_equal(every.b[:, 2::3], third.b)


def interrupt_at(monkeypatch: pytest.MonkeyPatch, calls: int, sampler: Any = Gibbs) -> Callable[[], None]:
    """Ctrl-C at the given sweep, counted over all chains; the function returned takes it away again."""
    original, counter = sampler.sweep, count(1)

    def sweep(self: Any, *args: Any) -> None:
        if next(counter) == calls:
            raise KeyboardInterrupt
        original(self, *args)

    monkeypatch.setattr(sampler, "sweep", sweep)
    return lambda: monkeypatch.setattr(sampler, "sweep", original)


# Sweep 2 is in the first chain's warm-up, 7 among its draws, 11 in the second chain's warm-up, 17 among its draws.
@pytest.mark.parametrize(("at", "drawn"), [(2, False), (7, True), (11, True), (17, True)])
@pytest.mark.parametrize("name", ["gibbs-surrogate", "ladder"])
def test_resumed_equals_uninterrupted(
    name: str, at: int, drawn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = draws_of(EVERY_SWEEP[name], 4, HalfStudentT())
    sampler = replace(EVERY_SWEEP[name], checkpoint=str(tmp_path / "run"))
    monkeypatch.setattr(chain, "CHECKPOINT_SECONDS", -1.0)
    restore = interrupt_at(monkeypatch, at, type(sampler))
    nothing_drawn_yet: AbstractContextManager[Any] = nullcontext() if drawn else pytest.raises(KeyboardInterrupt)
    with pytest.warns(UserWarning, match="interrupted after"), nothing_drawn_yet:
        draws_of(sampler, 4, HalfStudentT())
    restore()
    assert_same(draws_of(sampler, 4, HalfStudentT()), whole)


def test_finished_run_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = short(checkpoint=str(tmp_path / "run"))
    first = draws_of(sampler)
    interrupt_at(monkeypatch, 1)  # any further sweep would end it
    assert_same(first, draws_of(sampler))


def test_more_draws_continue_a_finished_run_and_fewer_are_its_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = draws_of(short(n_draws=9))
    checkpoint = str(tmp_path / "run")
    few = draws_of(short(n_draws=5, checkpoint=checkpoint))
    assert_same(draws_of(short(n_draws=9, checkpoint=checkpoint)), whole)
    interrupt_at(monkeypatch, 1)
    assert_same(draws_of(short(n_draws=5, checkpoint=checkpoint)), few)
    np.testing.assert_array_equal(few.b, whole.b[:, :5])


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"kernel": ConstantKernel(3.0001) * RBF(0.8)},
        {"kernel": ConstantKernel(3.0, "fixed") * RBF(0.8)},
        {"prior": HalfStudentT(scale=3.0)},
    ],
    ids=["seed", "kernel value", "kernel bounds", "prior"],
)
def test_checkpoint_of_another_run_is_refused(other: dict[str, Any], tmp_path: Path) -> None:
    sampler = short(checkpoint=str(tmp_path / "run"))
    draws_of(sampler)
    with pytest.raises(ValueError, match="is of another sampler"):
        draws_of(sampler, **other)


def test_interrupt_keeps_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = draws_of(short(n_draws=20))
    interrupt_at(monkeypatch, 3 + 20 + 3 + 6)  # the second chain has five draws
    with pytest.warns(UserWarning, match="chain 1 interrupted"):
        kept = draws_of(short(n_draws=20))
    np.testing.assert_array_equal(kept.b, whole.b[:1])  # 20 draws of one chain are more than five of each


def test_interrupt_of_the_only_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(monkeypatch, 3 + 3)
    with pytest.warns(UserWarning, match="interrupted after 5 of 9 sweeps"):
        fit: Any = short(n_chains=1).sample(SHARED, X4, Y4, 3, np.random.default_rng(0))
    assert fit.posterior.draws.b.shape[:2] == (1, 2)
    assert fit.status is Status.NOT_MIXED


def test_interrupt_before_the_first_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(monkeypatch, 2)
    with pytest.warns(UserWarning, match="interrupted"), pytest.raises(KeyboardInterrupt, match="before the first draw"):
        draws_of(short())


def test_hyperparameters_that_never_move_have_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nestgp.sampling.gibbs.hyper_given_latents", lambda *args: None)
    fit: Any = short(hyper="joint").sample(SHARED, X4, Y4, 3, np.random.default_rng(0), prior=HalfStudentT())
    assert np.all(fit.posterior.summary["rhat"][-2:] == np.inf)
    assert fit.status is Status.NOT_MIXED


def test_metric_is_the_covariance_of_recent_hyperparameters() -> None:
    """Of the later half of the warm-up, shrunk to its diagonal with the weight of ten draws."""
    rng, problem = np.random.default_rng(9), problem_of(SHARED, HalfStudentT())
    state = short().start(problem, rng)
    first, updates = state.metric, METRIC_UPDATES[0]
    trace = rng.multivariate_normal([0.0, 1.0], [[1.0, 0.6], [0.6, 0.5]], size=updates)
    for theta in trace:
        assert state.metric is first
        state.theta = theta
        learn_metric(problem, Gibbs.approximation, state)
    later = trace[updates // 2 :]
    covariance = np.cov(later.T)
    shrunk = covariance * len(later) / (len(later) + 10)
    np.testing.assert_allclose(np.tril(state.metric) @ state.metric.T, np.where(np.eye(2), covariance, shrunk), rtol=1e-12)


def test_chains_begin_apart_around_the_mode_of_the_approximation() -> None:
    problem = problem_of(SHARED, HalfStudentT())
    found = find_mode(problem, Gibbs.approximation)
    assert found is not None
    there = at_mode(problem, found)
    objective = Objective(SHARED, X4, Y4, 3, Gibbs.approximation, HalfStudentT(), problem.units)
    mode = there.first_theta
    assert objective(mode)[0] < objective(kernels.theta(SHARED))[0] - 0.01
    starts = np.array([short().start(there, np.random.default_rng(seed)).theta for seed in range(200)])
    away = np.linalg.solve(there.first_metric, (starts - mode).T)
    assert np.all(np.abs(away.mean(axis=1)) < 0.3)
    assert np.all(np.abs(away.std(axis=1) - 1.0) < 0.3)


def test_sites_are_learnt_at_the_mean_of_recent_hyperparameters() -> None:
    problem = problem_of(SHARED, HalfStudentT())
    state = short().start(problem, np.random.default_rng(0))
    first, away = state.surrogate, kernels.theta(SHARED) + np.array([1.0, 0.4])
    for _ in range(METRIC_UPDATES[0]):
        assert state.surrogate is first
        state.theta = away
        learn_metric(problem, Gibbs.approximation, state)
    factors = problem.factors(away)
    expected = Surrogate.of(Gibbs.approximation.infer(factors.K[0], Y4, 3), factors)
    np.testing.assert_allclose(state.surrogate.pi, expected.pi, rtol=1e-10)  # a mean of equal θ is rounded
    np.testing.assert_allclose(state.whitening.surrogate.nu, expected.nu, rtol=1e-10, atol=1e-12)
    assert np.abs(expected.pi - first.pi).max() > 1e-3


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    short().sample(SHARED, X4, Y4, 3, np.random.default_rng(0), verbose=1)
    shown = capsys.readouterr().err
    assert "chain 0 warm-up 0/9" in shown
    assert "chain 1" in shown


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (Gibbs(n_draws=0), "n_draws=0: use an integer >= 4"),
        (Gibbs(n_draws=10.5), "n_draws=10.5"),  # type: ignore[arg-type]
        (Gibbs(n_warmup=-1), "n_warmup=-1"),
        (Gibbs(n_chains=0), "n_chains=0"),
        (EllipticalSlice(thin=0), "thin=0"),
        (ScaledMetropolis(updates=0), "updates=0"),
        (Gibbs(latent_move="nuts"), "latent_move='nuts': use one of"),
        (Gibbs(hyper="sometimes"), "hyper='sometimes': use one of"),
        (Ladder(rungs=0), "rungs=0: use an integer >= 1"),
        (Ladder(particles=0), "particles=0"),
        (Ladder(stages=0), "stages=0"),
        (Ladder(tries=0), "tries=0"),
        (Ladder(climbs=-1), "climbs=-1: use an integer >= 0"),
        (Ladder(repeat=0), "repeat=0: use an integer >= 1"),
        (Ladder(wander=1.5), r"wander=1.5: use a number in \[0, 1\]"),
        (Ladder(looks=0), "looks=0"),
        (Ladder(hottest=0.0), r"hottest=0.0: use a number in \(0, 1\]"),
    ],
)
def test_bad_options(sampler: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draws_of(sampler)


# The estimator

SHORT = {
    "gibbs": partial(Gibbs, 8, 4, 2),
    "ladder": partial(Ladder, 8, 4, 2, rungs=2, particles=4, stages=4),
    "smh": partial(ScaledMetropolis, 8, 4, 2, updates=3),
    "ess": partial(EllipticalSlice, 8, 4, 2, updates=2),
    "hmc": partial(Hamiltonian, 8, 4, 2),
}


def fitted(name: str, **options: Any) -> Any:
    X = np.array([[-1.0, 0.1], [-0.8, 0.3], [0.9, 0.2], [1.2, -0.4], [0.1, 1.5], [-0.2, 1.8]])
    y = np.array(["left", "left", "right", "right", "top", "top"])
    clf = GPClassifier(ConstantKernel(2.0) * RBF(1.0, (0.3, 10.0)), inference=name, random_state=0, **options)
    with pytest.warns(ConvergenceWarning, match="not_mixed"):
        return clf.fit(X, y)


@pytest.mark.parametrize("optimizer", [None, "l-bfgs-b"])
@pytest.mark.parametrize("name", SHORT)
def test_classifier(name: str, optimizer: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(classifier_module.SAMPLERS, name, SHORT[name])
    clf = fitted(name, optimizer=optimizer)
    X = np.random.default_rng(5).standard_normal((7, 2))
    p = clf.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(clf.predict_proba(X[3:4]), p[3:4], rtol=1e-8)  # batches do not matter
    assert set(clf.predict(np.array([[-1.0, 0.1], [1.1, -0.2], [-0.1, 1.7]]))) == {"left", "right", "top"}
    assert clf.status_ is Status.NOT_MIXED
    theta = clf.posterior_.draws.theta
    assert theta.shape == (2, 8, 2)
    moved = np.ptp(theta.reshape(-1, 2), axis=0)
    np.testing.assert_array_equal(moved > 0.0, optimizer is not None)
    np.testing.assert_allclose(kernels.theta(clf.kernel_), theta.mean(axis=(0, 1)), rtol=1e-12)
    mean, cov = clf.predict_latent(X)
    assert (mean.shape, cov.shape) == ((7, 3), (7, 3, 3))
    assert np.linalg.eigvalsh(cov).min() > 0.0
    again = pickle.loads(pickle.dumps(clf))
    np.testing.assert_array_equal(again.predict_proba(X), p)
    with pytest.raises(ValueError, match="a sampler gives no evidence"):
        clf.log_marginal_likelihood()


def test_classifier_converges_on_an_easy_problem() -> None:
    sampler = Gibbs(n_draws=400, n_warmup=50, n_chains=3)
    clf: Any = GPClassifier(ConstantKernel(0.3) * RBF(1.0), inference=sampler, optimizer=None, random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf.fit(X4, Y4)
    assert clf.status_ is Status.CONVERGED
    assert clf.posterior_.summary["rhat"].max() < 1.01
    assert np.isnan(clf.log_marginal_likelihood_value_)


INTEGRALS: dict[str, Callable[[Array, Array], Array]] = {
    "gibbs": exact_log_probabilities,
    "ess": partial(softmax_exact_log_probabilities, points=4096),
}


@pytest.mark.parametrize("name", INTEGRALS)
def test_proba_diagnostics(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the probabilities of every draw by itself: latents of its θ and b, by dense algebra."""
    monkeypatch.setitem(classifier_module.SAMPLERS, name, SHORT[name])
    monkeypatch.setattr("nestgp.classifier.PREDICT_MEMORY", 1)  # sixteen rows at a time
    clf = fitted(name)
    X, draws = np.random.default_rng(6).standard_normal((19, 2)), clf.posterior_.draws
    each = np.empty((2, 8, 19, 3))
    for at in np.ndindex(2, 8):
        kernel: Any = kernels.with_theta(clf.kernel_, draws.theta[at])
        A = kernel(clf.X_train_) + (np.eye(6) if name == "gibbs" else 0.0)
        k_star = kernel(clf.X_train_, X)
        variance = kernel.diag(X) - np.sum(k_star * np.linalg.solve(A, k_star), axis=0)
        p = np.exp(INTEGRALS[name]((draws.b[at] @ k_star).T, variance[:, None, None] * np.eye(3)))
        each[at] = p / p.sum(axis=1, keepdims=True)
    expected = summarise(each.reshape(2, 8, -1))
    found = clf.proba_diagnostics(X)
    assert found.keys() == expected.keys()
    # R-hat folds at the median, from which the two middle draws are equally far: rounding decides how they rank
    for quantity, rtol in (("ess_bulk", 1e-8), ("ess_tail", 1e-8), ("rhat", 0.1)):
        np.testing.assert_allclose(found[quantity], expected[quantity].reshape(19, 3), rtol=rtol, err_msg=quantity)


def test_to_arviz(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its import announces a refactor, once a day
        pytest.importorskip("arviz")
    monkeypatch.setitem(classifier_module.SAMPLERS, "gibbs", SHORT["gibbs"])
    clf = fitted("gibbs")
    posterior = clf.to_arviz().posterior
    dims = {"theta": ("hyperparameter",), "f": ("class", "row"), "probability": ("row",)}
    for name, its_own in dims.items():
        assert posterior[name].dims == ("chain", "draw", *its_own)
        np.testing.assert_array_equal(posterior[name].values, getattr(clf.posterior_.draws, name))
    assert posterior["f"].shape == (2, 8, 3, 6)
    assert list(posterior["class"].values) == ["left", "right", "top"]
    assert list(posterior["row"].values) == list(range(6))
    assert list(posterior["hyperparameter"].values) == ["k1__constant_value", "k2__length_scale"]


@pytest.mark.parametrize("ask", [lambda clf: clf.to_arviz(), lambda clf: clf.proba_diagnostics(X4)], ids=["arviz", "mixing"])
def test_approximations_have_no_draws(ask: Callable[[GPClassifier], Any]) -> None:
    clf = GPClassifier(SHARED, optimizer=None).fit(X4, Y4)
    with pytest.raises(ValueError, match="has no draws"):
        ask(clf)
