"""The paper's classification problems as train and test arrays, split and standardised as `nestgp.datasets` does it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nestgp import datasets

CROSS_VALIDATED = ("new_thyroid", "teaching", "glass", "wine")
NAMES = (*CROSS_VALIDATED, "image_segmentation", "usps_357", "usps")
N_FOLDS = 10


@dataclass(frozen=True)
class Problem:
    """X (n, d) and codes y (n,) of both halves; lengthscale (d,) starts an ARD kernel, () an isotropic one."""

    X_train: Any
    y_train: Any
    X_test: Any
    y_test: Any
    lengthscale: Any

    @property
    def n_classes(self) -> int:
        return int(self.y_train.max()) + 1

    def write(self, path: Path) -> None:
        """Save as ``.npz``, so that another interpreter needs only NumPy to read it."""
        np.savez(path, **self.__dict__)


def load(name: str, fold: int = 0) -> Problem:
    """Problem of that name; fold 0 to 9 where it is cross-validated.

    One lengthscale of 1 for each standardised column. Grey levels stay as they are and have one in all, started at the
    median distance of two training images over √2.
    """
    dataset = datasets.load(name)
    split = next(islice(dataset.folds(), fold, None))
    lengthscale = np.ones(split.X_train.shape[1]) if dataset.standardised else np.sqrt(median_square(split.X_train) / 2.0)
    return Problem(split.X_train, split.y_train, split.X_test, split.y_test, lengthscale)


def has_folds(name: str) -> bool:
    """Whether the problem is cross-validated, rather than given with a test set."""
    return name in CROSS_VALIDATED


def median_square(X: Any) -> float:
    """Median of the squared distances between two different rows."""
    square = (X**2).sum(axis=1)
    return float(np.median(np.maximum(square[:, None] + square - 2.0 * X @ X.T, 0.0)[np.triu_indices(len(X), 1)]))
