"""Class-independent EP with dense matrices: posterior and evidence of given scalar sites."""

from collections.abc import Callable

import numpy as np

from tests.oracles._types import Array, Labels
from tests.oracles.inner import log_site_integral


def independent_posterior(K: Array, tau: Array, nu: Array) -> tuple[Array, Array]:
    """Mean (c, n) and covariances (c, n, n) of Σ_k = (K_k⁻¹ + diag τ_k)⁻¹, μ_k = Σ_k ν_k; tau, nu (c, n)."""
    kernels = [K] * len(tau) if K.ndim == 2 else list(K)
    Sigma = np.array([np.linalg.solve(np.eye(len(Kk)) + Kk * t, Kk) for Kk, t in zip(kernels, tau, strict=True)])
    return np.einsum("knm,km->kn", Sigma, nu), Sigma


def independent_cavities(K: Array, tau: Array, nu: Array) -> tuple[Array, Array]:
    """Cavity means and variances, each (c, n)."""
    mean, Sigma = independent_posterior(K, tau, nu)
    variance = np.diagonal(Sigma, axis1=1, axis2=2)
    cavity = 1 / (1 / variance - tau)
    return cavity * (mean / variance - nu), cavity


def independent_evidence(
    K: Array, y: Labels, tau: Array, nu: Array, log_normaliser: Callable[[Array, Array, int], float]
) -> float:
    """log ∫ N(f | 0, K) Π t̃ df + Σ_i [log Ẑ_i − Σ_k log ∫ N(f_ki | cavity) t̃_ki df].

    `log_normaliser(mean, variance, y)` gives log Ẑ_i for a cavity, (c,) each.
    """
    kernels = [K] * len(tau) if K.ndim == 2 else list(K)
    mean, _ = independent_posterior(K, tau, nu)
    log_z = 0.5 * float(np.sum(nu * mean))
    for Kk, t in zip(kernels, tau, strict=True):
        log_z -= 0.5 * float(np.linalg.slogdet(np.eye(len(Kk)) + Kk * t)[1])
    m, v = independent_cavities(K, tau, nu)
    for i in range(len(y)):
        log_z += log_normaliser(m[:, i], v[:, i], int(y[i]))
        log_z -= sum(log_site_integral(m[k, i], v[k, i], tau[k, i], nu[k, i]) for k in range(len(tau)))
    return log_z
