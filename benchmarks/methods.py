"""Time of every deterministic method at fixed hyperparameters, USPS 3 vs 5 vs 7, as ratios to Laplace (section 5.3)."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np

from benchmarks.record import alternate, save
from nestgp.datasets import load
from nestgp.inference import Fit, IndependentEP, Laplace, NestedEP, VariationalBayes

#: Nine settings of figure 6's grid: (log σ², log l).
GRID = tuple(product((4.0, 6.0, 8.0), (2.0, 2.5, 3.0)))
METHODS = {
    "Laplace": Laplace(),
    "NestedEP": NestedEP(),
    "NestedEP_mixed": NestedEP(precision="mixed"),
    "VariationalBayes": VariationalBayes(),
    "IndependentEP": IndependentEP(),
}


def _infer(fits: dict[str, Fit], name: str, K: Any, y: Any) -> None:
    fits[name] = METHODS[name].infer(K, y, 3)


def run() -> None:
    """All methods at each setting, tolerance 1e-6 for all; the last row is the sum over the settings."""
    data = load("usps_357")
    X, y = data.X_train, data.y_train.astype(np.int64)
    square = (X**2).sum(axis=1)
    distance = np.maximum(square[:, None] + square - 2.0 * X @ X.T, 0.0)
    for method in METHODS.values():
        method.infer(np.eye(30), np.arange(30) % 3, 3)  # compiled before it is timed
    rows, totals = [], dict.fromkeys(METHODS, 0.0)
    for log_variance, log_scale in GRID:
        K = np.exp(log_variance - 0.5 * distance / np.exp(2.0 * log_scale))
        fits: dict[str, Fit] = {}
        t = alternate({name: partial(_infer, fits, name, K, y) for name in METHODS}, 1)
        row: dict[str, Any] = {"log_variance": log_variance, "log_scale": log_scale}
        for name, seconds in t.items():
            totals[name] += seconds
            row |= {f"{name}_ratio": seconds / t["Laplace"], f"{name}_iterations": fits[name].n_iter}
            row[f"{name}_status"] = fits[name].status.value
        rows.append(row)
        print(row, flush=True)
    summary: dict[str, Any] = {"log_variance": "all", "log_scale": "all"}
    for name in totals:
        cut = sum(row[f"{name}_status"] != "converged" for row in rows)
        summary |= {f"{name}_ratio": totals[name] / totals["Laplace"], f"{name}_iterations": ""}
        summary[f"{name}_status"] = f"{cut} of {len(rows)} stopped early: the ratio is at least that" if cut else "converged"
    save(
        "methods",
        [*rows, summary],
        "EP at most 2 times Laplace, VB at most 1; the paper: about 3 each",
        ratios={f"{name}_ratio": "lower" for name in totals},
        key=("log_variance", "log_scale"),
    )
