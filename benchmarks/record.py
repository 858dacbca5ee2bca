"""Timing that survives a noisy machine, and results as small JSON files."""

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

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("nestgp", "numpy", "scipy", "scikit-learn", "numba")


def alternate(tasks: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Best time of each task in seconds, the tasks taking turns so that a disturbance hits all of them."""
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(repeats):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def save(name: str, rows: list[dict[str, Any]], goal: str) -> None:
    """Write rows with what is needed to repeat them, and print them as a table."""
    record = {
        "benchmark": name,
        "goal": goal,
        "command": f"python -m benchmarks {name}",
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {package: version(package) for package in PACKAGES},
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"\n{name}: {goal}")
    columns = list(rows[0])
    print("  " + "  ".join(f"{c:>14}" for c in columns))
    for row in rows:
        print("  " + "  ".join(f"{_cell(row[c]):>14}" for c in columns))
    sys.stdout.flush()


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
