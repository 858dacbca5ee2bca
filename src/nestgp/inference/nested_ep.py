"""Nested EP for the multinomial probit with all between-class couplings (section 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, final

import numpy as np

from nestgp import tilted
from nestgp.arrays import FloatArray, IntArray
from nestgp.evidence import evidence_gradient, log_evidence
from nestgp.inference.checks import check_inner_sweeps, check_options, check_problem
from nestgp.inference.extension import bordered
from nestgp.inference.loop import (
    Evaluation,
    InvalidStateError,
    Outcome,
    find_from,
    make_mixer,
    rounding_in_single_precision,
    run,
)
from nestgp.inference.newton import newton_direction
from nestgp.inference.result import Fit, Status, starting_points
from nestgp.inference.sequential import sequential_sweep
from nestgp.linalg import DenseBlocks, KernelStack, pack_blocks, unpack_blocks
from nestgp.posterior import GaussianPosterior, Released
from nestgp.sites import site_locations, site_means, site_precision, site_weights, times_precision

#: Inner EP "to convergence" means this residual, or that many sweeps.
INNER_TOL, INNER_SWEEPS = 1e-12, 200
#: Share of the first update, from the prior, that is taken.
FIRST_DAMPING = 0.8
#: Undamped steps, and extrapolation from further away than with other methods: the means ahead keep the sites from overshooting.
MIXING = {"first": 1.0, "near": 0.3}
#: Means ahead: conjugate gradients to this residual, or so many steps, which are used up only where variances are large.
MEAN_TOL, MEAN_STEPS = 0.1, 6
#: What rounding in single precision may change the evidence by, in nats, in an evaluation of a search, by the estimate of its
#: blocks. The true change was 1 to 37 % of it up to there (measured).
SEARCH_ROUNDING = 0.01
#: Smallest residual asked for with one more point, whose evidence alone is wanted.
EXTENSION_TOL = 1e-4


@final
@dataclass(frozen=True)
class NestedEP:
    """Full nested EP.

    Parameters
    ----------
    damping : "adaptive" (parallel updates are followed by a second, at the means that the first implies; backs off when the
        sites oscillate, extrapolates when safe) or a number in (0, 1]: the paper's plain scheme.
    inner_sweeps : passes of inner EP per outer iteration, from the last inner sites; 1 is the paper's incremental form,
        "converge" its standard one. The fixed point is the same.
    inner_updates : "sequential" rank-1 updates inside a sweep, or "parallel" ones after it (appendix A).
    updates : "parallel" outer updates, or "sequential" rank-c ones, which cost (cn)² memory and are for small n.
    precision : "double", or "mixed": single precision while that saves iterations in double. The fixed point is the same. In a
        search over hyperparameters also evaluations wholly in single precision, where rounding is small beside their tolerance.
    max_iter : most outer iterations.
    tol : largest undamped mismatch of tilted and marginal moments, in marginal standard deviations (means) and relative
        (variances), that counts as converged. 0 runs to ``max_iter``.
    """

    damping: float | str = "adaptive"
    inner_sweeps: int | str = 1
    inner_updates: str = "sequential"
    updates: str = "parallel"
    precision: str = "double"
    max_iter: int = 200
    tol: float = 1e-6

    likelihood: ClassVar[str] = "probit"
    default_rule: ClassVar[str] = "ep"
    search_tol: ClassVar[float] = 3e-2  # log Z is stationary at a fixed point: its error is of second order

    def infer(self, K: FloatArray, y: IntArray, n_classes: int, init: Fit | None = None) -> Fit:
        """Posterior, evidence and its gradient for kernel matrix K (n, n) or (c, n, n) and labels y (n,).

        ``init`` is an earlier :class:`Fit` for the same labels whose sites are the starting point.
        """
        self._check_options()
        K, y = check_problem(K, y, n_classes)
        state = _State(self, K, y, n_classes)
        return run(state, init, partial(make_mixer, self.damping, **MIXING), self.max_iter, self.tol, self._rough(state))

    def infer_for_search(self, K: FloatArray, y: IntArray, n_classes: int, tol: float, init: Fit | None = None) -> Fit:
        """As :meth:`infer`, to another tolerance, where only the evidence and its gradient are wanted.

        In mixed precision all of it is in single precision, if rounding is estimated to change the evidence by no more than
        SEARCH_ROUNDING and leaves less than ``tol`` of the residual. That result predicts nothing.
        """
        method = replace(self, tol=tol)
        if self.precision == "double" or self.max_iter == 1 or rounding_in_single_precision(K)[1] > tol:
            return method.infer(K, y, n_classes, init)
        rough, error = replace(method, max_iter=self.max_iter - 1)._infer_in_single_precision(K, y, n_classes, init)
        if (rough.converged and error <= SEARCH_ROUNDING) or rough.status is Status.NOT_POSITIVE_DEFINITE:
            return replace(rough, posterior=replace(rough.posterior, blocks=Released()))
        start, way = init if rough.sites is None else rough.without_factor(), rough.history
        del rough  # its factor, before there is one in double precision
        fit = replace(method, precision="double", max_iter=self.max_iter - len(way)).infer(K, y, n_classes, start)
        later = tuple(row._replace(iteration=row.iteration + len(way)) for row in fit.history)
        return replace(fit, history=(*way, *later))

    def _infer_in_single_precision(
        self, K: FloatArray, y: IntArray, n_classes: int, init: Fit | None
    ) -> tuple[Fit, float]:
        """The result, and by how much rounding may have changed its evidence."""
        self._check_options()
        K, y = check_problem(K, y, n_classes)
        exact = KernelStack(K, n_classes)
        state = _State(self, K.astype(np.float32), y, n_classes, exact)
        fit = run(state, init, partial(make_mixer, self.damping, **MIXING), self.max_iter, self.tol, kernel=exact)
        return fit, 0.5 * state.blocks.log_det_error

    def extend(
        self, fit: Fit, K: FloatArray, y: IntArray, n_classes: int, k_star: FloatArray, prior_variance: FloatArray
    ) -> FloatArray:
        """Log evidence (m, c) of the n points of ``fit`` and one of m new ones, given each label in turn; nan: not converged.

        Every problem starts from the sites of ``fit`` and, at the new point, from the site that it would have if those stayed.
        The evidence is stationary at a fixed point: a residual of EXTENSION_TOL leaves an error of some 1e-6.
        """
        self._check_options()
        m = k_star.shape[-1]
        out = np.full((m, n_classes), np.nan)
        mean, cov = fit.posterior.at(k_star, prior_variance)
        contrast, packed = tilted.multinomial_probit(n_classes), pack_blocks(cov)
        alone = [_sites_alone(contrast, mean.T, packed, np.full(m, k), INNER_SWEEPS) for k in range(n_classes)]
        new_mixer = partial(make_mixer, self.damping, **MIXING)
        for j in range(m):
            K_ext = bordered(K, k_star[..., j], prior_variance[..., j])
            for k in range(n_classes):
                state = _State(self, K_ext, np.append(y, k), n_classes)
                starts = [np.concatenate([fit.sites, alone[k][:, j : j + 1]], axis=1), *state.starts(None)]
                tol, make_rough = max(self.tol, EXTENSION_TOL), self._rough(state)
                outcome = find_from(starts, state, new_mixer, self.max_iter, tol, make_rough)
                if outcome is not None and outcome.status is Status.CONVERGED:
                    out[j, k] = outcome.evaluation.log_evidence
        return out

    def _rough(self, state: _State) -> Callable[[], _State] | None:
        """What makes the problem of the early iterations, if they are not to be in double precision."""
        return state.in_single_precision if self.precision == "mixed" else None

    def _check_options(self) -> None:
        make_mixer(self.damping)
        check_options(self.max_iter, self.tol)
        check_inner_sweeps(self.inner_sweeps)
        for name in ("updates", "inner_updates"):
            if getattr(self, name) not in ("parallel", "sequential"):
                raise ValueError(f"{name}={getattr(self, name)!r}: use 'parallel' or 'sequential'")
        if self.precision not in ("double", "mixed"):
            raise ValueError(f"precision={self.precision!r}: use 'double' or 'mixed'")
        if self.precision == "mixed" and self.updates == "sequential":
            raise ValueError("precision='mixed' is for updates='parallel': sequential updates need double precision")


class _State:
    """Sites (α̃, β̃), each (n, c−1) over the other classes in increasing order, and the posterior they imply."""

    def __init__(
        self, options: NestedEP, K: FloatArray, y: IntArray, n_classes: int, exact: KernelStack | None = None
    ) -> None:
        self.options = options
        self.y = y
        self.n_classes = n_classes
        self.blocks = DenseBlocks(K, n_classes)
        self.exact = exact or self.blocks
        self.contrast = tilted.multinomial_probit(n_classes)
        self.mean = np.full((n_classes, y.size), np.nan)
        self.cov = np.full((n_classes * (n_classes + 1) // 2, y.size), np.nan)
        self.b = self.mean
        self._others = np.array([[j for j in range(n_classes) if j != k] for k in range(n_classes)])[y].T

    def in_single_precision(self) -> _State:
        """The same problem for the early iterations, in the memory of this one's factor."""
        rough = _State(self.options, self.blocks.K.astype(np.float32), self.y, self.n_classes, exact=self.blocks)
        rough.blocks.borrow(self.blocks)
        return rough

    def starts(self, init: Fit | None) -> list[FloatArray]:
        """Starting points, the warm one first."""
        return starting_points(init, self._first_sites())

    def _first_sites(self) -> FloatArray:
        """Damped sites for the prior, whose marginals need no factorisation: the first iteration for nothing."""
        cov = np.zeros_like(self.cov)
        for k in range(self.n_classes):
            cov[k * (k + 1) // 2 + k] = np.diagonal(self.blocks.class_kernel(k))
        return FIRST_DAMPING * _sites_alone(self.contrast, np.zeros_like(self.mean), cov, self.y, 1)

    def project(self, x: FloatArray) -> FloatArray:
        """Site precisions are never negative."""
        np.maximum(x[0], 0.0, out=x[0])
        return x

    def evaluate(self, x: FloatArray) -> Evaluation:
        """Posterior of the sites x, its evidence, and the sites that would match the tilted moments."""
        alpha, beta = x
        pi = site_weights(self._by_class(alpha), self.y)
        beta_by_class = self._by_class(beta)
        self.blocks.refresh(pi, total=1.0 + alpha.sum(axis=1))
        nu = site_locations(beta_by_class, pi)
        self._find_mean(nu, site_means(beta_by_class, pi))
        self.cov = self.blocks.marginal_blocks()  # eq. 41
        target, variance, residual, log_terms = self._match_moments(x)
        log_z = log_evidence(self.blocks.log_det, nu, self.mean, alpha, beta, log_terms)
        if not np.isfinite(log_z):
            raise InvalidStateError("the evidence is not finite")
        return Evaluation(target, np.stack([variance, np.sqrt(variance)]), residual, log_z)

    def _find_mean(self, nu: FloatArray, means: FloatArray) -> None:
        """Posterior mean and b = K⁻¹ mean (eq. 39).

        In single precision with a step of refinement on b = ν̃ − Π K b, K in double: it leaves a fiftieth of the error.
        """
        self.b = self.blocks.solve(means)
        if self.exact is not self.blocks:
            pi = self.blocks.pi
            self.b -= self.b.mean(axis=0)  # columns sum to zero but for rounding, which no later step would take out
            self.b += self.blocks.solve((nu - times_precision(pi, self.exact.multiply_kernel(self.b)) - self.b) / pi)
            self.b -= self.b.mean(axis=0)
        self.mean = self.exact.multiply_kernel(self.b)

    def _match_moments(self, x: FloatArray) -> tuple[FloatArray, FloatArray, float, float]:
        """Undamped new sites (eqs. 30-38), variances of g, residual and evidence terms at x."""
        converge = self.options.inner_sweeps == "converge"
        inner = (
            INNER_SWEEPS if converge else int(self.options.inner_sweeps),
            INNER_TOL if converge else 0.0,
            self.options.inner_updates == "parallel",
        )
        target, variance = np.empty_like(x), np.empty_like(x[0])
        c = self.contrast
        moments = (self.mean, self.cov, self.y, c.index, c.coefficient, c.loading)
        valid, residual, log_terms = tilted.update_sites(*moments, *x, *inner, *target, variance)
        if not valid:
            raise InvalidStateError("a cavity has no positive variance")
        if self.options.updates == "sequential":
            target = sequential_sweep(self.blocks, self.mean, x, self.y, self.contrast, inner)
        elif self.options.damping == "adaptive":
            target = self._update_again(x, self.project(target), inner)
        return target, variance, residual, log_terms

    def _update_again(self, x: FloatArray, target: FloatArray, inner: tuple[int, float, bool]) -> FloatArray:
        """Sites after ``target``: a second update at the means that it implies, with the covariances of the cavities as they are.

        Covariances cost n³ and means n²; the fixed point is the same, and two thirds of the iterations lead there.
        """
        pi, next_pi = self.blocks.pi[:, :, None], site_weights(self._by_class(target[0]), self.y)[:, :, None]
        next_nu = site_locations(self._by_class(target[1]), next_pi[:, :, 0])[:, :, None]

        def precondition(r: FloatArray) -> tuple[FloatArray, FloatArray]:
            b = self.blocks.solve(r / pi)  # Π (r/π) = r, for columns of r sum to zero
            return self.exact.multiply_kernel(b), b

        slope = next_nu - times_precision(next_pi, self.mean[:, :, None]) - self.b[:, :, None]
        step, _ = newton_direction(slope, precondition, partial(times_precision, next_pi), MEAN_TOL, MEAN_STEPS)
        mean = self.mean + step[:, :, 0]
        again, c = np.empty_like(x), self.contrast
        moments = (mean, self.cov, self.y, c.index, c.coefficient, c.loading)
        valid = tilted.refine_sites(*moments, x, target, *inner, *again)
        return again if valid and np.isfinite(again).all() else target

    def _by_class(self, values: FloatArray) -> FloatArray:
        """(n, c−1) over the other classes → (c, n) with 0 at the observed class."""
        out = np.zeros((self.n_classes, self.y.size))
        np.put_along_axis(out, self._others, values.T, axis=0)
        return out

    def fit(self, outcome: Outcome) -> Fit:
        """The result; the problem holds the state of ``outcome.x``."""
        gradient = partial(evidence_gradient, self.blocks, self.b)
        e = outcome.evaluation
        x = outcome.x.copy()
        x.setflags(write=False)
        args = (self._posterior(), e.log_evidence, outcome.status, outcome.history, e.residual, x)
        return Fit(*args, gradient, partial(self._site_moments, x))

    def _site_moments(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Precision Π (n, c, c) and location ν̃ (n, c) of every site (eqs. 16 and 19)."""
        pi = site_weights(self._by_class(x[0]), self.y)
        return site_precision(pi), site_locations(self._by_class(x[1]), pi).T

    def failed(self, status: Status) -> Fit:
        """A result that holds no numbers, only the reason."""
        return Fit(self._posterior(), np.nan, status, (), np.inf)

    def _posterior(self) -> GaussianPosterior:
        return GaussianPosterior(self.mean.T.copy(), unpack_blocks(self.cov), self.b, self.blocks)


def _sites_alone(contrast: tilted.Contrast, mean: FloatArray, cov: FloatArray, y: IntArray, sweeps: int) -> FloatArray:
    """Sites (2, n, c−1) of points whose moments, mean (c, n) and packed cov, contain none; zeros if there are none valid."""
    x = np.zeros((2, y.size, mean.shape[0] - 1))
    target, variance = np.zeros_like(x), np.empty_like(x[0])
    table = (contrast.index, contrast.coefficient, contrast.loading)
    moments = (np.ascontiguousarray(mean), cov, y)
    valid, _, _ = tilted.update_sites(*moments, *table, *x, sweeps, INNER_TOL, False, *target, variance)
    return target if valid else x
