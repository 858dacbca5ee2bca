"""Samplers judged by simulation: Geweke's joint-distribution test, simulation-based calibration, agreement, section 5.1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_iris
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from nestgp import GPClassifier, kernels
from nestgp.hyper import HalfStudentT
from nestgp.inference import Laplace, NestedEP
from nestgp.likelihoods import probit_log_likelihood, softmax_log_probabilities
from nestgp.predict import exact_log_probabilities
from nestgp.sampling import EllipticalSlice, Gibbs, Hamiltonian, Ladder, ScaledMetropolis
from nestgp.sampling.chain import ChainState, Problem
from nestgp.sampling.hmc import StepSize
from nestgp.sampling.mixing import ess_bulk, summarise
from nestgp.sampling.moves import surrogate_around
from nestgp.sampling.surrogate import Surrogate, Whitening
from nestgp.threads import single_threaded_if_small
from tests.oracles._types import Array, Labels
from tests.oracles.reference import load_case

pytestmark = pytest.mark.slow

X5 = np.array([[-1.0], [-0.4], [0.1], [0.9], [1.2]])
C = 3
PRIOR = HalfStudentT(df=4.0, scale=2.0)


def tiny_problem(y: Labels) -> Problem:
    """Five inputs, three classes; the bounds cut the prior's far tail, where a latent of any size has the same label."""
    kernel = ConstantKernel(1.0, (0.05, 50.0)) * RBF(1.0, (0.2, 20.0))
    return Problem(kernel, X5, y, C, PRIOR, np.ones(2))


def draw_prior_theta(problem: Problem, rng: np.random.Generator) -> Array:
    """θ = (log σ², log l) with σ and l half-t, inside the kernel's bounds: written without the library's density."""
    bounds = kernels.bounds(problem.kernel)
    while True:
        sigma, length = np.abs(stats.t.rvs(PRIOR.df, size=2, random_state=rng)) * PRIOR.scale
        theta = np.array([2.0 * np.log(sigma), np.log(length)])
        if np.all(theta > bounds[:, 0]) and np.all(theta < bounds[:, 1]):
            return theta


def probit_labels(f: Array, rng: np.random.Generator) -> Labels:
    """y_i the largest of v_i ~ N(f_i, I); f (c, n)."""
    return np.asarray((f + rng.standard_normal(f.shape)).argmax(axis=0))


def softmax_labels(f: Array, rng: np.random.Generator) -> Labels:
    """y_i the largest of f_i plus standard Gumbel noise, which has the softmax probabilities."""
    return np.asarray((f + rng.gumbel(size=f.shape)).argmax(axis=0))


@dataclass(frozen=True)
class Case:
    """A sampler, its likelihood's labels, and fixed step sizes as a chain state has them: acceptance 0.6 to 0.9."""

    name: str
    sampler: Any
    labels: Callable[[Array, np.random.Generator], Labels]
    latent_step: float = 0.4
    whitened_step: float = 0.35
    hyper_step: float = 0.35


CASES = {
    case.name: case
    for case in (
        Case("gibbs-surrogate", Gibbs(hyper="surrogate"), probit_labels),
        Case("gibbs-collapsed", Gibbs(hyper="collapsed", latent_move="slice"), probit_labels),
        Case("gibbs-collapsed-hmc", Gibbs(hyper="collapsed", latent_move="hmc"), probit_labels),
        Case("gibbs-joint", Gibbs(hyper="joint", latent_move="none"), probit_labels, hyper_step=0.08),
        Case("ladder", Ladder(rungs=2, particles=4, stages=5), probit_labels),
        Case("smh", ScaledMetropolis(updates=5), softmax_labels, latent_step=0.5, hyper_step=0.08),
        Case("ess", EllipticalSlice(updates=3), softmax_labels, hyper_step=0.08),
        Case("hmc", Hamiltonian(), softmax_labels, hyper_step=0.08),
    )
}


@cache
def fixed_surrogate(likelihood: str) -> Surrogate:
    """Sites around one θ for one label vector, whatever the labels are: poor ones for most of them, and valid for all."""
    problem = tiny_problem(np.array([0, 1, 1, 2, 0]))
    method = NestedEP() if likelihood == "probit" else Laplace()
    surrogate, _ = surrogate_around(problem, method, kernels.theta(problem.kernel), 0.5 * np.eye(2))
    assert np.abs(surrogate.slopes).max() > 0.1
    return surrogate


def joint_draw(case: Case, rng: np.random.Generator) -> tuple[Problem, ChainState]:
    """θ, f and y from the model itself."""
    problem = tiny_problem(np.zeros(len(X5), dtype=np.int64))
    theta = draw_prior_theta(problem, rng)
    factors = problem.factors(theta)
    f = factors.draw_prior(rng)
    surrogate = fixed_surrogate(case.sampler.likelihood)
    steps = [StepSize(value) for value in (case.latent_step, case.whitened_step, case.hyper_step)]
    state = ChainState(theta, f, factors, surrogate, steps[0], np.eye(2), whitened_step=steps[1], hyper_step=steps[2])
    return replace(problem, y=case.labels(f, rng)), state


def functionals(problem: Problem, state: ChainState) -> Array:
    """Test functions of (θ, f, y): bounded or light-tailed, so that their means have standard errors."""
    theta, f, y = state.theta, state.f, problem.y
    s = np.arcsinh(f)
    sigma = np.exp(0.5 * theta[0])
    return np.array(
        [
            theta[0], theta[1], theta[0] ** 2, theta[1] ** 2, theta[0] * theta[1],
            s[0, 0], s[1, 2], s[0, 0] ** 2, s[2, 4] ** 2, s[0, 0] * s[0, 1], s[0, 0] * s[1, 0],
            s[y[0], 0], s[y[3], 3], s[y[0], 1], float(y[0] == y[1]), float(y[0] == y[4]), np.abs(f[0, 0]) / sigma,
        ]
    )  # fmt: skip


def geweke_p_values(case: Case, n_chains: int, n_sweeps: int, alter: Callable[[Problem], Problem], seed: int) -> Array:
    """p-values of the successive-conditional means against the marginal-conditional ones, one per test function.

    Every chain starts at a draw of the joint distribution, so that it is stationary from its first sweep if and only if its
    sweep leaves the posterior invariant, and the chains' means are independent: a t test needs no autocorrelation.
    """
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(n_chains):
        problem, state = joint_draw(case, rng)
        problem = alter(problem)
        values = []
        for _ in range(n_sweeps):
            case.sampler.sweep(problem, state, rng, False)
            problem.y[:] = case.labels(state.f, rng)
            values.append(functionals(problem, state))
        means.append(np.mean(values, axis=0))
    direct = np.array([functionals(*joint_draw(case, rng)) for _ in range(6000)])
    return np.asarray(stats.ttest_ind(np.array(means), direct, axis=0, equal_var=False).pvalue)


# 17 correlated test functions for each of seven samplers: 1e-4 is about 1 % in all.
# A ladder's population of latents belongs to the labels it was annealed with, and cannot go on with others.
@pytest.mark.parametrize("name", [name for name in CASES if name != "ladder"])
def test_geweke(name: str) -> None:
    with single_threaded_if_small(len(X5)):
        p = geweke_p_values(CASES[name], 60, 100, lambda problem: problem, seed=11)
    assert p.min() > 1e-4, p.round(5)


class _WithoutJacobian(Problem):
    def log_prior(self, theta: Array) -> tuple[float, Array]:
        value, gradient = super().log_prior(theta)
        power = np.array([0.5, 1.0])
        return value - float(power @ theta), gradient - power


def test_geweke_sees_a_missing_jacobian() -> None:
    def alter(problem: Problem) -> Problem:
        return _WithoutJacobian(problem.kernel, problem.X, problem.y, C, PRIOR, problem.units)

    with single_threaded_if_small(len(X5)):
        p = geweke_p_values(CASES["gibbs-surrogate"], 60, 100, alter, seed=11)
    assert p.min() < 1e-6


class _WithoutEvidence(Whitening):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.log_evidence = 0.0


def test_geweke_sees_a_missing_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Z_θ of the sites the whitened density is another one, of θ first of all."""
    monkeypatch.setattr("nestgp.sampling.moves.Whitening", _WithoutEvidence)
    with single_threaded_if_small(len(X5)):
        p = geweke_p_values(CASES["gibbs-surrogate"], 60, 100, lambda problem: problem, seed=11)
    assert p.min() < 1e-6


def true_probability(case: Case, f: Array, y: Labels) -> Array:
    """p(y_i | f_i) (n,) at latents f (c, n)."""
    if case.sampler.likelihood == "probit":
        return np.exp(probit_log_likelihood(f.T, y)[0])
    return np.exp(softmax_log_probabilities(f.T)[np.arange(y.size), y])


# Ranks among 19 thinned draws fall in 10 bins of two: chi-squared with 9 degrees of freedom if draws and truth are
# exchangeable. Thinned draws are nearly independent; what is left of autocorrelation would show as a U.
@pytest.mark.parametrize("name", ["gibbs-surrogate", "ladder", "smh", "ess", "hmc"])
def test_simulation_based_calibration(name: str) -> None:
    case, n_simulations, n_draws = CASES[name], 100, 19
    sampler = replace(case.sampler, n_draws=n_draws, n_warmup=80, n_chains=1, thin=4)
    ranks = []
    with single_threaded_if_small(len(X5)):
        for seed in range(n_simulations):
            rng = np.random.default_rng(1000 + seed)
            problem, state = joint_draw(case, rng)
            fit: Any = sampler.sample(problem.kernel, X5, problem.y, C, rng, prior=PRIOR)
            draws = fit.posterior.draws
            drawn = np.concatenate([draws.theta[0], draws.probability[0][:, [0, 3]]], axis=1)
            truth = np.append(state.theta, true_probability(case, state.f, problem.y)[[0, 3]])
            ranks.append((drawn < truth).sum(axis=0))
    counts = np.array([np.bincount(r // 2, minlength=10) for r in np.array(ranks).T])
    p = stats.chi2.sf(((counts - 10.0) ** 2 / 10.0).sum(axis=1), 9)
    assert p.min() > 1e-3, (p, counts)


@cache
def iris_subset() -> tuple[Array, Labels]:
    """12 rows and two standardised columns, the classes overlapping: θ | f hardly moves where f is long."""
    X, y = load_iris(return_X_y=True)
    X, y = X[::13, :2], y[::13]
    return (X - X.mean(axis=0)) / X.std(axis=0), y


@cache
def iris_draws(hyper: str) -> Array:
    """θ (chains, draws, 2) of one hyperparameter scheme of the Gibbs sampler, or of the ladder."""
    X, y = iris_subset()
    kernel = ConstantKernel(4.0) * RBF(1.5, (0.7, 10.0))  # shorter ones are a second hill, which θ | f seldom reaches
    sampler: Any = Gibbs(n_draws=500, n_warmup=200, n_chains=2, hyper=hyper, thin=4 if hyper == "joint" else 1)
    if hyper == "ladder":
        sampler = Ladder(n_draws=500, n_warmup=100, n_chains=2, rungs=3, particles=8, stages=8)
    fit: Any = sampler.sample(kernel, X, y, 3, np.random.default_rng(3), prior=HalfStudentT())
    return np.asarray(fit.posterior.draws.theta)


@pytest.mark.parametrize("hyper", ["collapsed", "joint", "ladder"])
def test_hyperparameter_schemes_agree(hyper: str) -> None:
    reference, other = iris_draws("surrogate"), iris_draws(hyper)
    for j in range(reference.shape[2]):
        errors = [t[:, :, j].std() / np.sqrt(ess_bulk(t[:, :, j])) for t in (reference, other)]
        difference = reference[:, :, j].mean() - other[:, :, j].mean()
        assert abs(difference) < 4.0 * np.hypot(*errors)
        assert max(errors) < 0.5 * reference[:, :, j].std()  # a scheme that hardly moves agrees with everything


@pytest.fixture(scope="module")
def toy(reference_dir: Path) -> dict[str, Any]:
    """Case A: inputs, reference probabilities, and the default Gibbs sampler's fit."""
    case = load_case("A_toy1d")
    inputs = case.values["inputs"]
    theta = inputs["kernel"]["log_sigma2"], inputs["kernel"]["log_lengthscale"]
    kernel = ConstantKernel(np.exp(theta[0])) * RBF(np.exp(theta[1]))
    X = np.array(inputs["X"])
    clf = GPClassifier(kernel, inference=Gibbs(n_draws=1000, n_warmup=300, n_chains=4), optimizer=None, random_state=0)
    clf.fit(X, case.y)
    return {"case": case, "kernel": kernel, "X": X, "X_test": np.array(inputs["X_test"]), "clf": clf}


def test_toy_mixes(toy: dict[str, Any]) -> None:
    summary = toy["clf"].posterior_.summary
    sweeps = toy["clf"].n_iter_
    assert np.minimum(summary["ess_bulk"], summary["ess_tail"]).min() >= 0.1 * sweeps
    assert summary["rhat"].max() < 1.01
    assert toy["clf"].status_.name == "CONVERGED"


def test_toy_against_reference_gibbs(toy: dict[str, Any]) -> None:
    reference = toy["case"].values["exact"]["gibbs"]
    clf, X_test = toy["clf"], toy["X_test"]
    expected, its_error = np.array(reference["test_prob"]), np.array(reference["test_prob_se"])
    found, our_error = probabilities_with_error(clf, X_test)
    z = (found - expected) / np.hypot(our_error, its_error)
    assert np.abs(found - expected).max() < 0.03
    assert np.abs(z).max() < 4.5  # 50 neighbouring inputs, three classes: far fewer than 150 independent numbers


def probabilities_with_error(clf: Any, X: Array) -> tuple[Array, Array]:
    """Class probabilities (m, c) averaged over draws, and their Monte Carlo standard errors from the effective draws."""
    mean, cov = clf.posterior_.latent(X)
    each = np.exp([exact_log_probabilities(m, v) for m, v in zip(mean, cov, strict=True)])
    each = each.reshape(*clf.posterior_.draws.theta.shape[:2], -1)
    ess = summarise(each)["ess_bulk"]
    shape = (len(X), len(clf.classes_))
    error = each.std(axis=(0, 1)) / np.sqrt(ess)
    return each.mean(axis=(0, 1)).reshape(shape), error.reshape(shape)


def test_toy_confidence_is_ordered(toy: dict[str, Any]) -> None:
    """Section 5.1: MCMC is the most confident, IEP the most cautious; log odds of class 1 left of x = 0, where it is certain."""
    inside = toy["X_test"][(toy["X_test"][:, 0] > -3.0) & (toy["X_test"][:, 0] < -0.5)]
    approximations = [
        GPClassifier(toy["kernel"], inference=name, optimizer=None).fit(toy["X"], toy["case"].y) for name in ("ep", "iep")
    ]
    mcmc, ep, iep = (clf.predict_proba(inside)[:, 0] for clf in (toy["clf"], *approximations))
    assert np.all(ep > iep)
    assert mcmc.mean() > ep.mean() > iep.mean()
