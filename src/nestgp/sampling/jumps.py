"""Moves of all hyperparameters at once, from one hill of their posterior to another.

Trajectories of HMC cross no valley. A jump proposes θ near one that warm-up has met, wherever that is, from the kernel density

    g(θ) = mean_j N(θ | θ_j, h² C Cᵀ),    C the metric,

and holds the whitened latents (z, ξ) of :mod:`nestgp.sampling.surrogate` fixed, under the sites that the approximation finds at
each of the two θ. They are a function of θ alone, as every fit begins from nothing, so that their density is still

    p(θ, z, ξ | y) ∝ p(θ) Z_θ N(z) N(ξ) p(y | f)/t_θ(f),

and f moves along to what fits the data there: sites found elsewhere would leave it far from that. A jump is accepted by the ratio
of this density to g, whatever θ_j were met: few of them only make for few jumps.
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
    here = _refit(problem, inference, state.theta)
    for _ in range(tries):
        if here is None:
            return
        here, acceptance = _jump(problem, inference, likelihood, state, here, rng)
        if adapt:
            state.jumps_tried += 1
            state.jumps_accepted += acceptance


def _jump(
    problem: Problem, inference: Any, likelihood: LogLikelihood, state: ChainState, here: Whitening, rng: np.random.Generator
) -> tuple[Whitening, float]:
    """One try from ``here``: where the chain is after it, and its acceptance probability."""
    near = state.met[rng.integers(len(state.met))]
    theta = near + WIDTH * state.metric @ rng.standard_normal(near.size)
    z, xi = here.coordinates(state.f, rng)
    uniform = rng.random()
    there = _refit(problem, inference, theta) if math.isfinite(problem.log_prior(theta)[0]) else None
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


def _refit(problem: Problem, inference: Any, theta: FloatArray) -> Whitening | None:
    """Coordinates of the sites at θ; None where there is no fit, and so no jump to or from."""
    try:
        factors = problem.factors(theta)
        with np.errstate(all="ignore"):
            fit = inference.infer(factors.shared_or_stack, problem.y, problem.n_classes)
        return Whitening(Surrogate.of(fit, factors), factors) if fit.converged else None
    except NotPositiveDefiniteError:
        return None


def log_proposal(theta: FloatArray, met: FloatArray, metric: FloatArray) -> float:
    """log g(θ) up to a constant; met (m, p), metric (p, p) lower triangular."""
    x = solve_triangular(WIDTH * metric, (theta - met).T, lower=True)
    return float(logsumexp(-0.5 * np.einsum("pm,pm->m", x, x)))
