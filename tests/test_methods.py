"""What holds for every inference method on every problem; the contract of the loop itself is in test_loop.py."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import block_diag
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from nestgp import GPClassifier, kernels, predict
from nestgp.classifier import INFERENCES
from nestgp.inference import Fit, Inference, Status
from nestgp.kernel_gradient import contract
from nestgp.posterior import ProcessPosterior
from tests.oracles._types import Array
from tests.oracles.dense import stacked_prior
from tests.oracles.finite import central_difference
from tests.problems import METHODS, PROBLEMS, Problem, clusters, problem, rbf

#: Every method as a user first meets it.
DEFAULTS: dict[str, Any] = {name: INFERENCES[name]() for name in ("ep", "iep", "qiep", "vb", "laplace")}
#: The methods whose fixed points test_nested_ep.py does not compare already.
OTHERS = {name: method for name, method in METHODS.items() if name in ("iep", "iep incremental", "qiep", "vb", "laplace")}

DEFAULTS_BY_NAME = pytest.mark.parametrize("method", DEFAULTS.values(), ids=DEFAULTS.keys())
#: One per method: the incremental schedule has the fixed point of the whole one.
ONE_EACH = ("iep", "qiep", "vb", "laplace")
ONE_EACH_BY_NAME = pytest.mark.parametrize("method", [OTHERS[k] for k in ONE_EACH], ids=ONE_EACH)
OTHERS_BY_NAME = pytest.mark.parametrize("method", OTHERS.values(), ids=OTHERS.keys())
PROBLEMS_BY_NAME = pytest.mark.parametrize("name", PROBLEMS)


def scale_of(p: Problem) -> float:
    """Standard deviation of the prior: the unit of latent means."""
    return float(np.sqrt(np.diagonal(p.K, axis1=-2, axis2=-1).max()))


def probabilities(method: Any, p: Problem, fit: Fit, X: Array) -> Array:
    """Class probabilities at the rows of X by the method's own rule, (m, c)."""
    latent = ProcessPosterior(p.kernel, p.X, fit.posterior).latent(X)
    return np.exp(predict.class_probabilities(*latent, method.default_rule, method.likelihood))


def test_the_list_of_methods_is_complete() -> None:
    deterministic = {method for method in INFERENCES.values() if hasattr(method, "infer")}
    assert {type(m) for m in METHODS.values()} == {type(m) for m in DEFAULTS.values()} == deterministic
    assert len(OTHERS) == 5


@PROBLEMS_BY_NAME
@DEFAULTS_BY_NAME
def test_default_options_converge(method: Any, name: str) -> None:
    p = problem(name)
    fit = method.infer(*p.inputs())
    assert fit.status is Status.CONVERGED
    assert fit.residual <= method.tol
    assert fit.n_iter <= 200


@PROBLEMS_BY_NAME
@DEFAULTS_BY_NAME
def test_class_probabilities_are_probabilities(method: Any, name: str) -> None:
    p = problem(name)
    X = 2.0 * np.random.default_rng(0).standard_normal((10, p.X.shape[1]))
    found = probabilities(method, p, method.infer(*p.inputs()), X)
    assert found.shape == (10, p.n_classes)
    assert (found >= 0).all()
    assert_allclose(found.sum(axis=1), 1.0, atol=1e-13)


@PROBLEMS_BY_NAME
@ONE_EACH_BY_NAME
def test_permuted_labels_permute_the_predictions(method: Any, name: str) -> None:
    p = problem(name)
    c = p.n_classes
    order = np.roll(np.arange(c), 1)
    kernel = p.kernel if not isinstance(p.kernel, list) else [p.kernel[k] for k in np.argsort(order)]
    q = Problem("permuted", p.X, order[p.y], c, kernel)
    X = np.random.default_rng(0).standard_normal((6, p.X.shape[1]))
    plain, permuted = (probabilities(method, r, method.infer(*r.inputs()), X) for r in (p, q))
    # Softmax by quasi-Monte Carlo meets the classes in another order.
    assert_allclose(permuted[:, order], plain, rtol=0, atol=1e-4 if method.likelihood == "softmax" else 1e-8)


# --- the evidence and its gradient ---


@PROBLEMS_BY_NAME
@ONE_EACH_BY_NAME
def test_gradient_against_differences(method: Any, name: str) -> None:
    p = problem(name)

    def log_z(theta: Array) -> float:
        return float(method.infer(kernels.gram(kernels.with_theta(p.kernel, theta), p.X), p.y, p.n_classes).log_evidence)

    gradient = contract(p.kernel, p.X, method.infer(*p.inputs()).evidence_grad)
    numeric = central_difference(log_z, kernels.theta(p.kernel), 4e-3, richardson=True)
    # Residual of the differences: h⁴, and for "hard" the sites' own tolerance over the step.
    assert_allclose(gradient, numeric, rtol=0, atol=1e-8 if name != "hard" else 1e-6)
    assert np.abs(gradient).max() > 1e-2


@pytest.mark.parametrize("name", ["tiny", "per class"])
@OTHERS_BY_NAME
def test_gradient_by_the_matrix_itself(method: Inference, name: str) -> None:
    p = problem(name)
    K = p.K + 0.1 * np.eye(len(p.y))
    direction = np.random.default_rng(1).standard_normal(K.shape)
    direction += np.swapaxes(direction, -1, -2)
    gradient = method.infer(K, p.y, 3).evidence_grad
    numeric = central_difference(lambda t: method.infer(K + t * direction, p.y, 3).log_evidence, 0.0, 2e-3, richardson=True)
    assert np.sum(gradient * direction) == pytest.approx(float(numeric), abs=2e-8)
    assert_allclose(gradient, np.swapaxes(gradient, -1, -2), rtol=0, atol=1e-13)


# --- the posterior belongs to the sites ---


def dense_sites(fit: Fit) -> tuple[Array, Array]:
    """Precision (cn, cn) and location (cn,) of all sites, class-major."""
    assert fit.site_moments is not None
    precision, location = fit.site_moments()
    n, c = location.shape
    T = block_diag(*precision).reshape(n, c, n, c).transpose(1, 0, 3, 2).reshape(c * n, c * n)
    return T, location.T.ravel()


@PROBLEMS_BY_NAME
@OTHERS_BY_NAME
def test_posterior_is_that_of_the_sites_by_dense_matrices(method: Inference, name: str) -> None:
    p = problem(name)
    n, c, s = len(p.y), p.n_classes, scale_of(p)
    fit = method.infer(*p.inputs())
    T, nu = dense_sites(fit)
    K = stacked_prior(p.K, c)
    solve = np.linalg.solve(np.eye(c * n) + K @ T, np.column_stack([K, K @ nu]))
    assert_allclose(fit.posterior.mean.T.ravel(), solve[:, -1], rtol=0, atol=1e-8 * s)
    Sigma = solve[:, :-1].reshape(c, n, c, n)
    marginals = Sigma[:, np.arange(n), :, np.arange(n)]
    assert_allclose(fit.posterior.covariance, marginals, rtol=0, atol=1e-9 * s**2)
    assert_allclose(K @ fit.posterior.b.ravel(), solve[:, -1], rtol=0, atol=1e-8 * s)


@PROBLEMS_BY_NAME
@OTHERS_BY_NAME
def test_predictions_are_those_of_dense_matrices(method: Inference, name: str) -> None:
    p = problem(name)
    n, c, s = len(p.y), p.n_classes, scale_of(p)
    fit = method.infer(*p.inputs())
    T, nu = dense_sites(fit)
    K = stacked_prior(p.K, c)
    M = T @ np.linalg.inv(np.eye(c * n) + K @ T)
    X = np.random.default_rng(0).standard_normal((5, p.X.shape[1]))
    k_star, prior = kernels.cross(p.kernel, p.X, X), kernels.diagonal(p.kernel, X)
    mean, cov = fit.posterior.at(k_star, prior)
    for t in range(5):
        columns = [k_star[:, [t]]] * c if k_star.ndim == 2 else [k_star[k][:, [t]] for k in range(c)]
        K_t = block_diag(*columns)
        K_tt = np.diag(np.broadcast_to(prior, (c, 5))[:, t])
        assert_allclose(mean[t], K_t.T @ (nu - M @ K @ nu), rtol=0, atol=1e-8 * s)
        assert_allclose(cov[t], K_tt - K_t.T @ M @ K_t, rtol=0, atol=1e-9 * s**2)


@PROBLEMS_BY_NAME
@OTHERS_BY_NAME
def test_predicting_the_training_rows_is_the_posterior(method: Inference, name: str) -> None:
    p = problem(name)
    fit = method.infer(*p.inputs())
    # WhiteKernel is noise: it is in K(X, X) and not between equal rows of two sets.
    mean, cov = fit.posterior.at(p.K, np.diagonal(p.K, axis1=-2, axis2=-1))
    assert_allclose(mean, fit.posterior.mean, rtol=0, atol=1e-9 * scale_of(p))
    assert_allclose(cov, fit.posterior.covariance, rtol=0, atol=1e-9 * scale_of(p) ** 2)


@PROBLEMS_BY_NAME
@OTHERS_BY_NAME
def test_cavity_times_site_is_the_marginal(method: Inference, name: str) -> None:
    p = problem(name)
    fit = method.infer(*p.inputs())
    assert fit.site_moments is not None
    precision, location = fit.site_moments()
    s = scale_of(p)
    for i, (m, V) in enumerate(zip(*fit.cavities(), strict=True)):
        A = np.eye(p.n_classes) + V @ precision[i]
        assert_allclose(np.linalg.solve(A, m + V @ location[i]), fit.posterior.mean[i], rtol=0, atol=1e-9 * s)
        assert_allclose(np.linalg.solve(A, V), fit.posterior.covariance[i], rtol=0, atol=1e-9 * s**2)
        assert np.linalg.eigvalsh(V).min() > 0


# --- extremes ---

SPREAD = {
    "overlapping": (problem("overlapping").X, problem("overlapping").y, 4),
    "clusters": (clusters(0.0, 0.0).X, clusters(0.0, 0.0).y, 3),
    "identical rows": (np.ones((9, 2)), np.arange(9) % 3, 3),
    "two rows of four classes": (np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([0, 3]), 4),
}


@pytest.mark.parametrize("log_s2", [-10.0, 0.0, 6.0, 12.0, 20.0])
@pytest.mark.parametrize("data", SPREAD)
@pytest.mark.parametrize("method", [DEFAULTS[k] for k in ONE_EACH], ids=ONE_EACH)
def test_extreme_hyperparameters_end_in_probabilities_and_an_honest_status(method: Any, data: str, log_s2: float) -> None:
    X, y, c = SPREAD[data]
    X_new = np.random.default_rng(3).standard_normal((4, 2))
    for length in (1e-3, 1.0, 100.0, 1e5):
        p = Problem(data, X, y, c, rbf(log_s2, np.log(length)))
        fit = method.infer(*p.inputs())
        assert np.isfinite(fit.log_evidence)
        assert np.isfinite(fit.posterior.mean).all()
        assert np.isfinite(fit.evidence_grad).all()
        # Of these 80, 15 (iep), 11 (qiep) and 2 (vb) do not converge, all at log σ² >= 6: they say so, and none diverges.
        assert fit.status is (Status.CONVERGED if fit.residual <= method.tol else Status.MAX_ITERATIONS)
        assert fit.converged or (log_s2 >= 6.0 and method.likelihood == "probit")
        found = probabilities(method, p, fit, X_new)
        assert np.isfinite(found).all()
        assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)


@DEFAULTS_BY_NAME
def test_a_latent_without_prior_variance(method: Any) -> None:
    """f(0) = 0 under a linear kernel: the other rows are as they are without that row, which costs a factor 1/c of evidence."""
    X = np.random.default_rng(0).standard_normal((12, 2))
    y = np.arange(12) % 3
    X[0] = 0.0
    fit, without = (method.infer(4.0 * X[rows] @ X[rows].T, y[rows], 3) for rows in (slice(0, None), slice(1, None)))
    assert fit.status is without.status is Status.CONVERGED
    assert_allclose(fit.posterior.mean[0], 0.0, atol=1e-12)
    assert_allclose(fit.posterior.mean[1:], without.posterior.mean, atol=1e-4)
    assert fit.log_evidence == pytest.approx(without.log_evidence - np.log(3.0), abs=2e-3)  # inner EP's own error of 1/3


@DEFAULTS_BY_NAME
def test_no_signal_is_the_uniform_distribution(method: Any) -> None:
    X, y, c = SPREAD["overlapping"]
    p = Problem("no signal", X, y, c, rbf(np.log(1e-12), 0.0))
    fit = method.infer(*p.inputs())
    assert fit.status is Status.CONVERGED
    # Exact for quadrature, the bound and softmax; inner EP's own log Z of a uniform class is 1% off.
    rel = 0.01 if method.default_rule == "ep" else 1e-9
    assert fit.log_evidence == pytest.approx(-len(y) * np.log(c), rel=rel)
    assert_allclose(probabilities(method, p, fit, X), 1 / c, atol=1e-5)


# --- the estimator ---

NAMES_BY_NAME = pytest.mark.parametrize("inference", [*DEFAULTS, "ep-tkp", "laplace-tkp"])


def blobs(n: int = 30) -> tuple[Array, Array]:
    """Three overlapping classes in the plane, named, not in the order of their codes."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    X = np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])[y] + rng.standard_normal((n, 2))
    return X, np.array(["red", "green", "blue"])[y]


@NAMES_BY_NAME
def test_short_scikit_learn_contract(inference: str) -> None:
    X, y = blobs()
    X_new = np.random.default_rng(1).standard_normal((6, 2))
    clf = GPClassifier(rbf(1.0, 0.3), inference=inference, optimizer=None)
    copy = clone(clf).fit(X, y)
    assert copy.inference == inference
    assert not hasattr(clf, "classes_")
    assert_array_equal(copy.classes_, ["blue", "green", "red"])
    assert copy.status_ is Status.CONVERGED
    p = copy.predict_proba(X_new)
    assert p.shape == (6, 3)
    assert_allclose(p.sum(axis=1), 1.0, atol=1e-13)
    assert_allclose(np.exp(copy.predict_log_proba(X_new)), p, rtol=1e-12)
    assert_array_equal(copy.predict(X_new), copy.classes_[p.argmax(axis=1)])
    assert copy.score(X, y) > 0.6
    back = pickle.loads(pickle.dumps(copy))
    assert_array_equal(back.predict_proba(X_new), p)
    mean, cov = copy.predict_latent(X_new)
    assert mean.shape == (6, 3)
    assert cov.shape == (6, 3, 3)
    one_by_one = np.vstack([copy.predict_proba(x[None]) for x in X_new])
    assert_allclose(one_by_one, p, rtol=0, atol=1e-6 if "tkp" in inference else 1e-12)


@NAMES_BY_NAME
def test_log_marginal_likelihood_and_its_gradient(inference: str) -> None:
    X, y = blobs()
    clf = GPClassifier(rbf(1.0, 0.3, 0.1), inference=inference, optimizer=None).fit(X, y)
    theta = clf.kernel_.theta + 0.1
    value, gradient = clf.log_marginal_likelihood(theta, eval_gradient=True)
    assert value == clf.log_marginal_likelihood(theta)
    numeric = central_difference(lambda t: clf.log_marginal_likelihood(t), theta, 1e-2, richardson=True)
    assert_allclose(gradient, numeric, rtol=0, atol=2e-5)  # default tolerances: Laplace's evidence is not stationary
    assert clf.log_marginal_likelihood() == clf.log_marginal_likelihood_value_


@pytest.mark.parametrize("inference", ["iep", "vb", "laplace", "qiep"])
def test_the_search_raises_the_evidence(inference: str) -> None:
    X, y = blobs()
    start = rbf(0.0, 0.0)
    clf = GPClassifier(start, inference=inference, prior=None).fit(X, y)
    assert clf.status_ is Status.CONVERGED
    assert clf.log_marginal_likelihood_value_ >= clf.log_marginal_likelihood(start.theta) + 0.05
    gradient = clf.log_marginal_likelihood(eval_gradient=True)[1]
    inside = np.abs(clf.kernel_.theta - clf.kernel_.bounds.T).min(axis=0) > 1e-3
    assert_allclose(gradient[inside], 0.0, atol=2e-2)


#: Largest difference of a row's leave-one-out log probability from a refit without it, and of their mean: measured 0.096 and
#: −0.043 (iep, qiep: cavities that know too little), 0.105 and +0.041 (vb: too much), 0.003 and −0.001 (laplace), of −0.66.
LEAVE_ONE_OUT = {"iep": (0.11, 0.05), "qiep": (0.11, 0.05), "vb": (0.12, 0.05), "laplace": (0.004, 0.002)}


@pytest.mark.parametrize("inference", LEAVE_ONE_OUT)
def test_leave_one_out_against_refits_without_the_row(inference: str) -> None:
    X, y = blobs(24)
    clf = GPClassifier(rbf(0.0, 0.3), inference=inference, optimizer=None).fit(X, y)
    codes = np.searchsorted(clf.classes_, y)
    refits = np.empty(24)
    method = DEFAULTS[inference]
    for i in range(24):
        others = np.arange(24) != i
        rest = Problem("one less", X[others], codes[others], 3, rbf(0.0, 0.3))
        refits[i] = np.log(probabilities(method, rest, method.infer(*rest.inputs()), X[i : i + 1])[0, codes[i]])
    each, mean = LEAVE_ONE_OUT[inference]
    assert np.abs(clf.loo_log_proba_ - refits).max() <= each
    assert abs(clf.loo_log_proba_.mean() - refits.mean()) <= mean
    assert (clf.loo_log_proba_ < clf.predict_log_proba(X)[np.arange(24), codes]).all()


@pytest.mark.parametrize("inference", ["iep", "vb", "laplace"])
def test_stopping_early_warns(inference: str) -> None:
    X, y = blobs()
    cut = type(DEFAULTS[inference])(max_iter=2)
    with pytest.warns(ConvergenceWarning, match="max_iterations after 2 iterations"):
        clf = GPClassifier(rbf(3.0, 0.3), inference=cut, optimizer=None).fit(X, y)
    assert clf.status_ is Status.MAX_ITERATIONS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_allclose(clf.predict_proba(X).sum(axis=1), 1.0)


@pytest.mark.slow
@parametrize_with_checks([GPClassifier(inference=name) for name in ("iep", "vb", "laplace")])
def test_scikit_learn_contract(estimator: Any, check: Any) -> None:
    check(estimator)
