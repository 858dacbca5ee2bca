"""Densities of θ as far as runs of EP at some θ tell: what the rungs of a ladder move in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from nestgp import kernels
from nestgp.arrays import FloatArray
from nestgp.inference.result import Fit
from nestgp.kernel_gradient import contract
from nestgp.sampling.chain import Problem
from nestgp.sampling.emulator import Emulator
from nestgp.sampling.factors import Factors

#: Most numbers that an emulator goes through: their covariance matrix is factorised.
MOST_OBSERVATIONS = 5500
#: Rounds in which the points are chosen where there are more.
MOST_ROUNDS = 3
#: Most runs of EP on a climb, and by how much log p(θ) Z(θ) must have grown for the next point that is kept.
CLIMB_RUNS, CLIMB_GAIN = 40, 0.5
#: Points nearer than this in θ tell the same.
APART = 0.1
#: Power τ of all densities below the top, which makes them a little wider than the posterior: in tails, where emulator and EP's
#: error are known the least, they may offer too little, and then the top gets stuck there.
FLATTER = 0.9
#: −log p(θ) Z(θ) where EP does not converge.
NOWHERE = 1e6


@dataclass(frozen=True)
class Point:
    """EP at θ: log evidence, its gradient, its sites for a warm start, and log p(θ), 0 where θ is not sampled.

    error : log p(y | θ) − log Z_EP(θ) by an estimate, nan where there is none.
    """

    theta: FloatArray
    log_evidence: float
    slope: FloatArray
    fit: Fit
    log_prior: float
    error: float = math.nan

    def corrected(self, error: Emulator | None) -> float:
        """log Z_EP(θ) + e(θ)."""
        return self.log_evidence + (0.0 if error is None else error(self.theta)[0])

    def log_density(self, error: Emulator | None) -> float:
        """log of (p(θ) Z_EP(θ) exp(e(θ)))^τ, the density of EP's rung."""
        return FLATTER * (self.corrected(error) + self.log_prior)


def point_of(problem: Problem, theta: FloatArray, fit: Fit, factors: Factors) -> Point | None:
    """What is kept of EP at θ; None where it did not converge. The slope takes a sixth of its time."""
    if not (fit.converged and math.isfinite(fit.log_evidence)):
        return None
    slope = contract(factors.kernel, factors.X, fit.evidence_grad, K=factors.shared_or_stack)
    log_prior = 0.0 if problem.prior is None else problem.log_prior(theta)[0]
    return Point(theta, fit.log_evidence, slope, only_sites(fit), log_prior) if np.all(np.isfinite(slope)) else None


def only_sites(fit: Fit) -> Fit:
    """What a warm start needs of a fit: hundreds are kept."""
    nothing: Any = None
    return replace(fit, posterior=nothing, history=(), gradient=None, site_moments=None)


@dataclass(frozen=True)
class Survey:
    """Points at which EP has been run, and its evidence everywhere as far as they tell; bold : without limits."""

    points: tuple[Point, ...]
    emulator: Emulator
    bold: bool = False

    @classmethod
    def of(cls, points: Sequence[Point], before: Survey | None = None, bold: bool = False) -> Survey:
        """Of as many of the points as can be gone through: some early and late ones, and those that the others tell least of."""
        most = most_points(points[0].theta.size)
        theta, slope = np.array([point.theta for point in points]), np.array([point.slope for point in points])
        value = np.array([point.log_evidence for point in points])
        rounds = MOST_ROUNDS if len(points) > most else 0
        kept = np.linspace(0, len(points) - 1, min(len(points), most) // (rounds + 1)).round().astype(int)
        emulator = Emulator.through(theta[kept], value[kept], slope[kept], None if before is None else before.emulator)
        for left in range(rounds, 0, -1):
            wrong = emulator.bold().wrong(theta, value)
            wrong[kept] = 0.0
            worst = np.argsort(wrong)[::-1][: (most - len(kept)) // left]
            kept = np.sort(np.append(kept, worst))
            emulator = Emulator.given(theta[kept], value[kept], slope[kept], emulator.shape)
        return cls(tuple(points[i] for i in kept), emulator.bold() if bold else emulator, bold)

    @property
    def highest(self) -> float:
        """Largest log evidence."""
        return max(point.log_evidence for point in self.points)

    def fit_near(self, theta: FloatArray) -> Fit:
        """Sites to start EP from at θ."""
        return self.points[self.emulator.nearest(theta)[0]].fit


@dataclass(frozen=True)
class Place:
    """θ with log Z(θ) and log p(θ), and the gradients of both."""

    theta: FloatArray
    log_evidence: float
    log_prior: float
    evidence_slope: FloatArray
    prior_slope: FloatArray

    def tempered(self, beta: float) -> tuple[float, FloatArray]:
        """log p_β(θ) up to a constant, and its gradient."""
        value, slope = beta * self.log_evidence + self.log_prior, beta * self.evidence_slope + self.prior_slope
        return FLATTER * value, FLATTER * slope


@dataclass(frozen=True)
class Landscape:
    """p(θ) and Z(θ) as the emulated rungs see them; error : e, None before anything is known of it."""

    problem: Problem
    survey: Survey
    error: Emulator | None = None

    def at(self, theta: FloatArray) -> Place | None:
        """None where the prior has no density."""
        log_prior, prior_slope = self.problem.log_prior(theta)
        if not math.isfinite(log_prior):
            return None
        value, slope = self.survey.emulator(theta)
        if self.error is not None:
            more, steeper = self.error(theta)
            value, slope = value + more, slope + steeper
        return Place(theta, value, log_prior, slope, prior_slope)

    def known(self, theta: FloatArray) -> Place:
        """The same where some chain has been."""
        place = self.at(theta)
        assert place is not None
        return place

    def wrong_at(self, point: Point) -> float:
        """By how much the emulator is too low there."""
        return point.corrected(self.error) - self.known(point.theta).log_evidence


@dataclass
class Ground:
    """The same under EP itself; infer : θ, fit to start from → fit and factors. seen : EP where it has been, last : whole."""

    landscape: Landscape
    infer: Callable[[FloatArray, Fit], tuple[Fit, Factors]]
    seen: list[Point] = field(default_factory=list)
    last: tuple[Fit, Factors] | None = None

    def at(self, theta: FloatArray) -> Place | None:
        """None where the prior has no density or EP does not converge."""
        problem, survey = self.landscape.problem, self.landscape.survey
        if not math.isfinite(problem.log_prior(theta)[0]):
            return None
        self.last = self.infer(theta, survey.fit_near(theta))
        point = point_of(problem, theta, *self.last)
        if point is None:
            return None
        self.seen.append(point)
        return self.place_of(point)

    def place_of(self, point: Point) -> Place:
        """Where EP has been run, with its slope."""
        log_prior, prior_slope = self.landscape.problem.log_prior(point.theta)
        value, slope = point.log_evidence, point.slope
        if self.landscape.error is not None:
            more, steeper = self.landscape.error(point.theta)
            value, slope = value + more, slope + steeper
        return Place(point.theta, value, log_prior, slope, prior_slope)


def most_points(p: int) -> int:
    """That an emulator of p hyperparameters can go through, each a value and p slopes."""
    return max(8, MOST_OBSERVATIONS // (p + 1))


def climb(problem: Problem, start: FloatArray, ep: Callable[[FloatArray, Fit | None], Point | None]) -> list[Point]:
    """Points of growing p(θ) Z_EP(θ) from θ on, the last nearly on top of a hill; ep : runs EP at θ, from another fit on."""
    path: list[tuple[float, Point]] = []

    def minus_log_density(theta: FloatArray) -> tuple[float, FloatArray]:
        log_prior, prior_slope = problem.log_prior(theta)
        point = ep(theta, path[-1][1].fit if path else None)
        if point is None or not math.isfinite(log_prior):
            return NOWHERE, np.zeros_like(theta)
        path.append((point.log_evidence + log_prior, point))
        return -path[-1][0], -point.slope - prior_slope

    how: Any = {"method": "L-BFGS-B", "bounds": kernels.bounds(problem.kernel), "options": {"maxfun": CLIMB_RUNS}}
    minimize(minus_log_density, start, jac=True, **how)
    kept: list[tuple[float, Point]] = []
    for value, point in path:
        if not kept or value > kept[-1][0] + CLIMB_GAIN:
            kept.append((value, point))
    if path:
        kept.append(max(path, key=lambda each: each[0]))
    return [point for _, point in kept]


def apart(points: Sequence[Point]) -> list[Point]:
    """Those that are not close to one before."""
    theta = np.array([point.theta for point in points])
    near = cdist(theta, theta) <= APART
    kept: list[int] = []
    for i in range(len(points)):
        if not near[i, kept].any():
            kept.append(i)
    return [points[i] for i in kept]
