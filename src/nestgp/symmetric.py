"""Symmetric matrices in half the space: two share the square of one, a triangle each; and what is done with triangles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

from nestgp.arrays import FloatArray
from nestgp.lapack import multiply, symmetric_times
from nestgp.threads import bands, for_each

#: Tile of a transposition: of that size a copy touches few enough lines of both arrays for the fastest cache.
TILE = 8
#: Numbers read for products with vectors from which on threads share them.
SHARED_NUMBERS = 1_000_000


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
        return symmetric_times(a, X, lower=lower, out=out)

    def times_each(self, X: FloatArray, workers: int) -> FloatArray:
        """Every matrix times an X of its own, X (c, n, m)."""
        if X.shape[2] == 1:
            triangles = [self.triangle(k) for k in range(self.count)]
            return times_vectors(triangles, X.transpose(0, 2, 1), workers).transpose(0, 2, 1)
        out = np.empty(X.shape, self.dtype)

        def work(k: int) -> None:
            self.times(k, X[k], out[k])

        for_each(work, self.count, workers)
        return out

    def from_left(self, X: FloatArray, k: int, out: FloatArray) -> None:
        """X (m, j) times the first j rows of matrix k into ``out`` (m, n)."""
        (a, lower), j = self.triangle(k), X.shape[1]
        symmetric_times(a[:j, :j], X, side="R", lower=lower, out=out[:, :j])
        if j < self.n:
            multiply(X, a[j:, :j] if lower else a[:j, j:], out[:, j:], transposed=lower)

    def sum_lower(self, out: FloatArray, workers: int) -> None:
        """Lower triangle of the sum of all into that of ``out`` (n, n)."""
        parts = bands(self.n, workers)

        def work(band: int) -> None:
            first, last = parts[band]
            _sum_lower(self.squares, self.count, first, last, out)

        for_each(work, workers, workers)


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
def transpose(a, out):  # type: ignore[no-untyped-def]
    """aᵀ into ``out``, by tiles."""
    m, n = a.shape
    whole, columns = m - m % TILE, n - n % TILE
    for i0 in range(0, whole, TILE):
        for j0 in range(0, columns, TILE):
            for i in range(TILE):
                for j in range(TILE):
                    out[j0 + j, i0 + i] = a[i0 + i, j0 + j]
        for i in range(i0, i0 + TILE):
            for j in range(columns, n):
                out[j, i] = a[i, j]
    for i in range(whole, m):
        for j in range(n):
            out[j, i] = a[i, j]


def mirror(a: FloatArray, workers: int = 1) -> None:
    """Copy the lower triangle to the upper one, in place."""
    parts = bands(len(a), workers)

    def work(band: int) -> None:
        first, last = parts[band]
        _mirror(a, first, last)

    for_each(work, workers, workers)


@numba.njit(cache=True, nogil=True)
def _mirror(a, first, last):  # type: ignore[no-untyped-def]
    tile = 64
    for i0 in range(first, last, tile):
        i1 = min(i0 + tile, last)
        transpose(a[i0:i1, :i0], a[:i0, i0:i1])
        for i in range(i0, i1):
            for j in range(i0, i):
                a[j, i] = a[i, j]


@numba.njit(cache=True, nogil=True)
def clear_upper(a):  # type: ignore[no-untyped-def]
    """Zeros above the diagonal, in place."""
    for i in range(a.shape[0]):
        a[i, i + 1 :] = 0.0


def times_vectors(triangles: Sequence[tuple[FloatArray, bool]], X: FloatArray, workers: int) -> FloatArray:
    """Symmetric matrices (n, n), each given by its lower (True) or upper triangle, times q vectors each: X (c, q, n) → (c, q, n).

    Memory bounds such products, so every triangle is read once, whatever q.
    """
    c, _, n = X.shape
    X = np.ascontiguousarray(X, triangles[0][0].dtype)
    workers = workers if c * n * n >= 2 * SHARED_NUMBERS else 1
    parts, sums = bands(n, workers), np.zeros((workers, *X.shape), X.dtype)

    def work(band: int) -> None:
        first, last = parts[band]
        for k, (a, lower) in enumerate(triangles):
            begin, end = (first, last) if lower else (n - last, n - first)
            _add_products(a, lower, begin, end, X[k], sums[band, k])

    for_each(work, workers, workers)
    return sums[0] if workers == 1 else sums.sum(axis=0)


@numba.njit(cache=True, nogil=True)
def _rows(a, lower, first, out):  # type: ignore[no-untyped-def]
    m, last = len(out), first + len(out)
    for p in range(m):
        i = first + p
        if lower:
            out[p, : i + 1] = a[i, : i + 1]
            for r in range(i + 1, last):
                out[p, r] = a[r, i]
        else:
            out[p, i:] = a[i, i:]
            for r in range(first, i):
                out[p, r] = a[r, i]
    if lower:
        transpose(a[last:, first:last], out[:, last:])
    else:
        transpose(a[:first, first:last], out[:, :first])


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _add_products(a, lower, first, last, X, out):  # type: ignore[no-untyped-def]
    """out += what rows ``first`` to ``last`` of a triangle of symmetric ``a`` add to a x, for every x in X; by pairs of rows."""
    zero = a.dtype.type(0)
    for i in range(first, last, 2):
        pair = i + 1 < last
        low, high = (0, i) if lower else (i + 1 + pair, a.shape[1])
        mine, next_mine = a[i, low:high], a[i + pair, low:high]
        between = zero
        if pair:
            between = a[i + 1, i] if lower else a[i, i + 1]
        for q in range(len(X)):
            others, below = X[q, low:high], out[q, low:high]
            x, next_x = X[q, i], X[q, i + 1] if pair else zero
            total, next_total = zero, zero
            for j in range(others.size):
                total += mine[j] * others[j]
                next_total += next_mine[j] * others[j]
                below[j] += mine[j] * x + next_mine[j] * next_x
            out[q, i] += total + a[i, i] * x + between * next_x
            if pair:
                out[q, i + 1] += next_total + between * x + a[i + 1, i + 1] * next_x


@numba.njit(cache=True, nogil=True)
def _sum_lower(squares, count, first, last, out):  # type: ignore[no-untyped-def]
    tile = 64
    turned = np.empty((tile, tile), out.dtype)
    for i0 in range(first, last, tile):
        i1 = min(i0 + tile, last)
        for i in range(i0, i1):
            out[i, : i + 1] = squares[0, i + 1, : i + 1]
            for s in range(1, squares.shape[0]):
                for j in range(i + 1):
                    out[i, j] += squares[s, i + 1, j]
        for s in range(count // 2):
            for j0 in range(0, i1, tile):
                square = squares[s, j0 : min(j0 + tile, i1), i0:i1]
                transpose(square, turned)
                for i in range(i1 - i0):
                    sums = out[i0 + i, j0 : min(j0 + len(square), i0 + i + 1)]
                    for j in range(sums.size):
                        sums[j] += turned[i, j]
