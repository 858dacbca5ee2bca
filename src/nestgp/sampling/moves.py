"""Moves that samplers are put together from: latents with whitened HMC or elliptical slices, hyperparameters with HMC."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.linalg import solve_triangular

from nestgp.linalg import FloatArray, NotPositiveDefiniteError
from nestgp.sampling.chain import ChainState, Problem
from nestgp.sampling.factors import Factors
from nestgp.sampling.hmc import hmc_step

#: f (c, n) → log p(y | f) and its gradient (c, n).
LogLikelihood = Callable[[FloatArray], tuple[float, FloatArray]]

#: Leapfrog steps of a hyperparameter trajectory, and most of a latent one.
HYPER_LEAPFROG, LATENT_LEAPFROG = 8, 40


def latent_hmc(likelihood: LogLikelihood, state: ChainState, rng: np.random.Generator, adapt: bool) -> None:
    """HMC on z, f = L z: the prior is N(0, I) whatever K, and the likelihood has no auxiliary variables.

    The trajectory is about a quarter turn of the prior's rotation, its length drawn anew so that no period is hit.
    """
    factors = state.factors
    L = factors.prior_root

    def log_density(z: FloatArray) -> tuple[float, FloatArray]:
        if not np.abs(z).max() < 1e3:  # a trajectory that left the world: far beyond any draw of N(0, I)
            return -math.inf, z
        value, slope = likelihood(factors.times(L, z))
        return value - 0.5 * float(np.vdot(z, z)), factors.times(L.transpose(0, 2, 1), slope) - z

    z = _whiten(L, state.f)
    step = state.latent_step.value
    n_steps = int(min(max(1, math.ceil(rng.uniform(0.5, 1.5) * 0.5 * math.pi / step)), LATENT_LEAPFROG))
    z, _, acceptance = hmc_step(log_density, z, log_density(z), step, n_steps, 1.0, rng)
    state.f = factors.times(L, z)
    state.accepted = acceptance
    if adapt:
        state.latent_step.update(acceptance)


def _whiten(L: FloatArray, f: FloatArray) -> FloatArray:
    if len(L) == 1:
        return solve_triangular(L[0], f.T, lower=True).T
    return np.stack([solve_triangular(Lk, fk, lower=True) for Lk, fk in zip(L, f, strict=True)])


def elliptical_slice(likelihood: LogLikelihood, state: ChainState, rng: np.random.Generator) -> None:
    """One elliptical slice of all latents (Murray, Adams and MacKay 2010): no step size, always moves."""
    nu = state.factors.draw_prior(rng)
    height = likelihood(state.f)[0] + math.log1p(-rng.random())
    angle = rng.uniform(0.0, 2.0 * math.pi)
    low, high = angle - 2.0 * math.pi, angle
    while True:
        f = math.cos(angle) * state.f + math.sin(angle) * nu
        if likelihood(f)[0] > height:
            state.f = f
            return
        low, high = (angle, high) if angle < 0.0 else (low, angle)
        angle = rng.uniform(low, high)


def scaled_metropolis(likelihood: LogLikelihood, state: ChainState, rng: np.random.Generator, adapt: bool) -> None:
    """Neal's scaled Metropolis: √(1 − ε²) f + ε (a prior draw), which leaves the prior as it is; only the likelihood decides."""
    epsilon = min(state.latent_step.value, 1.0)
    proposal = math.sqrt(1.0 - epsilon * epsilon) * state.f + epsilon * state.factors.draw_prior(rng)
    acceptance = math.exp(min(0.0, likelihood(proposal)[0] - likelihood(state.f)[0]))
    if rng.random() < acceptance:
        state.f = proposal
    state.accepted = acceptance
    if adapt:
        state.latent_step.update(acceptance)


def hyper_given_auxiliary(problem: Problem, state: ChainState, rng: np.random.Generator, adapt: bool) -> None:
    """HMC on p(θ | v) = p(θ) Π_k N(v_k | 0, K + I), the latents integrated out; f must be drawn anew afterwards."""

    def log_density(theta: FloatArray) -> tuple[float, FloatArray]:
        return _gaussian(problem, theta, state.v, noisy=True)

    _hyper_move(problem, state, log_density, rng, adapt)


def hyper_given_latents(problem: Problem, state: ChainState, rng: np.random.Generator, adapt: bool) -> None:
    """HMC on p(θ | f) = p(θ) Π_k N(f_k | 0, K), as in the paper."""

    def log_density(theta: FloatArray) -> tuple[float, FloatArray]:
        return _gaussian(problem, theta, state.f, noisy=False)

    _hyper_move(problem, state, log_density, rng, adapt)


def hyper_given_whitened(problem: Problem, likelihood: LogLikelihood, state: ChainState, rng: np.random.Generator) -> None:
    """Slice sampling of θ with z = L⁻¹f held fixed: f = L_θ z moves along, so the prior of f holds nothing back.

    Where data say little of θ, this is the coordinate in which θ and latents are nearly independent; next to θ | v, in which they
    are when data say much, the two cover for each other (interweaving, Yu and Meng 2011). One slice along a random direction.
    """
    z = _whiten(state.factors.prior_root, state.f)

    def log_density(theta: FloatArray) -> tuple[float, Factors | None, FloatArray]:
        log_prior = problem.log_prior(theta)[0]
        if not math.isfinite(log_prior):
            return -math.inf, None, z
        try:
            factors = problem.factors(theta)
            f = factors.times(factors.prior_root, z)
        except NotPositiveDefiniteError:
            return -math.inf, None, z
        return log_prior + likelihood(f)[0], factors, f

    direction = rng.standard_normal(state.theta.size) * state.hyper_scale
    height = problem.log_prior(state.theta)[0] + likelihood(state.f)[0] + math.log1p(-rng.random())
    low = -2.0 * rng.random()
    high = low + 2.0
    while True:  # the bracket is random and not stepped out: valid, since shrinking it leaves the slice's density as it is
        t = rng.uniform(low, high)
        value, factors, f = log_density(state.theta + t * direction)
        if value > height and factors is not None:
            state.theta, state.factors, state.f = state.theta + t * direction, factors, f
            return
        low, high = (t, high) if t < 0.0 else (low, t)
        if high - low < 1e-12:
            return


def _gaussian(problem: Problem, theta: FloatArray, x: FloatArray, noisy: bool) -> tuple[float, FloatArray]:
    """log p(θ) + Σ_k log N(x_k | 0, K_θ [+ I]) and its gradient; −inf where K has no factor."""
    log_prior, slope = problem.log_prior(theta)
    if not math.isfinite(log_prior):
        return -math.inf, slope
    try:
        factors = problem.factors(theta)
        inverse = factors.noisy_inverse if noisy else factors.prior_inverse
        log_det = factors.log_det_noisy if noisy else factors.log_det_prior
    except NotPositiveDefiniteError:
        return -math.inf, slope
    b = factors.times(inverse, x)
    value = -0.5 * float(np.vdot(x, b)) - 0.5 * log_det
    return log_prior + value, slope + factors.gaussian_gradient(b, inverse)


def _hyper_move(
    problem: Problem,
    state: ChainState,
    log_density: Callable[[FloatArray], tuple[float, FloatArray]],
    rng: np.random.Generator,
    adapt: bool,
) -> None:
    current = log_density(state.theta)
    n_steps = int(rng.integers(HYPER_LEAPFROG // 2, HYPER_LEAPFROG + 1))
    step = state.hyper_step.value
    theta, _, acceptance = hmc_step(log_density, state.theta, current, step, n_steps, state.hyper_scale, rng)
    if theta is not state.theta:
        state.theta = theta
        state.factors = problem.factors(theta)
    if not adapt:
        return
    state.hyper_step.update(acceptance)
    state.hyper_trace.append(theta.copy())
    if len(state.hyper_trace) in SCALE_UPDATES:  # scales from the later half of what was seen, then a new step size
        recent = np.array(state.hyper_trace[len(state.hyper_trace) // 2 :])
        state.hyper_scale = np.clip(recent.std(axis=0), 1e-2, 10.0)
        state.hyper_step.restart(0.3)


#: Warm-up sweeps after which the scales of the hyperparameters are learnt.
SCALE_UPDATES = (50, 150)
