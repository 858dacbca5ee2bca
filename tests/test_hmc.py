"""HMC leaves its target invariant, and its step size reaches the acceptance it aims at."""

import math

import numpy as np
import pytest

from nestgp.sampling.hmc import StepSize, hmc_step
from nestgp.sampling.mixing import ess_bulk
from tests.oracles._types import Array

COV = np.array([[1.0, 0.8, 0.0], [0.8, 2.0, -0.3], [0.0, -0.3, 0.5]])
MEAN = np.array([1.0, -2.0, 0.5])
PRECISION = np.linalg.inv(COV)


def gaussian(x: Array) -> tuple[float, Array]:
    """log N(x | MEAN, COV) up to a constant, and its gradient."""
    b = PRECISION @ (x - MEAN)
    return -0.5 * float((x - MEAN) @ b), -b


def run_gaussian(step: float, n_steps: int, n: int, seed: int) -> Array:
    """(n, 3) states of a chain that starts at a draw of the target."""
    rng = np.random.default_rng(seed)
    x = rng.multivariate_normal(MEAN, COV)
    current = gaussian(x)
    out = np.empty((n, 3))
    for i in range(n):
        x, current, _ = hmc_step(gaussian, x, current, step, n_steps, rng)
        out[i] = x
    return out


# Large steps, so that the accept step has to correct: acceptance 0.7 to 0.95.
@pytest.mark.parametrize(("step", "n_steps"), [(0.6, 4), (1.0, 3), (0.64, 1)])
def test_correlated_gaussian_is_invariant(step: float, n_steps: int) -> None:
    x = run_gaussian(step, n_steps, 12_000, seed=1)
    centred = x - MEAN
    moments = np.concatenate([centred, centred[:, [0, 1, 2, 0, 0, 1]] * centred[:, [0, 1, 2, 1, 2, 2]]], axis=1)
    expected = np.concatenate([np.zeros(3), COV[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]])
    for m, value in zip(moments.T, expected, strict=True):
        error = m.std() / np.sqrt(ess_bulk(m[None]))
        assert error < 0.1
        assert abs(m.mean() - value) < 4.0 * error


def test_returned_density_belongs_to_the_returned_point() -> None:
    rng = np.random.default_rng(2)
    x, current = MEAN + 1.0, gaussian(MEAN + 1.0)
    moved = 0
    for _ in range(50):
        new, current, acceptance = hmc_step(gaussian, x, current, 0.9, 3, rng)
        moved += new is not x
        x = new
        assert 0.0 <= acceptance <= 1.0
        assert current[0] == gaussian(x)[0]
        np.testing.assert_array_equal(current[1], gaussian(x)[1])
    assert 0 < moved < 50


def test_impossible_points_are_rejected() -> None:
    def half_normal(x: Array) -> tuple[float, Array]:
        return (-0.5 * float(x @ x), -x) if x[0] > 0.0 else (-math.inf, x)

    rng = np.random.default_rng(3)
    x = np.array([0.5])
    current = half_normal(x)
    draws = []
    for _ in range(8_000):
        x, current, _ = hmc_step(half_normal, x, current, 0.5, 2, rng)
        draws.append(x[0])
    trace = np.array(draws)
    assert trace.min() > 0.0
    error = trace.std() / np.sqrt(ess_bulk(trace[None]))
    assert abs(trace.mean() - np.sqrt(2.0 / np.pi)) < 4.0 * error


@pytest.mark.parametrize("start", [1e-3, 0.1, 5.0])
@pytest.mark.parametrize(("target", "n_steps"), [(0.6, 1), (0.8, 3), (0.9, 3)])
def test_step_size_reaches_its_target(start: float, target: float, n_steps: int) -> None:
    rng = np.random.default_rng(4)
    size = StepSize(start, target)
    x = MEAN
    current = gaussian(x)
    for _ in range(1_000):
        x, current, acceptance = hmc_step(gaussian, x, current, size.value, n_steps, rng)
        size.update(acceptance)
    size.freeze()
    rates = []
    for _ in range(1_000):
        x, current, acceptance = hmc_step(gaussian, x, current, size.value, n_steps, rng)
        rates.append(acceptance)
    assert np.mean(rates) == pytest.approx(target, abs=0.08)


def test_freeze_without_adaptation_keeps_the_step() -> None:
    size = StepSize(0.37)
    size.freeze()
    assert size.value == 0.37


def test_restart_forgets() -> None:
    used, fresh = StepSize(0.1), StepSize(0.3)
    for acceptance in (0.1, 0.9, 0.5):
        used.update(acceptance)
    used.restart(0.3)
    for size in (used, fresh):
        size.update(0.7)
    assert used == fresh
