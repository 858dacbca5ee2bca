"""The posterior that a sampler returns: a mixture of one Gaussian per draw, behind the same ``latent`` as the approximations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from sklearn.gaussian_process.kernels import Kernel

from nestgp import kernels
from nestgp.arrays import FloatArray
from nestgp.sampling.factors import Factors


@dataclass(frozen=True)
class Draws:
    """Draws of all chains, leading axes (chains, draws): theta (…, p), f and b (…, c, n), probability p(y_i | f_i) (…, n)."""

    theta: FloatArray
    f: FloatArray
    b: FloatArray
    probability: FloatArray

    @classmethod
    def from_records(cls, chains: Sequence[Sequence[Any]]) -> Draws:
        """Stack the records of every chain."""
        fields = ("theta", "f", "b", "probability")
        return cls(*(np.array([[getattr(r, name) for r in chain] for chain in chains]) for name in fields))

    @property
    def n_components(self) -> int:
        """Draws in all chains together."""
        return self.theta.shape[0] * self.theta.shape[1]


@dataclass(frozen=True)
class MixturePosterior:
    """Latents at new inputs, draw by draw: mean k_*ᵀ b, covariance k_** − k_*ᵀ A⁻¹ k_*.

    A = K + I and b = A⁻¹v for draws of auxiliary variables v (probit, ``noisy``); A = K and b = K⁻¹f for draws of f (softmax).

    Attributes
    ----------
    summary : R-hat, bulk and tail ESS of what is watched: p(y_i | f_i) of every training row (n), the contrasts f − mean over
        classes (c n), and θ if it was sampled.
    """

    kernel: Kernel | Sequence[Kernel]
    X: FloatArray
    draws: Draws
    noisy: bool
    summary: dict[str, FloatArray]

    @property
    def fixed(self) -> bool:
        """True if all draws share their hyperparameters."""
        theta = self.draws.theta
        return theta.shape[2] == 0 or bool(np.all(theta == theta[0, 0]))

    def latent(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Latent mean (S, m, c) and covariance (S, m, c, c) at the rows of X (m, d), S draws."""
        b = self.draws.b.reshape(-1, *self.draws.b.shape[2:])
        theta = self.draws.theta.reshape(len(b), -1)
        c, m = b.shape[1], len(X)
        if self.fixed:
            k_star, cov = self._at(theta[0], X, c)
            mean = np.einsum("skn,knm->smk", b, k_star) if len(k_star) > 1 else np.swapaxes(b @ k_star[0], 1, 2)
            return mean, np.broadcast_to(cov, (len(b), m, c, c))
        means, covs = np.empty((len(b), m, c)), np.empty((len(b), m, c, c))
        for s in range(len(b)):
            if s == 0 or np.any(theta[s] != theta[s - 1]):  # neighbours of a chain often share θ
                k_star, cov = self._at(theta[s], X, c)
            covs[s] = cov
            means[s] = np.einsum("kn,knm->mk", b[s], np.broadcast_to(k_star, (c, *k_star.shape[1:])))
        return means, covs

    def _at(self, theta: FloatArray, X: FloatArray, c: int) -> tuple[FloatArray, FloatArray]:
        """Cross covariances (1 or c, n, m) and latent covariance (m, c, c) at θ."""
        kernel = kernels.with_theta(self.kernel, theta)
        factors = Factors(kernel, self.X, c)
        roots = factors.noisy_root if self.noisy else factors.prior_root
        k_star, prior = kernels.cross(kernel, self.X, X), kernels.diagonal(kernel, X)
        k_star = k_star if k_star.ndim == 3 else k_star[None]
        whitened = [solve_triangular(L, k, lower=True, check_finite=False) for k, L in zip(k_star, roots, strict=True)]
        shrink = np.stack([np.einsum("nm,nm->m", v, v) for v in whitened])
        variance = np.maximum(np.broadcast_to(prior, shrink.shape) - shrink, 0.0)
        cov = np.zeros((len(X), c, c))
        each = np.arange(c)
        cov[:, each, each] = np.broadcast_to(variance, (c, len(X))).T
        return k_star, cov
