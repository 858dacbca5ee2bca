"""Cholesky factor and inverse of one matrix by two threads of ours: the routines of :mod:`nestgp.lapack`, in halves.

A lower triangle falls into A₁₁, A₂₁ and A₂₂, half of the rows each. Three quarters of the flops are products with triangles and
sums of products, of which each thread has half; the rest is LAPACK's, mostly in both at the same time. BLAS is to have one
thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from nestgp import lapack
from nestgp.arrays import FloatArray
from nestgp.lapack import add_gram, add_product, lower_times_in_place, solve_lower_in_place
from nestgp.threads import SHARED_FROM, bands, for_each, left_over

#: Below this many rows there is nothing to share; Cholesky factors, of which one thread has A₁₁ and A₂₂, share down to more.
FEW, FEW_OF_FACTOR = 16, 384


def cholesky_in_place(a: FloatArray, lower: bool = True) -> float:
    """Overwrite the lower triangle of ``a`` with its Cholesky factor L, or the upper one with Lᵀ, and return log|a|."""
    if len(a) < FEW:
        return lapack.cholesky_in_place(a, lower)
    return _cholesky(a if lower else a.T)


def _cholesky(A: FloatArray) -> float:
    """Of a lower triangle in either order."""
    A11, A21, A22 = _blocks(A)
    inner = _cholesky if len(A11) >= FEW_OF_FACTOR else partial(_on_triangle, lapack.cholesky_in_place)
    log_det: float = inner(A11)
    top, bottom = _split(len(A21))
    _both(
        lambda: solve_lower_in_place(A11, A21[top], "R", transposed=True),  # L₂₁ = A₂₁ L₁₁⁻ᵀ
        lambda: solve_lower_in_place(A11, A21[bottom], "R", transposed=True),
    )
    add_gram_in_bands(A22, A21, -1.0, workers=2)  # A₂₂ − L₂₁ L₂₁ᵀ
    return log_det + inner(A22)


def add_gram_in_bands(C: FloatArray, X: FloatArray, factor: float, transposed: bool = False, workers: int = 2) -> None:
    """Lower triangle of C += factor · X Xᵀ, or XᵀX, a band of rows for every worker."""
    parts = bands(len(C), workers)

    def work(band: int) -> None:
        before, rows = slice(0, parts[band][0]), slice(*parts[band])
        mine, others = (X[:, rows], X[:, before]) if transposed else (X[rows], X[before])
        if before.stop:
            add_product(C[rows, before], mine, others, factor, transposed)
        add_gram(C[rows, rows], mine, factor, transposed)

    for_each(work, workers, workers)


def triangular_inverse_in_place(a: FloatArray, lower: bool = True) -> None:
    """Overwrite a triangular matrix by its inverse; the other triangle stays as it is."""
    if len(a) < FEW:
        lapack.triangular_inverse_in_place(a, lower)
        return
    L11, L21, L22 = _blocks(a if lower else a.T)
    kept = L22.copy(order="K")
    _both(
        lambda: _on_triangle(lapack.triangular_inverse_in_place, L11),
        lambda: _on_triangle(lapack.triangular_inverse_in_place, L22),
    )
    top, bottom = _split(len(L21))
    _both(
        lambda: lower_times_in_place(L11, L21[top], "R", factor=-1.0),
        lambda: lower_times_in_place(L11, L21[bottom], "R", factor=-1.0),
    )
    left, right = _split(L21.shape[1])
    # L₂₂⁻¹ (L₂₁ L₁₁⁻¹) solved for: times the inverse, the error of L E would grow with the condition of L₂₂
    _both(lambda: solve_lower_in_place(kept, L21[:, left]), lambda: solve_lower_in_place(kept, L21[:, right]))


def inverse_from_cholesky_in_place(a: FloatArray, lower: bool = True) -> None:
    """Overwrite a Cholesky factor, L or Lᵀ in a triangle of ``a``, with that triangle of (L Lᵀ)⁻¹ = EᵀE, E = L⁻¹."""
    if len(a) < FEW:
        lapack.inverse_from_cholesky_in_place(a, lower)
        return
    triangular_inverse_in_place(a, lower)
    E11, E21, E22 = _blocks(a if lower else a.T)
    kept = E21.copy(order="K")

    def first_rows() -> None:
        _on_triangle(lapack.gram_of_lower_in_place, E11)
        add_gram(E11, kept, 1.0, transposed=True)  # E₁₁ᵀE₁₁ + E₂₁ᵀE₂₁

    def last_rows() -> None:
        lower_times_in_place(E22, E21, transposed=True)  # E₂₂ᵀE₂₁
        _on_triangle(lapack.gram_of_lower_in_place, E22)

    _both(first_rows, last_rows)


def _blocks(A: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """A₁₁, A₂₁ and A₂₂, views."""
    half = len(A) // 2
    return A[:half, :half], A[half:, :half], A[half:, half:]


def _on_triangle(routine: Callable[[FloatArray, bool], Any], A: FloatArray) -> Any:
    """A routine for triangles of row-major arrays, on a lower triangle in either order."""
    by_rows = A.strides[1] == A.itemsize
    return routine(A if by_rows else A.T, by_rows)


def _split(size: int) -> tuple[slice, slice]:
    return slice(0, size // 2), slice(size // 2, size)


def _both(first: Callable[[], None], second: Callable[[], None]) -> None:
    for_each(lambda k: (first, second)[k](), 2, workers=2)


class Routines(NamedTuple):
    """What is done to a triangle (a, lower), in place; :mod:`nestgp.lapack` says what each does."""

    cholesky: Callable[[FloatArray, bool], float]
    inverse: Callable[[FloatArray, bool], None]
    triangular_inverse: Callable[[FloatArray, bool], None]


ALONE = Routines(lapack.cholesky_in_place, lapack.inverse_from_cholesky_in_place, lapack.triangular_inverse_in_place)
BOTH = Routines(cholesky_in_place, inverse_from_cholesky_in_place, triangular_inverse_in_place)


def routines_for(n: int, workers: int) -> Routines:
    """Those for one matrix that has all workers."""
    return BOTH if workers > 1 and n >= SHARED_FROM else ALONE


def for_each_matrix(task: Callable[[int, Routines], None], count: int, n: int, workers: int) -> None:
    """``task(k, routines)`` for every k: one (n, n) matrix per worker, or two workers for the last where one is left over."""
    shared = left_over(count, n, workers)
    for_each(lambda k: task(k, ALONE), count - shared, workers)
    if shared:
        task(count - 1, BOTH)
