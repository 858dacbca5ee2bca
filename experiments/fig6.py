"""Figure 6: log evidence, test log predictive density and accuracy over (log l, log σ²), USPS 3 vs 5 vs 7 (section 5.2).

The paper names the axes but not their ranges or steps: this grid holds every setting that its text mentions. A method starts
from its result at the neighbouring grid point where that is in memory, from nothing after an interrupt; its tolerance is the
same either way. Every grid point of every method is a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from experiments.common import Experiment
from experiments.table2 import sample_rows
from nestgp import kernels
from nestgp.arrays import FloatArray, IntArray
from nestgp.datasets import load
from nestgp.diagnostics import accuracy, log_predictive_density
from nestgp.inference import Fit, IndependentEP, Laplace, NestedEP, VariationalBayes
from nestgp.plotting import INK, PALETTE, STYLE
from nestgp.posterior import ProcessPosterior
from nestgp.predict import class_probabilities

METHODS: dict[str, Any] = {"EP": NestedEP(), "IEP": IndependentEP(max_iter=1000), "VB": VariationalBayes(), "LA": Laplace()}
LOG_LENGTHSCALE, LOG_VARIANCE = np.linspace(1.5, 4.0, 11), np.linspace(0.0, 12.0, 13)
QUICK_GRID, QUICK_ROWS = (np.array([1.5, 2.5, 3.5]), np.array([0.0, 4.0, 8.0])), 60
SURFACES = {"log_evidence": "log evidence", "lpd": "test log predictive density", "accuracy": "test accuracy"}
#: Labels of the two highest contours that the paper names for IEP.
PAPER_IEP = {"log_evidence": -166.0, "lpd": -76.5}
#: Share of the grid that counts as the top of a surface.
TOP = 0.1


class Surface:
    """One method on one problem: scores at a grid point, warm-started from the point computed before it."""

    def __init__(self, inference: Any, X: FloatArray, y: IntArray, X_test: FloatArray, y_test: IntArray) -> None:
        self.inference, self.X, self.y, self.X_test, self.y_test = inference, X, y, X_test, y_test
        self.last: Fit | None = None

    def at(self, log_lengthscale: float, log_variance: float) -> dict[str, Any]:
        """Log evidence, summed test log predictive density and accuracy, and how the inference ended."""
        kernel = ConstantKernel(np.exp(log_variance)) * RBF(np.exp(log_lengthscale))
        fit = self.inference.infer(kernels.gram(kernel, self.X), self.y, int(self.y.max()) + 1, init=self.last)
        latents = ProcessPosterior(kernel, self.X, fit.posterior).latent(self.X_test)
        p = np.exp(class_probabilities(*latents, self.inference.default_rule, self.inference.likelihood))
        self.last = fit.without_factor()
        lpd = float(log_predictive_density(p, self.y_test).sum())
        scores = {"log_evidence": fit.log_evidence, "lpd": lpd, "accuracy": accuracy(p, self.y_test)}
        return scores | {"status": fit.status.value, "n_iter": fit.n_iter}


def path(rows: int, columns: int) -> list[tuple[int, int]]:
    """Grid indices row after row, every other one backwards: each point is a neighbour of the one before."""
    return [(i, j) for i in range(rows) for j in (range(columns) if i % 2 == 0 else reversed(range(columns)))]


def tasks(quick: bool, log_l: FloatArray, log_v: FloatArray) -> dict[str, Callable[[], Any]]:
    """METHOD/log l/log σ² → what computes it."""
    data = load("usps_357")
    assert data.X_test is not None
    assert data.y_test is not None
    train, test = (sample_rows(y, QUICK_ROWS) if quick else np.arange(len(y)) for y in (data.y_train, data.y_test))
    problem = (data.X_train[train], data.y_train[train], data.X_test[test], data.y_test[test])
    found: dict[str, Callable[[], Any]] = {}
    for name, inference in METHODS.items():
        surface = Surface(inference, *problem)
        for i, j in path(len(log_v), len(log_l)):
            found[f"{name}/{log_l[j]:g}/{log_v[i]:g}"] = partial(surface.at, float(log_l[j]), float(log_v[i]))
    return found


def describe(grids: dict[str, FloatArray], log_l: FloatArray, log_v: FloatArray) -> dict[str, Any]:
    """Maxima of the surfaces (log σ², log l) and how the top of the evidence agrees with that of the predictions."""
    maxima = {}
    for name in SURFACES:
        i, j = np.unravel_index(np.argmax(grids[name]), grids[name].shape)
        maxima[name] = {"value": grids[name][i, j], "log_lengthscale": log_l[j], "log_variance": log_v[i]}
    chosen = np.unravel_index(np.argmax(grids["log_evidence"]), grids["lpd"].shape)
    count = max(1, round(TOP * grids["lpd"].size))
    top = {name: grids[name] >= np.sort(grids[name], axis=None)[-count] for name in SURFACES}
    return {
        "maxima": maxima,
        "lpd_at_evidence_maximum": grids["lpd"][chosen],
        "lpd_lost_by_choosing_by_evidence": grids["lpd"].max() - grids["lpd"][chosen],
        "accuracy_at_evidence_maximum": grids["accuracy"][chosen],
        f"top_{TOP:.0%}_overlap_of_evidence_and_lpd": jaccard(top["log_evidence"], top["lpd"]),
        f"top_{TOP:.0%}_overlap_of_evidence_and_accuracy": jaccard(top["log_evidence"], top["accuracy"]),
    }


def jaccard(a: Any, b: Any) -> float:
    """Points in both over points in either."""
    return float(np.sum(a & b) / np.sum(a | b))


def paper_contours(iep: dict[str, FloatArray]) -> dict[str, Any]:
    """How many grid points IEP has inside the two contours that the paper names, and inside both."""
    inside = {name: iep[name] >= level for name, level in PAPER_IEP.items()}
    counts = {f"{name} >= {level}": int(inside[name].sum()) for name, level in PAPER_IEP.items()}
    return counts | {"both": int(np.logical_and(*inside.values()).sum()), "grid_points": iep["lpd"].size}


def levels(values: FloatArray, name: str) -> list[float]:
    """Contours close together near the maximum and ever further apart below it, rounded so that their labels are short."""
    best = float(values.max())
    if name == "accuracy":
        below, digits = [0.001, 0.002, 0.004, 0.008, 0.016, 0.032], 4
    else:
        below, digits = [0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6], 1
        below = [part * abs(best) for part in below]
    return sorted({round(best - step, digits) for step in below})


def draw(grids: dict[str, dict[str, FloatArray]], log_l: FloatArray, log_v: FloatArray) -> Figure:
    """A row per surface, a column per method; a star at the maximum of each, a triangle where the evidence is largest."""
    with rc_context(STYLE | {"font.size": 8}):
        figure = Figure(figsize=(10.5, 7.4), layout="constrained")
        axes = figure.subplots(len(SURFACES), len(METHODS), sharex=True, sharey=True)
        for column, method in enumerate(METHODS):
            for row, name in enumerate(SURFACES):
                draw_surface(axes[row, column], grids[method], name, log_l, log_v)
            axes[0, column].set_title(method, color=INK)
            axes[-1, column].set_xlabel("log l")
        for row, label in enumerate(SURFACES.values()):
            axes[row, 0].set_ylabel(f"{label}\nlog σ²")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_surface(ax: Axes, grids: dict[str, FloatArray], name: str, log_l: FloatArray, log_v: FloatArray) -> None:
    values = grids[name]
    lines = ax.contour(log_l, log_v, values, levels=levels(values, name), cmap="viridis", linewidths=1.1)
    ax.clabel(lines, fontsize=6, fmt="%g")
    where = {"largest value": (values, "*", PALETTE[5]), "largest evidence": (grids["log_evidence"], "^", PALETTE[0])}
    for label, (surface, marker, colour) in where.items():
        i, j = np.unravel_index(np.argmax(surface), surface.shape)
        ax.plot(log_l[j], log_v[i], marker, color=colour, markersize=7, label=label, linestyle="none",
                markerfacecolor=colour if marker == "*" else "none")  # fmt: skip


def collect(values: dict[str, Any], method: str, name: str, log_l: Sequence[float], log_v: Sequence[float]) -> Any:
    """One quantity of one method on the grid, (log σ², log l)."""
    return np.array([[values[f"{method}/{x:g}/{v:g}"][name] for x in log_l] for v in log_v])


def run(experiment: Experiment) -> None:
    """Compute, describe, draw."""
    log_l, log_v = QUICK_GRID if experiment.quick else (LOG_LENGTHSCALE, LOG_VARIANCE)
    values = experiment.run(tasks(experiment.quick, log_l, log_v))
    get = partial(collect, values, log_l=log_l, log_v=log_v)
    grids = {method: {name: get(method, name).astype(float) for name in SURFACES} for method in METHODS}
    status = {method: get(method, "status") for method in METHODS}
    failed = [f"{m}: {int(np.sum(s != 'converged'))} of {s.size} inferences not converged" for m, s in status.items()]
    caveats = [note for note, s in zip(failed, status.values(), strict=True) if np.any(s != "converged")]
    payload = {
        "log_lengthscale": log_l,
        "log_variance": log_v,
        "grids": {m: grids[m] | {"status": status[m], "n_iter": get(m, "n_iter")} for m in METHODS},
        "summary": {m: describe(grids[m], log_l, log_v) for m in METHODS},
        "paper_contours_of_iep": paper_contours(grids["IEP"]),
    }
    experiment.save(payload, caveats)
    experiment.save_figure(draw(grids, log_l, log_v), caveats=caveats)


def main(argv: list[str] | None = None) -> None:
    run(Experiment.from_command_line("fig6", "Evidence and predictions over the hyperparameters, USPS 3 vs 5 vs 7.", argv))


if __name__ == "__main__":
    main()
