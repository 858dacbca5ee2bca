"""Binary probit EP, the textbook algorithm: scalar sites, one after the other.

With two classes the multinomial probit is Φ((f_1 − f_0)/√2), and s = (f_1 − f_0)/√2 has the prior GP(0, K) of
a single class: binary probit with the same kernel.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr

from tests.oracles._types import Array, Labels


class BinaryResult(NamedTuple):
    """Sites of s: precision tau and location nu (n,); posterior mean (n,), cov (n, n); log Z_EP."""

    tau: Array
    nu: Array
    mean: Array
    cov: Array
    log_z: float


def binary_ep(K: Array, y: Labels, tol: float = 1e-12, max_iter: int = 1000) -> BinaryResult:
    """Fixed point of EP for s ~ N(0, K), p(y_i | s_i) = Φ(±s_i), + for y_i = 1 and − for y_i = 0."""
    sign = np.where(y == 1, 1.0, -1.0)
    tau, nu = np.zeros(len(y)), np.zeros(len(y))
    for _ in range(max_iter):
        change = 0.0
        mean, cov = _posterior(K, tau, nu)
        for i in range(len(y)):
            m, v = _remove(mean[i], cov[i, i], tau[i], nu[i])
            m_hat, v_hat = _tilted(m, v, sign[i])
            new_tau, new_nu = 1 / v_hat - 1 / v, m_hat / v_hat - m / v
            change = max(change, abs(new_tau - tau[i]), abs(new_nu - nu[i]))
            tau[i], nu[i] = new_tau, new_nu
            mean, cov = _posterior(K, tau, nu)
        if change <= tol:
            return BinaryResult(tau, nu, mean, cov, _log_evidence(K, sign, tau, nu, mean, cov))
    raise RuntimeError(f"binary EP: sites still change by {change:.1e} after {max_iter} sweeps")


def binary_predict(fit: BinaryResult, K: Array, Kstar: Array, Kss: Array) -> tuple[Array, Array, Array]:
    """Latent mean and variance of s at m test points and P(y = 1) = Φ(mean/√(1 + var)), (m,) each.

    Kstar is (n, m), Kss (m,). The site precisions may be tiny, so K + diag(1/τ) is never formed.
    """
    A = np.eye(len(K)) + K * fit.tau
    b = fit.nu - fit.tau * np.linalg.solve(A, K @ fit.nu)
    mean = Kstar.T @ b
    var = Kss - np.sum(Kstar * (fit.tau[:, None] * np.linalg.solve(A, Kstar)), axis=0)
    return mean, var, ndtr(mean / np.sqrt(1 + var))


def _posterior(K: Array, tau: Array, nu: Array) -> tuple[Array, Array]:
    """cov = (K⁻¹ + diag τ)⁻¹ = (I + K diag τ)⁻¹K and mean = cov ν."""
    cov: Array = np.linalg.solve(np.eye(len(K)) + K * tau, K).astype(float)
    return cov @ nu, cov


def _remove(m: float, v: float, tau: float, nu: float) -> tuple[float, float]:
    """Cavity mean and variance."""
    v_cavity = 1 / (1 / v - tau)
    return v_cavity * (m / v - nu), v_cavity


def _tilted(m: float, v: float, sign: float) -> tuple[float, float]:
    """Mean and variance of N(s | m, v) Φ(sign s)."""
    z = sign * m / np.sqrt(1 + v)
    ratio = np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z))
    return m + sign * v * ratio / np.sqrt(1 + v), v - v**2 * ratio * (z + ratio) / (1 + v)


def _log_evidence(K: Array, sign: Array, tau: Array, nu: Array, mean: Array, cov: Array) -> float:
    """log ∫ N(s | 0, K) Π_i exp(−½τs² + νs) ds + Σ_i log(∫ cavity_i Φ / ∫ cavity_i exp(−½τs² + νs))."""
    log_z = 0.5 * nu @ mean - 0.5 * np.linalg.slogdet(np.eye(len(K)) + K * tau)[1]
    for i in range(len(tau)):
        m, v = _remove(mean[i], cov[i, i], tau[i], nu[i])
        quadratic = nu[i] * m + 0.5 * nu[i] ** 2 * v - 0.5 * tau[i] * m**2
        log_z += log_ndtr(sign[i] * m / np.sqrt(1 + v))
        log_z -= -0.5 * np.log1p(tau[i] * v) + quadratic / (1 + tau[i] * v)
    return float(log_z)
