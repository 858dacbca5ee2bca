"""Factor and inverse by two threads against those of one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from nestgp import halves, threads
from nestgp.halves import ALONE, BOTH
from nestgp.lapack import NotPositiveDefiniteError
from tests.oracles._types import Array

SIZES = [1, 2, 15, 16, 17, 40, 401, 800]


def positive_definite(n: int, dtype: type = np.float64) -> Array:
    X = np.random.default_rng(n).standard_normal((n, n + 3))
    return np.asarray(X @ X.T / n + np.eye(n)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("n", SIZES)
def test_two_threads_do_what_one_does(n: int, lower: bool, dtype: type) -> None:
    one = positive_definite(n, dtype)
    two = one.copy()
    other = np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)
    one[other] = two[other] = np.nan  # that triangle is not looked at, and stays
    atol = 100 * n * float(np.finfo(dtype).eps)
    assert BOTH.cholesky(two, lower) == pytest.approx(ALONE.cholesky(one, lower), rel=1e-12 if dtype is np.float64 else 1e-5)
    assert_allclose(two, one, rtol=0, atol=atol)
    ones, twos = one.copy(), two.copy()
    ALONE.triangular_inverse(ones, lower)
    BOTH.triangular_inverse(twos, lower)
    assert_allclose(twos, ones, rtol=0, atol=atol)
    ALONE.inverse(one, lower)
    BOTH.inverse(two, lower)
    assert_allclose(two, one, rtol=0, atol=atol)
    assert np.isnan(two[other]).all()


def test_an_inverse_is_as_exact_as_lapacks_where_the_matrix_is_ill_conditioned() -> None:
    """|L E − I| must not grow with the condition of L₂₂, as it does if L₂₁ is multiplied by the inverse of L₂₂."""
    x = np.sort(np.random.default_rng(0).standard_normal(450))
    L = np.eye(450) + 1e8 * np.exp(-0.5 * (x[:, None] - x) ** 2)
    ALONE.cholesky(L, True)
    one, two = np.tril(L), np.tril(L)
    ALONE.triangular_inverse(one, True)
    BOTH.triangular_inverse(two, True)
    errors = [np.abs(np.tril(L) @ E - np.eye(450)).max() for E in (one, two)]
    assert errors[1] < 10.0 * errors[0]
    assert errors[1] < 1e-10


@pytest.mark.parametrize("where", [0, 399, 799])
def test_no_factor_is_an_error_wherever_it_ends(where: int) -> None:
    A = positive_definite(800)
    A[where, where] = -1.0
    with pytest.raises(NotPositiveDefiniteError):
        halves.cholesky_in_place(A)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_gram_in_bands(transposed: bool, workers: int) -> None:
    X = np.random.default_rng(0).standard_normal((7, 40) if transposed else (40, 7))
    C = positive_definite(40)
    expected = np.tril(C + 2.0 * (X.T @ X if transposed else X @ X.T))
    upper = C[np.triu_indices(40, 1)].copy()
    halves.add_gram_in_bands(C, X, 2.0, transposed, workers)
    assert_allclose(np.tril(C), expected, rtol=0, atol=1e-12)
    assert_array_equal(C[np.triu_indices(40, 1)], upper)


@pytest.mark.parametrize(
    ("count", "workers", "n", "expected"),
    [
        (3, 2, 500, [ALONE, ALONE, BOTH]),
        (4, 2, 500, 4 * [ALONE]),
        (3, 2, 300, 3 * [ALONE]),
        (1, 1, 500, [ALONE]),
        (1, 3, 500, [BOTH]),
    ],
)
def test_only_one_that_is_left_over_has_two_threads(
    count: int, workers: int, n: int, expected: list[halves.Routines]
) -> None:
    found = {}

    def task(k: int, routines: halves.Routines) -> None:
        found[k] = routines

    halves.for_each_matrix(task, count, n, workers)
    assert [found[k] for k in range(count)] == expected
    assert threads.left_over(count, n, workers) == (expected[-1] is BOTH)
