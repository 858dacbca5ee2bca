"""A stand-in for log Z(θ) that costs microseconds: a Gaussian process through its values and gradients at some θ.

Coordinate by coordinate u = −log(1 + exp(c − θ))/ℓ: below c it follows θ, above it levels off, as the evidence does where a
lengthscale is so long that its column no longer matters. With q = ½ |u − u′|² and the covariance function σ² k(q), k = 1/(1 + q)
(rational quadratic), values and gradients of the process have the covariances

    cov(f, f′) = σ² k,    cov(f, ∂f′) = σ² k₁ (u − u′),    cov(∂f, ∂f′) = σ² (k₁ I − k₂ (u − u′)(u − u′)ᵀ),

k₁ = −dk/dq = 1/(1 + q)², k₂ = d²k/dq² = 2/(1 + q)³. EP gives all p slopes of the evidence for a sixth of its time, so m runs of
it are m (p + 1) observations. A slope by θ is one by u times u′ = 1/(1 + exp(θ − c))/ℓ, so that where u has levelled off it tells
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numba
import numpy as np
from scipy.linalg import cho_solve
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from scipy.special import expit

from nestgp.arrays import FloatArray
from nestgp.lapack import NotPositiveDefiniteError, cholesky_in_place, inverse_from_cholesky_in_place
from nestgp.symmetric import mirror

#: Standard deviation of what EP at its tolerance leaves uncertain of a value and of a slope.
NOISE = 0.05
#: How far below the largest value any other is told from another: this, and so much more for every dimension.
DEPTH, DEPTH_EACH = 40.0, 2.0
#: How far below it a value may be for errors there to matter, likewise.
MATTERS, MATTERS_EACH = 10.0, 1.0
#: Points that ℓ and σ are fitted to, and most iterations of that, at first and when they were fitted before.
FITTED_POINTS, FIT_ITERATIONS, MORE_ITERATIONS = 40, 100, 10
#: Nearest neighbours of so many of the points are within the distance that is trusted; beyond it s falls by FALL σ r².
TRUSTED, FALL = 0.9, 1.0
#: How much larger than all that was seen it may be anywhere.
ABOVE = 1.0
#: Limits of ℓ, in standard deviations of the points, of σ, and of c, in standard deviations from the mean of the points.
SCALE_LIMITS, SIZE_LIMITS, BEND_LIMITS = (0.3, 100.0), (1.0, 1e3), (-2.0, 6.0)
#: Smallest u′ that is told from zero.
LEVEL = 1e-6
#: Those that a smooth function of noisy values is looked for in: its size, the standard deviation of the noise.
SMOOTH_SIZES, NOISES = np.geomspace(0.1, 3.2, 6), np.geomspace(0.1, 3.2, 11)


class Shape(NamedTuple):
    """What a process is like before anything is seen of it: ℓ (p,), c (p,), σ."""

    scale: FloatArray
    bend: FloatArray
    size: float

    def coordinates(self, theta: FloatArray) -> FloatArray:
        """u of θ (…, p)."""
        return -np.logaddexp(0.0, self.bend - theta) / self.scale

    def stretch(self, theta: FloatArray) -> FloatArray:
        """u′, by which a slope by u is multiplied to be one by θ."""
        return expit(self.bend - theta) / self.scale

    def vector(self) -> FloatArray:
        """log ℓ, c, log σ."""
        return np.concatenate([np.log(self.scale), self.bend, [np.log(self.size)]])

    @classmethod
    def from_vector(cls, x: FloatArray) -> Shape:
        p = x.size // 2
        return cls(np.exp(x[:p]), x[p:-1], float(np.exp(x[-1])))


@dataclass(frozen=True)
class Emulator:
    """Mean of the process given what was seen: s(θ) = level + Σ_i a_i k(q_i) + k₁(q_i) (u − u_i)ᵀ b_i.

    It may promise hills where nobody has been: no more than ``most`` is believed, and less beyond ``trusted`` from every point.
    points (m, p) : u_i; weights (m, 1 + p) : a_i, b_i.
    """

    points: FloatArray
    weights: FloatArray
    shape: Shape
    level: float
    most: float = np.inf
    trusted: float = np.inf

    @classmethod
    def through(cls, theta: FloatArray, value: FloatArray, slope: FloatArray, before: Emulator | None = None) -> Emulator:
        """Given values (m,) and slopes (m, p) at θ (m, p); ``before``: whose shape to begin with."""
        value, slope = _not_too_low(value, slope)
        level = float(value.mean())
        centre, spread = theta.mean(axis=0), np.maximum(theta.std(axis=0), 0.1)
        ends = zip(SCALE_LIMITS, BEND_LIMITS, SIZE_LIMITS, strict=True)
        limits = [Shape(scale * spread, centre + bend * spread, size).vector() for scale, bend, size in ends]
        start = Shape(2.0 * spread, centre + spread, 10.0) if before is None else before.shape
        some = np.unique(np.linspace(0, len(theta) - 1, FITTED_POINTS).round().astype(int))
        observed = theta[some], value[some] - level, slope[some]
        most = FIT_ITERATIONS if before is None else MORE_ITERATIONS
        how: Any = {"jac": True, "method": "L-BFGS-B", "bounds": np.transpose(limits), "options": {"maxiter": most}}
        found = minimize(_minus_log_likelihood, np.clip(start.vector(), *limits), observed, **how)
        return cls.given(theta, value, slope, Shape.from_vector(found.x))

    @classmethod
    def given(cls, theta: FloatArray, value: FloatArray, slope: FloatArray, shape: Shape) -> Emulator:
        """The same with a known shape."""
        value, slope = _not_too_low(value, slope)
        level = float(value.mean())
        weights = _Observed.of(shape, theta, value - level, slope).solved().reshape(len(theta), -1)
        points = shape.coordinates(theta)
        away = cdist(points, points) + np.diag(np.full(len(points), np.inf))
        trusted = float(np.quantile(away.min(axis=1), TRUSTED, method="lower"))
        return cls(points, shape.size**2 * weights, shape, level, float(value.max()) + ABOVE, trusted)

    def bold(self) -> Emulator:
        """The same without limits: it believes in hills where nobody has been, and who follows it finds out."""
        return replace(self, most=np.inf, trusted=np.inf)

    def smoother(self, theta: FloatArray, value: FloatArray) -> Emulator:
        """A process with the same ℓ and c through noisy values (m,) at θ (m, p) without slopes, σ and noise those most likely."""
        points, level = self.shape.coordinates(theta), float(value.mean())
        w, V = np.linalg.eigh(1.0 / (1.0 + 0.5 * cdist(points, points, "sqeuclidean")))
        y = V.T @ (value - level)
        variance = SMOOTH_SIZES[:, None, None] ** 2 * w + NOISES[:, None] ** 2  # (sizes, noises, m)
        i, j = np.unravel_index(np.argmin((y**2 / variance + np.log(variance)).sum(axis=2)), variance.shape[:2])
        size = float(SMOOTH_SIZES[i])
        a = size**2 * (V @ (y / variance[i, j]))
        return Emulator(points, np.column_stack([a, np.zeros_like(points)]), self.shape._replace(size=size), level)

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """s(θ) and its gradient (p,)."""
        limits = self.most - self.level, self.trusted, FALL * self.shape.size
        value, slope = _predict(self.shape.coordinates(theta), self.points, self.weights, *limits)
        return self.level + value, slope * self.shape.stretch(theta)

    def wrong(self, theta: FloatArray, value: FloatArray) -> FloatArray:
        """How wrong it is at θ (m, p), where values (m,) were seen; not where both are so low that nobody would go there."""
        found = np.array([self(at)[0] for at in theta])
        floor = value.max() - matters(theta.shape[1])
        return np.abs(np.maximum(found, floor) - np.maximum(value, floor))

    def nearest(self, theta: FloatArray) -> tuple[int, float]:
        """Which of the points is nearest to θ, and how far it is."""
        away = self.points - self.shape.coordinates(theta)
        squared = np.einsum("mp,mp->m", away, away)
        i = int(np.argmin(squared))
        return i, float(np.sqrt(squared[i]))


def matters(p: int) -> float:
    """How far below the largest value others of p dimensions matter."""
    return MATTERS + MATTERS_EACH * p


def _not_too_low(value: FloatArray, slope: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Values far below the largest are all the same, and flat."""
    floor = value.max() - DEPTH - DEPTH_EACH * slope.shape[1]
    return np.maximum(value, floor), np.where((value < floor)[:, None], 0.0, slope)


class _Observed(NamedTuple):
    """Values and slopes by u under a shape: L, L Lᵀ their covariance; themselves and their noise, both (m, 1 + p)."""

    root: FloatArray
    seen: FloatArray
    noise: FloatArray

    @classmethod
    def of(cls, shape: Shape, theta: FloatArray, value: FloatArray, slope: FloatArray) -> _Observed:
        A = _covariance(shape.coordinates(theta))
        A *= shape.size**2
        by_u = np.column_stack([np.ones(len(theta)), 1.0 / np.maximum(shape.stretch(theta), LEVEL)])
        noise = NOISE * by_u
        A[np.diag_indices(len(A))] += noise.ravel() ** 2
        cholesky_in_place(A)
        return cls(A, np.column_stack([value, slope]) * by_u, noise)

    def solved(self) -> FloatArray:
        """Their covariance's inverse times the observations, (m (1 + p),)."""
        return np.asarray(cho_solve((self.root, True), self.seen.ravel(), check_finite=False))


def _minus_log_likelihood(x: FloatArray, theta: FloatArray, value: FloatArray, slope: FloatArray) -> tuple[float, FloatArray]:
    """−log p(values, slopes | shape), up to a constant, and its gradient by x: slopes are by θ, whose density has a factor 1/u′
    for each. With A the covariance of the observations z by u, and α = A⁻¹ z, it changes by ½ (A⁻¹ − α αᵀ) with A, by α with z.
    """
    shape = Shape.from_vector(x)
    m, p = theta.shape
    try:
        observed = _Observed.of(shape, theta, value, slope)
    except NotPositiveDefiniteError:
        return 1e12, np.zeros_like(x)
    root, seen, noise = observed
    alpha = observed.solved()
    u, stretch = shape.coordinates(theta), shape.stretch(theta)
    minus_log_p = 0.5 * float(seen.ravel() @ alpha) + float(np.log(np.diagonal(root)).sum())
    minus_log_p += float(np.log(np.maximum(stretch, LEVEL)).sum())
    inverse_from_cholesky_in_place(root)
    mirror(root)
    by_A = 0.5 * (root - np.outer(alpha, alpha))
    by_noise = 2.0 * np.diagonal(by_A).reshape(m, 1 + p) * noise**2  # by its logarithm
    by_z = alpha.reshape(m, 1 + p) * seen  # by that of z
    by_u, by_k = _covariance_slopes(u, by_A)
    by_log_stretch = np.where(stretch > LEVEL, 1.0 - by_z[:, 1:] - by_noise[:, 1:], 0.0)
    by_u *= shape.size**2
    by_scale = -(by_u * u).sum(axis=0) - by_log_stretch.sum(axis=0)
    by_bend = (by_log_stretch * (1.0 - stretch * shape.scale) - by_u * stretch).sum(axis=0)
    return minus_log_p, np.concatenate([by_scale, by_bend, [2.0 * shape.size**2 * by_k]])


@numba.njit(cache=True, nogil=True)
def _covariance(u):  # type: ignore[no-untyped-def]
    """Of values and slopes of all points together, point by point, (m (1 + p), m (1 + p)), σ = 1; u (m, p)."""
    m, p = u.shape
    A = np.empty((m * (p + 1), m * (p + 1)))
    for i in range(m):
        for j in range(i + 1):
            q = 0.0
            for d in range(p):
                q += 0.5 * (u[i, d] - u[j, d]) ** 2
            k = 1.0 / (1.0 + q)
            k1, k2 = k * k, 2.0 * k * k * k
            row, column = i * (p + 1), j * (p + 1)
            A[row, column] = k
            for d in range(p):
                away = u[i, d] - u[j, d]
                A[row, column + 1 + d] = k1 * away
                A[row + 1 + d, column] = -k1 * away
                for e in range(p):
                    A[row + 1 + d, column + 1 + e] = -k2 * away * (u[i, e] - u[j, e])
                A[row + 1 + d, column + 1 + d] += k1
            for d in range(p + 1):
                for e in range(p + 1):
                    A[column + e, row + d] = A[row + d, column + e]
    return A


@numba.njit(cache=True, nogil=True)
def _covariance_slopes(u, weights):  # type: ignore[no-untyped-def]
    """Gradient by u (m, p) of Σ weights ∘ covariance, and that sum."""
    m, p = u.shape
    slopes, total = np.zeros((m, p)), 0.0
    away, turned = np.empty(p), np.empty(p)
    for i in range(m):
        for j in range(m):
            q, along, trace, across = 0.0, 0.0, 0.0, 0.0
            row, column = i * (p + 1), j * (p + 1)
            for d in range(p):
                away[d] = u[i, d] - u[j, d]
                q += 0.5 * away[d] ** 2
                along += (weights[row, column + 1 + d] - weights[row + 1 + d, column]) * away[d]
                trace += weights[row + 1 + d, column + 1 + d]
            for d in range(p):
                turned[d] = 0.0
                for e in range(p):
                    turned[d] += (weights[row + 1 + d, column + 1 + e] + weights[row + 1 + e, column + 1 + d]) * away[e]
                across += 0.5 * turned[d] * away[d]
            k = 1.0 / (1.0 + q)
            k1, k2, k3 = k * k, 2.0 * k * k * k, 6.0 * k * k * k * k
            total += weights[row, column] * k + (along + trace) * k1 - across * k2
            outward = across * k3 - (along + trace) * k2 - weights[row, column] * k1
            for d in range(p):
                slope = (weights[row, column + 1 + d] - weights[row + 1 + d, column]) * k1 - turned[d] * k2 + outward * away[d]
                slopes[i, d] += slope
                slopes[j, d] -= slope
    return slopes, total


@numba.njit(cache=True, nogil=True)
def _predict(u, points, weights, most, trusted, fall):  # type: ignore[no-untyped-def]
    """min(most, Σ_i a_i k(q_i) + k₁(q_i) (u − u_i)ᵀ b_i) − fall max(0, r² − trusted²), r = min |u − u_i|, and its gradient."""
    m, p = points.shape
    value, slope = 0.0, np.zeros(p)
    nearest, least = 0, np.inf
    for i in range(m):
        q, along = 0.0, 0.0
        for d in range(p):
            away = u[d] - points[i, d]
            q += 0.5 * away * away
            along += away * weights[i, 1 + d]
        k = 1.0 / (1.0 + q)
        k1, k2 = k * k, 2.0 * k * k * k
        value += weights[i, 0] * k + along * k1
        outward = weights[i, 0] * k1 + along * k2
        for d in range(p):
            slope[d] += k1 * weights[i, 1 + d] - outward * (u[d] - points[i, d])
        if q < least:
            nearest, least = i, q
    if value > most:
        value, slope = most, np.zeros(p)
    if 2.0 * least > trusted * trusted:
        value -= fall * (2.0 * least - trusted * trusted)
        for d in range(p):
            slope[d] -= 2.0 * fall * (u[d] - points[nearest, d])
    return value, slope
