"""Figure 7: convergence of EP, IEP and quadrature IEP on USPS 3 vs 5 vs 7 at log σ² = 8, log l = 2.5, parallel updates.

All start from sites that say nothing, so that iteration i is the state after i updates for every method. The inner EP is run
to convergence in every iteration (standard), or for one sweep (incremental). Damping is as in the paper: of the inner sites
with EP, of the natural parameters of the outer sites with IEP and quadrature IEP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from experiments.common import Experiment
from experiments.usps_marginals import FloatArray, IntArray, digits, kernel
from nestgp import kernels
from nestgp.diagnostics import mean_log_predictive_density
from nestgp.inference import Fit, IndependentEP, NestedEP, QuadratureEP, Status, loop
from nestgp.plotting import INK, STYLE
from nestgp.posterior import GaussianPosterior
from nestgp.predict import class_probabilities

LOG_VARIANCE, LOG_LENGTHSCALE = 8.0, 2.5
#: Inner sweeps and damping of the paper's three columns.
COLUMNS: dict[str, tuple[int | str, float]] = {
    "standard, δ = 0.8": ("converge", 0.8),
    "incremental, δ = 0.8": (1, 0.8),
    "incremental, δ = 0.5": (1, 0.5),
}
#: A run has settled when log Z stays this close to that of the fixed point.
SETTLED = 0.1


class Size(NamedTuple):
    """Updates, and rows of each class (None: all)."""

    updates: int
    rows: int | None


FULL, QUICK = Size(40, None), Size(12, 30)


class Problem(NamedTuple):
    """Kernel matrix and labels, covariances with the test rows and their prior variances, test labels, number of classes."""

    K: FloatArray
    y: IntArray
    k_star: FloatArray
    prior_variance: FloatArray
    y_test: IntArray
    n_classes: int

    def mlpd(self, posterior: GaussianPosterior, rule: str) -> float:
        """Mean log predictive density of the test rows."""
        mean, cov = posterior.at(self.k_star, self.prior_variance)
        return mean_log_predictive_density(np.exp(class_probabilities(mean[None], cov[None], rule)), self.y_test)


def run(experiment: Experiment) -> None:
    """−log Z and the mean log predictive density of the test rows after every update."""
    how = QUICK if experiment.quick else FULL
    data, caveats = digits(how.rows, experiment.seed)
    cov, X = kernel(LOG_VARIANCE, LOG_LENGTHSCALE), data.X
    cross = (kernels.cross(cov, X["train"], X["test"]), kernels.diagonal(cov, X["test"]))
    problem = Problem(kernels.gram(cov, X["train"]), data.y["train"], *cross, data.y["test"], len(data.names))
    tasks = {name: partial(trace, method, problem) for name, method in _methods(how.updates + 1).items()}
    fixed = {"EP": NestedEP(), "IEP": IndependentEP(max_iter=1000), "QIEP": QuadratureEP(max_iter=1000)}
    found = experiment.run(tasks | {f"fixed point of {name}": partial(fixed_point, m, problem) for name, m in fixed.items()})
    fixed_points = {name: found.pop(f"fixed point of {name}") for name in fixed}
    caveats += [f"the adaptive {name} has not converged" for name, value in fixed_points.items() if not value["converged"]]
    payload = {
        "log_variance": LOG_VARIANCE,
        "log_lengthscale": LOG_LENGTHSCALE,
        "n_train": len(problem.y),
        "n_test": len(problem.y_test),
        "updates": how.updates,
        "fixed_points": fixed_points,
        "summary": {name: summary(rows, fixed_points[name.split(",")[0]]["log_z"]) for name, rows in found.items()},
        "iep_against_quadrature": {name: _nested_against_quadrature(found, name) for name in COLUMNS},
        "runs": found,
    }
    experiment.save(payload, caveats)
    _draw(experiment, found, fixed_points, caveats)


def _methods(evaluations: int) -> dict[str, Any]:
    """Every run by name: "EP, standard, δ = 0.8" and so on; quadrature has no inner EP."""
    limits: dict[str, Any] = {"max_iter": evaluations, "tol": 0.0}
    runs: dict[str, Any] = {}
    for name, (sweeps, damping) in COLUMNS.items():
        runs[f"EP, {name}"] = NestedEP(damping=damping, inner_sweeps=sweeps, **limits)
        runs[f"IEP, {name}"] = IndependentEP(damping=damping, inner_sweeps=sweeps, **limits)
    for damping in (0.8, 0.5):
        runs[f"QIEP, δ = {damping}"] = QuadratureEP(damping=damping, **limits)
    return runs


# -------------------------------------------------------------------------------------------------- every iteration


class Watched:
    """A fixed-point problem that shows the posterior of every state it evaluates."""

    def __init__(self, problem: Any, look: Any) -> None:
        self.problem, self.look = problem, look

    def evaluate(self, x: FloatArray) -> loop.Evaluation:
        """As the problem does."""
        evaluation = self.problem.evaluate(x)
        self.look(self.problem.fit(loop.Outcome(x, evaluation, Status.MAX_ITERATIONS, ())).posterior)
        return evaluation

    def project(self, x: FloatArray) -> FloatArray:
        """As the problem does."""
        return self.problem.project(x)


def trace(inference: Any, problem: Problem) -> dict[str, FloatArray]:
    """log Z, residual, damping and test mlpd of every state of one run, the first with empty sites.

    An inference returns the best state it met, so runs that go on from each other's results repeat a step whenever the
    residual rises, and are not one long run: here one is watched instead.
    """
    seen: list[float] = []
    find = loop.find_fixed_point

    def look(posterior: GaussianPosterior) -> None:
        seen.append(problem.mlpd(posterior, inference.default_rule))

    def watched(method: Any, *how: Any, **options: Any) -> Any:
        seen.clear()  # after a failure the run begins anew
        return find(Watched(method, look), *how, **options)

    start = from_nothing(inference, problem)
    with patch.object(loop, "find_fixed_point", watched):
        fit = inference.infer(problem.K, problem.y, problem.n_classes, init=start)
    scores = iter(seen)  # in the order of the history; states that were invalid have none
    mlpd = [next(scores) if np.isfinite(row.residual) else np.nan for row in fit.history]
    columns = {name: np.array([getattr(row, name) for row in fit.history]) for name in ("residual", "damping")}
    return {"log_z": np.array([row.log_evidence for row in fit.history]), "mlpd": np.array(mlpd), **columns}


def from_nothing(inference: Any, problem: Problem) -> Fit:
    """A start with empty sites: nested EP by itself begins after a first update, with a damping of its own."""
    fit = replace(inference, max_iter=1).infer(problem.K, problem.y, problem.n_classes)
    return replace(fit, sites=np.zeros_like(fit.sites))


def fixed_point(inference: Any, problem: Problem) -> dict[str, Any]:
    """Where the adaptive iteration ends."""
    fit = inference.infer(problem.K, problem.y, problem.n_classes)
    mlpd = problem.mlpd(fit.posterior, inference.default_rule)
    return {"log_z": fit.log_evidence, "mlpd": mlpd, "iterations": fit.n_iter, "converged": fit.converged}


# --------------------------------------------------------------------------------------------------------- numbers


def summary(rows: Mapping[str, FloatArray], log_z: float) -> dict[str, Any]:
    """After how many updates log Z stays near the fixed point, changes of its direction, and the drift of the last half."""
    distance = np.abs(rows["log_z"] - log_z)
    far = np.flatnonzero(~(distance < SETTLED))
    steps = np.diff(rows["log_z"][1:])
    half = len(distance) // 2
    return {
        f"updates_until_within_{SETTLED}": int(far[-1] + 1) if far.size and far[-1] + 1 < distance.size else None,
        "distance_from_fixed_point": float(distance[-1]),
        "turns": int(np.sum(steps[1:] * steps[:-1] < 0)),
        "drift_of_log_z_in_last_half": float(rows["log_z"][-1] - rows["log_z"][half]),
        "drift_of_mlpd_in_last_half": float(rows["mlpd"][-1] - rows["mlpd"][half]),
        "damping_at_end": float(rows["damping"][-1]),
        "last": {name: float(rows[name][-1]) for name in ("log_z", "mlpd", "residual")},
    }


def _nested_against_quadrature(found: Mapping[str, Mapping[str, FloatArray]], column: str) -> dict[str, float]:
    """Largest and last difference of −log Z between nested and quadrature IEP, after the first update."""
    gap = np.abs(found[f"IEP, {column}"]["log_z"] - found[_quadrature(column)]["log_z"])[1:]
    return {"largest": float(gap.max()), "last": float(gap[-1])}


def _quadrature(column: str) -> str:
    return f"QIEP, δ = {COLUMNS[column][1]}"


# --------------------------------------------------------------------------------------------------------- figure


def _draw(experiment: Experiment, found: Mapping[str, Any], fixed_points: Mapping[str, Any], caveats: list[str]) -> None:
    import matplotlib.pyplot as plt

    rows = [(quantity, method) for quantity in ("log_z", "mlpd") for method in ("EP", "IEP")]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(4, 3, figsize=(10, 9.5), layout="constrained", sharex=True, sharey="row")
        for ax_row, (quantity, method) in zip(axes, rows, strict=True):
            sign = -1.0 if quantity == "log_z" else 1.0
            for ax, column in zip(ax_row, COLUMNS, strict=True):
                nested = {"color": "0.55", "linewidth": 2.2, "label": f"nested {method}"}
                _line(ax, sign * found[f"{method}, {column}"][quantity], nested)
                if method == "IEP":
                    quadrature = {"color": INK, "linestyle": "--", "label": "quadrature IEP"}
                    _line(ax, sign * found[_quadrature(column)][quantity], quadrature)
                ax.axhline(sign * fixed_points[method][quantity], color="#0072B2", linewidth=0.7, label="fixed point")
            ax_row[0].set_ylabel(f"{method}: " + ("−log Z" if quantity == "log_z" else "test MLPD"))
            ax_row[-1].legend(frameon=False, fontsize=8)
        _frames(axes, found)
        for ax, column in zip(axes[0], COLUMNS, strict=True):
            ax.set_title(column, fontsize=10)
        for ax in axes[-1]:
            ax.set_xlabel("updates")
        experiment.save_figure(figure, caveats=caveats)
        plt.close(figure)


def _line(ax: Any, values: FloatArray, style: dict[str, Any]) -> None:
    ax.plot(np.arange(1, values.size), values[1:], **style)


def _frames(axes: Any, found: Mapping[str, Any]) -> None:
    """EP and IEP on one scale, which leaves out what only the first updates reach."""
    for quantity, sign, rows in (("log_z", -1.0, axes[:2]), ("mlpd", 1.0, axes[2:])):
        later = np.concatenate([sign * run[quantity][3:] for run in found.values()])
        low, high = np.nanmin(later), np.nanmax(later)
        for ax in rows[:, 0]:
            ax.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))


def main() -> None:
    """Run from the command line."""
    run(Experiment.from_command_line("fig7", __doc__ or ""))


if __name__ == "__main__":
    main()
