"""USPS with all ten classes, 4,649 rows, on every core: time and peak memory of a fit with hyperparameters and a prediction."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from benchmarks import problems
from benchmarks.peer_runs.driver import peak_megabytes, scores, small_problem, timed
from benchmarks.record import save
from nestgp import GPClassifier
from nestgp.inference import NestedEP


def run() -> None:
    """In a process of its own, whose memory is not that of benchmarks before."""
    subprocess.run([sys.executable, "-m", "benchmarks.usps"], check=True, cwd=Path(__file__).parents[1])


def measure() -> None:
    """In mixed precision; memory is what the process holds beyond its imports, the kernel matrix included."""
    problem = problems.load("usps")
    X, y, _ = small_problem()
    GPClassifier(inference=NestedEP(precision="mixed")).fit(X, y).predict_proba(X)
    before = peak_megabytes()
    kernel = ConstantKernel(1.0) * RBF(problem.lengthscale)
    clf = GPClassifier(kernel, inference=NestedEP(precision="mixed"), verbose=1)
    _, fit_seconds = timed(clf.fit, problem.X_train, problem.y_train)
    p, predict_seconds = timed(clf.predict_proba, problem.X_test)
    found, n, c, search = scores(np.asarray(p), problem.y_test), len(problem.y_train), problem.n_classes, clf.search_
    assert search is not None
    row = {"n": n, "c": c, "fit_seconds": fit_seconds, "predict_seconds": predict_seconds, "status": clf.status_.value}
    row |= {"evaluations": search.n_evaluations, "iterations": search.n_iterations, "last_iterations": clf.n_iter_}
    row |= {"log_evidence": clf.log_marginal_likelihood_value_, "kernel": str(clf.kernel_)}
    row |= {"mlpd": found["mlpd"], "accuracy": found["accuracy"]}
    row |= {"peak_n2": (peak_megabytes() - before) * 2.0**20 / (8.0 * n * n), "limit_n2": float(c + 4)}
    goal = "a fit with hyperparameters in less than an hour, in less than (c + 4) n² doubles, with the prediction of as many rows"
    save("usps", [row], goal, ratios={"peak_n2": "lower"}, key=("n", "c"))


if __name__ == "__main__":
    measure()
