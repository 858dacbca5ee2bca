"""Variational Bayes: the literal alternation, bounds from below, Newton's directions, and the alternating search."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from nestgp import GPClassifier, hyper, kernels
from nestgp.classifier import NAMES
from nestgp.hyper import FlatPrior, HalfStudentT, Objective
from nestgp.inference import Fit, Status, VariationalBayes
from nestgp.inference.newton import newton_direction
from tests.oracles._types import Array
from tests.oracles.dense import stacked_prior
from tests.oracles.finite import central_difference
from tests.oracles.integrals import log_evidence_bruteforce
from tests.oracles.laplace import softmax_hessian
from tests.oracles.reference import load_case, reference_directory
from tests.oracles.vb import cone_moments, variational_bayes
from tests.problems import PROBLEMS, TIGHT, problem, rbf

PROBLEMS_BY_NAME = pytest.mark.parametrize("name", PROBLEMS)
UPDATES = pytest.mark.parametrize("updates", ["newton", "plain"])
EXACT = VariationalBayes(tol=TIGHT)


# --- against the literal alternation ---


@pytest.mark.parametrize("name", ["tiny", "per class"])
def test_plain_updates_are_the_literal_ones_step_by_step(name: str) -> None:
    p = problem(name)
    expected = variational_bayes(*p.inputs(), iterations=8)
    fit = VariationalBayes(updates="plain", max_iter=9, tol=0.0).infer(*p.inputs())
    assert_allclose([row.log_evidence for row in fit.history], expected.bounds, rtol=0, atol=1e-9)
    assert_allclose(fit.posterior.mean, expected.mean.T, rtol=0, atol=1e-9)
    assert_allclose(np.einsum("ikk->ik", fit.posterior.covariance), np.einsum("kii->ik", expected.Sigma), rtol=0, atol=1e-9)


def test_the_fixed_point_is_the_literal_one() -> None:
    p = problem("tiny")
    expected = variational_bayes(*p.inputs(), iterations=60)
    fit = EXACT.infer(*p.inputs())
    assert fit.log_evidence == pytest.approx(expected.bound, abs=1e-10)
    assert_allclose(fit.posterior.mean, expected.mean.T, rtol=0, atol=1e-10)
    assert fit.site_moments is not None
    assert_allclose(fit.site_moments()[1], expected.expected_v.T, rtol=0, atol=1e-9)  # unit sites at E[v]


@PROBLEMS_BY_NAME
def test_means_are_stationary_and_covariances_do_not_see_the_labels(name: str) -> None:
    p = problem(name)
    n, c = len(p.y), p.n_classes
    fit = EXACT.infer(*p.inputs())
    Sigma = np.broadcast_to(np.linalg.solve(p.K + np.eye(n), p.K), (c, n, n))  # K (K + I)⁻¹
    for k in range(c):
        assert_allclose(fit.posterior.covariance[:, k, k], np.diag(Sigma[k]), rtol=0, atol=1e-10)
        assert_allclose(fit.posterior.blocks.class_covariance(k), Sigma[k], rtol=0, atol=1e-9)  # type: ignore[attr-defined]
    assert (fit.posterior.covariance[:, ~np.eye(c, dtype=bool)] == 0).all()
    relabelled = EXACT.infer(p.K, np.roll(p.y, 1), c)
    assert_allclose(relabelled.posterior.covariance, fit.posterior.covariance, rtol=0, atol=0)
    cones = np.array([cone_moments(m, int(k))[1] for m, k in zip(fit.posterior.mean, p.y, strict=True)])
    assert_allclose(np.einsum("knm,mk->nk", Sigma, cones), fit.posterior.mean, rtol=0, atol=1e-8 * np.sqrt(1 + p.K.max()))


# --- the bound ---


@PROBLEMS_BY_NAME
@UPDATES
def test_no_iteration_lowers_the_bound(updates: str, name: str) -> None:
    p = problem(name)
    fit = VariationalBayes(updates=updates, max_iter=300).infer(*p.inputs())
    bounds = np.array([row.log_evidence for row in fit.history])
    assert len(bounds) >= 5
    assert (np.diff(bounds) >= -1e-12 * np.abs(bounds[1:])).all()
    assert bounds[-1] > bounds[0] + 0.01
    assert fit.log_evidence == pytest.approx(bounds.max(), rel=1e-12)


@pytest.mark.parametrize("log_s2", [5.0, 10.0, 20.0])
@pytest.mark.parametrize("log_l", [-2.0, 0.0, 2.0])
def test_no_newton_step_lowers_the_bound_where_it_is_hard(log_s2: float, log_l: float) -> None:
    p = problem("hard")
    fit = VariationalBayes().infer(kernels.gram(rbf(log_s2, log_l), p.X), p.y, 3)
    bounds = np.array([row.log_evidence for row in fit.history])
    assert (np.diff(bounds) >= -1e-12 * np.abs(bounds[1:])).all()
    assert fit.status is Status.CONVERGED
    assert fit.n_iter <= 60


@PROBLEMS_BY_NAME
def test_newton_and_plain_updates_have_one_fixed_point(name: str) -> None:
    p = problem(name)
    newton = EXACT.infer(*p.inputs())
    assert newton.converged
    assert newton.n_iter <= 20
    if name == "hard":  # plain updates need tens of thousands of iterations: from the solution they must not move
        plain = VariationalBayes(updates="plain", max_iter=5, tol=TIGHT).infer(*p.inputs(), init=newton)
        assert plain.n_iter == 1
    else:
        plain = VariationalBayes(updates="plain", max_iter=5000, tol=TIGHT).infer(*p.inputs())
        assert plain.n_iter > 5 * newton.n_iter
    assert plain.converged
    assert plain.log_evidence == pytest.approx(newton.log_evidence, abs=1e-9)
    # A step of 1e-11 that shrinks by a thousandth each time is still 1e-8 away.
    assert_allclose(plain.posterior.mean, newton.posterior.mean, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("c", "log_s2"), [(2, 1.0), (3, 0.0), (3, 4.0), (4, 1.0), (6, 0.7)])
def test_the_bound_lies_below_brute_force(c: int, log_s2: float) -> None:
    X = np.linspace(-1.5, 1.5, 5)[:, None]
    y = np.array([0, 1, 1, c - 1, 0])
    K = kernels.gram(rbf(log_s2, 0.0), X)
    exact, error = log_evidence_bruteforce(K, y, c, n_points=2**11)
    bound = EXACT.infer(K, y, c).log_evidence
    assert bound < exact - 10 * error


@pytest.mark.parametrize("name", ["A_toy1d", "B_2d_c4_s2_l0.5", "D_ard_d3"])
def test_the_bound_lies_below_the_exact_evidence(name: str) -> None:
    try:
        case = load_case(name)
    except FileNotFoundError:
        pytest.skip(f"no reference values in {reference_directory()}; set NESTGP_SHARED to the folder above")
    exact = case.values["exact"]
    bound = EXACT.infer(case.K, case.y, case.n_classes).log_evidence
    assert bound < exact["logZ"] - 3 * exact["logZ_se"]


@pytest.mark.parametrize("seed", range(4))
def test_a_singular_kernel_matrix_stops_neither_newton_nor_leave_one_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, 40)
    X = rng.standard_normal((40, 2)) + y[:, None]
    K = X @ X.T + 1.0  # rank three
    newton, plain = (VariationalBayes(updates=updates).infer(K, y, 3) for updates in ("newton", "plain"))
    assert newton.converged
    assert newton.n_iter < 20
    for found, expected in zip(newton.cavities(), plain.cavities(), strict=True):
        assert_allclose(found, expected, rtol=0, atol=1e-3)


def test_updates_are_checked_by_name() -> None:
    with pytest.raises(ValueError, match="updates='fast': use 'newton' or 'plain'"):
        VariationalBayes(updates="fast").infer(*problem("tiny").inputs())


def test_an_absurd_start_ends_at_the_same_means() -> None:
    p = problem("toy")
    cold = EXACT.infer(*p.inputs())
    start = 50.0 * np.random.default_rng(0).standard_normal(cold.sites.shape)
    far: Fit = EXACT.infer(*p.inputs(), init=dataclasses.replace(cold, sites=start))
    assert far.converged
    assert far.log_evidence == pytest.approx(cold.log_evidence, abs=1e-10)
    assert_allclose(far.posterior.mean, cold.posterior.mean, rtol=0, atol=1e-9)


# --- Newton's direction ---


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("exact_start", [True, False])
def test_newton_direction_is_the_dense_solution(shared: bool, exact_start: bool) -> None:
    rng = np.random.default_rng(0)
    c, n, columns = 3, 6, 4
    A = rng.standard_normal((3, n, n))
    kernel = A @ A.transpose(0, 2, 1) + 0.1 * np.eye(n)
    K = stacked_prior(kernel[0] if shared else kernel, c)
    Ws = [softmax_hessian(2.0 * rng.standard_normal((c, n))) for _ in range(columns)]
    W0 = Ws[0] if exact_start else np.eye(c * n)
    Sigma0 = np.linalg.inv(np.linalg.inv(K) + W0)
    calls = 0

    def precondition(r: Array) -> tuple[Array, Array]:
        nonlocal calls
        calls += 1
        flat = r.reshape(c * n, -1)
        z = Sigma0 @ flat
        return z.reshape(r.shape), (flat - W0 @ z).reshape(r.shape)

    def hessian_times(v: Array) -> Array:
        each = [W @ v[:, :, q].ravel() for q, W in enumerate(Ws)]
        return np.stack(each, axis=-1).reshape(v.shape)

    gradient = rng.standard_normal((c, n, columns))
    gradient[:, :, 3] = 0.0  # a column that has arrived stays where it is
    before = gradient.copy()
    s, image = newton_direction(gradient, precondition, hessian_times, 1e-13, 200)
    for q, W in enumerate(Ws):
        expected = np.linalg.solve(np.linalg.inv(K) + W, gradient[:, :, q].ravel())
        assert_allclose(s[:, :, q].ravel(), expected, rtol=0, atol=1e-9)
        assert_allclose(image[:, :, q].ravel(), np.linalg.solve(K, expected), rtol=0, atol=1e-8)
    assert (gradient == before).all()
    assert calls < 200
    assert (s[:, :, 3] == 0).all()


def test_newton_direction_stops_at_its_tolerance_and_after_one_step_with_the_exact_preconditioner() -> None:
    rng = np.random.default_rng(1)
    K = np.diag(rng.uniform(0.5, 5.0, 12))
    W = np.diag(rng.uniform(0.1, 3.0, 12))
    gradient = rng.standard_normal((3, 4, 1))

    def run(W0: Array, tol: float, max_steps: int) -> tuple[Array, int]:
        Sigma0 = np.linalg.inv(np.linalg.inv(K) + W0)
        calls = []

        def precondition(r: Array) -> tuple[Array, Array]:
            calls.append(1)
            z = Sigma0 @ r.ravel()
            return z.reshape(r.shape), (r.ravel() - W0 @ z).reshape(r.shape)

        s, _ = newton_direction(gradient, precondition, lambda v: (W @ v.ravel()).reshape(v.shape), tol, max_steps)
        return s.ravel(), len(calls)

    exact = np.linalg.solve(np.linalg.inv(K) + W, gradient.ravel())
    one, calls = run(W, 1e-10, 50)
    assert calls == 2
    assert_allclose(one, exact, atol=1e-12)
    errors = [np.abs(run(np.eye(12), tol, 50)[0] - exact).max() for tol in (1e-1, 1e-4, 1e-10)]
    assert errors[0] > 1e-3 > errors[1] > 1e-8 > errors[2]
    assert run(np.eye(12), 1e-16, 3)[1] == 3


# --- the alternating search ---


def bound_at(kernel: Any, X: Array, y: Array, c: int) -> float:
    return EXACT.infer(kernels.gram(kernel, X), y, c).log_evidence


@pytest.mark.parametrize("prior", [None, "half-student-t"])
def test_both_searches_improve_the_bound_and_em_ends_no_higher(
    prior: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hyper, "EM_ROUNDS", 60)
    p = problem("separable")
    start = rbf(1.0, 1.0)
    clf = GPClassifier(start, inference="vb", prior=prior)
    fits = {"l-bfgs-b": clone(clf).fit(p.X, p.y)}
    with pytest.warns(ConvergenceWarning, match="the bound still grows after 60 rounds"):
        fits["em"] = clone(clf).set_params(optimizer="em").fit(p.X, p.y)
    first = bound_at(start, p.X, p.y, 3)
    for clf in fits.values():
        assert clf.status_ is Status.CONVERGED
        assert clf.log_marginal_likelihood_value_ > first + 2.0  # from −18.87 to −16.27 and −16.28
    gain = fits["l-bfgs-b"].search_.objective - fits["em"].search_.objective
    assert gain >= -1e-4  # one objective, one optimum
    assert gain <= 0.1  # the alternation is still on its way after sixty rounds


@pytest.mark.parametrize("log_l", [0.0, 1.5])
@pytest.mark.parametrize("name", ["overlapping", "separable"])
def test_em_never_lowers_the_bound_from_round_to_round(name: str, log_l: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # A long lengthscale leaves K directions with less variance than the jitter: they must not drag the magnitude along.
    monkeypatch.setattr(hyper, "EM_ROUNDS", 40)
    p = problem(name)
    kernel = rbf(1.0, log_l)
    values: list[float] = []
    setting = (kernel, p.X, p.y, p.n_classes, VariationalBayes(), FlatPrior(), np.ones(2))
    hyper.em(Objective(*setting, lambda _, value, fit: values.append(value)), kernel.theta, kernel.bounds)
    assert len(values) >= 20
    # The bound is evaluated to the search's loose tolerance, and K factorised with a jitter.
    assert (np.diff(values) >= -1e-5).all()
    assert values[-1] > values[0] + 0.5


def test_em_for_a_kernel_per_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hyper, "EM_ROUNDS", 15)
    p = problem("per class")
    start = [rbf(0.0, 0.0), rbf(0.0, 0.5), rbf(0.5, -0.5)]
    with pytest.warns(ConvergenceWarning, match="the bound still grows after 15 rounds"):
        clf = GPClassifier(start, inference="vb", optimizer="em").fit(p.X, p.y)
    assert isinstance(clf.kernel_, list)
    prior, names = HalfStudentT(), kernels.hyperparameter_names(start)
    at_start = bound_at(start, p.X, p.y, 3) + prior.evaluate(names, kernels.theta(start), np.ones(6))[0]
    assert clf.search_.objective > at_start + 0.1
    assert not clf.search_.success


@pytest.mark.parametrize("shared", [True, False])
def test_the_em_objective_and_its_gradient(shared: bool) -> None:
    p = problem("per class")
    kernel = rbf(1.0, 0.2, -0.3) if shared else p.kernel
    theta = kernels.theta(kernel)
    objective = Objective(kernel, p.X, p.y, 3, EXACT, HalfStudentT(), np.ones(theta.size))
    objective.tol = TIGHT
    moments = objective.second_moments(theta)
    assert moments.shape == ((1, 16, 16) if shared else (3, 16, 16))
    fit = EXACT.infer(kernels.gram(kernel, p.X), p.y, 3)
    K = np.broadcast_to(kernels.gram(kernel, p.X), (3, 16, 16))
    m = fit.posterior.mean.T
    each = np.array([np.outer(m[k], m[k]) + np.linalg.solve(K[k] + np.eye(16), K[k]) for k in range(3)])
    each += 1e-6 * np.eye(16) * np.einsum("kii->k", K)[:, None, None] / 16  # the jitter of the maximisation
    assert_allclose(moments, each.sum(axis=0)[None] if shared else each, rtol=0, atol=1e-8)
    moved = theta + 0.2
    _, gradient = hyper._expected_log_prior(objective, moments, moved)
    numeric = central_difference(lambda t: hyper._expected_log_prior(objective, moments, t)[0], moved, 1e-3, richardson=True)
    assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-5)  # the jitter follows K, and the gradient knows it


@pytest.mark.parametrize("inference", [name for name in NAMES if name != "vb"])
def test_em_is_for_vb_only(inference: str) -> None:
    p = problem("tiny")
    with pytest.raises(ValueError, match="optimizer='em' is for inference='vb': use 'l-bfgs-b' with the others"):
        GPClassifier(inference=inference, optimizer="em").fit(p.X, p.y)
