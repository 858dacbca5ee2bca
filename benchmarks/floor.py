"""One outer iteration of nested EP against the bare LAPACK calls it cannot do without."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import blas, lapack
from threadpoolctl import threadpool_limits

from benchmarks.record import alternate, save
from nestgp.inference import NestedEP
from nestgp.inference.nested_ep import _State
from nestgp.threads import single_threaded_if_small

SIZES = ((200, 3), (500, 3), (1157, 3), (2000, 10))


def lapack_floor(A: Any, n_classes: int) -> None:
    """c·potrf + c·potri + potrf + trtri + (c−1)·trsm on matrices of the same size."""
    for _ in range(n_classes):
        L = lapack.dpotrf(A, lower=1)[0]
        lapack.dpotri(L, lower=1, overwrite_c=1)
    L = lapack.dpotrf(A, lower=1)[0]
    lapack.dtrtri(L.copy(order="F"), lower=1, overwrite_c=1)
    for _ in range(n_classes - 1):
        blas.dtrsm(1.0, L, A, lower=1)


def problem(n: int, c: int) -> tuple[Any, Any]:
    """A kernel matrix and labels of the given size."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5))
    square = (X**2).sum(axis=1)
    K = 50.0 * np.exp(-0.125 * np.maximum(square[:, None] + square - 2 * X @ X.T, 0.0))
    return K, rng.integers(0, c, n)


def run() -> None:
    """Measure with one and with all threads."""
    rows = []
    for threads in (1, 2):
        for n, c in SIZES:
            with threadpool_limits(threads, user_api="blas"), single_threaded_if_small(n):  # as inference does
                K, y = problem(n, c)
                state = _State(NestedEP(), K, y, c)
                x = state.evaluate(np.zeros((2, n, c - 1))).target
                tasks = {
                    "floor": partial(lapack_floor, np.asfortranarray(np.eye(n) + K), c),
                    "iteration": partial(state.evaluate, x),
                }
                t = alternate(tasks, 20 if n < 2000 else 4, settle=0.2)
            rows.append({"threads": threads, "n": n, "c": c, **t, "ratio": t["iteration"] / t["floor"]})
    save(
        "floor",
        rows,
        "one outer iteration at most 1.15 times the bare LAPACK calls at n = 1157 and n = 2000",
        ratios={"ratio": "lower"},
        key=("n", "c", "threads"),
    )
