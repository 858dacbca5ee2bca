"""Jumps between hills of the hyperparameters: their proposal, their ratio, and the shares of two hills against brute force."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import block_diag
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from nestgp import kernels
from nestgp.hyper import HalfStudentT
from nestgp.inference import NestedEP
from nestgp.sampling import Gibbs, jumps
from nestgp.sampling.chain import ChainState, Problem
from nestgp.sampling.gibbs import log_likelihood
from nestgp.sampling.hmc import StepSize
from nestgp.sampling.mixing import ess_bulk
from nestgp.sampling.moves import surrogate_around
from tests.oracles._types import Array
from tests.oracles.integrals import log_evidence_bruteforce

X4 = np.array([[-1.0], [-0.2], [0.4], [1.1]])
Y4 = np.array([0, 1, 2, 0])
C = 3


def test_proposal_is_a_mixture_of_normals() -> None:
    rng = np.random.default_rng(0)
    met, metric = rng.standard_normal((5, 2)), np.array([[0.8, 0.0], [0.3, 0.5]])
    each = [stats.multivariate_normal(m, jumps.WIDTH**2 * metric @ metric.T) for m in met]
    ratio = [np.log(np.mean([part.pdf(theta) for part in each])) for theta in met[:2] + 0.3]
    found = [jumps.log_proposal(theta, met, metric) for theta in met[:2] + 0.3]
    assert found[1] - found[0] == pytest.approx(ratio[1] - ratio[0], rel=1e-10)


def state_at(problem: Problem, theta: Array, metric: Array, met: Array, rng: np.random.Generator) -> ChainState:
    factors = problem.factors(theta)
    surrogate, _ = surrogate_around(problem, Gibbs.approximation, theta, metric)
    return ChainState(theta, factors.draw_prior(rng), factors, surrogate, StepSize(0.4), metric, met=met)


class _AlwaysAccepts:
    """A generator whose uniforms are zero."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def random(self) -> float:
        return 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rng, name)


def test_ratio_is_that_of_the_joint_density_and_the_proposal() -> None:
    """p(θ) p(f | θ) p(y | f)/(g(θ) q_θ(f)) after and before, q_θ with the sites that EP has at the nearest θ_j."""
    kernel = ConstantKernel(3.0) * RBF(0.8)
    problem = Problem(kernel, X4, Y4, C, HalfStudentT(), np.ones(2))
    method, metric, theta = NestedEP(tol=1e-10), np.array([[0.6, 0.0], [0.1, 0.4]]), kernels.theta(kernel)
    likelihood = partial(log_likelihood, Y4)
    ratios, nearest = [], []
    for seed in range(8):
        state = state_at(problem, theta + 0.2, metric, theta + np.array([[0.0, 0.0], [0.5, 0.3]]), np.random.default_rng(seed))
        state.met, state.met_sites = jumps._with_sites(problem, method, state.met)

        def log_weight(state: ChainState) -> float:
            K = block_diag(*[state.factors.jittered[0]] * C)
            apart = [np.linalg.norm(np.linalg.solve(metric, state.theta - near)) for near in state.met]
            nearest.append(int(np.argmin(apart)))
            K_near = problem.factors(state.met[nearest[-1]]).K[0]
            s2 = np.trace(state.factors.jittered[0]) / np.trace(K_near)
            fit = method.infer(K_near, Y4, C)
            assert fit.site_moments is not None
            precision, location = fit.site_moments()[0] / s2, fit.site_moments()[1] / np.sqrt(s2)
            sites = sum(np.kron(P, np.diag(e)) for P, e in zip(precision, np.eye(4), strict=True))
            cov = np.linalg.inv(np.linalg.inv(K) + sites)
            f = state.f.ravel()
            log_p = problem.log_prior(state.theta)[0] + stats.multivariate_normal(None, K).logpdf(f) + likelihood(state.f)[0]
            log_q = stats.multivariate_normal(cov @ location.T.ravel(), 0.5 * (cov + cov.T)).logpdf(f)
            return float(log_p - log_q - jumps.log_proposal(state.theta, state.met, metric))

        before = log_weight(state)
        here = jumps._whitened(problem, state, state.theta)
        assert here is not None
        rng: Any = _AlwaysAccepts(seed)
        there, acceptance = jumps._jump(problem, likelihood, state, here, rng)
        assert there is not here
        ratios.append((np.log(acceptance), min(0.0, log_weight(state) - before)))
    found, expected = np.array(ratios).T
    assert (expected < 0.0).sum() >= 3
    assert set(nearest) == {0, 1}
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-5)


class TwoHills:
    """A density of θ = log ℓ, the Jacobian included, with two narrow hills at equal height; HMC never crosses between them."""

    centres, width = np.array([-1.0, 1.2]), 0.1

    def evaluate(self, names: Sequence[str], theta: Array, units: Array) -> tuple[float, Array]:
        x = (theta[0] - self.centres) / self.width
        log_p = -0.5 * x**2
        share = np.exp(log_p - np.logaddexp(*log_p))
        return float(np.logaddexp(*log_p) - theta[0]), np.array([-(share @ x) / self.width - 1.0])


@pytest.mark.parametrize("tries", [0, 2])
def test_two_hills_have_their_shares(tries: int) -> None:
    kernel = ConstantKernel(3.0, "fixed") * RBF(0.8)
    hills = TwoHills()
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    evidence = []
    for centre in hills.centres:
        each = [kernels.gram(kernels.with_theta(kernel, np.array([centre + hills.width * x])), X4) for x in nodes]
        evidence.append(weights @ np.exp([log_evidence_bruteforce(K, Y4, C, 2**10, 4)[0] for K in each]))
    expected = evidence[0] / sum(evidence)
    assert 0.6 < expected < 0.95

    problem, sampler = Problem(kernel, X4, Y4, C, hills, np.ones(1)), Gibbs(jumps=tries)
    first = []
    for chain, centre in enumerate(hills.centres):
        rng = np.random.default_rng(chain)
        state = state_at(problem, np.array([centre]), np.array([[0.2]]), hills.centres[:, None], rng)
        state.whitened_step.restart(0.5)
        draws = []
        for _ in range(250 if tries else 20):
            sampler.sweep(problem, state, rng, False)
            draws.append(float(state.theta[0] < 0.0))
        first.append(draws)
    shares = np.array(first)
    if not tries:
        assert shares.mean(axis=1).tolist() == [1.0, 0.0]
        return
    error = shares.std() / np.sqrt(ess_bulk(shares))
    assert error < 0.05
    assert abs(shares.mean() - expected) < 4.0 * error


@pytest.mark.parametrize(("tried", "accepted", "goes_on"), [(0, 0.0, True), (60, 0.1, False), (60, 3.0, True), (40, 0.0, True)])
def test_no_jumps_where_warm_up_saw_hardly_one_accepted(tried: int, accepted: float, goes_on: bool) -> None:
    problem = Problem(ConstantKernel(3.0) * RBF(0.8), X4, Y4, C, HalfStudentT(), np.ones(2))
    theta = kernels.theta(problem.kernel)
    state = state_at(problem, theta, 0.3 * np.eye(2), theta[None], np.random.default_rng(0))
    state.jumps_tried, state.jumps_accepted = tried, accepted
    rng: Any = _AlwaysAccepts(1)
    jumps.hyper_jumps(problem, Gibbs.approximation, partial(log_likelihood, Y4), state, rng, False, 1)
    assert (not np.array_equal(state.theta, theta)) is goes_on
    assert state.jumps_tried == tried  # only warm-up counts
