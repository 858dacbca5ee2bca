"""Priors, the search for hyperparameters, and what it does when something goes wrong."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from nestgp import GPClassifier, hyper, kernels
from nestgp.hyper import FlatPrior, HalfStudentT, Objective, make_prior, search, search_with_restarts
from nestgp.inference import Fit, Inference, Laplace, NestedEP, Status
from tests.oracles._types import Array, Labels
from tests.oracles.finite import central_difference
from tests.problems import problem, rbf

NAMES = ["k1__k1__constant_value", "k1__k2__length_scale[0]", "k1__k2__length_scale[1]", "k2__noise_level"]
UNITS = np.array([1.0, 0.3, 20.0, 1.0])


@pytest.fixture
def objective_of() -> Any:
    """A function that makes an objective on the overlapping problem."""
    p = problem("overlapping")

    def make(inference: Inference | None = None, prior: Any = None, kernel: Any = None) -> Objective:
        kernel = rbf(1.0, 0.0) if kernel is None else kernel
        units = np.ones(kernels.theta(kernel).size)
        return Objective(kernel, p.X, p.y, 4, inference or NestedEP(), prior or HalfStudentT(), units)

    return make


BOUNDS = np.log([[1e-3, 1e5], [1e-2, 1e4]])
START = np.array([1.0, 0.0])


# --- priors ---


@pytest.mark.parametrize(("df", "scale"), [(4.0, 10.0), (2.5, 1.0)])
def test_half_student_t_is_scipys_t_on_the_positive_side(df: float, scale: float) -> None:
    theta = np.array([2.0, -1.0, 3.5, -4.0])
    value, _ = HalfStudentT(df, scale).evaluate(NAMES, theta, UNITS)
    # On σ = √constant_value and √noise_level, and on each lengthscale in its unit.
    x = np.array([np.exp(1.0), np.exp(-1.0) / 0.3, np.exp(3.5) / 20.0, np.exp(-2.0)])
    assert value == pytest.approx(np.sum(np.log(2) + stats.t.logpdf(x, df, scale=scale)), abs=1e-12)


def test_the_default_has_the_variance_of_the_paper() -> None:
    prior = HalfStudentT()
    assert prior.scale**2 == 100.0  # "variance equal to one hundred", read as scale²
    assert prior.df == 4.0


def test_prior_gradient_against_differences() -> None:
    theta = np.array([2.0, -1.0, 3.5, -4.0])
    prior = HalfStudentT()
    _, gradient = prior.evaluate(NAMES, theta, UNITS)
    numeric = central_difference(lambda t: prior.evaluate(NAMES, t, UNITS)[0], theta, 1e-2, richardson=True)
    assert_allclose(gradient, numeric, rtol=0, atol=1e-9)
    assert (gradient < 0).all()  # without a Jacobian the density falls from zero


def test_prior_takes_the_names_that_kernels_have() -> None:
    kernel = ConstantKernel(1.0) * RBF([1.0, 2.0]) + WhiteKernel(0.5)
    listed = [kernel, rbf(0.0, 0.0)]
    assert kernels.hyperparameter_names(kernel) == NAMES
    theta = kernels.theta(listed)
    names = kernels.hyperparameter_names(listed)
    value, _ = HalfStudentT().evaluate(names, theta, np.ones(theta.size))
    sigma = [0.5 if "constant" in n or "noise" in n else 1.0 for n in names]
    x = np.exp(theta * sigma)
    assert value == pytest.approx(np.sum(np.log(2) + stats.t.logpdf(x, 4, scale=10)), abs=1e-12)


def test_no_prior_is_flat_and_names_are_checked() -> None:
    value, gradient = make_prior(None).evaluate(NAMES, np.ones(4), UNITS)
    assert value == 0.0
    assert_allclose(gradient, np.zeros(4))
    assert make_prior("half-student-t") == HalfStudentT()
    with pytest.raises(ValueError, match="prior='gamma': use 'half-student-t', None"):
        make_prior("gamma")
    with pytest.raises(TypeError, match=r"prior=3 has no method evaluate"):
        make_prior(3)


# --- objective ---


@pytest.mark.parametrize("prior", [HalfStudentT(), FlatPrior()])
def test_objective_is_minus_evidence_minus_prior(prior: Any) -> None:
    p = problem("overlapping")
    kernel = rbf(1.0, 0.0)
    inference = NestedEP(tol=1e-10)
    objective = Objective(kernel, p.X, p.y, 4, inference, prior, np.ones(2))
    objective.tol = inference.tol  # no loosening
    theta = np.array([1.7, -0.4])
    value, gradient = objective(theta)
    log_z = inference.infer(kernels.gram(kernels.with_theta(kernel, theta), p.X), p.y, 4).log_evidence
    log_prior, _ = prior.evaluate(objective.names, theta, np.ones(2))
    assert value == pytest.approx(-log_z - log_prior, abs=1e-9)

    def exact(t: Array) -> float:
        objective.tol = inference.tol
        return objective(t)[0]

    assert_allclose(gradient, central_difference(exact, theta, 2e-3, richardson=True), rtol=0, atol=1e-7)


def test_tolerance_follows_the_gradient_down_and_is_never_looser_than_the_method_allows(objective_of: Any) -> None:
    objective = objective_of(NestedEP(tol=1e-7))
    assert objective.tol == NestedEP.search_tol
    result = search(objective, START, BOUNDS)
    assert hyper.TIGHT_TOL <= objective.tol < NestedEP.search_tol
    tighter = objective_of(Laplace())
    assert tighter.tol == Laplace.search_tol
    tighter(START)
    assert tighter.tol == Laplace.search_tol
    assert result.success


def test_warm_starts_save_iterations(objective_of: Any) -> None:
    warm, cold = objective_of(), objective_of()
    for t in np.linspace(0.0, 0.5, 6):
        warm(START + t)
        cold._recent.clear()
        cold(START + t)
    assert warm.n_iterations < 0.9 * cold.n_iterations


def test_warm_start_is_the_nearest_fit(objective_of: Any) -> None:
    objective = objective_of()
    for t in (0.0, 3.0):
        objective(START + t)
    (_, near), (_, far) = objective._recent
    assert objective._warm_start(START + 0.2) is near
    assert objective._warm_start(START + 2.0) is far


# --- search ---


@pytest.mark.parametrize("steepness", [0.3, 40.0])
def test_the_first_step_is_at_most_one_log_unit_long(steepness: float) -> None:
    tried: list[Array] = []

    def bowl(theta: Array) -> tuple[float, Array]:
        tried.append(theta.copy())
        away = theta - np.array([3.0, -2.0])
        return 0.5 * steepness * float(away @ away), steepness * away

    assert hyper.l_bfgs_b(bowl, START, BOUNDS)[0]  # type: ignore[arg-type]
    assert_allclose(tried[0], START)
    assert np.linalg.norm(tried[1] - START) == pytest.approx(min(1.0, steepness * np.hypot(2.0, 2.0)))
    assert_allclose(tried[-1], [3.0, -2.0], atol=0.05)


@pytest.mark.parametrize("prior", [HalfStudentT(), FlatPrior()])
def test_search_ends_at_a_stationary_point_above_its_start(prior: Any, objective_of: Any) -> None:
    result = search(objective_of(prior=prior), START, BOUNDS)
    fresh = objective_of(NestedEP(tol=1e-10), prior)
    fresh.tol = 1e-10
    start, _ = fresh(START)
    fresh.tol = 1e-10
    end, gradient = fresh(result.theta)
    assert result.success
    assert "CONVERGENCE" in result.message
    assert -end > -start + 0.1
    assert result.objective == pytest.approx(-end, abs=1e-4)
    assert np.abs(gradient).max() < 0.05  # ftol leaves 3e-5 of the value, a slope of √(2 · 3e-5 · curvature), and that is some 20
    assert result.n_evaluations >= 3
    assert result.n_iterations >= result.n_evaluations
    assert result.n_failures == 0
    around = [
        fresh(result.theta + d)[0]
        for d in (np.array([0.2, 0]), np.array([-0.2, 0]), np.array([0, 0.2]), np.array([0, -0.2]))
    ]
    assert min(around) > end - 1e-3  # without a prior there is a plateau, on which the search ends a little early


def test_search_needs_something_to_search(objective_of: Any) -> None:
    objective = objective_of(kernel=ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed"))
    with pytest.raises(ValueError, match="no free hyperparameter: use optimizer=None"):
        search(objective, np.empty(0), np.empty((0, 2)))


def test_the_prior_moves_the_answer() -> None:
    p = problem("separable")  # the evidence alone wants ever larger values
    fits = [
        GPClassifier(rbf(1.0, 0.0), prior=prior).fit(p.X, p.y)
        for prior in ("half-student-t", None, HalfStudentT(scale=0.5))
    ]
    sizes = [clf.kernel_.theta[0] for clf in fits]
    assert sizes[2] < sizes[0] < sizes[1]


@dataclass(frozen=True)
class PointPrior:
    """Gaussian prior of a user's own: log σ² and log l near given values."""

    at: tuple[float, float]

    def evaluate(self, names: Sequence[str], theta: Array, units: Array) -> tuple[float, Array]:
        away = theta - np.array(self.at)
        assert len(names) == theta.size == units.size
        return float(-0.5e6 * away @ away), -1e6 * away


def test_a_prior_of_the_users_own() -> None:
    p = problem("overlapping")
    clf = GPClassifier(rbf(1.0, 0.0), prior=PointPrior((2.0, 0.5))).fit(p.X, p.y)
    assert_allclose(clf.kernel_.theta, [2.0, 0.5], atol=1e-4)


# --- what can go wrong ---


@dataclass(frozen=True)
class FailsAbove:
    """Nested EP that diverges wherever the prior variance is above a limit."""

    limit: float
    tol: float = 1e-6

    def infer(self, K: Array, y: Labels, n_classes: int, init: Fit | None = None) -> Fit:
        fit = NestedEP(tol=self.tol).infer(K, y, n_classes, init)
        if K.max() <= self.limit:
            return fit
        return dataclasses.replace(fit, status=Status.DIVERGED)


def test_a_failing_evaluation_is_avoided(objective_of: Any) -> None:
    free = search(objective_of(prior=FlatPrior()), START, BOUNDS)
    limit = np.exp(START[0]) * 1.3
    assert np.exp(free.theta[0]) > limit  # otherwise nothing would fail
    result = search(objective_of(FailsAbove(limit), FlatPrior()), START, BOUNDS)
    assert result.n_failures >= 1
    assert np.exp(result.theta[0]) <= limit
    assert result.fit.status is not Status.DIVERGED
    start, _ = objective_of(prior=FlatPrior())(START)
    assert result.objective > -start


def test_a_search_that_ends_where_the_inference_has_not_converged_says_so(objective_of: Any) -> None:
    result = search(objective_of(NestedEP(max_iter=1)), START, BOUNDS)
    assert not result.success
    assert result.message == "the inference at the best point ended as max_iterations"
    assert result.n_unconverged > 0
    assert search(objective_of(), START, BOUNDS).n_unconverged == 0


def test_a_failed_evaluation_is_worse_than_the_best_and_slopes_back_to_it(objective_of: Any) -> None:
    objective = objective_of(FailsAbove(np.exp(1.5)))
    good, _ = objective(START)
    failed = START + np.array([1.0, 0.4])
    value, gradient = objective(failed)
    assert objective.n_failures == 1
    assert value > good
    assert gradient @ (failed - START) > 0
    further, _ = objective(START + np.array([2.0, 0.8]))
    assert further > value
    assert_allclose(objective.best[0], START)


def test_when_every_evaluation_fails_the_error_says_where_it_began(objective_of: Any) -> None:
    with pytest.raises(
        ArithmeticError, match=r"none of \d+ evaluations .* theta=\[1\. 0\.\].*positive definite"
    ):
        search(objective_of(FailsAbove(0.0)), START, BOUNDS)


class Interrupting:
    """Nested EP on which the user presses Ctrl-C at a given call."""

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0

    def infer(self, K: Array, y: Labels, n_classes: int, init: Fit | None = None) -> Fit:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return NestedEP().infer(K, y, n_classes, init)


def test_an_interrupt_keeps_the_best_point_so_far(objective_of: Any) -> None:
    objective = objective_of(Interrupting(5))
    with pytest.warns(UserWarning, match="interrupted by user: the best point so far is used"):
        result = search(objective, START, BOUNDS)
    assert not result.success
    assert result.message == "interrupted"
    reference = objective_of(Interrupting(99))
    values = []
    try_points: list[Array] = []

    def record(theta: Array) -> tuple[float, Array]:
        try_points.append(theta.copy())
        out = reference(theta)
        values.append(out[0])
        return out

    hyper.l_bfgs_b(record, START, BOUNDS)  # type: ignore[arg-type]
    best = int(np.argmin(values[:4]))
    assert_allclose(result.theta, try_points[best])
    assert result.objective == pytest.approx(-values[best])


def test_an_interrupt_among_few_rows_keeps_what_they_have_found(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem("overlapping")
    monkeypatch.setattr(hyper, "COARSE_FROM", p.y.size)
    objective = Objective(rbf(1.0, 0.0), p.X, p.y, 4, Interrupting(3), HalfStudentT(), np.ones(2))
    with pytest.warns(UserWarning, match="interrupted by user: the best point so far is used"):
        result = search(objective, START, BOUNDS)
    assert result.message == "interrupted"
    assert result.n_evaluations == 1  # with all rows, at the better of the two points that the few rows have seen
    assert len(result.fit.posterior.mean) == p.y.size


def test_an_interrupt_before_anything_was_found_is_passed_on(objective_of: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(KeyboardInterrupt):
            search(objective_of(Interrupting(1)), START, BOUNDS)


def test_an_interrupt_ends_the_restarts_too(objective_of: Any) -> None:
    inference = Interrupting(5)
    with pytest.warns(UserWarning, match="interrupted"):
        result = search_with_restarts(
            lambda: objective_of(inference), START, BOUNDS, 2, np.random.default_rng(0), None
        )
    assert result.message == "interrupted"
    assert inference.calls == 5


def test_an_interrupted_fit_is_a_fit() -> None:
    p = problem("overlapping")
    clf = GPClassifier(rbf(1.0, 0.0), inference=Interrupting(4))
    with pytest.warns(UserWarning, match="interrupted"):
        clf.fit(p.X, p.y)
    assert clf.search_.message == "interrupted"
    assert_allclose(clf.predict_proba(p.X).sum(axis=1), 1.0)


# --- restarts ---


def test_restarts_find_the_better_of_two_modes(objective_of: Any) -> None:
    bad = np.array([-6.0, 8.0])  # no signal at all: the gradient by the lengthscale is zero there
    alone = search_with_restarts(objective_of, bad, BOUNDS, 0, np.random.default_rng(0), None)
    more = search_with_restarts(objective_of, bad, BOUNDS, 2, np.random.default_rng(0), None)
    assert more.objective >= alone.objective
    threads = search_with_restarts(objective_of, bad, BOUNDS, 2, np.random.default_rng(0), 2)
    assert threads.objective == pytest.approx(more.objective, abs=1e-10)
    assert_allclose(threads.theta, more.theta)


@pytest.mark.parametrize("gain", [1.0, -1.0])
def test_a_search_that_ends_at_a_lower_bound_is_made_once_more(
    gain: float, monkeypatch: pytest.MonkeyPatch, objective_of: Any
) -> None:
    """From longer lengthscales, and the better of both counts; one that ends elsewhere is not."""
    original, starts = hyper.search, []

    def ends_at_bound(objective: Objective, start: Array, *args: Any) -> hyper.SearchResult:
        starts.append(start)
        result = original(objective, start, *args)
        if len(starts) > 1:
            return result
        return dataclasses.replace(result, theta=np.array([result.theta[0], BOUNDS[1, 0]]), objective=result.objective - gain)

    monkeypatch.setattr(hyper, "search", ends_at_bound)
    found = search_with_restarts(objective_of, START, BOUNDS, 0, np.random.default_rng(0), None)
    assert len(starts) == 2
    assert_allclose(starts[1], START + np.log([hyper.MORE_VARIANCE, hyper.LONGER]))
    assert (found.theta[1] > BOUNDS[1, 0]) == (gain > 0.0)
    search_with_restarts(objective_of, START, BOUNDS, 0, np.random.default_rng(0), None)
    assert len(starts) == 3


def test_an_interrupt_of_the_second_search_keeps_the_first(monkeypatch: pytest.MonkeyPatch, objective_of: Any) -> None:
    original, first = hyper.search, []

    def interrupted(objective: Objective, start: Array, *args: Any) -> hyper.SearchResult:
        if first:
            raise KeyboardInterrupt
        result = original(objective, start, *args)
        first.append(dataclasses.replace(result, theta=np.array([result.theta[0], BOUNDS[1, 0]])))
        return first[0]

    monkeypatch.setattr(hyper, "search", interrupted)
    with pytest.warns(UserWarning, match="second hyperparameter search interrupted"):
        found = search_with_restarts(objective_of, START, BOUNDS, 0, np.random.default_rng(0), None)
    assert found is first[0]


def test_only_lengthscales_at_a_lower_bound_are_made_longer() -> None:
    names = ["k1__constant_value", "k2__length_scale[0]", "k2__length_scale[1]"]
    bounds, start = np.tile([-2.0, 2.0], (3, 1)), np.array([0.0, 0.0, 1.9])
    assert hyper._from_longer(names, start, bounds, np.array([-2.0, 0.0, 2.0])) is None
    longer = hyper._from_longer(names, start, bounds, np.array([0.0, -2.0, 0.0]))
    assert longer is not None
    assert_allclose(longer, [2.0, np.log(2.0), 2.0])


def test_restarts_stay_inside_the_bounds(monkeypatch: pytest.MonkeyPatch, objective_of: Any) -> None:
    starts: list[Array] = []
    original = hyper.search

    def spy(objective: Objective, start: Array, *args: Any) -> hyper.SearchResult:
        starts.append(start)
        return original(objective, start, *args)

    monkeypatch.setattr(hyper, "search", spy)
    tight = np.array([[0.5, 1.5], [-0.2, 0.2]])
    search_with_restarts(objective_of, START, tight, 5, np.random.default_rng(1), None)
    assert len(starts) == 6
    assert_allclose(starts[0], START)
    assert all((s >= tight[:, 0]).all() and (s <= tight[:, 1]).all() for s in starts)
    assert len({tuple(s) for s in starts}) > 3


def test_a_restart_that_fails_does_not_end_the_others(objective_of: Any) -> None:
    limit = np.exp(START[0]) * 1.01  # about half of the random starts are above

    def make() -> Objective:
        return objective_of(FailsAbove(limit))

    result = search_with_restarts(make, START, BOUNDS, 5, np.random.default_rng(0), None)
    assert np.isfinite(result.objective)
    with pytest.raises(ArithmeticError, match="none of"):
        search_with_restarts(
            lambda: objective_of(FailsAbove(0.0)), START, BOUNDS, 2, np.random.default_rng(0), None
        )


def test_progress_is_shown_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    p = problem("tiny")
    clf = GPClassifier(rbf(0.0, 0.0), verbose=1).fit(p.X, p.y)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"evaluation {clf.search_.n_evaluations:3d}" in shown.err
    assert "converged" in shown.err


def test_a_search_ends_where_noise_is_all_that_is_left() -> None:
    """Values with an error of 1e-5 that no line search can follow: three of them in a row end it, not twenty."""
    rng, calls = np.random.default_rng(0), []

    def noisy(theta: Array) -> tuple[float, Array]:
        calls.append(theta.copy())
        away = theta - np.array([1.5, -0.5])
        return 100.0 + float(away @ away) + 1e-5 * rng.random(), 2.0 * away + 3e-3 * rng.standard_normal(2)

    success, _ = hyper.l_bfgs_b(noisy, START, BOUNDS)  # type: ignore[arg-type]
    assert success
    assert len(calls) < 12
    assert_allclose(calls[-1], [1.5, -0.5], atol=0.01)


def test_inverse_hessian_of_a_quadratic_is_learnt_from_its_gradients() -> None:
    A = np.array([[30.0, -12.0, 1.0], [-12.0, 8.0, 0.5], [1.0, 0.5, 2.0]])
    points = [np.zeros(3)]
    for _ in range(4):  # exact line searches along conjugate directions, as quasi-Newton methods go
        points.append(points[-1] + np.random.default_rng(len(points)).normal(size=3))
    path = [(x, A @ x) for x in points]
    H = hyper.inverse_hessian(path)
    last = points[-1] - points[-2]
    assert_allclose(H @ (A @ last), last, atol=1e-10)  # the secant equation of the last step
    assert (np.linalg.eigvalsh(H) > 0).all()
    assert_allclose(hyper.inverse_hessian(path[:1]), np.eye(3))
    downward = [(x, -g) for x, g in path]
    assert_allclose(hyper.inverse_hessian(downward), np.eye(3))


def test_newton_step_comes_first_where_the_curvature_is_known() -> None:
    A, top, tried = np.array([[30.0, -12.0], [-12.0, 8.0]]), np.array([1.6, 0.5]), []

    def bowl(theta: Array) -> tuple[float, Array]:
        tried.append(theta.copy())
        return 50.0 + 0.5 * float((theta - top) @ A @ (theta - top)), A @ (theta - top)

    assert hyper.l_bfgs_b(bowl, START, BOUNDS, np.linalg.inv(A))[0]  # type: ignore[arg-type]
    assert_allclose(tried[1], top, atol=1e-9)
    assert len(tried) <= 3
    beyond = np.array([[1.0 - 5.0, 1.5], [-4.0, 5.0]])  # the top lies outside: it ends at the bound
    tried.clear()
    hyper.l_bfgs_b(bowl, START, beyond, np.linalg.inv(A))  # type: ignore[arg-type]
    best = min(list(tried), key=lambda t: bowl(t)[0])
    assert best[0] == pytest.approx(1.5)
    tried.clear()
    hyper.l_bfgs_b(bowl, START, BOUNDS, 1e3 * np.eye(2))  # type: ignore[arg-type]
    assert np.linalg.norm(tried[1] - START) == pytest.approx(1.0)  # however wrong the curvature is


def test_search_ends_where_newton_expects_no_gain() -> None:
    """Half the squared Newton step is the gain that is left: the last point tried is the first with less than promised."""
    A, top, lost = np.array([[30.0, -12.0], [-12.0, 8.0]]), np.array([1.6, 0.5]), []

    def bowl(theta: Array) -> tuple[float, Array]:
        lost.append(0.5 * float((theta - top) @ A @ (theta - top)))
        return 50.0 + lost[-1], A @ (theta - top)

    guess = np.linalg.inv(A) @ np.diag([0.9, 1.2])
    success, message = hyper.l_bfgs_b(bowl, START, BOUNDS, 0.5 * (guess + guess.T))  # type: ignore[arg-type]
    assert success
    assert "GAIN LESS" in message
    assert min(lost[:-1]) > hyper.SMALL_GAIN > lost[-1]


def test_many_rows_are_searched_with_a_third_of_them_first(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(120, 2))
    y = (X @ rng.normal(size=(2, 3)) + 0.7 * rng.normal(size=(120, 3))).argmax(axis=1)
    y[:3] = np.arange(3)
    sizes: list[int] = []

    def make() -> Objective:
        progress = lambda evaluation, value, fit: sizes.append(len(fit.posterior.mean))  # noqa: E731
        return Objective(rbf(1.0, 0.0), X, y, 3, NestedEP(), HalfStudentT(), np.ones(2), progress)

    alone = search(make(), START, BOUNDS)
    assert set(sizes) == {120}
    with_all_rows = len(sizes)
    sizes.clear()
    monkeypatch.setattr(hyper, "COARSE_FROM", 100)
    staged = search(make(), START, BOUNDS)
    few = [size for size in sizes if size < 120]
    assert sizes[: len(few)] == few  # few rows first
    assert 40 <= few[0] <= 42
    assert staged.n_evaluations == len(sizes) - len(few) < with_all_rows
    # The gain left is reckoned with the curvature of 40 rows, right to a factor of about two.
    assert staged.objective == pytest.approx(alone.objective, abs=2 * hyper.SMALL_GAIN)
    thin = make().thinned()
    assert thin is not None
    assert set(thin.y) == {0, 1, 2}


def test_a_search_in_mixed_precision_ends_where_one_in_double_does(objective_of: Any) -> None:
    double, mixed = (search(objective_of(NestedEP(precision=name)), START, BOUNDS) for name in ("double", "mixed"))
    assert mixed.success
    assert mixed.objective == pytest.approx(double.objective, abs=1e-3)
    assert_allclose(mixed.theta, double.theta, atol=0.02)
