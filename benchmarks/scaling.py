"""How one outer iteration of nested EP grows with n and with c, beside the bare LAPACK calls and the theory, c n³."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.floor import lapack_floor, problem
from benchmarks.record import RESULTS, alternate, save
from nestgp.inference import NestedEP
from nestgp.inference.nested_ep import _State
from nestgp.plotting import INK, MARKERS, MUTED, PALETTE, STYLE

C, N = 3, 1000
SIZES, CLASSES = (500, 1000, 2000, 3000), (3, 5, 10, 20)
#: Smaller matrices spend their time elsewhere, and would hide the power of n.
FIT_FROM = 1000
THEORY = {"n": 3.0, "c": 1.0}
REPEATS = 4


def measure() -> list[dict[str, Any]]:
    """Best times of the iteration and of its bare LAPACK calls, every size in turn; one row per size."""
    sizes = list(dict.fromkeys([(n, C) for n in SIZES] + [(N, c) for c in CLASSES]))
    tasks: dict[str, Any] = {}
    for n, c in sizes:
        K, y = problem(n, c)
        state = _State(NestedEP(), K, y, c)
        tasks[f"iteration {n} {c}"] = partial(state.evaluate, state.evaluate(np.zeros((2, n, c - 1))).target)
        tasks[f"floor {n} {c}"] = partial(lapack_floor, np.asfortranarray(np.eye(n) + K), c)
    best = alternate(tasks, REPEATS)
    rows = [{"n": n, "c": c, **{what: best[f"{what} {n} {c}"] for what in ("iteration", "floor")}} for n, c in sizes]
    return [row | {"ratio": row["iteration"] / row["floor"]} for row in rows]


def along(rows: list[dict[str, Any]], axis: str) -> list[dict[str, Any]]:
    """The rows in which only n, or only c, varies."""
    return [row for row in rows if (row["c"] == C if axis == "n" else row["n"] == N)]


def power(rows: list[dict[str, Any]], axis: str, what: str) -> tuple[float, float]:
    """Exponent p and constant a of what ≈ a·axisᵖ, by least squares on the logs, n ≥ 1000 only."""
    used = [row for row in along(rows, axis) if row["n"] >= FIT_FROM]
    p, log_a = np.polyfit(np.log([row[axis] for row in used]), np.log([row[what] for row in used]), 1)
    return float(p), float(np.exp(log_a))


def exponents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Exponent of n and of c: measured, of the bare LAPACK calls in the same run, and in theory."""
    found = []
    for axis, theory in THEORY.items():
        ours, bare = power(rows, axis, "iteration")[0], power(rows, axis, "floor")[0]
        found.append({"exponent_of": axis, "iteration": ours, "floor": bare, "theory": theory, "ratio": ours / bare})
    return found


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds against n and against c on log scales, with the fitted powers as lines."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    with rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.8), dpi=150, layout="constrained")
        for axes, axis in zip(figure.subplots(1, 2), THEORY, strict=True):
            shown = along(rows, axis)
            x = np.array([row[axis] for row in shown])
            for i, (what, name) in enumerate((("iteration", "one outer iteration"), ("floor", "bare LAPACK"))):
                p, a = power(rows, axis, what)
                axes.plot(x, a * x**p, color=PALETTE[i], linewidth=1.0, linestyle=("solid", "dashed")[i])
                look: dict[str, Any] = {"color": PALETTE[i], "marker": MARKERS[i], "s": 32, "zorder": 3}
                axes.scatter(x, [row[what] for row in shown], label=f"{name}: ${axis}^{{{p:.2f}}}$", **look)
            fixed = f"c = {C}; lines fitted from n = {FIT_FROM}" if axis == "n" else f"n = {N}"
            axes.set_title(f"{fixed}; theory ${axis}^{{{THEORY[axis]:.0f}}}$", fontsize=10, color=INK)
            label = {"n": "n, training points", "c": "c, classes"}[axis]
            axes.set(xscale="log", yscale="log", xlabel=label, ylabel="seconds, one thread")
            axes.set_xticks(x, [str(value) for value in x])
            axes.minorticks_off()
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.grid(alpha=0.25, color=MUTED)
            axes.legend(frameon=False, loc="upper left")
        figure.savefig(path)


def run() -> None:
    """One thread."""
    with threadpool_limits(1, user_api="blas"):
        rows = measure()
    save("scaling", rows, "one outer iteration and the bare LAPACK calls", ratios={"ratio": "lower"}, key=("n", "c"))
    goal = "the exponents of the bare LAPACK calls: 3 for n and 1 for c in theory"
    save("scaling_exponents", exponents(rows), goal, ratios={"ratio": "lower"}, key=("exponent_of",))
    draw(rows, RESULTS / "scaling.png")
    print(f"chart: {RESULTS / 'scaling.png'}")
