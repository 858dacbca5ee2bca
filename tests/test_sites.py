"""Sites: the identities of eqs. 16 and 19."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from nestgp.sites import PI_FLOOR, onehot, site_locations, site_means, site_precision, site_weights, times_precision
from tests.oracles._types import Array, Labels
from tests.oracles.dense import site_matrices


def random_sites(c: int, n: int = 7) -> tuple[Array, Array, Labels]:
    """α̃ over twelve decades, β̃ in proportion."""
    rng = np.random.default_rng(c)
    y = rng.integers(0, c, n)
    alpha = 10.0 ** rng.uniform(-12, 1, (c, n))
    beta = alpha * rng.standard_normal((c, n))
    alpha[y, np.arange(n)] = beta[y, np.arange(n)] = 0.0
    return alpha, beta, y


@pytest.mark.parametrize("c", [2, 3, 8])
def test_precision_and_location_are_those_printed(c: int) -> None:
    alpha, beta, y = random_sites(c)
    pi = site_weights(alpha, y)
    Pi, nu = site_matrices(alpha, beta, y)
    assert_allclose(pi, alpha + onehot(y, c), rtol=1e-15)
    assert_allclose(site_precision(pi), Pi, rtol=1e-12, atol=1e-15)
    assert_allclose(site_locations(beta, pi), nu, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("c", [2, 3, 8])
def test_the_sites_do_not_see_what_the_classes_have_in_common(c: int) -> None:
    alpha, beta, y = random_sites(c)
    pi = site_weights(alpha, y)
    Pi, nu = site_precision(pi), site_locations(beta, pi)
    assert_allclose(Pi.sum(axis=2), 0.0, atol=4e-16 * np.abs(Pi).max())
    assert_allclose(nu.sum(axis=0), 0.0, atol=1e-15 * max(1.0, np.abs(nu).max()))
    assert np.linalg.eigvalsh(Pi).min() >= -1e-15 * np.abs(Pi).max()
    assert_array_equal(Pi, np.swapaxes(Pi, 1, 2))


def test_precision_keeps_the_digits_of_tiny_weights() -> None:
    # With π = (1, ε) both variances of Π are ε/(1 + ε); 1 − 1/(1 + ε) would have kept none of its digits.
    pi = np.array([[1.0], [1e-17]])
    assert_allclose(site_precision(pi)[0], 1e-17 * np.array([[1.0, -1.0], [-1.0, 1.0]]), rtol=1e-15)


def test_location_is_precision_times_mean() -> None:
    alpha, beta, y = random_sites(4)
    pi = site_weights(alpha, y)
    product = np.einsum("ikl,li->ki", site_precision(pi), site_means(beta, pi))
    assert_allclose(product, site_locations(beta, pi), rtol=1e-12, atol=1e-15)


def test_precision_times_a_vector_needs_no_matrix() -> None:
    alpha, _, y = random_sites(4)
    pi, v = site_weights(alpha, y), np.random.default_rng(1).standard_normal((4, y.size, 2))
    product = np.einsum("ikl,liq->kiq", site_precision(pi), v)
    assert_allclose(times_precision(pi[:, :, None], v), product, rtol=1e-12, atol=1e-14)


def test_zero_precision_is_floored_and_the_observed_class_has_weight_one() -> None:
    y = np.array([0, 2])
    pi = site_weights(np.zeros((3, 2)), y)
    assert_array_equal(pi[y, [0, 1]], 1.0)
    assert_array_equal(np.sort(pi, axis=0)[:2], PI_FLOOR)
    assert_array_equal(onehot(y, 3), [[1, 0], [0, 0], [0, 1]])
