"""Inner-EP sites (α̃, β̃) → what the posterior needs: π, ν̃, site means (eqs. 16 and 19)."""

from __future__ import annotations

import numpy as np

from nestgp.arrays import FloatArray, IntArray

#: Smallest site precision kept: an α̃ of zero would divide by zero, this one changes no posterior in double precision.
PI_FLOOR = 1e-20


def onehot(y: IntArray, n_classes: int) -> FloatArray:
    """(c, n) array with 1 at the observed class."""
    out = np.zeros((n_classes, y.size))
    out[y, np.arange(y.size)] = 1.0
    return out


def site_weights(alpha: FloatArray, y: IntArray) -> FloatArray:
    """π = α̃ + onehot(y), floored (c, n); the site precision is Π_i = diag(π_i) − π_i π_iᵀ/1ᵀπ_i (eq. 16)."""
    pi = np.maximum(alpha, PI_FLOOR)
    pi[y, np.arange(y.size)] = 1.0
    return pi


def site_means(beta: FloatArray, pi: FloatArray) -> FloatArray:
    """Means −β̃/π (c, n), zero at the observed class: the sites' locations up to a shift common to all classes."""
    return -beta / pi


def site_locations(beta: FloatArray, pi: FloatArray) -> FloatArray:
    """ν̃ = a π − β̃ with a = 1ᵀβ̃/1ᵀπ (eq. 19), (c, n); columns sum to zero."""
    return beta.sum(axis=0) / pi.sum(axis=0) * pi - beta


def site_precision(pi: FloatArray) -> FloatArray:
    """Precision of each site, Π_i = diag(π_i) − π_i π_iᵀ/1ᵀπ_i (eq. 16), (n, c, c).

    Singular by design: Π_i 1 = 0.

    Parameters
    ----------
    pi : (c, n) array, 1 at the observed class.
    """
    p = pi.T
    out = -p[:, :, None] * p[:, None, :] / p.sum(axis=1)[:, None, None]
    each = np.arange(p.shape[1])
    out[:, each, each] = 0.0
    out[:, each, each] = -out.sum(axis=2)  # Π 1 = 0 to the last digit; π − π²/1ᵀπ would cancel at the observed class
    return out


def times_precision(pi: FloatArray, v: FloatArray) -> FloatArray:
    """Π v (c, n, …) without forming Π; pi, v : (c, n, …)."""
    out: FloatArray = pi * v
    return out - pi * (out.sum(axis=0) / pi.sum(axis=0))


def precision_root_times(pi: FloatArray, xi: FloatArray) -> FloatArray:
    """E ξ (c, n, …) with E_i E_iᵀ = Π_i, E_i = diag √π_i − π_i √π_iᵀ/1ᵀπ_i; pi, xi : (c, n, …)."""
    weighted: FloatArray = np.sqrt(pi) * xi
    return weighted - pi * (weighted.sum(axis=0) / pi.sum(axis=0))
