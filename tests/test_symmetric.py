"""Symmetric matrices that share a square, against full ones; garbage in the other's triangle must not matter."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from nestgp import symmetric
from nestgp.lapack import cholesky_in_place, inverse_from_cholesky_in_place
from nestgp.symmetric import SymmetricStack, form_scaled, mirror, products_by_row, scale
from tests.oracles._types import Array

SIZES = [(1, 1), (2, 1), (3, 2), (3, 40), (4, 131), (5, 300)]


def stack_of(count: int, n: int, dtype: type = np.float64) -> tuple[SymmetricStack, list[Array], Array, Array]:
    """A stack, what its matrices must be, and the kernel matrix and order that they were formed from."""
    rng = np.random.default_rng(10 * n + count)
    K = np.asarray(rng.standard_normal((n, n)))
    K = (K + K.T).astype(dtype)
    order, roots = rng.permutation(n), rng.uniform(0.5, 2.0, (count, n)).astype(dtype)
    stack = SymmetricStack(count, n, dtype)
    stack.squares[:] = np.nan  # whatever reads more than it may is found out
    for k in range(count):
        A, lower = stack.triangle(k)
        form_scaled(K, roots[k], order, lower, A)
    sorted_K = K[np.ix_(order, order)]
    return stack, [np.eye(n) + np.outer(r, r) * sorted_K for r in roots], K, order


def from_left(stack: SymmetricStack, X: Array, k: int) -> Array:
    out = np.full((len(X), stack.n), np.nan, stack.dtype)
    stack.from_left(X, k, out)
    return out


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("count", "n"), SIZES)
def test_every_operation_is_that_of_the_full_matrices(count: int, n: int, dtype: type) -> None:
    stack, full, K, order = stack_of(count, n, dtype)
    rng = np.random.default_rng(0)
    X, L = rng.standard_normal((n, 3)).astype(dtype), rng.standard_normal((2, n)).astype(dtype)
    rtol = atol = 100 * n * float(np.finfo(dtype).eps)
    for k, A in enumerate(full):
        for found, expected in [
            (stack.full(k), A),
            (stack.diagonal(k), np.diagonal(A)),
            (stack.times(k, X), A @ X),
            (stack.times(k, X[:, :1].copy()), A @ X[:, :1]),
            (from_left(stack, L, k), L @ A),
            (from_left(stack, L[:, : n // 2 + 1].copy(), k), L[:, : n // 2 + 1] @ A[: n // 2 + 1]),
            (products_by_row(K, order, *stack.triangle(k)), (K[np.ix_(order, order)] * A).sum(axis=1)),
        ]:
            assert_allclose(found, expected, rtol=rtol, atol=atol)
        for first, rows in [(0, 1), (n // 3, n - n // 3), (n - 1, 1)]:
            out = np.full((rows, n), np.nan, dtype)
            stack.rows(k, first, out)
            assert_array_equal(out, stack.full(k)[first : first + rows])


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(("count", "n"), SIZES)
def test_the_sum_is_that_of_all_whatever_the_bands(count: int, n: int, workers: int) -> None:
    stack, full, _, _ = stack_of(count, n)
    out = np.full((n, n), np.nan)
    stack.sum_lower(out, workers)
    assert_allclose(np.tril(out), np.tril(np.sum(full, axis=0)), rtol=0, atol=1e-12)
    assert np.isnan(out[np.triu_indices(n, 1)]).all()
    mirror(out, workers)
    assert_allclose(out, np.sum(full, axis=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(("count", "n"), SIZES)
def test_products_with_vectors_whatever_the_bands(
    count: int, n: int, workers: int, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(symmetric, "SHARED_NUMBERS", 0)
    stack, full, _, _ = stack_of(count, n, dtype)
    X = np.random.default_rng(1).standard_normal((count, n, 4))
    tolerance = 100 * n * float(np.finfo(dtype).eps)
    for columns in (1, 4):
        found = stack.times_each(X[:, :, :columns].astype(dtype), workers)
        assert found.dtype == dtype
        assert_allclose(found, np.array(full) @ X[:, :, :columns], rtol=0, atol=tolerance)
    for k, A in enumerate(full):  # several vectors by one matrix
        found = symmetric.times_vectors([stack.triangle(k)], X[:1].transpose(0, 2, 1), workers)
        assert_allclose(found[0].T, A @ X[0], rtol=0, atol=tolerance)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 30), (8, 8), (19, 64), (130, 3)])
def test_transposition_of_any_shape(rows: int, columns: int) -> None:
    a = np.random.default_rng(0).standard_normal((rows, columns + 2))
    out = np.full((columns, rows + 1), np.nan)
    symmetric.transpose(a[:, 1:-1], out[:, :-1])
    assert_array_equal(out[:, :-1], a[:, 1:-1].T)
    assert np.isnan(out[:, -1]).all()


@pytest.mark.parametrize("n", [40, 300])
def test_two_in_a_square_are_inverted_at_the_same_time(n: int) -> None:
    def invert(stack: SymmetricStack, k: int) -> float:
        A, lower = stack.triangle(k)
        scale(A, np.full(n, 0.5), lower)
        A[np.diag_indices(n)] += n
        log_det = cholesky_in_place(A, lower)
        inverse_from_cholesky_in_place(A, lower)
        return log_det

    stack, full, _, _ = stack_of(4, n)
    alone = stack_of(4, n)[0]
    expected = [invert(alone, k) for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda k: invert(stack, k), range(4))) == expected
    assert_array_equal(stack.squares, alone.squares)
    for k, A in enumerate(full):
        shifted = 0.25 * A + n * np.eye(n)
        assert expected[k] == pytest.approx(np.linalg.slogdet(shifted)[1], rel=1e-12)
        assert_allclose(stack.full(k), np.linalg.inv(shifted), rtol=0, atol=1e-14)
