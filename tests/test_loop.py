"""The fixed-point loop on small made-up maps, and its contract as every method keeps it."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from nestgp import kernels, predict
from nestgp.inference import Fit, Inference, Iteration, NestedEP, Status, nested_ep
from nestgp.inference.loop import (
    AdaptiveMixing,
    Evaluation,
    FixedDamping,
    InvalidStateError,
    _is_handed_over,
    find_fixed_point,
    find_from,
    make_mixer,
)
from nestgp.posterior import ProcessPosterior
from tests.oracles._types import Array
from tests.problems import METHODS, PROBLEMS, clusters, problem, rbf


class LinearMap:
    """F(x) = A x + b; residual |F(x) − x|; invalid where ``forbidden(x)``. Remembers the last x evaluated."""

    def __init__(self, A: Array, b: Array, forbidden: Any = None) -> None:
        self.A, self.b, self.forbidden = A, b, forbidden
        self.state: Array = np.full_like(b, np.nan)
        self.calls = 0

    def evaluate(self, x: Array) -> Evaluation:
        self.calls += 1
        if self.forbidden is not None and self.forbidden(x):
            raise InvalidStateError("forbidden")
        self.state = x.copy()
        target = self.A @ x + self.b
        return Evaluation(target, np.ones_like(x), float(np.abs(target - x).max()), -float(x @ x))

    def project(self, x: Array) -> Array:
        return x

    @property
    def solution(self) -> Array:
        return np.linalg.solve(np.eye(len(self.b)) - self.A, self.b)


def rotation(radius: float) -> Array:
    """Eigenvalues radius·exp(±i): an iteration that spirals."""
    return radius * np.array([[np.cos(1.0), -np.sin(1.0)], [np.sin(1.0), np.cos(1.0)]])


MAPS = {
    "contraction": np.diag([0.9, 0.2, -0.3]),
    "oscillation": np.diag([-1.5, -0.9, 0.5]),
    "spiral": np.block([[rotation(1.1), np.zeros((2, 1))], [np.zeros((1, 2)), np.full((1, 1), 0.5)]]),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("damping", ["adaptive", 0.3])
def test_the_fixed_point_is_found(name: str, damping: float | str) -> None:
    problem_ = LinearMap(MAPS[name], np.array([1.0, -2.0, 0.5]))
    outcome = find_fixed_point(problem_, np.zeros(3), make_mixer(damping), 2000, 1e-10)
    assert outcome is not None
    assert outcome.status is Status.CONVERGED
    assert_allclose(outcome.x, problem_.solution, atol=1e-8)
    assert_array_equal(problem_.state, outcome.x)
    assert len(outcome.history) == problem_.calls
    assert [row.iteration for row in outcome.history] == list(range(1, len(outcome.history) + 1))


def test_mixing_is_faster_than_damping_near_the_fixed_point() -> None:
    b = np.array([1e-3, -2e-3, 5e-4])
    counts = []
    for damping in ("adaptive", 0.8):
        outcome = find_fixed_point(
            LinearMap(MAPS["contraction"], b), np.zeros(3), make_mixer(damping), 2000, 1e-12
        )
        assert outcome is not None
        counts.append(len(outcome.history))
    assert counts[0] <= 12  # a linear map in three dimensions is solved by four differences
    assert counts[1] > 100


def test_an_undamped_oscillation_ends_with_the_best_state_and_says_so() -> None:
    problem_ = LinearMap(MAPS["oscillation"], np.array([1.0, -2.0, 0.5]))
    outcome = find_fixed_point(problem_, np.zeros(3), FixedDamping(1.0), 40, 1e-10)
    assert outcome is not None
    assert outcome.status is Status.MAX_ITERATIONS
    assert len(outcome.history) == 40
    residuals = [row.residual for row in outcome.history]
    assert outcome.evaluation.residual == min(residuals) < residuals[-1]
    assert_array_equal(
        problem_.state, outcome.x
    )  # re-evaluated: the problem holds the state that is returned


@pytest.mark.parametrize("damping", ["adaptive", 0.9])
def test_an_invalid_state_is_backed_out_of(damping: float | str) -> None:
    # The fixed point is at 10; a first step beyond 5 is refused, shorter ones are not.
    problem_ = LinearMap(
        np.zeros((1, 1)), np.array([10.0]), forbidden=lambda x: bool(x[0] > 5) and problem_.calls == 2
    )
    outcome = find_fixed_point(problem_, np.zeros(1), make_mixer(damping), 500, 1e-8)
    assert outcome is not None
    assert outcome.status is Status.CONVERGED
    refused = outcome.history[1]
    assert np.isnan(refused.log_evidence)
    assert np.isinf(refused.residual)
    assert outcome.history[2].damping < refused.damping
    assert outcome.x[0] == pytest.approx(10.0, abs=1e-7)


@pytest.mark.parametrize("damping", ["adaptive", 0.9])
def test_when_every_step_is_invalid_it_has_diverged(damping: float | str) -> None:
    start = np.ones(2)
    problem_ = LinearMap(np.zeros((2, 2)), np.array([3.0, 3.0]), forbidden=lambda x: bool((x != 1.0).any()))
    outcome = find_fixed_point(problem_, start, make_mixer(damping), 200, 1e-8)
    assert outcome is not None
    assert outcome.status is Status.DIVERGED
    assert_array_equal(outcome.x, start)
    assert_array_equal(problem_.state, start)
    assert len(outcome.history) < 20


@pytest.mark.parametrize("mixer", [FixedDamping(0.5), AdaptiveMixing()])
def test_a_start_that_is_invalid_gives_nothing(mixer: FixedDamping | AdaptiveMixing) -> None:
    problem_ = LinearMap(np.eye(1), np.ones(1), forbidden=lambda x: True)
    assert find_fixed_point(problem_, np.zeros(1), mixer, 50, 1e-8) is None


def test_a_start_that_diverged_counts_in_the_history() -> None:
    # half a step at a time: from 0 none is valid, from 1 all are
    problem_: Any = LinearMap(np.zeros((1, 1)), np.array([3.0]), forbidden=lambda x: bool(0.0 < x[0] < 1.0 or x[0] == 1.5))
    outcome = find_from([np.zeros(1), np.ones(1)], problem_, partial(make_mixer, 0.5), 100, 1e-8)
    assert outcome is not None
    assert outcome.status is Status.CONVERGED
    assert outcome.x[0] == pytest.approx(3.0)
    assert len(outcome.history) == problem_.calls - 1  # one call brought back the state of 0
    assert [row.iteration for row in outcome.history] == list(range(1, len(outcome.history) + 1))
    assert sum(np.isinf(row.residual) for row in outcome.history) > 5


def test_a_residual_that_is_not_a_number_is_an_invalid_state() -> None:
    class Undefined(LinearMap):
        def evaluate(self, x: Array) -> Evaluation:
            found = super().evaluate(x)
            return dataclasses.replace(found, residual=np.nan) if x[0] > 5 and self.calls == 2 else found

    outcome = find_fixed_point(Undefined(np.zeros((1, 1)), np.array([10.0])), np.zeros(1), make_mixer(1.0), 100, 1e-8)
    assert outcome is not None
    assert outcome.status is Status.CONVERGED
    assert np.isinf(outcome.history[1].residual)


def test_a_small_damped_step_is_not_convergence() -> None:
    problem_ = LinearMap(np.zeros((1, 1)), np.array([1.0]))
    outcome = find_fixed_point(problem_, np.zeros(1), FixedDamping(1e-6), 10, 1e-3)
    assert outcome is not None
    assert outcome.status is Status.MAX_ITERATIONS
    assert outcome.evaluation.residual > 0.99


@pytest.mark.parametrize("damping", [0.0, -0.1, 1.5, "fast", np.nan])
def test_bad_damping_is_named(damping: Any) -> None:
    with pytest.raises(ValueError, match=r"damping=.*use 'adaptive' or e\.g\. 0\.8"):
        make_mixer(damping)


# --- what every method does with the loop ---

METHODS_BY_NAME = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
PROBLEMS_BY_NAME = pytest.mark.parametrize("name", PROBLEMS)


def check_complete(fit: Fit, n: int, c: int, shared: bool) -> None:
    """A result with every number in it, whatever its status."""
    assert isinstance(fit.status, Status)
    assert fit.status.advice
    assert np.isfinite(fit.log_evidence)
    assert fit.posterior.mean.shape == (n, c)
    assert np.isfinite(fit.posterior.mean).all()
    assert np.isfinite(fit.posterior.covariance).all()
    assert fit.evidence_grad.shape == ((n, n) if shared else (c, n, n))
    assert np.isfinite(fit.evidence_grad).all()
    mean, cov = fit.cavities()
    assert np.isfinite(mean).all()
    assert np.isfinite(cov).all()


@PROBLEMS_BY_NAME
@METHODS_BY_NAME
def test_convergence_is_what_the_residual_says(method: Inference, name: str) -> None:
    p = problem(name)
    fit = method.infer(*p.inputs())
    check_complete(fit, len(p.y), p.n_classes, p.K.ndim == 2)
    assert fit.n_iter == len(fit.history)
    assert fit.residual == min(row.residual for row in fit.history)
    tol = method.tol  # type: ignore[attr-defined]
    assert fit.converged == (fit.residual <= tol)
    # At a tolerance near rounding a schedule may honestly stop short of it, never far.
    assert fit.residual <= 10 * tol
    assert fit.log_evidence == next(row.log_evidence for row in fit.history if row.residual == fit.residual)


@pytest.mark.parametrize("max_iter", [1, 2, 3])
@METHODS_BY_NAME
def test_a_run_cut_short_is_complete_and_honest(method: Inference, max_iter: int) -> None:
    for name in ("toy", "per class", "hard"):
        p = problem(name)
        fit = dataclasses.replace(method, max_iter=max_iter).infer(*p.inputs())  # type: ignore[type-var]
        assert fit.status is Status.MAX_ITERATIONS
        assert fit.n_iter == max_iter
        check_complete(fit, len(p.y), p.n_classes, p.K.ndim == 2)


@METHODS_BY_NAME
def test_tol_zero_runs_exactly_to_max_iter(method: Inference) -> None:
    p = problem("tiny")
    fit = dataclasses.replace(method, tol=0.0, max_iter=57).infer(*p.inputs())  # type: ignore[type-var]
    assert fit.status is Status.MAX_ITERATIONS
    assert fit.n_iter == 57
    assert fit.residual == min(row.residual for row in fit.history)


@METHODS_BY_NAME
def test_a_tolerance_below_rounding_returns_the_best_state(method: Inference) -> None:
    p = problem("overlapping")
    fit = dataclasses.replace(method, tol=1e-300, max_iter=80).infer(*p.inputs())  # type: ignore[type-var]
    residuals = [row.residual for row in fit.history]
    assert fit.residual == min(residuals)
    assert fit.residual <= 1e-8
    best = fit.history[int(np.argmin(residuals))]
    assert fit.log_evidence == best.log_evidence
    # Posterior and evidence belong to that state: from its sites, the first evaluation finds both again.
    again = dataclasses.replace(method, max_iter=1).infer(*p.inputs(), init=fit)  # type: ignore[type-var]
    assert again.log_evidence == pytest.approx(fit.log_evidence, abs=1e-13)
    assert_allclose(again.posterior.mean, fit.posterior.mean, rtol=0, atol=1e-13)
    assert_allclose(again.evidence_grad, fit.evidence_grad, rtol=0, atol=1e-13)


@PROBLEMS_BY_NAME
@METHODS_BY_NAME
def test_a_warm_start_ends_where_the_cold_one_does_and_sooner(method: Inference, name: str) -> None:
    p = problem(name)
    K, y, c = p.inputs()
    cold = method.infer(K, y, c)
    near = method.infer(1.02 * K, y, c)
    warm = method.infer(K, y, c, init=near)
    again = method.infer(K, y, c, init=cold)
    assert warm.log_evidence == pytest.approx(cold.log_evidence, abs=1e-8)
    scale = np.sqrt(np.abs(cold.posterior.covariance).max())
    assert_allclose(warm.posterior.mean, cold.posterior.mean, rtol=0, atol=1e-7 * scale)
    if cold.converged and warm.converged:
        looks_twice = getattr(method, "precision", "double") == "mixed"  # in single precision, then in double
        by_rounding = np.finfo(float).eps * np.abs(K).sum(axis=-1).max() > method.tol  # type: ignore[attr-defined]
        may_save_nothing = looks_twice or cold.n_iter < 8 or by_rounding  # down to rounding, either may be the sooner
        in_vain = 3 if looks_twice else 0  # iterations without a lower residual before single precision gives up
        assert warm.n_iter <= cold.n_iter + in_vain - (not may_save_nothing)
        assert again.n_iter == 1 + looks_twice


@pytest.mark.parametrize("tol", [3e-2, 1e-3, 1e-6])
@PROBLEMS_BY_NAME
def test_single_precision_leaves_fewer_iterations_to_double(name: str, tol: float, monkeypatch: pytest.MonkeyPatch) -> None:
    K, y, c = problem(name).inputs()
    double, mixed = (NestedEP(precision=precision, tol=tol) for precision in ("double", "mixed"))
    sizes = sizes_of_evaluations(monkeypatch)
    alone = double.infer(K, y, c)
    first = sizes.copy()
    sizes.clear()
    fit = mixed.infer(K, y, c)
    assert set(first) == {8}
    assert sizes == sorted(sizes)  # single precision first
    assert sizes.count(8) < max(2, len(first))
    assert fit.converged
    assert fit.residual <= tol
    assert fit.n_iter == len(sizes)
    assert fit.log_evidence == pytest.approx(alone.log_evidence, abs=1e-7 + len(y) * tol**2)


def sizes_of_evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the bytes of a number in the factors of every state that nested EP evaluates from now on."""
    sizes: list[int] = []
    evaluate = nested_ep._State.evaluate

    def counted(state: nested_ep._State, x: Array) -> Evaluation:
        sizes.append(state.blocks.B.dtype.itemsize)
        return evaluate(state, x)

    monkeypatch.setattr(nested_ep._State, "evaluate", counted)
    return sizes


@pytest.mark.parametrize(("rounding", "expected"), [(nested_ep.SEARCH_ROUNDING, {4}), (0.0, {4, 8})])
@PROBLEMS_BY_NAME
def test_an_evaluation_of_a_search_in_mixed_precision_is_that_in_double(
    name: str, rounding: float, expected: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    K, y, c = problem(name).inputs()
    monkeypatch.setattr(nested_ep, "SEARCH_ROUNDING", rounding)
    sizes = sizes_of_evaluations(monkeypatch)
    fit = NestedEP(precision="mixed").infer_for_search(K, y, c, 1e-2)
    mixed = fit.evidence_grad
    assert set(sizes) == expected  # where rounding would matter, the last iterations are in double
    if expected == {4}:
        with pytest.raises(ValueError, match="released: infer again"):
            fit.posterior.at(K, np.diagonal(K, axis1=-2, axis2=-1))
    assert fit.n_iter == len(sizes)
    assert [row.iteration for row in fit.history] == list(range(1, fit.n_iter + 1))
    sizes.clear()
    alone = NestedEP().infer_for_search(K, y, c, 1e-2)
    assert set(sizes) == {8}
    for one in (fit, alone):
        assert one.converged
        assert one.residual <= 1e-2
    # of the two, one may be an iteration further
    assert fit.log_evidence == pytest.approx(alone.log_evidence, abs=rounding + len(y) * 1e-4)
    exact = NestedEP().infer(K, y, c).evidence_grad
    assert_allclose(mixed, exact, rtol=0, atol=2 * np.abs(alone.evidence_grad - exact).max() + 1e-4 * np.abs(exact).max())


def test_an_evaluation_of_a_search_stays_in_double_where_rounding_would_leave_more_than_its_tolerance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    K, y, c = problem("overlapping").inputs()
    monkeypatch.delattr(NestedEP, "_infer_in_single_precision")
    fit = NestedEP(precision="mixed").infer_for_search(K, y, c, 1e-9)
    assert fit.residual <= 1e-9
    assert fit.posterior.blocks.predict(K, np.diagonal(K)).shape == (len(y), c, c)


@pytest.mark.parametrize("max_iter", [1, 2, 4])
def test_an_evaluation_of_a_search_that_runs_out_of_iterations_counts_them_all(
    max_iter: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    K, y, c = problem("overlapping").inputs()
    sizes = sizes_of_evaluations(monkeypatch)
    fit = NestedEP(precision="mixed", max_iter=max_iter).infer_for_search(K, y, c, 1e-5)
    assert fit.status is Status.MAX_ITERATIONS
    evaluations = sizes[:-1] if fit.residual < fit.history[-1].residual else sizes  # the best state is made again
    assert len(evaluations) == fit.n_iter == max_iter
    assert sizes[-1] == 8
    assert fit.posterior.blocks.predict(K, np.diagonal(K)).shape == (len(y), c, c)


def test_an_evaluation_of_a_search_goes_on_in_double_from_where_single_precision_ran_out_of_iterations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    K, y, c = problem("overlapping").inputs()
    sizes = sizes_of_evaluations(monkeypatch)
    fit = NestedEP(precision="mixed", max_iter=6).infer_for_search(K, y, c, 1e-5)
    start = next(row.residual for row, size in zip(fit.history, sizes, strict=False) if size == 8)
    assert start < 0.1 * fit.history[0].residual


def test_an_evaluation_of_a_search_says_that_a_kernel_is_not_positive_definite() -> None:
    K = np.array([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])
    fit = NestedEP(precision="mixed").infer_for_search(K, np.array([0, 1, 2]), 3, 1e-2)
    assert fit.status is Status.NOT_POSITIVE_DEFINITE


@pytest.mark.parametrize(
    ("residuals", "tol", "handed_over"),
    [
        ((2.0, 2e-1, 2e-2), 1e-6, False),  # 2e-3 next; from 2e-4, one iteration in double less is left
        ((1.0, 1e-1, 1e-2, 1e-3, 0.9e-4), 1e-6, True),  # 9e-6 next, what rounding leaves anyway
        ((1.2e-1, 6e-3, 3e-4), 1e-6, True),  # 1.5e-5 next, from which one iteration is left as from what rounding leaves
        ((1e-2, 1e-4, 1e-6), 1e-6, True),  # there
        ((1.0, 1e-1, 1e-2), 1e-2, True),  # 1e-3 next, less than asked for
        ((1.0, 0.12), 1e-3, False),  # the same with a loose tolerance
        ((5e-5,), 1e-6, True),  # a warm start that may be as good as single precision can tell
        ((5e-3,), 1e-6, False),
        ((1e-3, 6e-5, 4e-5), 1e-6, True),  # no progress where rounding may be the reason
        ((1e-1, 6e-2, 4e-2), 1e-6, False),  # or slow, far above it
        ((np.inf, 1e-1), 1e-6, False),  # after a state that was not valid
        ((np.inf, 1.0), 3e-2, False),  # which says nothing of the rate
        ((np.inf,), 1e-6, False),
        ((1.0,), np.inf, True),
    ],
)
def test_single_precision_goes_on_while_that_saves_iterations_in_double(
    residuals: tuple[float, ...], tol: float, handed_over: bool
) -> None:
    history = [Iteration(i, 0.0, residual, 1.0) for i, residual in enumerate(residuals, 1)]
    assert _is_handed_over(history, tol, usual=1e-5, most=1e-4) is handed_over


@METHODS_BY_NAME
def test_a_kernel_that_is_not_positive_definite_has_no_result_but_a_status(method: Inference) -> None:
    K = np.array([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])
    fit = method.infer(K, np.array([0, 1, 2]), 3)
    assert fit.status is Status.NOT_POSITIVE_DEFINITE
    assert "WhiteKernel" in fit.status.advice
    assert np.isnan(fit.log_evidence)
    assert np.isnan(fit.posterior.mean).all()
    assert not fit.converged
    with pytest.raises(ValueError, match="not_positive_definite"):
        _ = fit.evidence_grad
    with pytest.raises(ValueError, match="not_positive_definite"):
        fit.cavities()


@METHODS_BY_NAME
def test_init_of_another_problem_is_refused(method: Inference) -> None:
    other = method.infer(*problem("tiny").inputs())
    with pytest.raises(ValueError, match="init has sites of shape"):
        method.infer(*problem("toy").inputs(), init=other)


@METHODS_BY_NAME
def test_a_result_cannot_be_changed(method: Inference) -> None:
    fit = method.infer(*problem("tiny").inputs())
    with pytest.raises(dataclasses.FrozenInstanceError):
        fit.log_evidence = 0.0  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        fit.sites[...] = 0.0


@pytest.mark.parametrize(
    ("K", "y", "c", "message"),
    [
        (np.eye(3), np.array([0, 1]), 2, "K has shape"),
        (np.ones((4, 2, 2)), np.array([0, 1]), 2, "K has shape"),
        (np.eye(2), np.array([0.0, 1.0]), 2, "integer class codes"),
        (np.eye(2), np.array([[0], [1]]), 2, "integer class codes"),
        (np.eye(2), np.array([0, 2]), 2, "labels from 0 to 2"),
        (np.eye(2), np.array([-1, 1]), 2, "labels from -1 to 1"),
        (np.eye(2), np.array([0, 0]), 1, "at least 2 classes"),
        (np.empty((0, 0)), np.array([], dtype=np.int64), 2, "no labels"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), np.array([0, 1]), 2, "NaN or infinity"),
    ],
)
@METHODS_BY_NAME
def test_bad_problems_are_named(method: Inference, K: Array, y: Array, c: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        method.infer(K, y, c)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_iter": 0}, "max_iter=0: use an integer"),
        ({"max_iter": 2.5}, r"max_iter=2\.5"),
        ({"tol": -1.0}, r"tol=-1\.0: use a number >= 0"),
        ({"tol": np.nan}, "tol=nan"),
    ],
)
@METHODS_BY_NAME
def test_bad_options_are_named(method: Inference, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(method, **options).infer(*problem("tiny").inputs())  # type: ignore[type-var]


# --- the trap ---


def test_fixed_damping_can_wander_for_ever_and_says_so() -> None:
    p = clusters(8.0, 3.0)
    wandering = NestedEP(damping=0.8, max_iter=300).infer(*p.inputs())
    adaptive = NestedEP().infer(*p.inputs())
    slow = NestedEP(damping=0.5, max_iter=600).infer(*p.inputs())
    assert wandering.status is Status.MAX_ITERATIONS
    assert wandering.n_iter == 300
    check_complete(wandering, 36, 3, shared=True)
    assert wandering.residual == min(row.residual for row in wandering.history) > 1e-2
    # Nothing but the residual gives it away: the evidence hardly moves, at the wrong value.
    last = [row.log_evidence for row in wandering.history[-2:]]
    assert abs(last[1] - last[0]) < 1.0
    assert abs(wandering.log_evidence - adaptive.log_evidence) > 0.1
    assert adaptive.status is Status.CONVERGED
    assert adaptive.n_iter <= 60
    assert slow.status is Status.CONVERGED
    assert slow.log_evidence == pytest.approx(adaptive.log_evidence, abs=1e-6)


# --- extremes ---

EXTREME_DATA = {
    "overlapping": (problem("overlapping").X, problem("overlapping").y, 4),
    "clusters": (clusters(0.0, 0.0).X, clusters(0.0, 0.0).y, 3),
    "identical rows": (np.ones((12, 2)), np.arange(12) % 3, 3),
    "two rows": (np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([0, 1]), 2),
    "two rows of four classes": (np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([0, 3]), 4),
}


@pytest.mark.parametrize("log_s2", [-10.0, 0.0, 8.0, 12.0, 16.0, 20.0])
@pytest.mark.parametrize("data", EXTREME_DATA)
def test_extreme_hyperparameters_end_in_probabilities_and_an_honest_status(data: str, log_s2: float) -> None:
    X, y, c = EXTREME_DATA[data]
    X_new = np.random.default_rng(3).standard_normal((15, 2))
    for length in (1e-3, 1e-1, 1.0, 30.0, 1e3, 1e5):
        kernel = rbf(log_s2, np.log(length))
        fit = NestedEP().infer(kernels.gram(kernel, X), y, c)
        check_complete(fit, len(y), c, shared=True)
        assert fit.converged == (fit.residual <= 1e-6)
        assert fit.residual <= 1e-5  # log σ² = 20 leaves K eight digits: an honest stop near 1e-6 is allowed
        latent = ProcessPosterior(kernel, X, fit.posterior).latent(X_new)
        ep, exact = (np.exp(predict.class_probabilities(*latent, rule=rule)) for rule in ("ep", "exact"))
        for p in (ep, exact):
            assert np.isfinite(p).all()
            assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
        assert_allclose(ep, exact, atol=0.02)  # inner EP's own error, measured up to 0.015


def test_no_signal_is_the_uniform_distribution() -> None:
    X, y, c = EXTREME_DATA["overlapping"]
    fit = NestedEP().infer(1e-12 * np.eye(len(X)), y, c)
    assert fit.status is Status.CONVERGED
    # Inner EP's log Z of a uniform class, n times; the exact value is −n log c.
    assert fit.log_evidence == pytest.approx(-len(y) * np.log(c), rel=0.01)
