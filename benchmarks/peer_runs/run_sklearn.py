"""scikit-learn's Gaussian process classifier with its defaults: a binary Laplace approximation per class, one versus the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driver import main
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel


def fit(method: str, X: Any, y: Any, lengthscale: Any, seed: int) -> Callable[[Any], Any]:
    kernel = ConstantKernel(1.0) * RBF(lengthscale)
    return GaussianProcessClassifier(kernel, random_state=seed).fit(X, y).predict_proba


if __name__ == "__main__":
    main(fit, ("scikit-learn", "numpy", "scipy"))
