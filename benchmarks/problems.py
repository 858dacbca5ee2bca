"""The paper's classification problems as train and test arrays, read from the folder that NESTGP_DATA names.

UCI: ``NAME.csv.gz`` with a header and the integer class last. USPS: ``usps_resampled.npz`` with X_train, y_train, X_test, y_test.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

UCI = ("new_thyroid", "teaching", "glass", "wine")
NAMES = (*UCI, "image_segmentation", "usps357", "usps10")
#: Rows of image_segmentation that its authors give for training; the others are the test set.
SEGMENTATION_TRAIN = 210
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


def load(name: str, fold: int = 0, seed: int = 0) -> Problem:
    """Problem of that name; fold 0 to 9 of a seeded stratified ten-fold split where no test set is given."""
    if name.startswith("usps"):
        return _usps((3, 5, 7) if name == "usps357" else tuple(range(10)))
    X, y = _table(name)
    if name == "image_segmentation":
        train, test = np.split(np.arange(len(y)), [SEGMENTATION_TRAIN])
    else:
        with warnings.catch_warnings():  # a class of glass has 9 rows, so one of the ten folds is without it
            warnings.filterwarnings("ignore", message="The least populated class")
            train, test = list(StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed).split(X, y))[fold]
    scaler = StandardScaler().fit(X[train])
    return Problem(scaler.transform(X[train]), y[train], scaler.transform(X[test]), y[test], np.ones(X.shape[1]))


def has_folds(name: str) -> bool:
    """Whether the problem is cross-validated, rather than given with a test set."""
    return name in UCI


def _path(file: str) -> Path:
    folder = os.environ.get("NESTGP_DATA")
    if folder is None or not (Path(folder) / file).exists():
        raise SystemExit(f"no {file}: set NESTGP_DATA to the folder that holds it (now {folder or 'not set'})")
    return Path(folder) / file


def _table(name: str) -> tuple[Any, Any]:
    table = np.loadtxt(_path(f"{name}.csv.gz"), delimiter=",", skiprows=1)
    return table[:, :-1], table[:, -1].astype(int)


def _usps(digits: tuple[int, ...]) -> Problem:
    """Grey levels as they are; one lengthscale, started at the median distance of two training images over √2."""
    with np.load(_path("usps_resampled.npz")) as data:
        rows = {half: np.isin(data[f"y_{half}"], digits) for half in ("train", "test")}
        X, X_test = (data[f"X_{half}"][rows[half]].astype(float) for half in rows)
        y, y_test = (np.searchsorted(digits, data[f"y_{half}"][rows[half]]) for half in rows)
    square = (X**2).sum(axis=1)
    distance = np.maximum(square[:, None] + square - 2.0 * X @ X.T, 0.0)[np.triu_indices(len(X), 1)]
    return Problem(X, y, X_test, y_test, np.sqrt(np.median(distance) / 2.0))
