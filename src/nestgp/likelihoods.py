"""The two observation models: softmax (eq. 3) and multinomial probit (eq. 4), log likelihood and gradient at given latents."""

from __future__ import annotations

import numba
import numpy as np

from nestgp.arrays import FloatArray, IntArray
from nestgp.quadrature import probit_hessians, probit_slopes
from nestgp.tilted import log_ndtr_and_ratio


def softmax_log_probabilities(f: FloatArray) -> FloatArray:
    """log exp(f_k)/Σ_j exp(f_j), over the last axis."""
    shifted = f - f.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def probit_log_likelihood(f: FloatArray, y: IntArray) -> tuple[FloatArray, FloatArray]:
    """log p(y_i | f_i) = log E_u Π_{j≠y_i} Φ(u + f_y − f_j), (n,), and its gradient (n, c); f (n, c)."""
    log_p, slope = np.empty(y.size), np.empty(f.shape)
    probit_slopes(np.ascontiguousarray(f), y, log_p, slope)
    return log_p, slope


def probit_derivatives(f: FloatArray, y: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """log p(y_i | f_i) (n,), its gradient (n, c) and its negative Hessian (n, c, c); f (n, c)."""
    log_p = np.empty(y.size)
    slope, hessian = np.empty(f.shape), np.empty((*f.shape, f.shape[1]))
    probit_hessians(np.ascontiguousarray(f), y, log_p, slope, hessian)
    return log_p, slope, hessian


@numba.njit(cache=True, nogil=True)
def _probit_given_noise(f, u, y, slope, noise_slope):  # type: ignore[no-untyped-def]
    c, n = f.shape
    total = 0.0
    for i in range(n):
        k = y[i]
        noise_slope[i] = 0.0
        for j in range(c):
            if j != k:
                log_cdf, ratio, _ = log_ndtr_and_ratio(u[i] + f[k, i] - f[j, i])
                total += log_cdf
                slope[j, i] = -ratio
                noise_slope[i] += ratio
        slope[k, i] = noise_slope[i]
    return total


def probit_given_noise(f: FloatArray, u: FloatArray, y: IntArray) -> tuple[float, FloatArray, FloatArray]:
    """Σ_ij log Φ(u_i + f_y − f_j) over j ≠ y_i: the probit before u is integrated out, and its gradients; f (c, n), u (n,)."""
    slope, noise_slope = np.empty(f.shape), np.empty(u.shape)
    return _probit_given_noise(f, u, y, slope, noise_slope), slope, noise_slope
