"""What a new process pays for compiled code that an earlier one has cached."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.record import save

IMPORTS = "import sklearn.gaussian_process, scipy.optimize, scipy.stats"
FIRST_FIT = """
from sklearn.datasets import load_iris
from nestgp import GPClassifier
X, y = load_iris(return_X_y=True)
GPClassifier(optimizer=None).fit(X[::5], y[::5]).predict_proba(X[:5])
"""


def seconds(code: str) -> float:
    """Wall time of a new interpreter that runs the code, best of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def run() -> None:
    """Overhead of import and of import with a first fit, beyond scikit-learn's own import."""
    seconds(FIRST_FIT)
    base, imported, fitted = seconds(IMPORTS), seconds("import nestgp"), seconds(FIRST_FIT)
    names = ("import scikit-learn", "import nestgp", "first fit and predict")
    rows = [
        {"what": name, "seconds": t, "beyond_sklearn": t - base}
        for name, t in zip(names, (base, imported, fitted), strict=True)
    ]
    save(
        "startup",
        [row | {"over_sklearn": row["seconds"] / base} for row in rows],
        "first call in a second process: under 3 s beyond scikit-learn's import",
        ratios={"over_sklearn": "lower"},
        key=("what",),
    )
