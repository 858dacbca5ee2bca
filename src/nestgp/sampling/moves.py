"""Moves that samplers are put together from: HMC on latents and hyperparameters, elliptical slices, scaled Metropolis."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import cholesky

from nestgp.arrays import FloatArray
from nestgp.inference.result import Fit, Status
from nestgp.lapack import NotPositiveDefiniteError
from nestgp.sampling.chain import METRIC_UPDATES, TUNING, ChainState, Problem
from nestgp.sampling.factors import Factors
from nestgp.sampling.hmc import LogDensity, StepSize, hmc_step
from nestgp.sampling.surrogate import Latents, Surrogate, Whitening

#: f (c, n) → log p(y | f) and its gradient (c, n).
LogLikelihood = Callable[[FloatArray], tuple[float, FloatArray]]
#: f (c, n), u (n,) or empty → log p(y | f, u) and its gradients; u ~ N(0, I).
NoisyLogLikelihood = Callable[[FloatArray, FloatArray], tuple[float, FloatArray, FloatArray]]

#: Most leapfrog steps of a trajectory in θ, and of one in the latents.
HYPER_LEAPFROG, LATENT_LEAPFROG = 16, 40
#: Draws that the metric's diagonal counts for, against the covariances seen.
METRIC_SHRINKAGE = 10
#: No coordinate of a draw of N(0, I) is ever this large: a trajectory beyond has left the world.
OUT_OF_THIS_WORLD = 1e3


def latent_hmc(
    likelihood: NoisyLogLikelihood, u: FloatArray, state: ChainState, rng: np.random.Generator, adapt: bool
) -> FloatArray:
    """HMC on the whitened latents (z, ξ) of :mod:`nestgp.sampling.surrogate` and the noise u; returns the new u."""
    w = state.whitening
    shape, size = state.f.shape, state.f.size

    def latents(x: FloatArray) -> Latents:
        return w.latents(x[:size].reshape(shape), x[size : 2 * size].reshape(shape))

    def log_density(x: FloatArray) -> tuple[float, FloatArray]:
        if not np.abs(x).max() < OUT_OF_THIS_WORLD:
            return -math.inf, x
        at = latents(x)
        log_p, slope, noise_slope = likelihood(at.f, x[2 * size :])
        log_t, site_slope = w.log_sites(at.scaled)
        by_z, by_xi, _ = w.pull_back(w.s * slope - site_slope)
        gradient = np.concatenate([by_z.ravel(), by_xi.ravel(), noise_slope]) - x
        return log_p - log_t - 0.5 * float(x @ x), gradient

    z, xi = w.coordinates(state.f, rng)
    start = np.concatenate([z.ravel(), xi.ravel(), u])
    step = state.latent_step
    n_steps = quarter_turn(step.value, LATENT_LEAPFROG, rng)
    end, _, state.accepted = hmc_step(log_density, start, log_density(start), step.value, n_steps, rng)
    if end is not start:
        state.f = latents(end).f
    if adapt:
        step.update(state.accepted)
    return end[2 * size :]


def hyper_given_whitened(
    problem: Problem, likelihood: LogLikelihood, state: ChainState, rng: np.random.Generator, adapt: bool
) -> None:
    """HMC on θ with the whitened latents (z, ξ) held fixed: f moves along, under the surrogate's evidence."""
    z, xi = state.whitening.coordinates(state.f, rng)
    seen: list[tuple[FloatArray, Latents, Whitening]] = []

    def log_density(theta: FloatArray) -> tuple[float, FloatArray]:
        log_prior, prior_slope = problem.log_prior(theta)
        if not math.isfinite(log_prior):
            return -math.inf, theta
        try:
            here = np.array_equal(theta, state.theta)  # as at the beginning of a trajectory
            w = state.whitening if here else Whitening(state.surrogate.at(theta), problem.factors(theta))
        except NotPositiveDefiniteError:
            return -math.inf, theta
        at = w.latents(z, xi)
        log_p, slope = likelihood(at.f)
        log_t, site_slope = w.log_sites(at.scaled)
        h = w.pull_back(w.s * slope - site_slope)[2]
        seen[:] = [(theta, at, w)]  # the end of a trajectory is its last point
        return log_prior + log_p - log_t + w.log_evidence, prior_slope + w.hyper_gradient(z, xi, h, at, slope)

    if _hyper_trajectory(state, state.whitened_step, log_density, rng, adapt):
        theta, at, w = seen[0]
        state.move_to(theta, at.f, w)


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
    gain = likelihood(proposal)[0] - likelihood(state.f)[0]
    acceptance = math.exp(min(0.0, gain)) if not math.isnan(gain) else 0.0
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
    last = [state.theta]

    def log_density(theta: FloatArray) -> tuple[float, FloatArray]:
        last[0] = theta
        return _gaussian(problem, theta, data, noisy)

    if _hyper_trajectory(state, state.hyper_step, log_density, rng, adapt):
        state.theta = last[0]
        state.factors = problem.factors(last[0])


def _hyper_trajectory(
    state: ChainState, step: StepSize, log_density: LogDensity, rng: np.random.Generator, adapt: bool
) -> bool:
    """One trajectory in θ, in units of the metric; True if it was accepted, at the point that was evaluated last."""
    centre = state.theta

    def in_metric(x: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = log_density(centre + state.metric @ x)
        return value, state.metric.T @ gradient

    start = np.zeros(centre.size)
    n_steps = quarter_turn(step.value, HYPER_LEAPFROG, rng)
    end, _, acceptance = hmc_step(in_metric, start, in_metric(start), step.value, n_steps, rng)
    if adapt:
        step.update(acceptance)
    return end is not start


def quarter_turn(step: float, most: int, rng: np.random.Generator) -> int:
    """Steps for about a quarter turn of a standard normal's rotation, drawn anew each time so that no period is hit."""
    return int(min(max(1, math.ceil(rng.uniform(0.5, 1.5) * 0.5 * math.pi / step)), most))


def learn_metric(problem: Problem, inference: Any, state: ChainState) -> None:
    """Call once a sweep of the warm-up; now and then it learns from the later half of the θ seen.

    The metric becomes their spread, the surrogate the sites of ``inference`` around their mean, and the step sizes begin anew.
    """
    trace = state.hyper_trace
    trace.append(state.theta.copy())
    if len(trace) not in METRIC_UPDATES or state.warmup_left < TUNING:
        return
    recent = np.array(trace[len(trace) // 2 :])
    state.metric = learnt_metric(recent)
    state.whitened_step.restart(0.3)
    state.hyper_step.restart(0.3)
    surrogate, fit = surrogate_around(problem, inference, recent.mean(axis=0), state.metric)
    if fit.status is Status.CONVERGED:
        state.use(surrogate)
        state.latent_step.restart(state.latent_step.value)


def learnt_metric(recent: FloatArray) -> FloatArray:
    """Lower triangular C with C Cᵀ the covariance of some θ (m, p), shrunk to its diagonal."""
    covariance = np.cov(recent.T).reshape(recent.shape[1], -1)
    weight = len(recent) / (len(recent) + METRIC_SHRINKAGE)
    diagonal = np.diag(np.clip(np.diag(covariance), 1e-4, 100.0))
    return np.asarray(cholesky(weight * covariance + (1.0 - weight) * diagonal, lower=True))


def surrogate_around(problem: Problem, inference: Any, theta: FloatArray, metric: FloatArray) -> tuple[Surrogate, Fit]:
    """Sites of ``inference`` at θ and, where θ is sampled, their slopes along the columns of the metric; and the fit at θ."""
    middle: Fit | None = None

    def fit_at(theta: FloatArray) -> tuple[Fit, Factors]:
        factors = problem.factors(theta)
        return inference.infer(factors.shared_or_stack, problem.y, problem.n_classes, init=middle), factors

    def sites_at(theta: FloatArray) -> Surrogate | None:
        with np.errstate(all="ignore"):
            fit, factors = fit_at(theta)
        return Surrogate.of(fit, factors) if fit.converged else None

    fit, factors = fit_at(theta)
    surrogate, middle = Surrogate.of(fit, factors), fit.without_factor()
    return surrogate if problem.prior is None else surrogate.along(theta, metric, sites_at), fit
