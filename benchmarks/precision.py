"""Nested EP in mixed precision against double: the same evidence, in less time."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from threadpoolctl import threadpool_limits

from benchmarks.record import alternate, save
from nestgp import GPClassifier
from nestgp.inference import NestedEP

#: Fits of each, the best of which counts.
REPEATS = 3
#: n, c, kernel variance, lengthscale.
SETTINGS = ((2000, 3, 10.0, 1.5), (2000, 3, 100.0, 2.0), (2000, 10, 10.0, 1.5), (3000, 3, 10.0, 1.5))


def labelled(n: int, c: int) -> tuple[Any, Any]:
    """Five columns, labels that follow smooth functions of them with noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5))
    f = np.stack([3.0 * np.sin(X @ rng.normal(size=5) + k) for k in range(c)])
    return X, (f + 0.5 * rng.gumbel(size=f.shape)).argmax(axis=0)


def classifier(precision: str, kernel: Any, optimizer: str | None) -> GPClassifier:
    return GPClassifier(kernel, inference=NestedEP(precision=precision), optimizer=optimizer)


def run() -> None:
    """At fixed hyperparameters, then one fit with a search; one thread, so that the ratio is that of the arithmetic."""
    rows = []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for task, optimizer, settings in (("infer", None, SETTINGS), ("fit", "l-bfgs-b", SETTINGS[:1])):
            for n, c, variance, length in settings:
                X, y = labelled(n, c)
                kernel = ConstantKernel(variance) * RBF(length)
                classifier("mixed", kernel, None).fit(X[:100], y[:100])  # compiles
                fits = {precision: classifier(precision, kernel, optimizer) for precision in ("double", "mixed")}
                t = alternate({name: partial(clf.fit, X, y) for name, clf in fits.items()}, REPEATS)
                a, b = fits.values()
                gap = abs(a.log_marginal_likelihood_value_ - b.log_marginal_likelihood_value_)
                iterations = {"iterations_double": a.n_iter_, "iterations_mixed": b.n_iter_}
                row = {"task": task, "n": n, "c": c, "variance": variance, **t, **iterations, "evidence_gap": gap}
                rows.append(row | {"speed_up": t["double"] / t["mixed"]})
                print(rows[-1], flush=True)
    goal = "mixed precision at least 1.5 times faster at n >= 2000, evidence equal to 1e-6"
    save("precision", rows, goal, ratios={"speed_up": "higher"}, key=("task", "n", "c", "variance"))
