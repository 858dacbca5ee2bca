"""Multinomial probit integrals over independent latents: against adaptive quadrature, the plane, and differences."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad_vec
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr

from nestgp.likelihoods import probit_derivatives, probit_log_likelihood, softmax_log_probabilities
from nestgp.quadrature import probit_integrals, probit_probabilities
from tests.oracles._types import Array, Labels
from tests.oracles.finite import central_difference
from tests.oracles.integrals import log_likelihood
from tests.oracles.two_dimensional import tilted_moments_plane
from tests.oracles.vb import cone_moments


def integrals(mean: Array, variance: Array, y: Labels) -> tuple[Array, Array, Array]:
    """log Z (n,), slope and curvature (n, c)."""
    log_z, slope, curvature = np.empty(len(y)), np.empty(mean.shape), np.empty(mean.shape)
    probit_integrals(mean, variance, y, log_z, slope, curvature)
    return log_z, slope, curvature


def probabilities(mean: Array, variance: Array) -> Array:
    """Log probability of every class, (n, c)."""
    log_p = np.empty(mean.shape)
    probit_probabilities(mean, variance, log_p)
    return log_p


def adaptive(mean: Array, variance: Array, y: int) -> tuple[float, Array, Array]:
    """The same three by adaptive quadrature over s = u + f_y, from Z, Z′ and Z″ and the moments of s.

    ∂/∂μ_j Φ(z) = −φ(z)/sd and ∂²/∂μ_j² Φ(z) = −z φ(z)/sd²; for the observed class, the mean and variance of s.
    """
    others = np.delete(np.arange(len(mean)), y)
    m, sd, S = mean[others], np.sqrt(1 + variance[others]), 1 + variance[y]

    def log_integrand(s: float) -> float:
        return float(-0.5 * (s - mean[y]) ** 2 / S + log_ndtr((s - m) / sd).sum())

    far = mean[y] + 20 * np.sqrt(S * len(mean)) + np.abs(m - mean[y]).max()
    mode = float(minimize_scalar(lambda s: -log_integrand(s), bounds=(mean[y], far), method="bounded", options={"xatol": 1e-9}).x)
    top = log_integrand(mode)
    low = brentq(lambda s: log_integrand(s) - top + 50, mode - 12 * np.sqrt(S), mode)
    high = brentq(lambda s: log_integrand(s) - top + 50, mode, mode + 12 * np.sqrt(S))

    def terms(s: float) -> Array:
        z = (s - m) / sd
        ratio = np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z)) / sd
        return np.exp(log_integrand(s) - top) * np.concatenate([[1.0, s - mode, (s - mode) ** 2], ratio, -z * ratio / sd])

    width = (high - low) / 20
    points = [mode + width * t for t in (-4.0, -2.0, -1.0, -0.5, -0.1, 0.0, 0.1, 0.5, 1.0, 2.0, 4.0)]
    points += [p for p in m if low < p < high]
    value, _ = quad_vec(terms, low, high, epsabs=0.0, epsrel=1e-12, norm="max", limit=4000, points=points)
    mass, p = value[0], len(m)
    first, second = value[3 : 3 + p] / mass, value[3 + p :] / mass
    slope, curvature = np.empty(len(mean)), np.empty(len(mean))
    slope[others], curvature[others] = -first, first**2 - second
    s_mean = value[1] / mass
    slope[y] = (mode + s_mean - mean[y]) / S
    curvature[y] = 1 / S - (value[2] / mass - s_mean**2) / S**2
    return float(np.log(mass) + top - 0.5 * np.log(2 * np.pi * S)), slope, curvature


def check_against_adaptive(mean: Array, variance: Array, y: Labels) -> None:
    log_z, slope, curvature = integrals(mean, variance, y)
    for i in range(len(y)):
        expected = adaptive(mean[i], variance[i], int(y[i]))
        assert log_z[i] == pytest.approx(expected[0], rel=1e-10, abs=1e-10)
        assert_allclose(slope[i], expected[1], rtol=1e-8, atol=1e-10)
        # The oracle's Z″/Z − (Z′/Z)² loses the digits of slope².
        assert_allclose(curvature[i], expected[2], rtol=1e-8, atol=1e-10 + 1e-11 * np.max(expected[1] ** 2))


@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 100.0, 1e4])
@pytest.mark.parametrize("c", [2, 3, 7, 50])
def test_integrals_are_those_of_adaptive_quadrature(c: int, scale: float) -> None:
    rng = np.random.default_rng(c)
    variance = scale * rng.uniform(0.1, 1.0, (3, c))
    mean = np.sqrt(1 + scale) * rng.standard_normal((3, c))
    check_against_adaptive(mean, variance, rng.integers(c, size=3))


@pytest.mark.parametrize("gap", [-100.0, -30.0, 30.0, 100.0])
@pytest.mark.parametrize("c", [2, 3, 10])
def test_integrals_where_the_label_surprises_or_is_certain(c: int, gap: float) -> None:
    mean = np.zeros((3, c))
    mean[:, 1] = gap
    mean[1, 0] = -gap / 3
    variance = np.array([np.full(c, 0.0), np.full(c, 1.0), 25.0 * np.arange(1, c + 1)])
    check_against_adaptive(mean, variance, np.full(3, 1))


@pytest.mark.parametrize("spread", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("c", [2, 3, 7, 20])
def test_all_classes_on_one_grid_are_the_integrals_of_each(c: int, scale: float, spread: float) -> None:
    rng = np.random.default_rng(c)
    variance = scale * rng.uniform(0.0, 1.0, (4, c))
    variance[:2] = variance[:2, :1]
    mean = spread * np.sqrt(1 + scale) * rng.standard_normal((4, c))
    found = probabilities(mean, variance)
    for k in range(c):
        assert_allclose(found[:, k], integrals(mean, variance, np.full(4, k))[0], rtol=1e-12, atol=1e-12)
    assert_allclose(np.exp(found).sum(axis=1), 1.0, rtol=1e-12)


def test_one_grid_where_scales_differ_and_where_one_class_is_certain() -> None:
    variance = np.array([[0.0, 1e4, 1e4, 1e-3], [1e9, 0.0, 0.0, 0.0], [1e4, 1e-6, 1.0, 1e8], [0.0, 0.0, 0.0, 0.0]])
    mean = np.array([[3.0, -50.0, 20.0, 1.0], [30.0, 100.0, -100.0, 99.0], [0.0, 40.0, -10.0, 5.0], [0.0, 1e4, -1e4, 30.0]])
    found = probabilities(mean, variance)
    for i, k in np.ndindex(3, 4):
        assert found[i, k] == pytest.approx(adaptive(mean[i], variance[i], k)[0], rel=1e-10, abs=1e-10)
    assert np.isfinite(found).all()
    assert found[3].argmax() == 1


@pytest.mark.parametrize("small_first", [True, False])
def test_integrals_of_very_different_scales(small_first: bool) -> None:
    # The Gaussian is ten thousand times wider than a factor, or a factor than the Gaussian: the panels' case.
    variance = np.array([[0.0, 1e4, 1e4, 1e-3], [1e4, 0.0, 0.0, 0.0], [1e4, 1e-6, 1.0, 1e8]])
    mean = np.array([[3.0, -50.0, 20.0, 1.0], [30.0, 100.0, -100.0, 99.0], [0.0, 40.0, -10.0, 5.0]])
    check_against_adaptive(mean, variance, np.array([0, 0, 0]) if small_first else np.array([1, 0, 3]))


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0, 300.0])
@pytest.mark.parametrize("c", [2, 3, 6])
def test_integrals_give_the_tilted_moments_of_the_plane(c: int, scale: float) -> None:
    rng = np.random.default_rng(10 + c)
    mean, variance = np.sqrt(scale) * rng.standard_normal((4, c)), scale * rng.uniform(0.3, 2.0, (4, c))
    y = rng.integers(c, size=4)
    log_z, slope, curvature = integrals(mean, variance, y)
    for i in range(4):
        expected = tilted_moments_plane(mean[i], variance[i], int(y[i]))
        assert log_z[i] == pytest.approx(expected.log_z, abs=1e-12)
        assert_allclose(mean[i] + variance[i] * slope[i], expected.mean, rtol=0, atol=1e-11 * np.sqrt(scale))
        assert_allclose(variance[i] - variance[i] ** 2 * curvature[i], expected.variance, rtol=0, atol=1e-10 * scale)


def test_slope_and_curvature_are_derivatives_of_log_z() -> None:
    rng = np.random.default_rng(1)
    mean, variance, y = 2.0 * rng.standard_normal(5), rng.uniform(0.0, 4.0, 5), np.array([2])

    def at(m: Array) -> tuple[Array, Array, Array]:
        return integrals(m[None], variance[None], y)

    _, slope, curvature = at(mean)
    numeric = central_difference(lambda m: at(m)[0][0], mean, 1e-2, richardson=True)
    assert_allclose(slope[0], numeric, rtol=0, atol=1e-9)
    numeric = central_difference(lambda m: at(m)[1][0], mean, 1e-2, richardson=True)
    assert_allclose(curvature[0], -np.diag(numeric), rtol=0, atol=1e-9)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("c", [2, 4, 20])
def test_the_classes_share_one_probability(c: int, scale: float) -> None:
    rng = np.random.default_rng(c)
    mean, variance = np.sqrt(1 + scale) * rng.standard_normal((1, c)), scale * rng.uniform(0.0, 1.0, (1, c))
    mean, variance = np.repeat(mean, c, axis=0), np.repeat(variance, c, axis=0)
    log_z, slope, curvature = integrals(mean, variance, np.arange(c))
    assert np.exp(log_z).sum() == pytest.approx(1.0, abs=1e-12)
    assert_allclose(slope.sum(axis=1), 0.0, atol=1e-13)  # a shift common to all classes changes nothing
    assert_allclose(np.exp(log_z) @ slope, 0.0, atol=1e-12)
    # A tilted variance v − v² curvature is neither negative nor above v.
    assert (curvature >= 0).all()
    assert (variance * curvature < 1).all()


@pytest.mark.parametrize("size", [0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("c", [2, 3, 8, 50])
def test_without_latent_variance_it_is_the_likelihood(c: int, size: float) -> None:
    rng = np.random.default_rng(c)
    f, y = size * rng.standard_normal((6, c)), rng.integers(c, size=6)
    log_p, slope = probit_log_likelihood(f, y)
    expected = [log_likelihood(row, int(k)) for row, k in zip(f, y, strict=True)]
    assert_allclose(log_p, expected, rtol=1e-12, atol=1e-11)
    again = probit_derivatives(f, y)
    assert_allclose(again[0], log_p, rtol=1e-13, atol=1e-13)
    assert_allclose(again[1], slope, rtol=1e-10, atol=1e-12)
    if size <= 10.0:  # the slope is E[v] − f, the mean of a normal cut to its cone
        cones = [cone_moments(row, int(k))[1] - row for row, k in zip(f, y, strict=True)]
        assert_allclose(slope, cones, rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("c", [2, 3, 6])
def test_hessian_of_the_likelihood_against_differences(c: int, size: float) -> None:
    rng = np.random.default_rng(c)
    f, y = size * rng.standard_normal((4, c)), rng.integers(c, size=4)
    _, slope, W = probit_derivatives(f, y)
    for i in range(4):
        label = y[i : i + 1]
        numeric = central_difference(lambda x, k=label: probit_derivatives(x[None], k)[1][0], f[i], 1e-2, richardson=True)
        assert_allclose(W[i], -numeric, rtol=0, atol=1e-8)
        numeric = central_difference(lambda x, k=label: probit_derivatives(x[None], k)[0][0], f[i], 1e-2, richardson=True)
        assert_allclose(slope[i], numeric, rtol=0, atol=1e-8)


@pytest.mark.parametrize("size", [1.0, 30.0, 300.0])
@pytest.mark.parametrize("c", [2, 3, 20])
def test_hessian_is_singular_along_the_common_shift_and_never_negative(c: int, size: float) -> None:
    rng = np.random.default_rng(c)
    f, y = size * rng.standard_normal((20, c)), rng.integers(c, size=20)
    _, _, W = probit_derivatives(f, y)
    assert_allclose(W, W.transpose(0, 2, 1), rtol=0, atol=0)
    assert_allclose(W.sum(axis=2), 0.0, atol=1e-13 * c)
    values = np.linalg.eigvalsh(W)
    assert values.min() >= -1e-12  # the likelihood is log-concave
    assert values.max() <= 1.0 + 1e-12  # and E[v] − f has the slope of a cut-off normal: I − W is a covariance
    _, _, curvature = integrals(f, np.zeros_like(f), y)
    assert_allclose(np.einsum("ikk->ik", W), curvature, rtol=1e-8, atol=1e-12)


def test_softmax_log_probabilities_at_any_size() -> None:
    f = np.array([[1.0, 2.0, 3.0], [1000.0, 0.0, -1000.0], [1e-3, 0.0, 0.0]])
    log_p = softmax_log_probabilities(f)
    assert_allclose(np.exp(log_p[0]), np.exp(f[0]) / np.exp(f[0]).sum(), rtol=1e-15)
    assert_allclose(log_p[1], [0.0, -1000.0, -2000.0])
    assert_allclose(np.exp(log_p).sum(axis=1), 1.0)


def test_the_likelihood_ends_wherever_it_is_asked() -> None:
    """Latents beyond what a step can change, all alike, or none at all: a value or NaN, never an endless sum."""
    f = np.array([[1e17, 0.0, 0.0], [0.0, 1e17, 0.0], [1e300, -1e300, 0.0], [5e8, 5e8, 5e8]])
    log_p, slope = probit_log_likelihood(f, np.zeros(4, dtype=np.int64))
    assert_allclose(log_p[[0, 3]], [0.0, np.log(1 / 3)], atol=1e-12)
    assert log_p[1] < -1e30
    assert_allclose(slope[3], slope[3, 0] * np.array([1.0, -0.5, -0.5]), rtol=1e-12)
    for bad in (np.nan, np.inf):
        assert not np.isfinite(probit_log_likelihood(np.array([[bad, 0.0, 0.0]]), np.zeros(1, dtype=np.int64))[1]).all()
