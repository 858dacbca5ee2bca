"""Ratios of earlier runs, one line of JSON per run of a benchmark, and which of the latest are worse than they were."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

#: A ratio is compared with the median of at most this many before it, and may be this much worse.
EARLIER, TOLERANCE = 5, 0.15
BETTER = ("lower", "higher")

Entry = dict[str, Any]


def entry(name: str, rows: Sequence[Mapping[str, Any]], ratios: Mapping[str, str], key: Sequence[str]) -> Entry:
    """One run without its origin: the ratios of every row that has any, under the columns that identify the row.

    Parameters
    ----------
    ratios : column → "lower" or "higher", whichever is better; key : columns that tell rows apart, such as n, c and threads.
    """
    if wrong := {column: better for column, better in ratios.items() if better not in BETTER}:
        raise ValueError(f"benchmark {name}, ratios={wrong}: say which is better, 'lower' or 'higher'")
    kept = [{"key": {k: row[k] for k in key}, "ratios": {r: row[r] for r in ratios if r in row}} for row in rows]
    kept = [row for row in kept if row["ratios"]]
    for row in kept:
        for column, value in row["ratios"].items():
            if not 0.0 < value < math.inf:
                raise ValueError(f"benchmark {name}, {_label(row['key'])}: {column} is {value}, but ratios are positive")
    if len({_label(row["key"]) for row in kept}) < len(kept):
        raise ValueError(f"benchmark {name}, key={tuple(key)}: two rows have the same key, name more columns")
    return {"benchmark": name, "better": dict(ratios), "rows": kept}


def machine() -> str:
    """The kind of processor, as well as this system tells it, and how many cores: ratios are alike only where it is."""
    names = ("model name", "cpu family", "model")
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
        found = {name.strip(): value.strip() for name, _, value in reversed(lines)}
        kind = " ".join(found[name] for name in names)
    except (OSError, KeyError):
        kind = platform.processor() or platform.machine()
    return f"{kind}, {os.cpu_count()} cores"


def origin() -> Entry:
    """UTC day, version of nestgp, short commit of the source tree (None where there is no git), and the machine."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        commit = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    date = datetime.now(UTC).date().isoformat()
    return {"date": date, "nestgp": version("nestgp"), "commit": commit, "machine": machine()}


def append(path: Path, run: Entry) -> None:
    """Add a line to the history."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(run, ensure_ascii=False) + "\n")


def read(path: Path) -> list[Entry]:
    """All runs, oldest first; none if there is no history yet."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def worse(runs: Iterable[Entry]) -> list[str]:
    """A line for every ratio whose latest value is more than 15 % worse than the median of up to five before it.

    Every machine is judged by itself: on another one, the two sides of a ratio need not be faster or slower alike. Runs that
    do not say which it was are left out.
    """
    values: dict[tuple[str, str], list[float]] = {}
    better: dict[str, str] = {}
    for run in (run for run in runs if "machine" in run):
        for row in run["rows"]:
            for column, value in row["ratios"].items():
                name = f"{run['benchmark']} {_label(row['key'])} {column}"
                values.setdefault((name, run["machine"]), []).append(value)
                better[name] = run["better"][column]
    lines = []
    for (name, machine), (*before, latest) in values.items():
        if not before:
            continue
        usual = median(before[-EARLIER:])
        change = latest / usual - 1.0
        if (change if better[name] == "lower" else -change) > TOLERANCE:
            lines.append(f"worse: {name} {usual:.3g} -> {latest:.3g} ({100.0 * change:+.0f} %, {machine})")
    return lines


def _label(key: Mapping[str, Any]) -> str:
    return " ".join(f"{column}={value}" for column, value in key.items())
