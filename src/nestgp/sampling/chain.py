"""One loop for every sampler: warm-up, thinning, checkpoints, progress, and several chains side by side."""

from __future__ import annotations

import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import joblib
import numpy as np
from joblib import Parallel, delayed
from sklearn.gaussian_process.kernels import Kernel

from nestgp import kernels
from nestgp.arrays import FloatArray, IntArray
from nestgp.hyper import Prior, jacobian_power
from nestgp.sampling.factors import Factors
from nestgp.sampling.hmc import StepSize
from nestgp.sampling.mixing import ess_bulk
from nestgp.sampling.surrogate import Surrogate, Whitening
from nestgp.threads import single_threaded_if_small

#: Warm-up sweeps after which the metric of the hyperparameters is learnt.
METRIC_UPDATES = (50, 150, 400, 1000)
#: Sweeps that must be left of it then, to tune the step sizes.
TUNING = 25


@dataclass(frozen=True)
class Problem:
    """What is sampled: latents given the data, and hyperparameters under ``prior`` unless that is None.

    ``start`` (p,): where chains begin, None: at the kernel's θ; ``metric`` (p, p), lower triangular: a guess of the spread of θ
    around it, C Cᵀ its covariance, None: unknown; ``known``: what a sampler has explored for all its chains. None of them is part
    of what is sampled, nor of a checkpoint's fingerprint.
    """

    kernel: Kernel | Sequence[Kernel]
    X: FloatArray
    y: IntArray
    n_classes: int
    prior: Prior | None
    units: FloatArray
    start: FloatArray | None = None
    metric: FloatArray | None = None
    known: tuple[Any, ...] = ()

    @property
    def first_theta(self) -> FloatArray:
        """Where chains begin, or near it."""
        return kernels.theta(self.kernel) if self.start is None else self.start

    @property
    def first_metric(self) -> FloatArray:
        """Before warm-up has taught another."""
        return 0.3 * np.eye(kernels.theta(self.kernel).size) if self.metric is None else self.metric

    def factors(self, theta: FloatArray) -> Factors:
        """Factors of K at θ."""
        return Factors(kernels.with_theta(self.kernel, theta), self.X, self.n_classes)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(kernels.hyperparameter_names(self.kernel))  # asked for in every leapfrog step, and slow to find

    @cached_property
    def _bounds(self) -> FloatArray:
        return kernels.bounds(self.kernel)

    def log_prior(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """Log density of θ = log x, the Jacobian of the log included, and its gradient; −inf outside the kernel's bounds."""
        assert self.prior is not None
        if np.any(theta < self._bounds[:, 0]) or np.any(theta > self._bounds[:, 1]):
            return -np.inf, np.zeros_like(theta)
        value, gradient = self.prior.evaluate(self._names, theta, self.units)
        power = jacobian_power(self._names)
        return value + float(power @ theta), gradient + power


@dataclass
class ChainState:
    """Where a chain is: what the next sweep needs, and nothing that is only for looking.

    Attributes
    ----------
    theta (p,), f (c, n), factors : hyperparameters, latents, and the factors of K at θ; v (c, n) : auxiliary variables.
    surrogate : sites that the latents are whitened with, fixed after warm-up.
    metric : (p, p) lower triangular; θ moves in units of its columns, learnt in warm-up from ``hyper_trace``.
    warmup_left : sweeps of the warm-up after this one.
    latent_step, whitened_step, hyper_step : step sizes of the latents, of θ given whitened latents, and of θ given v or f.
    """

    theta: FloatArray
    f: FloatArray
    factors: Factors
    surrogate: Surrogate
    latent_step: StepSize
    metric: FloatArray
    whitened_step: StepSize = field(default_factory=lambda: StepSize(0.2, 0.65))
    hyper_step: StepSize = field(default_factory=lambda: StepSize(0.2))
    v: FloatArray = field(default_factory=lambda: np.empty(0))
    hyper_trace: list[FloatArray] = field(default_factory=list)
    accepted: float = 1.0
    warmup_left: int = 1 << 30
    _whitening: Whitening | None = field(default=None, repr=False)

    @property
    def whitening(self) -> Whitening:
        """Coordinates of the latents at the current θ, kept while it stays."""
        if self._whitening is None or self._whitening.factors is not self.factors:
            self._whitening = Whitening(self.surrogate.at(self.theta), self.factors)
        return self._whitening

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_whitening": None}  # the factor and more, which follow from the rest

    def freeze(self) -> None:
        """Adapt no longer."""
        for step in (self.latent_step, self.whitened_step, self.hyper_step):
            step.freeze()

    def use(self, surrogate: Surrogate) -> None:
        """Whiten by other sites from now on."""
        self.surrogate, self._whitening = surrogate, None

    def move_to(self, theta: FloatArray, f: FloatArray, whitening: Whitening) -> None:
        """Be at another θ and f, whose whitening is known."""
        self.theta, self.f, self.factors, self._whitening = theta, f, whitening.factors, whitening


@dataclass(frozen=True)
class Record:
    """One kept draw: θ, f (c, n), b (c, n) for the latents at new inputs, and p(y_i | f_i) of every training row (n,)."""

    theta: FloatArray
    f: FloatArray
    b: FloatArray
    probability: FloatArray


class State(Protocol):
    """What the loop needs of where a chain is: the last acceptance to show, and how much of the warm-up is left to tell."""

    accepted: float
    warmup_left: int

    def freeze(self) -> None: ...


class Sampler(Protocol):
    """What a sampler supplies to the loop; its state is its own."""

    @property
    def approximation(self) -> Any: ...

    @property
    def n_draws(self) -> int: ...

    @property
    def n_warmup(self) -> int: ...

    @property
    def n_chains(self) -> int: ...

    @property
    def thin(self) -> int: ...

    @property
    def checkpoint(self) -> str | None: ...

    def start(self, problem: Problem, rng: np.random.Generator) -> Any: ...

    def sweep(self, problem: Problem, state: Any, rng: np.random.Generator, warmup: bool) -> None: ...

    def record(self, problem: Problem, state: Any) -> Record: ...


@dataclass
class _Progress:
    """A line on stderr that is written over once a second; beside other chains a line of its own every ten seconds."""

    chain: int
    total: int
    alone: bool = True
    shown: float = -np.inf
    trace: list[float] = field(default_factory=list)

    def show(self, sweep: int, warmup: bool, state: State, latest: float | None) -> None:
        if latest is not None:
            self.trace.append(latest)
        now = time.monotonic()
        if now - self.shown < (1.0 if self.alone else 10.0):
            return
        self.shown = now
        ess = ess_bulk(np.array([self.trace])) if len(self.trace) >= 20 else float("nan")
        phase = "warm-up" if warmup else "sampling"
        line = f"chain {self.chain} {phase} {sweep}/{self.total}  acceptance {state.accepted:.2f}  ESS {ess:6.0f}"
        before, after = ("\r", "") if self.alone else ("", "\n")
        print(f"{before}{line}", end=after, file=sys.stderr, flush=True)


@dataclass
class Chain:
    """A chain under way: what a checkpoint holds, and whether an interrupt has ended it."""

    state: State
    records: list[Record]
    sweep: int
    rng: np.random.Generator
    stopped: bool = False


def run_chains(
    sampler: Sampler, problem: Problem, rng: np.random.Generator, n_jobs: int | None = None, verbose: int = 0
) -> list[list[Record]]:
    """Draws of every chain, each a stream of ``rng`` of its own: the same seed gives the same draws whatever n_jobs."""
    if sampler.checkpoint is not None:
        Path(sampler.checkpoint).parent.mkdir(parents=True, exist_ok=True)  # now, and not when the first draws are to be kept
    streams = rng.spawn(sampler.n_chains)
    mark = fingerprint(sampler, problem, streams[0])
    total = sampler.n_warmup + sampler.n_draws * sampler.thin
    alone = n_jobs in (None, 1)
    new = sampler.checkpoint is None or any(not _path(sampler, k).exists() for k in range(sampler.n_chains))
    if new and problem.prior is not None and hasattr(sampler, "explore"):
        problem = _explore(sampler, problem, streams, n_jobs, verbose)
    shown = [_Progress(k, total, alone) if verbose else None for k in range(sampler.n_chains)]
    each = [(stream, k, line) for k, (stream, line) in enumerate(zip(streams, shown, strict=True))]
    chains = _run_each(partial(run_chain, sampler, problem, mark), each, n_jobs)
    if verbose:
        print(file=sys.stderr)
    drawn = [chain.records[: sampler.n_draws] for chain in chains if chain.records]
    if not drawn:
        raise KeyboardInterrupt("sampling was interrupted before the first draw")
    return _rectangular(drawn)


def _explore(
    sampler: Any, problem: Problem, streams: Sequence[np.random.Generator], n_jobs: int | None, verbose: int
) -> Problem:
    """The problem with what every chain finds out before it begins, round by round, for all of them together."""
    for k in range(sampler.looks):
        if verbose:
            print(f"looking for hills of the hyperparameters' posterior {k + 1}/{sampler.looks}", file=sys.stderr, flush=True)
        each = [(problem, stream.spawn(1)[0]) for stream in streams]
        found = Parallel(n_jobs=n_jobs)(delayed(_alone)(sampler.explore, *args) for args in each)
        problem = replace(problem, known=(*problem.known, *(thing for part in found for thing in part)))
    return problem


def _alone(explore: Callable[..., list[Any]], problem: Problem, rng: np.random.Generator) -> list[Any]:
    with single_threaded_if_small(len(problem.X)):
        return explore(problem, rng)


def _path(sampler: Sampler, number: int) -> Path:
    return Path(f"{sampler.checkpoint}.chain{number}.pkl")


def _run_each(run: Callable[..., Chain], each: list[tuple[Any, ...]], n_jobs: int | None) -> list[Chain]:
    """All chains, beside each other or one by one until one is interrupted."""
    if n_jobs not in (None, 1):
        return list(Parallel(n_jobs=n_jobs)(delayed(run)(*args) for args in each))
    chains: list[Chain] = []
    for args in each:
        chains.append(run(*args))
        if chains[-1].stopped:
            break
    return chains


def _rectangular(chains: list[list[Record]]) -> list[list[Record]]:
    """Chains of equal length that keep the most draws: a chain interrupted early goes, rather than cut the others short."""
    longest_first = sorted((len(c) for c in chains), reverse=True)
    length = max(longest_first, key=lambda n: n * sum(other >= n for other in longest_first))
    return [c[:length] for c in chains if len(c) >= length]


def run_chain(
    sampler: Sampler,
    problem: Problem,
    mark: str,
    rng: np.random.Generator,
    number: int,
    progress: _Progress | None,
) -> Chain:
    """One chain, continued from its checkpoint if there is one; an interrupt keeps what was drawn."""
    path = None if sampler.checkpoint is None else _path(sampler, number)
    saved = _load(path, mark)
    with single_threaded_if_small(len(problem.X)):
        chain = Chain(*saved) if saved is not None else Chain(sampler.start(problem, rng), [], 0, rng)
    state, begin, total = chain.state, chain.sweep, sampler.n_warmup + sampler.n_draws * sampler.thin
    last_saved = time.monotonic()
    try:
        for sweep in range(begin, total):
            chain.sweep = sweep
            warmup = sweep < sampler.n_warmup
            if sweep == sampler.n_warmup:
                state.freeze()
            state.warmup_left = sampler.n_warmup - sweep - 1
            with single_threaded_if_small(len(problem.X)):  # once a sweep: every matrix product inside would ask again
                sampler.sweep(problem, state, chain.rng, warmup)
            kept = not warmup and (sweep - sampler.n_warmup + 1) % sampler.thin == 0
            if kept:
                chain.records.append(sampler.record(problem, state))
            chain.sweep = sweep + 1
            if progress is not None:
                latest = float(np.log(chain.records[-1].probability).sum()) if kept else None
                progress.show(sweep, warmup, state, latest)
            if path is not None and time.monotonic() - last_saved > CHECKPOINT_SECONDS:
                _save(path, mark, chain)
                last_saved = time.monotonic()
    except KeyboardInterrupt:
        warnings.warn(f"chain {number} interrupted after {chain.sweep} of {total} sweeps: its draws are kept", stacklevel=2)
        chain.stopped = True
        return chain
    if path is not None and begin < total:
        _save(path, mark, chain)
    return chain


#: Seconds between two checkpoints of a chain.
CHECKPOINT_SECONDS = 60.0
#: Raised when the states of samplers change, so that older checkpoints are told from damaged ones.
FORMAT = 3


def fingerprint(sampler: Sampler, problem: Problem, rng: np.random.Generator) -> str:
    """What a checkpoint must agree in: sampler, data, kernel, seed, but not the number of draws: chains can be made longer."""
    how = {name: value for name, value in vars(sampler).items() if name not in ("n_draws", "checkpoint")}
    # not the kernel's repr, which rounds to three digits
    parts = (type(sampler).__name__, how, problem.kernel, problem.prior, problem.n_classes, problem.units, problem.X, problem.y)
    return str(joblib.hash((FORMAT, *parts, rng.bit_generator.state)))


def _save(path: Path, mark: str, chain: Chain) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(pickle.dumps((mark, (chain.state, chain.records, chain.sweep, chain.rng))))
    os.replace(temporary, path)


def _load(path: Path | None, mark: str) -> Any:
    if path is None or not path.exists():
        return None
    try:
        found, content = pickle.loads(path.read_bytes())
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"checkpoint {path} cannot be read ({error}): delete it, or name another file") from error
    if found != mark:
        raise ValueError(f"checkpoint {path} is of another sampler, data set, seed or version: delete it, or name another file")
    return content
