"""One more point: the Laplace modes of n + 1 points from the solution for n, for many new points and all labels at once.

Newton's equations (K⁻¹ + W) df = ∇Ψ are solved by conjugate gradients, preconditioned by the posterior covariance Σ₀ of the n
point solution. Σ₀ is exact where W has not changed, so a handful of iterations do, each of c n² flops, done as matrix products
over all columns. Vectors are (c, n + 1, Q), the new point last, Q columns = new points × labels.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from nestgp.arrays import FloatArray, IntArray
from nestgp.inference.newton import newton_direction
from nestgp.inference.result import Fit
from nestgp.lapack import multiply
from nestgp.likelihoods import softmax_log_probabilities
from nestgp.linalg import DenseBlocks
from nestgp.sites import onehot

NEWTON_STEPS, CG_STEPS, CG_TOL = 30, 40, 1e-3


def bordered(K: FloatArray, k_star: FloatArray, prior_variance: FloatArray) -> FloatArray:
    """Kernel matrix of n + 1 points, (n + 1, n + 1) or (c, n + 1, n + 1), the new point last."""
    n = K.shape[-1]
    out = np.empty((*K.shape[:-2], n + 1, n + 1))
    out[..., :n, :n] = K
    out[..., :n, n] = k_star
    out[..., n, :n] = k_star
    out[..., n, n] = prior_variance
    return out


def extended_modes(
    fit: Fit, K: FloatArray, y: IntArray, n_classes: int, k_star: FloatArray, prior_variance: FloatArray, tol: float
) -> FloatArray:
    """b = K⁻¹f near the mode, (m, labels, c, n + 1), for each of m new points and each label of it.

    A column that has not come as near as ``tol`` posterior standard deviations is returned as far as it came.
    """
    n, c, m = y.size, n_classes, k_star.shape[-1]
    problem = _Columns(fit, K, np.repeat(k_star, c, axis=-1), np.repeat(prior_variance, c, axis=-1))
    targets = np.empty((c, n + 1, m * c))
    targets[:, :n] = onehot(y, c)[:, :, None]
    targets[:, n] = np.tile(np.eye(c), m)
    b = np.zeros_like(targets)
    b[:, :n] = fit.posterior.b[:, :, None]
    f = problem.kernel_times(b)
    for _ in range(NEWTON_STEPS):
        log_p = _log_softmax(f)
        p = np.exp(log_p)
        hessian_times = partial(_hessian_times, p)
        slope = targets - p - b
        df, db = newton_direction(slope, problem.precondition, hessian_times, CG_TOL, CG_STEPS)
        psi = np.sum(targets * log_p - 0.5 * b * f, axis=(0, 1))
        length = _lengths(targets, b, f, db, df, psi)
        b += length * db
        f += length * df
        if float(np.max(np.sum(df * slope, axis=(0, 1)))) <= tol**2:
            break
    return np.moveaxis(b.reshape(c, n + 1, m, c), (0, 1), (2, 3))


class _Columns:
    """K and Σ₀ of n + 1 points applied to many columns, each with its own new point."""

    def __init__(self, fit: Fit, K: FloatArray, k_star: FloatArray, prior_variance: FloatArray) -> None:
        self.base: DenseBlocks = fit.posterior.blocks  # type: ignore[assignment]
        self.K, self.k_star, self.k_ss = K, k_star, prior_variance

    def kernel_times(self, v: FloatArray) -> FloatArray:
        """K v, the border included."""
        n = self.base.n
        out = np.empty_like(v)
        for k in range(len(v)):
            multiply(self.base.class_kernel(k), v[k, :n], out[k, :n])
        out[:, :n] += self.k_star * v[:, n : n + 1]
        out[:, n] = np.sum(self.k_star * v[:, :n], axis=1) + self.k_ss * v[:, n]
        return out

    def precondition(self, r: FloatArray) -> tuple[FloatArray, FloatArray]:
        """z = Σ₀ r and K⁻¹z = r − W₀ z, W₀ that of the n point solution and zero at the new point."""
        n = self.base.n
        v = self.kernel_times(r)
        u = np.zeros_like(r)
        u[:, :n] = self.base.solve(v[:, :n])
        z = v - self.kernel_times(u)
        image = r.copy()
        image[:, :n] -= _hessian_times(self.base.pi[:, :, None], z[:, :n])
        return z, image


def _lengths(
    targets: FloatArray, b: FloatArray, f: FloatArray, db: FloatArray, df: FloatArray, psi: FloatArray
) -> FloatArray:
    """Step length of each column, halved until Ψ does not fall."""
    length = np.ones(psi.size)
    for _ in range(30):
        new_b, new_f = b + length * db, f + length * df
        worse = np.sum(targets * _log_softmax(new_f) - 0.5 * new_b * new_f, axis=(0, 1)) < psi - 1e-10 * np.abs(psi)
        if not worse.any():
            break
        length[worse] *= 0.5
    return length


def _log_softmax(f: FloatArray) -> FloatArray:
    return np.moveaxis(softmax_log_probabilities(np.moveaxis(f, 0, -1)), -1, 0)


def _hessian_times(p: FloatArray, v: FloatArray) -> FloatArray:
    """W v = p∘v − p (pᵀv), over the class axis."""
    weighted = p * v
    return weighted - p * weighted.sum(axis=0)
