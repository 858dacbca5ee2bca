"""Values on the paper's own data sets; minutes, and only where the data are."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from nestgp import GPClassifier
from nestgp.inference import Status
from tests.oracles._types import Array, Labels
from tests.problems import rbf

pytestmark = pytest.mark.slow


@cache
def usps(path: Path) -> tuple[Array, Labels, Array, Labels]:
    """Digits 3, 5 and 7 of USPS, raw grey levels in [−1, 1]: 1157 training rows, 1175 test rows."""
    with np.load(path) as data:
        parts = []
        for part in ("train", "test"):
            y = data[f"y_{part}"]
            keep = np.isin(y, [3, 5, 7])
            parts += [data[f"X_{part}"][keep].astype(float), y[keep]]
    return parts[0], parts[1], parts[2], parts[3]


# The log densities are sums over the test rows. Dense cn × cn matrices and bivariate normal integrals at the
# same sites give −73.018 and −77.610 at (8, 2.5) and (8, 3), inner EP −73.010 and −77.594.
@pytest.mark.parametrize(
    ("log_s2", "log_l", "log_z", "log_density"),
    [
        (4.0, 2.0, -158.568, -79.543),
        (8.0, 2.5, -148.033, -73.010),
        (6.0, 2.5, -148.747, -73.602),
        (8.0, 3.0, -153.49, -77.594),
    ],
)
def test_usps_3_5_7(
    datasets_dir: Path, log_s2: float, log_l: float, log_z: float, log_density: float
) -> None:
    X, y, X_test, y_test = usps(datasets_dir / "usps_resampled.npz")
    assert (len(y), len(y_test)) == (1157, 1175)
    clf = GPClassifier(rbf(log_s2, log_l), optimizer=None).fit(X, y)
    assert clf.status_ is Status.CONVERGED
    assert clf.log_marginal_likelihood_value_ == pytest.approx(log_z, abs=0.01)
    log_p = clf.predict_log_proba(X_test)
    observed = np.searchsorted(clf.classes_, y_test)
    assert log_p[np.arange(len(y_test)), observed].sum() == pytest.approx(log_density, abs=0.01)
    if (log_s2, log_l) == (4.0, 2.0):
        accuracy = float((clf.classes_[log_p.argmax(axis=1)] == y_test).mean())
        assert accuracy == pytest.approx(0.98383, abs=1e-5)


@pytest.mark.filterwarnings("ignore:The least populated class in y has only 9 members:UserWarning")  # glass
@pytest.mark.parametrize(
    ("name", "expected"), [("new_thyroid", -0.058), ("teaching", -0.810), ("glass", -0.777), ("wine", -0.073)]
)
def test_ten_fold_mean_log_predictive_density(datasets_dir: Path, name: str, expected: float) -> None:
    table = pd.read_csv(datasets_dir / f"{name}.csv.gz")
    X, y = table.drop(columns="target").to_numpy(float), table["target"].to_numpy()
    density = np.empty(len(y))
    for train, test in StratifiedKFold(10, shuffle=True, random_state=0).split(X, y):
        scaler = StandardScaler().fit(X[train])
        clf = GPClassifier().fit(scaler.transform(X[train]), y[train])
        log_p = clf.predict_log_proba(scaler.transform(X[test]))
        density[test] = log_p[np.arange(len(test)), np.searchsorted(clf.classes_, y[test])]
    assert density.mean() >= expected - 0.01
