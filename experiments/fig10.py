"""Figure 10: USPS with all ten classes, n = 4649: EP, IEP, VB and LA (section 5.4).

Hyperparameters are searched on a subset of the training rows first. EP, VB and LA go on from there with all rows; IEP keeps
those of the subset, because its inference takes many more iterations (the figure says so). A search on the subset that ends at a
bound of the kernel (VB does with few rows: no magnitude at all) is no place to go on from: all rows then start as the subset did.

A search that is interrupted goes on: every evaluation (θ, value, gradient) is a checkpoint under its exact θ. L-BFGS-B is
deterministic, so a new run asks for the same θ in the same order, gets them from the checkpoints, and computes the first one
that is new; no curvature is lost, and the best point is the best of all. Only the warm start of that one evaluation is gone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from benchmarks.peer_runs.driver import peak_megabytes
from matplotlib import rc_context
from matplotlib.figure import Figure

from experiments.common import Checkpoint, Experiment, duration
from experiments.fig8 import draw_data_set
from experiments.table2 import gather, sample_rows, summarise_methods, unmixed
from nestgp import hyper, kernels
from nestgp.datasets import load
from nestgp.diagnostics import log_predictive_density
from nestgp.inference import IndependentEP, Laplace, NestedEP, VariationalBayes
from nestgp.linalg import FloatArray, IntArray
from nestgp.plotting import INK, STYLE
from nestgp.posterior import ProcessPosterior
from nestgp.predict import class_probabilities

METHODS: dict[str, Any] = {"EP": NestedEP(precision="mixed"), "IEP": IndependentEP(), "VB": VariationalBayes(), "LA": Laplace()}
#: Methods whose search ends on the subset.
SUBSET_ONLY = ("IEP",)
SUBSET = 1000
#: First step, in log units, of a search that goes on from the subset's hyperparameters.
CLOSE = 0.2
QUICK_SUBSET, QUICK_ROWS, QUICK_TEST_ROWS = 60, 100, 40
#: Test rows whose latent covariances are held at once.
BLOCK = 500
CAVEATS = (
    f"{', '.join(SUBSET_ONLY)}: hyperparameters from a subset of the training rows",
    "grey levels of USPS are not standardised",
)


def remembered(
    objective: hyper.Objective, checkpoint: Checkpoint, label: str, spent: list[tuple[float, int]]
) -> Callable[[FloatArray], tuple[float, FloatArray]]:
    """The objective, each θ computed once and then taken from its checkpoint; `spent`: seconds and iterations of each."""

    def compute(theta: FloatArray) -> dict[str, Any]:
        start, before = time.perf_counter(), objective.n_iterations
        value, gradient = objective(theta)
        seconds, iterations = time.perf_counter() - start, objective.n_iterations - before
        print(f"{label}: θ = {np.round(theta, 3)}, {-value:.4f}, {iterations} iterations, {duration(seconds)}", file=sys.stderr)
        return {"value": value, "gradient": gradient.tolist(), "seconds": seconds, "iterations": iterations}

    def evaluate(theta: FloatArray) -> tuple[float, FloatArray]:
        stored = checkpoint.get(f"{label} theta={theta.tolist()}", partial(compute, theta))
        objective.follow(np.array(stored["gradient"]))
        spent.append((stored["seconds"], stored["iterations"]))
        return float(stored["value"]), np.array(stored["gradient"])

    return evaluate


def climb(
    evaluate: Callable[[FloatArray], tuple[float, FloatArray]], start: FloatArray, bounds: FloatArray, first_step: float = 1.0
) -> dict[str, Any]:
    """Where the search ended: the best θ of all evaluations, its value, their number, and L-BFGS-B's message."""
    seen: list[tuple[float, list[float]]] = []

    def watch(theta: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = evaluate(theta)
        seen.append((value, theta.tolist()))
        return value, gradient

    success, message = hyper.l_bfgs_b(watch, np.clip(start, *bounds.T), bounds, first_step)  # type: ignore[arg-type]
    value, theta = min(seen)
    at_bound = bool(np.any(np.isclose(theta, bounds[:, 0]) | np.isclose(theta, bounds[:, 1])))
    how = {"evaluations": len(seen), "success": success, "message": message, "at_bound": at_bound}
    return {"theta": theta, "log_posterior": -value, **how}


def search(experiment: Experiment, method: str, start: list[float] | None, rows: IntArray, label: str) -> dict[str, Any]:
    """Type-II MAP of one method on these training rows, from `start` or from the default kernel."""
    data = load("usps")
    X, y = data.X_train[rows], data.y_train[rows]
    kernel, units = kernels.default_kernel(data.X_train)
    objective = hyper.Objective(kernel, X, y, data.n_classes, METHODS[method], hyper.HalfStudentT(), units)
    theta, spent = kernels.theta(kernel) if start is None else np.array(start), []
    evaluate = remembered(objective, experiment.checkpoint, f"{method}/{label}", spent)
    found = climb(evaluate, theta, kernels.bounds(kernel), 1.0 if start is None else CLOSE)
    seconds, iterations = np.sum(spent, axis=0)
    return found | {"rows": len(rows), "seconds": seconds, "iterations": int(iterations), "peak_megabytes": peak_megabytes()}


def predictions(method: str, theta: list[float], train: IntArray, test: IntArray) -> dict[str, Any]:
    """Inference with the training rows at θ; log predictive density and predicted class of the test rows."""
    data = load("usps")
    assert data.X_test is not None
    assert data.y_test is not None
    X, y, X_test, y_test = data.X_train[train], data.y_train[train], data.X_test[test], data.y_test[test]
    kernel = kernels.with_theta(kernels.default_kernel(data.X_train)[0], np.array(theta))
    inference, began = METHODS[method], time.perf_counter()
    fit = inference.infer(kernels.gram(kernel, X), y, data.n_classes)
    posterior = ProcessPosterior(kernel, X, fit.posterior)
    blocks = [X_test[first : first + BLOCK] for first in range(0, len(X_test), BLOCK)]
    rule = (inference.default_rule, inference.likelihood)
    p = np.exp(np.concatenate([class_probabilities(*posterior.latent(block), *rule) for block in blocks]))
    scores = {"lpd": log_predictive_density(p, y_test), "predicted": p.argmax(axis=1)}
    how = {"status": fit.status.value, "n_iter": fit.n_iter, "log_evidence": fit.log_evidence}
    how |= {"seconds": time.perf_counter() - began, "peak_megabytes": peak_megabytes()}
    return scores | {"theta": theta, **how}


def run(experiment: Experiment) -> None:
    """For each method: search on the subset, search with all rows, predictions; then the comparison with EP."""
    data = load("usps")
    train, test = np.arange(len(data.y_train)), np.arange(data.n_test)
    if experiment.quick:
        train, test = sample_rows(data.y_train, QUICK_ROWS), sample_rows(data.targets, QUICK_TEST_ROWS)
    subset = train[sample_rows(data.y_train[train], QUICK_SUBSET if experiment.quick else SUBSET)]
    searches: dict[str, Any] = {}
    fits: dict[str, Any] = {}
    for method in METHODS:
        label = f"{method}/subset"
        found = experiment.run({label: partial(search, experiment, method, None, subset, "subset")})[label]
        searches[method] = {"subset": found}
        if method not in SUBSET_ONLY:
            label, start = f"{method}/all rows", None if found["at_bound"] else found["theta"]
            found = experiment.run({label: partial(search, experiment, method, start, train, "all rows")})[label]
            searches[method]["all rows"] = found
        label = f"{method}/predictions"
        fits[method] = experiment.run({label: partial(predictions, method, found["theta"], train, test)})[label]
    save(experiment, {method: gather([fit]) for method, fit in fits.items()}, searches, data.targets[test])


def save(experiment: Experiment, methods: Mapping[str, Any], searches: Mapping[str, Any], targets: IntArray) -> None:
    """Every test row's numbers, the comparison, and the figure."""
    summary = {"paper": {"n": len(targets), "methods": summarise_methods(methods, targets)}}
    caveats = [*CAVEATS, *unmixed({"usps": {"methods": methods}})]
    result = {"targets": targets, "summary": summary, "searches": searches, "methods": methods}
    path = experiment.save(result, caveats)
    experiment.save_figure(draw(json.loads(path.read_text())["results"]), caveats=caveats)


def draw(result: Mapping[str, Any]) -> Figure:
    """(a) mean log predictive densities, (b) differences to EP; (c), (d) the same for accuracies."""
    with rc_context(STYLE | {"font.size": 8}):
        figure = Figure(figsize=(10.0, 2.6), layout="constrained")
        axes = figure.subplots(1, 4)
        draw_data_set(axes[0], axes[1], result, "lpd", tuple(METHODS))
        draw_data_set(axes[2], axes[3], result, "accuracy", tuple(METHODS))
        titles = ("mean log predictive density", "difference to EP", "accuracy", "difference to EP")
        for letter, ax, title in zip("abcd", axes, titles, strict=True):
            ax.set_title(f"({letter}) {title}", color=INK)
    return figure


def main(argv: list[str] | None = None) -> None:
    run(Experiment.from_command_line("fig10", "EP, IEP, VB and LA on USPS with all ten classes.", argv))


if __name__ == "__main__":
    main()
