"""What every peer's script shares: read a problem, warm up, fit, predict, and write what was measured.

It needs only NumPy, because it runs in the environment of the peer. A script gives ``main`` a function
``fit(method, X, y, lengthscale, seed)`` that returns another one, from X (m, d) to class probabilities (m, c).
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

Fit = Callable[[str, Any, Any, Any, int], Callable[[Any], Any]]
#: Fits are repeated, as often as is asked for, while they took less than so many seconds in all; the best time counts.
REPEAT_SECONDS = 5.0
#: Logarithms of smaller probabilities are those of this one.
TINY = 1e-300


def main(fit: Fit, packages: tuple[str, ...]) -> None:
    """``script METHOD RESULT.jsonl SECONDS SEED REPEATS PROBLEM.npz …``: a warm-up, then a line of RESULT for every problem.

    SIGALRM ends a fit with prediction that takes longer than SECONDS.
    """
    method, result, limit = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    seed, repeats, files = int(sys.argv[4]), int(sys.argv[5]), sys.argv[6:]
    before = peak_megabytes()
    X, y, lengthscale = small_problem()
    warm_up = timed(lambda: fit(method, X, y, lengthscale, seed)(X + 0.1))[1]
    for file in files:
        row = run(fit, method, file, limit, seed, repeats)
        row |= {"warm_up_seconds": warm_up, "peak_megabytes": peak_megabytes() - before}
        with result.open("a") as lines:
            lines.write(json.dumps({**row, "versions": {name: version(name) for name in packages}}) + "\n")


def run(fit: Fit, method: str, file: str, limit: float, seed: int, repeats: int) -> dict[str, Any]:
    """Seconds and scores of one problem."""
    with np.load(file) as data:
        X, y, X_test, y_test, lengthscale = (data[k] for k in ("X_train", "y_train", "X_test", "y_test", "lengthscale"))
    fits: list[float] = []
    predictions: list[float] = []
    while len(fits) < repeats and sum(fits) < (REPEAT_SECONDS if fits else np.inf):
        signal.setitimer(signal.ITIMER_REAL, limit)
        predict, seconds = timed(fit, method, X, y, lengthscale, seed)
        p, more = timed(predict, X_test)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        fits.append(seconds)
        predictions.append(more)
    row = {"fit_seconds": min(fits), "predict_seconds": min(predictions), "repeats": len(fits)}
    return row | scores(np.asarray(p, float), y_test)


def timed(task: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Result and seconds."""
    start = time.perf_counter()
    value = task(*arguments)
    return value, time.perf_counter() - start


def small_problem() -> tuple[Any, Any, Any]:
    """Thirty points in three overlapping classes: enough to load and compile whatever a fit needs."""
    rng = np.random.default_rng(0)
    y = np.arange(30) % 3
    return rng.normal(size=(30, 2)) + y[:, None], y, np.ones(2)


def scores(p: Any, y: Any) -> dict[str, Any]:
    """Log probability of each label (m,) and its mean, predicted classes (m,), accuracy, and how many were below ``TINY``."""
    if p.shape != (len(y), p.shape[1]) or not np.isfinite(p).all():
        raise ValueError(f"probabilities of shape {p.shape}, {np.isnan(p).sum()} of them not a number")
    chosen = p[np.arange(len(y)), y]
    lpd, predicted = np.log(np.maximum(chosen, TINY)), p.argmax(axis=1)
    found = {"mlpd": float(lpd.mean()), "accuracy": float((predicted == y).mean()), "below_tiny": int((chosen < TINY).sum())}
    return found | {"lpd": lpd.tolist(), "predicted": predicted.tolist()}


def peak_megabytes() -> float:
    """Most memory held so far. Linux's own figure, because that of getrusage starts at what the parent process held."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024.0
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024.0**2 if sys.platform == "darwin" else 1024.0)
