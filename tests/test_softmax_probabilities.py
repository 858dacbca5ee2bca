"""E[softmax(f)] under Gaussian latents: against a tensor grid, long quasi-Monte Carlo, and what must hold exactly."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import quad
from scipy.special import softmax

from nestgp.predict import class_probabilities, softmax_exact_log_probabilities
from tests.oracles._types import Array
from tests.oracles.softmax import softmax_probabilities_grid, softmax_probabilities_qmc


def random_latents(m: int, c: int, scale: float, seed: int = 0) -> tuple[Array, Array]:
    """Means (m, c) and covariances (m, c, c) of typical size ``scale``."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((m, c, c))
    cov = scale * (A @ np.swapaxes(A, 1, 2) / c + 0.1 * np.eye(c))
    return np.sqrt(scale) * rng.standard_normal((m, c)), cov


def probabilities(mean: Array, cov: Array) -> Array:
    """(m, c), normalised, by the library's rule."""
    return np.exp(class_probabilities(mean[None], cov[None], "exact", "softmax"))


@pytest.mark.parametrize("scale", [1e-4, 0.1, 1.0, 10.0, 100.0])
def test_three_classes_against_a_tensor_grid(scale: float) -> None:
    mean, cov = random_latents(12, 3, scale, seed=3)
    expected = [softmax_probabilities_grid(m, V) for m, V in zip(mean, cov, strict=True)]
    assert_allclose(probabilities(mean, cov), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("scale", "atol"), [(0.1, 1e-4), (1.0, 1e-4), (10.0, 1e-4), (100.0, 8e-4)])
def test_six_classes_against_long_quasi_monte_carlo(scale: float, atol: float) -> None:
    mean, cov = random_latents(4, 6, scale, seed=7)
    found = probabilities(mean, cov)
    for i in range(4):
        expected, error = softmax_probabilities_qmc(mean[i], cov[i])
        assert error.max() <= 0.2 * atol
        assert_allclose(found[i], expected, rtol=0, atol=atol)


@pytest.mark.parametrize(("gap", "variance"), [(0.0, 1.0), (2.0, 0.5), (-3.0, 20.0), (1.0, 200.0)])
def test_two_classes_are_the_logistic_integral(gap: float, variance: float) -> None:
    def integrand(g: float) -> float:
        return float(np.exp(-0.5 * (g - gap) ** 2 / variance) / np.sqrt(2 * np.pi * variance) / (1 + np.exp(-g)))

    reach = 12 * np.sqrt(variance)
    expected, _ = quad(integrand, gap - reach, gap + reach, epsabs=1e-12, limit=500, points=[gap, 0.0])
    found = probabilities(np.array([[0.0, gap]]), np.diag([0.4 * variance, 0.6 * variance])[None])
    assert found[0, 1] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("gap", "sd"), [(10.0, 3.0), (30.0, 8.0), (100.0, 30.0), (1000.0, 10.0), (1000.0, 0.1), (400.0, 0.0)])
def test_small_probabilities_of_two_classes_have_relative_accuracy(gap: float, sd: float) -> None:
    """Against a fine grid in logs, far below where probabilities underflow."""
    found = softmax_exact_log_probabilities(np.array([[0.0, gap]]), 0.5 * sd**2 * np.eye(2)[None])[0, 0]
    z = np.linspace(-60.0, 60.0, 400_001)
    expected = np.logaddexp.reduce(-0.5 * z**2 - np.logaddexp(0.0, gap + sd * z)) - np.log(np.sqrt(2 * np.pi) / (z[1] - z[0]))
    assert found == pytest.approx(expected, abs=2e-3)


def test_small_probabilities_of_five_classes_against_many_draws() -> None:
    rng = np.random.default_rng(0)
    root, mean = rng.standard_normal((5, 5)), np.array([0.0, 5.0, 2.0, -4.0, 4.0])
    found = softmax_exact_log_probabilities(mean[None], (root @ root.T)[None])[0]
    draws = softmax(mean + rng.standard_normal((2_000_000, 5)) @ root.T, axis=1)
    expected, error = draws.mean(axis=0), draws.std(axis=0) / np.sqrt(len(draws))
    assert expected.min() < 1e-3
    assert np.all(np.abs(np.exp(found) - expected) < 4.0 * error + 0.01 * expected)


def test_without_latent_uncertainty_it_is_softmax() -> None:
    f = 3.0 * np.random.default_rng(0).standard_normal((5, 4))
    expected = np.exp(f) / np.exp(f).sum(axis=1, keepdims=True)
    assert_allclose(probabilities(f, np.zeros((5, 4, 4))), expected, rtol=1e-6)


@pytest.mark.parametrize("c", [2, 3, 8])
def test_what_the_classes_have_in_common_does_not_matter(c: int) -> None:
    mean, cov = random_latents(6, c, 2.0)
    # A large common part moves the eigenvectors within rounding of 1e6, and with them the points: within the rule's error.
    assert_allclose(probabilities(mean + 100.0, cov + 1e6), probabilities(mean, cov), rtol=0, atol=1e-4)
    assert_allclose(probabilities(mean + 100.0, cov), probabilities(mean, cov), rtol=0, atol=1e-12)


@pytest.mark.parametrize("c", [2, 3, 8])
def test_rows_sum_to_one_before_they_are_normalised(c: int) -> None:
    mean, cov = random_latents(20, c, 5.0)
    assert_allclose(np.exp(softmax_exact_log_probabilities(mean, cov, points=1024)).sum(axis=1), 1.0, atol=1e-12)
    # small probabilities are integrated apart, each to a hundredth of itself
    found = np.exp(softmax_exact_log_probabilities(mean, cov))
    small = np.where(found < 1e-3, found, 0.0).sum(axis=1)
    assert np.all(np.abs(found.sum(axis=1) - 1.0) <= 1e-12 + 0.02 * small)


def test_permuted_classes_permute_the_probabilities() -> None:
    mean, cov = random_latents(10, 5, 4.0)
    order = np.random.default_rng(1).permutation(5)
    permuted = probabilities(mean[:, order], cov[:, order[:, None], order])
    assert_allclose(permuted, probabilities(mean, cov)[:, order], rtol=0, atol=1e-4)


def test_the_answer_is_the_same_from_run_to_run_and_in_any_batch() -> None:
    mean, cov = random_latents(7, 4, 4.0)
    whole = probabilities(mean, cov)
    assert_array_equal(probabilities(mean, cov), whole)
    assert_allclose(np.vstack([probabilities(mean[i : i + 1], cov[i : i + 1]) for i in range(7)]), whole, rtol=0, atol=1e-14)


def test_equal_latents_are_equally_probable() -> None:
    found = probabilities(np.zeros((1, 4)), 9.0 * np.eye(4)[None])
    assert_allclose(found, 0.25, rtol=0, atol=5e-5)


def test_inner_ep_is_no_rule_for_softmax() -> None:
    mean, cov = random_latents(2, 3, 1.0)
    with pytest.raises(ValueError, match=r"probabilities='ep': with the softmax likelihood use one of \['exact'\]"):
        class_probabilities(mean[None], cov[None], "ep", "softmax")
