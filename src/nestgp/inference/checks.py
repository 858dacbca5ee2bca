"""Checks that every inference makes of its input and options."""

from __future__ import annotations

import numpy as np

from nestgp.arrays import FloatArray, IntArray
from nestgp.threads import single_threaded_blas


def check_options(max_iter: int, tol: float) -> None:
    """ValueError unless max_iter >= 1 and tol >= 0."""
    if not (isinstance(max_iter, int | np.integer) and max_iter >= 1):
        raise ValueError(f"max_iter={max_iter!r}: use an integer >= 1")
    if not (isinstance(tol, float | int | np.number) and tol >= 0.0):
        raise ValueError(f"tol={tol!r}: use a number >= 0 (0 runs to max_iter)")


def check_inner_sweeps(inner_sweeps: int | str) -> None:
    """ValueError unless it is "converge" or an integer >= 1."""
    if inner_sweeps != "converge" and not (isinstance(inner_sweeps, int | np.integer) and inner_sweeps >= 1):
        raise ValueError(f"inner_sweeps={inner_sweeps!r}: use an integer >= 1 or 'converge'")


def check_problem(K: FloatArray, y: IntArray, n_classes: int) -> tuple[FloatArray, IntArray]:
    """K (n, n) or (c, n, n) as C-ordered float64, and y (n,) as int64 codes 0 … c−1; ValueError otherwise."""
    K = np.ascontiguousarray(K, dtype=np.float64)
    codes = np.ascontiguousarray(y)
    if codes.ndim != 1 or not np.issubdtype(codes.dtype, np.integer):
        raise ValueError(f"y has shape {codes.shape} and type {codes.dtype}: give integer class codes, shape (n,)")
    if n_classes < 2:
        raise ValueError(f"n_classes={n_classes}: classification needs at least 2 classes")
    if codes.size == 0 or codes.min() < 0 or codes.max() >= n_classes:
        found = "no labels" if codes.size == 0 else f"labels from {codes.min()} to {codes.max()}"
        raise ValueError(f"{found} for n_classes={n_classes}: give at least one label, codes 0 to {n_classes - 1}")
    n = codes.size
    if K.shape not in ((n, n), (n_classes, n, n)):
        raise ValueError(f"K has shape {K.shape}: {n} labels need ({n}, {n}), or ({n_classes}, {n}, {n}) per class")
    if not np.isfinite(K).all():
        raise ValueError("K contains NaN or infinity: check the inputs and the kernel's hyperparameters")
    x = np.random.default_rng(0).standard_normal(n)  # a product on either side takes n² flops and no n² of memory
    with single_threaded_blas():  # NumPy's threads would spin in the way of LAPACK's
        product, other = K @ x, np.swapaxes(K, -1, -2) @ x
    gap = float(np.abs(product - other).max())
    if gap > 1e-8 * float(np.abs(product).max()) + 1e-8 * np.sqrt(n) * float(np.abs(np.diagonal(K, axis1=-2, axis2=-1)).max()):
        raise ValueError("K is not symmetric: a covariance must not depend on the order of its two inputs")
    return K, codes.astype(np.int64, copy=False)
