"""Tierney-Kadane probabilities with Laplace: every extended problem from scratch against the bordered start, n = 500."""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.record import alternate, save
from nestgp.inference import Laplace
from nestgp.tierney_kadane import tierney_kadane_log_probabilities


def run() -> None:
    """16 new points, three classes."""
    rng = np.random.default_rng(0)
    n, m, c = 500, 16, 3
    X = rng.normal(size=(n + m, 2))
    noise = 0.3 * rng.normal(size=(2, n + m))
    y = ((X[:, 0] + noise[0] > 0).astype(np.int64) + (X[:, 1] + noise[1] > 0.5))[:n]
    K = 20.0 * np.exp(-0.5 * ((X[:, None] - X[None]) ** 2).sum(axis=-1))
    train, star, prior = np.ascontiguousarray(K[:n, :n]), np.ascontiguousarray(K[:n, n:]), np.full(m, 20.0)
    fit = Laplace().infer(train, y, c)
    ask = partial(tierney_kadane_log_probabilities, Laplace(), fit, train, y, c, star, prior)
    gap = float(np.abs(np.exp(ask()) - np.exp(ask(naive=True))).max())
    t = alternate({"fast": ask, "naive": partial(ask, naive=True)}, 2)
    row = {"n": n, "c": c, "fast_per_point": t["fast"] / m, "naive_per_point": t["naive"] / m}
    rows = [{**row, "speed_up": t["naive"] / t["fast"], "largest_difference": gap}]
    save(
        "tierney_kadane",
        rows,
        "at least 5 times faster per test point than from scratch, equal to 1e-4",
        ratios={"speed_up": "higher"},
        key=("n", "c"),
    )
