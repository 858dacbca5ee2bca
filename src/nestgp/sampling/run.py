"""From a sampler and data to a result: start, run the chains, judge the mixing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.linalg import cholesky
from sklearn.gaussian_process.kernels import Kernel

from nestgp import hyper, kernels
from nestgp.arrays import FloatArray, IntArray
from nestgp.hyper import Prior, SearchResult
from nestgp.inference.checks import check_problem
from nestgp.inference.result import Fit, Status
from nestgp.lapack import NotPositiveDefiniteError
from nestgp.sampling.chain import ChainState, Problem, Sampler, run_chains
from nestgp.sampling.hmc import StepSize
from nestgp.sampling.mixing import mixed, summarise
from nestgp.sampling.mixture import Draws, MixturePosterior
from nestgp.sampling.moves import surrogate_around

#: Least and largest variance of θ along any direction that a search is believed to have seen.
METRIC_LIMITS = (1e-4, 1.0)
#: Smallest value of what a sampler counts.
LEAST = {"n_draws": 4, "n_warmup": 0, "climbs": 0} | dict.fromkeys(
    ("n_chains", "thin", "updates", "rungs", "looks", "tries", "particles", "stages", "repeat"), 1
)


def run(
    sampler: Sampler,
    kernel: Kernel | Sequence[Kernel],
    X: FloatArray,
    y: IntArray,
    n_classes: int,
    rng: np.random.Generator,
    *,
    noisy: bool,
    prior: Prior | None = None,
    units: FloatArray | None = None,
    search: SearchResult | None = None,
    n_jobs: int | None = None,
    verbose: int = 0,
) -> Fit:
    """Sample and judge: the status is CONVERGED only if every monitored quantity has mixed.

    Parameters
    ----------
    prior : of the hyperparameters, which are then sampled too; None keeps them as they are. units : see :mod:`nestgp.hyper`.
    search : where their chains begin; None: made here, with the sampler's approximation.
    noisy : whether draws are of auxiliary variables (see :class:`MixturePosterior`).
    """
    for name, least in LEAST.items():
        value = getattr(sampler, name, least)
        if not (isinstance(value, int | np.integer) and value >= least):
            raise ValueError(f"{name}={value!r}: use an integer >= {least}")
    _, y = check_problem(kernels.gram(kernel, X), y, n_classes)
    theta = kernels.theta(kernel)
    units = np.ones(theta.size) if units is None else units
    problem = Problem(kernel, X, y, n_classes, prior if theta.size else None, units)
    if problem.prior is not None and (found := search or find_mode(problem, sampler.approximation)) is not None:
        problem = at_mode(problem, found)
    try:
        chains = run_chains(sampler, problem, rng, n_jobs, verbose)
    except NotPositiveDefiniteError as error:
        raise ValueError(f"no chain could start. {Status.NOT_POSITIVE_DEFINITE.advice}") from error
    draws = Draws.from_records(chains)
    contrasts = draws.f - draws.f.mean(axis=2, keepdims=True)  # all that any probability depends on
    watched = np.concatenate([draws.probability, contrasts.reshape(*draws.theta.shape[:2], -1)], axis=2)
    if problem.prior is not None:
        watched = np.concatenate([watched, draws.theta], axis=2)
    summary = summarise(watched)
    # What never moved is constant in all chains, which R-hat alone takes for mixed. A single latent may be: f(0), linear kernel.
    if problem.prior is not None:
        summary["rhat"][-theta.size :][np.ptp(draws.theta, axis=(0, 1)) == 0.0] = np.inf
    if not np.ptp(draws.f, axis=(0, 1)).any():
        summary["rhat"][:] = np.inf
    status = Status.CONVERGED if mixed(summary) else Status.NOT_MIXED
    posterior: Any = MixturePosterior(kernel, X, draws, noisy, summary)
    return Fit(posterior, np.nan, status, (), float(np.max(summary["rhat"])) - 1.0)


def find_mode(problem: Problem, inference: Any) -> SearchResult | None:
    """What a search with the approximation finds; None if it has no evidence anywhere near."""
    assert problem.prior is not None
    data = (problem.kernel, problem.X, problem.y, problem.n_classes)
    objective = hyper.Objective(*data, inference, problem.prior, problem.units)
    bounds = kernels.bounds(problem.kernel)
    try:
        found = hyper.search(objective, np.clip(kernels.theta(problem.kernel), *bounds.T), bounds)
    except ArithmeticError:
        return None
    if found.message == hyper.INTERRUPTED:
        raise KeyboardInterrupt("sampling was interrupted before the first draw")
    return found


def at_mode(problem: Problem, found: SearchResult) -> Problem:
    """The same, at the θ that a search has found, with the spread of θ that it met on its way."""
    values, vectors = np.linalg.eigh(found.covariance)
    metric = cholesky((vectors * np.clip(values, *METRIC_LIMITS)) @ vectors.T, lower=True)
    return replace(problem, start=found.theta, metric=metric)


def start_from(inference: Any, problem: Problem, rng: np.random.Generator, step: StepSize) -> ChainState:
    """A chain near the mode of θ and the means of an approximation there, at a distance from it so that chains begin apart."""
    theta = problem.first_theta
    surrogate, fit = surrogate_around(problem, inference, theta, problem.first_metric)
    if problem.prior is not None:
        theta = np.clip(theta + problem.first_metric @ rng.standard_normal(theta.size), *kernels.bounds(problem.kernel).T)
    factors = problem.factors(theta)
    mean = fit.posterior.mean.T if np.isfinite(fit.log_evidence) else 0.0
    f = np.ascontiguousarray(mean + 0.3 * factors.draw_prior(rng))
    return ChainState(theta, f, factors, surrogate, step, problem.first_metric)
