"""Samplers for the softmax: scaled Metropolis-Hastings (section 4.2.1; Neal 1998), elliptical slices, HMC."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from nestgp.arrays import FloatArray, IntArray
from nestgp.inference.laplace import Laplace
from nestgp.inference.result import Fit
from nestgp.likelihoods import softmax_log_probabilities
from nestgp.sampling.chain import ChainState, Problem, Record
from nestgp.sampling.hmc import StepSize
from nestgp.sampling.moves import (
    LogLikelihood,
    elliptical_slice,
    hyper_given_latents,
    hyper_given_whitened,
    latent_hmc,
    learn_metric,
    scaled_metropolis,
)
from nestgp.sampling.run import run, start_from


@dataclass(frozen=True)
class SoftmaxSampler(ABC):
    """Latents by the move of the subclass, hyperparameters by HMC."""

    n_draws: int = 1000
    n_warmup: int = 500
    n_chains: int = 4
    thin: int = 1
    updates: int = 1
    checkpoint: str | None = None

    likelihood: ClassVar[str] = "softmax"
    default_rule: ClassVar[str] = "exact"
    approximation: ClassVar[Laplace] = Laplace(tol=1e-3)
    #: First step of the latent move, and the acceptance it aims at.
    first_step: ClassVar[tuple[float, float]] = (0.1, 0.8)

    @abstractmethod
    def move(self, likelihood: LogLikelihood, state: ChainState, rng: np.random.Generator, warmup: bool) -> None:
        """Draw f | θ, y."""

    def sample(
        self, kernel: Kernel | Sequence[Kernel], X: FloatArray, y: IntArray, n_classes: int, rng: np.random.Generator, **how: Any
    ) -> Fit:
        """Draws of the latents, and of the hyperparameters if ``prior`` is given; ``how`` as for :func:`run`."""
        return run(self, kernel, X, y, n_classes, rng, noisy=False, **how)

    def start(self, problem: Problem, rng: np.random.Generator) -> ChainState:
        """Near the mode of Laplace's method."""
        return start_from(self.approximation, problem, rng, StepSize(*self.first_step))

    def sweep(self, problem: Problem, state: ChainState, rng: np.random.Generator, warmup: bool) -> None:
        """f | θ, then θ | whitened latents and θ | f."""
        likelihood = partial(log_likelihood, problem.y)
        for _ in range(self.updates):
            self.move(likelihood, state, rng, warmup)
        if problem.prior is not None:
            hyper_given_whitened(problem, likelihood, state, rng, warmup)
            hyper_given_latents(problem, state, rng, warmup)
            if warmup:
                learn_metric(problem, self.approximation, state)

    def record(self, problem: Problem, state: ChainState) -> Record:
        """b = K⁻¹f."""
        b = state.factors.prior_solve(state.f)
        log_p = softmax_log_probabilities(state.f.T)
        return Record(state.theta.copy(), state.f.copy(), b, np.exp(log_p[np.arange(problem.y.size), problem.y]))


@dataclass(frozen=True)
class ScaledMetropolis(SoftmaxSampler):
    """Neal's scaled Metropolis-Hastings on the latents, HMC on the hyperparameters.

    Parameters
    ----------
    n_draws, n_warmup, n_chains, thin, checkpoint : as for :class:`Gibbs`.
    updates : latent updates per sweep; their steps aim at an acceptance of 0.3.
    """

    n_warmup: int = 1000
    updates: int = 50

    first_step: ClassVar[tuple[float, float]] = (0.1, 0.3)

    def move(self, likelihood: LogLikelihood, state: ChainState, rng: np.random.Generator, warmup: bool) -> None:
        """f' = √(1 − ε²) f + ε ξ, ξ from the prior, accepted by the ratio of likelihoods."""
        scaled_metropolis(likelihood, state, rng, adapt=warmup)


@dataclass(frozen=True)
class EllipticalSlice(SoftmaxSampler):
    """Elliptical slice sampling of the latents, HMC on the hyperparameters: nothing to tune.

    Parameters
    ----------
    n_draws, n_warmup, n_chains, thin, checkpoint : as for :class:`Gibbs`; updates : latent updates per sweep.
    """

    updates: int = 20

    def move(self, likelihood: LogLikelihood, state: ChainState, rng: np.random.Generator, warmup: bool) -> None:
        """A point of the ellipse through f and a draw from the prior."""
        elliptical_slice(likelihood, state, rng)


@dataclass(frozen=True)
class Hamiltonian(SoftmaxSampler):
    """HMC on latents whitened by the sites of Laplace's method, HMC on the hyperparameters.

    Parameters
    ----------
    n_draws, n_warmup, n_chains, thin, checkpoint : as for :class:`Gibbs`; updates : trajectories of the latents per sweep.
    """

    first_step: ClassVar[tuple[float, float]] = (0.2, 0.8)

    def move(self, likelihood: LogLikelihood, state: ChainState, rng: np.random.Generator, warmup: bool) -> None:
        """One trajectory; the softmax has no noise u."""
        latent_hmc(lambda f, u: (*likelihood(f), u), np.empty(0), state, rng, adapt=warmup)


def log_likelihood(y: IntArray, f: FloatArray) -> tuple[float, FloatArray]:
    """log p(y | f) of the softmax and its gradient (c, n); f (c, n)."""
    log_p = softmax_log_probabilities(f.T).T
    at = (y, np.arange(y.size))
    slope = -np.exp(log_p)
    slope[at] += 1.0
    return float(log_p[at].sum()), slope
