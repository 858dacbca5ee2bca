"""Inner EP for one point on w = [f, u], step by step as in appendix A of the paper."""

from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr

from tests.oracles._types import Array


class InnerResult(NamedTuple):
    """log Z_q̂, sites α̃ and β̃ (c,) with 0 at the observed class, and the moments of q̂(f): (c,) and (c, c)."""

    log_z: float
    alpha: Array
    beta: Array
    mean: Array
    cov: Array


def inner_ep(
    mean: Array,
    cov: Array,
    y: int,
    sweeps: int = 1000,
    tol: float = 1e-12,
    damping: float = 1.0,
    init: tuple[Array, Array] | None = None,
) -> InnerResult:
    """Gaussian approximation of N(f | mean, cov) p(y | f) by EP on w = [f, u]  (eqs. 28-38).

    Stops when no site changes by more than tol (1 + |β̃|); tol = 0 runs exactly `sweeps` sweeps. γ_j cancels
    in the far tail: the default tol is reached at z = −20 but not at z = −35, where 1e-9 is.

    Parameters
    ----------
    mean, cov : (c,) and (c, c) cavity of the outer EP.
    y : observed class, 0..c−1.
    init : sites (alpha, beta), each (c,), to continue from; zeros otherwise.
    """
    c = len(mean)
    others = [j for j in range(c) if j != y]
    mu_w = np.append(mean, 0.0)
    Sigma_w = np.zeros((c + 1, c + 1))
    Sigma_w[:c, :c] = cov
    Sigma_w[c, c] = 1.0
    b = contrast_vectors(c, y)

    alpha, beta = (np.zeros(c), np.zeros(c)) if init is None else (init[0].copy(), init[1].copy())
    mu, Sigma = mu_w, Sigma_w
    for j in others:
        mu, Sigma = _rank_one(mu, Sigma, b[j], alpha[j], beta[j])

    for _ in range(sweeps):
        change = 0.0
        for j in others:
            m, v = float(b[j] @ mu), float(b[j] @ Sigma @ b[j])
            m_cavity, v_cavity = _cavity(m, v, alpha[j], beta[j])
            m_hat, v_hat = _probit_moments(m_cavity, v_cavity)
            d_alpha = damping * (1 / v_hat - 1 / v)  # eq. 35
            d_beta = damping * (m_hat / v_hat - m / v)  # eq. 36
            mu, Sigma = _rank_one(mu, Sigma, b[j], d_alpha, d_beta)
            alpha[j] += d_alpha
            beta[j] += d_beta
            change = max(change, abs(d_alpha), abs(d_beta) / (1 + abs(beta[j])))
        if change <= tol:
            break
    else:
        if tol > 0:
            raise RuntimeError(f"inner EP: sites still change by {change:.1e} after {sweeps} sweeps")

    log_z = _log_normaliser(mu_w, Sigma_w, mu, Sigma, [b[j] for j in others], alpha[others], beta[others])
    return InnerResult(log_z, alpha, beta, mu[:c], Sigma[:c, :c])


def contrast_vectors(c: int, y: int) -> Array:
    """b_j = [e_y − e_j, 1], one row per class: (c, c + 1). Row y is [0, 1] and belongs to no factor."""
    return np.hstack([np.eye(c)[y] - np.eye(c), np.ones((c, 1))])


def _cavity(m: float, v: float, alpha: float, beta: float) -> tuple[float, float]:
    """Mean and variance of wᵀb_j without site j  (eqs. 30-31)."""
    v_cavity = 1 / (1 / v - alpha)
    return v_cavity * (m / v - beta), v_cavity


def _probit_moments(m: float, v: float) -> tuple[float, float]:
    """Mean and variance of N(g | m, v) Φ(g)  (eqs. 33-34; ν₋ⱼ printed in eq. 33 is the cavity variance)."""
    s = np.sqrt(1 + v)
    z = m / s
    # The quotient N(z)/Φ(z) in log form, because both underflow below z ≈ −38.
    rho = np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z)) / s
    gamma = rho**2 + z * rho / s
    return m + rho * v, v - v**2 * gamma


def _rank_one(mu: Array, Sigma: Array, b: Array, d_alpha: float, d_beta: float) -> tuple[Array, Array]:
    """Mean and covariance after adding precision d_alpha and location d_beta along b  (eqs. 37-38)."""
    theta = Sigma @ b
    v, m = b @ theta, b @ mu
    shrink = 1 / (1 + d_alpha * v)
    return mu + theta * shrink * (d_beta - d_alpha * m), Sigma - shrink * d_alpha * np.outer(theta, theta)


def log_site_integral(m: float, v: float, alpha: float, beta: float) -> float:
    """log ∫ N(g | m, v) exp(−½ α g² + β g) dg."""
    quadratic = beta * m + 0.5 * beta**2 * v - 0.5 * alpha * m**2
    return float(-0.5 * np.log1p(alpha * v) + quadratic / (1 + alpha * v))


def log_probit_integral(m: float, v: float) -> float:
    """log ∫ N(g | m, v) Φ(g) dg = log Φ(m / √(1 + v))  (eq. 32)."""
    return float(log_ndtr(m / np.sqrt(1 + v)))


def _log_normaliser(
    mu_w: Array, Sigma_w: Array, mu: Array, Sigma: Array, b: list[Array], alpha: Array, beta: Array
) -> float:
    """log Z_q̂ = log ∫ N(w | μ_w, Σ_w) Π_j exp(−½α̃_j g_j² + β̃_j g_j) dw + Σ_j log Z̃_j with g_j = wᵀb_j.

    log Z̃_j is the log ratio of the integrals of Φ(g_j) and of its unscaled site under the cavity of site j.
    """
    B = np.array(b).T
    m, G, T = B.T @ mu_w, B.T @ Sigma_w @ B, np.diag(alpha)
    A = np.eye(len(alpha)) + G @ T
    log_z = -0.5 * np.linalg.slogdet(A)[1]
    log_z += -0.5 * m @ T @ np.linalg.solve(A, m) + beta @ np.linalg.solve(A, m)
    log_z += 0.5 * beta @ np.linalg.solve(A, G @ beta)
    for j in range(len(alpha)):
        cavity = _cavity(float(b[j] @ mu), float(b[j] @ Sigma @ b[j]), alpha[j], beta[j])
        log_z += log_probit_integral(*cavity) - log_site_integral(*cavity, alpha[j], beta[j])
    return float(log_z)
