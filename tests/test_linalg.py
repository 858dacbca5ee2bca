"""The block algebra against dense cn × cn matrices."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from nestgp import linalg, symmetric, threads
from nestgp.lapack import NotPositiveDefiniteError
from nestgp.linalg import DenseBlocks, unpack_blocks
from nestgp.sites import site_locations, site_means, site_weights
from tests.oracles._types import Array, Labels
from tests.oracles.dense import (
    dense_m,
    dense_posterior,
    dense_predict,
    marginal,
    stacked_prior,
    stacked_sites,
)
from tests.oracles.reference import squared_exponential


def make(
    n: int, c: int, per_class: bool, smallest: float = 0.05, s2: float = 2.0
) -> tuple[Array, Array, Array, Labels]:
    """K, and sites α̃, β̃ (c, n) whose α̃ spread over the decades from ``smallest`` to 1."""
    rng = np.random.default_rng(n + c)
    X = rng.standard_normal((n, 2))
    y = rng.permutation(np.arange(n) % c)
    K = squared_exponential(X, X, s2, np.ones(2))
    if per_class:
        K = np.stack([squared_exponential(X, X, s2 * (1 + k), np.ones(2) / (1 + 0.3 * k)) for k in range(c)])
    alpha = np.exp(rng.uniform(np.log(smallest), 0.0, (c, n)))
    beta = alpha * rng.standard_normal((c, n))
    alpha[y, np.arange(n)] = beta[y, np.arange(n)] = 0.0
    return K, alpha, beta, y


@pytest.fixture(params=[(1, 256), (1, 5), (10**6, 256)], ids=["by class", "by class, few at a time", "all classes alike"])
def grouping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How points are grouped for their marginal covariances, whatever their number: one product for nothing, or none."""
    monkeypatch.setattr(linalg, "MARGINAL_POINTS", request.param)


def refreshed(K: Array, alpha: Array, y: Labels) -> DenseBlocks:
    blocks = DenseBlocks(K, alpha.shape[0])
    blocks.refresh(site_weights(alpha, y))
    return blocks


CASES = [
    (n, c, per_class, smallest)
    for n, c in [(1, 2), (5, 3), (12, 4), (9, 8)]
    for per_class in (False, True)
    for smallest in (0.05, 1e-6, 1e-14)
]


@pytest.mark.usefixtures("grouping")
@pytest.mark.parametrize(("n", "c", "per_class", "smallest"), CASES)
def test_posterior_against_dense(n: int, c: int, per_class: bool, smallest: float) -> None:
    K, alpha, beta, y = make(n, c, per_class, smallest)
    blocks = refreshed(K, alpha, y)
    mu, Sigma = dense_posterior(K, alpha, beta, y)
    full, M = stacked_prior(K, c), dense_m(K, alpha, y)
    T, _, _ = stacked_sites(alpha, y)

    pi = site_weights(alpha, y)
    b = blocks.solve(site_means(beta, pi))
    nu = site_locations(beta, pi).ravel()
    assert_allclose(b.ravel(), nu - M @ full @ nu, rtol=0, atol=1e-12)
    assert_allclose(b.sum(axis=0), 0.0, atol=1e-12)
    assert_allclose(blocks.multiply_kernel(b), mu, rtol=0, atol=1e-11)
    covs = unpack_blocks(blocks.marginal_blocks())
    assert_allclose(covs, [marginal(mu, Sigma, i)[1] for i in range(n)], rtol=0, atol=1e-11)
    assert blocks.log_det == pytest.approx(np.linalg.slogdet(np.eye(c * n) + full @ T)[1], abs=1e-11)


@pytest.mark.parametrize(("n", "c", "per_class", "smallest"), CASES)
def test_m_blocks_and_predictions_against_dense(n: int, c: int, per_class: bool, smallest: float) -> None:
    K, alpha, beta, y = make(n, c, per_class, smallest)
    blocks = refreshed(K, alpha, y)
    M = dense_m(K, alpha, y)
    each = [M[k * n : (k + 1) * n, k * n : (k + 1) * n] for k in range(c)]
    for k in range(c):
        assert_allclose(blocks.m_blocks(k), each[k], rtol=0, atol=1e-12)
    assert_allclose(blocks.m_blocks(), np.sum(each, axis=0), rtol=0, atol=1e-12)

    rng = np.random.default_rng(1)
    shape = (c, n, 6) if per_class else (n, 6)
    k_star = rng.uniform(0.0, 1.0, shape)
    prior = rng.uniform(2.0, 3.0, (c, 6) if per_class else 6)
    _, cov = dense_predict(K, k_star, prior, alpha, beta, y)
    assert_allclose(blocks.predict(k_star, prior), cov, rtol=0, atol=1e-11)


def test_a_shift_of_the_site_means_common_to_all_classes_changes_nothing() -> None:
    K, alpha, beta, y = make(12, 4, True)
    blocks = refreshed(K, alpha, y)
    w = site_means(beta, site_weights(alpha, y))
    shift = np.random.default_rng(0).standard_normal(12)
    assert_allclose(blocks.solve(w + shift), blocks.solve(w), rtol=0, atol=1e-12)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.usefixtures("grouping")
@pytest.mark.parametrize(("n", "c"), [(300, 2), (300, 3), (410, 3)])
def test_any_number_of_threads_agrees_with_dense_above_the_thresholds(
    n: int, c: int, per_class: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert n > threads.THREADS_FROM
    assert (n >= threads.SHARED_FROM) == (n == 410)
    monkeypatch.setattr(symmetric, "SHARED_NUMBERS", 0)
    K, alpha, beta, y = make(n, c, per_class, smallest=1e-10)
    mu, Sigma = dense_posterior(K, alpha, beta, y)
    M = dense_m(K, alpha, y)
    rows, cols = np.tril_indices(c)
    packed = np.stack(
        [[Sigma[k * n + i, m * n + i] for i in range(n)] for k, m in zip(rows, cols, strict=True)]
    )
    found = []
    for count in (1, 2, 3):
        monkeypatch.setattr("nestgp.threads.blas_threads", lambda count=count: count)
        blocks = refreshed(K, alpha, y)
        mean = blocks.multiply_kernel(blocks.solve(site_means(beta, site_weights(alpha, y))))
        assert_allclose(mean, mu, rtol=0, atol=1e-9)
        assert_allclose(blocks.marginal_blocks(), packed, rtol=0, atol=1e-9)
        assert_allclose(blocks.m_blocks(1), M[n : 2 * n, n : 2 * n], rtol=0, atol=1e-9)
        every = sum(M[k * n : (k + 1) * n, k * n : (k + 1) * n] for k in range(c))
        assert_allclose(blocks.m_blocks(), every, rtol=0, atol=1e-9)
        found.append((blocks.log_det, blocks.marginal_blocks()))
    for log_det, marginals in found[1:]:
        assert log_det == pytest.approx(found[0][0], abs=1e-10)
        assert_allclose(marginals, found[0][1], rtol=0, atol=1e-10)


@pytest.mark.usefixtures("grouping")
@pytest.mark.parametrize("log_s2", [8.0, 12.0, 16.0])
@pytest.mark.parametrize("length", [1.0, 100.0])
def test_predictions_at_the_training_points_are_the_marginals_for_large_variances(
    log_s2: float, length: float
) -> None:
    # K_** − K_*ᵀMK_* subtracts numbers of size σ²: ε σ² is what rounding must cost, ε σ⁴ what it must not.
    rng = np.random.default_rng(2)
    X = rng.standard_normal((24, 2))
    y = np.arange(24) % 3
    K = squared_exponential(X, X, np.exp(log_s2), np.full(2, length))
    alpha = rng.uniform(0.01, 1.0, (3, 24))
    alpha[y, np.arange(24)] = 0.0
    blocks = refreshed(K, alpha, y)
    spread = (
        np.eye(3) - 1 / 3
    )  # what the classes have in common, of variance σ²/3, is not seen by any likelihood
    predicted = spread @ blocks.predict(K, np.diagonal(K)) @ spread
    marginals = spread @ unpack_blocks(blocks.marginal_blocks()) @ spread
    assert_allclose(predicted, marginals, rtol=1e-8, atol=100 * np.finfo(float).eps * np.exp(log_s2))


@pytest.mark.usefixtures("grouping")
def test_single_precision_is_that_of_its_numbers() -> None:
    K, alpha, _, y = make(30, 3, False)
    double, single = refreshed(K, alpha, y), DenseBlocks(K.astype(np.float32), 3)
    single.refresh(site_weights(alpha, y))
    exact = double.marginal_blocks()
    assert_allclose(single.marginal_blocks(), exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    w = np.random.default_rng(4).normal(size=(3, 30))
    assert_allclose(single.solve(w), double.solve(w), rtol=0, atol=1e-4)


@pytest.mark.parametrize("c", [2, 3, 8])
def test_the_class_that_follows_from_the_others_is_as_good_as_any(c: int) -> None:
    K, alpha, _, y = make(40, c, False, s2=linalg.LARGE_VARIANCE)
    blocks = refreshed(K, alpha, y)
    k_star, prior = K[:, :7], np.diagonal(K)[:7]
    each = blocks.predict(k_star, np.tile(prior, (c, 1)))  # priors of their own: no class follows
    assert_allclose(blocks.predict(k_star, prior), each, rtol=0, atol=1e-9)
    assert_allclose(each.sum(axis=2), np.tile(prior[:, None], c), rtol=1e-11)


def test_no_new_input_is_no_error() -> None:
    K, alpha, _, y = make(6, 3, False)
    assert refreshed(K, alpha, y).predict(np.empty((6, 0)), np.empty(0)).shape == (0, 3, 3)


def test_the_total_weight_may_be_given() -> None:
    K, alpha, _, y = make(6, 3, False)
    blocks = refreshed(K, alpha, y)
    other = DenseBlocks(K, 3)
    other.refresh(site_weights(alpha, y), total=1.0 + alpha.sum(axis=0))
    assert other.log_det == pytest.approx(blocks.log_det, abs=1e-13)


@pytest.mark.parametrize("per_class", [False, True])
def test_a_kernel_with_a_negative_eigenvalue_is_refused_by_name(per_class: bool) -> None:
    K = np.array([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])
    assert np.linalg.eigvalsh(K)[0] < -0.5
    if per_class:
        with pytest.raises(NotPositiveDefiniteError, match="of class 1 is not positive"):
            DenseBlocks(np.stack([np.eye(3), K]), 2).check_kernel()
    else:
        with pytest.raises(NotPositiveDefiniteError, match="kernel matrix is not positive"):
            DenseBlocks(K, 2).check_kernel()


def test_a_singular_kernel_is_not_refused() -> None:
    x = np.ones((5, 1))
    DenseBlocks(x @ x.T, 2).check_kernel()
    DenseBlocks(np.zeros((5, 5)), 2).check_kernel()


def test_unpacking_is_symmetric_and_in_row_order() -> None:
    packed = np.arange(12.0).reshape(6, 2)
    assert_allclose(unpack_blocks(packed)[1], [[1, 3, 7], [3, 5, 9], [7, 9, 11]])


@pytest.mark.parametrize("s2", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("c", [2, 5])
def test_error_of_log_det_in_single_precision_is_foreseen(c: int, s2: float) -> None:
    K, alpha, _, y = make(150, c, False, s2=s2)
    double, single = refreshed(K, alpha, y), refreshed(K.astype(np.float32), alpha, y)
    error = abs(single.log_det - double.log_det)
    assert 0.0 < error < single.log_det_error
    assert single.log_det_error == pytest.approx(double.log_det_error * 2.0**29, rel=0.01)
    assert single.log_det_error < 3.0 * 150 * c * np.finfo(np.float32).eps * (1.0 + s2)  # A_jj <= 1 + s2, L_jj >= 1; and of P


@pytest.mark.parametrize("c", [2, 3, 4])
def test_m_blocks_in_single_precision(c: int) -> None:
    K, alpha, _, y = make(40, c, False)
    double, single = refreshed(K, alpha, y), refreshed(K.astype(np.float32), alpha, y)
    for k in (None, *range(c)):
        found = single.m_blocks(k)
        assert found.dtype == np.float32
        assert_allclose(found, double.m_blocks(k), rtol=0, atol=2e-5)
