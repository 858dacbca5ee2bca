"""What every inference returns: a posterior, its evidence, and how the iteration ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from nestgp.arrays import FloatArray, IntArray
from nestgp.posterior import GaussianPosterior, Released


class Status(Enum):
    """How an inference ended; ``advice`` says in words what to do about it."""

    CONVERGED = "converged"
    MAX_ITERATIONS = "max_iterations"
    DIVERGED = "diverged"
    NOT_POSITIVE_DEFINITE = "not_positive_definite"
    NOT_MIXED = "not_mixed"

    @property
    def advice(self) -> str:
        """One sentence on what the status means and what to change."""
        return _ADVICE[self]


_ADVICE = {
    Status.CONVERGED: "The undamped fixed-point residual is below tol.",
    Status.MAX_ITERATIONS: (
        "The residual is still above tol: raise max_iter, or loosen tol; the best state met is returned."
    ),
    Status.DIVERGED: (
        "No damping kept the cavities valid: use a smaller damping, or a kernel with a smaller variance; "
        "the best state met is returned."
    ),
    Status.NOT_POSITIVE_DEFINITE: (
        "The kernel matrix has a clearly negative eigenvalue, so no Gaussian process has it: check a hand-made "
        "kernel for symmetry and positive definiteness, or add a WhiteKernel."
    ),
    Status.NOT_MIXED: (
        "Some probability or hyperparameter has R-hat >= 1.01 or fewer than 400 effective draws: raise n_draws or n_warmup; "
        "the draws are returned, and are no reference."
    ),
}


class Iteration(NamedTuple):
    """One row of the history: what was true of the state that iteration looked at."""

    iteration: int
    log_evidence: float
    residual: float
    damping: float


@dataclass(frozen=True)
class Fit:
    """Immutable result of one inference; posterior, evidence and gradient all belong to the same state.

    Attributes
    ----------
    posterior : latent means and covariances, at the training points and, given covariances, at new ones.
    log_evidence : float; ``nan`` if there is none.
    status, history : how it ended, and every iteration on the way.
    residual : the undamped fixed-point residual of the state returned.
    sites : what ``init=`` takes for a warm start.
    """

    posterior: GaussianPosterior
    log_evidence: float
    status: Status
    history: tuple[Iteration, ...]
    residual: float
    sites: Any = None
    gradient: Callable[[], FloatArray] | None = field(repr=False, default=None)
    site_moments: Callable[[], tuple[FloatArray, FloatArray]] | None = field(repr=False, default=None)

    @cached_property
    def evidence_grad(self) -> FloatArray:
        """∂log Z/∂K: (n, n) summed over the classes for a shared kernel, else (c, n, n). Computed when first asked for."""
        if self.gradient is None:
            raise ValueError(f"this result ({self.status.value}) has no evidence gradient")
        return self.gradient()

    def cavities(self) -> tuple[FloatArray, FloatArray]:
        """Mean (n, c) and covariance (n, c, c) of each f_i with its own site removed (eq. 7): what the others say of it.

        Σ₋ = (I − ΣΠ)⁻¹ Σ and μ₋ = (I − ΣΠ)⁻¹ (μ − Σν̃): no inverse of the singular site precision Π is needed. nan where rounding
        has left I − ΣΠ singular.
        """
        if self.site_moments is None:
            raise ValueError(f"this result ({self.status.value}) has no sites, so no cavities")
        precision, location = self.site_moments()
        Sigma, mu = self.posterior.covariance, self.posterior.mean
        keep = np.eye(mu.shape[1]) - Sigma @ precision
        rhs = np.concatenate([Sigma, (mu - np.einsum("ikl,il->ik", Sigma, location))[:, :, None]], axis=2)
        solved = _solve_each(keep, rhs)
        cov = solved[:, :, :-1]
        return solved[:, :, -1], 0.5 * (cov + cov.transpose(0, 2, 1))

    def without_factor(self) -> Fit:
        """The same result without the (⌈c/2⌉ + 1) n² doubles that prediction and gradient need: enough for a warm start."""
        posterior = replace(self.posterior, blocks=Released())
        return replace(self, posterior=posterior, gradient=None, site_moments=None)

    @property
    def converged(self) -> bool:
        """True only if the undamped residual reached the tolerance."""
        return self.status is Status.CONVERGED

    @property
    def n_iter(self) -> int:
        """Number of iterations made."""
        return len(self.history)


def _solve_each(A: FloatArray, B: FloatArray) -> FloatArray:
    """A_i⁻¹ B_i for A (n, c, c), B (n, c, q); nan where A_i is singular."""
    try:
        return np.linalg.solve(A, B).astype(np.float64, copy=False)
    except np.linalg.LinAlgError:
        out = np.full(B.shape, np.nan)
        for i in np.flatnonzero(np.linalg.slogdet(A)[0]):
            out[i] = np.linalg.solve(A[i], B[i])
        return out


class Inference(Protocol):
    """Seam 1: K and labels in, a :class:`Fit` out. An inference never sees hyperparameters.

    K is kept, not copied: leave it as it is while the :class:`Fit` is in use.
    """

    def infer(self, K: FloatArray, y: IntArray, n_classes: int, init: Fit | None = None) -> Fit: ...


def starting_points(init: Fit | None, cold: FloatArray) -> list[FloatArray]:
    """Starting points for an iteration: the sites of ``init`` if there are any, then the cold start."""
    if init is None or init.sites is None:
        return [cold]
    if np.shape(init.sites) != cold.shape:
        raise ValueError(
            f"init has sites of shape {np.shape(init.sites)}, this problem needs {cold.shape}: "
            "pass a Fit of the same method, data and classes, or init=None"
        )
    return [init.sites, cold]
