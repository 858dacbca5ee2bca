"""A sampler for hyperparameters with several hills: the exact posterior on top of a ladder of cheaper ones.

The lower rungs are densities of θ alone,

    p_β(θ) ∝ (p(θ) Z(θ)^β)^τ,    log Z(θ) = s(θ) + e(θ),    β = 1 on the first, less on every one below, τ a little below 1,

where s emulates EP's log evidence (:mod:`nestgp.sampling.emulator`) from runs of EP at some θ that warm-up has come by. HMC
moves in them; low ones are flat enough to leave a hill, and neighbours exchange their θ by Metropolis' rule (Geyer 1991). That
costs milliseconds, however long EP takes. The rung above them has EP's own evidence in place of s: it takes over the θ of the
first by the same rule, at the cost of a run of EP, and moves by itself too, because where the emulator is far too low no
exchange takes a θ away. On top stands the posterior of θ and the latents itself. It takes over the θ of EP's rung, with
latents annealed from EP's posterior there (:mod:`nestgp.sampling.annealed`); the joint density of both rungs then changes by
w(θ₁)/w(θ₀), where w is p(θ) times the unbiased estimate of p(y | θ) that annealing gives, over the density of EP's rung, (p(θ)
Z_EP(θ) exp(e(θ)))^τ. So errors of the emulator and of EP cost acceptance only, and e, learnt before the draws, is what can
be told of EP's. Then the top draws its population anew around one of its own (conditional SMC), so that no estimate that
was high by luck stays.

The top is exact but for a θ at which EP does not converge, which is never visited.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from nestgp import kernels
from nestgp.arrays import FloatArray, IntArray
from nestgp.inference.nested_ep import NestedEP
from nestgp.inference.result import Fit
from nestgp.lapack import NotPositiveDefiniteError
from nestgp.likelihoods import probit_log_likelihood
from nestgp.sampling.annealed import LONGEST_STEP, anneal
from nestgp.sampling.below import FALSE_HILL, BelowTop, enough
from nestgp.sampling.chain import Problem, Record
from nestgp.sampling.conic import draw_auxiliary
from nestgp.sampling.differences import Differences
from nestgp.sampling.emulator import Emulator, matters
from nestgp.sampling.factors import Factors
from nestgp.sampling.hmc import StepSize
from nestgp.sampling.landscape import FLATTER, Ground, Landscape, Place, Point, apart, climb, point_of
from nestgp.sampling.run import run
from nestgp.sampling.rungs import ROUNDS, Rung, move, stir

#: Most leapfrog steps, each a run of EP, that EP's rung goes by itself.
LEAPFROG_NEAR = 3
#: Standard deviation of every coordinate of the θ that climbs begin at.
FAR = 2.0
#: Shares of the sweeps of warm-up: as many as one look around before it has; and those of the warm-up itself in which the top is
#: offered nothing, because little is known of the evidence.
LOOKING, EARLY = 0.5, 0.25
#: Every so many-th sweep of a look around, but the first, also estimates EP's error.
ESTIMATE_EVERY = 2
#: Sweeps at the end of warm-up that only tune steps, of which each has many trajectories.
SETTLING = 10
#: Acceptance that the steps of HMC in annealing aim at.
ANNEALING_ACCEPTANCE = 0.85


@dataclass(frozen=True)
class Top:
    """EP at θ, a population of differences g (D, q), their shares (q,), and the log of the estimate of p(y | θ) that it gives."""

    at: Point
    g: FloatArray
    share: FloatArray
    log_evidence: float

    def log_weight(self, error: Emulator | None) -> float:
        """log w(θ)."""
        return self.log_evidence + self.at.log_prior - self.at.log_density(error)

    def one(self, rng: np.random.Generator) -> FloatArray:
        """g (D, 1) of one of them, by its share."""
        return self.g[:, [rng.choice(len(self.share), p=self.share)]]


@dataclass(kw_only=True)
class LadderState(BelowTop):
    """Where a chain is; accepted : probability that the last θ offered to the top was taken; drawn : sweeps after warm-up.

    f (c, n) : one of the top's population, by its share; v (c, n) : auxiliary variables given f.
    differences : EP's Gaussian at the top's θ, and with it the factors there.
    """

    top: Top
    annealing_step: StepSize
    f: FloatArray = field(default_factory=lambda: np.empty(0))
    v: FloatArray = field(default_factory=lambda: np.empty(0))
    accepted: float = 1.0
    warmup_left: int = 1 << 30
    drawn: int = 0
    differences: Differences | None = field(default=None, repr=False)

    def freeze(self) -> None:
        """Adapt no longer."""
        self.annealing_step.freeze()
        self.errors.clear()
        self.points.clear()
        for rung in self.rungs:
            rung.step.freeze()
            rung.trace.clear()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"differences": None, "whole": None}  # follow from θ and sites


@dataclass(frozen=True)
class Ladder:
    """Exact draws of the multinomial probit, for hyperparameters whose posterior has several hills.

    Parameters
    ----------
    n_draws, n_warmup, n_chains, thin, checkpoint : as for :class:`Gibbs`.
    rungs, hottest : emulated densities of θ, with powers β of the evidence from 1 down to ``hottest``, in equal ratios.
    climbs : to the tops of hills, by EP's evidence, from θ far apart: at most so many before every chain begins, and no more than
        there are hyperparameters.
    looks : rounds in which every chain looks around before it begins, with an emulator of what all of them have met by then: a
        hill that few points are known of is underrated, and a chain that comes to it stays.
    tries : new θ of the emulated density for EP's rung in a sweep, each at the cost of one run of EP.
    wander : probability that it also moves near where it is after a try, at the cost of up to three.
    particles, stages : of annealing; more of them make its estimates less uncertain, and acceptance on top more frequent.
    repeat : sweeps that draw from one population of latents before the next is annealed. The others cost next to nothing, and
        latents of one population differ by half of their variance and more (measured on Glass): with 4 take 4 times the draws.

    Every sweep costs a few runs of EP, and annealing n³ (c − 1)³ and some hundred times n² (c − 1)² for every particle: it is for
    small data. Where θ is not sampled there are no rungs, and every draw is of an independent proposal or around the last one.
    """

    n_draws: int = 500
    n_warmup: int = 200
    n_chains: int = 4
    thin: int = 1
    rungs: int = 4
    hottest: float = 0.3
    climbs: int = 5
    looks: int = 4
    tries: int = 1
    wander: float = 0.25
    particles: int = 32
    stages: int = 20
    repeat: int = 1
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
        if not 0.0 <= self.wander <= 1.0:
            raise ValueError(f"wander={self.wander!r}: use a number in [0, 1]")
        return run(self, kernel, X, y, n_classes, rng, noisy=True, **how)

    def explore(self, problem: Problem, rng: np.random.Generator) -> list[Point]:
        """EP at θ that are not known: at first on the way to the tops of hills, then where rungs on an emulator lead."""
        first = not problem.known
        points = apart(self._climbs(problem, rng) if first else problem.known)
        known = 0 if first else len(points)
        below = BelowTop(points[int(rng.integers(len(points)))], points)
        below.begin(problem, self._betas(), rng, bold=first)
        step = StepSize(0.4, ANNEALING_ACCEPTANCE)
        for k in range(round(LOOKING * self.n_warmup)):
            self._look_around(problem, below, rng, True, True)
            if not first and k % ESTIMATE_EVERY == 0:
                self._estimate(problem, below, step, rng)
            below.learn(problem, bold=first, last=False)
        return below.points[known:]

    def _betas(self) -> FloatArray:
        """Powers of the evidence on the emulated rungs."""
        return np.geomspace(1.0, self.hottest, self.rungs)

    def _estimate(self, problem: Problem, state: BelowTop, step: StepSize, rng: np.random.Generator) -> None:
        """What annealing says of EP's error where its rung is, unless that is somewhere far down."""
        assert state.survey is not None
        if state.ep.log_evidence < state.survey.highest - matters(state.ep.theta.size):
            return
        g = self._differences(problem, state.ep, state.whole)
        top = None if g is None else self._anneal(g, state.ep, step, rng, adapt=True)
        if top is not None:
            state.points.append(replace(state.ep, error=top.log_evidence - state.ep.log_evidence))

    def _climbs(self, problem: Problem, rng: np.random.Generator) -> list[Point]:
        """From θ far apart to the tops of hills, which a chain by itself might never come by."""
        centre, bounds = problem.first_theta, kernels.bounds(problem.kernel).T
        found = self._first_points(problem, rng)
        for _ in range(min(self.climbs, centre.size)):
            start = np.clip(centre + FAR * rng.standard_normal(centre.size), *bounds)
            found += climb(problem, start, partial(self._point, problem))
        return found

    def start(self, problem: Problem, rng: np.random.Generator) -> LadderState:
        """The top and every rung at one of the θ that are known: chains begin apart."""
        points = apart(problem.known or self._first_points(problem, rng))
        step = StepSize(0.4, ANNEALING_ACCEPTANCE)
        top = None
        for i in rng.permutation(len(points)):
            if (g := self._differences(problem, points[i])) is not None:
                top = self._anneal(g, points[i], step, rng, adapt=False)
            if top is not None:
                break
        else:
            raise NotPositiveDefiniteError("nested EP found no posterior at the first hyperparameters")
        state = LadderState(ep=top.at, points=points, top=top, annealing_step=step, differences=g)
        if problem.prior is not None:
            state.begin(problem, self._betas(), rng, bold=self.n_warmup > SETTLING)
        return state

    def sweep(self, problem: Problem, state: LadderState, rng: np.random.Generator, warmup: bool) -> None:
        """A new θ for every rung that takes one, then one of the top's population by its share."""
        if warmup or state.drawn % self.repeat == 0:
            self._renew(problem, state, rng, warmup)
        state.drawn += not warmup
        gaussian = self._gaussian(problem, state)
        state.f = gaussian.latents(gaussian.coordinates(state.top.one(rng)), rng)[0]
        state.v = np.empty_like(state.f)
        draw_auxiliary(state.f, problem.y, rng, state.v)

    def _renew(self, problem: Problem, state: LadderState, rng: np.random.Generator, warmup: bool) -> None:
        """Offer EP's rung some θ, then the top one, but not in early warm-up, when little is known of the evidence."""
        learn = warmup and state.warmup_left >= SETTLING
        early = warmup and state.warmup_left >= (1.0 - EARLY) * self.n_warmup
        if state.survey is not None:
            self._look_around(problem, state, rng, warmup, learn)
        if not (early and state.rungs):
            self._climb(problem, state, rng, warmup)
            self._refresh(problem, state, rng)
        if learn:
            state.learn(problem, bold=early and state.warmup_left > SETTLING, last=state.warmup_left <= SETTLING)

    def _look_around(self, problem: Problem, state: BelowTop, rng: np.random.Generator, warmup: bool, learn: bool) -> None:
        """New θ for the rungs below the top."""
        assert state.survey is not None
        landscape = Landscape(problem, state.survey, state.error)
        for _ in range(self.tries):
            stir(landscape, state.rungs, rng, warmup)
            self._take_over(landscape, state, rng, learn)
            if rng.random() < self.wander:
                self._wander(landscape, state, rng, learn)
        if learn:
            self._scout(landscape, state)

    def _take_over(self, landscape: Landscape, state: BelowTop, rng: np.random.Generator, learn: bool) -> None:
        """EP's rung takes over the θ of the first emulated one, which gets its own in exchange, by Metropolis' rule."""
        first, back = state.rungs[0], landscape.known(state.ep.theta)
        if self._offer(landscape, state, first.at, rng, learn):
            first.at = back

    def _wander(self, landscape: Landscape, state: BelowTop, rng: np.random.Generator, learn: bool) -> None:
        """EP's rung goes a short way by itself, under EP's evidence: no exchange takes a θ where the emulator is far too low."""
        ground = Ground(landscape, partial(self._infer, landscape.problem))
        first = state.rungs[0]
        here = Rung(1.0, ground.place_of(state.ep), first.metric, first.step)
        move(ground, here, rng, adapt=False, most=LEAPFROG_NEAR)
        if learn:
            for point in ground.seen:
                state.note(landscape, point)
        if here.at.theta is not state.ep.theta:
            state.ep, state.whole = ground.seen[-1], ground.last

    def _offer(self, landscape: Landscape, state: BelowTop, place: Place, rng: np.random.Generator, learn: bool) -> bool:
        """EP's rung moves to a θ that the emulated density would take if it were EP's; whether it does."""
        whole = self._infer(landscape.problem, place.theta, landscape.survey.fit_near(place.theta))
        point = point_of(landscape.problem, place.theta, *whole)
        if point is None:
            return False
        if learn:
            state.note(landscape, point)
        gain = landscape.wrong_at(point) - landscape.wrong_at(state.ep)
        taken = math.log1p(-rng.random()) < FLATTER * gain
        if taken:
            state.ep, state.whole = point, whole
        return taken

    def _scout(self, landscape: Landscape, state: BelowTop) -> None:
        """EP at one more θ of this sweep.

        As long as points are few, at the one that is the furthest from where it has been run. Then at that of the second rung,
        which also comes to hills that the emulator underrates.
        """
        problem, survey = landscape.problem, landscape.survey
        few = len(state.points) < enough(problem)
        theta = state.rungs[min(1, len(state.rungs) - 1)].at.theta
        if few:
            seen = [theta for rung in state.rungs for theta in rung.trace[-ROUNDS:]]
            theta = max(seen, key=lambda theta: survey.emulator.nearest(theta)[1])
        point = self._point(problem, theta, survey.fit_near(theta))
        if point is None:
            return
        told = survey.emulator(theta)[0]
        if few:
            state.points.append(point)
            state.surprises += told - point.log_evidence > FALSE_HILL
        elif max(told, point.log_evidence) > survey.highest - matters(theta.size):
            state.note(landscape, point)

    def _climb(self, problem: Problem, state: LadderState, rng: np.random.Generator, adapt: bool) -> None:
        """Offer the top what is annealed at the θ of EP's rung, which gets the top's in exchange."""
        g = self._differences(problem, state.ep, state.whole) if state.rungs else self._gaussian(problem, state)
        top = None if g is None else self._anneal(g, state.ep, state.annealing_step, rng, adapt)
        if g is None or top is None:
            state.accepted = 0.0
            return
        if adapt:
            state.errors.append((top.at.theta, top.log_evidence - top.at.log_evidence))
        state.accepted = math.exp(min(0.0, top.log_weight(state.error) - state.top.log_weight(state.error)))
        if rng.random() < state.accepted:
            state.ep, state.top, state.differences, state.whole = state.top.at, top, g, None

    def _refresh(self, problem: Problem, state: LadderState, rng: np.random.Generator) -> None:
        """Another population at the top's θ, around one of its latents: an estimate that was high by luck does not stay so."""
        gaussian, old = self._gaussian(problem, state), state.top
        through = gaussian.coordinates(old.one(rng))[:, 0]
        state.top = self._anneal(gaussian, old.at, state.annealing_step, rng, adapt=False, through=through) or old

    def _gaussian(self, problem: Problem, state: LadderState) -> Differences:
        """EP's Gaussian at the top's θ, made anew after a pickle."""
        if state.differences is None:
            state.differences = self._differences(problem, state.top.at)
        if state.differences is None:
            raise ArithmeticError("EP does not converge where a chain was: it cannot go on from its checkpoint, delete that")
        return state.differences

    def _anneal(
        self,
        g: Differences,
        at: Point,
        step: StepSize,
        rng: np.random.Generator,
        adapt: bool,
        through: FloatArray | None = None,
    ) -> Top | None:
        """Latents annealed at θ, and what they say of the evidence there, if that is a number; through : see :func:`anneal`."""
        found = anneal(g, self.particles, self.stages, step.value, rng, through)
        longest = step.value > LONGEST_STEP * math.sqrt(g.stiffness)  # then a longer one would change nothing
        if adapt and not (longest and found.accepted > step.target):
            step.update(found.accepted)
        if not math.isfinite(found.log_evidence):
            return None
        return Top(at, g.values(found.x), found.share, found.log_evidence)

    def _differences(self, problem: Problem, at: Point, whole: tuple[Fit, Factors] | None = None) -> Differences | None:
        """EP's Gaussian of the differences at θ; None where it has none. ``whole``: what EP would find there again."""
        fit, factors = whole or self._infer(problem, at.theta, at.fit)
        try:
            _ = factors.prior_root  # made here, where it may fail, for the latents
            return Differences(fit, factors, problem.y) if fit.converged else None
        except (NotPositiveDefiniteError, np.linalg.LinAlgError):
            return None

    def _first_points(self, problem: Problem, rng: np.random.Generator) -> list[Point]:
        """EP where a search has ended and, if θ is sampled, at some θ around it."""
        centre = problem.first_theta
        first = self._point(problem, centre, None)
        if problem.prior is None:
            points = [first]
        else:
            bounds = kernels.bounds(problem.kernel).T
            around = centre + rng.standard_normal((centre.size + 2, centre.size)) @ problem.first_metric.T
            near = None if first is None else first.fit
            points = [first, *(self._point(problem, theta, near) for theta in np.clip(around, *bounds))]
        found = [point for point in points if point is not None and math.isfinite(point.log_prior)]
        if not found:
            raise NotPositiveDefiniteError("nested EP found no posterior near the first hyperparameters")
        return found

    def _point(self, problem: Problem, theta: FloatArray, near: Fit | None) -> Point | None:
        """EP at θ; None where it does not converge."""
        return point_of(problem, theta, *self._infer(problem, theta, near))

    def _infer(self, problem: Problem, theta: FloatArray, near: Fit | None) -> tuple[Fit, Factors]:
        factors = problem.factors(theta)
        K = factors.jittered if len(factors.jittered) > 1 else factors.jittered[0]
        return self.approximation.infer(K, problem.y, problem.n_classes, init=near), factors

    def record(self, problem: Problem, state: LadderState) -> Record:
        """Latents at new inputs follow from v: b = (K + I)⁻¹ v."""
        factors = self._gaussian(problem, state).factors
        b = factors.times(factors.noisy_inverse, state.v)
        return Record(state.top.at.theta.copy(), state.f.copy(), b, np.exp(probit_log_likelihood(state.f.T, problem.y)[0]))
