"""Type-II MAP: priors, the search over log hyperparameters, restarts."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from joblib import Parallel, delayed
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from sklearn.gaussian_process.kernels import Kernel

from nestgp import kernels
from nestgp.arrays import FloatArray, IntArray
from nestgp.independent import IndependentBlocks
from nestgp.inference.result import Fit, Inference, Status
from nestgp.kernel_gradient import contract
from nestgp.threads import single_threaded_if_small

#: Loosest tolerance of an evaluation, unless the inference has a ``search_tol``. It follows the steepest slope down to the
#: second number: a residual r leaves an error of about n r/4 in the gradient (measured), which must be small beside it.
LOOSE_TOL, TIGHT_TOL, TOL_PER_SLOPE = 1e-3, 1e-4, 0.3
#: A search ends when the objective grows by less than this part of itself; with a known curvature steps are long enough for
#: the second number.
SEARCH_FTOL, NEWTON_FTOL = 1e-6, 3e-5
#: With a known curvature it also ends when half the squared Newton step, the gain left to hope for, is below this, in nats.
SMALL_GAIN = 0.02
#: It also ends when so many evaluations in a row differ by less, at θ that differ by no more than this.
PLATEAU, SAME_THETA = 3, 0.01
#: From so many rows on, a search goes first through every third row of each class.
COARSE_FROM, COARSE_STEP = 600, 3
#: Limits, in standard deviations, of a search that has no box.
UNBOUNDED = 1e3
#: How many of the last evaluations may serve as a warm start.
REMEMBERED = 8
#: Message of a search that the user has ended.
INTERRUPTED = "interrupted"
#: Spread, in log units, of the random starts around the given one.
RESTART_SPREAD = 1.5
#: Factors on starting variances and, at least, on starting lengthscales of a search after one that has ended at a lower bound.
MORE_VARIANCE, LONGER = 10.0, 2.0
#: Alternating search: most rounds, relative growth of the bound that ends it, jitter relative to the mean variance.
EM_ROUNDS, EM_TOL, EM_JITTER = 100, 1e-6, 1e-6


class Prior(Protocol):
    """log p(θ) and its gradient by θ (natural logs of the free hyperparameters), without a Jacobian for the log."""

    def evaluate(self, names: Sequence[str], theta: FloatArray, units: FloatArray) -> tuple[float, FloatArray]: ...


@lru_cache(maxsize=64)  # samplers ask for it in every leapfrog step
def jacobian_power(names: tuple[str, ...]) -> FloatArray:
    """d log x/dθ for the variable x that a prior is on: σ = √ of a variance, everything else itself."""
    power = np.array([0.5 if n.split("[")[0].endswith(("constant_value", "noise_level")) else 1.0 for n in names])
    power.setflags(write=False)
    return power


@dataclass(frozen=True)
class HalfStudentT:
    """Half Student-t prior of the paper's section 5.4 on magnitudes and lengthscales.

    "Four degrees of freedom and a variance equal to one hundred", read literally: variance scale² at df = 4, so scale = 10.
    It is on σ, the square root of a ``constant_value`` or ``noise_level``, and on every other hyperparameter itself, each
    measured in its unit (the column's standard deviation for a default kernel's lengthscales, else 1). The mode is taken in
    log θ without Jacobian.
    """

    df: float = 4.0
    scale: float = 10.0

    def __post_init__(self) -> None:
        for name in ("df", "scale"):
            value = getattr(self, name)
            if not (isinstance(value, float | int | np.number) and 0.0 < value < np.inf):
                raise ValueError(f"HalfStudentT({name}={value!r}): use a positive number")

    def evaluate(self, names: Sequence[str], theta: FloatArray, units: FloatArray) -> tuple[float, FloatArray]:
        """Normalised log density summed over the hyperparameters, and its gradient by θ."""
        power = jacobian_power(tuple(names))
        x2 = (np.exp(power * theta) / units / self.scale) ** 2 / self.df
        constant = math.lgamma((self.df + 1) / 2) - math.lgamma(self.df / 2) - 0.5 * math.log(self.df * math.pi)
        constant += math.log(2.0) - math.log(self.scale)
        value = theta.size * constant - 0.5 * (self.df + 1) * np.log1p(x2).sum()
        return float(value), -(self.df + 1) * power * x2 / (1.0 + x2)


class FlatPrior:
    """No prior: type-II maximum likelihood."""

    def evaluate(self, names: Sequence[str], theta: FloatArray, units: FloatArray) -> tuple[float, FloatArray]:
        """Zero, and a zero gradient."""
        return 0.0, np.zeros_like(theta)


def make_prior(prior: Any) -> Prior:
    """The prior that an estimator's ``prior`` argument names."""
    if prior is None:
        return FlatPrior()
    if isinstance(prior, str):
        if prior != "half-student-t":
            raise ValueError(f"prior={prior!r}: use 'half-student-t', None, or an object with evaluate(names, theta, units)")
        return HalfStudentT()
    if not callable(getattr(prior, "evaluate", None)):
        raise TypeError(f"prior={prior!r} has no method evaluate(names, theta, units): use nestgp.hyper.HalfStudentT or None")
    return prior


@dataclass(frozen=True)
class SearchResult:
    """Where a hyperparameter search ended.

    Attributes
    ----------
    theta : best point met; objective : log Z + log prior there; fit : the inference there, at the evaluation's tolerance.
    success, message : how it ended, in the optimiser's words; n_evaluations, n_iterations : inferences made with all rows, and
    their outer iterations in all; n_failures : evaluations that gave no usable value; n_unconverged : evaluations whose inference
    missed its tolerance, so that their value is rough. covariance : (d, d) inverse curvature that the search met on its way, a
    rough covariance of θ given the data.
    """

    theta: FloatArray
    objective: float
    fit: Fit
    success: bool
    message: str
    n_evaluations: int
    n_iterations: int
    n_failures: int
    n_unconverged: int
    covariance: FloatArray


class Objective:
    """−(log Z + log prior) and its gradient as a function of θ, warm-started from one evaluation to the next."""

    def __init__(
        self,
        kernel: Kernel | Sequence[Kernel],
        X: FloatArray,
        y: IntArray,
        n_classes: int,
        inference: Inference,
        prior: Prior,
        units: FloatArray,
        progress: Callable[[int, float, Fit], None] | None = None,
    ) -> None:
        self.kernel, self.X, self.y, self.n_classes = kernel, X, y, n_classes
        self.inference, self.prior, self.units, self.progress = inference, prior, units, progress
        self.names = kernels.hyperparameter_names(kernel)
        self.tol = max(getattr(inference, "search_tol", LOOSE_TOL), getattr(inference, "tol", 0.0))
        self.best: tuple[FloatArray, float, Fit] | None = None
        self.n_evaluations = self.n_iterations = self.n_failures = self.n_unconverged = 0
        self.path: list[tuple[FloatArray, FloatArray]] = []
        self.first_inverse_hessian: FloatArray | None = None  # before the path tells more
        self._recent: list[tuple[FloatArray, Fit]] = []

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """Objective to minimise and gradient; a failed evaluation gives a slope back to the best point."""
        self.n_evaluations += 1
        found = self._evaluate(theta)
        if found is None:
            self.n_failures += 1
            return self._penalty(theta)
        value, gradient, fit = found
        if self.best is None or value > self.best[1]:
            self.best = (theta.copy(), value, fit)
        if self.progress is not None:
            self.progress(self.n_evaluations, value, fit)
        self.path.append((theta.copy(), -gradient))
        slope = float(np.abs(gradient).max(initial=0.0))
        self.tol = float(np.clip(TOL_PER_SLOPE * slope / self.y.size, min(TIGHT_TOL, self.tol), self.tol))  # never looser
        return -value, -gradient

    def _evaluate(self, theta: FloatArray) -> tuple[float, FloatArray, Fit] | None:
        with single_threaded_if_small(self.y.size):
            return self._evaluate_here(theta)

    def _evaluate_here(self, theta: FloatArray) -> tuple[float, FloatArray, Fit] | None:
        kernel = kernels.with_theta(self.kernel, theta)
        with np.errstate(all="ignore"):
            K = kernels.gram(kernel, self.X)
        if not np.isfinite(K).all():
            return None
        fit = self._infer(K, self._warm_start(theta))
        self.n_iterations += fit.n_iter
        if not np.isfinite(fit.log_evidence) or fit.status in (Status.DIVERGED, Status.NOT_POSITIVE_DEFINITE):
            return None
        self.n_unconverged += not fit.converged
        weights = fit.evidence_grad
        slim = fit.without_factor()
        del fit  # its factor, before the contraction needs n² of its own
        self._recent = [*self._recent[1 - REMEMBERED :], (theta.copy(), slim)]
        gradient = contract(kernel, self.X, weights, K=K)
        log_prior, prior_gradient = self.prior.evaluate(self.names, theta, self.units)
        return slim.log_evidence + log_prior, gradient + prior_gradient, slim

    def thinned(self) -> Objective | None:
        """The same with every third row of each class, or None where there are few."""
        if self.y.size < COARSE_FROM:
            return None
        rows = np.sort(np.concatenate([np.flatnonzero(self.y == k)[::COARSE_STEP] for k in range(self.n_classes)]))
        problem = (self.kernel, self.X[rows], self.y[rows], self.n_classes)
        return Objective(*problem, self.inference, self.prior, self.units, self.progress)

    def second_moments(self, theta: FloatArray) -> FloatArray:
        """E[f_k f_kᵀ] under q at θ, summed over the classes (1, n, n) for a shared kernel, else (c, n, n).

        Only for posteriors without between-class couplings. The f are those with the jitter's noise: where the prior has less
        variance than that, q must have the noise as well, or the next θ shrinks the jitter and with it the magnitude.
        """
        K = kernels.gram(kernels.with_theta(self.kernel, theta), self.X)
        fit = self._loosened().infer(K, self.y, self.n_classes, init=self._warm_start(theta))
        self.n_iterations += fit.n_iter
        blocks: IndependentBlocks = fit.posterior.blocks  # type: ignore[assignment]
        mean = fit.posterior.mean.T
        each = [
            np.outer(mean[k], mean[k]) + blocks.class_covariance(k) + _jitter(blocks.class_kernel(k))
            for k in range(self.n_classes)
        ]
        return np.sum(each, axis=0)[None] if K.ndim == 2 else np.stack(each)

    def _warm_start(self, theta: FloatArray) -> Fit | None:
        """The last fit of the nearest θ: after a step that went too far, not the one from there."""
        nearest = min(reversed(self._recent), key=lambda point: float(np.abs(theta - point[0]).max()), default=None)
        return None if nearest is None else nearest[1]

    def _infer(self, K: FloatArray, init: Fit | None) -> Fit:
        """The inference to the tolerance of this evaluation, by its own way for searches if it has one."""
        if hasattr(self.inference, "infer_for_search"):
            return self.inference.infer_for_search(K, self.y, self.n_classes, self.tol, init)
        return self._loosened().infer(K, self.y, self.n_classes, init=init)

    def _loosened(self) -> Inference:
        if dataclasses.is_dataclass(self.inference) and hasattr(self.inference, "tol"):
            return dataclasses.replace(self.inference, tol=self.tol)
        return self.inference

    def _penalty(self, theta: FloatArray) -> tuple[float, FloatArray]:
        if self.best is None:
            return 1e10, np.zeros_like(theta)
        away = theta - self.best[0]
        return -self.best[1] + 1e3 * (1.0 + float(away @ away)), 2e3 * away


#: A way up: moves through θ by calling the objective, which remembers the best point; returns (success, message).
Climb = Callable[[Objective, FloatArray, FloatArray], tuple[bool, str]]


def l_bfgs_b(
    objective: Objective, start: FloatArray, bounds: FloatArray, inverse_hessian: FloatArray | None = None
) -> tuple[bool, str]:
    """Gradient search on the evidence, as it is at the inference's solution for each θ.

    It searches over v in θ = start + C v with C Cᵀ = ``inverse_hessian``, so that its first step, the whole gradient by v, is
    Newton's. Where none is given C = s I, with s² = 1/|gradient at the start|. Either way C is scaled down to a first step of at
    most one log unit.

    Values carry the error of a tolerance, and its line search cannot go below that: evaluations that no longer differ end it.
    """
    first = objective(start)
    if inverse_hessian is None:
        s = 1.0 / math.sqrt(max(1.0, float(np.linalg.norm(first[1]))))
        C, box, ftol = s * np.eye(start.size), (bounds - start[:, None]) / s, SEARCH_FTOL
    else:  # a rotated box is none: θ is clipped instead
        box, ftol = np.tile([-UNBOUNDED, UNBOUNDED], (start.size, 1)), NEWTON_FTOL
        length = float(np.linalg.norm(inverse_hessian @ first[1]))
        C = np.linalg.cholesky(inverse_hessian / max(1.0, length)).astype(np.float64)
    seen: list[tuple[float, FloatArray]] = []

    def by_v(v: FloatArray) -> tuple[float, FloatArray]:
        theta = start + C @ v
        inside = np.clip(theta, *bounds.T)
        value, gradient = objective(inside) if v.any() else first
        seen.append((value, inside))
        best = min(seen, key=lambda point: point[0])
        close = [_agree(point, best, ftol) for point in seen[-PLATEAU:]]
        if len(seen) > PLATEAU and all(close):
            raise _Enough(f"{PLATEAU} EVALUATIONS WITHIN FTOL OF THE BEST")
        gradient = gradient * np.isclose(theta, inside)
        if inverse_hessian is not None and value == best[0] and 0.5 * float(gradient @ inverse_hessian @ gradient) <= SMALL_GAIN:
            raise _Enough(f"NEWTON'S NEXT STEP WOULD GAIN LESS THAN {SMALL_GAIN:g}")
        return value, C.T @ gradient

    options = {"maxiter": 200, "ftol": ftol, "gtol": 1e-3 * float(np.diagonal(C).min())}
    try:
        result: Any = minimize(by_v, np.zeros_like(start), jac=True, method="L-BFGS-B", bounds=box, options=options)  # type: ignore[call-overload]
    except _Enough as reason:
        return True, f"CONVERGENCE: {reason}"
    return bool(result.success), str(result.message)


def coarse_to_fine(objective: Objective, start: FloatArray, bounds: FloatArray) -> tuple[bool, str]:
    """Gradient search that begins, where there are many rows, at the end of the same search with a third of them.

    An evaluation with a third of the rows costs 1/27, so that the way from a distant start is nearly free. It also tells the
    curvature, which grows with the rows. Where the few rows lead to a bound, or to no value at all, the search with all rows
    begins at ``start``.
    """
    coarse = objective.thinned()
    if coarse is None:
        return l_bfgs_b(objective, start, bounds)
    try:
        coarse_to_fine(coarse, start, bounds)
    except KeyboardInterrupt:
        if coarse.best is not None:
            objective(coarse.best[0])  # what the few rows have found is kept
        raise
    if coarse.best is None or np.isclose(coarse.best[0][:, None], bounds).any():
        return l_bfgs_b(objective, start, bounds)
    objective.first_inverse_hessian = inverse_hessian(coarse.path) * coarse.y.size / objective.y.size
    return l_bfgs_b(objective, coarse.best[0], bounds, objective.first_inverse_hessian)


def inverse_hessian(path: Sequence[tuple[FloatArray, FloatArray]], first: FloatArray | None = None) -> FloatArray:
    """What the BFGS formula makes of ``first`` by the steps between these points (θ, gradient), (d, d) and positive definite."""
    d, H = path[0][0].size, first
    for (theta, gradient), (next_theta, next_gradient) in pairwise(path):
        step, change = next_theta - theta, next_gradient - gradient
        product = float(step @ change)
        if product <= 1e-3 * float(np.linalg.norm(step) * np.linalg.norm(change)):
            continue  # no upward curvature there, or only noise
        if H is None:
            H = product / float(change @ change) * np.eye(d)
        V = np.eye(d) - np.outer(step, change) / product
        H = V @ H @ V.T + np.outer(step, step) / product
    if H is None:
        return np.eye(d)
    values, vectors = np.linalg.eigh(H)
    return np.asarray((vectors * np.maximum(values, 1e-6 * values[-1])) @ vectors.T)


def _agree(a: tuple[float, FloatArray], b: tuple[float, FloatArray], ftol: float) -> bool:
    """Whether two evaluations (value, θ) are the same but for noise."""
    return abs(a[0] - b[0]) <= ftol * max(1.0, abs(b[0])) and float(np.abs(a[1] - b[1]).max()) <= SAME_THETA


class _Enough(Exception):
    """What is left to gain is not worth an evaluation."""


def em(objective: Objective, start: FloatArray, bounds: FloatArray) -> tuple[bool, str]:
    """Alternate inference and a maximisation of the bound over θ with q(f) held fixed, as the paper does for VB (section 4.3)."""
    theta, last = start, -np.inf
    for _ in range(EM_ROUNDS):
        value = -objective(theta)[0]
        if abs(value - last) <= EM_TOL * max(1.0, abs(value)):
            return True, "the bound no longer grows"
        last = value
        step = partial(_expected_log_prior, objective, objective.second_moments(theta))
        options = {"maxiter": 20}
        result: Any = minimize(step, theta, jac=True, method="L-BFGS-B", bounds=bounds, options=options)  # type: ignore[call-overload]
        theta = result.x
    return False, f"the bound still grows after {EM_ROUNDS} rounds"


def _expected_log_prior(objective: Objective, moments: FloatArray, theta: FloatArray) -> tuple[float, FloatArray]:
    """−E_q[log N(f | 0, K_θ)] − log prior(θ) and its gradient: ½ Σ_k [tr(K⁻¹ E[f_k f_kᵀ]) + log|K|].

    K itself is factorised here, which needs a jitter.
    """
    kernel = kernels.with_theta(objective.kernel, theta)
    K = kernels.gram(kernel, objective.X)
    shared = K.ndim == 2
    weights = np.empty_like(K)
    value, count = 0.0, objective.n_classes if shared else 1
    for Kk, S, out in zip(K[None] if shared else K, moments, weights[None] if shared else weights, strict=True):
        factor = cho_factor(Kk + _jitter(Kk), lower=True)
        inverse = cho_solve(factor, np.eye(len(Kk)))
        solved = inverse @ S
        value += 0.5 * (float(np.trace(solved)) + 2.0 * count * float(np.log(np.diagonal(factor[0])).sum()))
        out[:] = 0.5 * (count * inverse - solved @ inverse)
        out += _jitter(out)  # the adjoint: the jitter follows K
    log_prior, slope = objective.prior.evaluate(objective.names, theta, objective.units)
    return value - log_prior, contract(kernel, objective.X, 0.5 * (weights + np.swapaxes(weights, -1, -2))) - slope


def _jitter(K: FloatArray) -> FloatArray:
    """A small multiple of tr(K)/n on the diagonal, (n, n); a linear map of K that is its own adjoint."""
    return EM_JITTER * float(np.diagonal(K).mean()) * np.eye(len(K))


def search(objective: Objective, start: FloatArray, bounds: FloatArray, climb: Climb = coarse_to_fine) -> SearchResult:
    """Climb from ``start``; Ctrl-C ends the search and keeps the best point, as scikit-learn's neural networks do."""
    if start.size == 0:
        raise ValueError("the kernel has no free hyperparameter: use optimizer=None")
    try:
        success, message = climb(objective, start, bounds)
    except KeyboardInterrupt:
        if objective.best is None:
            raise  # there is nothing to keep
        warnings.warn("hyperparameter search interrupted by user: the best point so far is used", stacklevel=2)
        success, message = False, INTERRUPTED
    if objective.best is None:
        raise ArithmeticError(
            f"none of {objective.n_evaluations} evaluations of the evidence succeeded, from theta={np.round(start, 3)}: "
            "check the kernel (is it positive definite?) and its starting values"
        )
    theta, value, fit = objective.best
    if success and not fit.converged:  # off the fixed point log Z is no bound: it may be too high
        success, message = False, f"the inference at the best point ended as {fit.status.value}"
    counts = (objective.n_evaluations, objective.n_iterations, objective.n_failures, objective.n_unconverged)
    covariance = inverse_hessian(objective.path, objective.first_inverse_hessian)
    return SearchResult(theta, value, fit, success, message, *counts, covariance)


def search_with_restarts(
    make_objective: Callable[[], Objective],
    start: FloatArray,
    bounds: FloatArray,
    n_restarts: int,
    rng: np.random.Generator,
    n_jobs: int | None,
    climb: Climb = coarse_to_fine,
) -> SearchResult:
    """Best of the search from ``start`` and from ``n_restarts`` random points around it, inside the bounds.

    A single search that ends with a lengthscale at its lower bound is made once more, from longer ones.
    """
    starts = [start]
    for _ in range(n_restarts):
        starts.append(np.clip(start + RESTART_SPREAD * rng.standard_normal(start.size), bounds[:, 0], bounds[:, 1]))
    if n_restarts == 0 or n_jobs in (None, 1):
        results = []
        for s in starts:
            results.append(_attempt(make_objective(), s, bounds, climb))
            if isinstance(results[-1], SearchResult) and results[-1].message == INTERRUPTED:
                break  # one Ctrl-C ends the whole search, not one restart after the other
    else:
        results = Parallel(n_jobs=n_jobs)(delayed(_attempt)(make_objective(), s, bounds, climb) for s in starts)
    found = [r for r in results if isinstance(r, SearchResult)]
    if n_restarts == 0 and found and found[0].message != INTERRUPTED:
        objective = make_objective()
        if (longer := _from_longer(objective.names, start, bounds, found[0].theta)) is not None:
            try:
                again = _attempt(objective, longer, bounds, climb)
            except KeyboardInterrupt:  # before it had anything: the first search is whole
                warnings.warn("second hyperparameter search interrupted by user: the first one's result is used", stacklevel=2)
            else:
                found += [again] if isinstance(again, SearchResult) else []
    if not found:
        raise results[0]  # type: ignore[misc]
    return max(found, key=lambda r: r.objective)


def _from_longer(names: Sequence[str], start: FloatArray, bounds: FloatArray, found: FloatArray) -> FloatArray | None:
    """Where to begin again when a lengthscale was found at its lower bound, √(their number) times those of ``start``; else None.

    Columns are then told apart value by value, and a hill on which fewer of them matter may be higher.
    """
    scales = np.array(["length_scale" in name for name in names])
    if not np.any(np.isclose(found, bounds[:, 0]) & scales):
        return None
    variances = jacobian_power(tuple(names)) == 0.5
    factor = max(LONGER, math.sqrt(scales.sum()))
    return np.clip(start + scales * math.log(factor) + variances * math.log(MORE_VARIANCE), *bounds.T)


def _attempt(
    objective: Objective, start: FloatArray, bounds: FloatArray, climb: Climb
) -> SearchResult | ArithmeticError:
    try:
        return search(objective, start, bounds, climb)
    except ArithmeticError as error:
        return error
