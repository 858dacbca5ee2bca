"""EP without between-class couplings: the outer part that nested and quadrature IEP share (section 3.2.2, end)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from nestgp.arrays import FloatArray, IntArray
from nestgp.evidence import evidence_gradient
from nestgp.independent import IndependentBlocks
from nestgp.inference.loop import Evaluation, InvalidStateError, Outcome
from nestgp.inference.result import Fit, Status, starting_points
from nestgp.posterior import GaussianPosterior, diagonal_matrices
from nestgp.sites import PI_FLOOR

#: Differences that steps are extrapolated from. Without couplings news travels slowly, and more of them help: over 60 settings of
#: five data sets 4,233 iterations with 16, 5,196 with 6.
MIXING = {"window": 16}


@dataclass(frozen=True)
class Tilted:
    """Tilted moments of every point under a class-independent cavity.

    Attributes
    ----------
    log_z : (n,); slope : ∂log Ẑ/∂μ₋ (n, c); curvature : −∂²log Ẑ/∂μ₋² (n, c).
    inner : new inner sites (2, n, p), p = 0 if there are none; inner_residual : their mismatch before the update.
    """

    log_z: FloatArray
    slope: FloatArray
    curvature: FloatArray
    inner: FloatArray
    inner_residual: float


#: Cavity mean and variance (n, c) and inner sites (2, n, p) → tilted moments.
MomentRule = Callable[[FloatArray, FloatArray, FloatArray], Tilted]


class FactorisedState:
    """Outer sites (τ, ν), each (n, c), next to inner sites (α̃, β̃), each (n, p): x has shape (2, n, c + p).

    Mean and variance of each latent are matched; damping acts on (τ, ν), the inner sites follow undamped.
    """

    def __init__(self, rule: MomentRule, K: FloatArray, y: IntArray, n_classes: int, n_inner: int) -> None:
        self.rule = rule
        self.y = y
        self.n_classes = n_classes
        self.n_inner = n_inner
        self.blocks = IndependentBlocks(K, n_classes)
        self.mean = np.full((n_classes, y.size), np.nan)
        self.variance = self.mean
        self.b = self.mean
        self._inner: FloatArray = np.zeros((2, y.size, n_inner))

    def starts(self, init: Fit | None) -> list[FloatArray]:
        """Starting points, the warm one first."""
        return starting_points(init, np.zeros((2, self.y.size, self.n_classes + self.n_inner)))

    def project(self, x: FloatArray) -> FloatArray:
        """Site precisions are never negative; the inner sites are the newest, whatever the step."""
        np.maximum(x[0, :, : self.n_classes], 0.0, out=x[0, :, : self.n_classes])
        x[:, :, self.n_classes :] = self._inner
        return x

    def evaluate(self, x: FloatArray) -> Evaluation:
        """Posterior of the sites x, its evidence, and the sites that would match the tilted moments."""
        c = self.n_classes
        tau, nu = np.maximum(x[0, :, :c], PI_FLOOR), x[1, :, :c]
        self.blocks.refresh(np.ascontiguousarray(tau.T))
        self.b = self.blocks.solve((nu / tau).T)
        self.mean = self.blocks.multiply_kernel(self.b)
        self.variance = self.blocks.marginal_variances()
        mean, variance = self.mean.T, self.variance.T
        share = 1.0 - tau * variance
        if not (variance > 0.0).all() or not (share > 1e-14).all():
            raise InvalidStateError("a cavity has no positive variance")
        cavity_variance = variance / share
        cavity_mean = (mean - variance * nu) / share
        tilted = self.rule(cavity_mean, cavity_variance, x[:, :, c:])
        target, residual = self._match(cavity_mean, cavity_variance, tilted)
        log_z = 0.5 * float(np.sum(nu * mean)) - 0.5 * self.blocks.log_det + float(tilted.log_z.sum())
        log_z -= float(_log_site_integrals(cavity_mean, cavity_variance, tau, nu).sum())
        if not np.isfinite(log_z):
            raise InvalidStateError("the evidence is not finite")
        weight = np.zeros_like(x)
        weight[:, :, :c] = variance, np.sqrt(variance)
        self._inner = tilted.inner
        return Evaluation(target, weight, max(residual, tilted.inner_residual), log_z)

    def _match(self, m: FloatArray, v: FloatArray, tilted: Tilted) -> tuple[FloatArray, float]:
        """New sites 1/v̂ − 1/v₋ and m̂/v̂ − m₋/v₋ from m̂ = m₋ + v₋ slope and v̂ = v₋ − v₋² curvature."""
        left = 1.0 - v * tilted.curvature
        if not (left > 0.0).all():
            raise InvalidStateError("a tilted variance is not positive")
        m_hat, v_hat = m + v * tilted.slope, v * left
        tau = tilted.curvature / left
        outer = np.stack([tau, tau * m_hat + tilted.slope])
        mean, variance = self.mean.T, self.variance.T
        mismatch = (np.abs(m_hat - mean) / np.sqrt(variance), np.abs(v_hat / variance - 1.0))
        return np.concatenate([outer, tilted.inner], axis=2), float(np.max(mismatch))

    def fit(self, outcome: Outcome) -> Fit:
        """The result; the problem holds the state of ``outcome.x``."""
        e = outcome.evaluation
        x = outcome.x.copy()
        x.setflags(write=False)
        gradient = partial(evidence_gradient, self.blocks, self.b)
        args = (self._posterior(), e.log_evidence, outcome.status, outcome.history, e.residual, x)
        return Fit(*args, gradient, partial(self._site_moments, x))

    def failed(self, status: Status) -> Fit:
        """A result that holds no numbers, only the reason."""
        return Fit(self._posterior(), np.nan, status, (), np.inf)

    def _site_moments(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        return diagonal_matrices(x[0, :, : self.n_classes]), x[1, :, : self.n_classes]

    def _posterior(self) -> GaussianPosterior:
        return GaussianPosterior(self.mean.T.copy(), diagonal_matrices(self.variance.T), self.b, self.blocks)


def _log_site_integrals(m: FloatArray, v: FloatArray, tau: FloatArray, nu: FloatArray) -> FloatArray:
    """log ∫ N(f | m, v) exp(−½ τ f² + ν f) df."""
    t = 1.0 + tau * v
    return -0.5 * np.log(t) + 0.5 * (2.0 * m * nu + v * nu**2 - tau * m**2) / t
