"""log Z of EP and its derivative by the kernel matrix (eqs. 42-43)."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from nestgp.arrays import FloatArray
from nestgp.threads import single_threaded_blas


class Blocks(Protocol):
    """What the evidence needs of the block algebra."""

    log_det: float
    n_classes: int
    K: FloatArray

    def m_blocks(self, k: int | None = None) -> FloatArray: ...


def log_evidence(
    log_det: float, nu: FloatArray, mean: FloatArray, alpha: FloatArray, beta: FloatArray, log_terms: float
) -> float:
    """log Z_EP = ½ ν̃ᵀμ − ½ log|I + KT̃| + Σ_ij [log Φ(z_ij) − log ∫ N(g|m₋,v₋) t̃_ij] + Σ_i const_i.

    const_i = −½ log(1 + 1ᵀα̃_i) + ½ (1ᵀβ̃_i)²/(1 + 1ᵀα̃_i) comes from integrating u_i out of the site. This is the energy of
    EP with n(c−1) one-dimensional sites; at a fixed point it equals eq. 42, and no (c−1)-dimensional integral is left.

    Parameters
    ----------
    nu, mean : (c, n); alpha, beta : (n, c−1); log_terms : the double sum.
    """
    total = 1.0 + alpha.sum(axis=1)
    constants = -0.5 * np.log(total) + 0.5 * beta.sum(axis=1) ** 2 / total
    return float(0.5 * np.vdot(nu, mean) - 0.5 * log_det + log_terms + constants.sum())


def evidence_gradient(blocks: Blocks, b: FloatArray) -> FloatArray:
    """∂log Z/∂K = ½ (b_k b_kᵀ − M_kk) at a fixed point: summed over k (n, n) for a shared kernel, else (c, n, n).

    Parameters
    ----------
    b : (c, n), K⁻¹μ.
    """
    if blocks.K.ndim == 2:
        return _half_difference(b, blocks.m_blocks())
    return np.stack([_half_difference(b[k : k + 1], blocks.m_blocks(k)) for k in range(blocks.n_classes)])


def _half_difference(b: FloatArray, M: FloatArray) -> FloatArray:
    """½ (Σ_k b_k b_kᵀ − M) in place of M, a block of rows at a time."""
    M *= -0.5
    with single_threaded_blas():
        for start in range(0, M.shape[0], 256):
            rows = slice(start, start + 256)
            M[rows] += 0.5 * (b[:, rows].T @ b)
    return M


def symmetric_outer(u: FloatArray, b: FloatArray, shared: bool) -> FloatArray:
    """½ (u_k b_kᵀ + b_k u_kᵀ), summed over k (n, n) or per class (c, n, n); u, b (c, n)."""
    if shared:
        half = u.T @ b
        return 0.5 * (half + half.T)
    half = np.einsum("kn,km->knm", u, b)
    return 0.5 * (half + half.transpose(0, 2, 1))
