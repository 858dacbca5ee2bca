"""Moves that samplers are put together from: HMC on latents and hyperparameters, elliptical slices, scaled Metropolis."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.linalg import cholesky

from nestgp.linalg import FloatArray, NotPositiveDefiniteError
from nestgp.sampling.chain import ChainState, Problem
from nestgp.sampling.hmc import hmc_step
from nestgp.sampling.surrogate import Latents, Whitening

#: f (c, n) → log p(y | f) and its gradient (c, n).
LogLikelihood = Callable[[FloatArray], tuple[float, FloatArray]]
#: f (c, n), u (n,) or empty → log p(y | f, u) and its gradients; u ~ N(0, I).
NoisyLogLikelihood = Callable[[FloatArray, FloatArray], tuple[float, FloatArray, FloatArray]]

#: Most leapfrog steps of a trajectory in θ alone, and of one that moves latents.
HYPER_LEAPFROG, LATENT_LEAPFROG = 8, 40
#: Warm-up sweeps after which the metric of the hyperparameters is learnt.
METRIC_UPDATES = (50, 150, 400, 1000)
#: Draws that the metric's diagonal counts for, against the covariances seen.
METRIC_SHRINKAGE = 10
#: No coordinate of a draw of N(0, I) is ever this large: a trajectory beyond has left the world.
OUT_OF_THIS_WORLD = 1e3


def surrogate_hmc(
    problem: Problem,
    likelihood: NoisyLogLikelihood,
    u: FloatArray,
    state: ChainState,
    rng: np.random.Generator,
    adapt: bool,
    hyper: bool,
) -> None:
    """HMC on the whitened latents (z, ξ), the noise u, and if ``hyper`` on θ with them; see :mod:`nestgp.sampling.surrogate`.

    The trajectory is about a quarter turn of a standard normal's rotation, its length drawn anew so that no period is hit.
    """
    p = state.theta.size if hyper else 0
    shape, size = state.f.shape, state.f.size
    here, centre = state.whitening, state.theta
    last: dict[str, tuple[FloatArray, FloatArray, Latents, Whitening]] = {}

    def log_density(x: FloatArray) -> tuple[float, FloatArray]:
        white = x[p:]
        if not np.abs(white).max() < OUT_OF_THIS_WORLD:
            return -math.inf, x
        z, xi, noise = white[:size].reshape(shape), white[size : 2 * size].reshape(shape), white[2 * size :]
        theta = centre + state.metric @ x[:p] if hyper else centre
        log_prior, prior_slope = problem.log_prior(theta) if hyper else (0.0, centre)
        if not math.isfinite(log_prior):
            return -math.inf, x
        try:
            w = Whitening(state.surrogate, problem.factors(theta)) if hyper else here
        except NotPositiveDefiniteError:
            return -math.inf, x
        latents = w.latents(z, xi)
        log_p, slope, noise_slope = likelihood(latents.f, noise)
        log_t, site_slope = w.log_sites(latents.scaled)
        by_z, by_xi, h = w.pull_back(w.s * slope - site_slope)
        gradient = np.concatenate([by_z.ravel(), by_xi.ravel(), noise_slope]) - white
        if hyper:
            by_theta = prior_slope + w.hyper_gradient(z, h, latents, slope)
            gradient = np.concatenate([state.metric.T @ by_theta, gradient])
        last["point"] = (x, theta, latents, w)
        return log_prior + log_p - log_t + w.log_evidence - 0.5 * float(white @ white), gradient

    z, xi = here.coordinates(state.f, rng)
    start = np.concatenate([np.zeros(p), z.ravel(), xi.ravel(), u])
    step = state.hyper_step if hyper else state.latent_step
    n_steps = int(min(max(1, math.ceil(rng.uniform(0.5, 1.5) * 0.5 * math.pi / step.value)), LATENT_LEAPFROG))
    end, _, state.accepted = hmc_step(log_density, start, log_density(start), step.value, n_steps, rng)
    if end is not start:
        x, theta, latents, w = last["point"]  # the end of a trajectory is its last point
        assert x is end
        state.move_to(theta, latents.f, w)
    if adapt:
        step.update(state.accepted)
        if hyper:
            _learn_metric(state)


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
    _hyper_move(problem, state, state.v, True, rng, adapt)


def hyper_given_latents(problem: Problem, state: ChainState, rng: np.random.Generator, adapt: bool) -> None:
    """HMC on p(θ | f) = p(θ) Π_k N(f_k | 0, K), as in the paper."""
    _hyper_move(problem, state, state.f, False, rng, adapt)


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
    problem: Problem, state: ChainState, data: FloatArray, noisy: bool, rng: np.random.Generator, adapt: bool
) -> None:
    """HMC on θ given Gaussian ``data`` (c, n) with covariance K, or K + I if ``noisy``."""
    centre = state.theta

    def log_density(x: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = _gaussian(problem, centre + state.metric @ x, data, noisy)
        return value, state.metric.T @ gradient

    start = np.zeros(centre.size)
    n_steps = int(rng.integers(HYPER_LEAPFROG // 2, HYPER_LEAPFROG + 1))
    end, _, acceptance = hmc_step(log_density, start, log_density(start), state.hyper_step.value, n_steps, rng)
    if end is not start:
        state.theta = centre + state.metric @ end
        state.factors = problem.factors(state.theta)
    if adapt:
        state.hyper_step.update(acceptance)
        _learn_metric(state)


def _learn_metric(state: ChainState) -> None:
    """Covariance of the later half of the θ seen, shrunk to its diagonal; then the step size begins anew."""
    trace = state.hyper_trace
    trace.append(state.theta.copy())
    if len(trace) not in METRIC_UPDATES:
        return
    recent = np.array(trace[len(trace) // 2 :])
    covariance = np.cov(recent.T).reshape(state.theta.size, -1)
    weight = len(recent) / (len(recent) + METRIC_SHRINKAGE)
    diagonal = np.diag(np.clip(np.diag(covariance), 1e-4, 100.0))
    state.metric = cholesky(weight * covariance + (1.0 - weight) * diagonal, lower=True)
    state.hyper_step.restart(0.3)
