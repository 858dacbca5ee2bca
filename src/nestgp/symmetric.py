"""Symmetric matrices in half the space: two share the square of one, a triangle each; and what is done with triangles."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from nestgp.arrays import FloatArray
from nestgp.lapack import multiply, symmetric_times
from nestgp.threads import THREADS_FROM


class SymmetricStack:
    """c symmetric (n, n) matrices in ⌈c/2⌉ n (n + 1) numbers, each read and written through a triangle of its own.

    Of a square with one row more, rows 1 to n hold one matrix, on and below their diagonal, and rows 0 to n − 1 another, on and
    above theirs.
    """

    def __init__(self, count: int, n: int, dtype: Any) -> None:
        self.count, self.n = count, n
        self.squares = np.zeros(((count + 1) // 2, n + 1, n), dtype)  # of an odd one out half stays empty

    @property
    def dtype(self) -> Any:
        """Precision of the numbers."""
        return self.squares.dtype

    def triangle(self, k: int) -> tuple[FloatArray, bool]:
        """An (n, n) array whose lower (True) or upper (False) triangle is that of matrix k; the other is another's."""
        square = self.squares[k // 2]
        return (square[1:], True) if k % 2 == 0 else (square[:-1], False)

    def diagonal(self, k: int) -> FloatArray:
        """Of matrix k, (n,)."""
        return np.diagonal(self.triangle(k)[0])

    def full(self, k: int) -> FloatArray:
        """A copy of matrix k with both triangles, (n, n)."""
        out = np.empty((self.n, self.n), self.dtype)
        self.rows(k, 0, out)
        return out

    def rows(self, k: int, first: int, out: FloatArray) -> None:
        """Rows of matrix k, from ``first`` on, into ``out`` (m, n)."""
        _rows(*self.triangle(k), first, out)

    def times(self, k: int, X: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Matrix k times X (n, m)."""
        a, lower = self.triangle(k)
        if X.shape[1] != 1 or self.n >= THREADS_FROM:
            return symmetric_times(a, X, lower=lower, out=out)
        out = np.empty_like(X) if out is None else out
        _times_column(a, lower, X[:, 0], out[:, 0])
        return out

    def from_left(self, X: FloatArray, k: int) -> FloatArray:
        """X (m, j) times the first j rows of matrix k, (m, n)."""
        (a, lower), j = self.triangle(k), X.shape[1]
        out = np.empty((len(X), self.n), X.dtype)
        symmetric_times(a[:j, :j], X, side="R", lower=lower, out=out[:, :j])
        if j < self.n:
            multiply(X, a[j:, :j] if lower else a[:j, j:], out[:, j:], transposed=lower)
        return out

    def sum_lower(self, first: int, last: int, out: FloatArray) -> None:
        """Rows ``first`` to ``last`` of the lower triangle of the sum of all into ``out`` (n, n)."""
        _sum_lower(self.squares, self.count, first, last, out)


@numba.njit(cache=True, nogil=True)
def _within(a, i, lower):  # type: ignore[no-untyped-def]
    """What row i of a triangle has beside the diagonal: part of ``a``, and its first column.

    Loops over such a slice count from 0: the compiler vectorises them only if no index could be negative.
    """
    first = 0 if lower else i + 1
    return a[i, first : i if lower else a.shape[1]], first


@numba.njit(cache=True, nogil=True)
def form_scaled(K, root, order, lower, out):  # type: ignore[no-untyped-def]
    """A triangle of I + D½ K D½ into ``out``, with D½ = diag(root) and the rows of K taken in this order."""
    for i in range(root.size):
        row = K[order[i]]
        mine, first = _within(out, i, lower)
        columns, factors = order[first:], root[first:]
        for j in range(mine.size):
            mine[j] = root[i] * row[columns[j]] * factors[j]
        out[i, i] = 1.0 + root[i] * row[order[i]] * root[i]


@numba.njit(cache=True, nogil=True)
def scale(a, root, lower):  # type: ignore[no-untyped-def]
    """D½ a D½ in place, in a triangle of ``a``."""
    for i in range(root.size):
        mine, first = _within(a, i, lower)
        factors = root[first:]
        for j in range(mine.size):
            mine[j] *= root[i] * factors[j]
        a[i, i] *= root[i] * root[i]


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def products_by_row(K, order, a, lower):  # type: ignore[no-untyped-def]
    """Σ_j K_ij a_ij for every i, rows of K taken in this order, ``a`` symmetric and given by a triangle, (n,)."""
    out = np.zeros(order.size)
    for i in range(order.size):
        row = K[order[i]]
        mine, first = _within(a, i, lower)
        columns, below = order[first:], out[first:]
        total = 0.0
        for j in range(mine.size):
            product = row[columns[j]] * mine[j]
            total += product
            below[j] += product
        out[i] += total + row[order[i]] * a[i, i]
    return out


@numba.njit(cache=True, nogil=True)
def mirror(a):  # type: ignore[no-untyped-def]
    """Copy the lower triangle to the upper one, in place, by tiles that stay in cache."""
    n = a.shape[0]
    tile = 64
    for i0 in range(0, n, tile):
        for j0 in range(0, i0 + 1, tile):
            for j in range(j0, min(j0 + tile, n)):
                for i in range(max(i0, j), min(i0 + tile, n)):
                    a[j, i] = a[i, j]


@numba.njit(cache=True, nogil=True)
def clear_upper(a):  # type: ignore[no-untyped-def]
    """Zeros above the diagonal, in place."""
    for i in range(a.shape[0]):
        a[i, i + 1 :] = 0.0


@numba.njit(cache=True, nogil=True)
def _rows(a, lower, first, out):  # type: ignore[no-untyped-def]
    m, n = out.shape
    tile = 32
    for p in range(m):
        i = first + p
        if lower:
            out[p, : i + 1] = a[i, : i + 1]
        else:
            out[p, i:] = a[i, i:]
    for r0 in range(first + 1 if lower else 0, n if lower else first + m, tile):
        for p in range(m):
            i = first + p
            for r in range(max(r0, i + 1) if lower else r0, min(r0 + tile, n if lower else i)):
                out[p, r] = a[r, i]


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _times_column(a, lower, x, out):  # type: ignore[no-untyped-def]
    """a x for symmetric ``a``, each number of its triangle read once."""
    out[:] = 0.0
    for i in range(x.size):
        mine, first = _within(a, i, lower)
        others, below = x[first:], out[first:]
        total, factor = a.dtype.type(0), x[i]
        for j in range(mine.size):
            total += mine[j] * others[j]
            below[j] += mine[j] * factor
        out[i] += total + a[i, i] * factor


@numba.njit(cache=True, nogil=True)
def _sum_lower(squares, count, first, last, out):  # type: ignore[no-untyped-def]
    for i in range(first, last):
        out[i, : i + 1] = squares[0, i + 1, : i + 1]
        for s in range(1, squares.shape[0]):
            for j in range(i + 1):
                out[i, j] += squares[s, i + 1, j]
    tile = 64
    for s in range(count // 2):
        for i0 in range(first, last, tile):
            for j0 in range(0, min(i0 + tile, last), tile):
                square = squares[s, j0 : j0 + tile, i0 : min(i0 + tile, last)]
                sums = out[i0 : min(i0 + tile, last), j0 : j0 + tile]
                for i in range(sums.shape[0]):
                    for j in range(min(sums.shape[1], i0 + i + 1 - j0)):
                        sums[i, j] += square[j, i]
