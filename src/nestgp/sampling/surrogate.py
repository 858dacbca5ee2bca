"""Coordinates in which hyperparameters and latents are nearly independent and standard normal.

An approximation (EP for the probit, Laplace for the softmax) gives Gaussian sites t(f) = exp(νᵀf − ½ fᵀΠf) that stand for the
likelihood. Held fixed for a whole chain they imply, at every θ, a posterior N(m_θ, Σ_θ) with Σ = (K⁻¹ + Π)⁻¹, m = Σν and an
evidence Z_θ. Latents are written as a draw of it,

    f = Σ (K⁻¹ L z + ν + E ξ),    L Lᵀ = K,  E Eᵀ = Π,    z, ξ ~ N(0, I) a priori,

and the exact joint density of (θ, z, ξ) is p(θ) Z_θ N(z) N(ξ) p(y | f)/t(f). As far as t is a good stand-in, the last ratio is
flat: θ moves under the approximate evidence, not held back by f, and (z, ξ) are white. Any t is valid; a bad one only mixes
slowly. This is the surrogate-data idea of Murray and Adams (2010) with the sites of a converged approximation, couplings between
classes included, and with a gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from nestgp.evidence import evidence_gradient, symmetric_outer
from nestgp.inference.result import Fit
from nestgp.linalg import DenseBlocks, FloatArray, multiply
from nestgp.sampling.factors import Factors


@dataclass(frozen=True)
class Surrogate:
    """Sites t(f_i) = exp(ν_iᵀf_i − ½ f_iᵀΠ_i f_i), Π_i = diag(π_i) − π_i π_iᵀ/1ᵀπ_i; pi, nu (c, n)."""

    pi: FloatArray
    nu: FloatArray

    @classmethod
    def of(cls, fit: Fit) -> Surrogate:
        """Sites of a fit by nested EP or Laplace's method; of one that failed, sites that say nothing."""
        if not np.isfinite(fit.log_evidence) or fit.site_moments is None:
            pi = np.full(fit.posterior.mean.T.shape, 1e-8)
            return cls(pi, np.zeros_like(pi))
        return cls(fit.posterior.blocks.pi.copy(), np.ascontiguousarray(fit.site_moments()[1].T))  # type: ignore[attr-defined]

    def precision_times(self, f: FloatArray) -> FloatArray:
        """Π f (c, n)."""
        weighted = self.pi * f
        return weighted - self.pi * (weighted.sum(axis=0) / self.pi.sum(axis=0))

    def root_times(self, xi: FloatArray) -> FloatArray:
        """E ξ with E_i = diag √π_i − π_i √π_iᵀ/1ᵀπ_i, so that E Eᵀ = Π; (c, n)."""
        weighted = np.sqrt(self.pi) * xi
        return weighted - self.pi * (weighted.sum(axis=0) / self.pi.sum(axis=0))

    def root_transposed_times(self, x: FloatArray) -> FloatArray:
        """Eᵀ x (c, n)."""
        return np.sqrt(self.pi) * (x - (self.pi * x).sum(axis=0) / self.pi.sum(axis=0))

    def log_sites(self, f: FloatArray) -> tuple[float, FloatArray]:
        """log t(f) and its gradient (c, n)."""
        Pf = self.precision_times(f)
        return float(np.vdot(self.nu, f) - 0.5 * np.vdot(f, Pf)), self.nu - Pf


class Latents(NamedTuple):
    """f (c, n), and u (c, n) with f = L z + K u."""

    f: FloatArray
    u: FloatArray


class Whitening:
    """The map (z, ξ) → f at one θ, and its evidence log Z_θ = ½ νᵀΣν − ½ log|I + KΠ|."""

    def __init__(self, surrogate: Surrogate, factors: Factors) -> None:
        self.surrogate, self.factors = surrogate, factors
        self.L = factors.prior_root
        K = factors.jittered
        self.blocks = DenseBlocks(K[0] if len(K) == 1 else K, factors.n_classes)
        self.blocks.refresh(surrogate.pi)
        Knu = self.blocks.multiply_kernel(surrogate.nu)
        self.b = surrogate.nu - self.blocks.solve(Knu)
        self.log_evidence = 0.5 * float(np.vdot(Knu, self.b)) - 0.5 * self.blocks.log_det

    def latents(self, z: FloatArray, xi: FloatArray) -> Latents:
        """f = (I − K M) e = e − K M e, e = L z + K (ν + E ξ), since Σ K⁻¹ = I − K M."""
        eta = self.surrogate.nu + self.surrogate.root_times(xi)
        prior = self.factors.times(self.L, z)
        u = eta - self.blocks.solve(prior + self.blocks.multiply_kernel(eta))
        return Latents(prior + self.blocks.multiply_kernel(u), u)

    def coordinates(self, f: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """A draw of (z, ξ) among those that give f: any pair, moved by (L⁻¹, Eᵀ)(f − f₀)."""
        z, xi = rng.standard_normal(f.shape), rng.standard_normal(f.shape)
        away = f - self.latents(z, xi).f
        return z + self._solve_root(away), xi + self.surrogate.root_transposed_times(away)

    def _solve_root(self, f: FloatArray) -> FloatArray:
        if len(self.L) == 1:
            return solve_triangular(self.L[0], f.T, lower=True, check_finite=False).T
        return np.stack([solve_triangular(Lk, fk, lower=True, check_finite=False) for Lk, fk in zip(self.L, f, strict=True)])

    def pull_back(self, g: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Gradients by z and ξ, and h = (I − M K) g, of a function of f with gradient g; all (c, n)."""
        h = g - self.blocks.solve(self.blocks.multiply_kernel(g))
        by_xi = self.surrogate.root_transposed_times(self.blocks.multiply_kernel(h))
        return self.factors.times(self.L.transpose(0, 2, 1), h), by_xi, h

    def hyper_gradient(self, z: FloatArray, h: FloatArray, u: FloatArray) -> FloatArray:
        """Gradient by θ of log Z_θ and of a function of f, with z and ξ held fixed.

        ∂/∂K = ½ (b bᵀ − M) + h uᵀ, and through the Cholesky factor L⁻ᵀ Φ(Lᵀ L̄) L⁻¹ with L̄ = h zᵀ, Φ the lower triangle with
        half its diagonal (Murray 2016).
        """
        shared = len(self.L) == 1
        weights = evidence_gradient(self.blocks, self.b) + symmetric_outer(h, u, shared)
        if shared:
            weights += _through_cholesky(self.L[0], h, z)
            return self.factors.gradient(weights[None])
        for k, Lk in enumerate(self.L):
            weights[k] += _through_cholesky(Lk, h[k : k + 1], z[k : k + 1])
        return self.factors.gradient(weights)


def _through_cholesky(L: FloatArray, h: FloatArray, z: FloatArray) -> FloatArray:
    """Symmetric gradient by K of Σ_k h_kᵀ L z_k, K = L Lᵀ; (n, n)."""
    phi = np.tril(multiply(np.ascontiguousarray(L.T), np.tril(h.T @ z)))
    phi[np.diag_indices(len(L))] *= 0.5
    half = solve_triangular(L, phi, lower=True, trans=1, check_finite=False)
    half = solve_triangular(L, half.T, lower=True, trans=1, check_finite=False)
    return 0.5 * (half + half.T)


def finite(*arrays: FloatArray) -> bool:
    """False where a trajectory has left the world: far beyond any draw of N(0, I), or not a number."""
    return all(float(np.abs(a).max(initial=0.0)) < 1e3 for a in arrays) and not any(math.isnan(float(a.sum())) for a in arrays)
