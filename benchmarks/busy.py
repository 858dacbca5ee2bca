"""A small fit with default threads while other processes keep every core busy, against one thread under the same load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.peers import THREAD_VARIABLES
from benchmarks.record import save

ROOT = Path(__file__).parents[1]
N, C = 200, 3
#: How often each is timed: the median counts, for the best time would be that of a lucky moment.
REPEATS = {"fit": 9, "infer": 25}
#: Ends by itself when the benchmark is gone.
LOAD = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


def tasks() -> dict[str, Any]:
    """What is timed: a fit with hyperparameters, and one inference at a fixed kernel matrix."""
    from nestgp import GPClassifier
    from nestgp.inference import NestedEP

    rng = np.random.default_rng(0)
    y = np.arange(N) % C
    X = rng.normal(size=(N, 4)) + 0.8 * y[:, None]
    square = (X**2).sum(axis=1)
    K = 10.0 * np.exp(-0.125 * np.maximum(square[:, None] + square - 2 * X @ X.T, 0.0))
    return {"fit": partial(GPClassifier().fit, X, y), "infer": partial(NestedEP().infer, K, y, C)}


def serve() -> None:
    """The timed process: for every name of a task on standard input, its seconds on standard output."""
    from nestgp.threads import blas_threads

    known = tasks()
    for task in known.values():  # compiled before it is timed
        task()
    print(json.dumps(blas_threads()), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        known[line.strip()]()
        print(json.dumps(time.perf_counter() - start), flush=True)


@contextmanager
def process(arguments: list[str], env: dict[str, str]) -> Iterator[Any]:
    """A Python process with pipes, ended when the block ends."""
    pipe = subprocess.PIPE
    child = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=env, stdin=pipe, stdout=pipe, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def ask(child: Any, task: str) -> float:
    """Seconds that the timed process needed for the task."""
    child.stdin.write(f"{task}\n")
    child.stdin.flush()
    return float(json.loads(answer(child)))


def answer(child: Any) -> str:
    line = child.stdout.readline()
    if not line:
        raise RuntimeError("the timed process ended early; its message is above")
    return line


def run() -> None:
    """Both settings take turns, one run at a time, with as many busy processes as there are cores."""
    default = {k: v for k, v in os.environ.items() if k not in THREAD_VARIABLES}
    settings = {"default": default, "one": default | dict.fromkeys(THREAD_VARIABLES, "1")}
    rows = []
    with ExitStack() as stack:
        timed = {name: stack.enter_context(process(["-m", "benchmarks.busy"], env)) for name, env in settings.items()}
        threads = {name: int(answer(child)) for name, child in timed.items()}
        for _ in range(os.cpu_count() or 1):
            stack.enter_context(process(["-c", LOAD], default))
        for task, repeats in REPEATS.items():
            turns = [{name: ask(child, task) for name, child in timed.items()} for _ in range(repeats)]
            seconds = {name: median(turn[name] for turn in turns) for name in timed}
            row = {"what": task, "n": N, "c": C, "default_threads": threads["default"], **seconds}
            rows.append(row | {"ratio": seconds["default"] / seconds["one"]})
    goal = "with default threads at most 1.2 times the time with one thread, every core busy"
    save("busy", rows, goal, ratios={"ratio": "lower"}, key=("what", "n", "c", "default_threads"))


if __name__ == "__main__":
    serve()
