"""A sampler for hyperparameters with several hills: the exact posterior on top of a ladder of EP's.

The rungs are densities of θ alone,

    p_β(θ) ∝ p(θ) Z(θ)^β,    log Z(θ) = log Z_EP(θ) + aᵀθ,    β = 1 on the first, less on every one below,

which HMC moves in with the gradient of EP's evidence; low ones are flat enough to leave a hill, and neighbours exchange their θ
by Metropolis' rule (Geyer 1991). On the first, θ also jumps to near where warm-up has been, from a kernel density of those
places, which costs one run of EP. On top stands the posterior of θ and the latents itself. It takes over the θ of the first rung,
with latents annealed from EP's posterior there (:mod:`nestgp.sampling.annealed`), by the same rule: the joint density of both
changes by w(θ₁)/w(θ₀), where w is the unbiased estimate of p(y | θ) that annealing gives, over Z(θ). So EP's errors cost
acceptance only, and aᵀθ, learnt in warm-up, is what can be told of them beforehand.

The top is exact but for two things: EP at its tolerance leaves log Z(θ) uncertain by some 10⁻³, so that the rungs are stationary
to that; and a θ at which EP finds no posterior at all is never visited.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp
from sklearn.gaussian_process.kernels import Kernel

from nestgp import kernels
from nestgp.arrays import FloatArray, IntArray
from nestgp.inference.nested_ep import NestedEP
from nestgp.inference.result import Fit, Status
from nestgp.kernel_gradient import contract
from nestgp.lapack import NotPositiveDefiniteError
from nestgp.likelihoods import probit_log_likelihood
from nestgp.sampling.annealed import LONGEST_STEP, Differences, anneal
from nestgp.sampling.chain import METRIC_UPDATES, TUNING, Problem, Record
from nestgp.sampling.conic import draw_auxiliary
from nestgp.sampling.factors import Factors
from nestgp.sampling.hmc import StepSize, hmc_step
from nestgp.sampling.moves import METRIC_SHRINKAGE, learnt_metric, quarter_turn
from nestgp.sampling.run import run

#: Most leapfrog steps of a trajectory: each is a run of EP.
LEAPFROG = 8
#: Rounds of exchanges between neighbours in a sweep: they cost nothing, and a θ climbs the whole ladder at once.
EXCHANGES = 10
#: Width h of the kernel density of places, in units of the metric.
WIDTH = 0.5
#: Acceptance that the steps of HMC on a rung and in annealing aim at.
RUNG_ACCEPTANCE, ANNEALING_ACCEPTANCE = 0.7, 0.9


@dataclass(frozen=True)
class Evaluation:
    """EP at θ: its evidence and prior, the gradients of both, and its sites for a warm start."""

    theta: FloatArray
    log_evidence: float
    log_prior: float
    evidence_slope: FloatArray
    prior_slope: FloatArray
    fit: Fit

    def tilted(self, tilt: FloatArray) -> float:
        """log Z(θ) = log Z_EP(θ) + aᵀθ."""
        return self.log_evidence + float(tilt @ self.theta)

    def tempered(self, beta: float, tilt: FloatArray) -> tuple[float, FloatArray]:
        """log p_β(θ) up to a constant, and its gradient."""
        return beta * self.tilted(tilt) + self.log_prior, beta * (self.evidence_slope + tilt) + self.prior_slope


@dataclass(frozen=True)
class Places:
    """Where a rung has been, theta (m, p), with the fits there; root (p, p) lower : of the covariance around each, h² C Cᵀ."""

    theta: FloatArray
    fits: tuple[Fit, ...]
    root: FloatArray

    def draw(self, rng: np.random.Generator) -> tuple[FloatArray, Fit]:
        """θ ~ g, and a fit near it."""
        j = int(rng.integers(len(self.theta)))
        return self.theta[j] + self.root @ rng.standard_normal(self.theta.shape[1]), self.fits[j]

    def log_density(self, theta: FloatArray) -> float:
        """log g(θ) = log mean_j N(θ | θ_j, h² C Cᵀ), up to a constant."""
        x = solve_triangular(self.root, (theta - self.theta).T, lower=True)
        return float(logsumexp(-0.5 * np.einsum("pm,pm->m", x, x)))


@dataclass
class Rung:
    """One θ under p_β; metric and step : θ moves in units of the columns of one, by the other, both learnt in warm-up.

    places : where jumps lead to near, of the first rung.
    """

    beta: float
    at: Evaluation
    metric: FloatArray
    step: StepSize = field(default_factory=lambda: StepSize(0.4, RUNG_ACCEPTANCE))
    trace: list[Evaluation] = field(default_factory=list)
    places: Places | None = None


@dataclass(frozen=True)
class Top:
    """θ with a population of latents f (q, c, n), their shares (q,), and the log of the estimate of p(y | θ) that they give."""

    at: Evaluation
    f: FloatArray
    share: FloatArray
    log_evidence: float

    def log_weight(self, tilt: FloatArray) -> float:
        """log w(θ)."""
        return self.log_evidence - self.at.tilted(tilt)


@dataclass
class LadderState:
    """Where a chain is; sweeps : how many there were; accepted : probability that the last θ offered to the top was taken.

    tilt (p,) : a; errors : θ and log p(y | θ) − log Z_EP(θ) of what was annealed in warm-up.
    f (c, n) : one of the top's population, by its share; v (c, n) : auxiliary variables given f.
    """

    top: Top
    rungs: list[Rung]
    annealing_step: StepSize
    tilt: FloatArray
    errors: list[tuple[FloatArray, float]] = field(default_factory=list)
    f: FloatArray = field(default_factory=lambda: np.empty(0))
    v: FloatArray = field(default_factory=lambda: np.empty(0))
    sweeps: int = 0
    accepted: float = 1.0
    warmup_left: int = 1 << 30
    factors: Factors | None = field(default=None, repr=False)

    def freeze(self) -> None:
        """Adapt no longer."""
        self.annealing_step.freeze()
        self.errors.clear()
        for rung in self.rungs:
            rung.step.freeze()
            rung.trace.clear()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"factors": None}  # follow from θ


@dataclass(frozen=True)
class Ladder:
    """Exact draws of the multinomial probit, for hyperparameters whose posterior has several hills.

    Parameters
    ----------
    n_draws, n_warmup, n_chains, thin, checkpoint : as for :class:`Gibbs`.
    rungs, hottest : densities of θ below the exact one, with powers of the evidence from 1 down to ``hottest``, in equal ratios.
    jumps : tries of a jump on the first rung, in every sweep.
    particles, stages : of annealing; more of them make its estimates less uncertain, and acceptance on top more frequent.

    Every sweep costs some fifteen runs of EP, and annealing n³ (c − 1)³ and some hundred times n² (c − 1)² for every particle: it
    is for small data. Where θ is not sampled there are no rungs, and every draw is an independent proposal.
    """

    n_draws: int = 500
    n_warmup: int = 200
    n_chains: int = 4
    thin: int = 1
    rungs: int = 4
    hottest: float = 0.3
    jumps: int = 4
    particles: int = 32
    stages: int = 20
    checkpoint: str | None = None

    likelihood: ClassVar[str] = "probit"
    default_rule: ClassVar[str] = "exact"
    approximation: ClassVar[NestedEP] = NestedEP(tol=1e-2)

    def sample(
        self, kernel: Kernel | Sequence[Kernel], X: FloatArray, y: IntArray, n_classes: int, rng: np.random.Generator, **how: Any
    ) -> Fit:
        """Draws of the latents, and of the hyperparameters if ``prior`` is given; ``how`` as for :func:`run`."""
        if not 0.0 < self.hottest <= 1.0:
            raise ValueError(f"hottest={self.hottest!r}: use a number in (0, 1]")
        return run(self, kernel, X, y, n_classes, rng, noisy=True, **how)

    def start(self, problem: Problem, rng: np.random.Generator) -> LadderState:
        """Every rung near the mode of θ, the wider the lower it is, and the top at the θ of the first."""
        rungs = []
        if problem.prior is not None:
            for beta in np.geomspace(1.0, self.hottest, self.rungs):
                metric = problem.first_metric / math.sqrt(beta)
                rungs.append(Rung(float(beta), self._first_evaluation(problem, metric, rng), metric))
        step = StepSize(0.4, ANNEALING_ACCEPTANCE)
        at = rungs[0].at if rungs else self._evaluate(problem, problem.first_theta, None)
        proposed = None if at is None else self._proposal(problem, at, step, rng, adapt=False)
        if proposed is None:
            raise NotPositiveDefiniteError("nested EP found no posterior at the first hyperparameters")
        return LadderState(proposed[0], rungs, step, np.zeros_like(problem.first_theta), factors=proposed[1])

    def sweep(self, problem: Problem, state: LadderState, rng: np.random.Generator, warmup: bool) -> None:
        """Move on the rungs, every second time the lower ones; exchange between neighbours; jump; offer the top a θ."""
        state.sweeps += 1
        for k, rung in enumerate(state.rungs):
            if k == 0 or state.sweeps % 2:
                self._move(problem, rung, state.tilt, rng, warmup)
        for _ in range(EXCHANGES):
            for pair in pairwise(state.rungs):
                _exchange(*pair, state.tilt, rng)
        if state.rungs:
            self._jump(problem, state.rungs[0], state.tilt, rng)
        self._climb(problem, state, rng, warmup)
        if warmup and state.rungs:
            _learn(state)
        state.f = state.top.f[rng.choice(len(state.top.share), p=state.top.share)]
        state.v = np.empty_like(state.f)
        draw_auxiliary(state.f, problem.y, rng, state.v)

    def _move(self, problem: Problem, rung: Rung, tilt: FloatArray, rng: np.random.Generator, adapt: bool) -> None:
        """One trajectory of HMC under p_β."""
        centre, seen = rung.at, [rung.at]

        def log_density(x: FloatArray) -> tuple[float, FloatArray]:
            theta = centre.theta + rung.metric @ x
            found = self._evaluate(problem, theta, seen[0].fit)
            if found is None:
                return -math.inf, x
            seen[0] = found
            value, slope = found.tempered(rung.beta, tilt)
            return value, rung.metric.T @ slope

        start = np.zeros(centre.theta.size)
        value, slope = centre.tempered(rung.beta, tilt)
        n_steps = quarter_turn(rung.step.value, LEAPFROG, rng)
        end, _, acceptance = hmc_step(log_density, start, (value, rung.metric.T @ slope), rung.step.value, n_steps, rng)
        if adapt:
            rung.step.update(acceptance)
        if end is not start:
            rung.at = seen[0]

    def _jump(self, problem: Problem, rung: Rung, tilt: FloatArray, rng: np.random.Generator) -> None:
        """Some tries of an independent proposal from the places, by Metropolis and Hastings' rule."""
        for _ in range(self.jumps if rung.places is not None else 0):
            assert rung.places is not None
            theta, near = rung.places.draw(rng)
            uniform, found = rng.random(), self._evaluate(problem, theta, near)
            if found is None:
                continue
            gain = found.tempered(rung.beta, tilt)[0] - rung.at.tempered(rung.beta, tilt)[0]
            gain += rung.places.log_density(rung.at.theta) - rung.places.log_density(theta)
            if math.log1p(-uniform) < gain:
                rung.at = found

    def _climb(self, problem: Problem, state: LadderState, rng: np.random.Generator, adapt: bool) -> None:
        """Offer the top what is annealed at the θ of the first rung, which gets the top's in exchange."""
        first = state.rungs[0] if state.rungs else None
        at = state.top.at if first is None else first.at
        proposed = self._proposal(problem, at, state.annealing_step, rng, adapt)
        if proposed is None:
            state.accepted = 0.0
            return
        top, factors = proposed
        if adapt:
            state.errors.append((at.theta, top.log_evidence - at.log_evidence))
        state.accepted = math.exp(min(0.0, top.log_weight(state.tilt) - state.top.log_weight(state.tilt)))
        if rng.random() >= state.accepted:
            return
        if first is not None:
            first.at = state.top.at
        state.top, state.factors = top, factors

    def _proposal(
        self, problem: Problem, at: Evaluation, step: StepSize, rng: np.random.Generator, adapt: bool
    ) -> tuple[Top, Factors] | None:
        """Latents annealed at θ, and what they say of the evidence there; None where EP has no posterior to begin at."""
        factors = problem.factors(at.theta)
        K = factors.jittered if len(factors.jittered) > 1 else factors.jittered[0]
        fit = self.approximation.infer(K, problem.y, problem.n_classes, init=at.fit)
        if not _usable(fit):
            return None
        try:
            _ = factors.prior_root  # made here, where it may fail, for the latents
            g = Differences(fit, factors, problem.y)
        except (NotPositiveDefiniteError, np.linalg.LinAlgError):
            return None
        found = anneal(g, self.particles, self.stages, step.value, rng)
        longest = step.value > LONGEST_STEP * math.sqrt(g.stiffness)  # then a longer one would change nothing
        if adapt and not (longest and found.accepted > step.target):
            step.update(found.accepted)
        if not math.isfinite(found.log_evidence):
            return None
        return Top(at, g.latents(found.x, rng), found.share, found.log_evidence), factors

    def _first_evaluation(self, problem: Problem, metric: FloatArray, rng: np.random.Generator) -> Evaluation:
        """At a θ around the first one, closer to it after every failure."""
        theta = problem.first_theta
        for scale in (1.0, 0.5, 0.25, 0.0):
            near = np.clip(theta + scale * metric @ rng.standard_normal(theta.size), *kernels.bounds(problem.kernel).T)
            found = self._evaluate(problem, near, None)
            if found is not None:
                return found
        raise NotPositiveDefiniteError("nested EP found no posterior near the first hyperparameters")

    def _evaluate(self, problem: Problem, theta: FloatArray, init: Fit | None) -> Evaluation | None:
        """EP at θ; None where it finds no evidence, or the prior has none."""
        log_prior, prior_slope = (0.0, np.zeros(theta.size)) if problem.prior is None else problem.log_prior(theta)
        if not math.isfinite(log_prior):
            return None
        factors = problem.factors(theta)
        K = factors.shared_or_stack
        fit = self.approximation.infer(K, problem.y, problem.n_classes, init=init)
        if not _usable(fit):
            return None
        slope = contract(factors.kernel, factors.X, fit.evidence_grad, K=K) if problem.prior is not None else prior_slope
        return Evaluation(theta, fit.log_evidence, log_prior, slope, prior_slope, _only_sites(fit))

    def record(self, problem: Problem, state: LadderState) -> Record:
        """Latents at new inputs follow from v: b = (K + I)⁻¹ v."""
        if state.factors is None:
            state.factors = problem.factors(state.top.at.theta)
        b = state.factors.times(state.factors.noisy_inverse, state.v)
        return Record(state.top.at.theta.copy(), state.f.copy(), b, np.exp(probit_log_likelihood(state.f.T, problem.y)[0]))


def _usable(fit: Fit) -> bool:
    """Whether there is an evidence that means something."""
    return math.isfinite(fit.log_evidence) and fit.status is not Status.DIVERGED


def _only_sites(fit: Fit) -> Fit:
    """What a warm start needs of a fit: hundreds are kept."""
    nothing: Any = None
    return replace(fit, posterior=nothing, history=(), gradient=None, site_moments=None)


def _exchange(upper: Rung, lower: Rung, tilt: FloatArray, rng: np.random.Generator) -> None:
    """θ of two neighbours change places by Metropolis' rule: p_β(θ′) p_β′(θ)/(p_β(θ) p_β′(θ′)) = (Z(θ′)/Z(θ))^(β − β′)."""
    gain = (upper.beta - lower.beta) * (lower.at.tilted(tilt) - upper.at.tilted(tilt))
    if math.log1p(-rng.random()) < gain:
        upper.at, lower.at = lower.at, upper.at


def _learn(state: LadderState) -> None:
    """Now and then the metric of a rung becomes the spread of the later half of its θ, and a the slope of EP's error."""
    for rung in state.rungs:
        rung.trace.append(rung.at)
    seen = len(state.rungs[0].trace)
    if seen not in METRIC_UPDATES or state.warmup_left < TUNING:
        return
    for rung in state.rungs:
        recent = rung.trace[seen // 2 :]
        theta = np.array([at.theta for at in recent])
        rung.metric = learnt_metric(theta)
        rung.step.restart(0.4)
        if rung is state.rungs[0]:
            rung.places = Places(theta, tuple(at.fit for at in recent), WIDTH * rung.metric)
    errors = state.errors[len(state.errors) // 2 :]
    if len(errors) > 1:
        state.tilt = _slope(np.array([theta for theta, _ in errors]), np.array([error for _, error in errors]))


def _slope(theta: FloatArray, error: FloatArray) -> FloatArray:
    """Least squares of the error (m,) on θ (m, p), as if METRIC_SHRINKAGE more were known not to change with it."""
    x = theta - theta.mean(axis=0)
    spread = x.var(axis=0) + 1e-6
    return np.linalg.solve(x.T @ x + METRIC_SHRINKAGE * np.diag(spread), x.T @ (error - error.mean()))
