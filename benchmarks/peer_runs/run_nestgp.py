"""nestgp with its defaults: nested EP, type-II MAP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driver import main
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from nestgp import GPClassifier


def fit(method: str, X: Any, y: Any, lengthscale: Any, seed: int) -> Callable[[Any], Any]:
    kernel = ConstantKernel(1.0) * RBF(lengthscale)
    return GPClassifier(kernel, random_state=seed).fit(X, y).predict_proba


if __name__ == "__main__":
    main(fit, ("nestgp", "numpy", "scipy", "scikit-learn", "numba"))
