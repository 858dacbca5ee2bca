"""Outer iterations of nested EP per evaluation of the evidence in a hyperparameter search; the paper's five small data sets."""

from __future__ import annotations

from itertools import islice
from typing import Any

from benchmarks.record import save
from nestgp import GPClassifier
from nestgp.datasets import load

#: Data set → folds.
FOLDS = {"new_thyroid": 2, "teaching": 2, "glass": 2, "wine": 2, "image_segmentation": 1}


def run() -> None:
    """Fits with the default kernel and prior; the last row is the sum over all."""
    rows: list[dict[str, Any]] = []
    for name, folds in FOLDS.items():
        for fold, split in enumerate(islice(load(name).folds(), folds)):
            search = GPClassifier().fit(split.X_train, split.y_train).search_
            assert search is not None
            rows.append({"data": name, "fold": fold, "evaluations": search.n_evaluations, "iterations": search.n_iterations})
    total = {part: sum(row[part] for row in rows) for part in ("evaluations", "iterations")}
    rows.append({"data": "all", "fold": "all", **total})
    for row in rows:
        row["per_evaluation"] = row["iterations"] / row["evaluations"]
    goal = "on average at most 4 outer iterations per evaluation"
    save("search", rows, goal, ratios={"per_evaluation": "lower"}, key=("data", "fold"))
