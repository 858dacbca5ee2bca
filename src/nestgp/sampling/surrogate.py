"""Coordinates in which hyperparameters and latents are nearly independent and standard normal.

An approximation (EP for the probit, Laplace's method for the softmax) gives Gaussian sites t(f) = exp(νᵀf − ½ fᵀΠf) that stand
for the likelihood. At every θ they imply a posterior N(m, Σ), Σ = (K⁻¹ + Π)⁻¹, m = Σν, and an evidence Z_θ. Latents are written
as a draw of it,

    f = Σ (K⁻¹ L z + ν + E ξ),    L Lᵀ = K,  E Eᵀ = Π,    z, ξ ~ N(0, I),

and the exact density of (θ, z, ξ) given the data is p(θ) Z_θ N(z) N(ξ) p(y | f)/t(f). As far as t is a good stand-in the ratio
is flat: θ moves under an approximate evidence, not held back by f, and (z, ξ) are white. Any t is valid; a bad one mixes slowly.
This is the surrogate-data idea of Murray and Adams (2010), with the sites of a converged approximation and with a gradient.

The sites are those of the approximation, couplings between classes included: where one class is out of the question, f is bounded
from one side only and wide in that direction, and a precision averaged over the classes would take steps far too short for it.
And they grow with the latents, t(f/s) with s² = tr K_θ/tr K₀: where the classes separate, f follows the magnitude of the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg.blas import dtrmm, dtrsm

from nestgp.arrays import FloatArray
from nestgp.evidence import evidence_gradient, symmetric_outer
from nestgp.inference.result import Fit
from nestgp.linalg import DenseBlocks
from nestgp.sampling.factors import Factors
from nestgp.sites import times_precision

#: Precision of a site that says nothing.
NO_SITE = 1e-8


@dataclass(frozen=True)
class Surrogate:
    """Sites for f/s: Π_i = diag(π_i) − π_i π_iᵀ/1ᵀπ_i and location ν_i; pi, nu (c, n); trace = tr K₀, (1 or c,)."""

    pi: FloatArray
    nu: FloatArray
    trace: FloatArray

    @classmethod
    def of(cls, fit: Fit, factors: Factors) -> Surrogate:
        """Sites of a fit by nested EP or Laplace's method; of one that failed, sites that say nothing."""
        trace = np.trace(factors.jittered, axis1=1, axis2=2)
        if not np.isfinite(fit.log_evidence) or fit.site_moments is None:
            shape = (factors.n_classes, factors.n)
            return cls(np.full(shape, NO_SITE), np.zeros(shape), trace)
        pi: FloatArray = fit.posterior.blocks.pi  # type: ignore[attr-defined]
        return cls(pi.copy(), np.ascontiguousarray(fit.site_moments()[1].T), trace)

    def precision_times(self, x: FloatArray) -> FloatArray:
        """Π x (c, n)."""
        return times_precision(self.pi, x)

    def root_times(self, xi: FloatArray) -> FloatArray:
        """E ξ with E_i = diag √π_i − π_i √π_iᵀ/1ᵀπ_i, (c, n)."""
        weighted = np.sqrt(self.pi) * xi
        return weighted - self.pi * (weighted.sum(axis=0) / self.pi.sum(axis=0))

    def root_transposed_times(self, x: FloatArray) -> FloatArray:
        """Eᵀ x (c, n)."""
        return np.sqrt(self.pi) * (x - (self.pi * x).sum(axis=0) / self.pi.sum(axis=0))


class Latents(NamedTuple):
    """f (c, n), f/s, and u with f/s = L z + K u."""

    f: FloatArray
    scaled: FloatArray
    u: FloatArray


class Whitening:
    """The map (z, ξ) → f at one θ, and log Z_θ = ½ νᵀΣν − ½ log|I + KΠ|; K and L here are those of f/s."""

    def __init__(self, surrogate: Surrogate, factors: Factors) -> None:
        self.surrogate, self.factors = surrogate, factors
        self.trace = np.trace(factors.jittered, axis1=1, axis2=2)
        s2 = (self.trace / surrogate.trace)[:, None, None]
        self.s = np.sqrt(s2[:, :, 0])  # (1 or c, 1)
        self.L = factors.prior_root / np.sqrt(s2)
        K = factors.jittered / s2
        self.blocks = DenseBlocks(K[0] if len(K) == 1 else K, factors.n_classes)
        self.blocks.refresh(surrogate.pi)
        Knu = self.blocks.multiply_kernel(surrogate.nu)
        self.b = surrogate.nu - self.blocks.solve(Knu)
        self.log_evidence = 0.5 * float(np.vdot(Knu, self.b)) - 0.5 * self.blocks.log_det

    def latents(self, z: FloatArray, xi: FloatArray) -> Latents:
        """f/s = e − K M e with e = L z + K (ν + E ξ), since Σ K⁻¹ = I − K M; z, ξ (c, n)."""
        eta = self.surrogate.nu + self.surrogate.root_times(xi)
        prior = self.factors.times(self.L, z)
        u = eta - self.blocks.solve(prior + self.blocks.multiply_kernel(eta))
        scaled = prior + self.blocks.multiply_kernel(u)
        return Latents(self.s * scaled, scaled, u)

    def coordinates(self, f: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """A draw of (z, ξ) among those that give f: any pair, moved by (L⁻¹, Eᵀ)(f − f₀)/s."""
        z, xi = rng.standard_normal(f.shape), rng.standard_normal(f.shape)
        away = f / self.s - self.latents(z, xi).scaled
        return z + self.factors.whiten(away) * self.s, xi + self.surrogate.root_transposed_times(away)

    def log_sites(self, scaled: FloatArray) -> tuple[float, FloatArray]:
        """log t at f/s, and its gradient by f/s (c, n)."""
        nu, Pf = self.surrogate.nu, self.surrogate.precision_times(scaled)
        return float(np.vdot(nu, scaled) - 0.5 * np.vdot(scaled, Pf)), nu - Pf

    def pull_back(self, g: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Gradients by z and ξ, and h = (I − M K) g, of a function of f/s with gradient g; all (c, n)."""
        h = g - self.blocks.solve(self.blocks.multiply_kernel(g))
        by_xi = self.surrogate.root_transposed_times(self.blocks.multiply_kernel(h))
        return self.factors.times(self.L.transpose(0, 2, 1), h), by_xi, h

    def hyper_gradient(self, z: FloatArray, h: FloatArray, latents: Latents, slope: FloatArray) -> FloatArray:
        """Gradient by θ of log Z_θ + log p(y | f) − log t(f/s), z and ξ held fixed; slope = ∂log p(y | f)/∂f.

        By K of f/s: ½ (b bᵀ − M) + h uᵀ, and L⁻ᵀ Φ(Lᵀ L̄) L⁻¹ with L̄ = h zᵀ through its Cholesky factor, Φ the lower triangle
        with half its diagonal (Murray 2016). Then f = s (f/s) and K/s², with d log s = ½ tr dK/tr K.
        """
        shared = len(self.L) == 1
        weights = evidence_gradient(self.blocks, self.b) + symmetric_outer(h, latents.u, shared)
        weights = weights[None] if shared else weights
        for k, W in enumerate(weights):
            rows = slice(None) if shared else slice(k, k + 1)
            W += through_cholesky(self.L[k], h[rows], z[rows])
            by_log_s = float(np.vdot(slope[rows], latents.f[rows])) - 2.0 * float(np.vdot(W, self.blocks.class_kernel(k)))
            W /= float(self.s[k, 0]) ** 2
            W[np.diag_indices(len(W))] += 0.5 * by_log_s / self.trace[k]
        return self.factors.gradient(weights)


def through_cholesky(L: FloatArray, h: FloatArray, z: FloatArray) -> FloatArray:
    """Symmetric gradient by K of Σ_k h_kᵀ L z_k, K = L Lᵀ; L (n, n), h and z (q, n)."""
    # BLAS sees the transposes: Lᵀ is upper, and Lᵀ X becomes Xᵀ L
    phi = np.tril(dtrmm(1.0, L.T, np.tril(h.T @ z).T, side=1, trans_a=1, overwrite_b=1).T)
    phi[np.diag_indices(len(L))] *= 0.5
    half = dtrsm(1.0, L.T, phi.T, side=1, trans_a=1, overwrite_b=1)  # (L⁻ᵀ Φ)ᵀ = Φᵀ L⁻¹
    half = dtrsm(1.0, L.T, half.T, side=1, trans_a=1)
    return 0.5 * (half + half.T)
