"""Sequential nested EP with dense matrices: one site after the other, inner EP to convergence."""

from typing import NamedTuple

import numpy as np

from tests.oracles._types import Array, Labels
from tests.oracles.dense import (
    dense_m,
    dense_posterior,
    log_evidence_eq42,
    marginal,
    remove_site,
    site_block,
    site_matrices,
    stacked_prior,
)
from tests.oracles.inner import inner_ep


class NestedResult(NamedTuple):
    """Fixed point of nested EP: alpha, beta, mu (c, n), Sigma (cn, cn), log Z, and ∂log Z/∂K shaped as K."""

    alpha: Array
    beta: Array
    mu: Array
    Sigma: Array
    log_z: float
    gradient: Array


def nested_ep(
    K: Array, y: Labels, n_classes: int, damping: float = 0.8, tol: float = 1e-10, max_iter: int = 2000
) -> NestedResult:
    """Fixed point where every marginal q(f_i) equals the q̂(f_i) of inner EP on its cavity.

    Sites change by α̃ + damping (α̃_inner − α̃), and β̃ alike. Stops when, over one whole sweep, the moments of
    q̂(f_i) and q(f_i) before the update differ by at most tol times the largest prior variance (or 1).
    """
    c, n = n_classes, len(y)
    alpha, beta = np.zeros((c, n)), np.zeros((c, n))
    scale = max(1.0, float(np.max(np.diagonal(K, axis1=-2, axis2=-1))))
    for _ in range(max_iter):
        # Recomputed once per sweep, so that rounding in the rank-c updates does not accumulate.
        mu, Sigma = dense_posterior(K, alpha, beta, y)
        residual = 0.0
        for i in range(n):
            mean, cov = marginal(mu, Sigma, i)
            Pi, nu = site_block(alpha[:, i], beta[:, i], int(y[i]))
            inner = inner_ep(*remove_site(mean, cov, Pi, nu), int(y[i]), init=(alpha[:, i], beta[:, i]))
            residual = max(residual, np.abs(inner.mean - mean).max(), np.abs(inner.cov - cov).max())
            alpha[:, i] += damping * (inner.alpha - alpha[:, i])
            beta[:, i] += damping * (inner.beta - beta[:, i])
            Pi_new, nu_new = site_block(alpha[:, i], beta[:, i], int(y[i]))
            mu, Sigma = _change_site(mu, Sigma, i, Pi_new - Pi, nu_new - nu)
        if residual <= tol * scale:
            break
    else:
        raise RuntimeError(f"nested EP: moments still differ by {residual:.1e} after {max_iter} sweeps")
    mu, Sigma = dense_posterior(K, alpha, beta, y)
    log_z = log_evidence_eq42(K, y, alpha, beta)
    return NestedResult(alpha, beta, mu, Sigma, log_z, evidence_gradient(K, y, alpha, beta))


def _change_site(mu: Array, Sigma: Array, i: int, dPi: Array, dnu: Array) -> tuple[Array, Array]:
    """Posterior after precision dPi and location dnu are added to point i: a rank-c update."""
    c, n = mu.shape
    rows = i + n * np.arange(c)
    columns = Sigma[:, rows]
    A = np.eye(c) + dPi @ Sigma[np.ix_(rows, rows)]
    step = columns @ np.linalg.solve(A, dnu - dPi @ mu[:, i])
    return mu + step.reshape(c, n), Sigma - columns @ np.linalg.solve(A, dPi @ columns.T)


def evidence_gradient(K: Array, y: Labels, alpha: Array, beta: Array) -> Array:
    """∂log Z/∂K_k = ½(b_k b_kᵀ − M_kk), b = (I − MK)ν̃, summed over k if K is shared; for a fixed point."""
    c, n = alpha.shape
    M = dense_m(K, alpha, y)
    nu = site_matrices(alpha, beta, y)[1].ravel()
    b = (nu - M @ stacked_prior(K, c) @ nu).reshape(c, n)
    blocks = [M[k * n : (k + 1) * n, k * n : (k + 1) * n] for k in range(c)]
    per_class = np.array([0.5 * (np.outer(b[k], b[k]) - blocks[k]) for k in range(c)])
    return per_class if K.ndim == 3 else per_class.sum(axis=0)
