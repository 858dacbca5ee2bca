"""Sequential outer EP: one site after the other, the full posterior refreshed by a rank-c update after each."""

from __future__ import annotations

import numpy as np

from nestgp import tilted
from nestgp.arrays import FloatArray, IntArray
from nestgp.linalg import DenseBlocks

#: A dense cn×cn covariance larger than this many bytes is refused.
MEMORY_LIMIT = 2 << 30


def sequential_sweep(
    blocks: DenseBlocks,
    mean: FloatArray,
    x: FloatArray,
    y: IntArray,
    contrast: tilted.Contrast,
    inner: tuple[int, float, bool],
) -> FloatArray:
    """Sites (2, n, c−1) after one sequential pass from the sites ``x``, whose posterior ``blocks`` and ``mean`` hold."""
    c, n = mean.shape
    Sigma = dense_covariance(blocks)
    mu = mean.ravel().copy()
    new = x.copy()
    rows, cols = np.tril_indices(c)
    for i in range(n):
        at = np.arange(c) * n + i
        marginal = Sigma[np.ix_(at, at)]
        alpha, beta = new[0, i : i + 1], new[1, i : i + 1]
        site = np.empty((2, 1, c - 1))
        one = (mu[at][:, None], marginal[rows, cols][:, None], y[i : i + 1])
        table = (contrast.index, contrast.coefficient, contrast.loading)
        valid, _, _ = tilted.update_sites(*one, *table, alpha, beta, *inner, *site, np.empty((1, c - 1)))
        if not valid:
            continue  # the site keeps its value in this pass
        C = _dense_contrast(contrast, int(y[i]), c)
        old_precision, old_location = _site_on_differences(alpha[0], beta[0])
        precision, location = _site_on_differences(site[0, 0], site[1, 0])
        d_precision = C.T @ (precision - old_precision) @ C
        d_location = C.T @ (location - old_location)
        columns = Sigma[:, at]
        gain = np.linalg.solve(np.eye(c) + d_precision @ marginal, np.column_stack([d_precision, d_location]))
        mu += columns @ (gain[:, -1] - gain[:, :-1] @ mu[at])
        Sigma -= columns @ gain[:, :-1] @ columns.T
        new[:, i] = site[:, 0]
    return new


def dense_covariance(blocks: DenseBlocks) -> FloatArray:
    """Posterior covariance K − K M K of all latents, (cn, cn) class-major."""
    c, n = blocks.n_classes, blocks.n
    needed = 8 * (c * n) ** 2
    if needed > MEMORY_LIMIT:
        raise MemoryError(
            f"sequential updates need the dense {c * n} x {c * n} covariance, {needed / 2**30:.1f} GiB: "
            "use updates='parallel'"
        )
    out = np.zeros((c, n, c, n))
    scaled = []
    for k in range(c):
        K = blocks.class_kernel(k)
        BK = blocks.class_precision(k) @ K
        out[k, :, k] = K - K @ BK
        scaled.append(blocks.inverse_root_times(BK))
    for k in range(c):
        for m in range(c):
            out[k, :, m] += scaled[k].T @ scaled[m]
    return out.reshape(c * n, c * n)


def _site_on_differences(alpha: FloatArray, beta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Precision diag(α̃) − α̃α̃ᵀ/(1+1ᵀα̃) and location β̃ − α̃ 1ᵀβ̃/(1+1ᵀα̃) of a site on g = C f, u integrated out."""
    total = 1.0 + alpha.sum()
    return np.diag(alpha) - np.outer(alpha, alpha) / total, beta - alpha * (beta.sum() / total)


def _dense_contrast(contrast: tilted.Contrast, kind: int, n_classes: int) -> FloatArray:
    C = np.zeros((contrast.index.shape[1], n_classes))
    np.put_along_axis(C, contrast.index[kind], contrast.coefficient[kind], axis=1)
    return C
