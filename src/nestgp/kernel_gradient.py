"""Contraction of a weight matrix with ∂K/∂θ, over trees of scikit-learn kernels.

The contraction rests on one identity. Constant, RBF, Matern and RationalQuadratic kernels are positive, and
so are their products and powers; for these ∂K = K ∘ ∂log K, and log K is a sum over factors. With
H = weights ∘ K formed once, every factor contracts its own ∂log K with the same H, and no gram matrix of a
factor is evaluated again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import squareform
from scipy.special import kve
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    Exponentiation,
    Kernel,
    Matern,
    Product,
    RationalQuadratic,
    Sum,
    WhiteKernel,
)

from nestgp.arrays import FloatArray
from nestgp.distances import condensed_sq_dist
from nestgp.kernels import (
    Kernels,
    as_covariance,
    as_inputs,
    gram_of_one,
    is_list,
    lengthscales_of,
)
from nestgp.lapack import multiply_by_rows

BLOCK_BYTES = 64 * 2**20
"""Largest (2b, 2b, p) gradient block asked of a kernel that has no contraction of its own."""

_MIN_BLOCK_ROWS = 8  # below this the calls, about (n/b)²/2 of them, cost far more than their arithmetic
_CANCELLATION = 1e-5  # smallest trusted |a − b| / (|a| + |b|): about 1e-11 relative error is left


def contract(kernel: Kernels, X: ArrayLike, weights: FloatArray, K: FloatArray | None = None) -> FloatArray:
    """Gradient Σ_ij weights_ij ∂K_ij/∂θ for every free hyperparameter: (p,).

    No (n, n, p) array is formed. With weights = ∂log Z/∂K this is ∂log Z/∂θ.

    Parameters
    ----------
    weights : (n, n), symmetric; (c, n, n) for a list of c kernels.
    K : the gram matrix of `kernel` at X if it is known, of the shape of weights; it saves evaluating it.
    """
    X = as_inputs(X)
    weights = np.asarray(weights, dtype=np.float64)
    expected = (*((len(kernel),) if is_list(kernel) else ()), len(X), len(X))
    for name, value in (("weights", weights), ("K", K)):
        if value is not None and value.shape != expected:
            raise ValueError(f"{name} has shape {value.shape}, but the kernel and X need {expected}")
    if not is_list(kernel):
        return _gradient(kernel, X, weights, K)
    parts = [_gradient(k, X, weights[i], None if K is None else K[i]) for i, k in enumerate(kernel)]
    return np.concatenate(parts)


def _gradient(kernel: Kernel, X: FloatArray, S: FloatArray, K: FloatArray | None) -> FloatArray:
    """Σ S ∘ ∂K of one kernel; K may be None. Exact types only: a subclass may compute something else."""
    kind = type(as_covariance(kernel))
    if kernel.n_dims == 0:
        return np.empty(0)
    if kind is ConstantKernel:
        return np.array([kernel.constant_value * S.sum()])
    if kind is WhiteKernel:
        return np.array([kernel.noise_level * np.trace(S)])
    if kind is DotProduct:
        return np.array([2 * kernel.sigma_0**2 * S.sum()])
    if _is_positive(kernel):
        return _log_gradient(kernel, X, _LogWeights.of(S, gram_of_one(kernel, X) if K is None else K))
    if kind is Sum:
        return _sum_gradient(kernel, X, S, K)
    if kind is Product:
        return _product_gradient(kernel, X, S, K)
    if kind is Exponentiation:
        base = gram_of_one(kernel.kernel, X)
        return _gradient(kernel.kernel, X, kernel.exponent * S * base ** (kernel.exponent - 1), base)
    return _block_gradient(kernel, X, S)


def _sum_gradient(kernel: Kernel, X: FloatArray, S: FloatArray, K: FloatArray | None) -> FloatArray:
    """K = K1 + K2: both children with S. Beside white noise, K off the diagonal is the other child's."""
    parts = []
    for child, sibling in ((kernel.k1, kernel.k2), (kernel.k2, kernel.k1)):
        child_K = None
        reuses = _is_positive(child) or type(child) in (Sum, Product)
        if K is not None and reuses and type(sibling) is WhiteKernel:
            child_K = K.copy()
            np.fill_diagonal(child_K, child.diag(X))  # K − noise would lose digits of a small variance
        parts.append(_gradient(child, X, S, child_K))
    return np.concatenate(parts)


def _product_gradient(kernel: Kernel, X: FloatArray, S: FloatArray, K: FloatArray | None) -> FloatArray:
    """K = K1 ∘ K2: k1 with S ∘ K2 and k2 with S ∘ K1; a positive child needs S ∘ K only."""
    grams: dict[int, FloatArray] = {}

    def known(child: Kernel) -> FloatArray:
        if id(child) not in grams:
            grams[id(child)] = gram_of_one(child, X)
        return grams[id(child)]

    parts = []
    for child, sibling in ((kernel.k1, kernel.k2), (kernel.k2, kernel.k1)):
        if child.n_dims == 0:
            continue
        if _is_positive(child):
            product = known(child) * known(sibling) if K is None else K
            parts.append(_log_gradient(child, X, _LogWeights.of(S, product)))
        elif type(sibling) is ConstantKernel:
            scale = sibling.constant_value
            parts.append(scale * _gradient(child, X, S, grams.get(id(child)) if K is None else K / scale))
        else:
            weights = S * known(sibling)
            parts.append(_gradient(child, X, weights, grams.get(id(child))))
    return np.concatenate(parts)


# --- positive kernels: ∂K = K ∘ ∂log K ----------------------------------------------------------------------


class _LogWeights(NamedTuple):
    """H = S ∘ K for contraction with ∂log K, its diagonal set aside.

    Distances vanish on the diagonal, where H is largest: leaving it out of H and of the row sums
    removes most of what has to cancel in `_columns`.
    """

    H: FloatArray  # (n, n), zero diagonal
    rows: FloatArray  # (n,), row sums of H
    total: float  # sum of S ∘ K with its diagonal

    @classmethod
    def of(cls, S: FloatArray, K: FloatArray) -> _LogWeights:
        H = np.multiply(S, K, order="C")
        trace = float(np.trace(H))
        np.fill_diagonal(H, 0.0)
        rows = H.sum(axis=1)
        return cls(H, rows, float(rows.sum()) + trace)


def _is_positive(kernel: Kernel) -> bool:
    """Whether every entry of K is positive and `_log_gradient` knows ∂log K."""
    kind = type(kernel)
    if kind is Product:
        return _is_positive(kernel.k1) and _is_positive(kernel.k2)
    if kind is Exponentiation:
        return _is_positive(kernel.kernel)
    return kind in (ConstantKernel, RBF, Matern, RationalQuadratic)


def _log_gradient(kernel: Kernel, X: FloatArray, w: _LogWeights) -> FloatArray:
    """Σ H ∘ ∂log K, for K = Π_f K_f: every factor with the same H, a power with its exponent."""
    kind = type(kernel)
    if kind is Product:
        return np.concatenate([_log_gradient(kernel.k1, X, w), _log_gradient(kernel.k2, X, w)])
    if kind is Exponentiation:
        return float(kernel.exponent) * _log_gradient(kernel.kernel, X, w)
    if kind is ConstantKernel:
        return np.array([] if kernel.hyperparameter_constant_value.fixed else [w.total])
    if kind is RationalQuadratic:
        return _rational_quadratic(kernel, X, w)
    return _lengthscales(kernel, X, w)


def _rational_quadratic(kernel: Kernel, X: FloatArray, w: _LogWeights) -> FloatArray:
    """With u = r²/(2α l²): ∂log K/∂log α = α(u/(1+u) − log(1+u)) and ∂log K/∂log l = 2α u/(1+u)."""
    u = condensed_sq_dist(X)
    u /= 2 * kernel.alpha * kernel.length_scale**2
    share = u / (1 + u)
    out = []
    if not kernel.hyperparameter_alpha.fixed:
        out.append(kernel.alpha * np.vdot(w.H, squareform(share - np.log1p(u))))
    if not kernel.hyperparameter_length_scale.fixed:
        out.append(2 * kernel.alpha * np.vdot(w.H, squareform(share)))
    return np.array(out)


def _lengthscales(kernel: Kernel, X: FloatArray, w: _LogWeights) -> FloatArray:
    """RBF and Matern: ∂log K/∂log l_d = g(r) (z_id − z_jd)², with z = x/l and g = −(dlog K/dr)/r."""
    if kernel.hyperparameter_length_scale.fixed:
        return np.empty(0)
    scale = lengthscales_of(kernel, X)
    Z = (X - X.mean(axis=0)) / scale
    H, rows = w.H, w.rows
    if type(kernel) is Matern and kernel.nu != np.inf:
        sq_dist = condensed_sq_dist(Z)
        slope = _matern_slope(sq_dist, kernel.nu)
        if scale.ndim == 0:
            slope *= sq_dist
            return np.array([np.vdot(H, squareform(slope))])
        H = H * squareform(slope)
        rows = H.sum(axis=1)
    return _columns(Z, H, rows) if scale.ndim else _all_columns(Z, H, rows)


def _matern_slope(sq_dist: FloatArray, nu: float) -> FloatArray:
    """g = −(dlog K/dr)/r = 2ν K_{ν−1}(t) / (t K_ν(t)) at t = √(2ν) r, from (t^ν K_ν)' = −t^ν K_{ν−1}."""
    t = np.sqrt(2 * nu * sq_dist)
    if nu == 0.5:
        return np.divide(1.0, t, out=np.zeros_like(t), where=t > 0)
    if nu == 1.5:
        return 3.0 / (1.0 + t)
    if nu == 2.5:
        return 5.0 / 3.0 * (1.0 + t) / (1.0 + t + t**2 / 3.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        slope = 2 * nu * kve(nu - 1, t) / (t * kve(nu, t))
    # Both Bessel functions overflow as t → 0, where g → ν/(ν−1) if ν > 1, and g r² → 0 in any case.
    slope[~np.isfinite(slope)] = nu / (nu - 1) if nu > 1 else 0.0
    return slope


def _columns(Z: FloatArray, H: FloatArray, rows: FloatArray) -> FloatArray:
    """Σ_ij H_ij (z_id − z_jd)² = 2 (Σ_i rows_i z_id² − z_dᵀ H z_d) for every column d: (d,).

    Where the two terms nearly cancel (tight clusters far apart, near duplicates under a rough kernel) the
    column is summed again from its differences.
    """
    squares = Z**2
    a, b = _weighted_rows(rows, squares), np.einsum("ij,ij->j", Z, multiply_by_rows(H, Z))
    gradient: FloatArray = 2 * (a - b)
    for d in np.flatnonzero(np.abs(a - b) < _CANCELLATION * (_weighted_rows(np.abs(rows), squares) + np.abs(b))):
        difference = np.subtract.outer(Z[:, d], Z[:, d])
        difference *= difference
        gradient[d] = np.vdot(H, difference)
    return gradient


def _all_columns(Z: FloatArray, H: FloatArray, rows: FloatArray) -> FloatArray:
    """Σ_ij H_ij |z_i − z_j|², the sum of `_columns`, guarded in the same way: (1,)."""
    squares = np.einsum("ij,ij->i", Z, Z)
    a, b = np.vdot(rows, squares), np.vdot(Z, multiply_by_rows(H, Z))
    if abs(a - b) < _CANCELLATION * (np.vdot(np.abs(rows), squares) + abs(b)):
        return np.array([np.vdot(H, squareform(condensed_sq_dist(Z)))])
    return np.array([2 * (a - b)])


def _weighted_rows(weights: FloatArray, A: FloatArray) -> FloatArray:
    """Σ_i weights_i A_i, without a thread of BLAS, which would go on spinning in the way of ours."""
    total: FloatArray = np.einsum("i,ij->j", weights, A)
    return total


# --- any other kernel: its own gradient, block by block -----------------------------------------------------


def _block_gradient(kernel: Kernel, X: FloatArray, S: FloatArray) -> FloatArray:
    """Σ S ∘ ∂K from the kernel's own eval_gradient on pairs of row blocks, within BLOCK_BYTES each.

    scikit-learn differentiates a kernel at k(X, X) only, so a block (I, J) is cut out of k on the rows I ∪ J.
    """
    n, p = len(X), kernel.n_dims
    if 8 * p * n**2 <= BLOCK_BYTES:
        return _weighted(S, _own_gradient(kernel, X))
    b = int(np.sqrt(BLOCK_BYTES / (8 * p)) / 2)
    if b < _MIN_BLOCK_ROWS:
        least = 8 * p * (2 * _MIN_BLOCK_ROWS) ** 2 / 2**30
        raise MemoryError(
            f"one gradient block of {type(kernel).__name__} with {p} free hyperparameters takes {least:.2g} "
            f"GiB, more than the {BLOCK_BYTES / 2**30:.2g} GiB of nestgp.kernel_gradient.BLOCK_BYTES: raise that, "
            "fix some hyperparameters (bounds 'fixed'), or build the kernel from scikit-learn's RBF or Matern"
        )
    blocks = [slice(i, min(i + b, n)) for i in range(0, n, b)]
    total = np.zeros(p)
    for i, rows in enumerate(blocks):
        total += _weighted(S[rows, rows], _own_gradient(kernel, X[rows]))
        for columns in blocks[i + 1 :]:
            pair = _own_gradient(kernel, np.concatenate([X[rows], X[columns]]))
            total += 2 * _weighted(S[rows, columns], pair[:b, b:])
    return total


def _own_gradient(kernel: Kernel, X: FloatArray) -> FloatArray:
    gradient: FloatArray = kernel(X, eval_gradient=True)[1]
    return gradient


def _weighted(S: FloatArray, gradient: FloatArray) -> FloatArray:
    total: FloatArray = np.einsum("ij,ijp->p", S, gradient)
    return total
