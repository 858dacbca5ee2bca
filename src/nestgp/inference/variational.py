"""Variational Bayes for the augmented multinomial probit (section 4.3; Girolami and Rogers 2006).

q(v) q(f) with q(f^k) = N(m_k, Σ_k), Σ_k = K_k (K_k + I)⁻¹ whatever the data. With t = E[v] the update is m = K (K + I)⁻¹ t and
t = m + ∇ log p(y | m), so a fixed point is the mode of the posterior of f, and the bound with the best q(v) is

    L = Σ_i log p(y_i | m_i) − ½ Σ_k [ m_kᵀ K_k⁻¹ m_k + log|K_k + I| ]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from nestgp.evidence import evidence_gradient
from nestgp.independent import IndependentBlocks
from nestgp.inference.checks import check_options, check_problem
from nestgp.inference.loop import Evaluation, Outcome, make_mixer, run
from nestgp.inference.result import Fit, Status, starting_points
from nestgp.likelihoods import probit_log_likelihood
from nestgp.linalg import FloatArray, IntArray
from nestgp.posterior import GaussianPosterior, diagonal_matrices


@dataclass(frozen=True)
class VariationalBayes:
    """Factorised variational approximation; the evidence is a lower bound, and no iteration lowers it.

    Parameters
    ----------
    damping : "adaptive" accelerates (a proposal that would lower the bound is replaced by the plain update); 1.0 is the plain
        scheme of the paper, which can need a thousand iterations.
    max_iter : most iterations, of c n² flops each after one factorisation.
    tol : largest undamped change of a mean, in marginal standard deviations, that counts as converged.
    """

    damping: float | str = "adaptive"
    max_iter: int = 1000
    tol: float = 1e-6

    likelihood: ClassVar[str] = "probit"
    default_rule: ClassVar[str] = "exact"

    def infer(self, K: FloatArray, y: IntArray, n_classes: int, init: Fit | None = None) -> Fit:
        """Posterior, lower bound and its gradient for kernel matrix K (n, n) or (c, n, n) and labels y (n,)."""
        check_options(self.max_iter, self.tol)
        make_mixer(self.damping)
        K, y = check_problem(K, y, n_classes)
        return run(_State(K, y, n_classes), init, self.damping, self.max_iter, self.tol)


class _State:
    """t = E[v] (c, n), and the means m = K (K + I)⁻¹ t = t − b, b = (K + I)⁻¹ t = K⁻¹m."""

    def __init__(self, K: FloatArray, y: IntArray, n_classes: int) -> None:
        self.y = y
        self.blocks = IndependentBlocks(K, n_classes, equal_sites=True)
        self.n_classes = n_classes
        self.variance = np.full((n_classes, y.size), np.nan)
        self.mean = self.b = self.variance
        self._seen: tuple[FloatArray, FloatArray, FloatArray, float] | None = None
        self._last: tuple[FloatArray, float] | None = None

    def starts(self, init: Fit | None) -> list[FloatArray]:
        """The kernel has passed its check: factor K + I once, then start from E[v] of ``init`` or from the prior."""
        self.blocks.refresh(np.ones((self.n_classes, self.y.size)))
        self.variance = self.blocks.marginal_variances()
        return starting_points(init, np.zeros((self.n_classes, self.y.size)))

    def _look(self, t: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, float]:
        """(t, b, gradient of log p(y | m), bound)."""
        b = self.blocks.solve(t)
        m = t - b
        log_p, slope = probit_log_likelihood(m.T, self.y)
        bound = float(log_p.sum()) - 0.5 * float(np.vdot(b, m)) - 0.5 * self.blocks.log_det
        return t, b, slope.T, bound

    def project(self, t: FloatArray) -> FloatArray:
        """``t`` if it does not lower the bound, else the plain update, which cannot."""
        self._seen = self._look(t)
        if self._last is not None and not self._seen[3] >= self._last[1]:
            self._seen = self._look(self._last[0])
        return self._seen[0]

    def evaluate(self, t: FloatArray) -> Evaluation:
        """Means and bound at t, and the plain update of t."""
        if self._seen is None or self._seen[0] is not t:
            self._seen = self._look(t)
        _, self.b, slope, bound = self._seen
        self.mean = t - self.b
        target = self.mean + slope
        step = self.blocks.multiply_kernel(self.blocks.solve(target - t))
        residual = float(np.max(np.abs(step) / np.sqrt(self.variance)))
        self._last = (target, bound)
        return Evaluation(target, np.ones_like(t), residual, bound)

    def fit(self, outcome: Outcome) -> Fit:
        """The result; the problem holds the state of ``outcome.x``."""
        e = outcome.evaluation
        t = outcome.x.copy()
        t.setflags(write=False)
        gradient = partial(evidence_gradient, self.blocks, self.b)
        args = (self._posterior(), e.log_evidence, outcome.status, outcome.history, e.residual, t)
        return Fit(*args, gradient, partial(self._site_moments, t))

    def _site_moments(self, t: FloatArray) -> tuple[FloatArray, FloatArray]:
        """q(f) is that of unit-precision sites at E[v]."""
        return diagonal_matrices(np.ones(t.T.shape)), t.T

    def failed(self, status: Status) -> Fit:
        """A result that holds no numbers, only the reason."""
        return Fit(self._posterior(), np.nan, status, (), np.inf)

    def _posterior(self) -> GaussianPosterior:
        return GaussianPosterior(self.mean.T.copy(), diagonal_matrices(self.variance.T), self.b, self.blocks)
