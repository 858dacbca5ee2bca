"""Factors, inverses and products of row-major arrays against NumPy's."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from numpy.testing import assert_allclose

from nestgp import lapack
from nestgp.lapack import NotPositiveDefiniteError


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize(("n", "m"), [(30, 1), (300, 1), (300, 4), (30, 0)])
def test_symmetric_times(n: int, m: int, lower: bool, dtype: type) -> None:
    rng = np.random.default_rng(n)
    A, X = rng.standard_normal((2, n, n)), rng.standard_normal((n, m + 1)).astype(dtype)[:, :m]
    A = (A + A.transpose(0, 2, 1)).astype(dtype)
    full = A[1].copy()
    A[1][np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)] = np.nan  # the other triangle is not looked at
    atol = n * 10 * np.finfo(dtype).eps
    for found, expected in [
        (lapack.symmetric_times(A[1], X, lower=lower), full @ X),
        (lapack.symmetric_times(A[1], X.T, side="R", lower=lower), X.T @ full),
        (lapack.symmetric_times(A[1], X, lower=lower, out=np.full((n, m + 2), np.nan, dtype)[:, :m]), full @ X),
    ]:
        assert found.dtype == dtype
        assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("n", [30, 300])
def test_multiply_by_a_transpose(n: int) -> None:
    A, B = np.random.default_rng(n).standard_normal((2, n, n))
    out = np.full((n, n), np.nan)
    lapack.multiply(A[:, :20], B[:25, :20], out[:, :25], transposed=True)
    assert_allclose(out[:, :25], A[:, :20] @ B[:25, :20].T, rtol=0, atol=1e-12)
    assert np.isnan(out[:, 25:]).all()


def test_another_layout_or_precision_is_refused() -> None:
    A, B = np.random.default_rng(0).standard_normal((2, 60, 60))
    assert_allclose(lapack.multiply(A, B), A @ B, rtol=0, atol=1e-12)
    single = A.astype(np.float32)
    for operate in (
        lambda: lapack.multiply(A, B.T),
        lambda: lapack.multiply(A, single),
        lambda: lapack.lower_times_in_place(A, B.T),
        lambda: lapack.cholesky_in_place(A[:, ::2]),
        lambda: lapack.multiply(A[::-1], B),
        lambda: lapack.multiply(A, np.broadcast_to(B[0], B.shape)),
    ):
        with pytest.raises(ValueError, match="row-major arrays of one precision"):
            operate()


def test_part_of_a_larger_matrix_is_factorised() -> None:
    A = np.random.default_rng(1).standard_normal((9, 9))
    A = A @ A.T + np.eye(9)
    whole = A.copy()
    assert lapack.cholesky_in_place(whole[:5, :5]) == pytest.approx(np.linalg.slogdet(A[:5, :5])[1], abs=1e-12)
    assert_allclose(np.tril(whole[:5, :5]), np.linalg.cholesky(A[:5, :5]), rtol=0, atol=1e-12)
    assert_allclose(whole[5:], A[5:])


def test_a_matrix_without_cholesky_factor_raises() -> None:
    with pytest.raises(NotPositiveDefiniteError):
        lapack.cholesky_in_place(np.array([[1.0, 2.0], [2.0, 1.0]]))


def test_factor_inverse_and_triangular_inverse() -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((7, 7))
    A = A @ A.T + np.eye(7)
    L = A.copy()
    assert lapack.cholesky_in_place(L) == pytest.approx(np.linalg.slogdet(A)[1], abs=1e-12)
    assert_allclose(np.tril(L), np.linalg.cholesky(A), rtol=0, atol=1e-12)
    inverse, triangular = L.copy(), L.copy()
    lapack.inverse_from_cholesky_in_place(inverse)
    assert_allclose(np.tril(inverse), np.tril(np.linalg.inv(A)), rtol=0, atol=1e-12)
    lapack.triangular_inverse_in_place(triangular)
    assert_allclose(np.tril(triangular), np.linalg.inv(np.linalg.cholesky(A)), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(np.triu(triangular, 1), np.triu(A, 1))  # stays as it is


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("columns", [1, 4])
def test_products_with_a_triangle(columns: int, transposed: bool, dtype: type) -> None:
    rng = np.random.default_rng(5)
    full = rng.normal(size=(9, 9)).astype(dtype)  # what is above the diagonal is not looked at
    L = np.tril(full).T if transposed else np.tril(full)
    X = rng.normal(size=(9, columns)).astype(dtype)
    left, right = X.copy(), X.T.copy(order="C")
    lapack.lower_times_in_place(full, left, transposed=transposed)
    lapack.lower_times_in_place(full, right, "R", transposed=transposed, factor=-2.0)
    assert_allclose(left, L @ X, rtol=0, atol=1e-12 if dtype is np.float64 else 1e-5)
    assert_allclose(right, -2.0 * X.T @ L, rtol=0, atol=1e-12 if dtype is np.float64 else 1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arithmetic_on_parts_in_either_order(order: Literal["C", "F"], transposed: bool, dtype: type) -> None:
    """Triangles may be row-major or column-major, and so may what they meet."""
    rng = np.random.default_rng(6)
    whole = np.array(rng.normal(size=(12, 12)) + 12 * np.eye(12), dtype=dtype, order=order)
    before = whole.astype(np.float64)
    part, L, C = (slice(7, 12), slice(0, 7)), np.tril(before[:7, :7]), before[7:, 7:]
    atol = 1e-12 if dtype is np.float64 else 1e-4
    for operate, T in [
        (lapack.lower_times_in_place, L.T if transposed else L),
        (lapack.solve_lower_in_place, np.linalg.inv(L.T if transposed else L)),
    ]:
        now = whole.copy(order="K")
        operate(now[:7, :7], now[part], "R", transposed=transposed)
        assert_allclose(now[part], before[part] @ T, rtol=0, atol=atol)
        now[part] = whole[part]
        np.testing.assert_array_equal(now, whole)
        now = whole.copy(order="K")
        operate(now[:7, :7], now[:7, 7:], "L", transposed=transposed)
        assert_allclose(now[:7, 7:], T @ before[:7, 7:], rtol=0, atol=atol)
    X = np.array(rng.normal(size=(4, 5) if transposed else (5, 4)), dtype=dtype, order=order)
    Y = np.array(rng.normal(size=(4, 3) if transposed else (3, 4)), dtype=dtype, order=order)
    now = whole.copy(order="K")
    lapack.add_gram(now[7:, 7:], X, -0.5, transposed)
    lapack.add_product(now[:5, :3], X, Y, 2.0, transposed)
    gram, product = (X.T @ X, X.T @ Y) if transposed else (X @ X.T, X @ Y.T)
    assert_allclose(np.tril(now[7:, 7:]), np.tril(C - 0.5 * gram), rtol=0, atol=atol)
    assert_allclose(now[:5, :3], before[:5, :3] + 2.0 * product, rtol=0, atol=atol)


def test_rows_shared_out_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    A, B = np.random.default_rng(7).normal(size=(61, 40)), np.random.default_rng(8).normal(size=(40, 30))
    monkeypatch.setattr(lapack, "SHARED_PRODUCT", 0)
    for count in (1, 2, 3):
        monkeypatch.setattr("nestgp.threads.blas_threads", lambda count=count: count)
        assert_allclose(lapack.multiply_by_rows(A, B), A @ B, rtol=0, atol=1e-12)
