"""From EP's posterior of the latents to the exact one, at one θ: an unbiased estimate of the evidence, and draws.

A population of x (:mod:`nestgp.sampling.differences`) goes from the Gaussian of EP's sites to the exact posterior,

    p_s(x) ∝ N(x) [Π_ij Φ(g_ij)/t_ij(g_ij)]^s,    0 = s_0 < s_1 < … < s_T = 1,

weighted, resampled and moved by HMC at every stage (Neal 2001; Del Moral, Doucet and Jasra 2006). Z_q times the mean weights has
the expectation p(y | θ), however few the particles, and a particle taken by its weight can stand for a draw of the posterior in
a chain that accepts it by that estimate (Andrieu, Doucet and Holenstein 2010). Cost: up to n² (c − 1)² for every step of every
particle.

Particles are columns: products with C are then half as fast again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from nestgp.arrays import FloatArray, IntArray
from nestgp.sampling.differences import Differences

#: Stages are at s_t = (t/T)^POWER: the first factors change the most.
POWER = 2.0
#: Longest step of HMC, as an angle of the Gaussian's rotation.
LONGEST_STEP = 0.5
#: Length of a trajectory in the same unit; a quarter turn would be independent of its start if the ratio were flat.
TRAJECTORY = 1.0
#: Most steps of one, whatever the variance of g.
MOST_STEPS = 200
#: Resampled when the effective share of the particles falls below this.
RESAMPLE_BELOW = 0.5


class Population(NamedTuple):
    """x (D, q), shares (q,) that sum to one, the log of an unbiased estimate of p(y | θ), and the acceptance of the last move."""

    x: FloatArray
    share: FloatArray
    log_evidence: float
    accepted: float


class Stage(NamedTuple):
    """Power s of the ratio, step of HMC and number of steps, the same for all particles."""

    s: float
    step: float
    n_steps: int


class Way(NamedTuple):
    """One particle at the start and after every stage: x (D,), log Π Φ/t and its slope (a,) there."""

    x: list[FloatArray]
    value: list[float]
    slope: list[Any]


def anneal(
    g: Differences, n_particles: int, n_stages: int, step: float, rng: np.random.Generator, through: FloatArray | None = None
) -> Population:
    """Particles of the exact posterior, from those of the sites.

    step : of HMC at s = 1 in units of 1/√λ, λ the stiffness; at others it is step/√(s λ), for the ratio is as much flatter.
    through : one of x (D,), drawn from the exact posterior, that the population is to end with: it is led back through the
        stages, whose moves are reversible, and the others are drawn around its way (conditional SMC, Andrieu et al. 2010). The
        law of all is then that of a population weighted by its own estimate, which is what a chain that accepts by it has.
    """
    stages = [_stage(s, g.stiffness, step, rng) for s in (np.arange(1, n_stages + 1) / n_stages) ** POWER]
    x = rng.standard_normal((g.mean.size, n_particles))
    held, way = None, None
    if through is not None:
        held, way = 0, _way_to(g, through, stages, rng)
        x[:, 0] = way.x[0]
    at = g.log_ratio(x), g.slope(x)
    log_w, log_z, before, accepted = np.zeros(n_particles), g.log_mass, 0.0, 1.0
    for t, stage in enumerate(stages):
        log_w = log_w + (stage.s - before) * at[0]
        before = stage.s
        mean, share = _mean_and_shares(log_w)
        if 1.0 / float(share @ share) < RESAMPLE_BELOW * n_particles:
            log_z, log_w = log_z + mean, np.zeros(n_particles)
            kept, held = systematic(share, rng, held)
            x, at = x[:, kept], (at[0][kept], at[1][:, kept])
        x, at, accepted = _move(g, x, at, stage, rng)
        if way is not None and held is not None:
            x[:, held], at[0][held], at[1][:, held] = way.x[t + 1], way.value[t + 1], way.slope[t + 1]
    mean, share = _mean_and_shares(log_w)
    return Population(x, share, log_z + mean, accepted)


def _stage(s: float, stiffness: float, step: float, rng: np.random.Generator) -> Stage:
    step = min(LONGEST_STEP, step / math.sqrt(s * stiffness))
    n_steps = min(max(1, round(TRAJECTORY / step)), MOST_STEPS)
    return Stage(float(s), step * rng.uniform(0.8, 1.2), n_steps)


def _way_to(g: Differences, end: FloatArray, stages: Sequence[Stage], rng: np.random.Generator) -> Way:
    """A way through the stages that ends there, from its end on: every move is its own reversal."""
    x = end[:, None]
    at = g.log_ratio(x), g.slope(x)
    way = Way([end], [at[0][0]], [at[1][:, 0]])
    for stage in reversed(stages):
        x, at, _ = _move(g, x, at, stage, rng)
        way.x.append(x[:, 0])
        way.value.append(at[0][0])
        way.slope.append(at[1][:, 0])
    return Way(way.x[::-1], way.value[::-1], way.slope[::-1])


def _move(
    g: Differences, x: FloatArray, at: tuple[FloatArray, Any], stage: Stage, rng: np.random.Generator
) -> tuple[FloatArray, tuple[FloatArray, Any], float]:
    """One trajectory of HMC on N(x) ratio^s for every particle, the Gaussian part an exact rotation; and its acceptance."""
    s, step, n_steps = stage
    p = rng.standard_normal(x.shape)
    energy = _energy(x, p, at[0], s)
    q, slope = x.copy(), at[1]
    p[: len(slope)] += (0.5 * step * s) * slope
    with np.errstate(over="ignore", invalid="ignore"):  # a trajectory that leaves the world is not accepted
        for i in range(n_steps):
            _rotate(q, p, math.cos(step), math.sin(step))
            slope = g.slope(q)
            p[: len(slope)] += ((1.0 if i < n_steps - 1 else 0.5) * step * s) * slope
        value = g.log_ratio(q)
        gain = energy - _energy(q, p, value, s)
    acceptance = np.exp(np.minimum(np.where(np.isnan(gain), -np.inf, gain), 0.0))
    accepted = rng.random(value.size) < acceptance
    x = np.where(accepted, q, x)
    at = np.where(accepted, value, at[0]), np.where(accepted, slope, at[1])
    return x, at, float(acceptance.mean())


def _energy(x: FloatArray, p: FloatArray, value: FloatArray, s: float) -> FloatArray:
    return 0.5 * (np.einsum("dq,dq->q", x, x) + np.einsum("dq,dq->q", p, p)) - s * value


def _mean_and_shares(log_w: FloatArray) -> tuple[float, FloatArray]:
    """log of the mean weight, and weights that sum to one."""
    top = float(log_w.max())
    w = np.exp(log_w - top)
    return top + math.log(float(w.mean())), w / w.sum()


def systematic(share: FloatArray, rng: np.random.Generator, held: int | None = None) -> tuple[IntArray, int | None]:
    """As many indices as shares, each about in proportion to its share, in any order: one uniform for all (Kitagawa 1996).

    held : one that is sure to be among them; and at which place it then is. The uniform is as likely as the number of places
    that it gives to that one (Chopin and Singh 2015), which a point drawn anywhere in its share makes it.
    """
    q, total = share.size, np.cumsum(share)
    point = rng.random() / q if held is None else total[held] - share[held] * rng.random()
    kept = np.minimum(np.searchsorted(total, (np.arange(q) + q * point % 1.0) / q), q - 1)
    order = rng.permutation(q)
    if held is None:
        return kept[order], None
    place = min(int(q * point), q - 1)
    kept[place] = held  # as it is but for rounding
    return kept[order], int(np.flatnonzero(order == place)[0])


@numba.njit(cache=True, nogil=True)
def _rotate(x, p, cos, sin):  # type: ignore[no-untyped-def]
    """x, p ← x cos + p sin, p cos − x sin, in place; (D, q)."""
    for d in range(x.shape[0]):
        for q in range(x.shape[1]):
            x[d, q], p[d, q] = cos * x[d, q] + sin * p[d, q], cos * p[d, q] - sin * x[d, q]
