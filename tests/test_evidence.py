"""log Z and ∂log Z/∂K: against the printed form, brute force, and central differences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Kernel, Matern, WhiteKernel

from nestgp import kernels
from nestgp.evidence import evidence_gradient
from nestgp.inference import NestedEP
from nestgp.kernel_gradient import contract
from nestgp.linalg import DenseBlocks
from nestgp.sites import site_means, site_weights
from tests.oracles._types import Array, Labels
from tests.oracles.dense import log_evidence_eq42, log_evidence_flat
from tests.oracles.finite import central_difference
from tests.oracles.integrals import log_evidence_bruteforce
from tests.oracles.nested import evidence_gradient as dense_gradient
from tests.oracles.reference import expand_sites
from tests.problems import PROBLEMS, problem, rbf

#: The evidence is stationary in the sites, so an error of 1e-10 in these is one of rounding size in log Z.
EXACT = NestedEP(tol=1e-10)


@pytest.mark.parametrize("name", PROBLEMS)
def test_evidence_is_both_printed_forms_at_the_fixed_point(name: str) -> None:
    p = problem(name)
    fit = EXACT.infer(*p.inputs())
    alpha, beta = (expand_sites(x, p.y, p.n_classes) for x in fit.sites)
    assert fit.log_evidence == pytest.approx(log_evidence_flat(p.K, p.y, alpha, beta), abs=1e-10)
    assert fit.log_evidence == pytest.approx(log_evidence_eq42(p.K, p.y, alpha, beta), abs=1e-9)


@pytest.mark.parametrize("name", PROBLEMS)
def test_evidence_is_the_flat_form_also_before_convergence(name: str) -> None:
    p = problem(name)
    fit = NestedEP(max_iter=2).infer(*p.inputs())
    alpha, beta = (expand_sites(x, p.y, p.n_classes) for x in fit.sites)
    assert fit.residual > 1e-3
    assert fit.log_evidence == pytest.approx(log_evidence_flat(p.K, p.y, alpha, beta), abs=1e-9)


def test_evidence_is_stationary_in_the_sites() -> None:
    p = problem("overlapping")
    # Twice as wrong sites, four times as wrong an evidence: iterations on the way show it.
    history = NestedEP(damping=0.5, tol=1e-12, max_iter=400).infer(*p.inputs()).history
    exact = EXACT.infer(*p.inputs()).log_evidence
    rows = [(row.residual, abs(row.log_evidence - exact)) for row in history if 1e-5 < row.residual < 1e-2]
    slopes = [np.log(b[1] / a[1]) / np.log(b[0] / a[0]) for a, b in itertools.pairwise(rows)]
    assert len(slopes) >= 5
    assert_allclose(slopes, 2.0, atol=0.5)


@pytest.mark.parametrize(
    ("c", "log_s2", "bound"), [(2, 1.0, 2e-3), (3, 0.0, 0.02), (3, 4.0, 0.05), (4, 1.0, 0.04), (6, 0.7, 0.06)]
)
def test_evidence_is_near_brute_force(c: int, log_s2: float, bound: float) -> None:
    n = 5
    X = np.linspace(-1.5, 1.5, n)[:, None]
    y = np.array([0, 1, 1, c - 1, 0])
    K = kernels.gram(rbf(log_s2, 0.0), X)
    exact, error = log_evidence_bruteforce(K, y, c, n_points=2**12)
    found = EXACT.infer(K, y, c).log_evidence
    assert error <= 5e-3
    assert abs(found - exact) <= bound  # EP's own error, measured 0.001, 0.009, 0.033, 0.028, 0.049
    if c > 2:
        assert abs(found - exact) > error  # two numbers, not one computation twice


@pytest.mark.parametrize("y", [np.array([0, 0]), np.array([0, 1])])
def test_evidence_of_two_rows_of_two_classes_in_closed_form(y: Labels) -> None:
    K = np.array([[2.0, 1.2], [1.2, 1.5]])
    rho = K[0, 1] / np.sqrt((K[0, 0] + 1) * (K[1, 1] + 1)) * (1 if y[0] == y[1] else -1)
    exact = np.log(0.25 + np.arcsin(rho) / (2 * np.pi))
    assert EXACT.infer(K, y, 2).log_evidence == pytest.approx(exact, abs=2e-3)  # EP is 1.1e-3 off


def test_evidence_of_independent_rows_is_the_sum_of_single_ones() -> None:
    y = np.array([0, 1, 2, 1])
    each = [EXACT.infer(np.array([[v]]), y[:1], 3).log_evidence for v in (0.5, 1.0, 4.0, 9.0)]
    together = EXACT.infer(np.diag([0.5, 1.0, 4.0, 9.0]), y, 3).log_evidence
    assert together == pytest.approx(sum(each), abs=1e-10)


# --- gradient ---


@pytest.mark.parametrize("shared", [True, False])
def test_gradient_is_the_dense_one_at_any_sites(shared: bool) -> None:
    p = problem("per class")
    K = p.K[0] if shared else p.K
    rng = np.random.default_rng(0)
    alpha, beta = rng.uniform(0.1, 1.0, (3, 16)), rng.standard_normal((3, 16))
    alpha[p.y, np.arange(16)] = beta[p.y, np.arange(16)] = 0.0
    blocks = DenseBlocks(K, 3)
    pi = site_weights(alpha, p.y)
    blocks.refresh(pi)
    found = evidence_gradient(blocks, blocks.solve(site_means(beta, pi)))
    assert_allclose(found, dense_gradient(K, p.y, alpha, beta), rtol=0, atol=1e-11)
    assert_allclose(found, np.swapaxes(found, -1, -2), rtol=0, atol=1e-13)


def gradient_error(kernel: Kernel | list[Kernel], X: Array, y: Labels, c: int) -> tuple[float, Array]:
    """Largest difference of the contracted gradient from central differences, and the gradient."""

    def log_z(theta: Array) -> float:
        return EXACT.infer(kernels.gram(kernels.with_theta(kernel, theta), X), y, c).log_evidence

    fit = EXACT.infer(kernels.gram(kernel, X), y, c)
    assert fit.converged
    gradient = contract(kernel, X, fit.evidence_grad)
    numeric = central_difference(log_z, kernels.theta(kernel), 2e-3, richardson=True)
    return float(np.abs(gradient - numeric).max()), gradient


@pytest.mark.parametrize("log_l", [-2.0, 0.0, 1.0, 3.0])
@pytest.mark.parametrize("log_s2", [-3.0, 0.0, 3.0, 6.0, 9.0])
def test_gradient_against_differences_over_a_grid(log_s2: float, log_l: float) -> None:
    p = problem("overlapping")
    error, gradient = gradient_error(rbf(log_s2, log_l), p.X, p.y, 4)
    # Rounding ε σ² of log Z over the step, and h⁴ of Richardson.
    assert error <= 1e-8 + 1e-11 * np.exp(log_s2)
    assert np.abs(gradient).max() > 100 * error


KERNELS: dict[str, Kernel | list[Kernel]] = {
    "ard": rbf(2.0, -0.3, 0.8),
    "sum": rbf(1.0, 0.0) + ConstantKernel(0.5) * DotProduct(1.0) + WhiteKernel(0.2),
    "matern": ConstantKernel(3.0) * Matern([0.7, 1.5], nu=1.5),
    "per class": [rbf(1.0, 0.0), rbf(2.0, 0.5, -0.5), ConstantKernel(2.0) * RBF(0.8) + WhiteKernel(0.1)],
    "partly fixed": ConstantKernel(2.0, "fixed") * RBF([0.5, 2.0]),
}


@pytest.mark.parametrize("name", KERNELS)
def test_gradient_against_differences_for_other_kernels(name: str) -> None:
    p = problem("per class")
    error, gradient = gradient_error(KERNELS[name], p.X, p.y, 3)
    assert gradient.size == kernels.theta(KERNELS[name]).size
    assert error <= 1e-8


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradient_against_differences_over_the_problems(name: str) -> None:
    p = problem(name)
    error, _ = gradient_error(p.kernel, p.X, p.y, p.n_classes)
    assert error <= (1e-8 if name != "hard" else 1e-7)


def test_gradient_by_the_matrix_itself() -> None:
    p = problem("tiny")
    K = p.K + 0.1 * np.eye(5)
    direction = np.random.default_rng(1).standard_normal((5, 5))
    direction += direction.T
    gradient = EXACT.infer(K, p.y, 3).evidence_grad
    numeric = central_difference(
        lambda t: EXACT.infer(K + t * direction, p.y, 3).log_evidence, 0.0, 2e-3, richardson=True
    )
    assert np.sum(gradient * direction) == pytest.approx(float(numeric), abs=1e-8)
