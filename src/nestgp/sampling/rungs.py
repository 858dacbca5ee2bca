"""Emulated rungs of a ladder: densities of θ alone, each with a θ that moves by HMC and changes places with its neighbour's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from nestgp.arrays import FloatArray
from nestgp.sampling.hmc import StepSize, hmc_step
from nestgp.sampling.landscape import FLATTER, Ground, Landscape, Place
from nestgp.sampling.moves import quarter_turn

#: Most leapfrog steps of a trajectory.
LEAPFROG = 16
#: Trajectories on every rung for every try of a sweep, each followed by a round of exchanges: they cost little beside annealing.
#: On Glass draws of the first rung are independent after 30 to 80 of them (measured), so that 10 kept the top waiting.
ROUNDS = 50
#: Acceptance that their steps aim at.
ACCEPTANCE = 0.7


@dataclass
class Rung:
    """One θ under p_β; metric and step : θ moves in units of the columns of one, by the other, both learnt in warm-up."""

    beta: float
    at: Place
    metric: FloatArray
    step: StepSize = field(default_factory=lambda: StepSize(0.4, ACCEPTANCE))
    trace: list[FloatArray] = field(default_factory=list)


def move(landscape: Landscape | Ground, rung: Rung, rng: np.random.Generator, adapt: bool, most: int = LEAPFROG) -> None:
    """One trajectory of HMC under p_β, of so many steps at most."""
    centre, last = rung.at, rung.at

    def log_density(x: FloatArray) -> tuple[float, FloatArray]:
        nonlocal last
        found = landscape.at(centre.theta + rung.metric @ x)
        if found is None:
            return -math.inf, x
        last = found
        value, slope = found.tempered(rung.beta)
        return value, rung.metric.T @ slope

    start = np.zeros(centre.theta.size)
    value, slope = centre.tempered(rung.beta)
    n_steps = quarter_turn(rung.step.value, most, rng)
    end, _, acceptance = hmc_step(log_density, start, (value, rung.metric.T @ slope), rung.step.value, n_steps, rng)
    if end is not start:
        rung.at = last
    if adapt:
        rung.step.update(acceptance)
        rung.trace.append(rung.at.theta)


def exchange(upper: Rung, lower: Rung, rng: np.random.Generator) -> None:
    """θ of two neighbours change places by Metropolis' rule: p_β(θ′) p_β′(θ)/(p_β(θ) p_β′(θ′)) = (Z(θ′)/Z(θ))^(τβ − τβ′)."""
    gain = FLATTER * (upper.beta - lower.beta) * (lower.at.log_evidence - upper.at.log_evidence)
    if math.log1p(-rng.random()) < gain:
        upper.at, lower.at = lower.at, upper.at


def stir(landscape: Landscape, rungs: Sequence[Rung], rng: np.random.Generator, adapt: bool) -> None:
    """Some rounds of moves and exchanges on the emulated rungs."""
    for _ in range(ROUNDS):
        for rung in rungs:
            move(landscape, rung, rng, adapt)
        for pair in pairwise(rungs):
            exchange(*pair, rng)
