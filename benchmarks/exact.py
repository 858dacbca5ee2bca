"""Evidence and class probabilities against the exact ones, on problems small enough for importance sampling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from benchmarks.record import save
from nestgp import GPClassifier
from nestgp.likelihoods import probit_log_likelihood, softmax_log_probabilities

METHODS = ("ep", "iep", "qiep", "vb", "ep-tkp", "laplace", "laplace-tkp")
DRAWS = 80_000
#: Draws come from q with its variances this much larger, so that the weights have no long tail.
WIDER = 1.15
#: On the diagonal of K, which is factorised here; an inference needs none.
JITTER = 1e-6


def problem() -> tuple[Any, Any, Any]:
    """Three overlapping classes on a line, 15 points, and 9 new inputs between and beyond them."""
    rng = np.random.default_rng(0)
    y = np.arange(15) % 3
    return rng.normal(size=(15, 1)) + y[:, None], y, np.linspace(-2.0, 4.0, 9)[:, None]


def latent_gaussian(clf: Any, K: Any) -> tuple[Any, Any]:
    """Mean (3n,) and covariance (3n, 3n) of q(f) at the training inputs, class-major, by dense matrices."""
    n = len(K)
    fit = clf._inference().infer(K, clf.y_train_, 3)
    T = np.zeros((3, n, 3, n))
    T[:, np.arange(n), :, np.arange(n)] = fit.site_moments()[0]
    prior = np.kron(np.eye(3), K)
    return fit.posterior.mean.T.ravel(), np.linalg.solve(np.eye(3 * n) + prior @ T.reshape(3 * n, 3 * n), prior)


def log_normal(white: Any, factor: Any) -> Any:
    """log N(x | m, L Lᵀ) of draws x = m + L z, up to the constant, given rows z."""
    return -0.5 * (white**2).sum(axis=1) - np.log(np.diagonal(factor)).sum()


def exact(clf: Any, X: Any, y: Any, X_new: Any, likelihood: str) -> tuple[float, Any, float]:
    """log Z, class probabilities (m, 3) and effective number of draws, by importance sampling from a widened q(f)."""
    n, m = len(y), len(X_new)
    K, border = clf.kernel_(X) + JITTER * np.eye(n), clf.kernel_(X, X_new)
    mean, cov = latent_gaussian(clf, K)
    rng = np.random.default_rng(1)
    L, C = np.linalg.cholesky(WIDER * 0.5 * (cov + cov.T)), np.linalg.cholesky(K)
    z = rng.standard_normal((DRAWS, 3 * n))
    f = (mean + z @ L.T).reshape(DRAWS, 3, n)
    white = np.linalg.solve(C, f.reshape(-1, n).T).T.reshape(DRAWS, 3 * n)
    log_w = log_normal(white, np.kron(np.eye(3), C)) - log_normal(z, L)
    log_w += log_likelihood(np.moveaxis(f, 1, 2).reshape(-1, 3), np.tile(y, DRAWS), likelihood).reshape(DRAWS, n).sum(axis=1)
    w = np.exp(log_w - log_w.max())
    log_z = float(np.log(w.mean()) + log_w.max())
    w /= w.sum()
    gain = np.linalg.solve(K, border)
    left = np.maximum(clf.kernel_.diag(X_new) - np.einsum("nm,nm->m", border, gain), 0.0)
    new = f @ gain + np.sqrt(left) * rng.standard_normal((DRAWS, 3, m))
    points = np.moveaxis(new, 1, 2).reshape(-1, 3)
    each = [np.exp(log_likelihood(points, np.full(DRAWS * m, k), likelihood)).reshape(DRAWS, m) for k in range(3)]
    return log_z, np.stack([w @ p for p in each], axis=1), float(1.0 / np.sum(w**2))


def log_likelihood(f: Any, y: Any, likelihood: str) -> Any:
    """log p(y | f) of either observation model."""
    if likelihood == "softmax":
        return np.take_along_axis(softmax_log_probabilities(f), y[:, None], axis=1)[:, 0]
    return probit_log_likelihood(f, y)[0]


def run() -> None:
    """Two kernels, one of moderate and one of large magnitude; hyperparameters fixed."""
    X, y, X_new = problem()
    rows = []
    for log_variance in (1.0, 4.0):
        kernel = ConstantKernel(math.exp(log_variance)) * RBF(1.0)
        clf = GPClassifier(kernel, optimizer=None).fit(X, y)  # nested EP's q suits both likelihoods
        truth = {likelihood: exact(clf, X, y, X_new, likelihood) for likelihood in ("probit", "softmax")}
        for name in METHODS:
            clf = GPClassifier(kernel, inference=name, optimizer=None).fit(X, y)
            log_z, p, ess = truth["softmax" if "laplace" in name else "probit"]
            row = {"log_variance": log_variance, "method": name, "log_z": clf.log_marginal_likelihood_value_}
            error = float(np.abs(clf.predict_proba(X_new) - p).max())
            rows.append(row | {"exact_log_z": log_z, "probability_error": error, "effective_draws": ess})
    save(
        "exact",
        rows,
        "log evidence, and largest error of a class probability, against the method's own exact model",
        ratios={"probability_error": "lower"},
        key=("log_variance", "method"),
    )
