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
    for n, c in ((500, 3), (1157, 3), (2000, 10)):
        K, y = problem(n, c)
        NestedEP(max_iter=1).infer(K[:50, :50], y[:50], c)  # compiled before the measurement
        tracemalloc.start()
        fit = NestedEP(max_iter=3, tol=0).infer(K, y, c)
        infer = tracemalloc.get_traced_memory()[1] / (8 * n * n)
        tracemalloc.reset_peak()
        fit.posterior.blocks.predict(K, np.diagonal(K))
        prediction = tracemalloc.get_traced_memory()[1] / (8 * n * n)
        tracemalloc.reset_peak()
        gradient = fit.evidence_grad.shape and tracemalloc.get_traced_memory()[1] / (8 * n * n)
        tracemalloc.stop()
        row = {"n": n, "c": c, "infer_n2": infer, "with_prediction_n2": prediction, "with_gradient_n2": gradient}
        rows.append(row | {"limit_n2": float(c + 4)})
    save(
        "memory",
        rows,
        "at most (c + 4) n² doubles beyond the inputs, shared kernel",
        ratios={"infer_n2": "lower", "with_prediction_n2": "lower", "with_gradient_n2": "lower"},
        key=("n", "c"),
    )
