"""Where the time of one outer iteration of nested EP goes, and of what a search and a prediction add to it, as shares."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.floor import SIZES, problem
from benchmarks.record import save
from nestgp.inference import NestedEP
from nestgp.inference.nested_ep import _State
from nestgp.linalg import DenseBlocks
from nestgp.threads import single_threaded_if_small

REPEATS = 5


class Watch:
    """Seconds spent in methods of an object since the last reset, by the name of the step that they belong to."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def follow(self, target: Any, method: str, step: str) -> None:
        """Time every call of ``target.method`` as part of ``step``."""
        inner: Callable[..., Any] = getattr(target, method)

        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return inner(*arguments, **options)
            finally:
                self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start

        setattr(target, method, timed)


def steps(n: int, c: int) -> dict[str, float]:
    """Best time in seconds of every step at sites half-way to the fixed point, and of the whole iteration."""
    K, y = problem(n, c)
    state = _State(NestedEP(), K, y, c)
    x = state.evaluate(np.zeros((2, n, c - 1))).target
    watch = Watch()
    watch.follow(state.blocks, "refresh", "factors")
    watch.follow(state.blocks, "marginal_blocks", "marginals")
    watch.follow(state, "_find_mean", "means")
    watch.follow(state, "_update_again", "second update")
    best: dict[str, float] = {}
    for _ in range(REPEATS):
        watch.seconds.clear()
        start = time.perf_counter()
        state.evaluate(x)
        watch.seconds["iteration"] = time.perf_counter() - start
        best = {name: min(seconds, best.get(name, np.inf)) for name, seconds in watch.seconds.items()}
    best["inner EP and evidence"] = best["iteration"] - sum(s for name, s in best.items() if name != "iteration")
    start = time.perf_counter()
    DenseBlocks.m_blocks(state.blocks)
    return best | {"gradient": time.perf_counter() - start}


def run() -> None:
    """Measure with one and with all threads; shares are of one iteration."""
    rows = []
    for threads in (1, 2):
        for n, c in SIZES:
            with threadpool_limits(threads, user_api="blas"), single_threaded_if_small(n):
                t = steps(n, c)
            whole = t.pop("iteration")
            rows.append({"threads": threads, "n": n, "c": c, "iteration": whole, **{name: s / whole for name, s in t.items()}})
    save("steps", rows, "shares of the time of one outer iteration; the gradient comes once per evaluation of a search")
