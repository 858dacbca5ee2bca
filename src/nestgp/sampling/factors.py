"""What a sampler needs of K at one θ: the prior, and the posterior of f given unit-noise observations v."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from sklearn.gaussian_process.kernels import Kernel

from nestgp import kernels
from nestgp.arrays import FloatArray
from nestgp.kernel_gradient import contract
from nestgp.lapack import cholesky_in_place, inverse_from_cholesky_in_place
from nestgp.symmetric import mirror
from nestgp.threads import single_threaded_if_small

#: Relative jitter where K itself is factorised; K + I never needs one.
JITTER = 1e-9


class Factors:
    """Factors of K and K + I for one kernel, or for a list of one per class; each is made when first asked for."""

    def __init__(self, kernel: Kernel | Sequence[Kernel], X: FloatArray, n_classes: int) -> None:
        self.kernel, self.X, self.n_classes = kernel, X, n_classes
        K = kernels.gram(kernel, X)
        self.K = K if K.ndim == 3 else K[None]
        self.copies = n_classes // len(self.K)
        self.n = len(X)

    @property
    def shared_or_stack(self) -> FloatArray:
        """K as an inference takes it: (n, n) where the classes share it, else (c, n, n)."""
        return self.K[0] if len(self.K) == 1 else self.K

    def times(self, stack: FloatArray, b: FloatArray) -> FloatArray:
        """stack_k b_k for b (c, n); stack (1 or c, n, n)."""
        with single_threaded_if_small(self.n):
            if len(stack) == 1:
                return b @ stack[0].T
            return np.matmul(stack, b[:, :, None])[:, :, 0]

    @cached_property
    def _chol(self) -> tuple[FloatArray, float]:
        L = self.jittered.copy()
        log_det = 0.0
        with single_threaded_if_small(self.n):
            for A in L:
                log_det += cholesky_in_place(A) * self.copies
                A[np.triu_indices(self.n, 1)] = 0.0
        return L, log_det

    @cached_property
    def jittered(self) -> FloatArray:
        """K + jitter = L Lᵀ, (1 or c, n, n)."""
        K = self.K.copy()
        for A in K:
            A[np.diag_indices(self.n)] += JITTER * float(np.diagonal(A).mean())
        return K

    @property
    def prior_root(self) -> FloatArray:
        """L with L Lᵀ = K + jitter, (1 or c, n, n)."""
        return self._chol[0]

    @property
    def log_det_prior(self) -> float:
        """Σ_k log|K_k|."""
        return self._chol[1]

    def whiten(self, f: FloatArray) -> FloatArray:
        """z = L⁻¹ f for every class, (c, n)."""
        if len(self.K) == 1:
            return solve_triangular(self.prior_root[0], f.T, lower=True, check_finite=False).T
        each = zip(self.prior_root, f, strict=True)
        return np.stack([solve_triangular(L, fk, lower=True, check_finite=False) for L, fk in each])

    @cached_property
    def prior_inverse(self) -> FloatArray:
        """(K + jitter)⁻¹, (1 or c, n, n)."""
        return self._invert(self.prior_root)

    def prior_solve(self, f: FloatArray) -> FloatArray:
        """(K + jitter)⁻¹ f for every class, (c, n), as accurate as K allows: the inverse itself is less so."""
        each = zip(self.prior_root, self.whiten(f).reshape(len(self.K), self.copies, self.n), strict=True)
        return np.concatenate([solve_triangular(L, z.T, lower=True, trans=1, check_finite=False).T for L, z in each])

    @cached_property
    def _noisy(self) -> tuple[FloatArray, float]:
        A = self.K.copy()
        log_det = 0.0
        with single_threaded_if_small(self.n):
            for a in A:
                a[np.diag_indices(self.n)] += 1.0
                log_det += cholesky_in_place(a) * self.copies
        return A, log_det

    @property
    def noisy_root(self) -> FloatArray:
        """On and below the diagonal L with L Lᵀ = K + I, (1 or c, n, n)."""
        return self._noisy[0]

    @cached_property
    def noisy_inverse(self) -> FloatArray:
        """Q = (K + I)⁻¹, (1 or c, n, n)."""
        return self._invert(self.noisy_root)

    @property
    def log_det_noisy(self) -> float:
        """Σ_k log|K_k + I|."""
        return self._noisy[1]

    def _invert(self, cholesky: FloatArray) -> FloatArray:
        out = cholesky.copy()
        with single_threaded_if_small(self.n):
            for A in out:
                inverse_from_cholesky_in_place(A)
                mirror(A)
        return out

    def draw_prior(self, rng: np.random.Generator) -> FloatArray:
        """f ~ N(0, K) for every class, (c, n)."""
        return self.times(self.prior_root, rng.standard_normal((self.n_classes, self.n)))

    def draw_latents(self, v: FloatArray, rng: np.random.Generator) -> FloatArray:
        """f | v ~ N(K Q v, K Q) for every class (c, n): a prior draw, moved by what v − f₀ − noise says; K Q r = r − Q r."""
        f = self.draw_prior(rng)
        r = v - f - rng.standard_normal(v.shape)
        return f + r - self.times(self.noisy_inverse, r)

    def gradient(self, weights: FloatArray) -> FloatArray:
        """Σ_ij weights_ij ∂K_ij/∂θ; weights (1 or c, n, n)."""
        shared = len(self.K) == 1
        K: Any = self.K[0] if shared else self.K
        return contract(self.kernel, self.X, weights[0] if shared else weights, K=K)

    def gaussian_gradient(self, b: FloatArray, inverse: FloatArray) -> FloatArray:
        """Gradient by θ of Σ_k log N: ½ Σ_k (b_k b_kᵀ − A_k⁻¹), b = A⁻¹x (c, n)."""
        if len(self.K) == 1:
            return self.gradient(0.5 * (b.T @ b - self.n_classes * inverse[0])[None])
        return self.gradient(0.5 * (np.einsum("kn,km->knm", b, b) - inverse))
