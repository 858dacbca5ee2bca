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
And they follow θ, or else the ratio turns θ back before it has come far. They grow with the latents, t(f/s) with
s² = tr K_θ/tr K₀: where the classes separate, f follows the magnitude of the kernel. What is left, log π and ν change along a
straight line through fits on either side of the middle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg.blas import dtrmm, dtrsm

from nestgp.arrays import FloatArray
from nestgp.evidence import evidence_gradient, symmetric_outer
from nestgp.inference.result import Fit
from nestgp.linalg import DenseBlocks, unpack_blocks
from nestgp.sampling.factors import Factors
from nestgp.sites import precision_root_times, times_precision

#: Precision of a site that says nothing.
NO_SITE = 1e-8
#: Most that log π changes along one column of the metric: sites that say nothing on one side and little on the other.
STEEPEST = 2.0


@dataclass(frozen=True)
class Surrogate:
    """Sites for f/s: Π_i = diag(π_i) − π_i π_iᵀ/1ᵀπ_i and location ν_i; pi, nu (c, n); trace = tr K₀, (1 or c,).

    slopes (2, p, c, n) : derivatives of log π and ν by θ, and theta (p,) where the sites are as they are; None: they stay so.
    """

    pi: FloatArray
    nu: FloatArray
    trace: FloatArray
    theta: FloatArray | None = None
    slopes: FloatArray | None = None

    @classmethod
    def of(cls, fit: Fit, factors: Factors) -> Surrogate:
        """Sites of a fit by nested EP or Laplace's method; of one that failed, sites that say nothing."""
        trace = np.trace(factors.jittered, axis1=1, axis2=2)
        if not np.isfinite(fit.log_evidence) or fit.site_moments is None:
            shape = (factors.n_classes, factors.n)
            return cls(np.full(shape, NO_SITE), np.zeros(shape), trace)
        pi: FloatArray = fit.posterior.blocks.pi  # type: ignore[attr-defined]
        return cls(pi.copy(), np.ascontiguousarray(fit.site_moments()[1].T), trace)

    def along(self, theta: FloatArray, metric: FloatArray, sites_at: Callable[[FloatArray], Surrogate | None]) -> Surrogate:
        """These sites, of θ, with the slopes of a line through those one column of the metric to either side; None: not found."""
        by_column = np.zeros((2, theta.size, *self.pi.shape))
        for j, step in enumerate(metric.T):
            ahead, behind = sites_at(theta + step), sites_at(theta - step)
            if ahead is not None and behind is not None:
                by_column[:, j] = 0.5 * (self._relative(ahead) - self._relative(behind))
        by_column[0] = np.clip(by_column[0], -STEEPEST, STEEPEST)
        return replace(self, theta=theta, slopes=np.einsum("qjkn,jm->qmkn", by_column, np.linalg.inv(metric)))

    def _relative(self, other: Surrogate) -> FloatArray:
        """log π and ν of another θ as sites for f/s, (2, c, n)."""
        s2 = (other.trace / self.trace)[:, None]
        return np.stack([np.log(np.maximum(other.pi * s2, NO_SITE)), other.nu * np.sqrt(s2)])

    def at(self, theta: FloatArray) -> Surrogate:
        """The sites of another θ."""
        if self.slopes is None or self.theta is None:
            return self
        log_growth, shift = np.einsum("qpkn,p->qkn", self.slopes, theta - self.theta)
        return replace(self, pi=self.pi * np.exp(log_growth), nu=self.nu + shift, theta=theta)

    def precision_times(self, x: FloatArray) -> FloatArray:
        """Π x (c, n)."""
        return times_precision(self.pi, x)

    def root_times(self, xi: FloatArray) -> FloatArray:
        """E ξ (c, n)."""
        return precision_root_times(self.pi, xi)

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

    def hyper_gradient(
        self, z: FloatArray, xi: FloatArray, h: FloatArray, latents: Latents, slope: FloatArray
    ) -> FloatArray:
        """Gradient by θ of log Z_θ + log p(y | f) − log t(f/s), z and ξ held fixed; slope = ∂log p(y | f)/∂f.

        By K of f/s: ½ (b bᵀ − M) + h uᵀ, and L⁻ᵀ Φ(Lᵀ L̄) L⁻¹ with L̄ = h zᵀ through its Cholesky factor, Φ the lower triangle
        with half its diagonal (Murray 2016). Then f = s (f/s) and K/s², with d log s = ½ tr dK/tr K. Last, through the sites.
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
        gradient = self.factors.gradient(weights)
        if self.surrogate.slopes is not None:
            gradient += np.einsum("qpkn,qkn->p", self.surrogate.slopes, self._site_gradient(xi, h, latents.scaled))
        return gradient

    def _site_gradient(self, xi: FloatArray, h: FloatArray, scaled: FloatArray) -> FloatArray:
        """Derivatives of the same by log π and by ν, (2, c, n).

        aᵀΠb has the derivative (a_k − ā)(b_k − b̄) by π_k, with ā = Σ_l π_l a_l/Σ_l π_l. So by π_k: −½ (m_k − m̄)² and half the
        variance of f_k − f̄ from log Z_θ; ½ (f_k − f̄)² from log t; and, f moving by Σ (dν − dΠ f + dE ξ), with q = Σ g = K h:
        (q_k − q̄) (½ ξ_k/√π_k − Σ_l √π_l ξ_l/Σ_l π_l − f_k + f̄). By ν: m − f + q.
        """
        pi = self.surrogate.pi
        share = pi / pi.sum(axis=0)

        def centred(a: FloatArray) -> FloatArray:
            return a - (share * a).sum(axis=0)

        mean, q = self.blocks.multiply_kernel(self.b), self.blocks.multiply_kernel(h)
        cov = unpack_blocks(self.blocks.marginal_blocks())
        with_mean = np.einsum("nkl,ln->kn", cov, share)
        variance = np.einsum("nkk->kn", cov) - 2.0 * with_mean + (share * with_mean).sum(axis=0)
        noise = 0.5 * np.sqrt(pi) * xi - share * (np.sqrt(pi) * xi).sum(axis=0)
        f = centred(scaled)
        by_log_pi = 0.5 * pi * (f**2 - centred(mean) ** 2 - variance) + centred(q) * (noise - pi * f)
        return np.stack([by_log_pi, mean - scaled + q])


def through_cholesky(L: FloatArray, h: FloatArray, z: FloatArray) -> FloatArray:
    """Symmetric gradient by K of Σ_k h_kᵀ L z_k, K = L Lᵀ; L (n, n), h and z (q, n)."""
    # BLAS sees the transposes: Lᵀ is upper, and Lᵀ X becomes Xᵀ L
    phi = np.tril(dtrmm(1.0, L.T, np.tril(h.T @ z).T, side=1, trans_a=1, overwrite_b=1).T)
    phi[np.diag_indices(len(L))] *= 0.5
    half = dtrsm(1.0, L.T, phi.T, side=1, trans_a=1, overwrite_b=1)  # (L⁻ᵀ Φ)ᵀ = Φᵀ L⁻¹
    half = dtrsm(1.0, L.T, half.T, side=1, trans_a=1)
    return 0.5 * (half + half.T)
