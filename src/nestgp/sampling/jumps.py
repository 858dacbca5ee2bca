"""Moves of all hyperparameters at once, from one hill of their posterior to another.

Trajectories of HMC cross no valley. A jump proposes θ near one that warm-up has met, wherever that is, from the kernel density

    g(θ) = mean_j N(θ | θ_j, h² C Cᵀ),    C the metric,

and holds the whitened latents (z, ξ) of :mod:`nestgp.sampling.surrogate` fixed, under the sites that the approximation has at the
nearest θ_j. They are a function of θ alone, so that the density is still

    p(θ, z, ξ | y) ∝ p(θ) Z_θ N(z) N(ξ) p(y | f)/t_θ(f),

and f moves along to what fits the data there: the sites of one hill would leave it far from that on another. A jump is accepted
by the ratio of this density to g, whatever θ_j were met: few of them only make for few jumps.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from nestgp.arrays import FloatArray
from nestgp.lapack import NotPositiveDefiniteError
from nestgp.sampling.chain import ChainState, Problem
from nestgp.sampling.moves import LogLikelihood
from nestgp.sampling.surrogate import Surrogate, Whitening

#: Width h of the kernel density, in units of the metric.
WIDTH = 0.5
#: Most θ_j; each costs a fit.
MOST_MET = 100
#: Share of jumps accepted from which they are worth their time, and the tries from which it is believed.
WORTHWHILE, ENOUGH = 0.01, 50


def hyper_jumps(
    problem: Problem,
    inference: Any,
    likelihood: LogLikelihood,
    state: ChainState,
    rng: np.random.Generator,
    adapt: bool,
    tries: int,
) -> None:
    """Some tries of a jump to near one of ``state.met``; none where warm-up has seen that hardly one is accepted."""
    seldom = state.jumps_tried >= ENOUGH and state.jumps_accepted < WORTHWHILE * state.jumps_tried
    if not tries or not len(state.met) or (seldom and not adapt):
        return
    if not state.met_sites:
        state.met, state.met_sites = _with_sites(problem, inference, state.met)
        if not state.met_sites:
            return
    here = _whitened(problem, state, state.theta)
    for _ in range(tries):
        if here is None:
            return
        here, acceptance = _jump(problem, likelihood, state, here, rng)
        if adapt:
            state.jumps_tried += 1
            state.jumps_accepted += acceptance


def _jump(
    problem: Problem, likelihood: LogLikelihood, state: ChainState, here: Whitening, rng: np.random.Generator
) -> tuple[Whitening, float]:
    """One try from ``here``: where the chain is after it, and its acceptance probability."""
    near = state.met[rng.integers(len(state.met))]
    theta = near + WIDTH * state.metric @ rng.standard_normal(near.size)
    z, xi = here.coordinates(state.f, rng)
    uniform = rng.random()
    there = _whitened(problem, state, theta) if math.isfinite(problem.log_prior(theta)[0]) else None
    if there is None:
        return here, 0.0

    def log_weight(theta: FloatArray, w: Whitening, f: FloatArray) -> float:
        log_posterior = problem.log_prior(theta)[0] + w.log_evidence + likelihood(f)[0] - w.log_sites(f / w.s)[0]
        return log_posterior - log_proposal(theta, state.met, state.metric)

    f = there.latents(z, xi).f
    gain = log_weight(theta, there, f) - log_weight(state.theta, here, state.f)
    acceptance = math.exp(min(0.0, gain)) if not math.isnan(gain) else 0.0
    if uniform >= acceptance:
        return here, acceptance
    state.theta, state.f, state.factors = theta, f, there.factors
    return there, acceptance


def _with_sites(problem: Problem, inference: Any, met: FloatArray) -> tuple[FloatArray, tuple[Surrogate, ...]]:
    """Some of the θ_j, and the sites at each; those without a fit are left out."""
    found: list[tuple[FloatArray, Surrogate]] = []
    for theta in met[:: -(-len(met) // MOST_MET)]:
        factors = problem.factors(theta)
        fit = inference.infer(factors.shared_or_stack, problem.y, problem.n_classes)
        if fit.converged:
            found.append((theta, Surrogate.of(fit, factors)))
    thetas, sites = zip(*found, strict=True) if found else ((), ())
    return np.array(thetas), sites


def _whitened(problem: Problem, state: ChainState, theta: FloatArray) -> Whitening | None:
    """Coordinates of the nearest sites; None where K has no factor."""
    try:
        nearest = int(_distances(theta, state.met, state.metric).argmin())
        return Whitening(state.met_sites[nearest], problem.factors(theta))
    except NotPositiveDefiniteError:
        return None


def log_proposal(theta: FloatArray, met: FloatArray, metric: FloatArray) -> float:
    """log g(θ) up to a constant; met (m, p), metric (p, p) lower triangular."""
    return float(logsumexp(-0.5 * _distances(theta, met, metric) / WIDTH**2))


def _distances(theta: FloatArray, met: FloatArray, metric: FloatArray) -> FloatArray:
    """Squared distances (m,) of θ to every θ_j, in units of the metric."""
    x = solve_triangular(metric, (theta - met).T, lower=True)
    return np.einsum("pm,pm->m", x, x)
