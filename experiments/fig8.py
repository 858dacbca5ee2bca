"""Figure 8: mean log predictive densities on six data sets and pairwise differences to EP, from the numbers of table 2.

`fig8-peers` shows the same for scikit-learn's classifiers, GPflow and GPyTorch. Where test inputs are also training inputs
(Teaching, Glass, Segmentation), the scores without them stand beside those of the paper's protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.common import Experiment
from experiments.table2 import METHODS, REFERENCE, chosen_peers, stored
from nestgp.plotting import INK, MUTED, PALETTE, STYLE

TITLES = {
    "new_thyroid": "New-thyroid",
    "teaching": "Teaching",
    "glass": "Glass",
    "wine": "Wine",
    "image_segmentation": "Segmentation",
    "usps_357": "USPS 3-5-7",
}
#: Kind of score → its name in the summary, the name of its difference, and the labels of both.
KINDS = {
    "lpd": ("mlpd", "lpd_minus_ep", "mean log predictive density", "difference to EP"),
    "accuracy": ("accuracy", "accuracy_minus_ep", "accuracy", "difference to EP"),
}
COLUMNS = 3


def draw(results: Mapping[str, Any], kind: str, methods: Sequence[str]) -> Figure:
    """Rows of three data sets, the scores above their differences to EP."""
    names = list(results)
    bands = -(-len(names) // COLUMNS)
    with rc_context(STYLE | {"font.size": 8}):
        figure = Figure(figsize=(2.9 * COLUMNS, 3.9 * bands), layout="constrained")
        axes = figure.subplots(2 * bands, COLUMNS, squeeze=False)
        for i, name in enumerate(names):
            band, column = divmod(i, COLUMNS)
            top, bottom = axes[2 * band, column], axes[2 * band + 1, column]
            draw_data_set(top, bottom, results[name], kind, methods)
            top.set_title(TITLES.get(name, name), color=INK)
            if column == 0:
                top.set_ylabel(KINDS[kind][2])
                bottom.set_ylabel(KINDS[kind][3])
        for i in range(len(names), bands * COLUMNS):
            band, column = divmod(i, COLUMNS)
            axes[2 * band, column].set_axis_off()
            axes[2 * band + 1, column].set_axis_off()
    return figure


def draw_data_set(top: Axes, bottom: Axes, data: Mapping[str, Any], kind: str, methods: Sequence[str]) -> None:
    """Scores and differences of one data set; the paper's protocol, and beside it the clean one where they differ."""
    score, difference, *_ = KINDS[kind]
    present = {method for method in methods if method in data["summary"]["paper"]["methods"]}
    bottom.axhline(0.0, color=MUTED, linewidth=0.8, zorder=1)
    for step, (protocol, summary) in enumerate(data["summary"].items()):
        for i, method in enumerate(methods):
            if method not in present:
                for ax in (top, bottom):
                    ax.annotate("not run", (i, 0.5), xycoords=("data", "axes fraction"), rotation=90, ha="center",
                                va="center", color=MUTED, fontsize=7)  # fmt: skip
                continue
            row, reliable = summary["methods"][method], data["methods"][method]["reliable"]
            place, colour = i + 0.24 * step, PALETTE[0] if protocol == "paper" else PALETTE[1]
            draw_interval(top, place, row[score], colour, reliable)
            if difference in row:
                interval = row[difference].get("difference", row[difference])
                draw_interval(bottom, place, interval, colour, reliable)
                if kind == "accuracy" and row["same_as_ep"]:
                    bottom.plot(place, interval["mean"], "o", markersize=11, markerfacecolor="none", color=INK)
        if len(data["summary"]) > 1:
            label = f"{protocol}, n = {summary['n']}"
            top.plot([], [], "o", color=PALETTE[step], markersize=4, label=label)
    if len(data["summary"]) > 1:
        top.legend(frameon=False, fontsize=6.5, loc="best", handletextpad=0.1)
    for ax in (top, bottom):
        # Names of peers are longer than the space that there is side by side.
        slanted: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if max(map(len, methods)) > 8 else {}
        ax.set_xticks(range(len(methods)), methods, fontsize=7, **slanted)
        ax.tick_params(labelbottom=ax is bottom or not slanted)
        ax.set_xlim(-0.5, len(methods) - 0.4)
        ax.spines[["top", "right"]].set_visible(False)


def draw_interval(ax: Axes, place: float, interval: Mapping[str, float], colour: str, reliable: bool) -> None:
    """A mean and its interval; hollow where the method has not converged or not mixed.

    The mean of hits can lie outside the central interval of a posterior with a prior, which an error bar cannot show.
    """
    ax.plot([place, place], [interval["low"], interval["high"]], color=colour, linewidth=1.4, zorder=2)
    ax.plot(place, interval["mean"], "o", color=colour, markersize=4.5, markerfacecolor=colour if reliable else "white", zorder=3)


def notes(results: Mapping[str, Any], methods: Sequence[str]) -> list[str]:
    """What a hollow dot means if there is one, and whether the table is complete for these methods."""
    rows = [row for data in results.values() for method, row in data["methods"].items() if method in methods]
    hollow = ["hollow: some fits not converged, or chains not mixed"] if not all(row["reliable"] for row in rows) else []
    absent = [method in data["not_run"] for data in results.values() for method in methods if method not in data["methods"]]
    failed = ["not run: stopped by the time limit, failed or not installed, as the caveats of table 2 say"] if any(absent) else []
    missing = ["incomplete: table 2 has not been computed for all methods and data sets"] if not all(absent) else []
    return hollow + failed + missing


def save(experiment: Experiment, kind: str) -> None:
    """The paper's figure, and the one with the peers; also the numbers that are drawn."""
    record = stored(experiment)
    results = {name: data for name, data in record["results"].items() if data["methods"]}
    for part, methods in (("", METHODS), ("peers", (REFERENCE, *chosen_peers(experiment.quick)))):
        experiment.save_figure(draw(results, kind, methods), part, notes(record["results"], methods))
    drawn = {name: data["summary"] for name, data in results.items()}
    experiment.save({"table": record["command"], "summary": drawn}, record["caveats"])


def run(experiment: Experiment) -> None:
    save(experiment, "lpd")


def main(argv: list[str] | None = None) -> None:
    run(Experiment.from_command_line("fig8", "Log predictive densities and differences to EP, from table 2.", argv))


if __name__ == "__main__":
    main()
