"""Laplace's method for the softmax likelihood with dense cn × cn matrices, and for the binary logistic one.

Vectors over points and classes are stacked class-major, as in `dense.py`.
"""

from typing import NamedTuple

import numpy as np

from tests.oracles._types import Array, Labels
from tests.oracles.dense import stacked_prior


class LaplaceResult(NamedTuple):
    """Mode f (c, n), negative Hessian W (cn, cn) of the likelihood, posterior covariance (cn, cn), log Z."""

    mode: Array
    W: Array
    Sigma: Array
    log_z: float


def softmax(f: Array) -> Array:
    """Class probabilities of f (c, n), over the first axis."""
    e = np.exp(f - f.max(axis=0))
    return np.asarray(e / e.sum(axis=0))


def softmax_hessian(f: Array) -> Array:
    """W = diag(π) − Π Πᵀ (cn, cn): −∂² log p(y | f), entry by entry from π_k (δ_kl − π_l) at equal points."""
    c, n = f.shape
    p = softmax(f)
    W = np.zeros((c, n, c, n))
    for i in range(n):
        for k in range(c):
            for m in range(c):
                W[k, i, m, i] = p[k, i] * ((k == m) - p[m, i])
    return W.reshape(c * n, c * n)


def laplace(K: Array, y: Labels, n_classes: int, tol: float = 1e-13, max_iter: int = 500) -> LaplaceResult:
    """Newton: f ← (I + KW)⁻¹ K (Wf + y − π), halved while log p(y|f) − ½fᵀK⁻¹f falls.

    Moves along a = K⁻¹f, which exists for a singular K too. log Z = Σ log p(y_i|f_i) − ½ fᵀa − ½ log|I + KW|.
    """
    c, n = n_classes, len(y)
    full, targets = stacked_prior(K, c), np.eye(c)[:, y]
    a = np.zeros(c * n)

    def log_joint(a: Array) -> float:
        f = (full @ a).reshape(c, n)
        log_p = f - f.max(axis=0) - np.log(np.exp(f - f.max(axis=0)).sum(axis=0))
        return float(np.sum(targets * log_p) - 0.5 * a @ full @ a)

    for _ in range(max_iter):
        f = full @ a
        W, p = softmax_hessian(f.reshape(c, n)), softmax(f.reshape(c, n))
        right = W @ f + (targets - p).ravel()
        new = right - W @ np.linalg.solve(np.eye(c * n) + full @ W, full @ right)
        length = 1.0
        while log_joint(a + length * (new - a)) < log_joint(a) - 1e-12 * abs(log_joint(a)) and length > 1e-8:
            length /= 2
        a = a + length * (new - a)
        if np.abs(full @ a - f).max() <= length * tol * np.sqrt(full.max()):
            break
    else:
        raise RuntimeError(f"Laplace: no mode after {max_iter} Newton steps")
    f = (full @ a).reshape(c, n)
    W = softmax_hessian(f)
    A = np.eye(c * n) + full @ W
    Sigma: Array = np.linalg.solve(A, full).astype(float)
    return LaplaceResult(f, W, Sigma, log_joint(a) - 0.5 * float(np.linalg.slogdet(A)[1]))


def laplace_predict(fit: LaplaceResult, Kstar: Array, Kss: Array, y: Labels) -> tuple[Array, Array]:
    """Mean K*ᵀ(y − π) (m, c) and covariance K** − K*ᵀ W (I + KW)⁻¹ K* (m, c, c) at test points, one at a time."""
    c, n = fit.mode.shape
    slope = np.eye(c)[:, y] - softmax(fit.mode)
    M = fit.W - fit.W @ fit.Sigma @ fit.W  # W (I + KW)⁻¹, since Σ = (I + KW)⁻¹K
    Kstar = np.broadcast_to(Kstar, (c, n, Kstar.shape[-1]))
    Kss = np.broadcast_to(Kss, (c, Kss.shape[-1]))
    means, covs = [], []
    for t in range(Kstar.shape[-1]):
        K_t = np.zeros((c * n, c))
        for k in range(c):
            K_t[k * n : (k + 1) * n, k] = Kstar[k, :, t]
        means.append(K_t.T @ slope.ravel())
        covs.append(np.diag(Kss[:, t]) - K_t.T @ M @ K_t)
    return np.array(means), np.array(covs)


def binary_logistic_laplace(K: Array, y: Labels, max_iter: int = 200) -> tuple[Array, float]:
    """Mode s (n,) and log Z of p(y_i | s_i) = 1/(1 + exp(∓s_i)), − for y_i = 1, under s ~ N(0, K)."""
    t = np.where(y == 1, 1.0, 0.0)
    s = np.zeros(len(y))
    for _ in range(max_iter):
        p = 1 / (1 + np.exp(-s))
        W = p * (1 - p)
        new = np.linalg.solve(np.eye(len(y)) + K * W, K @ (W * s + t - p))
        done = np.abs(new - s).max() <= 1e-13 * (1 + np.abs(s).max())
        s = new
        if done:
            break
    p = 1 / (1 + np.exp(-s))
    quadratic = s @ (t - p)  # K⁻¹s = t − p at the mode
    log_p = -np.logaddexp(0.0, -s) @ t - np.logaddexp(0.0, s) @ (1 - t)
    return s, float(log_p - 0.5 * quadratic - 0.5 * np.linalg.slogdet(np.eye(len(y)) + K * (p * (1 - p)))[1])
