"""The two observation models: softmax (eq. 3) and multinomial probit (eq. 4), log likelihood and gradient at given latents."""

from __future__ import annotations

import numpy as np

from nestgp.linalg import FloatArray, IntArray
from nestgp.quadrature import probit_hessians, probit_integrals


def softmax_log_probabilities(f: FloatArray) -> FloatArray:
    """log exp(f_k)/Σ_j exp(f_j), over the last axis."""
    shifted = f - f.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def probit_log_likelihood(f: FloatArray, y: IntArray) -> tuple[FloatArray, FloatArray]:
    """log p(y_i | f_i) = log E_u Π_{j≠y_i} Φ(u + f_y − f_j), (n,), and its gradient (n, c); f (n, c)."""
    log_p = np.empty(y.size)
    slope, curvature = np.empty(f.shape), np.empty(f.shape)
    probit_integrals(np.ascontiguousarray(f), np.zeros(f.shape), y, log_p, slope, curvature)
    return log_p, slope


def probit_derivatives(f: FloatArray, y: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """log p(y_i | f_i) (n,), its gradient (n, c) and its negative Hessian (n, c, c); f (n, c)."""
    log_p = np.empty(y.size)
    slope, hessian = np.empty(f.shape), np.empty((*f.shape, f.shape[1]))
    probit_hessians(np.ascontiguousarray(f), y, log_p, slope, hessian)
    return log_p, slope, hessian
