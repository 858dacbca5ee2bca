"""The two observation models: softmax (eq. 3) and multinomial probit (eq. 4), log likelihood and gradient at given latents."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from nestgp.linalg import FloatArray, IntArray
from nestgp.quadrature import probit_integrals


def softmax_log_probabilities(f: FloatArray) -> FloatArray:
    """log exp(f_k)/Σ_j exp(f_j), over the last axis."""
    return f - logsumexp(f, axis=-1, keepdims=True)


def probit_log_likelihood(f: FloatArray, y: IntArray) -> tuple[FloatArray, FloatArray]:
    """log p(y_i | f_i) = log E_u Π_{j≠y_i} Φ(u + f_y − f_j), (n,), and its gradient (n, c); f (n, c)."""
    log_p = np.empty(y.size)
    slope, curvature = np.empty(f.shape), np.empty(f.shape)
    probit_integrals(np.ascontiguousarray(f), np.zeros(f.shape), y, log_p, slope, curvature)
    return log_p, slope
