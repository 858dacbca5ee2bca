"""Nested EP against the values of the authors' own implementation."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.gaussian_process.kernels import Kernel

from nestgp import GPClassifier, kernels, predict
from nestgp.inference import Fit, NestedEP
from nestgp.kernel_gradient import contract
from tests.oracles.reference import ReferenceCase, load_case, reference_directory
from tests.problems import rbf

CASES = ["A_toy1d", "B_2d_c4_s2_l0.5", "D_ard_d3"]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, ReferenceCase]:
    """Name and values of a case; the reference files are not part of the repository."""
    try:
        return request.param, load_case(request.param)
    except FileNotFoundError:
        pytest.skip(f"no reference values in {reference_directory()}; set NESTGP_SHARED to the folder above")


@cache
def solved(name: str) -> Fit:
    values = load_case(name)
    return NestedEP(tol=1e-11).infer(values.K, values.y, values.n_classes)


def kernel_of(case: ReferenceCase) -> Kernel:
    """The case's kernel as scikit-learn's; its θ is in the order of the reference gradient."""
    setting = case.values["inputs"]["kernel"]
    return rbf(setting["log_sigma2"], *np.atleast_1d(setting["log_lengthscale"]))


def test_evidence(case: tuple[str, ReferenceCase]) -> None:
    name, values = case
    fit = solved(name)
    assert fit.converged
    assert fit.log_evidence == pytest.approx(values.values["ep"]["logZ"], abs=1e-8)


def test_gradient(case: tuple[str, ReferenceCase]) -> None:
    name, values = case
    expected = values.values["ep"]["grad_logZ"]
    gradient = [np.sum(solved(name).evidence_grad * dK) for dK in values.dK]
    assert_allclose(gradient, expected, rtol=0, atol=1e-8)
    kernel, X = kernel_of(values), np.array(values.values["inputs"]["X"])
    assert_allclose(kernels.gram(kernel, X), values.K, rtol=1e-13)
    assert_allclose(contract(kernel, X, solved(name).evidence_grad), expected, rtol=0, atol=1e-8)


def test_sites(case: tuple[str, ReferenceCase]) -> None:
    name, values = case
    alpha, beta = solved(name).sites
    assert_allclose(alpha, values.values["ep"]["site_alpha"], rtol=0, atol=1e-8)
    assert_allclose(beta, values.values["ep"]["site_beta"], rtol=0, atol=1e-8)


def test_posterior_at_the_training_points(case: tuple[str, ReferenceCase]) -> None:
    name, values = case
    posterior = solved(name).posterior
    assert_allclose(posterior.mean, values.values["ep"]["train_mean"], rtol=0, atol=1e-8)
    assert_allclose(posterior.covariance, values.values["ep"]["train_cov"], rtol=0, atol=1e-8)


def test_predictions(case: tuple[str, ReferenceCase]) -> None:
    name, values = case
    ep = values.values["ep"]
    mean, cov = solved(name).posterior.at(values.Kstar, values.Kss)
    assert_allclose(mean, ep["test_mean"], rtol=0, atol=1e-8)
    assert_allclose(cov, ep["test_cov"], rtol=0, atol=1e-8)
    raw = np.exp(predict.ep_log_probabilities(mean, cov))
    assert_allclose(raw, ep["test_prob_unnormalised_converged"], rtol=0, atol=1e-8)
    # The reference stops inner EP after 20 sweeps or at 1e-6.
    normalised = np.exp(predict.class_probabilities(mean[None], cov[None], "ep"))
    assert_allclose(normalised, ep["test_prob"], rtol=0, atol=1e-6)


def test_exact_probabilities(case: tuple[str, ReferenceCase]) -> None:
    _, values = case
    ep = values.values["ep"]
    mean, cov = np.array(ep["test_mean"]), np.array(ep["test_cov"])
    exact = np.exp(predict.class_probabilities(mean[None], cov[None], "exact"))
    # Owen's T is exact for three classes; above, fixed quasi-Monte Carlo points.
    atol = 1e-9 if values.n_classes == 3 else 5e-6
    assert_allclose(exact, ep["test_prob_exact_integral"], rtol=0, atol=atol)


def test_estimator(case: tuple[str, ReferenceCase]) -> None:
    _, values = case
    inputs, ep = values.values["inputs"], values.values["ep"]
    clf = GPClassifier(kernel_of(values), inference=NestedEP(tol=1e-11), optimizer=None)
    clf.fit(inputs["X"], inputs["y"])
    assert clf.log_marginal_likelihood_value_ == pytest.approx(ep["logZ"], abs=1e-8)
    assert_allclose(clf.log_marginal_likelihood(eval_gradient=True)[1], ep["grad_logZ"], rtol=0, atol=1e-8)
    assert_allclose(clf.predict_proba(inputs["X_test"]), ep["test_prob"], rtol=0, atol=1e-6)
    mean, cov = clf.predict_latent(inputs["X_test"])
    assert_allclose(mean, ep["test_mean"], rtol=0, atol=1e-8)
    assert_allclose(cov, ep["test_cov"], rtol=0, atol=1e-8)
