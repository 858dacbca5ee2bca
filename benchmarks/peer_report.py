"""The peer benchmark's rows as ratios to nestgp: a JSON file, a Markdown table and a chart."""

from __future__ import annotations

import json
import os
import platform
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.record import note
from nestgp.plotting import MARKERS, MUTED, PALETTE, STYLE

GOAL = (
    "seconds at least 2 times nestgp's for scikit-learn (3 times from six classes), 10 times for GPflow's VGP; "
    "nestgp's MLPD above both"
)
#: (peer, start of the method's name) that the goals speak of.
COMPARED = {("sklearn", "ovr"): 2.0, ("gpflow", "vgp"): 10.0}
MANY_CLASSES = 6
NOTES = """\
- Seconds: fit with hyperparameters, and prediction, summed over folds; of a single fold the best of up to three while they are
  short. `>` is a lower bound, from a run that was stopped. Ratio: seconds over nestgp's for the same problem, folds and threads,
  so above 1 nestgp is faster.
- Where folds failed, everything is of the others, and nestgp is compared on those too.
- MLPD: mean log probability of the test labels; in brackets how many had a probability below 1e-300, taken as 1e-300.
- Memory: the most that the process held, above what it held after its imports; the warm-up counts.
- Warm-up: a fit and a prediction of thirty points beforehand, which load and compile; not part of the seconds. GPflow traces
  the graph of each model anew, so that part of its compilation is in every fit.
- All start at variance 1 and lengthscale 1 per standardised column (USPS: one lengthscale, the median distance over √2).
- A single fold has too few test rows to rank by MLPD. 212 of the 2100 test rows of image_segmentation are
  also training rows, for all alike.
"""


def write_report(stem: Path, runs: list[dict[str, Any]], about: dict[str, Any]) -> None:
    """Write STEM.json, STEM.md and STEM.png."""
    rows = compare([list(group) for _, group in groupby(sorted(runs, key=_order(runs)), key=_group)])
    versions: dict[str, Any] = {}
    for run in runs:
        versions[run["peer"]] = run.get("versions") or versions.get(run["peer"], {})
    head = {"benchmark": "peers", "goal": GOAL, **about, "python": platform.python_version()}
    head |= {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "versions": versions}
    stem.with_suffix(".json").write_text(json.dumps({**head, "rows": rows, "runs": runs}, indent=1) + "\n")
    measured = [row for row in rows if not row.get("ratio_is_lower_bound")]  # a bound says how long one waited
    note("peers", measured, {"ratio": "higher"}, ("problem", "folds", "threads", "peer", "method"))
    text = markdown(rows, head)
    stem.with_suffix(".md").write_text(text)
    draw(rows, head, stem.with_suffix(".png"))
    print(f"\n{text}\nwritten: {stem}.json, .md, .png")


def _group(run: dict[str, Any]) -> tuple[str, ...]:
    return run["problem"], run["threads"], run["peer"], run["method"]


def _order(runs: list[dict[str, Any]]) -> Any:
    first: dict[tuple[str, ...], int] = {}
    for i, run in enumerate(runs):
        first.setdefault(_group(run), i)
    return lambda run: first[_group(run)]


def summarise(folds: list[dict[str, Any]]) -> dict[str, Any]:
    """The folds of one method on one problem as one row: seconds added, scores averaged over all test rows.

    Folds that failed are left out, and counted; none is if all failed.
    """
    first = folds[0]
    failures = [fold["status"] for fold in folds if fold["status"] not in ("ok", "timeout")]
    row = {k: first[k] for k in ("problem", "threads", "peer", "method", "n", "d", "n_classes")}
    row |= {"folds": len(folds), "failed": len(failures), "reason": failures[0] if failures else ""}
    kept = [fold for fold in folds if fold["status"] in ("ok", "timeout")]
    if not kept:
        return row | {"status": failures[0]}
    if any(fold["status"] == "timeout" for fold in kept):
        # Every fold took at least what was measured, or the limit.
        return row | {"status": "timeout", "at_least_seconds": sum(map(_seconds, kept)), "seconds": f">{first['limit']:g}"}
    row |= {"status": "ok"} | {k: sum(fold[k] for fold in kept) for k in ("fit_seconds", "predict_seconds", "below_tiny")}
    row["seconds"] = row["fit_seconds"] + row["predict_seconds"]
    row |= {k: max(fold[k] for fold in kept) for k in ("peak_megabytes", "warm_up_seconds")}
    rows = sum(fold["n_test"] for fold in kept)
    return row | {k: sum(fold[k] * fold["n_test"] for fold in kept) / rows for k in ("mlpd", "accuracy")}


def _seconds(run: dict[str, Any]) -> float:
    return run["fit_seconds"] + run["predict_seconds"] if run["status"] == "ok" else run["limit"]


def compare(groups: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row per group of folds, with its ratio to nestgp's seconds and whether the goals are met (None: cannot be said).

    nestgp's are those of the same folds: of those that the other one has not failed on.
    """
    ours = {_group(runs[0])[:2]: runs for runs in groups if runs[0]["peer"] == "nestgp"}
    rows = []
    for runs in groups:
        row = summarise(runs)
        rows.append(row)
        counted = {run["fold"] for run in runs if run["status"] in ("ok", "timeout")}
        same = [run for run in ours.get(_group(runs[0])[:2], []) if run["fold"] in counted and run["status"] == "ok"]
        if len(same) < len(counted) or not counted:
            continue
        base, seconds = summarise(same), row.get("at_least_seconds", row.get("seconds"))
        row["ratio"] = seconds / base["seconds"]
        row["ratio_is_lower_bound"] = row["status"] == "timeout"
        goal = next((g for (peer, start), g in COMPARED.items() if row["peer"] == peer and row["method"].startswith(start)), None)
        if goal is None:
            continue
        row["ratio_goal"] = 3.0 if row["peer"] == "sklearn" and row["n_classes"] >= MANY_CLASSES else goal
        met = row["ratio"] >= row["ratio_goal"]
        row["ratio_goal_met"] = None if row["ratio_is_lower_bound"] and not met else met
        row["mlpd_goal_met"] = base["mlpd"] > row["mlpd"] if "mlpd" in row else None
        row["mlpd_nestgp"] = base["mlpd"]
    return rows


def markdown(rows: list[dict[str, Any]], head: dict[str, Any]) -> str:
    titles = ["problem", "threads", "method", "fit s", "predict s", "ratio", "goal", "MLPD", "goal"]
    titles += ["accuracy", "MB", "warm-up s"]
    lines = ["| " + " | ".join(titles) + " |", "| --- | --- | --- |" + " ---: |" * (len(titles) - 3)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    found = {peer: ", ".join(f"{k} {v}" for k, v in packages.items()) for peer, packages in head["versions"].items()}
    versions = [f"- {peer}: {packages or 'not known'}" for peer, packages in found.items()]
    about = f"`{head['command']}`: {head['run']} run, seed {head['seed']}, {head['folds']} fold(s) per UCI problem, "
    about += f"limit {head['limit_seconds']:g} s per run, {head['machine']}, Python {head['python']}."
    return "\n".join(["# nestgp beside its peers", "", about, f"Goal: {GOAL}.", "", *lines, "", NOTES, *versions, ""])


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [f"{row['problem']} ({row['n_classes']} classes, n = {row['n']})", row["threads"], f"{row['peer']} {row['method']}"]
    if 0 < row["failed"] < row["folds"]:
        cells[2] += f" (failed on {row['failed']} of {row['folds']} folds)"
    ratio = f"{'>' if row.get('ratio_is_lower_bound') else ''}{row['ratio']:.3g}" if "ratio" in row else ""
    goal = f"≥ {row['ratio_goal']:g}: {_mark(row['ratio_goal_met'])}" if "ratio_goal" in row else ""
    if row["status"] != "ok":
        return [*cells, row.get("seconds", row["status"].replace("|", "/")), "", ratio, goal, "", "", "", "", ""]
    mlpd = f"{row['mlpd']:.4f}" + (f" ({row['below_tiny']})" if row["below_tiny"] else "")
    times = [f"{row['fit_seconds']:.3g}", f"{row['predict_seconds']:.2g}", ratio, goal, mlpd]
    better = f"lower: {_mark(row['mlpd_goal_met'])}" if "mlpd_goal_met" in row else ""
    return [*cells, *times, better, f"{row['accuracy']:.3f}", f"{row['peak_megabytes']:.0f}", f"{row['warm_up_seconds']:.1f}"]


def _mark(met: bool | None) -> str:
    return "not known" if met is None else ("met" if met else "missed")


def draw(rows: list[dict[str, Any]], head: dict[str, Any], path: Path) -> None:
    """Ratios for each thread setting, and MLPD; problems down the side, one colour and marker per method."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["problem"] for row in rows))
    methods = list(dict.fromkeys(f"{row['peer']} {row['method']}" for row in rows))
    threads = list(dict.fromkeys(row["threads"] for row in rows))
    with mpl.rc_context(STYLE):
        size = (max(4.2 * (len(threads) + 1), 10.5), 1.8 + 0.95 * len(names))
        figure, panels = plt.subplots(1, len(threads) + 1, figsize=size, sharey=True, layout="constrained")
        for axes, setting in zip(panels, threads, strict=False):
            _points(axes, [r for r in rows if r["threads"] == setting], "ratio", names, methods)
            axes.axvline(1.0, color=MUTED, linewidth=1.0)
            axes.set(xscale="log", xlabel="seconds ÷ nestgp's (open: stopped, at least this)")
            axes.set_title("1 thread" if setting == "1" else "default threads")
        scored = [r | {"loss": -r["mlpd"]} for r in rows if r["threads"] == threads[0] and "mlpd" in r]
        _points(panels[-1], scored, "loss", names, methods)
        panels[-1].set(xscale="log", xlabel="mean −log probability of the test labels", title="−MLPD (left is better)")
        panels[0].set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
        panels[0].set_ylim(len(names) - 0.5, -0.5)
        looks = zip(PALETTE, MARKERS, strict=True)
        handles = [panels[0].scatter([], [], color=colour, marker=marker) for colour, marker in looks][: len(methods)]
        figure.legend(handles, methods, loc="outside lower center", ncols=4, frameon=False)
        title = "Fit with hyperparameters and prediction: above 1, nestgp is faster"
        figure.suptitle(title + ("" if head["run"] == "full" else " (partial run)"), fontsize=11)
        figure.savefig(path, dpi=150)
        plt.close(figure)


def _points(axes: Any, rows: list[dict[str, Any]], quantity: str, names: list[str], methods: list[str]) -> None:
    for i, method in enumerate(methods):
        mine = [r for r in rows if f"{r['peer']} {r['method']}" == method and quantity in r]
        shift = 0.7 * ((i + 0.5) / len(methods) - 0.5)
        for bound in (False, True):
            some = [r for r in mine if (quantity == "ratio" and r["ratio_is_lower_bound"]) is bound]
            if not some:
                continue
            x, y = [r[quantity] for r in some], [names.index(r["problem"]) + shift for r in some]
            look = {"marker": ">", "facecolor": "none"} if bound else {"marker": MARKERS[i], "facecolor": PALETTE[i]}
            axes.scatter(x, y, s=38, edgecolor=PALETTE[i], zorder=3, **look)
    for line in range(1, len(names)):
        axes.axhline(line - 0.5, color=MUTED, linewidth=0.5, alpha=0.4)
    axes.grid(axis="x", alpha=0.25)
