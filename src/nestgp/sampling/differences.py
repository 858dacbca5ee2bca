"""The Gaussian that nested EP's sites put in place of the posterior, over the differences that the likelihood is made of.

The multinomial probit is a product of factors Φ(g_ij) of the n (c − 1) differences g_ij = u_i + f_i^y − f_i^j, u_i ~ N(0, 1)
(eq. 10). Nested EP puts a Gaussian site t_ij(g) = exp(β̃ g − ½ α̃ g²) in place of each. Under the sites g = m + C x with
x ~ N(0, I), of total mass Z_q; the exact posterior of x differs from that by Π Φ(g_ij)/t_ij(g_ij) alone. Cost: n³ (c − 1)³ for C.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.sparse import csr_array
from scipy.special import ndtr

from nestgp.arrays import FloatArray, IntArray
from nestgp.evidence import log_evidence
from nestgp.inference.result import Fit
from nestgp.linalg import DenseBlocks
from nestgp.sampling.factors import Factors
from nestgp.sites import precision_root_times
from nestgp.tilted import log_ndtr_and_ratio

#: Relative jitter on the covariance of g, singular where rows repeat.
JITTER = 1e-10
#: π below which a covariance that is divided by it would have too few digits.
TINY = 1e-5
#: Factors that HMC does not follow: those that change the least, as long as their log Φ/t, each by itself, have variances that
#: sum to about this at the most.
LEFT_OUT = 0.03
#: Of the mean of a function of a normal variable.
NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()
#: A table of φ(x)/Φ(x), so many in a unit; linear between two of them, wrong by 1e-6 at the most.
RATIOS_FROM, RATIOS_TO, RATIOS_EACH = -16.0, 9.0, 256
_AT = np.linspace(RATIOS_FROM, RATIOS_TO, int(RATIOS_TO - RATIOS_FROM) * RATIOS_EACH + 1)
RATIOS = np.exp(-0.5 * _AT**2) / (math.sqrt(2.0 * math.pi) * ndtr(_AT))
#: Rows or columns of a triangular matrix that are multiplied at once: BLAS's own for triangles is slower with few right sides.
BLOCK = 128
_SQRT_HALF = math.sqrt(0.5)


class Differences:
    """The Gaussian of g = m + C x that the sites of a fit by nested EP imply; its K must be that of ``factors.jittered``.

    Attributes
    ----------
    mean (D,), root (D, D) lower : m and C, D = n (c − 1).
    order (D,) : g as the sites have it, the other classes of a row beside each other, in the order that is used here: factors
        that change Π Φ/t the most come first.
    followed : C of those that HMC follows, (a, a) float32. They depend on the first a of x alone.
    alpha, beta (D,) : the sites; log_mass : log Z_q; stiffness : λ, about the largest eigenvalue of Cᵀ H C, where H is diagonal
        with the mean size of (log Φ/t)″ of every factor: what the steps of HMC must be short for.
    """

    def __init__(self, fit: Fit, factors: Factors, y: IntArray) -> None:
        blocks = fit.posterior.blocks
        assert isinstance(blocks, DenseBlocks)
        assert fit.site_moments is not None
        self.blocks, self.factors = blocks, factors
        alpha, beta = fit.sites
        nu, mean = fit.site_moments()[1], fit.posterior.mean
        self.latent_mean = mean.T.ravel()  # (cn,)
        self.log_mass = log_evidence(blocks.log_det, nu, mean, alpha, beta, 0.0)
        # u_i given f_i under the sites: mean (Σ_j β̃_j − Σ_j α̃_j (f_y − f_j))/(1 + 1ᵀα̃), variance 1/(1 + 1ᵀα̃)
        self.noise = 1.0 / (1.0 + alpha.sum(axis=1))
        contrast = contrasts(y, alpha * self.noise[:, None], factors.n_classes)
        mean = contrast @ self.latent_mean + np.repeat(beta.sum(axis=1) * self.noise, factors.n_classes - 1)
        self.covariance = Covariance.of(blocks)
        G = self.covariance.between(contrast)
        each = np.arange(len(G)).reshape(alpha.shape)
        G[each[:, :, None], each[:, None, :]] += self.noise[:, None, None]
        G[np.diag_indices(len(G))] += JITTER * float(np.diagonal(G).mean())
        curvature = _mean_curvature(mean, np.sqrt(np.diagonal(G)), alpha.ravel(), NODES, NODE_WEIGHTS)
        self.stiffness = _largest_eigenvalue(G, curvature)
        influence = curvature * np.diagonal(G)  # of −½ h (g − m)² under N(g): its variance is ½ (h G)²
        self.order = np.argsort(-influence)
        self.mean, self.alpha, self.beta = (part.ravel()[self.order] for part in (mean, alpha, beta))
        self.contrast = contrast[self.order]
        G = G[np.ix_(self.order, self.order)]
        self.root = cholesky(G.T, lower=True, overwrite_a=True, check_finite=False)
        left_out = 0.5 * np.cumsum(influence[self.order][::-1] ** 2) <= LEFT_OUT
        a = len(G) - int(left_out.sum())
        self.followed = np.ascontiguousarray(self.root[:a, :a], dtype=np.float32)

    def log_ratio(self, x: FloatArray) -> FloatArray:
        """log Π Φ(g)/t(g) of every particle (q,); x (D, q)."""
        g = lower_times(self.root, x)
        value = np.empty(x.shape[1])
        _log_ratio(g, self.mean, self.alpha, self.beta, value)
        return value

    def slope(self, x: FloatArray) -> Any:
        """Its gradient by the first a of x, (a, q), in single precision and of the factors that change the most.

        What HMC follows need not be exact, only what it is accepted by.
        """
        a = len(self.followed)
        g = lower_times(self.followed, x[:a].astype(np.float32))
        _slopes_by_g(g, self.mean, self.alpha, self.beta, RATIOS)
        return transposed_lower_times(self.followed, g)

    def values(self, x: FloatArray) -> FloatArray:
        """g (D, q) of x (D, q), in the order of the sites."""
        g = np.empty_like(x)
        g[self.order] = lower_times(self.root, x) + self.mean[:, None]
        return g

    def coordinates(self, g: FloatArray) -> FloatArray:
        """x (D, q) of g (D, q): what :meth:`values` makes g of, whatever order is used here."""
        return solve_triangular(self.root, g[self.order] - self.mean[:, None], lower=True, check_finite=False)

    def latents(self, x: FloatArray, rng: np.random.Generator) -> FloatArray:
        """A draw of f given each column of x, (q, c, n): one of f and g under the sites, moved to where g is m + C x."""
        shape = (*self.blocks.pi.shape, x.shape[1])
        prior = np.matmul(self.factors.prior_root, rng.standard_normal(shape))
        eta = precision_root_times(self.blocks.pi[:, :, None], rng.standard_normal(shape))
        e = prior + self.blocks.multiply_kernel(eta)
        f = (e - self.blocks.multiply_kernel(self.blocks.solve(e))).reshape(-1, x.shape[1])  # Σ (K⁻¹ L z + E ξ)
        noise = np.sqrt(self.noise)[:, None] * rng.standard_normal((len(self.noise), x.shape[1]))
        g = self.contrast @ f + noise[self.order // (shape[0] - 1)]
        away = x - solve_triangular(self.root, g, lower=True, check_finite=False)
        f += self.covariance.times(self.contrast.T @ solve_triangular(self.root, away, lower=True, trans=1, check_finite=False))
        f += self.latent_mean[:, None]
        return np.ascontiguousarray(f.reshape(shape).transpose(2, 0, 1))


@numba.njit(cache=True, nogil=True)
def _log_ratio(g, mean, alpha, beta, value):  # type: ignore[no-untyped-def]
    """Σ_d log Φ(x) − β̃ x + ½ α̃ x² at x = g + mean for every column of g (D, q).

    The logarithm is taken of products of Φ, and none of those that are 1 but for rounding: half of the time goes into it else.
    """
    product = np.ones(value.size)
    value[:] = 0.0
    for d in range(g.shape[0]):
        for q in range(g.shape[1]):
            x = g[d, q] + mean[d]
            if x < -8.0:
                value[q] += log_ndtr_and_ratio(x)[0]
            elif x < 9.0:
                product[q] *= 0.5 * math.erfc(-x * _SQRT_HALF)
                if product[q] < 1e-200:
                    value[q] += math.log(product[q])
                    product[q] = 1.0
            value[q] += (0.5 * alpha[d] * x - beta[d]) * x
    for q in range(g.shape[1]):
        value[q] += math.log(product[q])


@numba.njit(cache=True, nogil=True)
def _slopes_by_g(g, mean, alpha, beta, ratios):  # type: ignore[no-untyped-def]
    """d(log Φ(x) − β̃ x + ½ α̃ x²)/dx at x = g + mean, in place of g (a, q) float32; φ/Φ between two neighbours of a table."""
    for d in range(g.shape[0]):
        for q in range(g.shape[1]):
            x = g[d, q] + mean[d]
            slope = alpha[d] * x - beta[d]
            if x < RATIOS_FROM:
                slope += 2.0 / x**3 - 1.0 / x - x
            elif x < RATIOS_TO:
                place = (x - RATIOS_FROM) * RATIOS_EACH
                i = int(place)
                slope += ratios[i] + (place - i) * (ratios[i + 1] - ratios[i])
            g[d, q] = slope


def lower_times(C: Any, x: Any) -> Any:
    """C x for lower triangular C, block by block."""
    out = np.empty_like(x)
    for i in range(0, len(C), BLOCK):
        np.matmul(C[i : i + BLOCK, : i + BLOCK], x[: i + BLOCK], out=out[i : i + BLOCK])
    return out


def transposed_lower_times(C: Any, x: Any) -> Any:
    """Cᵀ x, likewise."""
    out = np.empty_like(x)
    for i in range(0, len(C), BLOCK):
        np.matmul(C[i:, i : i + BLOCK].T, x[i:], out=out[i : i + BLOCK])
    return out


def contrasts(y: IntArray, weight: FloatArray, n_classes: int) -> csr_array:
    """(n (c − 1), cn): f_y − f_j − Σ_l w_il (f_y − f_l) of every row i and other class j; weight (n, c − 1), f class by class."""
    n, m = y.size, n_classes - 1
    others = np.array([[j for j in range(n_classes) if j != k] for k in range(n_classes)])[y]  # (n, c − 1)
    values = np.zeros((n, m, n_classes))
    np.put_along_axis(values, np.broadcast_to(others[:, None], (n, m, m)), weight[:, None], axis=2)
    values[np.arange(n)[:, None], np.arange(m), others] -= 1.0
    values[np.arange(n), :, y] = (1.0 - weight.sum(axis=1))[:, None]
    columns = np.arange(n_classes) * n + np.arange(n)[:, None]
    columns = np.broadcast_to(columns[:, None], values.shape)
    rows = np.arange(n * m + 1) * n_classes
    return csr_array((values.ravel(), columns.ravel(), rows), shape=(n * m, n_classes * n))


class Covariance(NamedTuple):
    """Σ = K − K M K of all latents, class by class, as δ_kl own_k + U_kᵀ U_l with own_k = K − K B_k K and U_k = L_P⁻¹ B_k K.

    own (c, n, n), U (n, cn). B K = I − B D⁻¹ and own = D⁻¹ B K need no products, but lose digits as ε/π: where π is tiny they are
    made by products.
    """

    own: FloatArray
    U: FloatArray

    @classmethod
    def of(cls, blocks: DenseBlocks) -> Covariance:
        c, n = blocks.n_classes, blocks.n
        own, U = np.empty((c, n, n)), np.empty((n, c * n))
        for k in range(c):
            K, B, pi = blocks.class_kernel(k), blocks.class_precision(k), blocks.pi[k]
            tiny = np.flatnonzero(pi < TINY)
            BK = np.eye(n) - B / pi
            BK[:, tiny] = B @ K[:, tiny]
            own[k] = BK / pi[:, None]
            own[k][:, tiny] = K[:, tiny] - K @ BK[:, tiny]
            own[k][tiny] = own[k][:, tiny].T
            U[:, k * n : (k + 1) * n] = blocks.inverse_root_times(BK)
        return cls(0.5 * (own + own.transpose(0, 2, 1)), U)

    def times(self, x: FloatArray) -> FloatArray:
        """Σ x for x (cn, q)."""
        c, n, _ = self.own.shape
        return np.matmul(self.own, x.reshape(c, n, -1)).reshape(x.shape) + self.U.T @ (self.U @ x)

    def between(self, contrast: csr_array) -> FloatArray:
        """H Σ Hᵀ for contrasts H of the latents of single rows, as :func:`contrasts` makes them."""
        c, n, _ = self.own.shape
        V = contrast @ self.U.T
        G = V @ V.T
        _add_own(G, contrast.data.reshape(n, -1, c), self.own)
        return G


@numba.njit(cache=True, nogil=True)
def _add_own(G, h, own):  # type: ignore[no-untyped-def]
    """G_(ia)(jb) += Σ_k h_iak own_k,ij h_jbk; G (n (c − 1), n (c − 1)), h (n, c − 1, c), own (c, n, n)."""
    n, m, c = h.shape
    left = np.empty(c)
    for i in range(n):
        for a in range(m):
            for j in range(n):
                for k in range(c):
                    left[k] = h[i, a, k] * own[k, i, j]
                for b in range(m):
                    total = 0.0
                    for k in range(c):
                        total += left[k] * h[j, b, k]
                    G[i * m + a, j * m + b] += total


@numba.njit(cache=True, nogil=True)
def _mean_curvature(mean, sd, alpha, nodes, weights):  # type: ignore[no-untyped-def]
    """E |(log Φ(g) − β̃ g + ½ α̃ g²)″| for g ~ N(mean, sd²), (D,); (log Φ)″ = −r (r + g)."""
    out = np.zeros(mean.size)
    for d in range(mean.size):
        for k in range(nodes.size):
            _, ratio, ratio_plus_g = log_ndtr_and_ratio(mean[d] + sd[d] * nodes[k])
            out[d] += weights[k] * abs(alpha[d] - ratio * ratio_plus_g)
    return out


def _largest_eigenvalue(G: FloatArray, h: FloatArray, n_steps: int = 20) -> float:
    """Of Cᵀ diag(h) C with C Cᵀ = G, by a few steps of the power method: a little too small."""
    root, size = np.sqrt(h), 1.0
    v = np.random.default_rng(0).standard_normal(len(G))
    for _ in range(n_steps):
        v = root * (G @ (root * (v / max(np.linalg.norm(v), np.finfo(float).tiny))))
        size = float(np.linalg.norm(v))
    return max(size, 1e-6)
