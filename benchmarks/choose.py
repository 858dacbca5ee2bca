"""Every method on two small data sets: how good are its probabilities, and what do they cost?"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_iris, load_wine
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from benchmarks.record import save
from nestgp import GPClassifier, diagnostics

METHODS = ("ep", "iep", "qiep", "vb", "laplace", "laplace-tkp", "ep-tkp")
DATA = {"wine": load_wine, "iris": load_iris}


def cross_validate(X: Any, y: Any) -> dict[str, dict[str, Any]]:
    """Held-out probabilities, seconds and warnings of each method, ten seeded stratified folds.

    The methods take turns in every fold, so that a disturbance of the machine hits all of them.
    """
    found: dict[str, dict[str, Any]] = {m: {"p": np.empty((len(y), 3)), "seconds": 0.0, "warnings": 0} for m in METHODS}
    for train, test in StratifiedKFold(10, shuffle=True, random_state=0).split(X, y):
        scaler = StandardScaler().fit(X[train])
        X_train, X_test = scaler.transform(X[train]), scaler.transform(X[test])
        for method in METHODS:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                start = time.perf_counter()
                clf = GPClassifier(inference=method).fit(X_train, y[train])
                found[method]["p"][test] = clf.predict_proba(X_test)
                found[method]["seconds"] += time.perf_counter() - start
            found[method]["warnings"] += len(caught)
    return found


def rows_of(name: str, found: dict[str, dict[str, Any]], y: Any) -> list[dict[str, Any]]:
    """One row per method; ``versus_ep`` is the paired difference in log density with its 95% interval."""
    lpd = {m: diagnostics.log_predictive_density(found[m]["p"], y) for m in METHODS}
    rows = []
    for m in METHODS:
        difference = diagnostics.compare_log_density(lpd[m], lpd["ep"])
        row = {"data": name, "method": m, "mlpd": float(lpd[m].mean())}
        row |= {"versus_ep": difference.mean, "low": difference.low, "high": difference.high}
        row |= {"accuracy": diagnostics.accuracy(found[m]["p"], y), "seconds": found[m]["seconds"]}
        row |= {"time_ratio": found[m]["seconds"] / found["laplace"]["seconds"], "warnings": found[m]["warnings"]}
        rows.append(row)
    return rows


def run() -> None:
    """Default kernel and prior, standardised columns, one BLAS thread."""
    rows = []
    with threadpool_limits(1, user_api="blas"):
        X, y = load_iris(return_X_y=True)
        for method in METHODS:  # compiled before the clock runs
            GPClassifier(inference=method, optimizer=None).fit(X[::10], y[::10]).predict_proba(X[:2])
        for name, load in DATA.items():
            X, y = load(return_X_y=True)
            rows += rows_of(name, cross_validate(X, y), y)
    save(
        "choose",
        rows,
        "mean log predictive density, accuracy and time as a ratio to Laplace, ten folds",
        ratios={"time_ratio": "lower"},
        key=("data", "method"),
    )
