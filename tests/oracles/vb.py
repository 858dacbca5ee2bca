"""Variational Bayes for the auxiliary-variable multinomial probit, the literal alternation with dense matrices.

v_ik = f_ik + noise, y_i the largest of v_i; q(v) q(f) with q(v_i) a standard normal about m_i cut to its cone, and
q(f_k) = N(m_k, Σ_k), Σ_k = (K_k⁻¹ + I)⁻¹ (section 4.3 of the paper; Girolami and Rogers 2006, section 3).
"""

from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr

from tests.oracles._types import Array, Labels


class VariationalResult(NamedTuple):
    """Means (c, n), covariances (c, n, n), E[v] (c, n), the bound, and the bound after every iteration."""

    mean: Array
    Sigma: Array
    expected_v: Array
    bound: float
    bounds: list[float]


def cone_moments(m: Array, y: int) -> tuple[float, Array]:
    """log P(v_y is the largest) and E[v | v_y is the largest] (c,) for v ~ N(m, I), by a fine grid over v_y.

    E[v_j | v_y] = m_j − φ(v_y − m_j)/Φ(v_y − m_j) for the others, each cut off at v_y; E[v_y] is a plain mean.
    """
    others = np.delete(np.arange(len(m)), y)
    low = m[y] - 12.0
    high = max(m[y], m[others].max()) + 12.0
    v = np.linspace(low, high, 4001)
    z = v[:, None] - m[others]
    log_w = -0.5 * (v - m[y]) ** 2 - 0.5 * np.log(2 * np.pi) + log_ndtr(z).sum(axis=1)
    top = log_w.max()
    w = np.exp(log_w - top)
    step = v[1] - v[0]
    log_z = float(top + np.log(w.sum() * step))
    w /= w.sum()
    out = np.empty(len(m))
    out[y] = w @ v
    out[others] = m[others] - w @ np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z))
    return log_z, out


def variational_bayes(K: Array, y: Labels, n_classes: int, iterations: int) -> VariationalResult:
    """`iterations` rounds of E[v] given m, then m_k = Σ_k E[v_k], from m = 0."""
    c, n = n_classes, len(y)
    kernels = [K] * c if K.ndim == 2 else list(K)
    Sigma = np.array([np.linalg.inv(np.linalg.inv(Kk) + np.eye(n)) for Kk in kernels])
    mean = np.zeros((c, n))
    bounds = []
    expected = np.zeros((c, n))
    for _ in range(iterations):
        log_cones = 0.0
        for i in range(n):
            log_z, expected[:, i] = cone_moments(mean[:, i], int(y[i]))
            log_cones += log_z
        bounds.append(lower_bound(kernels, mean, Sigma, log_cones))
        mean = np.einsum("knm,km->kn", Sigma, expected)
    log_cones = sum(cone_moments(mean[:, i], int(y[i]))[0] for i in range(n))
    bounds.append(lower_bound(kernels, mean, Sigma, log_cones))
    return VariationalResult(mean, Sigma, expected, bounds[-1], bounds)


def lower_bound(kernels: list[Array], mean: Array, Sigma: Array, log_cones: float) -> float:
    """E_q[log p(y, v | f) − log q(v)] − KL(q(f) || p(f)) with q(v) the best for `mean`.

    The first part is Σ_i log P(cone_i | m_i) − ½ Σ_k tr Σ_k: the noise about f is that about m and the spread of f.
    """
    bound = log_cones - 0.5 * float(np.einsum("knn->", Sigma))
    for Kk, m, S in zip(kernels, mean, Sigma, strict=True):
        inverse = np.linalg.inv(Kk)
        kl = np.trace(inverse @ S) + m @ inverse @ m - len(m)
        kl += np.linalg.slogdet(Kk)[1] - np.linalg.slogdet(S)[1]
        bound -= 0.5 * float(kl)
    return bound
