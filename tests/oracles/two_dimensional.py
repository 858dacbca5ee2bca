"""Tilted moments of class-independent EP by two-dimensional quadrature over (f_y, u), as the paper describes it.

Given f_y and u the other latents are independent, each N(f_j | μ_j, σ_j²) Φ(u + f_y − f_j) with moments in closed
form; what is left is an integral over the plane, done by the trapezoidal rule on a grid about the mode.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_ndtr

from tests.oracles._types import Array


class IndependentMoments(NamedTuple):
    """log of the normaliser, mean (c,) and variance (c,) of Π_k N(f_k | μ_k, σ_k²) p(y | f)."""

    log_z: float
    mean: Array
    variance: Array


def tilted_moments_plane(mean: Array, variance: Array, y: int, reach: float = 9.0) -> IndependentMoments:
    """Exact moments for any number of classes; mean, variance (c,), every variance positive.

    The grid is over whitened (f_y, u): with a step of 0.4 over the root of the sharpest curvature possible, the
    rule for an entire integrand with Gaussian tails is exact to rounding.
    """
    others = np.delete(np.arange(len(mean)), y)
    sd_y, m, v = np.sqrt(variance[y]), mean[others], variance[others]

    def z_of(e: Array, u: Array) -> Array:
        return (mean[y] + sd_y * e + u)[..., None] / np.sqrt(1 + v) - m / np.sqrt(1 + v)

    def negative_log(x: Array) -> float:
        return float(0.5 * x @ x - log_ndtr(z_of(x[0], x[1])).sum())

    centre = minimize(negative_log, np.zeros(2), method="BFGS").x
    step = 0.4 / np.sqrt(1 + np.sum((1 + sd_y**2) / (1 + v)))
    axis = step * np.arange(-int(reach / step), int(reach / step) + 1)
    e, u = (a.ravel() for a in np.meshgrid(centre[0] + axis, centre[1] + axis, indexing="ij"))
    z = z_of(e, u)
    log_w = -0.5 * (e**2 + u**2) - np.log(2 * np.pi) + log_ndtr(z).sum(axis=1)
    top = log_w.max()
    w = np.exp(log_w - top)
    log_z = float(top + np.log(w.sum()) + 2 * np.log(step))
    w /= w.sum()

    out_mean, out_variance = np.empty(len(mean)), np.empty(len(mean))
    e_mean = w @ e
    out_mean[y] = mean[y] + sd_y * e_mean
    out_variance[y] = sd_y**2 * (w @ (e - e_mean) ** 2)
    ratio = np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z))
    # Mean and variance of N(f_j | μ_j, σ_j²) Φ(u + f_y − f_j); then the law of total variance.
    each_mean = m - v / np.sqrt(1 + v) * ratio
    each_variance = v - v**2 / (1 + v) * ratio * (z + ratio)
    out_mean[others] = w @ each_mean
    out_variance[others] = w @ each_variance + w @ (each_mean - w @ each_mean) ** 2
    return IndependentMoments(log_z, out_mean, out_variance)
