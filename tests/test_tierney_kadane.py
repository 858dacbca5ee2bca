"""Class probabilities as ratios of evidences: fast against naive, normalisation, the estimator, and what they gain."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from nestgp import GPClassifier, kernels, predict
from nestgp.inference import Fit, IndependentEP, Inference, Laplace, NestedEP, QuadratureEP, VariationalBayes, nested_ep
from nestgp.inference.extension import bordered, extended_modes
from nestgp.tierney_kadane import POINTS_AT_ONCE, tierney_kadane_log_probabilities
from tests.oracles._types import Array, Labels
from tests.oracles.laplace import laplace
from tests.oracles.softmax import softmax_predictive
from tests.problems import PROBLEMS, Problem, problem

EXTENDING: dict[str, Any] = {"ep": NestedEP(), "laplace": Laplace()}
OTHERS: dict[str, Any] = {"iep": IndependentEP(), "qiep": QuadratureEP(), "vb": VariationalBayes()}


def new_rows(p: Problem, m: int = 4) -> tuple[Array, Array]:
    """Covariances of training and m new rows, and the prior variances of these."""
    X = 1.5 * np.random.default_rng(0).standard_normal((m, p.X.shape[1]))
    return kernels.cross(p.kernel, p.X, X), kernels.diagonal(p.kernel, X)


def ratios(method: Any, p: Problem, fit: Fit, star: tuple[Array, Array], naive: bool = False) -> Array:
    return np.exp(tierney_kadane_log_probabilities(method, fit, *p.inputs(), *star, naive=naive))


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("method", EXTENDING.values(), ids=EXTENDING.keys())
def test_the_fast_extension_is_the_naive_one(method: Any, name: str) -> None:
    p = problem(name)
    fit, star = method.infer(*p.inputs()), new_rows(p)
    fast, naive = ratios(method, p, fit, star), ratios(method, p, fit, star, naive=True)
    # The evidence of EP is stationary; that of Laplace feels its tolerance of 1e-6 prior deviations. Measured: 2e-8, 3e-6.
    assert_allclose(fast, naive, rtol=0, atol=1e-7 if isinstance(method, NestedEP) else 1e-5)
    assert_allclose(fast.sum(axis=1), 1.0, atol=1e-13)


def test_an_extension_in_mixed_precision_is_that_in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem("tiny")
    fit, star = NestedEP().infer(*p.inputs()), new_rows(p)
    rough = []
    in_single = nested_ep._State.in_single_precision
    monkeypatch.setattr(nested_ep._State, "in_single_precision", lambda self: rough.append(1) or in_single(self))
    found = ratios(NestedEP(precision="mixed"), p, fit, star)
    assert len(rough) == 4 * p.n_classes
    assert_allclose(found, ratios(NestedEP(), p, fit, star), rtol=0, atol=1e-7)


def test_an_extension_that_cannot_start_from_the_fit_starts_cold() -> None:
    p = problem("tiny")
    fit, star = NestedEP().infer(*p.inputs()), new_rows(p)
    broken = replace(fit, sites=np.full_like(fit.sites, np.nan))
    assert_allclose(ratios(NestedEP(), p, broken, star), ratios(NestedEP(), p, fit, star), rtol=0, atol=1e-7)


def test_naive_ratios_are_evidences_of_the_larger_problem() -> None:
    p = problem("per class")
    fit, (k_star, prior) = Laplace(tol=1e-11).infer(*p.inputs()), new_rows(p, 3)
    found = tierney_kadane_log_probabilities(Laplace(tol=1e-11), fit, *p.inputs(), k_star, prior)
    for j in range(3):
        K = np.zeros((3, 17, 17))
        K[:, :16, :16] = p.K
        K[:, 16, :16] = K[:, :16, 16] = k_star[:, :, j]
        K[:, 16, 16] = prior[:, j]
        assert_array_equal(bordered(p.K, k_star[..., j], prior[..., j]), K)
        log_z = np.array([laplace(K, np.append(p.y, k), 3).log_z for k in range(3)])
        assert_allclose(found[j], log_z - np.log(np.exp(log_z - log_z.max()).sum()) - log_z.max(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["tiny", "per class", "hard", "many classes"])
def test_extended_modes_are_modes(name: str) -> None:
    p = problem(name)
    fit, (k_star, prior) = Laplace(tol=1e-10).infer(*p.inputs()), new_rows(p, 3)
    b = extended_modes(fit, *p.inputs(), k_star, prior, 1e-8)
    s = np.sqrt(np.diagonal(p.K, axis1=-2, axis2=-1).max())
    for j in range(3):
        K = bordered(p.K, k_star[..., j], prior[..., j])
        for k in range(p.n_classes):
            mode = laplace(K, np.append(p.y, k), p.n_classes).mode
            f = np.einsum("knm,km->kn", np.broadcast_to(K, (p.n_classes, *K.shape[-2:])), b[j, k])
            assert_allclose(f, mode, rtol=0, atol=1e-6 * s)


@pytest.mark.parametrize("method", OTHERS.values(), ids=OTHERS.keys())
def test_other_inferences_go_the_naive_way(method: Any) -> None:
    assert not hasattr(method, "extend")
    for name in ("tiny", "per class"):
        p = problem(name)
        fit, star = method.infer(*p.inputs()), new_rows(p, 2)
        found = ratios(method, p, fit, star)
        assert_array_equal(found, ratios(method, p, fit, star, naive=True))
        assert_allclose(found.sum(axis=1), 1.0, atol=1e-13)
        mean, cov = fit.posterior.at(*star)
        plain = np.exp(predict.class_probabilities(mean[None], cov[None], method.default_rule))
        assert_allclose(found, plain, atol=0.06)  # another approximation of the same number, measured up to 0.045


@pytest.mark.parametrize(("name", "atol"), [("tiny", 5e-3), ("toy", 0.02), ("duplicates", 5e-3), ("two classes", 5e-3)])
def test_ratios_of_ep_are_near_its_own_probabilities(name: str, atol: float) -> None:
    p = problem(name)
    fit, star = NestedEP().infer(*p.inputs()), new_rows(p)
    mean, cov = fit.posterior.at(*star)
    plain = np.exp(predict.class_probabilities(mean[None], cov[None], "exact"))
    assert_allclose(ratios(NestedEP(), p, fit, star), plain, rtol=0, atol=atol)


@pytest.mark.parametrize(("name", "share"), [("tiny", 0.25), ("toy", 0.3)])
def test_ratios_improve_on_the_plain_probabilities_of_laplace(name: str, share: float) -> None:
    p = problem(name)
    fit, (k_star, prior) = Laplace().infer(*p.inputs()), new_rows(p, 3)
    mean, cov = fit.posterior.at(k_star, prior)
    plain = np.exp(predict.class_probabilities(mean[None], cov[None], "exact", "softmax"))
    found = ratios(Laplace(), p, fit, (k_star, prior))
    truth, errors = zip(
        *(softmax_predictive(bordered(p.K, k_star[:, j], prior[j]), p.y, 3) for j in range(3)), strict=True
    )
    before, after = np.abs(plain - truth).max(), np.abs(found - truth).max()
    # Largest error of a probability against the posterior itself: 0.021 → 0.002 ± 0.0004, and 0.103 → 0.018 ± 0.002.
    assert after + 3 * np.max(errors) < share * before


def test_batches_do_not_matter() -> None:
    p = problem("tiny")
    for method in EXTENDING.values():
        fit, (k_star, prior) = method.infer(*p.inputs()), new_rows(p, POINTS_AT_ONCE + 3)
        whole = ratios(method, p, fit, (k_star, prior))
        each = [ratios(method, p, fit, (k_star[:, [j]], prior[[j]]))[0] for j in range(POINTS_AT_ONCE + 3)]
        assert_allclose(each, whole, rtol=0, atol=1e-6)


class NoEvidence:
    """An inference that never has a result."""

    def infer(self, K: Array, y: Labels, n_classes: int, init: Fit | None = None) -> Fit:
        return Laplace().infer(-np.eye(len(y)), y, n_classes)


def test_a_problem_without_a_result_is_said_so() -> None:
    p = problem("tiny")
    fit = Laplace().infer(*p.inputs())
    stubborn: Inference = NoEvidence()
    with pytest.raises(ArithmeticError, match="4 test points have an extended problem without a result: raise max_iter"):
        ratios(stubborn, p, fit, new_rows(p))


def test_a_tolerance_of_zero_can_be_extended() -> None:
    p = problem("tiny")
    star = new_rows(p)
    for method in (Laplace(), NestedEP()):
        fit = method.infer(*p.inputs())
        assert_allclose(ratios(replace(method, tol=0.0), p, fit, star), ratios(method, p, fit, star), rtol=0, atol=1e-5)


def test_an_extended_problem_that_has_not_converged_is_no_result() -> None:
    p = problem("tiny")
    fit = IndependentEP().infer(*p.inputs())
    with pytest.raises(ArithmeticError, match="4 test points have an extended problem without a result"):
        ratios(IndependentEP(max_iter=1), p, fit, new_rows(p))


# --- the estimator ---


@pytest.mark.parametrize("kind", ["laplace", "ep"])
@pytest.mark.parametrize("name", ["tiny", "per class"])
def test_the_short_name_is_the_inference_with_the_rule(kind: str, name: str) -> None:
    p = problem(name)
    X = np.random.default_rng(1).standard_normal((4, p.X.shape[1]))
    short = GPClassifier(p.kernel, inference=f"{kind}-tkp", optimizer=None).fit(p.X, p.y)
    long = GPClassifier(p.kernel, inference=kind, probabilities="tkp", optimizer=None).fit(p.X, p.y)
    plain = GPClassifier(p.kernel, inference=kind, optimizer=None).fit(p.X, p.y)
    found = short.predict_proba(X)
    assert_array_equal(found, long.predict_proba(X))
    assert np.abs(found - plain.predict_proba(X)).max() > 1e-4
    assert short.log_marginal_likelihood_value_ == plain.log_marginal_likelihood_value_
    assert_array_equal(short.loo_log_proba_, plain.loo_log_proba_)  # leave-one-out keeps the inference's own rule
    back = pickle.loads(pickle.dumps(short))
    assert_array_equal(back.predict_proba(X), found)
    K, k_star, prior = p.K, kernels.cross(p.kernel, p.X, X), kernels.diagonal(p.kernel, X)
    method = EXTENDING[kind]
    direct = tierney_kadane_log_probabilities(method, method.infer(*p.inputs()), K, p.y, 3, k_star, prior)
    assert_allclose(found, np.exp(direct), rtol=0, atol=1e-12)


@pytest.mark.parametrize("inference", ["iep", "qiep", "vb"])
def test_the_rule_works_with_every_inference(inference: str) -> None:
    p = problem("tiny")
    clf = GPClassifier(p.kernel, inference=inference, probabilities="tkp", optimizer=None).fit(p.X, p.y)
    found = clf.predict_proba(p.X[:3])
    assert_allclose(found.sum(axis=1), 1.0, atol=1e-13)
    assert_array_equal(clf.predict(p.X[:3]), clf.classes_[found.argmax(axis=1)])


@pytest.mark.parametrize(("inference", "rule"), [("ep-tkp", "exact"), ("ep-tkp", "ep"), ("laplace-tkp", "exact")])
def test_a_short_name_with_another_rule_is_refused(inference: str, rule: str) -> None:
    p = problem("tiny")
    message = f"inference='{inference}' with probabilities='{rule}': use inference='{inference[:-4]}', or probabilities='auto'"
    with pytest.raises(ValueError, match=message):
        GPClassifier(p.kernel, inference=inference, probabilities=rule, optimizer=None).fit(p.X, p.y)


@pytest.mark.parametrize(("inference", "rule"), [("laplace", "ep"), ("vb", "softmax"), ("ep", "plain")])
def test_a_rule_that_the_likelihood_has_not_is_named(inference: str, rule: str) -> None:
    p = problem("tiny")
    with pytest.raises(ValueError, match=f"probabilities='{rule}': with this inference use one of"):
        GPClassifier(p.kernel, inference=inference, probabilities=rule, optimizer=None).fit(p.X, p.y)
