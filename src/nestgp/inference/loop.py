"""One loop for every fixed-point method: damping, acceleration, rolling back, status and history.

A method supplies a map F on its site parameters x, the loop finds x = F(x). *Converged* is said of the undamped residual that
the method recomputes at x, never of a small step: a damped step can be small far away from any fixed point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from nestgp.arrays import FloatArray
from nestgp.inference.result import Fit, Iteration, Status
from nestgp.lapack import NotPositiveDefiniteError
from nestgp.linalg import KernelStack
from nestgp.threads import single_threaded_if_small

_SMALLEST_DAMPING = 1e-3
#: Weighted rms of F(x) − x below which steps are extrapolated, unless a method says otherwise.
NEAR = 0.05
#: Rounding in single precision leaves a residual of so many ε |K| (|K|: largest row sum of K), as a rule and at most (measured),
ROUNDING = (0.0008, 0.02)
#: but not less than this, however small K is.
LEAST_ROUNDING = (3e-7, 1e-6)
#: Where rounding may leave more than this, single precision would only lead astray.
ROUGH_LIMIT = 0.01
#: What one iteration leaves of a residual is foreseen to be what the last two left, within these limits; of the first this.
RATES, FIRST_RATE = (0.02, 0.9), 0.1
#: Stands for a tolerance of zero.
TINY = 1e-12


class InvalidStateError(ArithmeticError):
    """The sites describe no proper distribution, e.g. a cavity of negative variance."""


@dataclass(frozen=True)
class Evaluation:
    """What a method says of one x.

    Attributes
    ----------
    target : F(x), undamped, shaped like x.
    weight : shaped like x; makes F(x) − x comparable between entries (in units of marginal standard deviations).
    residual : the undamped mismatch that decides on convergence.
    log_evidence : at x.
    """

    target: FloatArray
    weight: FloatArray
    residual: float
    log_evidence: float


class FixedPointProblem(Protocol):
    """A method's own part. After ``evaluate(x)`` it holds the posterior that belongs to x and to no other."""

    def evaluate(self, x: FloatArray) -> Evaluation: ...

    def project(self, x: FloatArray) -> FloatArray: ...


class Mixer(Protocol):
    """Chooses the next x from the last evaluations."""

    damping: float

    def propose(self, x: FloatArray, evaluation: Evaluation) -> FloatArray: ...

    def back_off(self) -> FloatArray | None: ...


class FixedDamping:
    """x + δ (F(x) − x), the paper's scheme; an invalid state halves δ for the steps to come."""

    def __init__(self, damping: float) -> None:
        self.damping = damping
        self._last: tuple[FloatArray, FloatArray] | None = None

    def propose(self, x: FloatArray, evaluation: Evaluation) -> FloatArray:
        """The damped step from x."""
        self._last = (x, evaluation.target - x)
        return x + self.damping * self._last[1]

    def back_off(self) -> FloatArray | None:
        """A shorter step from the last valid x; None when there is none or δ is used up."""
        self.damping *= 0.5
        if self._last is None or self.damping < _SMALLEST_DAMPING:
            return None
        return self._last[0] + self.damping * self._last[1]


class AdaptiveMixing:
    """Damping that follows the residual, and Anderson mixing once the iteration is near a fixed point.

    Far away, from δ = ``first`` on: with t = ⟨f_k, f_{k−1}⟩/|f_{k−1}|² (f = F(x) − x, weighted), t < 0 means that the step
    overshot, and δ/(1 − t) is the step that would have hit; otherwise δ grows by a tenth, or shrinks by a fifth if f has grown.
    Near (rms f below ``near``): x is extrapolated so that the last few differences of f cancel f. A residual that doubles drops
    that memory and shortens the step.
    """

    def __init__(self, first: float = 0.8, window: int = 6, near: float = NEAR) -> None:
        self.damping = first
        self.window = window
        self.near = near
        self._x: FloatArray | None = None
        self._f: FloatArray = np.empty(0)
        self._norm = np.inf
        self._dx: list[FloatArray] = []
        self._df: list[FloatArray] = []
        self._rest = 0

    def propose(self, x: FloatArray, evaluation: Evaluation) -> FloatArray:
        """The damped or extrapolated step from x."""
        f, weight = evaluation.target - x, evaluation.weight
        norm = float(np.sqrt(np.mean((weight * f) ** 2)))
        if self._x is not None:
            self._learn(x, f, weight, norm)
        if norm > self.near:
            self._forget()
        self._x, self._f, self._norm = x, f, norm
        if self._rest > 0:
            self._rest -= 1
            return x + self.damping * f
        return x + self._extrapolated(f, weight)

    def _learn(self, x: FloatArray, f: FloatArray, weight: FloatArray, norm: float) -> None:
        assert self._x is not None
        if not self._dx:
            previous = weight * self._f
            t = float(np.vdot(weight * f, previous)) / max(float(np.vdot(previous, previous)), 1e-300)
            if t < 0:
                self.damping = max(self.damping / (1.0 - t), 0.05)
            else:  # complex eigenvalues spiral outwards with t > 0: grow only while the residual falls
                self.damping = min(1.0, 1.1 * self.damping) if norm <= self._norm else max(0.8 * self.damping, 0.05)
        if norm > 2.0 * self._norm:
            self._forget()
            self._rest = 2
            self.damping = max(0.7 * self.damping, 0.05)
            return
        self._dx.append(x - self._x)
        self._df.append(f - self._f)
        del self._dx[: -self.window], self._df[: -self.window]

    def _extrapolated(self, f: FloatArray, weight: FloatArray) -> FloatArray:
        step = self.damping * f
        if not self._dx:
            return step
        columns = np.stack([(weight * d).ravel() for d in self._df], axis=1)
        gamma = np.linalg.lstsq(columns, (weight * f).ravel(), rcond=1e-8)[0]
        for g, dx, df in zip(gamma, self._dx, self._df, strict=True):
            step -= g * (dx + self.damping * df)
        return step

    def _forget(self) -> None:
        self._dx, self._df = [], []

    def back_off(self) -> FloatArray | None:
        """A plain, shorter step from the last valid x; None when there is none or δ is used up."""
        self.damping *= 0.5
        self._forget()
        self._rest = 3
        if self._x is None or self.damping < _SMALLEST_DAMPING:
            return None
        return self._x + self.damping * self._f


@dataclass(frozen=True)
class Outcome:
    """Where the loop stopped: the best x met, its evaluation, and the way there."""

    x: FloatArray
    evaluation: Evaluation
    status: Status
    history: tuple[Iteration, ...]


def find_fixed_point(
    problem: FixedPointProblem,
    x: FloatArray,
    mixer: Mixer,
    max_iter: int,
    tol: float,
    patience: int | None = None,
    enough: Callable[[list[Iteration]], bool] | None = None,
) -> Outcome | None:
    """Iterate until the undamped residual is at most ``tol``, ``max_iter`` evaluations are used, or no step is valid.

    ``patience`` : give up, as after ``max_iter``, when that many evaluations in a row have not lowered the residual.
    ``enough`` : decides in place of ``tol`` from the way so far. The x returned is then the last, and what the problem holds is
    left open. Without it, on return the problem holds the state of the x returned: the one of smallest residual.
    None: not even ``x`` was valid.
    """
    history: list[Iteration] = []
    best: tuple[FloatArray, Evaluation] | None = None
    status = Status.MAX_ITERATIONS
    since_best = 0
    current = x
    while len(history) < max_iter:
        try:
            evaluation = problem.evaluate(current)
            if np.isnan(evaluation.residual):
                raise InvalidStateError("the residual is not a number")
        except (InvalidStateError, NotPositiveDefiniteError):
            history.append(Iteration(len(history) + 1, np.nan, np.inf, mixer.damping))
            retry = mixer.back_off()
            if retry is None:
                status = Status.DIVERGED
                break
            current = problem.project(retry)
            continue
        x = current
        history.append(Iteration(len(history) + 1, evaluation.log_evidence, evaluation.residual, mixer.damping))
        if best is None or evaluation.residual < best[1].residual:
            best = (x, evaluation)
            since_best = 0
        since_best += 1
        if enough(history) if enough is not None else evaluation.residual <= tol and tol > 0:
            best = (x, evaluation)
            status = Status.CONVERGED
            break
        if patience is not None and since_best > patience:
            break
        current = problem.project(mixer.propose(x, evaluation))
    if best is None:
        return None
    if enough is None and not (history[-1].residual == best[1].residual and x is best[0]):
        problem.evaluate(best[0])
    return Outcome(best[0], best[1], status, tuple(history))


def make_mixer(damping: float | str, **adaptive: Any) -> Mixer:
    """The mixer that ``damping`` names: "adaptive" (with options of :class:`AdaptiveMixing`), or a number in (0, 1]."""
    if damping == "adaptive":
        return AdaptiveMixing(**adaptive)
    if not isinstance(damping, float | int | np.number) or not 0.0 < damping <= 1.0:
        raise ValueError(f"damping={damping!r} is neither 'adaptive' nor a number in (0, 1]: use 'adaptive' or e.g. 0.8")
    return FixedDamping(float(damping))


class FixedPointMethod(FixedPointProblem, Protocol):
    """A fixed-point problem that knows where to start and how to present its result."""

    @property
    def blocks(self) -> KernelStack: ...

    def starts(self, init: Fit | None) -> list[FloatArray]: ...

    def fit(self, outcome: Outcome) -> Fit: ...

    def failed(self, status: Status) -> Fit: ...


def run(
    method: FixedPointMethod,
    init: Fit | None,
    new_mixer: Callable[[], Mixer],
    max_iter: int,
    tol: float,
    make_rough: Callable[[], FixedPointMethod] | None = None,
    kernel: KernelStack | None = None,
) -> Fit:
    """Check the kernel, iterate from the warm start, or from the cold one if that fails, and return the result.

    ``make_rough`` makes the same problem in lower precision, which goes ahead while the residual is large; ``kernel`` is what to
    check where the method itself holds it in lower precision.
    """
    with single_threaded_if_small(method.blocks.n):  # once for all: every product inside would change the threads and back
        try:
            (kernel or method.blocks).check_kernel()
        except NotPositiveDefiniteError:
            return method.failed(Status.NOT_POSITIVE_DEFINITE)
        outcome = find_from(method.starts(init), method, new_mixer, max_iter, tol, make_rough)
        return method.failed(Status.DIVERGED) if outcome is None else method.fit(outcome)


def find_from(
    starts: list[FloatArray],
    method: FixedPointMethod,
    new_mixer: Callable[[], Mixer],
    max_iter: int,
    tol: float,
    make_rough: Callable[[], FixedPointMethod] | None = None,
) -> Outcome | None:
    """Iterate from the first start that does not diverge, if ``make_rough`` is given in lower precision first."""
    outcome = None
    way: tuple[Iteration, ...] = ()
    if make_rough is not None and max_iter > 1:
        way, better = _go_ahead(method, make_rough, starts[0], new_mixer(), max_iter - 1, tol)
        starts = [*better, *starts]
    for x in starts:
        found = find_fixed_point(method, x, new_mixer(), max_iter - len(way), tol)
        if found is None:
            outcome = None  # the method no longer holds the state of an earlier start
            continue
        way += tuple(row._replace(iteration=row.iteration + len(way)) for row in found.history)
        outcome = replace(found, history=way)
        if found.status is not Status.DIVERGED or len(way) >= max_iter:
            break
    return outcome


def _go_ahead(
    method: FixedPointMethod,
    make_rough: Callable[[], FixedPointMethod],
    x: FloatArray,
    mixer: Mixer,
    max_iter: int,
    tol: float,
) -> tuple[tuple[Iteration, ...], list[FloatArray]]:
    """Iterate from x in lower precision: the way, and starting points for the higher one, the best first.

    Nothing of the lower precision is left in memory afterwards.
    """
    usual, most = rounding_in_single_precision(method.blocks.K)
    if most >= ROUGH_LIMIT:
        return (), []
    enough = partial(_is_handed_over, tol=max(tol, TINY), usual=usual, most=most)
    found = find_fixed_point(make_rough(), x, mixer, max_iter, tol, patience=3, enough=enough)
    if found is None:
        return (), []
    moved = len(found.history) > 1 or found.evaluation.residual > max(most, tol)
    if found.status is not Status.CONVERGED or not moved:
        return found.history, [found.x]
    # on from the next x, unless the start was good enough
    return found.history, [method.project(mixer.propose(found.x, found.evaluation)), found.x]


def _is_handed_over(history: list[Iteration], tol: float, usual: float, most: float) -> bool:
    """Whether one more iteration in lower precision would save none in the higher: the residual falls on as it last did, down to
    what rounding leaves (``usual``, at ``most``), and from there in the higher precision."""
    residual = history[-1].residual
    if not tol < residual < math.inf:
        return residual <= tol
    residuals = [row.residual for row in history[-3:] if math.isfinite(row.residual)]
    if residual <= most and (len(residuals) == 1 or residual > 0.5 * residuals[-2]):
        return True  # this may be what rounding leaves
    rate = (residual / residuals[0]) ** (1 / (len(residuals) - 1)) if len(residuals) > 1 else FIRST_RATE
    rate = min(max(rate, RATES[0]), RATES[1])

    def left(start: float) -> int:
        return max(0, math.ceil(math.log(max(start, usual) / tol) / -math.log(rate)))

    return left(residual * rate) <= left(residual * rate * rate)


def rounding_in_single_precision(K: FloatArray) -> tuple[float, float]:
    """The residual that rounding leaves, as a rule and at most."""
    norm = float(np.abs(K).sum(axis=-1).max())  # a bound of |K|, shared or of any class
    usual, most = np.maximum(LEAST_ROUNDING, np.multiply(ROUNDING, np.finfo(np.float32).eps * norm))
    return float(usual), float(most)
