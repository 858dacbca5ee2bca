"""Time of every deterministic method at fixed hyperparameters, USPS 3 vs 5 vs 7, as ratios to Laplace (section 5.3)."""

from __future__ import annotations

import os
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import alternate, save
from nestgp.inference import Fit, IndependentEP, Laplace, NestedEP, VariationalBayes

#: Nine settings of figure 6's grid: (log σ², log l).
GRID = tuple(product((4.0, 6.0, 8.0), (2.0, 2.5, 3.0)))
METHODS = (Laplace(), NestedEP(), VariationalBayes(), IndependentEP())


def usps_357() -> tuple[Any, Any]:
    """Raw pixels and codes of the digits 3, 5 and 7 in ``usps_resampled.npz`` (arrays X_train, y_train) under NESTGP_DATA."""
    folder = os.environ.get("NESTGP_DATA")
    if folder is None or not (Path(folder) / "usps_resampled.npz").exists():
        raise SystemExit("benchmark methods needs USPS: set NESTGP_DATA to a folder with usps_resampled.npz")
    data = np.load(Path(folder) / "usps_resampled.npz")
    rows = np.isin(data["y_train"], (3, 5, 7))
    return data["X_train"][rows].astype(float), np.searchsorted((3, 5, 7), data["y_train"][rows])


def _infer(fits: dict[str, Fit], method: Any, K: Any, y: Any) -> None:
    fits[type(method).__name__] = method.infer(K, y, 3)


def run() -> None:
    """All methods at each setting, tolerance 1e-6 for all; the last row is the sum over the settings."""
    X, y = usps_357()
    square = (X**2).sum(axis=1)
    distance = np.maximum(square[:, None] + square - 2.0 * X @ X.T, 0.0)
    for method in METHODS:
        method.infer(np.eye(30), np.arange(30) % 3, 3)  # compiled before it is timed
    rows, totals = [], dict.fromkeys((type(m).__name__ for m in METHODS), 0.0)
    for log_variance, log_scale in GRID:
        K = np.exp(log_variance - 0.5 * distance / np.exp(2.0 * log_scale))
        fits: dict[str, Fit] = {}
        t = alternate({type(m).__name__: partial(_infer, fits, m, K, y) for m in METHODS}, 1)
        row: dict[str, Any] = {"log_variance": log_variance, "log_scale": log_scale}
        for name, seconds in t.items():
            totals[name] += seconds
            row |= {f"{name}_ratio": seconds / t["Laplace"], f"{name}_iterations": fits[name].n_iter}
            row[f"{name}_status"] = fits[name].status.value
        rows.append(row)
        print(row, flush=True)
    summary: dict[str, Any] = {"log_variance": "all", "log_scale": "all"}
    for name in totals:
        summary |= {f"{name}_ratio": totals[name] / totals["Laplace"], f"{name}_iterations": "", f"{name}_status": ""}
    save(
        "methods",
        [*rows, summary],
        "EP at most 2.5 times Laplace, VB at most 1; the paper: about 3 each",
        ratios={f"{name}_ratio": "lower" for name in totals},
        key=("log_variance", "log_scale"),
    )
