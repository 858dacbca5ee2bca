"""The estimator: scikit-learn's contract, and the wiring of kernels, inference, search and prediction."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.calibration import CalibrationDisplay, calibration_curve
from sklearn.datasets import load_iris
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from nestgp import GPClassifier, kernels
from nestgp.inference import NestedEP, Status
from tests.oracles._types import Array, Labels
from tests.oracles.finite import central_difference
from tests.oracles.nested import nested_ep
from tests.problems import PROBLEMS, TIGHT, problem, rbf


@parametrize_with_checks([GPClassifier()])
def test_scikit_learn_contract(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def iris() -> tuple[Array, Labels]:
    X, y = load_iris(return_X_y=True)
    return X[::2], y[::2]


@pytest.fixture(scope="module")
def fitted(iris: tuple[Array, Labels]) -> GPClassifier:
    return GPClassifier().fit(*iris)


def fixed(**options: Any) -> GPClassifier:
    """Without a search: quick, and exact to compare."""
    return GPClassifier(rbf(2.0, 0.5), optimizer=None, **options)


# --- what fit leaves behind ---


def test_attributes(fitted: GPClassifier, iris: tuple[Array, Labels]) -> None:
    X, y = iris
    assert_array_equal(fitted.classes_, [0, 1, 2])
    assert fitted.n_features_in_ == 4
    assert fitted.status_ is Status.CONVERGED
    assert fitted.n_iter_ == len(fitted.history_) >= 1
    assert fitted.loo_log_proba_.shape == (75,)
    assert (fitted.loo_log_proba_ < 0).all()
    assert fitted.kernel_.k2.length_scale.shape == (4,)
    assert fitted.search_.success
    assert fitted.score(X, y) > 0.95
    assert fitted.log_marginal_likelihood() == fitted.log_marginal_likelihood_value_


def test_the_search_improves_the_evidence_and_the_parameter_stays(iris: tuple[Array, Labels]) -> None:
    kernel = ConstantKernel(1.0) * RBF(1.0)
    clf = GPClassifier(kernel, prior=None).fit(*iris)
    assert clf.kernel is kernel
    assert_allclose(kernel.theta, 0.0)
    assert clf.log_marginal_likelihood_value_ > clf.log_marginal_likelihood(np.zeros(2)) + 1.0
    assert_allclose(
        clf.log_marginal_likelihood(clf.kernel_.theta), clf.log_marginal_likelihood_value_, atol=1e-6
    )


def test_the_evidence_never_includes_the_prior(iris: tuple[Array, Labels]) -> None:
    X, y = iris
    with_prior = GPClassifier(rbf(1.0, 0.0)).fit(X, y)
    without = GPClassifier(with_prior.kernel_, prior=None, optimizer=None).fit(X, y)
    assert with_prior.log_marginal_likelihood_value_ == pytest.approx(
        without.log_marginal_likelihood_value_, abs=1e-6
    )
    assert with_prior.search_.objective < with_prior.log_marginal_likelihood_value_ - 1.0


@pytest.mark.parametrize("name", PROBLEMS)
def test_fixed_hyperparameters_give_the_oracles_evidence(name: str) -> None:
    p = problem(name)
    clf = GPClassifier(p.kernel, optimizer=None, inference=NestedEP(tol=TIGHT)).fit(p.X, p.y)
    assert clf.log_marginal_likelihood_value_ == pytest.approx(
        nested_ep(*p.inputs(), tol=1e-12).log_z, abs=1e-9
    )
    assert clf.search_ is None


@pytest.mark.parametrize("name", ["tiny", "per class", "many classes"])
def test_log_marginal_likelihood_and_its_gradient(name: str) -> None:
    p = problem(name)
    clf = GPClassifier(p.kernel, optimizer=None, inference=NestedEP(tol=1e-10)).fit(p.X, p.y)
    theta = kernels.theta(clf.kernel_) + 0.1
    value, gradient = clf.log_marginal_likelihood(theta, eval_gradient=True)
    assert value == clf.log_marginal_likelihood(theta)
    numeric = central_difference(lambda t: clf.log_marginal_likelihood(t), theta, 2e-3, richardson=True)
    assert_allclose(gradient, numeric, rtol=0, atol=1e-8)
    at_fit = clf.log_marginal_likelihood(eval_gradient=True)
    assert at_fit[0] == pytest.approx(clf.log_marginal_likelihood_value_, abs=1e-9)


def test_a_kernel_per_class(iris: tuple[Array, Labels]) -> None:
    X, y = iris
    kernel = [rbf(1.0, 0.0), ConstantKernel(1.0) * Matern(1.0, nu=1.5), rbf(1.0, 0.0, 0.0, 0.0, 0.0)]
    clf = GPClassifier(kernel).fit(X, y)
    assert isinstance(clf.kernel_, list)
    assert [k.n_dims for k in clf.kernel_] == [2, 2, 5]
    assert clf.log_marginal_likelihood(kernels.theta(clf.kernel_)) == pytest.approx(
        clf.log_marginal_likelihood_value_, abs=1e-6
    )
    assert clf.score(X, y) > 0.95
    # The same kernel three times is the shared one.
    repeated = GPClassifier([rbf(2.0, 0.5)] * 3, optimizer=None).fit(X, y)
    assert_allclose(repeated.predict_proba(X), fixed().fit(X, y).predict_proba(X), rtol=0, atol=1e-7)


# --- prediction ---


@pytest.mark.parametrize("rule", ["auto", "ep", "exact"])
def test_probabilities_are_consistent(rule: str, iris: tuple[Array, Labels]) -> None:
    X, y = iris
    clf = fixed(probabilities=rule).fit(X, y)
    p = clf.predict_proba(X)
    assert_allclose(p.sum(axis=1), 1.0, atol=1e-14)
    assert_allclose(np.exp(clf.predict_log_proba(X)), p, rtol=1e-12)
    assert_array_equal(clf.predict(X), clf.classes_[p.argmax(axis=1)])


def test_probabilities_do_not_depend_on_the_batch(
    fitted: GPClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.random.default_rng(0).uniform(0.0, 8.0, (200, 4))
    whole = fitted.predict_proba(X)
    assert_array_equal(fitted.predict_proba(X), whole)
    assert_allclose(
        np.vstack([fitted.predict_proba(X[i : i + 1]) for i in range(200)]), whole, rtol=0, atol=1e-12
    )
    mean, cov = fitted.predict_latent(X)
    monkeypatch.setattr("nestgp.classifier.PREDICT_MEMORY", 1)  # sixteen rows at a time
    assert_allclose(fitted.predict_proba(X), whole, rtol=0, atol=1e-12)
    again = fitted.predict_latent(X)
    assert_allclose(again[0], mean, rtol=1e-10, atol=1e-12)
    assert_allclose(again[1], cov, rtol=1e-10, atol=1e-12)


def test_latents_at_the_training_rows_are_the_posterior(iris: tuple[Array, Labels]) -> None:
    X, y = iris
    clf = fixed(inference=NestedEP(tol=1e-10)).fit(X, y)
    mean, cov = clf.predict_latent(X)
    assert mean.shape == (75, 3)
    assert cov.shape == (75, 3, 3)
    assert_allclose(mean, clf.posterior_.gaussian.mean, rtol=0, atol=1e-9)
    assert_allclose(cov, clf.posterior_.gaussian.covariance, rtol=0, atol=1e-8)


def test_far_from_the_data_nothing_is_known(fitted: GPClassifier) -> None:
    p = fitted.predict_proba(np.full((1, 4), 1e6))
    assert_allclose(p, 1 / 3, atol=1e-12)
    mean, cov = fitted.predict_latent(np.full((1, 4), 1e6))
    assert_allclose(mean, 0.0, atol=1e-12)
    assert_allclose(cov[0], fitted.kernel_.k1.constant_value * np.eye(3), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("log_s2", "each", "mean"), [(0.0, 0.01, 0.003), (1.5, 0.06, 0.004), (4.0, 0.5, 0.04)]
)
def test_leave_one_out_against_refits_without_the_row(log_s2: float, each: float, mean: float) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(25) % 3
    X = np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])[y] + rng.standard_normal((25, 2))
    clf = GPClassifier(rbf(log_s2, 0.3), optimizer=None).fit(X, y)
    refits = np.empty(25)
    for i in range(25):
        others = np.arange(25) != i
        one = GPClassifier(rbf(log_s2, 0.3), optimizer=None).fit(X[others], y[others])
        refits[i] = one.predict_log_proba(X[i : i + 1])[0, y[i]]
    # The cavity keeps the other sites as they are with row i present. Measured: 0.006, 0.044 and 0.43 for the
    # worst row (one whose label surprises), 0.0016, 0.0021 and 0.030 for the mean of −0.68, −0.56 and −0.66.
    assert np.abs(clf.loo_log_proba_ - refits).max() <= each
    assert abs(clf.loo_log_proba_.mean() - refits.mean()) <= mean
    training = clf.predict_log_proba(X)[np.arange(25), y]
    assert (clf.loo_log_proba_ < training).all()  # and it is not the training density


# --- scikit-learn around it ---


def test_string_labels_and_pandas(iris: tuple[Array, Labels]) -> None:
    X, y = iris
    names = np.array(["setosa", "versicolor", "virginica"])
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    plain, named = fixed().fit(X, y), fixed().fit(frame, pd.Series(names[y]))
    assert_array_equal(named.classes_, names)
    assert_array_equal(named.feature_names_in_, ["a", "b", "c", "d"])
    assert_array_equal(named.predict(frame), names[plain.predict(X)])
    assert_array_equal(named.predict_proba(frame), plain.predict_proba(X))


@pytest.mark.parametrize("labels", [["z", "a", "m"], [10, -3, 7], [2.0, 0.0, 5.0], [True, False]])
def test_columns_follow_the_sorted_labels(labels: list[Any], iris: tuple[Array, Labels]) -> None:
    X, y = iris
    keep = y < len(labels)
    X, y = X[keep], y[keep]
    relabelled = np.array(labels)[y]
    order = np.argsort(labels)
    plain, other = (fixed(inference=NestedEP(tol=1e-9)).fit(X, labels) for labels in (y, relabelled))
    assert_array_equal(other.classes_, np.sort(np.unique(relabelled)))
    assert_allclose(other.predict_proba(X), plain.predict_proba(X)[:, order], rtol=0, atol=1e-7)
    assert other.log_marginal_likelihood_value_ == pytest.approx(
        plain.log_marginal_likelihood_value_, abs=1e-7
    )


def test_clone_and_parameters() -> None:
    clf = GPClassifier(rbf(1.0, 0.0), inference=NestedEP(damping=0.8), n_restarts=2, random_state=3)
    copy = clone(clf)
    assert copy.get_params()["inference"] == NestedEP(damping=0.8)
    assert copy.kernel is not clf.kernel
    assert copy.kernel == clf.kernel
    assert not hasattr(copy, "classes_")
    assert copy.set_params(optimizer=None).optimizer is None


def test_pickle_round_trip(fitted: GPClassifier, iris: tuple[Array, Labels]) -> None:
    back = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(back.predict_proba(iris[0]), fitted.predict_proba(iris[0]))
    assert (
        back.log_marginal_likelihood(eval_gradient=True)[0]
        == fitted.log_marginal_likelihood(eval_gradient=True)[0]
    )
    assert back.status_ is Status.CONVERGED


def test_the_callers_array_may_change_after_the_fit(iris: tuple[Array, Labels]) -> None:
    X, y = np.array(iris[0]), iris[1]
    clf = GPClassifier(rbf(1.0, 0.0), optimizer=None).fit(X, y)
    before = clf.predict_proba(iris[0][:5])
    X /= 10.0
    assert_array_equal(clf.predict_proba(iris[0][:5]), before)


@pytest.mark.parametrize("inference", ["ep", "laplace", "vb", "iep"])
def test_a_prior_beyond_double_precision_is_no_crash(inference: str, iris: tuple[Array, Labels]) -> None:
    X, y = iris[0][::3], iris[1][::3]
    clf = GPClassifier(ConstantKernel(1e30, "fixed") * RBF(1.0, "fixed"), inference=inference)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clf.fit(X, y)
        loo = clf.loo_log_proba_
    assert loo.shape == y.shape
    assert np.all(np.isnan(loo) | (loo <= 0.0))


def test_parameters_changed_after_the_fit_count_from_the_next_one(iris: tuple[Array, Labels]) -> None:
    X, y = iris
    clf = GPClassifier(rbf(1.0, 0.0), optimizer=None).fit(X, y)
    before, evidence = clf.predict_proba(X[:3]), clf.log_marginal_likelihood(eval_gradient=True)[0]
    for change in ({"inference": "laplace"}, {"probabilities": "tkp"}, {"inference": "gibbs", "probabilities": "auto"}):
        clf.set_params(**change)
        assert_array_equal(clf.predict_proba(X[:3]), before)
        assert clf.log_marginal_likelihood(eval_gradient=True)[0] == evidence
    clf.set_params(inference="laplace").fit(X, y)
    assert np.abs(clf.predict_proba(X[:3]) - before).max() > 1e-3


def test_a_fit_that_fails_leaves_the_one_before(iris: tuple[Array, Labels]) -> None:
    X, y = iris
    clf = GPClassifier(rbf(1.0, 0.0), optimizer=None).fit(X, y)
    before = clf.predict_proba(X[:3])
    bad = {"one class only": (X[:, :2], np.zeros(len(y))), "inconsistent": (X, y[:-1]), "NaN": (X[:, :2] * np.nan, y)}
    for message, data in bad.items():
        with pytest.raises(ValueError, match=message):
            clf.fit(*data)
        assert_array_equal(clf.predict_proba(X[:3]), before)
    assert clf.n_features_in_ == X.shape[1]


def test_fitting_twice_is_fitting_once(iris: tuple[Array, Labels]) -> None:
    X, y = iris
    clf = GPClassifier(rbf(1.0, 0.0))
    first = clf.fit(X, y).predict_proba(X)
    clf.fit(X[:40], y[:40])
    assert_array_equal(clf.fit(X, y).predict_proba(X), first)


def test_pipeline_grid_search_and_cross_validation(iris: tuple[Array, Labels]) -> None:
    X, y = iris
    pipe = make_pipeline(StandardScaler(), fixed())
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    assert cross_val_score(pipe, X, y, cv=folds, scoring="neg_log_loss").mean() > -0.4
    p = cross_val_predict(pipe, X, y, cv=folds, method="predict_proba")
    assert p.shape == (75, 3)
    assert_allclose(p.sum(axis=1), 1.0)
    grid = {"gpclassifier__kernel": [rbf(2.0, -4.0), rbf(2.0, 0.5)]}
    search = GridSearchCV(pipe, grid, cv=folds, scoring="neg_log_loss").fit(X, y)
    assert search.best_params_["gpclassifier__kernel"] == rbf(2.0, 0.5)  # the other one is far too short


def test_calibration_display() -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 2))
    y = (X[:, 0] + rng.standard_normal(80) > 0).astype(int)
    clf = GPClassifier(rbf(0.5, 1.0), optimizer=None).fit(X, y)
    display = CalibrationDisplay.from_estimator(clf, X, y, n_bins=4)
    expected = calibration_curve(y, clf.predict_proba(X)[:, 1], n_bins=4)
    assert_allclose(display.prob_true, expected[0])
    plt.close("all")


# --- search ---


def test_restarts_are_reproducible_and_never_worse(iris: tuple[Array, Labels]) -> None:
    X, y = iris[0][::2], iris[1][::2]
    kernel = rbf(-3.0, 3.0)
    alone = GPClassifier(kernel).fit(X, y)
    runs = [GPClassifier(kernel, n_restarts=1, random_state=1, n_jobs=jobs).fit(X, y) for jobs in (None, 2)]
    assert runs[0].search_.objective >= alone.search_.objective - 1e-9
    assert_allclose(runs[1].kernel_.theta, runs[0].kernel_.theta, atol=1e-10)


def test_default_kernel_does_not_see_the_units_of_the_columns(iris: tuple[Array, Labels]) -> None:
    X, y = iris
    X_new = np.random.default_rng(1).uniform(X.min(axis=0), X.max(axis=0), (30, 4))
    scale, offset = np.array([1000.0, 1e-3, 7.0, 1.0]), np.array([5.0, -1.0, 1e3, 0.0])
    plain = GPClassifier().fit(X, y)
    moved = GPClassifier().fit(X * scale + offset, y)
    assert moved.log_marginal_likelihood_value_ == pytest.approx(
        plain.log_marginal_likelihood_value_, abs=1e-4
    )
    # The two searches see the same numbers up to rounding, and end within the optimiser's tolerance.
    assert_allclose(
        moved.predict_proba(X_new * scale + offset), plain.predict_proba(X_new), rtol=0, atol=1e-4
    )


def test_one_lengthscale_above_thirty_columns() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 31))
    y = np.arange(20) % 2
    X[:, 0] += 4 * y
    assert np.ndim(GPClassifier().fit(X, y).kernel_.k2.length_scale) == 0
    assert GPClassifier().fit(X[:, :30], y).kernel_.k2.length_scale.shape == (30,)


def test_a_kernel_without_free_hyperparameters_needs_no_search(iris: tuple[Array, Labels]) -> None:
    kernel = ConstantKernel(7.0, "fixed") * RBF(1.6, "fixed")
    clf = GPClassifier(kernel).fit(*iris)
    assert clf.search_ is None
    assert clf.kernel_ == kernel


def test_a_start_outside_the_bounds_is_moved_inside(iris: tuple[Array, Labels]) -> None:
    kernel = ConstantKernel(1e4, (0.1, 10.0)) * RBF(1.0, (0.5, 2.0))
    clf = GPClassifier(kernel).fit(*iris)
    assert 0.1 <= clf.kernel_.k1.constant_value <= 10.0 * (1 + 1e-12)


class OnlyInfers:
    """An inference of a user's own: nothing but the one method that the seam asks for."""

    def infer(self, K: Array, y: Labels, n_classes: int, init: Any = None) -> Any:
        return NestedEP(damping=0.5).infer(K, y, n_classes, init)


def test_an_inference_object_needs_only_its_method_infer(iris: tuple[Array, Labels]) -> None:
    X, y = iris
    own = fixed(inference=OnlyInfers()).fit(X, y)
    assert_allclose(own.predict_proba(X), fixed().fit(X, y).predict_proba(X), rtol=0, atol=1e-5)
