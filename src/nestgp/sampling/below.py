"""Where the rungs below the top of a ladder are, and what is made of the runs of EP at the θ that they come by."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from nestgp.arrays import FloatArray
from nestgp.inference.result import Fit
from nestgp.lapack import NotPositiveDefiniteError
from nestgp.sampling.chain import Problem
from nestgp.sampling.emulator import Emulator
from nestgp.sampling.factors import Factors
from nestgp.sampling.landscape import Landscape, Point, Survey, most_points
from nestgp.sampling.moves import learnt_metric
from nestgp.sampling.rungs import Rung

#: The emulator is made anew whenever there are so many times as many points, or so many, and such a share of them, that it was
#: wrong at by that much.
GROWTH, SURPRISES, SURPRISED, SURPRISE = 1.5, 3, 0.01, 2.0
#: By how much it must have been too large on a lower rung for that to count.
FALSE_HILL = 5.0
#: An error of the emulator that is worth another point, however many there are.
NEWS = 0.3
#: At how many estimates of the error of EP's log evidence something is made of them, beside the end of warm-up.
ERROR_UPDATES = (20,)


@dataclass
class BelowTop:
    """Where the rungs are that need no latents; ep : the highest of them; rungs : the others, none where θ is not sampled.

    points : where EP has been run; survey : what was last made of the first ``surveyed``; surprises : later ones it was wrong at.
    error : e; errors : θ and log p(y | θ) − log Z_EP(θ) of what was annealed before and in warm-up.
    whole : the fit at the θ of EP's rung, its factors with it, while they are at hand.
    """

    ep: Point
    points: list[Point]
    rungs: list[Rung] = field(default_factory=list)
    survey: Survey | None = None
    surveyed: int = 0
    surprises: int = 0
    error: Emulator | None = None
    errors: list[tuple[FloatArray, float]] = field(default_factory=list)
    whole: tuple[Fit, Factors] | None = field(default=None, repr=False)

    def begin(self, problem: Problem, betas: FloatArray, rng: np.random.Generator, bold: bool) -> None:
        """A first emulator, what is known of EP's error, and a rung for every β, each at one of the points."""
        self.survey, self.surveyed = Survey.of(self.points, bold=bold), len(self.points)
        self.errors = [(point.theta, point.error) for point in problem.known if math.isfinite(point.error)]
        landscape = self._landscape(problem)
        for beta in betas:
            place = landscape.known(self.points[int(rng.integers(len(self.points)))].theta)
            self.rungs.append(Rung(float(beta), place, problem.first_metric / math.sqrt(beta)))

    def note(self, landscape: Landscape, point: Point) -> None:
        """Keep a point for the next emulator if this one is wrong there, or points are few."""
        wrong = abs(landscape.wrong_at(point))
        if wrong > NEWS or len(self.points) < enough(landscape.problem):
            self.points.append(point)
            self.surprises += wrong > SURPRISE

    def learn(self, problem: Problem, bold: bool, last: bool) -> None:
        """When there is news, and at the last before the steps settle: a new emulator, error and metrics; all rungs look again.

        A bold emulator leads to hills that nobody has seen, true and false ones; one with limits comes after it.
        """
        if self.survey is None:
            return
        surprised = self.surprises >= max(SURPRISES, SURPRISED * self.surveyed)
        news = len(self.points) > GROWTH * self.surveyed or surprised or len(self.errors) in ERROR_UPDATES
        if not (news or last) and self.survey.bold == bold:
            return
        try:
            self.survey = Survey.of(self.points, self.survey, bold)
        except NotPositiveDefiniteError:
            return  # what there is must do
        self.surveyed, self.surprises = len(self.points), 0
        landscape = self._landscape(problem)
        for rung in self.rungs:
            if len(rung.trace) > 2 * rung.at.theta.size:
                rung.metric = learnt_metric(np.array(rung.trace[len(rung.trace) // 2 :]))
                rung.step.restart(0.4)
            rung.at = landscape.known(rung.at.theta)

    def _landscape(self, problem: Problem) -> Landscape:
        """With a new emulator, and e as far as estimates tell."""
        assert self.survey is not None
        if len(self.errors) > 1:
            theta, error = zip(*self.errors, strict=True)
            self.error = self.survey.emulator.smoother(np.array(theta), np.array(error))
        return Landscape(problem, self.survey, self.error)


def enough(problem: Problem) -> int:
    """Points for an emulator of p hyperparameters beside those of climbs, if it can go through as many."""
    p = problem.first_theta.size
    return min(len(problem.known) + 12 + 6 * p * p, most_points(p))
