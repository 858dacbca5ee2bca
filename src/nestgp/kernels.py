"""Covariances from scikit-learn kernels: X, θ → K. Their derivatives are in :mod:`nestgp.kernel_gradient`.

`kernel` is one scikit-learn kernel shared by all classes, or a list or tuple with one kernel per class.
θ is scikit-learn's: natural logs of the free hyperparameters, in scikit-learn's order; for a list the
vectors of the classes are concatenated in class order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import squareform
from sklearn.gaussian_process.kernels import (
    RBF,
    CompoundKernel,
    ConstantKernel,
    Exponentiation,
    Hyperparameter,
    Kernel,
    Matern,
    Product,
    RationalQuadratic,
    Sum,
    WhiteKernel,
)

from nestgp.arrays import FloatArray
from nestgp.distances import condensed_sq_dist, sq_dist_between

Kernels: TypeAlias = Kernel | Sequence[Kernel]

MAX_ARD_COLUMNS = 30
"""The default kernel has one lengthscale per column up to here, and one in all above."""

NO_CORRELATION = 1e-30
"""Correlations below are taken for 0: no result differs, and products of them underflow, which makes LAPACK half as fast."""

_SIMPLE_NU = (0.5, 1.5, 2.5, np.inf)
_MAX_NU = 150.0  # beyond, scikit-learn's 2^(1−ν)/Γ(ν) underflows and its Matern is silently the identity


# --- K ----------------------------------------------------------------------------------------------------


def gram(kernel: Kernels, X: ArrayLike) -> FloatArray:
    """Prior covariance K = k(X, X): (n, n) for one kernel, (c, n, n) for a list. White noise is included."""
    X = as_inputs(X)
    return _per_class(kernel, lambda k: gram_of_one(k, X))


def cross(kernel: Kernels, X: ArrayLike, Z: ArrayLike) -> FloatArray:
    """Covariance k(X, Z) between two sets of inputs: (n, m), or (c, n, m) for a list.

    White noise is left out, as scikit-learn does, even where a row of Z equals one of X: noise belongs to an
    observation, not to an input. `gram` and `diagonal` include it, so cross(k, X, X) ≠ gram(k, X) with noise.
    """
    X, Z = as_inputs(X), as_inputs(Z)
    return _per_class(kernel, lambda k: _cross_of_one(as_covariance(k), X, Z))


def diagonal(kernel: Kernels, X: ArrayLike) -> FloatArray:
    """Prior variances, the diagonal of `gram` with its white noise: (n,), or (c, n) for a list."""
    X = as_inputs(X)
    return _per_class(kernel, lambda k: np.asarray(as_covariance(k).diag(X), dtype=np.float64))


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


def as_inputs(X: ArrayLike) -> FloatArray:
    X = np.ascontiguousarray(X, dtype=np.float64)
    if X.ndim != 2:
        raise ValueError(f"X has {X.ndim} dimension(s): give a 2-D array, one row per point")
    return X


def is_list(kernel: Any) -> bool:
    return isinstance(kernel, (list, tuple))


def _as_list(kernel: Kernels) -> list[Kernel]:
    return list(kernel) if is_list(kernel) else [kernel]


def _per_class(kernel: Kernels, evaluate: Callable[[Kernel], FloatArray]) -> FloatArray:
    if not is_list(kernel):
        return evaluate(kernel)
    first = evaluate(kernel[0])
    out = np.empty((len(kernel), *first.shape))  # filled class by class: no second copy of all classes
    out[0] = first
    for i, k in enumerate(kernel[1:], start=1):
        out[i] = evaluate(k)
    return out


def as_covariance(kernel: Kernel) -> Kernel:
    """`kernel` itself, refused if it stacks several kernels instead of being one covariance."""
    if isinstance(kernel, CompoundKernel):
        raise TypeError(
            "CompoundKernel stacks several kernels and is not a covariance: give a list with one kernel per "
            "class, or add kernels with +"
        )
    return kernel


def gram_of_one(kernel: Kernel, X: FloatArray) -> FloatArray:
    """K of one kernel, in an array of its own, equal to scikit-learn's kernel(X) up to rounding."""
    kind = type(as_covariance(kernel))
    if kind is Sum or kind is Product:
        return _combine(kernel, partial(gram_of_one, X=X), len(X))
    if kind is Exponentiation:
        K = gram_of_one(kernel.kernel, X)
        K **= kernel.exponent
        return K
    if kind is RationalQuadratic and np.size(kernel.length_scale) == 1:
        base = condensed_sq_dist(X)
        base /= 2 * kernel.alpha * kernel.length_scale**2
        base += 1.0
        return _unit_diagonal(np.power(base, -kernel.alpha, out=base))
    if kind is RBF or (kind is Matern and kernel.nu in _SIMPLE_NU):
        nu = kernel.nu if kind is Matern else np.inf
        return _unit_diagonal(_matern(condensed_sq_dist(X / lengthscales_of(kernel, X)), nu))
    # A copy, because the caller scales in place and a user's kernel may keep what it returned.
    return np.array(kernel(X), dtype=np.float64, order="C")


def _cross_of_one(kernel: Kernel, X: FloatArray, Z: FloatArray) -> FloatArray:
    """k(X, Z) of one kernel, in an array of its own, equal to scikit-learn's up to rounding."""
    kind = type(kernel)
    if kind is Sum or kind is Product:
        return _combine(kernel, partial(_cross_of_one, X=X, Z=Z), 0)
    if kind is RBF or (kind is Matern and kernel.nu in _SIMPLE_NU):
        scale = lengthscales_of(kernel, X)
        return _matern(sq_dist_between(X / scale, Z / scale), kernel.nu if kind is Matern else np.inf)
    return np.array(kernel(X, Z), dtype=np.float64, order="C")


def _combine(kernel: Kernel, of_child: Callable[[Kernel], FloatArray], n_noisy: int) -> FloatArray:
    """Covariance of a Sum or Product, in the array of one child; a constant child needs no matrix.

    ``n_noisy`` : how many of its diagonal have white noise, all of k(X, X) and none of k(X, Z).
    """
    combine = np.add if type(kernel) is Sum else np.multiply
    k1, k2 = (kernel.k2, kernel.k1) if type(kernel.k1) is ConstantKernel else (kernel.k1, kernel.k2)
    K = of_child(k1)
    if type(k2) is ConstantKernel:
        combine(K, k2.constant_value, out=K)
    elif type(k2) is WhiteKernel and combine is np.add:
        K.flat[: n_noisy * n_noisy : n_noisy + 1] += k2.noise_level
    else:
        combine(K, of_child(k2), out=K)
    return K


def lengthscales_of(kernel: Kernel, X: FloatArray) -> FloatArray:
    """Lengthscales of an RBF or Matern: (d,) if there is one per column, else of no dimension."""
    scale = np.squeeze(np.asarray(kernel.length_scale, dtype=np.float64))
    if scale.ndim > 0 and scale.shape != (X.shape[1],):
        raise ValueError(_lengthscale_count(f"{kernel}: length_scale", scale.shape, X.shape[1]))
    return scale


def _matern(sq_dist: FloatArray, nu: float) -> FloatArray:
    """Matern correlation for ν = ½, 3/2, 5/2, ∞ at squared scaled distances, which are overwritten; 0 below NO_CORRELATION."""
    if nu == np.inf:
        sq_dist *= -0.5
        decay = np.exp(sq_dist, out=sq_dist)
    else:
        t = np.sqrt(sq_dist, out=sq_dist)
        t *= np.sqrt(2 * nu)
        decay = np.exp(-t)
        if nu == 1.5:
            decay *= 1.0 + t
        elif nu == 2.5:
            decay *= 1.0 + t + t**2 / 3.0
    decay[decay < NO_CORRELATION] = 0.0
    return decay


def _unit_diagonal(condensed: FloatArray) -> FloatArray:
    K: FloatArray = squareform(condensed)
    np.fill_diagonal(K, 1.0)
    return K


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
    return copies if is_list(kernel) else copies[0]


def bounds(kernel: Kernels) -> FloatArray:
    """Lower and upper bounds of theta, on its log scale: (p, 2). A natural bound of 0 becomes −inf."""
    with np.errstate(divide="ignore"):
        limits = [np.asarray(k.bounds, dtype=np.float64) for k in _as_list(kernel)]
    return np.concatenate([limit.reshape(-1, 2) for limit in limits])


def hyperparameter_names(kernel: Kernels) -> list[str]:
    """One name per entry of theta, such as "k2__length_scale[3]"; with "class0: " before it for a list."""
    names: list[str] = []
    for i, k in enumerate(_as_list(kernel)):
        prefix = f"class{i}: " if is_list(kernel) else ""
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
    X = as_inputs(X)
    d = X.shape[1]
    varies = np.ptp(X, axis=0) > 0  # rounding of the mean gives a constant column a tiny sd, not 0
    with np.errstate(over="ignore"):
        sd = np.where(varies, X.std(axis=0), 0.0)
    extreme = np.flatnonzero(varies & ~((sd > 1e-150) & (sd < np.inf)))
    if extreme.size:
        j = extreme[0]
        raise ValueError(
            f"column {j} of X runs from {X[:, j].min():.3g} to {X[:, j].max():.3g}, beyond what can be squared: change its unit, "
            "e.g. with sklearn.preprocessing.StandardScaler"
        )
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
    if not is_list(kernel):
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
            as_covariance(leaf)
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
