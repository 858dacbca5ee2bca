"""Laplace's method for softmax: dense Newton, the reference values, binary logistic regression, and hard starts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import ConstantKernel

from nestgp import GPClassifier, kernels, predict
from nestgp.inference import Laplace, Status
from nestgp.inference.laplace import LaplaceState
from nestgp.kernel_gradient import contract
from tests.oracles._types import Array
from tests.oracles.finite import central_difference
from tests.oracles.laplace import binary_logistic_laplace, laplace, laplace_predict
from tests.oracles.reference import ReferenceCase, load_case, reference_directory
from tests.problems import PROBLEMS, TIGHT, clusters, problem, rbf

PROBLEMS_BY_NAME = pytest.mark.parametrize("name", PROBLEMS)
EXACT = Laplace(tol=TIGHT)


@PROBLEMS_BY_NAME
def test_mode_covariance_and_evidence_are_those_of_dense_newton(name: str) -> None:
    p = problem(name)
    n, c = len(p.y), p.n_classes
    s = np.sqrt(np.diagonal(p.K, axis1=-2, axis2=-1).max())
    expected, fit = laplace(*p.inputs()), EXACT.infer(*p.inputs())
    assert fit.status is Status.CONVERGED
    assert fit.log_evidence == pytest.approx(expected.log_z, abs=1e-9)
    assert_allclose(fit.posterior.mean, expected.mode.T, rtol=0, atol=1e-9 * s)
    Sigma = expected.Sigma.reshape(c, n, c, n)
    assert_allclose(fit.posterior.covariance, Sigma[:, np.arange(n), :, np.arange(n)], rtol=0, atol=1e-9 * s**2)
    X = np.random.default_rng(0).standard_normal((5, p.X.shape[1]))
    k_star, prior = kernels.cross(p.kernel, p.X, X), kernels.diagonal(p.kernel, X)
    mean, cov = laplace_predict(expected, k_star, prior, p.y)
    found = fit.posterior.at(k_star, prior)
    assert_allclose(found[0], mean, rtol=0, atol=1e-9 * s)
    assert_allclose(found[1], cov, rtol=0, atol=1e-9 * s**2)


@pytest.mark.parametrize("name", ["tiny", "per class", "many classes"])
def test_gradient_with_its_implicit_part_against_the_oracles_evidence(name: str) -> None:
    p = problem(name)
    theta = kernels.theta(p.kernel)
    gradient = contract(p.kernel, p.X, EXACT.infer(*p.inputs()).evidence_grad)

    def log_z(t: Array) -> float:
        return laplace(kernels.gram(kernels.with_theta(p.kernel, t), p.X), p.y, p.n_classes).log_z

    numeric = central_difference(log_z, theta, 4e-3, richardson=True)
    assert_allclose(gradient, numeric, rtol=0, atol=1e-8)


# --- the authors' implementation ---


@pytest.fixture(params=["A_toy1d", "B_2d_c4_s2_l0.5", "D_ard_d3"])
def case(request: pytest.FixtureRequest) -> ReferenceCase:
    """Values of a case; the reference files are not part of the repository."""
    try:
        return load_case(request.param)
    except FileNotFoundError:
        pytest.skip(f"no reference values in {reference_directory()}; set NESTGP_SHARED to the folder above")


def test_reference_values(case: ReferenceCase) -> None:
    expected = case.values["laplace"]
    fit = EXACT.infer(case.K, case.y, case.n_classes)
    assert fit.n_iter <= 12
    assert fit.log_evidence == pytest.approx(expected["logZ"], abs=1e-9)
    assert_allclose([np.sum(fit.evidence_grad * dK) for dK in case.dK], expected["grad_logZ"], rtol=0, atol=1e-9)
    assert_allclose(fit.posterior.mean, expected["mode"], rtol=0, atol=1e-9)
    assert_allclose(fit.posterior.covariance, expected["train_cov"], rtol=0, atol=1e-9)
    mean, cov = fit.posterior.at(case.Kstar, case.Kss)
    assert_allclose(mean, expected["test_mean"], rtol=0, atol=1e-9)
    assert_allclose(cov, expected["test_cov"], rtol=0, atol=1e-9)
    found = np.exp(predict.class_probabilities(mean[None], cov[None], "exact", "softmax"))
    assert_allclose(found, expected["test_prob"], rtol=0, atol=1e-4)


# --- two classes ---


@pytest.mark.parametrize("log_s2", [-1.0, 2.0, 6.0])
def test_two_classes_are_binary_logistic_with_twice_the_kernel(log_s2: float) -> None:
    p = problem("two classes")
    kernel = rbf(log_s2, 0.3)
    K = kernels.gram(kernel, p.X)
    mode, log_z = binary_logistic_laplace(2 * K, p.y)
    fit = EXACT.infer(K, p.y, 2)
    assert fit.log_evidence == pytest.approx(log_z, abs=1e-10)
    assert_allclose(fit.posterior.mean @ [-1.0, 1.0], mode, rtol=0, atol=1e-9)
    theirs = GaussianProcessClassifier(ConstantKernel(2.0, "fixed") * kernel, optimizer=None).fit(p.X, p.y)
    ours = GPClassifier(kernel, inference=EXACT, optimizer=None).fit(p.X, p.y)
    value, gradient = theirs.log_marginal_likelihood(kernel.theta, eval_gradient=True)
    found = ours.log_marginal_likelihood(kernel.theta, eval_gradient=True)
    # scikit-learn stops Newton when the evidence changes by 1e-10; so does its gradient.
    assert found[0] == pytest.approx(value, abs=1e-8)
    assert_allclose(found[1], gradient, rtol=0, atol=1e-5)


def test_two_classes_have_scikit_learns_probabilities() -> None:
    p = problem("two classes")
    X = np.random.default_rng(2).standard_normal((20, 2))
    theirs = GaussianProcessClassifier(ConstantKernel(2.0) * p.kernel, optimizer=None).fit(p.X, p.y)
    ours = GPClassifier(p.kernel, inference="laplace", optimizer=None).fit(p.X, p.y)
    # Theirs replaces the logistic function by five error functions: good to about 1e-3.
    assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), rtol=0, atol=2e-3)


# --- never diverges ---


@PROBLEMS_BY_NAME
def test_every_newton_step_raises_the_density(name: str) -> None:
    p = problem(name)
    state = LaplaceState(p.K, p.y, p.n_classes)
    rng = np.random.default_rng(0)
    for start in (np.zeros((p.n_classes, len(p.y))), 10.0 * rng.standard_normal((p.n_classes, len(p.y)))):
        b, values, residual = start, [], np.inf
        for _ in range(100):
            values.append(state.log_joint(b, state.blocks.multiply_kernel(b)))
            evaluation = state.evaluate(b)
            residual, b = evaluation.residual, evaluation.target
            if residual <= 1e-8:
                break
        assert residual <= 1e-8
        assert len(values) >= 4
        assert (np.diff(values) >= -1e-11 * np.abs(values[1:])).all()


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("name", ["toy", "hard", "separable", "per class", "many classes"])
def test_absurd_starts_end_at_the_same_mode(name: str, size: float) -> None:
    p = problem(name)
    cold = EXACT.infer(*p.inputs())
    start = size * np.random.default_rng(1).standard_normal(cold.sites.shape)
    fit = EXACT.infer(*p.inputs(), init=dataclasses.replace(cold, sites=start))
    assert fit.residual <= 10 * TIGHT
    assert fit.n_iter > 1
    assert fit.log_evidence == pytest.approx(cold.log_evidence, abs=1e-8)


@pytest.mark.parametrize("log_s2", [-10.0, -5.0, 0.0, 5.0, 10.0, 15.0, 20.0])
def test_it_converges_at_any_magnitude(log_s2: float) -> None:
    overlapping, separated = problem("overlapping"), clusters(0.0, 0.0)
    for X, y, c in ((overlapping.X, overlapping.y, 4), (separated.X, separated.y, 3), (np.ones((9, 2)), np.arange(9) % 3, 3)):
        for log_l in (-3.0, 0.0, 3.0):
            fit = Laplace().infer(kernels.gram(rbf(log_s2, log_l), X), y, c)
            assert fit.status is Status.CONVERGED
            assert fit.n_iter <= 60
            assert np.isfinite(fit.log_evidence)
            assert np.isfinite(fit.evidence_grad).all()


@pytest.mark.parametrize("variance", [1e4, 1e8, 1e12])
def test_wide_priors_end_at_the_mode(variance: float) -> None:
    """A step of a millionth of the prior's deviation may be far from the mode: the slope of Ψ, y − π − b, tells."""
    p = problem("overlapping")
    fit = Laplace(max_iter=300).infer(kernels.gram(rbf(np.log(variance), 0.0), p.X), p.y, 4)
    f = fit.posterior.mean
    probability = np.exp(f - f.max(axis=1, keepdims=True))
    probability /= probability.sum(axis=1, keepdims=True)
    assert fit.converged
    assert_allclose(fit.posterior.b.T, np.eye(4)[p.y] - probability, rtol=0, atol=1e-5)


def test_the_mode_is_stationary() -> None:
    p = problem("per class")
    fit = EXACT.infer(*p.inputs())
    f = fit.posterior.mean
    probability = np.exp(f) / np.exp(f).sum(axis=1, keepdims=True)
    assert_allclose(fit.posterior.b.T, np.eye(3)[p.y] - probability, rtol=0, atol=1e-11)  # K⁻¹f = y − π
    assert_allclose(fit.posterior.b.sum(axis=0), 0.0, atol=1e-12)
