"""The exact integrals that EP approximates: likelihood, tilted moments, class probabilities, evidence.

All rest on two facts. With h_j = f_y − f_j + u, u ~ N(0, 1), the likelihood is E_u Π_j Φ(h_j) (eq. 4). With
v^k = f^k + noise of variance 1, it is also P(v^y > v^j for all j): every probability is a Gaussian orthant.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri, ndtri_exp
from scipy.stats import qmc

from tests.oracles._types import Array, Labels
from tests.oracles.dense import stacked_prior

# A log-concave integrand with curvature at least 1 has fallen by a factor exp(−40) nine units from its mode.
REACH = 9.0


class TiltedMoments(NamedTuple):
    """log of the normaliser, mean (c,) and covariance (c, c) of N(f | mean, cov) p(y | f)."""

    log_z: float
    mean: Array
    cov: Array


def log_likelihood(f: Array, y: int) -> float:
    """log p(y | f) = log ∫ N(u | 0, 1) Π_{j≠y} Φ(u + f_y − f_j) du by the trapezoidal rule  (eq. 4).

    The integrand is entire and decays as a Gaussian, so the rule converges faster than any power of the step.
    """
    d = np.delete(f[y] - f, y)

    def slope(u: float) -> float:
        z = u + d
        return float(-u + np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z)).sum())

    mode = brentq(slope, 0.0, 1.0 + np.sum(np.abs(d) + 1.0))
    step = 0.5 / np.sqrt(len(f))
    u = mode + step * np.arange(-int(REACH / step), int(REACH / step) + 1)
    log_terms = -0.5 * u**2 - 0.5 * np.log(2 * np.pi) + log_ndtr(u[:, None] + d).sum(axis=1)
    return float(np.log(step) + logsumexp(log_terms))


def contrasts(c: int, y: int) -> Array:
    """Rows e_y − e_j for j ≠ y: (c − 1, c)."""
    return np.delete(np.eye(c)[y] - np.eye(c), y, axis=0)


def _augmented(mean: Array, cov: Array, y: int) -> tuple[Array, Array, Array]:
    """Mean m and covariance G of h = f_y − f_j + u, and Cov(f, h): (c−1,), (c−1, c−1), (c, c−1)."""
    C = contrasts(len(mean), y)
    return C @ mean, C @ cov @ C.T + 1.0, cov @ C.T


def _tilted_mode(m: Array, L: Array) -> Array:
    """Whitened e, h = m + Le, that maximises −½eᵀe + Σ_j log Φ(h_j)."""

    def objective(e: Array) -> tuple[float, Array]:
        z = m + L @ e
        ratio = np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z))
        return float(0.5 * e @ e - log_ndtr(z).sum()), e - L.T @ ratio

    return np.asarray(minimize(objective, np.zeros(len(m)), jac=True, method="BFGS").x)


def _to_latent(mean: Array, cov: Array, y: int, log_z: float, h_mean: Array, h_cov: Array) -> TiltedMoments:
    """Moments of f from those of h: f given h is the Gaussian conditional, whatever reweights h."""
    m, G, cross = _augmented(mean, cov, y)
    gain = np.linalg.solve(G, cross.T).T
    return TiltedMoments(log_z, mean + gain @ (h_mean - m), cov - gain @ cross.T + gain @ h_cov @ gain.T)


def tilted_moments_grid(mean: Array, cov: Array, y: int) -> TiltedMoments:
    """Exact tilted moments for c = 3 by the trapezoidal rule on a grid over the whitened h, about its mode.

    The step resolves the sharpest curvature possible, 1 + λ_max(G), to rounding error.
    """
    if len(mean) != 3:
        raise ValueError(f"the grid is for 3 classes, got {len(mean)}")
    m, G, _ = _augmented(mean, cov, y)
    L = np.linalg.cholesky(G).astype(float)
    mode = _tilted_mode(m, L)
    step = 0.5 / np.sqrt(1 + np.linalg.eigvalsh(G)[-1])
    axis = step * np.arange(-int(REACH / step), int(REACH / step) + 1)
    e = np.stack(np.meshgrid(mode[0] + axis, mode[1] + axis, indexing="ij"), axis=-1).reshape(-1, 2)
    h = m + e @ L.T
    log_w = -0.5 * np.sum(e**2, axis=1) - np.log(2 * np.pi) + log_ndtr(h).sum(axis=1)
    total = logsumexp(log_w)
    w = np.exp(log_w - total)
    h_mean = w @ h
    h_cov = (w[:, None] * (h - h_mean)).T @ (h - h_mean)
    return _to_latent(mean, cov, y, float(total + 2 * np.log(step)), h_mean, h_cov)


def _sobol(dim: int, n_points: int, rng: np.random.Generator) -> Array:
    """Scrambled Sobol points in the open unit cube, n_points rounded up to a power of two."""
    points = qmc.Sobol(dim, rng=rng).random_base2(int(np.ceil(np.log2(n_points))))
    return np.clip(points, 1e-16, 1 - 1e-16)


def tilted_moments_qmc(
    mean: Array, cov: Array, y: int, n_points: int = 2**13, n_scrambles: int = 16, seed: int = 0
) -> tuple[TiltedMoments, TiltedMoments]:
    """Tilted moments for any c by importance sampling, and their standard errors over scrambles.

    The proposal is the prior of h moved to the mode of the tilted density. The log weights are concave with
    their maximum there, so no weight is ever large.
    """
    m, G, _ = _augmented(mean, cov, y)
    L = np.linalg.cholesky(G).astype(float)
    mode = _tilted_mode(m, L)
    rng = np.random.default_rng(seed)
    runs = []
    for _ in range(n_scrambles):
        x = ndtri(_sobol(len(m), n_points, rng))
        h = m + (mode + x) @ L.T
        log_w = -x @ mode - 0.5 * mode @ mode + log_ndtr(h).sum(axis=1)
        w = np.exp(log_w - logsumexp(log_w))
        h_mean = w @ h
        h_cov = (w[:, None] * (h - h_mean)).T @ (h - h_mean)
        run_log_z = float(logsumexp(log_w) - np.log(len(w)))
        runs.append(_to_latent(mean, cov, y, run_log_z, h_mean, h_cov))
    columns = [np.array(column) for column in zip(*runs, strict=True)]
    log_z, f_mean, f_cov = (column.mean(axis=0) for column in columns)
    errors = [column.std(axis=0, ddof=1) / np.sqrt(n_scrambles) for column in columns]
    return TiltedMoments(log_z, f_mean, f_cov), TiltedMoments(*errors)


def log_orthant(
    mean: Array, cov: Array, n_points: int = 2**13, n_scrambles: int = 16, seed: int = 0
) -> tuple[float, float]:
    """log P(x > 0), x ~ N(mean, cov), by Genz's separation of variables, and its standard error.

    With x = mean + Le, each e_i is drawn from its normal truncated by x_i > 0 given e_1..e_{i−1}; the mean of
    the product of the truncation probabilities is the answer.
    """
    L = np.linalg.cholesky(cov)
    d = len(mean)
    rng = np.random.default_rng(seed)
    logs = []
    for _ in range(n_scrambles):
        uniforms = _sobol(max(d - 1, 1), n_points, rng)
        e = np.zeros((len(uniforms), d))
        log_w = np.zeros(len(uniforms))
        for i in range(d):
            log_p = log_ndtr((mean[i] + e[:, :i] @ L[i, :i]) / L[i, i])
            log_w += log_p
            if i < d - 1:
                e[:, i] = -ndtri_exp(np.log(uniforms[:, i]) + log_p)
        logs.append(logsumexp(log_w) - np.log(len(log_w)))
    p = np.exp(np.array(logs) - np.max(logs))
    error = p.std(ddof=1) / np.sqrt(n_scrambles) / p.mean()
    return float(np.log(p.mean()) + np.max(logs)), float(error)


def class_probabilities_qmc(mean: Array, cov: Array, n_points: int = 2**13, seed: int = 0) -> Array:
    """P(argmax_k v_k = k), v ~ N(mean, cov + I), each by its own orthant integral: (c,), not normalised."""
    noisy = cov + np.eye(len(mean))
    rows = [contrasts(len(mean), k) for k in range(len(mean))]
    return np.exp([log_orthant(C @ mean, C @ noisy @ C.T, n_points, seed=seed)[0] for C in rows])


def bivariate_normal_cdf(h: float, k: float, rho: float) -> float:
    """P(x < h, y < k) for standard normals of correlation rho, by Plackett's identity:

    Φ(h)Φ(k) + (1/2π) ∫_0^{arcsin ρ} exp(−(h² + k² − 2hk sin θ) / (2cos²θ)) dθ.
    """
    nodes, weights = np.polynomial.legendre.leggauss(200)
    half = 0.5 * np.arcsin(rho)
    theta = half * (nodes + 1)
    values = np.exp(-(h**2 + k**2 - 2 * h * k * np.sin(theta)) / (2 * np.cos(theta) ** 2))
    return float(ndtr(h) * ndtr(k) + half * (weights @ values) / (2 * np.pi))


def class_probabilities_bvn(mean: Array, cov: Array) -> Array:
    """P(argmax_k v_k = k), v ~ N(mean, cov + I), for c = 3: each a bivariate normal cdf, not normalised."""
    if len(mean) != 3:
        raise ValueError(f"the bivariate form is for 3 classes, got {len(mean)}")
    probabilities = []
    for k in range(3):
        C = contrasts(3, k)
        m, V = C @ mean, C @ (cov + np.eye(3)) @ C.T
        sd = np.sqrt(np.diag(V))
        probabilities.append(bivariate_normal_cdf(m[0] / sd[0], m[1] / sd[1], V[0, 1] / (sd[0] * sd[1])))
    return np.array(probabilities)


def log_evidence_bruteforce(
    K: Array, y: Labels, n_classes: int, n_points: int = 2**13, n_scrambles: int = 16, seed: int = 0
) -> tuple[float, float]:
    """Exact log p(y) = log P(v_i^{y_i} > v_i^j for all i, j ≠ y_i), v ~ N(0, K + I), and its standard error.

    An orthant of n(c − 1) dimensions: meant for n <= 5, larger only if the standard error allows.
    """
    n = len(y)
    cov = stacked_prior(K, n_classes) + np.eye(n_classes * n)
    rows = []
    for i in range(n):
        for j in range(n_classes):
            if j != y[i]:
                row = np.zeros(n_classes * n)
                row[y[i] * n + i] += 1.0
                row[j * n + i] -= 1.0
                rows.append(row)
    C = np.array(rows)
    return log_orthant(np.zeros(len(C)), C @ cov @ C.T, n_points, n_scrambles, seed)
