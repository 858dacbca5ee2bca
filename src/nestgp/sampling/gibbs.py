"""Gibbs sampling for the multinomial probit (section 4.2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from nestgp.arrays import FloatArray, IntArray
from nestgp.inference.nested_ep import NestedEP
from nestgp.inference.result import Fit
from nestgp.likelihoods import probit_given_noise, probit_log_likelihood
from nestgp.sampling.chain import ChainState, Problem, Record
from nestgp.sampling.conic import draw_auxiliary
from nestgp.sampling.hmc import StepSize
from nestgp.sampling.moves import (
    elliptical_slice,
    hyper_given_auxiliary,
    hyper_given_latents,
    hyper_given_whitened,
    latent_hmc,
    learn_metric,
)
from nestgp.sampling.run import run, start_from


@dataclass(frozen=True)
class Gibbs:
    """Gibbs sampling of the augmented multinomial probit, helped by a latent move with the auxiliary variables integrated out.

    Parameters
    ----------
    n_draws, n_warmup, n_chains, thin : draws kept per chain, sweeps before them, chains, sweeps per draw kept.
    latent_move : "hmc" (whitened), "slice" (elliptical), or "none": the plain alternation of v and f, which mixes slowly where
        the kernel's variance is large.
    hyper : "surrogate" moves θ with the latents held fixed in the coordinates of :mod:`nestgp.sampling.surrogate`; "collapsed"
        samples θ | v with f integrated out; "joint" samples θ | f as the paper does.
    checkpoint : path prefix; every chain saves itself there once a minute and at its end, and goes on from there: the same
        with more draws continues it.
    """

    n_draws: int = 1000
    n_warmup: int = 500
    n_chains: int = 4
    thin: int = 1
    latent_move: str = "hmc"
    hyper: str = "surrogate"
    checkpoint: str | None = None

    likelihood: ClassVar[str] = "probit"
    default_rule: ClassVar[str] = "exact"
    approximation: ClassVar[NestedEP] = NestedEP(tol=1e-3)

    def sample(
        self, kernel: Kernel | Sequence[Kernel], X: FloatArray, y: IntArray, n_classes: int, rng: np.random.Generator, **how: Any
    ) -> Fit:
        """Draws of the latents, and of the hyperparameters if ``prior`` is given; ``how`` as for :func:`run`."""
        for name, known in (("latent_move", ("hmc", "slice", "none")), ("hyper", ("surrogate", "collapsed", "joint"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}: use one of {list(known)}")
        return run(self, kernel, X, y, n_classes, rng, noisy=True, **how)

    def start(self, problem: Problem, rng: np.random.Generator) -> ChainState:
        """Near the means of nested EP, so that warm-up is short."""
        return start_from(self.approximation, problem, rng, StepSize(0.2, 0.8))

    def sweep(self, problem: Problem, state: ChainState, rng: np.random.Generator, warmup: bool) -> None:
        """Latent move; θ | whitened latents; v | f; θ | v; f | θ, v; θ | f: whichever of those for θ is asked for."""
        hyper = self.hyper if problem.prior is not None else "none"
        likelihood = partial(log_likelihood, problem.y)
        if self.latent_move == "hmc":
            self._draw_auxiliary(problem, state, rng)
            u = np.take_along_axis(state.v - state.f, problem.y[None], axis=0)[0]  # v_y = f_y + u
            latent_hmc(partial(probit_given_noise, y=problem.y), u, state, rng, warmup)
        elif self.latent_move == "slice":
            elliptical_slice(likelihood, state, rng)
        if hyper == "surrogate":
            hyper_given_whitened(problem, likelihood, state, rng, warmup)
        self._draw_auxiliary(problem, state, rng)
        if hyper == "collapsed":
            hyper_given_auxiliary(problem, state, rng, warmup)
        state.f = state.factors.draw_latents(state.v, rng)
        if hyper == "joint":
            hyper_given_latents(problem, state, rng, warmup)
        if warmup and hyper != "none":
            learn_metric(problem, self.approximation, state)

    def _draw_auxiliary(self, problem: Problem, state: ChainState, rng: np.random.Generator) -> None:
        """v | f, exactly."""
        state.v = np.empty_like(state.f)
        draw_auxiliary(state.f, problem.y, rng, state.v)

    def record(self, problem: Problem, state: ChainState) -> Record:
        """Latents at new inputs follow from v without K⁻¹: b = (K + I)⁻¹ v; (θ, v) is a joint draw whichever θ move came last."""
        b = state.factors.times(state.factors.noisy_inverse, state.v)
        return Record(state.theta.copy(), state.f.copy(), b, np.exp(probit_log_likelihood(state.f.T, problem.y)[0]))


def log_likelihood(y: IntArray, f: FloatArray) -> tuple[float, FloatArray]:
    """log p(y | f) of the multinomial probit and its gradient (c, n); f (c, n)."""
    log_p, slope = probit_log_likelihood(f.T, y)
    return float(log_p.sum()), np.ascontiguousarray(slope.T)
