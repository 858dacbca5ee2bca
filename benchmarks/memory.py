"""Peak memory of one inference, its gradient and a prediction, beyond their inputs, in units of n² doubles."""

from __future__ import annotations

import tracemalloc

import numpy as np

from benchmarks.floor import problem
from benchmarks.record import save
from nestgp.inference import NestedEP


def run() -> None:
    """Measure allocations (NumPy reports all of its own) during ``infer``, then a prediction of n rows, then the gradient."""
    rows = []
    for n, c, share in ((500, 3, 0.33), (1157, 3, 0.33), (2000, 10, 0.1), (1000, 20, 0.05), (1000, 10, 0.64)):
        K, y = problem(n, c)
        y[np.arange(n) < (c * share - 1) / (c - 1) * n] = 0  # rows of the first class, as a share of all
        warm = NestedEP(max_iter=1).infer(K[:300, :300], y[:300], c)  # compiled before the measurement, threads and all
        warm.posterior.blocks.predict(K[:300, :300], np.ones(300))
        warm.evidence_grad.sum()
        del warm
        tracemalloc.start()
        fit = NestedEP(max_iter=3, tol=0).infer(K, y, c)
        infer = tracemalloc.get_traced_memory()[1] / (8 * n * n)
        tracemalloc.reset_peak()
        fit.posterior.blocks.predict(K, np.diagonal(K))
        prediction = tracemalloc.get_traced_memory()[1] / (8 * n * n)
        tracemalloc.reset_peak()
        gradient = fit.evidence_grad.shape and tracemalloc.get_traced_memory()[1] / (8 * n * n)
        tracemalloc.stop()
        row = {"n": n, "c": c, "largest_class": share, "infer_n2": infer}
        row |= {"with_prediction_n2": prediction, "with_gradient_n2": gradient}
        rows.append(row | {"limit_n2": -(-c // 2) + 5.0})
    save(
        "memory",
        rows,
        "inference and gradient at most (⌈c/2⌉ + 5) n² doubles beyond the inputs; predictions 400 (c + 1) n for each thread",
        ratios={"infer_n2": "lower", "with_prediction_n2": "lower", "with_gradient_n2": "lower"},
        key=("n", "c", "largest_class"),
    )
