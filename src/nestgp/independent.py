"""Block algebra of K + class-independent sites: c factors and no coupling, for the approximations that leave it out.

With site precisions τ_k (n,) per class: A_k = I + T_k½ K_k T_k½ = L Lᵀ, E_k = L⁻¹ T_k½, B_k = E_kᵀE_k, Σ_k = K_k − K_k B_k K_k.
"""

from __future__ import annotations

import numpy as np

from nestgp.arrays import FloatArray
from nestgp.halves import Routines, for_each_matrix
from nestgp.lapack import gram_of_lower_in_place
from nestgp.linalg import KernelStack
from nestgp.symmetric import clear_upper, form_scaled, mirror
from nestgp.threads import single_threaded_if_small, workers_for

#: Where τ·K_ii is below this, (1 − diag A⁻¹)/τ has lost too many digits and K_ii − |E K_i|² is used.
SMALL_SITE = 1e-6
#: Variance of a latent that has none, such as f(0) under a linear kernel: ratios of variances exist.
TINY = 1e-300


class IndependentBlocks(KernelStack):
    """Factors of K_k⁻¹ + diag(τ_k).

    Parameters
    ----------
    K : (n, n) shared, or (c, n, n).
    n_classes : int
    equal_sites : True if τ is the same for every class; with a shared kernel one factor then serves all.
    """

    def __init__(self, K: FloatArray, n_classes: int, equal_sites: bool = False) -> None:
        super().__init__(K, n_classes)
        self.n_factors = 1 if equal_sites and K.ndim == 2 else n_classes
        self.E = np.empty((self.n_factors, self.n, self.n))
        self.tau: FloatArray = np.empty((n_classes, self.n))
        self.log_det = np.nan

    def factor(self, k: int) -> FloatArray:
        """E_k, lower triangular (n, n)."""
        return self.E[k if self.n_factors > 1 else 0]

    def refresh(self, tau: FloatArray) -> None:
        """Factor for new site precisions τ (c, n)."""
        self.tau = tau
        root = np.sqrt(tau)
        log_dets, order = np.empty(self.n_factors), np.arange(self.n)

        def invert(k: int, routines: Routines) -> None:
            form_scaled(self.class_kernel(k), root[k], order, True, self.E[k])
            log_dets[k] = routines.cholesky(self.E[k], True)
            routines.triangular_inverse(self.E[k], True)
            clear_upper(self.E[k])
            self.E[k] *= root[k]

        with workers_for(self.n, self.n_factors) as workers:
            for_each_matrix(invert, self.n_factors, self.n, workers)
        self.log_det = float(log_dets.sum()) * (self.n_classes // self.n_factors)

    def solve(self, site_means: FloatArray) -> FloatArray:
        """b = K⁻¹μ (c, n) for sites with means w (c, n): b_k = B_k w_k."""
        with single_threaded_if_small(self.n):
            if self.n_factors == 1:
                return (site_means @ self.E[0].T) @ self.E[0]
            return np.stack([E.T @ (E @ w) for E, w in zip(self.E, site_means, strict=True)])

    def marginal_variances(self) -> FloatArray:
        """diag(K_k − K_k B_k K_k) = (1 − diag A_k⁻¹)/τ_k, (c, n); next to nothing where the prior has none, but no zero."""
        out = np.empty((self.n_classes, self.n))
        with single_threaded_if_small(self.n):
            for k in range(self.n_factors):
                E, tau, K = self.E[k], self.tau[k], self.class_kernel(k)
                out[k] = (1.0 - np.einsum("ri,ri->i", E, E) / tau) / tau
                prior = np.diagonal(K)
                small = np.flatnonzero(tau * prior < SMALL_SITE)
                for part in np.array_split(small, max(1, small.size // 128)):
                    EK = E @ K[:, part]
                    out[k, part] = prior[part] - np.einsum("ri,ri->i", EK, EK)
                out[k, prior == 0.0] = TINY
        out[self.n_factors :] = out[0]
        return out

    def m_blocks(self, k: int | None = None) -> FloatArray:
        """M_kk = B_k (n, n); summed over the classes when ``k`` is None."""
        classes = range(self.n_classes) if k is None else [k]
        if self.n_factors == 1:
            return len(classes) * self._precision(0)
        out = self._precision(classes[0])
        for m in classes[1:]:
            out += self._precision(m)
        return out

    def _precision(self, k: int) -> FloatArray:
        B = self.E[k].copy()
        with single_threaded_if_small(self.n):
            gram_of_lower_in_place(B)
        mirror(B)
        return B

    def class_covariance(self, k: int) -> FloatArray:
        """Σ_k = K_k − K_k B_k K_k, (n, n)."""
        K = self.class_kernel(k)
        with single_threaded_if_small(self.n):
            EK = self.factor(k) @ K
            return K - EK.T @ EK

    def predict(self, k_star: FloatArray, prior_variance: FloatArray) -> FloatArray:
        """Latent covariance at new inputs (m, c, c), diagonal: k_** − |E_k k_*|²."""
        c, m = self.n_classes, k_star.shape[-1]
        prior_variance = np.broadcast_to(prior_variance, (c, m))
        cov = np.zeros((m, c, c))
        with single_threaded_if_small(self.n):
            for k in range(c):
                if k == 0 or self.n_factors > 1 or k_star.ndim == 3:
                    V = self.factor(k) @ (k_star if k_star.ndim == 2 else k_star[k])
                    shrink = np.einsum("im,im->m", V, V)
                cov[:, k, k] = prior_variance[k] - shrink
        return cov
