"""Posterior, predictions and evidence with dense cn × cn matrices, as printed in appendix B of the paper.

Vectors over points and classes are stacked class-major: [f_1^1..f_n^1, f_1^2..f_n^2, ..., f_n^c].
"""

import numpy as np

from tests.oracles._types import Array, Labels
from tests.oracles.inner import inner_ep, log_probit_integral, log_site_integral


def site_block(alpha: Array, beta: Array, y: int) -> tuple[Array, Array]:
    """Π = diag(π) − ππᵀ/1ᵀπ (eq. 16) and ν̃ = aπ − β̃, a = 1ᵀβ̃/1ᵀπ (eq. 19), of one site: (c, c) and (c,).

    Π1 = 0 and 1ᵀν̃ = 0. alpha, beta are (c,) with 0 at the observed class y.
    """
    pi = alpha + np.eye(len(alpha))[y]
    return np.diag(pi) - np.outer(pi, pi) / pi.sum(), pi * (beta.sum() / pi.sum()) - beta


def site_block_from_contrasts(alpha: Array, beta: Array, y: int) -> tuple[Array, Array]:
    """The same Π and ν̃ before simplification: Z(T̃ − α̃α̃ᵀ/(1 + 1ᵀα̃))Zᵀ (eq. 14) and Z(β̃ − α̃a) (eq. 19)."""
    others = np.arange(len(alpha)) != y
    a, b = alpha[others], beta[others]
    Z = (np.eye(len(alpha))[y] - np.eye(len(alpha))[others]).T
    return Z @ (np.diag(a) - np.outer(a, a) / (1 + a.sum())) @ Z.T, Z @ (b - a * b.sum() / (1 + a.sum()))


def site_matrices(alpha: Array, beta: Array, y: Labels) -> tuple[Array, Array]:
    """Site precisions Π (n, c, c) and locations ν̃ (c, n) from alpha, beta (c, n), 0 at the observed class."""
    blocks = [site_block(alpha[:, i], beta[:, i], int(y[i])) for i in range(len(y))]
    return np.array([Pi for Pi, _ in blocks]), np.array([nu for _, nu in blocks]).T


def stacked_prior(K: Array, c: int) -> Array:
    """Block-diagonal prior covariance (cn, cn) of K (n, n), shared by the classes, or (c, n, n)  (eq. 1)."""
    blocks = [K] * c if K.ndim == 2 else list(K)
    n = blocks[0].shape[0]
    full = np.zeros((c * n, c * n))
    for k, block in enumerate(blocks):
        full[k * n : (k + 1) * n, k * n : (k + 1) * n] = block
    return full


def stacked_sites(alpha: Array, y: Labels) -> tuple[Array, Array, Array]:
    """T̃ = D − DR(RᵀDR)⁻¹RᵀD, D = diag(π) and R, c identity matrices on top of each other (appendix B)."""
    c, n = alpha.shape
    D = np.diag((alpha + np.eye(c)[:, y]).ravel())
    R = np.tile(np.eye(n), (c, 1))
    return D - D @ R @ np.linalg.solve(R.T @ D @ R, R.T @ D), D, R


def dense_m(K: Array, alpha: Array, y: Labels) -> Array:
    """M = T̃(I + KT̃)⁻¹, (cn, cn): the matrix of eqs. 39 and 40."""
    full = stacked_prior(K, alpha.shape[0])
    T, _, _ = stacked_sites(alpha, y)
    return np.asarray(np.linalg.solve((np.eye(len(T)) + full @ T).T, T.T).T, dtype=float)


def dense_m_eq41(K: Array, alpha: Array, y: Labels) -> tuple[Array, float]:
    """M = B − BRP⁻¹RᵀB (eq. 41) and log|I + KT̃| = log|A| − log|RᵀDR| + log|P| (eq. 43)."""
    full = stacked_prior(K, alpha.shape[0])
    _, D, R = stacked_sites(alpha, y)
    root = np.sqrt(D)
    A = np.eye(len(D)) + root @ full @ root
    B = root @ np.linalg.solve(A, root)
    P = R.T @ B @ R
    logdet = np.linalg.slogdet(A)[1] - np.linalg.slogdet(R.T @ D @ R)[1] + np.linalg.slogdet(P)[1]
    return B - B @ R @ np.linalg.solve(P, R.T @ B), float(logdet)


def dense_posterior(K: Array, alpha: Array, beta: Array, y: Labels) -> tuple[Array, Array]:
    """Posterior mean μ = K(I − MK)ν̃ (c, n) and covariance Σ = K − KMK (cn, cn) at the training points."""
    full, M = stacked_prior(K, alpha.shape[0]), dense_m(K, alpha, y)
    nu = site_matrices(alpha, beta, y)[1].ravel()
    return (full @ (nu - M @ full @ nu)).reshape(alpha.shape), full - full @ M @ full


def dense_predict(
    K: Array, Kstar: Array, Kss: Array, alpha: Array, beta: Array, y: Labels
) -> tuple[Array, Array]:
    """Latent mean (m, c) and covariance (m, c, c) of each test point, one at a time  (eqs. 39-40).

    E[f*] = K*ᵀ(I − MK)ν̃ and Cov[f*] = K** − K*ᵀMK*, with K* of shape cn × c.

    Parameters
    ----------
    Kstar : (n, m), shared, or (c, n, m) covariances of training and test points.
    Kss : (m,), shared, or (c, m) prior variances of the test points.
    """
    c, n = alpha.shape
    full, M = stacked_prior(K, c), dense_m(K, alpha, y)
    nu = site_matrices(alpha, beta, y)[1].ravel()
    weights = nu - M @ full @ nu
    Kstar = np.broadcast_to(Kstar, (c, n, Kstar.shape[-1]))
    Kss = np.broadcast_to(Kss, (c, Kss.shape[-1]))
    means, covs = [], []
    for t in range(Kstar.shape[-1]):
        K_t = np.zeros((c * n, c))
        for k in range(c):
            K_t[k * n : (k + 1) * n, k] = Kstar[k, :, t]
        means.append(K_t.T @ weights)
        covs.append(np.diag(Kss[:, t]) - K_t.T @ M @ K_t)
    return np.array(means), np.array(covs)


def marginal(mu: Array, Sigma: Array, i: int) -> tuple[Array, Array]:
    """Posterior mean (c,) and covariance (c, c) of point i, from mu (c, n) and Sigma (cn, cn)."""
    c, n = mu.shape
    rows = i + n * np.arange(c)
    return mu[:, i], Sigma[np.ix_(rows, rows)]


def remove_site(mean: Array, cov: Array, Pi: Array, nu: Array) -> tuple[Array, Array]:
    """Cavity Σ₋ = (Σ⁻¹ − Π)⁻¹, μ₋ = Σ₋(Σ⁻¹μ − ν̃), with Σ moved inside the inverse  (eq. 7)."""
    A = np.eye(len(mean)) - cov @ Pi
    solved = np.linalg.solve(A, np.column_stack([mean - cov @ nu, cov])).astype(float)
    return solved[:, 0], solved[:, 1:]


def _gaussian_part(K: Array, y: Labels, alpha: Array, beta: Array, mu: Array) -> float:
    """½ν̃ᵀμ − ½ log|I + KT̃|, the first two terms of eq. 42."""
    full, (T, _, _) = stacked_prior(K, alpha.shape[0]), stacked_sites(alpha, y)
    nu = site_matrices(alpha, beta, y)[1]
    return float(0.5 * np.sum(nu * mu) - 0.5 * np.linalg.slogdet(np.eye(len(T)) + full @ T)[1])


def _quadratic_and_logdet(mean: Array, cov: Array) -> float:
    """μᵀΣ⁻¹μ + log|Σ|."""
    return float(mean @ np.linalg.solve(cov, mean) + np.linalg.slogdet(cov)[1])


def log_evidence_eq42(K: Array, y: Labels, alpha: Array, beta: Array) -> float:
    """log Z_EP term by term as printed in eq. 42, with c × c cavities and Z_q̂ from converged inner EP.

    Inner EP starts from the sites given, and ends there if they are a fixed point.
    """
    mu, Sigma = dense_posterior(K, alpha, beta, y)
    Pi, nu = site_matrices(alpha, beta, y)
    log_z = _gaussian_part(K, y, alpha, beta, mu)
    for i in range(len(y)):
        mean, cov = marginal(mu, Sigma, i)
        cavity_mean, cavity_cov = remove_site(mean, cov, Pi[i], nu[:, i])
        log_z += inner_ep(cavity_mean, cavity_cov, int(y[i]), init=(alpha[:, i], beta[:, i])).log_z
        log_z += 0.5 * _quadratic_and_logdet(cavity_mean, cavity_cov) - 0.5 * _quadratic_and_logdet(mean, cov)
    return log_z


def log_evidence_flat(K: Array, y: Labels, alpha: Array, beta: Array) -> float:
    """log Z_EP as EP with n(c−1) scalar sites: no c × c cavity and no inner iteration.

    ½ν̃ᵀμ − ½ log|I + KT̃| + Σ_ij [log Φ(z_ij) − log ∫ N(g | m₋, v₋) exp(−½α̃g² + β̃g) dg] + Σ_i const_i, where
    const_i = −½ log(1 + 1ᵀα̃) + ½(1ᵀβ̃)²/(1 + 1ᵀα̃) comes from integrating u_i out of its sites.
    """
    mu, Sigma = dense_posterior(K, alpha, beta, y)
    log_z = _gaussian_part(K, y, alpha, beta, mu)
    for i in range(len(y)):
        mean, cov = marginal(mu, Sigma, i)
        a, b, c = alpha[:, i], beta[:, i], len(mean)
        precision = 1 + a.sum()
        log_z += -0.5 * np.log(precision) + 0.5 * b.sum() ** 2 / precision
        contrasts = np.eye(c)[y[i]] - np.eye(c)
        for j in range(c):
            if j == y[i]:
                continue
            # Given f, u is Gaussian with mean (1ᵀβ̃ − Σ_l α̃_l (f_y − f_l)) / precision, so that
            # g_j = f_y − f_j + u is linear in f plus noise of variance 1/precision.
            direction = contrasts[j] - a @ contrasts / precision
            m = direction @ mean + b.sum() / precision
            v = direction @ cov @ direction + 1 / precision
            v_cavity = 1 / (1 / v - a[j])  # eq. 30
            m_cavity = v_cavity * (m / v - b[j])  # eq. 31
            log_z += log_probit_integral(m_cavity, v_cavity)
            log_z -= log_site_integral(m_cavity, v_cavity, a[j], b[j])
    return float(log_z)
