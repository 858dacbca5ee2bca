"""Nested EP in mixed precision against double: the same evidence, in less time."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from threadpoolctl import threadpool_limits

from benchmarks.record import save
from nestgp import GPClassifier
from nestgp.inference import NestedEP

#: n, c, kernel variance, lengthscale.
SETTINGS = ((2000, 3, 10.0, 1.5), (2000, 3, 100.0, 2.0), (2000, 10, 10.0, 1.5), (3000, 3, 10.0, 1.5))


def labelled(n: int, c: int) -> tuple[Any, Any]:
    """Five columns, labels that follow smooth functions of them with noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5))
    f = np.stack([3.0 * np.sin(X @ rng.normal(size=5) + k) for k in range(c)])
    return X, (f + 0.5 * rng.gumbel(size=f.shape)).argmax(axis=0)


def timed(precision: str, X: Any, y: Any, kernel: Any, optimizer: str | None) -> tuple[float, Any]:
    """Seconds of a fit, and the fitted classifier."""
    start = time.perf_counter()
    clf = GPClassifier(kernel, inference=NestedEP(precision=precision), optimizer=optimizer).fit(X, y)
    return time.perf_counter() - start, clf


def run() -> None:
    """At fixed hyperparameters, then one fit with a search; one thread, so that the ratio is that of the arithmetic."""
    rows = []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for task, optimizer, settings in (("infer", None, SETTINGS), ("fit", "l-bfgs-b", SETTINGS[:1])):
            for n, c, variance, length in settings:
                X, y = labelled(n, c)
                kernel = ConstantKernel(variance) * RBF(length)
                timed("mixed", X[:100], y[:100], kernel, None)  # compiles
                (double, a), (mixed, b) = (timed(p, X, y, kernel, optimizer) for p in ("double", "mixed"))
                gap = abs(a.log_marginal_likelihood_value_ - b.log_marginal_likelihood_value_)
                row = {"task": task, "n": n, "c": c, "variance": variance, "double": double, "mixed": mixed}
                iterations = {"iterations_double": a.n_iter_, "iterations_mixed": b.n_iter_}
                rows.append({**row, **iterations, "evidence_gap": gap, "speed_up": double / mixed})
                print(rows[-1], flush=True)
    goal = "mixed precision at least 1.5 times faster at n >= 2000, evidence equal to 1e-6"
    save("precision", rows, goal, ratios={"speed_up": "higher"}, key=("task", "n", "c", "variance"))
