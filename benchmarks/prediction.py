"""Rows per minute of class probabilities and where the time goes, beside bare matrix products; memory for a million rows."""

from __future__ import annotations

import time
import tracemalloc
from functools import partial
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from threadpoolctl import threadpool_limits

from benchmarks.record import alternate, save
from nestgp import GPClassifier, kernels
from nestgp.predict import class_probabilities
from nestgp.threads import blas_threads

N, C, D, NEW = 1000, 10, 20, 1600
#: Rows for the memory, and how many of them are held at once.
MANY, CHUNK = (20_000, 100_000, 1_000_000), 10_000


def fitted() -> tuple[Any, Any]:
    """A classifier on ten overlapping clusters with fixed hyperparameters, and new inputs (NEW, D) of the same kind."""
    rng = np.random.default_rng(0)
    y = np.arange(N + NEW) % C
    X = 1.2 * rng.normal(size=(C, D))[y] + rng.normal(size=(N + NEW, D))
    kernel = ConstantKernel(10.0) * RBF(5.0)
    return GPClassifier(kernel, probabilities="ep", optimizer=None).fit(X[:N], y[:N]), X[N:]


def bare_products(parts: list[Any], matrices: Any) -> None:
    """Two products of an n×n matrix with K_* per class, what the covariance K_** − K_*ᵀMK_* is made of (eq. 40)."""
    for k_star in parts:
        for _ in range(C):
            for matrix in matrices:
                matrix @ k_star


def speed_row(clf: Any, X: Any, threads: int) -> dict[str, Any]:
    """Seconds of ``predict_proba`` and of its three parts, in the chunks that it makes itself."""
    parts = [X[part] for part in clf._chunks(NEW)]
    posterior = clf.posterior_
    stars = [kernels.cross(clf.kernel_, clf.X_train_, part) for part in parts]
    priors = [kernels.diagonal(clf.kernel_, part) for part in parts]
    moments = [posterior.gaussian.at(k_star, prior) for k_star, prior in zip(stars, priors, strict=True)]
    matrices = np.random.default_rng(0).normal(size=(2, N, N))
    tasks = {
        "bare": partial(bare_products, stars, matrices),
        "predict": partial(clf.predict_proba, X),
        "cross": lambda: [kernels.cross(clf.kernel_, clf.X_train_, part) for part in parts],
        "latent": lambda: [posterior.gaussian.at(k_star, prior) for k_star, prior in zip(stars, priors, strict=True)],
        "probabilities": lambda: [class_probabilities(mean[None], cov[None], "ep") for mean, cov in moments],
    }
    with threadpool_limits(threads, user_api="blas"):
        t = alternate(tasks, 3, settle=0.2)
    row = {"threads": threads, "n": N, "c": C, "d": D, "rows_per_minute": 60.0 * NEW / t["predict"], **t}
    return row | {"bare_gflops": 4e-9 * C * N**2 * NEW / t["bare"], "ratio": t["predict"] / t["bare"]}


def many_probabilities(rows: int) -> Any:
    """Mean class probabilities (3,) of random latent moments, made and used chunk by chunk."""
    rng = np.random.default_rng(0)
    total = np.zeros(3)
    for _ in range(rows // CHUNK):
        root = rng.normal(size=(CHUNK, 3, 3))
        log_p = class_probabilities(3.0 * rng.normal(size=(1, CHUNK, 3)), (root @ root.transpose(0, 2, 1))[None], "ep")
        total += np.exp(log_p).sum(axis=0)
    return total / rows


def memory_rows() -> list[dict[str, Any]]:
    """Most memory held at any time (NumPy reports all of its own), and its growth with the number of rows."""
    many_probabilities(CHUNK)  # compiled, and tables made, before the measurement
    rows: list[dict[str, Any]] = []
    for count in MANY:
        tracemalloc.start()
        start = time.perf_counter()
        many_probabilities(count)
        seconds, peak = time.perf_counter() - start, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        growth = peak / 1e6 / rows[0]["megabytes"] if rows else 1.0
        rows.append({"rows": count, "c": 3, "seconds": seconds, "megabytes": peak / 1e6, "growth": growth})
    return rows


def run() -> None:
    """One thread and the default, then memory."""
    clf, X = fitted()
    rows = [speed_row(clf, X, threads) for threads in dict.fromkeys((1, blas_threads()))]
    goal = "predict_proba as a ratio to two bare products with n×n matrices per class; the parts in seconds"
    save("prediction", rows, goal, ratios={"ratio": "lower"}, key=("n", "c", "d", "threads"))
    goal = "class probabilities in chunks: peak memory does not grow with the number of rows"
    save("prediction_memory", memory_rows(), goal, ratios={"growth": "lower"}, key=("rows", "c"))
