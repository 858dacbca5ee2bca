"""Nested EP: its fixed point against the dense, sequential oracle, and the laws that the paper gives it."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose

from nestgp import kernels, predict
from nestgp.inference import Fit, Inference, NestedEP, Status
from nestgp.inference.sequential import dense_covariance
from nestgp.linalg import DenseBlocks
from nestgp.posterior import ProcessPosterior
from nestgp.sites import site_weights
from tests.oracles._types import Array
from tests.oracles.binary import binary_ep, binary_predict
from tests.oracles.dense import dense_posterior, dense_predict, marginal, remove_site, site_matrices
from tests.oracles.nested import NestedResult, nested_ep
from tests.oracles.reference import expand_sites
from tests.problems import METHODS, NESTED, PROBLEMS, TIGHT, Problem, problem, rbf

NESTED_BY_NAME = pytest.mark.parametrize("method", NESTED.values(), ids=NESTED.keys())
METHODS_BY_NAME = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
PROBLEMS_BY_NAME = pytest.mark.parametrize("name", PROBLEMS)


@cache
def oracle(name: str) -> NestedResult:
    """The fixed point of a problem by sequential updates of dense matrices."""
    return nested_ep(*problem(name).inputs(), tol=1e-12)


def scale_of(p: Problem) -> float:
    """Standard deviation of the prior: the unit of latent means."""
    return float(np.sqrt(np.diagonal(p.K, axis1=-2, axis2=-1).max()))


@PROBLEMS_BY_NAME
@NESTED_BY_NAME
def test_every_schedule_reaches_the_fixed_point_of_the_oracle(method: NestedEP, name: str) -> None:
    p, expected = problem(name), oracle(name)
    fit = method.infer(*p.inputs())
    s = scale_of(p)
    assert fit.residual <= 10 * TIGHT
    assert fit.log_evidence == pytest.approx(expected.log_z, abs=1e-9)
    assert_allclose(fit.posterior.mean, expected.mu.T, rtol=0, atol=1e-8 * s)
    covs = [marginal(expected.mu, expected.Sigma, i)[1] for i in range(len(p.y))]
    assert_allclose(fit.posterior.covariance, covs, rtol=0, atol=1e-8 * s**2)
    alpha, beta = (expand_sites(x, p.y, p.n_classes) for x in fit.sites)
    assert_allclose(alpha, expected.alpha, rtol=0, atol=1e-8)
    assert_allclose(beta, expected.beta, rtol=0, atol=1e-8 * s)
    assert_allclose(fit.evidence_grad, expected.gradient, rtol=0, atol=1e-8)


@PROBLEMS_BY_NAME
def test_the_posterior_belongs_to_the_sites_also_before_convergence(name: str) -> None:
    p = problem(name)
    fit = NestedEP(max_iter=4).infer(*p.inputs())
    alpha, beta = (expand_sites(x, p.y, p.n_classes) for x in fit.sites)
    mu, Sigma = dense_posterior(p.K, alpha, beta, p.y)
    s = scale_of(p)
    assert_allclose(fit.posterior.mean, mu.T, rtol=0, atol=1e-10 * s)
    covs = [marginal(mu, Sigma, i)[1] for i in range(len(p.y))]
    assert_allclose(fit.posterior.covariance, covs, rtol=0, atol=1e-10 * s**2)
    Pi, nu = site_matrices(alpha, beta, p.y)
    for i, (mean, cov) in enumerate(zip(*fit.cavities(), strict=True)):
        expected = remove_site(mu[:, i], covs[i], Pi[i], nu[:, i])
        assert_allclose(mean, expected[0], rtol=1e-6, atol=1e-8 * s)
        assert_allclose(cov, expected[1], rtol=1e-6, atol=1e-8 * s**2)


@PROBLEMS_BY_NAME
def test_predictions_are_those_of_the_dense_matrices(name: str) -> None:
    p, expected = problem(name), oracle(name)
    fit = NestedEP(tol=TIGHT).infer(*p.inputs())
    X_new = np.random.default_rng(0).standard_normal((7, p.X.shape[1]))
    k_star, prior = kernels.cross(p.kernel, p.X, X_new), kernels.diagonal(p.kernel, X_new)
    mean, cov = dense_predict(p.K, k_star, prior, expected.alpha, expected.beta, p.y)
    for found in (
        fit.posterior.at(k_star, prior),
        [a[0] for a in ProcessPosterior(p.kernel, p.X, fit.posterior).latent(X_new)],
    ):
        assert_allclose(found[0], mean, rtol=0, atol=1e-8 * scale_of(p))
        assert_allclose(found[1], cov, rtol=0, atol=1e-8 * scale_of(p) ** 2)


@PROBLEMS_BY_NAME
@NESTED_BY_NAME
def test_sites_see_only_differences_between_classes(method: NestedEP, name: str) -> None:
    p = problem(name)
    fit = method.infer(*p.inputs())
    assert fit.site_moments is not None
    Pi, nu = fit.site_moments()
    assert_allclose(Pi.sum(axis=2), 0.0, atol=1e-15)
    assert_allclose(nu.sum(axis=1), 0.0, atol=1e-13)
    assert_allclose(fit.posterior.b.sum(axis=0), 0.0, atol=1e-12)


@METHODS_BY_NAME
@PROBLEMS_BY_NAME
def test_permuted_labels_permute_the_answer(method: Inference, name: str) -> None:
    p = problem(name)
    c = p.n_classes
    order = np.random.default_rng(c).permutation(c)
    if (order == np.arange(c)).all():
        order = order[::-1]
    K = p.K if p.K.ndim == 2 else p.K[np.argsort(order)]
    plain, permuted = method.infer(*p.inputs()), method.infer(K, order[p.y], c)
    s = scale_of(p)
    assert permuted.log_evidence == pytest.approx(plain.log_evidence, abs=1e-9)
    assert_allclose(permuted.posterior.mean[:, order], plain.posterior.mean, rtol=0, atol=1e-8 * s)
    cov = permuted.posterior.covariance[:, order[:, None], order]
    assert_allclose(cov, plain.posterior.covariance, rtol=0, atol=1e-8 * s**2)


@METHODS_BY_NAME
@PROBLEMS_BY_NAME
def test_the_order_of_the_rows_does_not_matter(method: Inference, name: str) -> None:
    p = problem(name)
    rows = np.random.default_rng(0).permutation(len(p.y))
    plain = method.infer(*p.inputs())
    shuffled = method.infer(p.K[..., rows[:, None], rows], p.y[rows], p.n_classes)
    assert shuffled.log_evidence == pytest.approx(plain.log_evidence, abs=1e-9)
    assert_allclose(shuffled.posterior.mean, plain.posterior.mean[rows], rtol=0, atol=1e-8 * scale_of(p))
    assert_allclose(shuffled.evidence_grad, plain.evidence_grad[..., rows[:, None], rows], rtol=0, atol=1e-8)


@METHODS_BY_NAME
def test_one_kernel_or_the_same_one_for_every_class(method: Inference) -> None:
    p = problem("overlapping")
    shared = method.infer(*p.inputs())
    repeated = method.infer(np.stack([p.K] * 4), p.y, 4)
    assert repeated.log_evidence == pytest.approx(shared.log_evidence, abs=1e-10)
    assert_allclose(repeated.posterior.mean, shared.posterior.mean, rtol=0, atol=1e-9)
    assert_allclose(repeated.evidence_grad.sum(axis=0), shared.evidence_grad, rtol=0, atol=1e-9)


@METHODS_BY_NAME
def test_a_class_without_rows_is_possible_and_improbable(method: Inference) -> None:
    p = problem("two classes")
    fit = method.infer(p.K, p.y, 3)
    assert fit.residual <= 10 * TIGHT
    latent = ProcessPosterior(p.kernel, p.X, fit.posterior).latent(p.X)
    probability = np.exp(predict.class_probabilities(*latent, rule="exact"))
    assert probability[:, 2].max() < probability[:, :2].max(axis=1).min()


@METHODS_BY_NAME
def test_the_same_answer_twice(method: Inference) -> None:
    p = problem("hard")
    one, two = method.infer(*p.inputs()), method.infer(*p.inputs())
    assert one.log_evidence == two.log_evidence
    assert (one.posterior.mean == two.posterior.mean).all()


@pytest.mark.parametrize("log_s2", [-1.0, 2.0, 6.0])
@NESTED_BY_NAME
def test_two_classes_are_binary_probit_with_the_same_kernel(method: NestedEP, log_s2: float) -> None:
    p = problem("two classes")
    kernel = rbf(log_s2, 0.3)
    K = kernels.gram(kernel, p.X)
    X_new = np.random.default_rng(1).standard_normal((9, 2))
    k_star, prior = kernels.cross(kernel, p.X, X_new), kernels.diagonal(kernel, X_new)
    binary = binary_ep(K, p.y, tol=1e-11)
    fit = method.infer(K, p.y, 2)
    assert fit.log_evidence == pytest.approx(binary.log_z, abs=1e-9)
    mean, cov = fit.posterior.at(k_star, prior)
    s_mean, s_var, probability = binary_predict(binary, K, k_star, prior)
    d = np.array([-1.0, 1.0]) / np.sqrt(2)
    assert_allclose(mean @ d, s_mean, rtol=0, atol=1e-8)
    assert_allclose(np.einsum("i,mij,j->m", d, cov, d), s_var, rtol=0, atol=1e-7)
    for rule in ("ep", "exact"):
        found = np.exp(predict.class_probabilities(mean[None], cov[None], rule))
        assert_allclose(found[:, 1], probability, rtol=0, atol=1e-9)


def test_sequential_updates_take_fewer_iterations() -> None:
    p = problem("toy")
    parallel, sequential = (
        NestedEP(damping=0.8, updates=u).infer(*p.inputs()) for u in ("parallel", "sequential")
    )
    assert sequential.status is parallel.status is Status.CONVERGED
    assert sequential.n_iter < parallel.n_iter


def test_dense_covariance_is_the_posterior_and_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem("per class")
    alpha = oracle("per class").alpha
    blocks = DenseBlocks(p.K, 3)
    blocks.refresh(site_weights(alpha, p.y))
    assert_allclose(dense_covariance(blocks), oracle("per class").Sigma, rtol=0, atol=1e-9)
    monkeypatch.setattr("nestgp.inference.sequential.MEMORY_LIMIT", 1000)
    with pytest.raises(MemoryError, match="use updates='parallel'"):
        NestedEP(updates="sequential").infer(*p.inputs())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner_sweeps": 0}, "inner_sweeps=0: use an integer >= 1 or 'converge'"),
        ({"inner_sweeps": "all"}, "inner_sweeps='all'"),
        ({"updates": "random"}, "updates='random': use 'parallel' or 'sequential'"),
        ({"inner_updates": None}, "inner_updates=None"),
        ({"damping": 2.0}, r"damping=2\.0"),
    ],
)
def test_options_are_checked_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(NestedEP(), **options).infer(*problem("tiny").inputs())  # type: ignore[arg-type]


def test_a_warm_start_that_leads_nowhere_is_followed_by_a_cold_one() -> None:
    p = problem("toy")
    cold = NestedEP().infer(*p.inputs())
    broken: Array = np.full_like(cold.sites, 1e200)
    poisoned = dataclasses.replace(cold, sites=broken)
    with np.errstate(all="ignore"):
        fit: Fit = NestedEP().infer(*p.inputs(), init=poisoned)
    assert fit.status is Status.CONVERGED
    assert fit.log_evidence == pytest.approx(cold.log_evidence, abs=1e-8)


def test_inputs_are_left_alone() -> None:
    p = problem("per class")
    K, y = p.K, p.y.copy()
    before = K.copy()
    first = NestedEP().infer(K, y, 3)
    sites = first.sites.copy()
    NestedEP().infer(1.5 * K, y, 3, init=first)
    assert (before == K).all()
    assert (y == p.y).all()
    assert (first.sites == sites).all()
