"""Surrogate coordinates: the map to the latents, its evidence and its gradients against dense algebra and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.linalg import block_diag
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel

from nestgp import kernels
from nestgp.hyper import HalfStudentT
from nestgp.inference import Inference, Laplace, NestedEP
from nestgp.inference.result import Status
from nestgp.likelihoods import probit_given_noise, probit_log_likelihood
from nestgp.sampling import moves
from nestgp.sampling.chain import ChainState, Problem
from nestgp.sampling.factors import Factors
from nestgp.sampling.gibbs import log_likelihood as probit_log_density
from nestgp.sampling.hmc import StepSize
from nestgp.sampling.metropolis import log_likelihood as softmax_log_density
from nestgp.sampling.surrogate import Latents, Surrogate, Whitening, through_cholesky
from tests.oracles._types import Array
from tests.oracles.finite import central_difference

C, N = 3, 8
X = np.random.default_rng(0).standard_normal((N, 2))
Y = np.array([0, 1, 2, 0, 1, 2, 2, 0])
SHARED = ConstantKernel(4.0) * RBF([0.5, 0.7])
PER_CLASS = [ConstantKernel(4.0) * RBF([0.5, 0.7]), ConstantKernel(2.0) * RBF([0.4, 0.4]), ConstantKernel(8.0) * RBF([0.7, 0.5])]
KERNELS = {"shared": SHARED, "per class": PER_CLASS}
METHODS: dict[str, Inference] = {"probit": NestedEP(tol=1e-10), "softmax": Laplace(tol=1e-10)}

both_kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


def problem_of(kernel: Kernel | list[Kernel]) -> Problem:
    return Problem(kernel, X, Y, C, HalfStudentT(), np.ones(kernels.theta(kernel).size))


def fit_of(factors: Factors, method: str = "probit") -> Any:
    K = factors.K[0] if len(factors.K) == 1 else factors.K
    return METHODS[method].infer(K, Y, C)


class Case(NamedTuple):
    """A problem, sites of EP around the kernel's own θ, another θ, and coordinates z, ξ (c, n) and u (n,) of a point."""

    problem: Problem
    surrogate: Surrogate
    theta: Array
    z: Array
    xi: Array
    u: Array

    @property
    def whitening(self) -> Whitening:
        return Whitening(self.surrogate.at(self.theta), self.problem.factors(self.theta))


def case_of(kernel: Kernel | list[Kernel]) -> Case:
    rng = np.random.default_rng(1)
    problem = problem_of(kernel)
    reference = kernels.theta(kernel)
    surrogate, _ = moves.surrogate_around(problem, METHODS["probit"], reference, 0.3 * np.eye(reference.size))
    theta = reference + 0.3 * rng.standard_normal(reference.size)
    z, xi = rng.standard_normal((2, C, N))
    return Case(problem, surrogate, theta, z, xi, rng.standard_normal(N))


class Affine(NamedTuple):
    """f = mean + root (z, ξ), all flat: mean (cn,), root (cn, 2cn); prior (cn, cn) the covariance N(0, K) of f."""

    mean: Array
    root: Array
    prior: Array

    @classmethod
    def of(cls, w: Whitening) -> Affine:
        c, n = w.factors.n_classes, w.factors.n
        zero, basis = np.zeros((c, n)), np.eye(c * n).reshape(-1, c, n)
        mean = w.latents(zero, zero).f.ravel()
        columns = [w.latents(e, zero).f.ravel() for e in basis] + [w.latents(zero, e).f.ravel() for e in basis]
        prior = block_diag(*np.broadcast_to(w.factors.jittered, (c, n, n)))
        return cls(mean, np.column_stack(columns) - mean[:, None], prior)


def log_normal(x: Array, cov: Array) -> float:
    """log N(x | 0, cov)."""
    return -0.5 * float(x @ np.linalg.solve(cov, x) + np.linalg.slogdet(cov)[1] + x.size * np.log(2.0 * np.pi))


# The map


@both_kernels
def test_prior_is_surrogate_posterior_times_evidence_over_sites(kernel: Kernel | list[Kernel]) -> None:
    """log N(f | 0, K) = log N(f | m, Σ) + log Z_θ − log t(f/s), away from the reference θ and at any f."""
    w = case_of(kernel).whitening
    affine = Affine.of(w)
    cov = affine.root @ affine.root.T
    for f in np.random.default_rng(2).standard_normal((3, C, N)) * 2.0:
        from_sites = log_normal(f.ravel() - affine.mean, cov) + w.log_evidence - w.log_sites(f / w.s)[0]
        assert from_sites == pytest.approx(log_normal(f.ravel(), affine.prior), rel=1e-9)


@both_kernels
def test_covariance_is_that_of_the_prior_and_sites(kernel: Kernel | list[Kernel]) -> None:
    """Σ = (K⁻¹ + Π/s²)⁻¹ and m = Σν/s, Π_i = diag(π_i) − π_i π_iᵀ/1ᵀπ_i."""
    case = case_of(kernel)
    here = case.surrogate.at(case.theta)
    affine = Affine.of(case.whitening)
    trace = np.trace(case.problem.factors(case.theta).jittered, axis1=1, axis2=2)
    s = np.repeat(np.broadcast_to(np.sqrt(trace / case.surrogate.trace), C), N)
    each = zip(here.pi.T, np.eye(N), strict=True)
    sites = sum(np.kron(np.diag(q) - np.outer(q, q) / q.sum(), np.diag(e)) for q, e in each) / np.outer(s, s)
    cov = np.linalg.inv(np.linalg.inv(affine.prior) + sites)
    np.testing.assert_allclose(affine.root @ affine.root.T, cov, rtol=0.0, atol=1e-9 * cov.max())
    np.testing.assert_allclose(affine.mean, cov @ (here.nu.ravel() / s), rtol=1e-8, atol=1e-9)


@both_kernels
def test_coordinates_give_back_the_latents(kernel: Kernel | list[Kernel]) -> None:
    case = case_of(kernel)
    w, rng = case.whitening, np.random.default_rng(3)
    f = w.latents(case.z, case.xi).f
    z, xi = w.coordinates(f, rng)
    assert np.abs(z - case.z).min() > 1e-6  # another pair than the one f was made of
    np.testing.assert_allclose(w.latents(z, xi).f, f, rtol=0.0, atol=1e-10)


class _Given:
    """In place of a generator: hands out the normals it was given, in turn."""

    def __init__(self, *normals: Array) -> None:
        self.normals = iter(normals)

    def standard_normal(self, shape: tuple[int, ...]) -> Array:
        return next(self.normals).reshape(shape)


@both_kernels
def test_coordinates_are_a_draw_given_the_latents(kernel: Kernel | list[Kernel]) -> None:
    """(z, ξ) ~ N(0, I) given m + A (z, ξ) = f: mean Aᵀ(AAᵀ)⁻¹(f − m), covariance I − Aᵀ(AAᵀ)⁻¹A, read off the normals used."""
    w = case_of(kernel).whitening
    affine = Affine.of(w)
    f = np.random.default_rng(4).standard_normal((C, N))

    def draw(normals: Array) -> Array:
        rng: Any = _Given(*np.split(normals, 2))
        return np.concatenate([x.ravel() for x in w.coordinates(f, rng)])

    mean = draw(np.zeros(2 * C * N))
    root = np.column_stack([draw(e) for e in np.eye(2 * C * N)]) - mean[:, None]
    A = affine.root
    back = A.T @ np.linalg.inv(A @ A.T)
    np.testing.assert_allclose(mean, back @ (f.ravel() - affine.mean), rtol=0.0, atol=1e-8)
    np.testing.assert_allclose(root @ root.T, np.eye(len(mean)) - back @ A, rtol=0.0, atol=1e-8)


# The sites


@pytest.mark.parametrize("method", METHODS)
@both_kernels
def test_mean_at_the_reference_is_that_of_the_approximation(kernel: Kernel | list[Kernel], method: str) -> None:
    factors = problem_of(kernel).factors(kernels.theta(kernel))
    fit = fit_of(factors, method)
    w = Whitening(Surrogate.of(fit, factors), factors)
    zero = np.zeros((C, N))
    assert np.abs(fit.posterior.mean).max() > 0.5
    np.testing.assert_allclose(w.latents(zero, zero).f, fit.posterior.mean.T, rtol=0.0, atol=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_two_classes_keep_the_covariance_of_the_approximation(method: str) -> None:
    """Then there is one contrast, and the sites are those of the approximation."""
    factors = Factors(SHARED, X, 2)
    fit: Any = METHODS[method].infer(factors.K[0], (Y == 0).astype(np.int64), 2)
    root = Affine.of(Whitening(Surrogate.of(fit, factors), factors)).root
    marginals = np.einsum("kil,mil->ikm", *[root.reshape(2, N, -1)] * 2)
    np.testing.assert_allclose(marginals, fit.posterior.covariance, rtol=0.0, atol=1e-7)


def test_sites_grow_with_the_kernel() -> None:
    """K → 9 K gives f → 3 f at the same coordinates, and leaves log Z_θ as it was, where there are no slopes."""
    case = case_of(SHARED)
    case = case._replace(surrogate=replace(case.surrogate, slopes=None))
    larger = case._replace(theta=case.theta + np.array([np.log(9.0), 0.0, 0.0]))
    np.testing.assert_allclose(
        larger.whitening.latents(case.z, case.xi).f, 3.0 * case.whitening.latents(case.z, case.xi).f, rtol=1e-9
    )
    assert larger.whitening.log_evidence == pytest.approx(case.whitening.log_evidence, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
@both_kernels
def test_sites_follow_theta(kernel: Kernel | list[Kernel], method: str) -> None:
    """At half a column of the metric from the middle they are nearer to the sites found there than those of the middle are."""
    problem = problem_of(kernel)
    middle = kernels.theta(kernel)
    metric = np.tril(0.1 * np.eye(middle.size) + 0.02)
    surrogate, fit = moves.surrogate_around(problem, METHODS[method], middle, metric)
    assert fit.converged
    for step in np.vstack([0.5 * metric.T, -0.5 * metric.T]):
        factors = problem.factors(middle + step)
        found = Surrogate.of(fit_of(factors, method), factors)
        s2 = (found.trace / surrogate.trace)[:, None]
        followed, stayed = surrogate.at(middle + step), surrogate.at(middle)
        for exact, near, far in (
            (found.nu * np.sqrt(s2), followed.nu, stayed.nu),
            (np.log(found.pi * s2), np.log(followed.pi), np.log(stayed.pi)),
        ):
            assert np.linalg.norm(near - exact) < 0.3 * np.linalg.norm(far - exact)


def test_sites_stay_along_what_has_no_fit() -> None:
    case = case_of(SHARED)
    alone = replace(case.surrogate, slopes=None, theta=None)
    around = alone.along(kernels.theta(SHARED), np.eye(3), lambda theta: None)
    np.testing.assert_array_equal(around.at(case.theta).pi, alone.pi)
    np.testing.assert_array_equal(around.at(case.theta).nu, alone.nu)


@both_kernels
def test_failed_fit_gives_sites_that_say_nothing(kernel: Kernel | list[Kernel]) -> None:
    indefinite = np.eye(N)
    indefinite[:3, :3] = [[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]]
    fit = NestedEP().infer(indefinite, Y, C)
    assert fit.status is Status.NOT_POSITIVE_DEFINITE
    factors = problem_of(kernel).factors(kernels.theta(kernel))
    w = Whitening(Surrogate.of(fit, factors), factors)
    z, xi = np.random.default_rng(5).standard_normal((2, C, N))
    latents = w.latents(z, xi)
    np.testing.assert_allclose(latents.f, factors.times(factors.prior_root, z), rtol=0.0, atol=5e-3)  # √NO_SITE ξ is left
    assert abs(w.log_evidence) < 1e-5
    assert abs(w.log_sites(latents.scaled)[0]) < 1e-5


# Gradients


class Point(NamedTuple):
    """log Z_θ + log p(y | f, u) − log t(f/s), with its parts."""

    value: float
    whitening: Whitening
    latents: Latents
    slope: Array
    noise_slope: Array


def evaluate(case: Case) -> Point:
    w = case.whitening
    latents = w.latents(case.z, case.xi)
    log_p, slope, noise_slope = probit_given_noise(latents.f, case.u, Y)
    return Point(log_p - w.log_sites(latents.scaled)[0] + w.log_evidence, w, latents, slope, noise_slope)


@both_kernels
def test_gradients(kernel: Kernel | list[Kernel]) -> None:
    """By θ, z, ξ and u, away from the reference θ, where s ≠ 1."""
    case = case_of(kernel)
    at = evaluate(case)
    w = at.whitening
    assert np.abs(np.log(w.s)).min() > 0.01
    by_z, by_xi, h = w.pull_back(w.s * at.slope - w.log_sites(at.latents.scaled)[1])
    found = {"theta": w.hyper_gradient(case.z, case.xi, h, at.latents, at.slope), "z": by_z, "xi": by_xi, "u": at.noise_slope}
    for name, gradient in found.items():

        def value(x: Array, name: str = name) -> float:
            moved: Any = {name: x}
            return evaluate(case._replace(**moved)).value

        slope = central_difference(value, getattr(case, name), step=1e-3, richardson=True)
        np.testing.assert_allclose(gradient, slope, rtol=1e-6, atol=1e-7, err_msg=name)


def probit_and_u(case: Case) -> tuple[moves.NoisyLogLikelihood, Array]:
    return partial(probit_given_noise, y=Y), case.u


def softmax_and_nothing(case: Case) -> tuple[moves.NoisyLogLikelihood, Array]:
    return lambda f, u: (*softmax_log_density(Y, f), u), np.empty(0)


def move_latents(case: Case, model: Any, state: ChainState, rng: np.random.Generator) -> int:
    likelihood, u = model(case)
    moves.latent_hmc(likelihood, u, state, rng, adapt=False)
    return 2 * C * N + u.size


def move_hyper(case: Case, model: Any, state: ChainState, rng: np.random.Generator) -> int:
    likelihood = partial(probit_log_density if model is probit_and_u else softmax_log_density, Y)
    moves.hyper_given_whitened(case.problem, likelihood, state, rng, adapt=False)
    return case.theta.size


@pytest.mark.parametrize("move", [move_latents, move_hyper])
@pytest.mark.parametrize("model", [probit_and_u, softmax_and_nothing])
@both_kernels
def test_gradient_of_the_density_that_is_moved_under(
    kernel: Kernel | list[Kernel],
    model: Callable[[Case], tuple[Any, Array]],
    move: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What HMC is handed: prior, metric and standard normals included, at a point away from where the trajectory begins."""
    case, rng, seen = case_of(kernel), np.random.default_rng(6), []

    def no_step(log_density: Any, x: Array, current: Any, *_: Any) -> tuple[Array, Any, float]:
        seen.append((log_density, x))
        return x, current, 1.0

    monkeypatch.setattr(moves, "hmc_step", no_step)
    factors = case.problem.factors(case.theta)
    metric = np.tril(0.3 * np.eye(case.theta.size) + 0.05)
    state = ChainState(case.theta, factors.draw_prior(rng), factors, case.surrogate, StepSize(0.2), metric)
    size = move(case, model, state, rng)
    log_density, start = seen[0]
    assert start.size == size
    x = start + 0.2 * rng.standard_normal(start.size)
    slope = central_difference(lambda v: log_density(v)[0], x, step=1e-3, richardson=True)
    np.testing.assert_allclose(log_density(x)[1], slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("q", [1, 3])
def test_through_cholesky(q: int) -> None:
    rng = np.random.default_rng(7)
    h, z = rng.standard_normal((2, q, N))
    K = Factors(SHARED, X, C).jittered[0]
    direction = rng.standard_normal((N, N))
    direction += direction.T
    weights = through_cholesky(np.linalg.cholesky(K), h, z)
    np.testing.assert_array_equal(weights, weights.T)

    def value(t: Array) -> float:
        return float(np.sum(h * (z @ np.linalg.cholesky(K + t * direction).T)))

    slope = float(central_difference(value, 0.0, step=1e-4, richardson=True))
    assert np.vdot(weights, direction) == pytest.approx(slope, rel=1e-7)


# The probit before its noise is integrated out


def test_probit_given_noise_integrates_to_the_probit() -> None:
    """E_u Π_j Φ(u + f_y − f_j), row by row, by Gauss-Hermite quadrature; and so does its gradient."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    f = 2.0 * np.random.default_rng(8).standard_normal((C, N))
    log_p, slope = probit_log_likelihood(f.T, Y)
    for i in range(N):
        row = np.ascontiguousarray(f[:, i : i + 1])
        each = [probit_given_noise(row, np.array([u]), Y[i : i + 1]) for u in nodes]
        mass = weights * np.exp([value for value, _, _ in each])
        assert np.log(mass.sum()) == pytest.approx(log_p[i], rel=1e-6)
        np.testing.assert_allclose(mass @ [by_f[:, 0] for _, by_f, _ in each] / mass.sum(), slope[i], rtol=1e-5, atol=1e-8)
