"""Draws of the auxiliary variables: against rejection from the untruncated normal, and against densities on a grid."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import log_ndtr

from nestgp.sampling.conic import _normal_above, draw_auxiliary
from tests.oracles._types import Array

#: Kolmogorov-Smirnov p-values below this mean a wrong distribution; seeds are fixed, so nothing fails by chance.
LEVEL = 1e-3


def conic_draws(f: Array, y: int, n_draws: int, seed: int) -> Array:
    """(n_draws, c) draws of v given latents f (c,) and label y."""
    latents = np.repeat(f[:, None], n_draws, axis=1)
    v = np.empty_like(latents)
    draw_auxiliary(latents, np.full(n_draws, y), np.random.default_rng(seed), v)
    return v.T


def rejection_draws(f: Array, y: int, n_tries: int, seed: int) -> Array:
    """The same by plain rejection: v ~ N(f, I), kept if its largest entry is y."""
    v = f + np.random.default_rng(seed).standard_normal((n_tries, len(f)))
    return v[v.argmax(axis=1) == y]


@pytest.mark.parametrize(
    ("f", "y"),
    [
        ([0.3, -0.2], 0),
        ([1.0, -1.0], 1),
        ([0.0, 0.5, -0.5], 2),
        ([2.0, -1.0, 0.0], 0),
        ([0.0, 1.5, 1.0], 0),
        ([0.2, -0.3, 0.5, 0.0, -1.0, 0.8], 3),
    ],
)
def test_conic_draw_against_rejection(f: list[float], y: int) -> None:
    ours = conic_draws(np.array(f), y, 20_000, seed=0)
    plain = rejection_draws(np.array(f), y, 400_000, seed=1)
    assert len(plain) > 10_000
    for k in range(len(f)):
        assert stats.ks_2samp(ours[:, k], plain[:, k]).pvalue > LEVEL
    margin, plain_margin = (v[:, y] - np.delete(v, y, axis=1).max(axis=1) for v in (ours, plain))
    assert stats.ks_2samp(margin, plain_margin).pvalue > LEVEL
    pairs = np.triu_indices(len(f), 1)
    products, plain_products = (v[:, pairs[0]] * v[:, pairs[1]] for v in (ours, plain))
    error = np.hypot(products.std(axis=0) / np.sqrt(len(ours)), plain_products.std(axis=0) / np.sqrt(len(plain)))
    assert np.all(np.abs(products.mean(axis=0) - plain_products.mean(axis=0)) < 4.0 * error)


def largest_cdf(f: Array, y: int, x: Array) -> Array:
    """Distribution function of v_y at x from its density N(v | f_y, 1) Π_j Φ(v − f_j) on a fine grid."""
    others = np.delete(f, y)
    grid = np.linspace(f[y] - 12.0, max(f[y], others.max()) + 12.0, 400_001)
    log_density = -0.5 * (grid - f[y]) ** 2 + log_ndtr(grid[:, None] - others).sum(axis=1)
    density = np.exp(log_density - log_density.max())
    cdf = np.cumsum(density)
    return np.interp(x, grid, cdf / cdf[-1])


@pytest.mark.parametrize(
    ("f", "y"),
    [([0.0, 60.0], 0), ([-40.0, 3.0, 5.0], 0), ([10.0, -10.0, 9.0, 8.0, 10.5, -30.0], 1), ([50.0, -50.0, 0.0], 0)],
)
def test_conic_draw_far_from_its_cone(f: list[float], y: int) -> None:
    """Rejection from the normal would never accept: P(cone) is as small as 1e-390."""
    v = conic_draws(np.array(f), y, 20_000, seed=2)
    assert np.isfinite(v).all()
    assert np.all(v.argmax(axis=1) == y)
    assert stats.kstest(largest_cdf(np.array(f), y, v[:, y]), "uniform").pvalue > LEVEL
    for j in np.delete(np.arange(len(f)), y):
        # Given v_y, v_j is N(f_j, 1) below v_y: its distribution function there is uniform.
        u = np.exp(log_ndtr(v[:, j] - f[j]) - log_ndtr(v[:, y] - f[j]))
        assert stats.kstest(u, "uniform").pvalue > LEVEL


@pytest.mark.parametrize("low", [-8.0, -1.0, 0.0, 0.44, 0.46, 2.0, 8.0, 37.0])
def test_normal_above_against_truncated_normal(low: float) -> None:
    rng = np.random.default_rng(3)
    x = np.array([_normal_above(low, rng) for _ in range(5_000)])
    assert x.min() > low
    assert stats.kstest(x, stats.truncnorm(low, np.inf).cdf).pvalue > LEVEL


def test_rows_use_their_own_label() -> None:
    f = np.random.default_rng(4).standard_normal((4, 200)) * 3.0
    y = np.arange(200) % 4
    v = np.empty_like(f)
    draw_auxiliary(f, y, np.random.default_rng(5), v)
    np.testing.assert_array_equal(v.argmax(axis=0), y)
