"""Coordinates in which hyperparameters and latents are nearly independent and standard normal.

An approximation (EP for the probit, Laplace's method for the softmax) gives Gaussian sites t(f) = exp(νᵀf − ½ fᵀΠf) that stand
for the likelihood. At every θ they imply a posterior N(m, Σ), Σ = (K⁻¹ + Π)⁻¹, m = Σν, and an evidence Z_θ. Latents are written
as a draw of it,

    f = Σ (K⁻¹ L z + ν + Π½ ξ),    L Lᵀ = K,    z, ξ ~ N(0, I),

and the exact density of (θ, z, ξ) given the data is p(θ) Z_θ N(z) N(ξ) p(y | f)/t(f). As far as t is a good stand-in the ratio
is flat: θ moves under an approximate evidence, not held back by f, and (z, ξ) are white. Any t is valid; a bad one mixes slowly.
This is the surrogate-data idea of Murray and Adams (2010), with the sites of a converged approximation and with a gradient.

Two choices keep it cheap and apt. Π_i = d_i (I − 11ᵀ/c), one precision per point on the contrasts between classes: one n×n
factor serves all classes, and the level common to the classes, of which no label tells, keeps its prior. And the sites grow with
the latents, t(f/s) with s² = tr K_θ/tr K₀: where the classes separate, the likelihood only bounds f from one side, and f follows
the magnitude of the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg.blas import dtrmm, dtrsm

from nestgp.evidence import symmetric_outer
from nestgp.inference.result import Fit
from nestgp.linalg import (
    FloatArray,
    add_identity_scaled,
    cholesky_in_place,
    inverse_from_cholesky_in_place,
    scale_and_mirror,
)
from nestgp.sampling.factors import Factors

#: Precision of a site that says nothing.
NO_SITE = 1e-8


@dataclass(frozen=True)
class Surrogate:
    """Sites for f/s: precision d (n,) on the contrasts between classes, location nu (c, n); trace = tr K₀, (1 or c,).

    With one kernel per class the level common to all is not apart, and d holds for every class by itself.
    """

    d: FloatArray
    nu: FloatArray
    trace: FloatArray

    @classmethod
    def of(cls, fit: Fit, factors: Factors) -> Surrogate:
        """The sites whose posterior has the mean of ``fit``, and its site precisions averaged over the contrasts."""
        c, n = factors.n_classes, factors.n
        trace = np.trace(factors.jittered, axis1=1, axis2=2)
        if not np.isfinite(fit.log_evidence) or fit.site_moments is None:
            return cls(np.full(n, NO_SITE), np.zeros((c, n)), trace)
        precision = np.trace(fit.site_moments()[0], axis1=1, axis2=2) / (c - 1)
        d = np.maximum(precision, NO_SITE)
        mean = fit.posterior.mean.T
        shared = len(factors.K) == 1
        return cls(d, fit.posterior.b + d * _contrasts(mean, shared), trace)


def _contrasts(x: FloatArray, shared: bool) -> FloatArray:
    """x (c, n) without the level common to all classes, if they share their kernel."""
    return x - x.mean(axis=0) if shared else x


class Latents(NamedTuple):
    """f (c, n), f/s, and u with f/s = L z + K u."""

    f: FloatArray
    scaled: FloatArray
    u: FloatArray


class Whitening:
    """The map (z, ξ) → f at one θ, and log Z_θ = ½ νᵀΣν − ½ log|I + KΠ|; K and L here are those of f/s."""

    def __init__(self, surrogate: Surrogate, factors: Factors) -> None:
        self.surrogate, self.factors = surrogate, factors
        self.shared = len(factors.K) == 1
        self.trace = np.trace(factors.jittered, axis1=1, axis2=2)
        s2 = (self.trace / surrogate.trace)[:, None, None]
        self.s = np.sqrt(s2[:, :, 0])  # (1 or c, 1)
        self.K, self.L = factors.jittered / s2, factors.prior_root / np.sqrt(s2)
        self.B = np.empty_like(self.K)  # Π½ (I + Π½ K Π½)⁻¹ Π½ on the contrasts
        root, log_det = np.sqrt(surrogate.d), 0.0
        for K, B in zip(self.K, self.B, strict=True):
            add_identity_scaled(K, root, B)
            log_det += cholesky_in_place(B)
            inverse_from_cholesky_in_place(B)
            scale_and_mirror(B, root)
        self.copies = factors.n_classes - 1 if self.shared else 1  # contrasts that share a factor
        nu = surrogate.nu
        Knu = factors.times(self.K, nu)
        self.b = nu - self._sites_times(Knu)
        self.log_evidence = 0.5 * float(np.vdot(Knu, self.b)) - 0.5 * self.copies * log_det

    def _sites_times(self, x: FloatArray) -> FloatArray:
        """M x, where Σ K⁻¹ = I − K M."""
        return self.factors.times(self.B, _contrasts(x, self.shared))

    def latents(self, z: FloatArray, xi: FloatArray) -> Latents:
        """f/s = e − K M e with e = L z + K (ν + Π½ ξ); z, ξ (c, n)."""
        eta = self.surrogate.nu + np.sqrt(self.surrogate.d) * _contrasts(xi, self.shared)
        prior = self.factors.times(self.L, z)
        u = eta - self._sites_times(prior + self.factors.times(self.K, eta))
        scaled = prior + self.factors.times(self.K, u)
        return Latents(self.s * scaled, scaled, u)

    def coordinates(self, f: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """A draw of (z, ξ) among those that give f: any pair, moved by (L⁻¹, Π½)(f − f₀)/s."""
        z, xi = rng.standard_normal(f.shape), rng.standard_normal(f.shape)
        away = f / self.s - self.latents(z, xi).scaled
        return z + self.factors.whiten(away) * self.s, xi + np.sqrt(self.surrogate.d) * _contrasts(away, self.shared)

    def log_sites(self, scaled: FloatArray) -> tuple[float, FloatArray]:
        """log t at f/s, and its gradient by f/s (c, n)."""
        nu, Pf = self.surrogate.nu, self.surrogate.d * _contrasts(scaled, self.shared)
        return float(np.vdot(nu, scaled) - 0.5 * np.vdot(scaled, Pf)), nu - Pf

    def pull_back(self, g: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Gradients by z and ξ, and h = (I − M K) g, of a function of f/s with gradient g; all (c, n)."""
        h = g - self._sites_times(self.factors.times(self.K, g))
        by_xi = np.sqrt(self.surrogate.d) * _contrasts(self.factors.times(self.K, h), self.shared)
        return self.factors.times(self.L.transpose(0, 2, 1), h), by_xi, h

    def hyper_gradient(self, z: FloatArray, h: FloatArray, latents: Latents, slope: FloatArray) -> FloatArray:
        """Gradient by θ of log Z_θ + log p(y | f) − log t(f/s), z and ξ held fixed; slope = ∂log p(y | f)/∂f.

        By K of f/s: ½ (b bᵀ − M) + h uᵀ, and L⁻ᵀ Φ(Lᵀ L̄) L⁻¹ with L̄ = h zᵀ through its Cholesky factor, Φ the lower triangle
        with half its diagonal (Murray 2016). Then f = s (f/s) and K/s², with d log s = ½ tr dK/tr K.
        """
        weights = symmetric_outer(self.b, self.b, self.shared) * 0.5 + symmetric_outer(h, latents.u, self.shared)
        weights = (weights[None] if self.shared else weights) - 0.5 * self.copies * self.B
        for k in range(len(self.L)):
            rows = slice(None) if self.shared else slice(k, k + 1)
            W = weights[k]
            W += through_cholesky(self.L[k], h[rows], z[rows])
            by_log_s = float(np.vdot(slope[rows], latents.f[rows])) - 2.0 * float(np.vdot(W, self.K[k]))
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
