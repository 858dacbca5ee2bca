"""Covariances from scikit-learn kernels: X, θ → K, and the contraction of a weight matrix with ∂K/∂θ.

`kernel` is one scikit-learn kernel shared by all classes, or a list or tuple with one kernel per class.
θ is scikit-learn's: natural logs of the free hyperparameters, in scikit-learn's order; for a list the
vectors of the classes are concatenated in class order.

The contraction rests on one identity. Constant, RBF, Matern and RationalQuadratic kernels are positive, and
so are their products and powers; for these ∂K = K ∘ ∂log K, and log K is a sum over factors. With
H = weights ∘ K formed once, every factor contracts its own ∂log K with the same H, and no gram matrix of a
factor is evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import squareform
from scipy.special import kve
from sklearn.gaussian_process.kernels import (
    RBF,
    CompoundKernel,
    ConstantKernel,
    DotProduct,
    Exponentiation,
    Hyperparameter,
    Kernel,
    Matern,
    Product,
    RationalQuadratic,
    Sum,
    WhiteKernel,
)

FloatArray: TypeAlias = NDArray[np.float64]
Kernels: TypeAlias = Kernel | Sequence[Kernel]

BLOCK_BYTES = 64 * 2**20
"""Largest (2b, 2b, p) gradient block asked of a kernel that has no contraction of its own."""

MAX_ARD_COLUMNS = 30
"""The default kernel has one lengthscale per column up to here, and one in all above."""

_MIN_BLOCK_ROWS = 8  # below this the calls, about (n/b)²/2 of them, cost far more than their arithmetic
_MAX_NU = 150.0  # beyond, scikit-learn's 2^(1−ν)/Γ(ν) underflows and its Matern is silently the identity
_CANCELLATION = 1e-5  # smallest trusted |a − b| / (|a| + |b|): about 1e-11 relative error is left


# --- K ----------------------------------------------------------------------------------------------------


def gram(kernel: Kernels, X: ArrayLike) -> FloatArray:
    """Prior covariance K = k(X, X): (n, n) for one kernel, (c, n, n) for a list. White noise is included."""
    X = _inputs(X)
    return _per_class(kernel, lambda k: _gram(k, X))


def cross(kernel: Kernels, X: ArrayLike, Z: ArrayLike) -> FloatArray:
    """Covariance k(X, Z) between two sets of inputs: (n, m), or (c, n, m) for a list.

    White noise is left out, as scikit-learn does, even where a row of Z equals one of X: noise belongs to an
    observation, not to an input. `gram` and `diagonal` include it, so cross(k, X, X) ≠ gram(k, X) with noise.
    """
    X, Z = _inputs(X), _inputs(Z)
    return _per_class(kernel, lambda k: np.ascontiguousarray(_covariance(k)(X, Z), dtype=np.float64))


def diagonal(kernel: Kernels, X: ArrayLike) -> FloatArray:
    """Prior variances, the diagonal of `gram` with its white noise: (n,), or (c, n) for a list."""
    X = _inputs(X)
    return _per_class(kernel, lambda k: np.asarray(_covariance(k).diag(X), dtype=np.float64))


def check_gram(K: FloatArray) -> None:
    """Raise ValueError unless K (n, n) or (c, n, n) is finite, symmetric, and has a non-negative diagonal.

    Positive definiteness is left to the factorisation, which finds it out anyway.
    """
    if K.ndim not in (2, 3) or K.shape[-1] != K.shape[-2]:
        raise ValueError(f"the kernel returned shape {K.shape}, not square: its __call__(X) must be (n, n)")
    for k, Kk in enumerate(K if K.ndim == 3 else K[np.newaxis]):
        where = f" of class {k}" if K.ndim == 3 else ""
        if not np.isfinite(Kk).all():
            i, j = np.argwhere(~np.isfinite(Kk))[0]
            raise ValueError(
                f"K{where} has {Kk[i, j]} at ({i}, {j}): scale the columns of X or narrow the kernel's bounds"
            )
        gap = np.abs(Kk - Kk.T)
        if gap.max(initial=0.0) > 1e-8 * np.abs(Kk).max(initial=0.0):
            i, j = np.unravel_index(np.argmax(gap), gap.shape)
            raise ValueError(
                f"K{where} is not symmetric: {Kk[i, j]:.6g} at ({i}, {j}) but {Kk[j, i]:.6g} at ({j}, {i}); "
                "a covariance must not depend on the order of its two inputs: correct the kernel"
            )
        if (np.diagonal(Kk) < 0).any():
            i = int(np.argmin(np.diagonal(Kk)))
            raise ValueError(
                f"K{where} has the negative variance {Kk[i, i]:.6g} at row {i}: correct the kernel"
            )


def _inputs(X: ArrayLike) -> FloatArray:
    X = np.ascontiguousarray(X, dtype=np.float64)
    if X.ndim != 2:
        raise ValueError(f"X has {X.ndim} dimension(s): give a 2-D array, one row per point")
    return X


def _is_list(kernel: Any) -> bool:
    return isinstance(kernel, (list, tuple))


def _as_list(kernel: Kernels) -> list[Kernel]:
    return list(kernel) if _is_list(kernel) else [kernel]


def _per_class(kernel: Kernels, evaluate: Callable[[Kernel], FloatArray]) -> FloatArray:
    if not _is_list(kernel):
        return evaluate(kernel)
    first = evaluate(kernel[0])
    out = np.empty((len(kernel), *first.shape))  # filled class by class: no second copy of all classes
    out[0] = first
    for i, k in enumerate(kernel[1:], start=1):
        out[i] = evaluate(k)
    return out


def _covariance(kernel: Kernel) -> Kernel:
    """`kernel` itself, refused if it stacks several kernels instead of being one covariance."""
    if isinstance(kernel, CompoundKernel):
        raise TypeError(
            "CompoundKernel stacks several kernels and is not a covariance: give a list with one kernel per "
            "class, or add kernels with +"
        )
    return kernel


def _gram(kernel: Kernel, X: FloatArray) -> FloatArray:
    """K of one kernel, in an array of its own, equal to scikit-learn's kernel(X) up to rounding."""
    kind = type(_covariance(kernel))
    if kind is Sum or kind is Product:
        return _combine(kernel, X)
    if kind is Exponentiation:
        K = _gram(kernel.kernel, X)
        K **= kernel.exponent
        return K
    if kind is RationalQuadratic and np.size(kernel.length_scale) == 1:
        base = _condensed_sq_dist(X)
        base /= 2 * kernel.alpha * kernel.length_scale**2
        base += 1.0
        return _unit_diagonal(np.power(base, -kernel.alpha, out=base))
    if kind is RBF or (kind is Matern and kernel.nu in (0.5, 1.5, 2.5, np.inf)):
        nu = kernel.nu if kind is Matern else np.inf
        return _unit_diagonal(_matern(_condensed_sq_dist(X / _length_scale(kernel, X)), nu))
    # A copy, because the caller scales in place and a user's kernel may keep what it returned.
    return np.array(kernel(X), dtype=np.float64, order="C")


def _combine(kernel: Kernel, X: FloatArray) -> FloatArray:
    """K of a Sum or Product, in the array of one child; a constant child needs no matrix."""
    combine = np.add if type(kernel) is Sum else np.multiply
    k1, k2 = (kernel.k2, kernel.k1) if type(kernel.k1) is ConstantKernel else (kernel.k1, kernel.k2)
    K = _gram(k1, X)
    if type(k2) is ConstantKernel:
        combine(K, k2.constant_value, out=K)
    elif type(k2) is WhiteKernel and combine is np.add:
        K.flat[:: len(X) + 1] += k2.noise_level
    else:
        combine(K, _gram(k2, X), out=K)
    return K


def _length_scale(kernel: Kernel, X: FloatArray) -> FloatArray:
    """Lengthscales of an RBF or Matern: (d,) if there is one per column, else of no dimension."""
    scale = np.squeeze(np.asarray(kernel.length_scale, dtype=np.float64))
    if scale.ndim > 0 and scale.shape != (X.shape[1],):
        raise ValueError(_lengthscale_count(f"{kernel}: length_scale", scale.shape, X.shape[1]))
    return scale


def _matern(sq_dist: FloatArray, nu: float) -> FloatArray:
    """Matern correlation for ν = ½, 3/2, 5/2, ∞ at squared scaled distances, which are overwritten."""
    if nu == np.inf:
        sq_dist *= -0.5
        return np.exp(sq_dist, out=sq_dist)
    t = np.sqrt(sq_dist, out=sq_dist)
    t *= np.sqrt(2 * nu)
    decay = np.exp(-t)
    if nu == 1.5:
        decay *= 1.0 + t
    elif nu == 2.5:
        decay *= 1.0 + t + t**2 / 3.0
    return decay


def _unit_diagonal(condensed: FloatArray) -> FloatArray:
    K: FloatArray = squareform(condensed)
    np.fill_diagonal(K, 1.0)
    return K


def _sq_dist_upper(Z: FloatArray) -> FloatArray:
    """Squared distances of the rows of Z in the order of scipy's pdist: (n(n−1)/2,).

    The differences are formed, so that duplicates are at exactly 0 and an offset cancels no digits.
    """
    n, d = Z.shape
    out = np.empty(n * (n - 1) // 2)
    tile = 32
    for i0 in range(0, n, tile):
        for j0 in range(i0, n, tile):
            for i in range(i0, min(i0 + tile, n)):
                row = n * i - i * (i + 1) // 2 - i - 1
                for j in range(max(j0, i + 1), min(j0 + tile, n)):
                    total = 0.0
                    for k in range(d):
                        difference = Z[i, k] - Z[j, k]
                        total += difference * difference
                    out[row + j] = total
    return out


# Free to reassociate, the compiler vectorises the sum, which pdist may not: 2.3 times faster at d = 256.
_condensed_sq_dist: Callable[[FloatArray], FloatArray] = numba.njit(
    cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"}
)(_sq_dist_upper)


# --- ∂K/∂θ, contracted ------------------------------------------------------------------------------------


def contract(kernel: Kernels, X: ArrayLike, weights: FloatArray, K: FloatArray | None = None) -> FloatArray:
    """Gradient Σ_ij weights_ij ∂K_ij/∂θ for every free hyperparameter: (p,).

    No (n, n, p) array is formed. With weights = ∂log Z/∂K this is ∂log Z/∂θ.

    Parameters
    ----------
    weights : (n, n), symmetric; (c, n, n) for a list of c kernels.
    K : the gram matrix of `kernel` at X if it is known, of the shape of weights; it saves evaluating it.
    """
    X = _inputs(X)
    weights = np.asarray(weights, dtype=np.float64)
    expected = (*((len(kernel),) if _is_list(kernel) else ()), len(X), len(X))
    for name, value in (("weights", weights), ("K", K)):
        if value is not None and value.shape != expected:
            raise ValueError(f"{name} has shape {value.shape}, but the kernel and X need {expected}")
    if not _is_list(kernel):
        return _gradient(kernel, X, weights, K)
    parts = [_gradient(k, X, weights[i], None if K is None else K[i]) for i, k in enumerate(kernel)]
    return np.concatenate(parts)


def _gradient(kernel: Kernel, X: FloatArray, S: FloatArray, K: FloatArray | None) -> FloatArray:
    """Σ S ∘ ∂K of one kernel; K may be None. Exact types only: a subclass may compute something else."""
    kind = type(_covariance(kernel))
    if kernel.n_dims == 0:
        return np.empty(0)
    if kind is ConstantKernel:
        return np.array([kernel.constant_value * S.sum()])
    if kind is WhiteKernel:
        return np.array([kernel.noise_level * np.trace(S)])
    if kind is DotProduct:
        return np.array([2 * kernel.sigma_0**2 * S.sum()])
    if _is_positive(kernel):
        return _log_gradient(kernel, X, _LogWeights.of(S, _gram(kernel, X) if K is None else K))
    if kind is Sum:
        return _sum_gradient(kernel, X, S, K)
    if kind is Product:
        return _product_gradient(kernel, X, S, K)
    if kind is Exponentiation:
        base = _gram(kernel.kernel, X)
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
            grams[id(child)] = _gram(child, X)
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
        H = S * K
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
    u = _condensed_sq_dist(X)
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
    scale = _length_scale(kernel, X)
    Z = (X - X.mean(axis=0)) / scale
    H, rows = w.H, w.rows
    if type(kernel) is Matern and kernel.nu != np.inf:
        sq_dist = _condensed_sq_dist(Z)
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
    a, b = rows @ squares, np.einsum("ij,ij->j", Z, H @ Z)
    gradient: FloatArray = 2 * (a - b)
    for d in np.flatnonzero(np.abs(a - b) < _CANCELLATION * (np.abs(rows) @ squares + np.abs(b))):
        difference = np.subtract.outer(Z[:, d], Z[:, d])
        difference *= difference
        gradient[d] = np.vdot(H, difference)
    return gradient


def _all_columns(Z: FloatArray, H: FloatArray, rows: FloatArray) -> FloatArray:
    """Σ_ij H_ij |z_i − z_j|², the sum of `_columns`, guarded in the same way: (1,)."""
    squares = np.einsum("ij,ij->i", Z, Z)
    a, b = rows @ squares, np.vdot(Z, H @ Z)
    if abs(a - b) < _CANCELLATION * (np.abs(rows) @ squares + abs(b)):
        return np.array([np.vdot(H, squareform(_condensed_sq_dist(Z)))])
    return np.array([2 * (a - b)])


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
            f"GiB, more than the {BLOCK_BYTES / 2**30:.2g} GiB of nestgp.kernels.BLOCK_BYTES: raise that, "
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


# --- θ ----------------------------------------------------------------------------------------------------


def theta(kernel: Kernels) -> FloatArray:
    """Logs of the free hyperparameters: (p,)."""
    return np.concatenate([np.asarray(k.theta, dtype=np.float64) for k in _as_list(kernel)])


def with_theta(kernel: Kernels, theta: ArrayLike) -> Kernels:
    """A copy of the kernel, or a list of copies, with its free hyperparameters set to exp(theta)."""
    theta = np.asarray(theta, dtype=np.float64)
    kernels = _as_list(kernel)
    ends = np.cumsum([k.n_dims for k in kernels])
    if theta.shape != (ends[-1],):
        raise ValueError(f"theta has shape {theta.shape}, but the kernel has {ends[-1]} free hyperparameters")
    if not np.isfinite(theta).all():
        raise ValueError(f"theta is not finite: {theta}; keep the optimiser within the kernel's bounds")
    parts = np.split(theta, ends[:-1])
    copies = [k.clone_with_theta(part) for k, part in zip(kernels, parts, strict=True)]
    return copies if _is_list(kernel) else copies[0]


def bounds(kernel: Kernels) -> FloatArray:
    """Lower and upper bounds of theta, on its log scale: (p, 2). A natural bound of 0 becomes −inf."""
    with np.errstate(divide="ignore"):
        limits = [np.asarray(k.bounds, dtype=np.float64) for k in _as_list(kernel)]
    return np.concatenate([limit.reshape(-1, 2) for limit in limits])


def hyperparameter_names(kernel: Kernels) -> list[str]:
    """One name per entry of theta, such as "k2__length_scale[3]"; with "class0: " before it for a list."""
    names: list[str] = []
    for i, k in enumerate(_as_list(kernel)):
        prefix = f"class{i}: " if _is_list(kernel) else ""
        for h in k.hyperparameters:
            if not h.fixed:
                each = [""] if h.n_elements == 1 else [f"[{d}]" for d in range(h.n_elements)]
                names += [f"{prefix}{h.name}{index}" for index in each]
    return names


def default_kernel(X: ArrayLike) -> tuple[Kernel, FloatArray]:
    """ConstantKernel * RBF in the units of the data, and one unit per entry of theta.

    Up to 30 columns there is one lengthscale per column, which starts at sd_d √d; above there is one in
    all, which starts at √(Σ_d sd_d²). A typical pair of points is then √2 lengthscales apart, whatever d.
    The units are 1 for the constant and sd_d, or the root mean square of the sd_d, for a lengthscale. A
    column that does not vary has the unit 1; to the single lengthscale it adds nothing.
    """
    X = _inputs(X)
    d = X.shape[1]
    varies = np.ptp(X, axis=0) > 0  # rounding of the mean gives a constant column a tiny sd, not 0
    sd = np.where(varies, X.std(axis=0), 0.0)
    if d <= MAX_ARD_COLUMNS:
        units = np.where(varies, sd, 1.0)
    else:
        units = np.array([np.sqrt(np.mean(sd**2)) if varies.any() else 1.0])
    start = units * np.sqrt(d) if d <= MAX_ARD_COLUMNS or varies.any() else units
    limits = np.column_stack([1e-2 * units, 1e4 * units])
    rbf = RBF(start, limits) if len(units) > 1 else RBF(float(start[0]), tuple(limits[0]))
    return ConstantKernel(1.0, (1e-3, 1e5)) * rbf, np.concatenate([[1.0], units])


# --- validation -------------------------------------------------------------------------------------------


def validate(kernel: Any, n_classes: int, n_features: int | None = None) -> None:
    """Raise TypeError or ValueError, naming the value and the remedy, for a kernel that cannot be used."""
    if not _is_list(kernel):
        _validate_one(kernel, "kernel", n_features)
        return
    if len(kernel) != n_classes:
        raise ValueError(
            f"{len(kernel)} kernels for {n_classes} classes: give one kernel shared by all classes or a list "
            f"of exactly {n_classes}"
        )
    for i, k in enumerate(kernel):
        _validate_one(k, f"kernel of class {i}", n_features)


def _validate_one(kernel: Any, where: str, n_features: int | None) -> None:
    if isinstance(kernel, type) and issubclass(kernel, Kernel):
        raise TypeError(f"{where} is the class {kernel.__name__}: give an instance, {kernel.__name__}()")
    if not isinstance(kernel, Kernel):
        raise TypeError(
            f"{where} is {kernel!r}, a {type(kernel).__name__}: give a kernel of "
            "sklearn.gaussian_process.kernels, such as ConstantKernel() * RBF(), or a list with one per class"
        )
    for prefix, leaf in _nodes(kernel):
        try:
            _covariance(leaf)
        except TypeError as error:
            raise TypeError(f"{where}: {error}") from None
        _validate_settings(leaf, f"{where}: {prefix}")
        _validate_lengthscales(leaf, f"{where}: {prefix}", n_features)
        if not _children(leaf):
            _validate_values(leaf, f"{where}: {prefix}")


def _children(kernel: Kernel) -> dict[str, Kernel]:
    if isinstance(kernel, (Sum, Product)):
        return {"k1": kernel.k1, "k2": kernel.k2}
    return {"kernel": kernel.kernel} if isinstance(kernel, Exponentiation) else {}


def _nodes(kernel: Kernel, prefix: str = "") -> Iterator[tuple[str, Kernel]]:
    """Every node of the tree, parents first, with the prefix of its parameters' names."""
    yield prefix, kernel
    for name, child in _children(kernel).items():
        yield from _nodes(child, f"{prefix}{name}__")


def _validate_settings(kernel: Kernel, where: str) -> None:
    """Parameters that scikit-learn does not count as hyperparameters."""
    if isinstance(kernel, Exponentiation) and not 0 < kernel.exponent < np.inf:
        raise ValueError(f"{where}exponent = {kernel.exponent}: give a positive number")
    if isinstance(kernel, Matern) and not (0 < kernel.nu <= _MAX_NU or kernel.nu == np.inf):
        raise ValueError(f"{where}nu = {kernel.nu}: give 0 < nu <= {_MAX_NU:g}, or use RBF, its limit")


def _validate_lengthscales(kernel: Kernel, where: str, n_features: int | None) -> None:
    if not isinstance(kernel, (RBF, RationalQuadratic)):
        return
    shape = np.shape(np.squeeze(kernel.length_scale))
    if isinstance(kernel, RationalQuadratic) and shape:
        raise ValueError(
            f"{where}length_scale has shape {shape}, but RationalQuadratic takes a single number: give one, "
            "or use RBF or Matern for one per column"
        )
    if len(shape) > 1 or (shape and n_features is not None and shape != (n_features,)):
        raise ValueError(_lengthscale_count(f"{where}length_scale", shape, n_features))


def _lengthscale_count(where: str, shape: tuple[int, ...], n_features: int | None) -> str:
    count = str(shape[0]) if len(shape) == 1 else f"shape {shape} of"
    columns = "the" if n_features is None else str(n_features)
    return f"{where} has {count} lengthscales for {columns} columns of X: give one per column or a single one"


def _validate_values(kernel: Kernel, where: str) -> None:
    values = kernel.get_params()
    for h in kernel.hyperparameters:
        name = f"{where}{h.name}"
        try:
            value = np.asarray(values[h.name], dtype=np.float64)
        except (TypeError, ValueError):
            raise TypeError(f"{name} = {values[h.name]!r} is not a number: give a positive one") from None
        if not (np.isfinite(value).all() and (value > 0).all()) and not _fixed_exception(kernel, h, value):
            raise ValueError(f"{name} = {values[h.name]}: a log scale needs positive, finite hyperparameters")
        if not h.fixed and not ((h.bounds[:, 0] >= 0) & (h.bounds[:, 0] <= h.bounds[:, 1])).all():
            raise ValueError(f"{name}_bounds = {h.bounds.tolist()}: give 0 <= lower <= upper, or 'fixed'")


def _fixed_exception(kernel: Kernel, h: Hyperparameter, value: FloatArray) -> bool:
    """Fixed, an additive term may be switched off, and a user's own hyperparameter may have any sign."""
    if not h.fixed or not np.isfinite(value).all():
        return False
    own = not type(kernel).__module__.startswith("sklearn.")
    return own or (h.name in ("sigma_0", "noise_level") and not value.any())
