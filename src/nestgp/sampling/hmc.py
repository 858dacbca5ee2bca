"""Hamiltonian Monte Carlo with a step size that adapts: small enough to own, for any log density with gradient.

A library would bring a large framework or its own model language; what is needed here is one leapfrog loop that calls a NumPy
function, and the step size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from nestgp.arrays import FloatArray

#: x → (log density, gradient); −inf where x is impossible.
LogDensity = Callable[[FloatArray], tuple[float, FloatArray]]


@dataclass
class StepSize:
    """Step size that aims at an acceptance rate while it adapts, then stays at its running average.

    Robbins and Monro on the logarithm, with gains of t^-0.6. Trajectories are few here, and the acceptance of one is mostly near
    0 or 1: the dual averaging of Hoffman and Gelman (2014) swings by a factor of fifty, and after 50 trajectories its average was
    a tenth of that of other chains.
    """

    value: float = 0.1
    target: float = 0.8
    _average: float = field(init=False)
    _count: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.restart(self.value)

    def restart(self, value: float) -> None:
        """Begin a new adaptation at ``value``."""
        self.value = value
        self._average = math.log(value)
        self._count = 0

    def update(self, acceptance: float) -> None:
        """One step towards the target; the average counts the later steps for more."""
        self._count += 1
        log_value = math.log(self.value) + 2.0 * (self._count + 3.0) ** -0.6 * (acceptance - self.target)
        log_value = max(min(log_value, 10.0), -20.0)
        weight = 4.0 / (self._count + 3.0)
        self._average = weight * log_value + (1.0 - weight) * self._average
        self.value = math.exp(log_value)

    def freeze(self) -> None:
        """Use the average from now on."""
        if self._count:
            self.value = math.exp(self._average)


def hmc_step(
    log_density: LogDensity,
    x: FloatArray,
    current: tuple[float, FloatArray],
    step: float,
    n_steps: int,
    rng: np.random.Generator,
) -> tuple[FloatArray, tuple[float, FloatArray], float]:
    """One trajectory from x, whose log density and gradient are ``current``; unit masses.

    Returns the next x, its log density and gradient, and the acceptance probability.
    """
    momentum = rng.standard_normal(x.shape)
    energy = current[0] - 0.5 * float(np.vdot(momentum, momentum))
    q, (value, gradient) = x, current
    p = momentum + 0.5 * step * gradient
    for i in range(n_steps):
        q = q + step * p
        value, gradient = log_density(q)
        if not math.isfinite(value):
            return x, current, 0.0
        p = p + (1.0 if i < n_steps - 1 else 0.5) * step * gradient
    gain = value - 0.5 * float(np.vdot(p, p)) - energy
    acceptance = math.exp(min(0.0, gain)) if not math.isnan(gain) else 0.0
    if rng.random() < acceptance:
        return q, (value, gradient), acceptance
    return x, current, acceptance
