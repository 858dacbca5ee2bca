"""What one inference costs at fixed hyperparameters: iterations and time, every method beside Laplace on the same problem."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.record import alternate, save
from nestgp.inference import Fit, IndependentEP, Laplace, NestedEP, QuadratureEP, VariationalBayes

METHODS = {"ep": NestedEP(), "iep": IndependentEP(), "qiep": QuadratureEP(), "vb": VariationalBayes(), "laplace": Laplace()}
VARIANCE = 10.0


def problem(n: int, c: int) -> tuple[Any, Any]:
    """A kernel matrix, and labels drawn from the model: the largest of c latent functions plus unit noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    square = (X**2).sum(axis=1)
    K = VARIANCE * np.exp(-0.5 * np.maximum(square[:, None] + square - 2 * X @ X.T, 0.0))
    f = rng.standard_normal((c, n)) @ np.linalg.cholesky(K + 1e-8 * VARIANCE * np.eye(n)).T
    return K, (f + rng.standard_normal((c, n))).argmax(axis=0)


def run() -> None:
    """Cold start to the default tolerance, one BLAS thread, shared kernel."""
    rows = []
    with threadpool_limits(1, user_api="blas"):
        for n, c in ((200, 3), (500, 3), (500, 10)):
            K, y = problem(n, c)
            fits: dict[str, Fit] = {}

            def infer(name: str, K: Any, y: Any, c: int, fits: dict[str, Fit]) -> None:
                fits[name] = METHODS[name].infer(K, y, c)

            best = alternate({name: partial(infer, name, K, y, c, fits) for name in METHODS}, 2)
            for name, seconds in best.items():
                fit = fits[name]
                row = {"n": n, "c": c, "method": name, "status": fit.status.value, "iterations": fit.n_iter}
                per = seconds / fit.n_iter
                rows.append(row | {"seconds": seconds, "ratio": seconds / best["laplace"], "per_iteration": per})
    save(
        "iteration",
        rows,
        "seconds of one inference, as a ratio to Laplace's method, and per iteration",
        ratios={"ratio": "lower"},
        key=("n", "c", "method"),
    )
