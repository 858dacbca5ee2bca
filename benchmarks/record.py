"""Timing that survives a noisy machine, and results as small JSON files.

They go to ``benchmarks/results``, or to the folder that NESTGP_BENCHMARK_RESULTS names: use another one to try something out,
or on a busy machine, so that the history stays comparable.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import history

RESULTS = Path(os.environ.get("NESTGP_BENCHMARK_RESULTS") or Path(__file__).parent / "results")
HISTORY = RESULTS / "history.jsonl"
PACKAGES = ("nestgp", "numpy", "scipy", "scikit-learn", "numba")


def alternate(tasks: dict[str, Callable[[], Any]], repeats: int, settle: float = 0.0) -> dict[str, float]:
    """Best time of each task in seconds, the tasks taking turns so that a disturbance hits all of them.

    ``settle`` : a turn begins with so many seconds of the task that do not count: threads of BLAS go on spinning for a while
    after their work, in the way of another task's.
    """
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(repeats):
        for name, task in tasks.items():
            begin = time.perf_counter()
            while time.perf_counter() - begin < settle:
                task()
            start = time.perf_counter()
            task()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def save(
    name: str, rows: list[dict[str, Any]], goal: str, ratios: dict[str, str] | None = None, key: tuple[str, ...] = ()
) -> None:
    """Write rows with what is needed to repeat them, print them as a table, and note their ratios in the history.

    Parameters
    ----------
    ratios : columns to watch from run to run, each "lower" or "higher", whichever is better.
    key : columns that identify a row, such as n, c and threads.
    """
    # A second table of a benchmark is called NAME_what.
    benchmark = name if Path(__file__).with_name(f"{name}.py").exists() else name.rpartition("_")[0]
    record = {
        "benchmark": name,
        "goal": goal,
        "command": f"python -m benchmarks {benchmark}",
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {package: version(package) for package in PACKAGES},
        "rows": rows,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"\n{name}: {goal}")
    columns = list(rows[0])
    print("  " + "  ".join(f"{c:>14}" for c in columns))
    for row in rows:
        print("  " + "  ".join(f"{_cell(row[c]):>14}" for c in columns))
    if ratios:
        note(name, rows, ratios, key)
    sys.stdout.flush()


def note(name: str, rows: list[dict[str, Any]], ratios: dict[str, str], key: tuple[str, ...]) -> None:
    """Add a run to the history, and print what is worse than it used to be; parameters of :func:`save`."""
    history.append(HISTORY, history.origin() | history.entry(name, rows, ratios, key))
    for line in history.worse(run for run in history.read(HISTORY) if run["benchmark"] == name):
        print(line)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
