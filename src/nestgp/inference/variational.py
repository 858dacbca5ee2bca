"""Variational Bayes for the augmented multinomial probit (section 4.3; Girolami and Rogers 2006).

q(v) q(f) with q(f^k) = N(m_k, Σ_k), Σ_k = K_k (K_k + I)⁻¹ whatever the data. The updates are E[v] = m + ∇ log p(y | m) and
m = K (K + I)⁻¹ E[v], so a fixed point is the mode of the posterior of f, and the bound with the best q(v) is

    L = Σ_i log p(y_i | m_i) − ½ Σ_k [ m_kᵀ K_k⁻¹ m_k + log|K_k + I| ]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from nestgp.arrays import FloatArray, IntArray
from nestgp.evidence import evidence_gradient
from nestgp.independent import IndependentBlocks
from nestgp.inference.checks import check_options, check_problem
from nestgp.inference.loop import Evaluation, InvalidStateError, Outcome, make_mixer, run
from nestgp.inference.newton import newton_direction
from nestgp.inference.result import Fit, Status, starting_points
from nestgp.lapack import multiply
from nestgp.likelihoods import probit_derivatives, probit_log_likelihood
from nestgp.posterior import GaussianPosterior, diagonal_matrices
from nestgp.threads import single_threaded_if_small

#: Relative fall of the bound that is rounding: near the maximum it no longer tells two points apart.
ROUNDING = 1e-13
#: Most conjugate gradient steps for one Newton direction.
CG_STEPS = 200


@dataclass(frozen=True)
class VariationalBayes:
    """Factorised variational approximation; the evidence is a lower bound, and no iteration lowers it.

    Parameters
    ----------
    updates : "newton" solves for the means by Newton's method with conjugate gradients, c n² flops a step after one
        factorisation; "plain" is the alternation of the paper, which can need a thousand iterations.
    max_iter : most iterations.
    tol : largest plain update of a mean, in marginal standard deviations, that counts as converged.
    """

    updates: str = "newton"
    max_iter: int = 1000
    tol: float = 1e-6

    likelihood: ClassVar[str] = "probit"
    default_rule: ClassVar[str] = "exact"

    def infer(self, K: FloatArray, y: IntArray, n_classes: int, init: Fit | None = None) -> Fit:
        """Posterior, lower bound and its gradient for kernel matrix K (n, n) or (c, n, n) and labels y (n,)."""
        check_options(self.max_iter, self.tol)
        if self.updates not in ("newton", "plain"):
            raise ValueError(f"updates={self.updates!r}: use 'newton' or 'plain'")
        K, y = check_problem(K, y, n_classes)
        return run(_State(K, y, n_classes, self.updates == "newton"), init, partial(make_mixer, 1.0), self.max_iter, self.tol)


class _State:
    """b = K⁻¹m (c, n) and the means m = K b. With Q = (K + I)⁻¹: a plain update is b + Q (∇ log p(y | m) − b)."""

    def __init__(self, K: FloatArray, y: IntArray, n_classes: int, newton: bool) -> None:
        self.y = y
        self.newton = newton
        self.blocks = IndependentBlocks(K, n_classes, equal_sites=True)
        self.n_classes = n_classes
        self.variance = np.full((n_classes, y.size), np.nan)
        self.mean = self.b = self.variance
        self.Q: FloatArray = np.empty(0)

    def starts(self, init: Fit | None) -> list[FloatArray]:
        """The kernel has passed its check: factor K + I once, then start from K⁻¹m of ``init`` or from the prior."""
        self.blocks.refresh(np.ones((self.n_classes, self.y.size)))
        self.variance = self.blocks.marginal_variances()
        shared = self.blocks.K.ndim == 2
        self.Q = self.blocks.m_blocks(0) if shared else np.stack([self.blocks.m_blocks(k) for k in range(self.n_classes)])
        return starting_points(init, np.zeros((self.n_classes, self.y.size)))

    def project(self, b: FloatArray) -> FloatArray:
        """Every b is valid."""
        return b

    def _bound(self, b: FloatArray, m: FloatArray, log_p: FloatArray) -> float:
        return float(log_p.sum()) - 0.5 * float(np.vdot(b, m)) - 0.5 * self.blocks.log_det

    def evaluate(self, b: FloatArray) -> Evaluation:
        """Bound at b and the next b, which does not lower it."""
        self.b = b
        self.mean = m = self.blocks.multiply_kernel(b)
        log_p, slope, hessian = probit_derivatives(m.T, self.y)
        gradient = slope.T - b
        bound = self._bound(b, m, log_p)
        if not np.isfinite(bound):
            raise InvalidStateError("the bound is not finite")
        plain, image = self._precondition(gradient[:, :, None])
        residual = float(np.max(np.abs(plain[:, :, 0]) / np.sqrt(self.variance)))
        if self.newton:
            W = np.ascontiguousarray(hessian.transpose(1, 2, 0))
            times = partial(_hessian_times, W)
            tol = min(0.1, residual**0.5)
            dm, db = newton_direction(gradient[:, :, None], self._precondition, times, tol, CG_STEPS)
            # What is left takes a plain step: in the null space of a singular K conjugate gradients would let b grow.
            rest, image_of_rest = self._precondition(gradient[:, :, None] - db - times(dm))
            dm, db = dm + rest, db + image_of_rest
            target = self._line_search(b, db[:, :, 0], m, dm[:, :, 0], bound)
            if target is not None:
                return Evaluation(target, np.ones_like(b), residual, bound)
        return Evaluation(b + image[:, :, 0], np.ones_like(b), residual, bound)

    def _precondition(self, r: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(K⁻¹ + I)⁻¹ r = r − Q r, and K⁻¹ of it, Q r."""
        with single_threaded_if_small(self.y.size):
            if self.Q.ndim == 2:
                image = multiply(np.ascontiguousarray(r[:, :, 0]), self.Q)[:, :, None]
            else:
                image = np.stack([multiply(self.Q[k], np.ascontiguousarray(r[k])) for k in range(self.n_classes)])
        return r - image, image

    def _line_search(
        self, b: FloatArray, db: FloatArray, m: FloatArray, dm: FloatArray, bound: float
    ) -> FloatArray | None:
        """The longest of a few steps along the Newton direction that raises the bound, but for rounding; None if none does."""
        least = bound - ROUNDING * abs(bound)
        for length in (1.0, 0.5, 0.25, 0.1, 0.03):
            new_b, new_m = b + length * db, m + length * dm
            if self._bound(new_b, new_m, probit_log_likelihood(new_m.T, self.y)[0]) >= least:
                return new_b
        return None

    def fit(self, outcome: Outcome) -> Fit:
        """The result; the problem holds the state of ``outcome.x``."""
        e = outcome.evaluation
        b = outcome.x.copy()
        b.setflags(write=False)
        gradient = partial(evidence_gradient, self.blocks, self.b)
        args = (self._posterior(), e.log_evidence, outcome.status, outcome.history, e.residual, b)
        return Fit(*args, gradient, self._site_moments)

    def _site_moments(self) -> tuple[FloatArray, FloatArray]:
        """q(f) is that of unit-precision sites at E[v] = m + ∇log p(y | m); K⁻¹m itself is not unique where K is singular."""
        _, slope, _ = probit_derivatives(self.mean.T, self.y)
        return diagonal_matrices(np.ones(self.mean.T.shape)), self.mean.T + slope

    def failed(self, status: Status) -> Fit:
        """A result that holds no numbers, only the reason."""
        return Fit(self._posterior(), np.nan, status, (), np.inf)

    def _posterior(self) -> GaussianPosterior:
        return GaussianPosterior(self.mean.T.copy(), diagonal_matrices(self.variance.T), self.b, self.blocks)


def _hessian_times(W: FloatArray, v: FloatArray) -> FloatArray:
    """W_i v_i for every point; W (c, c, n), v (c, n, 1)."""
    return np.einsum("kln,lnq->knq", W, v)
