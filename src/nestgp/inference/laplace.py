"""Laplace's method for the softmax likelihood (section 4.1; Williams and Barber 1998).

The negative Hessian of log p(y_i | f_i) is W_i = diag(π_i) − π_i π_iᵀ with class probabilities π_i: the form of an EP site with
1ᵀπ_i = 1, so the same block algebra serves. A Newton step is the posterior mean for sites W_i with means f_i + y_i/π_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from nestgp.arrays import FloatArray, IntArray
from nestgp.evidence import evidence_gradient, symmetric_outer
from nestgp.inference.checks import check_options, check_problem
from nestgp.inference.extension import bordered, extended_modes
from nestgp.inference.loop import Evaluation, InvalidStateError, Outcome, find_fixed_point, make_mixer, run
from nestgp.inference.result import Fit, Status, starting_points
from nestgp.likelihoods import softmax_log_probabilities
from nestgp.linalg import DenseBlocks, unpack_blocks
from nestgp.posterior import GaussianPosterior
from nestgp.sites import PI_FLOOR, onehot, site_precision

#: Smallest tolerance asked for with one more point: 0 would never be reached.
EXTENSION_TOL = 1e-9


@dataclass(frozen=True)
class Laplace:
    """Gaussian approximation at the posterior mode of the softmax model.

    Parameters
    ----------
    max_iter : most Newton steps; each is shortened until it raises the posterior density, so none diverges.
    tol : largest distance from the mode that counts as converged, in posterior standard deviations: the length √(∇Ψᵀ Σ ∇Ψ) of
        the full Newton step.
    """

    max_iter: int = 100
    tol: float = 1e-6

    likelihood: ClassVar[str] = "softmax"
    default_rule: ClassVar[str] = "exact"
    search_tol: ClassVar[float] = 1e-6  # its log determinant is not stationary at the mode, and Newton's steps are few

    def infer(self, K: FloatArray, y: IntArray, n_classes: int, init: Fit | None = None) -> Fit:
        """Posterior, evidence and its gradient for kernel matrix K (n, n) or (c, n, n) and labels y (n,)."""
        check_options(self.max_iter, self.tol)
        K, y = check_problem(K, y, n_classes)
        return run(LaplaceState(K, y, n_classes), init, partial(make_mixer, 1.0), self.max_iter, self.tol)

    def extend(
        self, fit: Fit, K: FloatArray, y: IntArray, n_classes: int, k_star: FloatArray, prior_variance: FloatArray
    ) -> FloatArray:
        """Log evidence (m, c) of the n points of ``fit`` and one of m new ones, given each label in turn.

        :func:`extended_modes` finds all modes together in c n² flops a step; one full factorisation per label then gives the
        determinant and checks the mode, with Newton steps from there if it is not good enough.
        """
        tol = max(self.tol, EXTENSION_TOL)
        modes = extended_modes(fit, K, y, n_classes, k_star, prior_variance, 0.1 * tol)
        out = np.full((k_star.shape[-1], n_classes), np.nan)
        for j in range(k_star.shape[-1]):
            state = LaplaceState(bordered(K, k_star[..., j], prior_variance[..., j]), np.append(y, 0), n_classes)
            for k in range(n_classes):
                state.set_label(-1, k)
                outcome = find_fixed_point(state, modes[j, k], make_mixer(1.0), self.max_iter, tol)
                if outcome is not None and outcome.status is Status.CONVERGED:
                    out[j, k] = outcome.evaluation.log_evidence
        return out


class LaplaceState:
    """b = K⁻¹f (c, n), the latents f = K b, and the factor of K + W at them."""

    def __init__(self, K: FloatArray, y: IntArray, n_classes: int) -> None:
        self.y = y
        self.n_classes = n_classes
        self.blocks = DenseBlocks(K, n_classes)
        self.targets = onehot(y, n_classes)
        # ∇Ψ = y − π − b is known to ε, the mode to ε prior deviations
        self.rounding = float(np.finfo(float).eps * np.sqrt(np.abs(np.diagonal(K, axis1=-2, axis2=-1)).sum(axis=-1).max()))
        self.mean = np.full((n_classes, y.size), np.nan)
        self.b = self.pi = self.mean

    def set_label(self, i: int, label: int) -> None:
        """Give point i another label."""
        self.targets[:, i] = 0.0
        self.targets[label, i] = 1.0

    def starts(self, init: Fit | None) -> list[FloatArray]:
        """Starting points, the warm one first."""
        return starting_points(init, np.zeros((self.n_classes, self.y.size)))

    def project(self, b: FloatArray) -> FloatArray:
        """Every b is valid."""
        return b

    def log_joint(self, b: FloatArray, f: FloatArray) -> float:
        """Ψ = log p(y | f) − ½ fᵀK⁻¹f."""
        return float(np.vdot(self.targets, softmax_log_probabilities(f.T).T)) - 0.5 * float(np.vdot(b, f))

    def evaluate(self, b: FloatArray) -> Evaluation:
        """Evidence at b and the Newton step from it, shortened until Ψ rises."""
        self.b = b
        self.mean = f = self.blocks.multiply_kernel(b)
        self.pi = np.maximum(np.exp(softmax_log_probabilities(f.T).T), PI_FLOOR)
        self.blocks.refresh(self.pi, total=np.ones(self.y.size))
        step = self.blocks.solve(f + self.targets / self.pi) - b
        df = self.blocks.multiply_kernel(step)
        psi = self.log_joint(b, f)
        log_z = psi - 0.5 * self.blocks.log_det
        if not (np.isfinite(log_z) and np.isfinite(df).all()):
            raise InvalidStateError("the Newton step is not finite")
        length = 1.0
        while self.log_joint(b + length * step, f + length * df) < psi - 1e-12 * abs(psi) and length > 1e-10:
            length *= 0.5
        residual = float(np.sqrt(max(np.vdot(df, self.targets - self.pi - b), 0.0))) + self.rounding  # df = Σ ∇Ψ
        return Evaluation(b + length * step, np.ones_like(b), residual, log_z)

    def fit(self, outcome: Outcome) -> Fit:
        """The result; the problem holds the state of ``outcome.x``."""
        e = outcome.evaluation
        covariance = unpack_blocks(self.blocks.marginal_blocks())
        posterior = GaussianPosterior(self.mean.T.copy(), covariance, self.b, self.blocks)
        b = outcome.x.copy()
        b.setflags(write=False)
        gradient = partial(self.gradient, covariance)
        args = (posterior, e.log_evidence, outcome.status, outcome.history, e.residual, b)
        return Fit(*args, gradient, self._site_moments)

    def gradient(self, covariance: FloatArray) -> FloatArray:
        """∂log Z/∂K: the explicit ½ (b bᵀ − M), and what comes through the mode, ½ (u bᵀ + b uᵀ).

        df̂ = (I + KW)⁻¹ dK b, and ∂log Z/∂f̂ = s with s_k = −½ tr(Σ_i ∂W_i/∂f_k), so the implicit part is uᵀ dK b with
        u = (I + WK)⁻¹ s = s − M K s. The trace is π_k [Σ_kk − Σ_a π_a Σ_aa − 2 (Σπ)_k + 2 πᵀΣπ].
        """
        pi = self.pi.T
        diagonal = np.einsum("ikk->ik", covariance)
        Sp = np.einsum("ikl,il->ik", covariance, pi)
        inner = diagonal - 2.0 * Sp - np.sum(pi * (diagonal - 2.0 * Sp), axis=1, keepdims=True)
        s = np.ascontiguousarray((-0.5 * pi * inner).T)
        u = s - self.blocks.solve(self.blocks.multiply_kernel(s))
        return evidence_gradient(self.blocks, self.b) + symmetric_outer(u, self.b, shared=self.blocks.K.ndim == 2)

    def _site_moments(self) -> tuple[FloatArray, FloatArray]:
        """Precision W (n, c, c) and location W f + y − π (n, c) of the Gaussian that stands for each likelihood term."""
        W = site_precision(self.pi)
        return W, np.einsum("ikl,li->ik", W, self.mean) + (self.targets - self.pi).T

    def failed(self, status: Status) -> Fit:
        """A result that holds no numbers, only the reason."""
        nothing = np.full((self.y.size, self.n_classes, self.n_classes), np.nan)
        return Fit(GaussianPosterior(self.mean.T.copy(), nothing, self.b, self.blocks), np.nan, status, (), np.inf)
