"""E[softmax(f)] for Gaussian latents and for the posterior: a tensor grid for c = 3, quasi-Monte Carlo otherwise."""

import numpy as np
from scipy.special import logsumexp, ndtri
from scipy.stats import qmc

from tests.oracles._types import Array, Labels
from tests.oracles.dense import stacked_prior
from tests.oracles.laplace import laplace, softmax


def softmax_probabilities_grid(mean: Array, cov: Array, step: float = 0.04, reach: float = 9.0) -> Array:
    """(3,) probabilities by the trapezoidal rule over the two differences to class 0, whitened.

    1/(1 + e^g) has its poles at ±iπ: with deviations up to 20 the rule's error is exp(−2π (π/20)/step) ≈ 2e-11.
    """
    C = np.array([[-1.0, 1.0, 0.0], [-1.0, 0.0, 1.0]])
    values, vectors = np.linalg.eigh(C @ cov @ C.T)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    axis = step * np.arange(-int(reach / step), int(reach / step) + 1)
    e = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    g = np.column_stack([np.zeros(len(e)), C @ mean + e @ root.T])
    w = np.exp(-0.5 * np.sum(e**2, axis=1))
    return np.asarray(w / w.sum() @ _softmax(g))


def softmax_probabilities_qmc(
    mean: Array, cov: Array, log2_points: int = 15, n_scrambles: int = 16, seed: int = 0
) -> tuple[Array, Array]:
    """(c,) probabilities and their standard errors over scrambles of a Sobol sequence, antithetic in pairs."""
    values, vectors = np.linalg.eigh(cov)
    root = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1]
    rng = np.random.default_rng(seed)
    runs = []
    for _ in range(n_scrambles):
        u = qmc.Sobol(len(mean), rng=rng).random_base2(log2_points)
        f = ndtri(np.clip(u, 1e-16, 1 - 1e-16)) @ root.T
        runs.append(0.5 * (_softmax(mean + f) + _softmax(mean - f)).mean(axis=0))
    return np.mean(runs, axis=0), np.std(runs, axis=0, ddof=1) / np.sqrt(n_scrambles)


def _softmax(f: Array) -> Array:
    e = np.exp(f - f.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def softmax_predictive(
    K: Array, y: Labels, n_classes: int, log2_points: int = 13, n_scrambles: int = 8, seed: int = 0
) -> tuple[Array, Array]:
    """p(y_* | y) (c,) of the softmax model itself and its standard errors; K (n + 1, n + 1), the new point last.

    Self-normalised importance sampling of all latents from the Laplace posterior, a tenth wider than it is.
    """
    c, n = n_classes, len(y)
    fit = laplace(K[:n, :n], y, c)
    W = np.zeros((c, n + 1, c, n + 1))
    W[:, :n, :, :n] = fit.W.reshape(c, n, c, n)
    W = W.reshape(c * (n + 1), c * (n + 1))
    full = stacked_prior(K, c)
    slope = np.zeros((c, n + 1))
    slope[:, :n] = np.eye(c)[:, y] - softmax(fit.mode)
    centre = full @ slope.ravel()
    L = 1.1 * np.linalg.cholesky(np.linalg.solve(np.eye(len(full)) + full @ W, full))
    prior = np.linalg.cholesky(full)
    rng = np.random.default_rng(seed)
    runs = []
    for _ in range(n_scrambles):
        e = ndtri(np.clip(qmc.Sobol(len(full), rng=rng).random_base2(log2_points), 1e-16, 1 - 1e-16))
        f = centre + e @ L.T
        whitened = np.linalg.solve(prior, f.T)
        classes = f.reshape(-1, c, n + 1)
        log_p = classes - logsumexp(classes, axis=1, keepdims=True)
        log_w = log_p[:, y, np.arange(n)].sum(axis=1) - 0.5 * np.sum(whitened**2, axis=0) + 0.5 * np.sum(e**2, axis=1)
        w = np.exp(log_w - logsumexp(log_w))
        runs.append(w @ np.exp(log_p[:, :, n]))
    return np.mean(runs, axis=0), np.std(runs, axis=0, ddof=1) / np.sqrt(n_scrambles)
