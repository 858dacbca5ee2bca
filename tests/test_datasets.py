"""The paper's data sets: counts, known traps, splits, and what happens where a source is damaged or missing."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.model_selection import StratifiedKFold

from nestgp import datasets as ds

Loader = Callable[[str], ds.Dataset]

# Table 2 of the paper, and class counts of the original files: training (or all) rows, then test rows.
TABLE_2 = {
    "new_thyroid": (215, 215, 3, 5, True, [150, 35, 30], None),
    "teaching": (151, 151, 3, 5, True, [49, 50, 52], None),
    "glass": (214, 214, 6, 9, True, [70, 76, 17, 13, 9, 29], None),
    "wine": (178, 178, 3, 13, True, [59, 71, 48], None),
    "image_segmentation": (210, 2100, 7, 18, False, [30] * 7, [300] * 7),
    "usps_357": (1157, 1175, 3, 256, False, [406, 361, 390], [418, 355, 402]),
    "usps": (
        4649,
        4649,
        10,
        256,
        False,
        [767, 622, 475, 406, 409, 361, 420, 390, 377, 422],
        [786, 647, 454, 418, 443, 355, 414, 402, 331, 399],
    ),
}
TEN_FOLD = [name for name, row in TABLE_2.items() if row[-1] is None]

CHOSEN_DIR = os.environ.get("NESTGP_DATA")


@pytest.fixture
def data_dir(request: pytest.FixtureRequest) -> Path:
    """NESTGP_DATA or, if that is unset, where the other tests find the data sets; skips where neither exists."""
    if CHOSEN_DIR is None:
        return request.getfixturevalue("datasets_dir")
    if not Path(CHOSEN_DIR).is_dir():
        pytest.skip(f"no data sets: NESTGP_DATA is {CHOSEN_DIR}, which is not a directory")
    return Path(CHOSEN_DIR)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No directory, an empty cache and no network, whatever the machine has."""

    def fetch(**_: Any) -> Any:
        raise URLError("no network in this test")

    monkeypatch.delenv("NESTGP_DATA", raising=False)
    monkeypatch.setenv("NESTGP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)


@pytest.fixture
def load(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    monkeypatch.setenv("NESTGP_DATA", str(data_dir))
    return ds.load


def small(X: Any, y: Any, X_test: Any = None, y_test: Any = None) -> ds.Dataset:
    """A data set made by hand."""
    return ds.Dataset(
        name="small",
        X_train=np.asarray(X, dtype=float),
        y_train=np.asarray(y),
        X_test=None if X_test is None else np.asarray(X_test, dtype=float),
        y_test=None if y_test is None else np.asarray(y_test),
        feature_names=tuple(f"x{j}" for j in range(np.shape(X)[1])),
        class_names=("a", "b"),
        ard=True,
        standardised=True,
        source="here",
    )


# ------------------------------------------------------------------------------------------------- the real data


@pytest.mark.parametrize("name", TABLE_2)
def test_table_2(load: Loader, name: str) -> None:
    n_train, n_test, n_classes, d, ard, counts, test_counts = TABLE_2[name]
    data = load(name)
    assert (data.name, data.ard, data.n_classes, data.n_test) == (name, ard, n_classes, n_test)
    assert data.X_train.shape == (n_train, d)
    assert len(data.feature_names) == d
    assert np.bincount(data.y_train).tolist() == counts
    assert data.protocol == ("ten-fold" if test_counts is None else "train-test")
    if test_counts is None:
        assert data.X_test is None
        assert data.y_test is None
    else:
        assert data.X_test is not None
        assert data.X_test.shape == (n_test, d)
        assert np.bincount(data.targets).tolist() == test_counts
    assert data.caveats == ()


def test_mnist(load: Loader) -> None:
    data = load("mnist")
    assert data.X_test is not None
    assert (data.X_train.shape, data.X_test.shape) == ((60_000, 784), (10_000, 784))
    assert np.bincount(data.y_train).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.targets).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert (data.X_train.dtype, data.X_train.min(), data.X_train.max()) == (np.float32, 0.0, 1.0)
    assert int(np.sum(np.ptp(data.X_train, axis=0) == 0)) == 67


def test_names_are_the_papers_problems_and_mnist() -> None:
    assert ds.names() == (*TABLE_2, "mnist")


def test_columns_are_those_of_the_file(load: Loader, data_dir: Path) -> None:
    for name in (*TEN_FOLD, "image_segmentation"):
        with gzip.open(data_dir / f"{name}.csv.gz", "rt") as lines:
            assert (*load(name).feature_names, "target") == tuple(next(lines).strip().split(",")), name


def test_wine_is_the_same_from_both_sources(load: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    file = load("wine")
    monkeypatch.delenv("NESTGP_DATA")
    package = load("wine")
    assert file.source.endswith("wine.csv.gz")
    assert package.source == "scikit-learn, load_wine"
    np.testing.assert_array_equal(file.X_train, package.X_train)
    np.testing.assert_array_equal(file.y_train, package.y_train)


def test_usps_357_holds_those_digits_in_order(load: Loader) -> None:
    some, every = load("usps_357"), load("usps")
    assert some.class_names == ("3", "5", "7")
    keep = np.isin(every.y_train, [3, 5, 7])
    np.testing.assert_array_equal(some.X_train, every.X_train[keep])
    np.testing.assert_array_equal(np.array([3, 5, 7])[some.y_train], every.y_train[keep])


@pytest.mark.parametrize(
    ("name", "repeated"), [("image_segmentation", 212), ("teaching", 41), ("glass", 1), ("wine", 0), ("usps", 0)]
)
def test_repeated_rows(load: Loader, name: str, repeated: int) -> None:
    data = load(name)
    assert data.repeated.shape == (data.n_test,)
    assert data.repeated.sum() == repeated


def test_segmentation_repeats_every_training_row_in_its_test_set(load: Loader) -> None:
    data = load("image_segmentation")
    (split,) = data.folds()
    np.testing.assert_array_equal(split.clean, ~data.repeated)
    held = {row.tobytes() for row in split.X_test[~split.clean]}
    assert {row.tobytes() for row in split.X_train} == held


@pytest.mark.parametrize("name", TEN_FOLD)
def test_folds_are_stratified_and_hold_every_row_once(load: Loader, name: str) -> None:
    data = load(name)
    splits = list(data.folds())
    assert len(splits) == 10
    np.testing.assert_array_equal(np.sort(np.concatenate([s.test for s in splits])), np.arange(data.n_test))
    for split in splits:
        np.testing.assert_array_equal(np.union1d(split.train, split.test), np.arange(data.n_test))
        np.testing.assert_array_equal(split.y_test, data.targets[split.test])
        np.testing.assert_array_equal(split.y_train, data.y_train[split.train])
    per_fold = np.array([np.bincount(s.y_test, minlength=data.n_classes) for s in splits])
    assert np.all(np.ptp(per_fold, axis=0) <= 1)


def test_given_split_is_the_one_fold(load: Loader) -> None:
    data = load("usps_357")
    (split,) = data.folds()
    np.testing.assert_array_equal(split.X_train, data.X_train)  # grey levels as they are
    np.testing.assert_array_equal(split.X_test, data.X_test)
    np.testing.assert_array_equal(split.y_test, data.targets)
    np.testing.assert_array_equal(split.test, np.arange(1175))
    assert split.clean.all()


# ------------------------------------------------------------------------------------------------------ splits


def test_folds_are_seeded_and_as_documented() -> None:
    wine = ds.load("wine")
    X, y = load_wine(return_X_y=True)
    expected = list(StratifiedKFold(10, shuffle=True, random_state=0).split(X, y))
    for _ in range(2):
        for split, (train, test) in zip(wine.folds(), expected, strict=True):
            np.testing.assert_array_equal(split.train, train)
            np.testing.assert_array_equal(split.test, test)


def test_standardised_with_training_statistics() -> None:
    wine = ds.load("wine")
    for split in wine.folds():
        rows = wine.X_train[split.train]
        np.testing.assert_allclose(split.X_train.mean(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(split.X_train.std(axis=0), 1, rtol=1e-12)
        expected = (wine.X_train[split.test] - rows.mean(axis=0)) / rows.std(axis=0)
        np.testing.assert_allclose(split.X_test, expected, rtol=1e-10, atol=1e-12)


def test_constant_columns_stay_finite() -> None:
    data = small([[1.0, 5.0], [3.0, 5.0]], [0, 1], [[2.0, 5.0], [2.0, 7.0]], [0, 1])
    (split,) = data.folds()
    np.testing.assert_array_equal(split.X_train, [[-1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_array_equal(split.X_test, [[0.0, 0.0], [0.0, 2.0]])


def test_clean_looks_at_inputs_and_repeated_at_labels_too() -> None:
    data = small([[0.0], [1.0]], [0, 1], [[-0.0], [1.0], [2.0]], [0, 0, 1])  # −0 equals 0; then another label; then new
    (split,) = data.folds()
    assert split.clean.tolist() == [False, False, True]
    assert data.repeated.tolist() == [True, False, False]


def test_repeated_rows_of_a_ten_fold_set_are_the_later_ones() -> None:
    data = small([[1.0], [2.0], [1.0], [1.0], [2.0]], [0, 1, 0, 1, 1])
    assert data.repeated.tolist() == [False, False, True, False, True]


# ----------------------------------------------------------------------------------------------------- sources


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"no data set 'iris'.*new_thyroid, teaching, glass"):
        ds.load("iris")


def test_no_source_says_what_was_tried_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ds.DatasetUnavailableError) as unset:
        ds.load("usps")
    for words in ("NESTGP_DATA is not set", "cache has no usps_resampled.npz", "packages: no", "OpenML: not there", "GPML"):
        assert words in str(unset.value)
    monkeypatch.setenv("NESTGP_DATA", str(tmp_path))
    with pytest.raises(ds.DatasetUnavailableError, match=re.escape(f"{tmp_path} (NESTGP_DATA) has no glass.csv.gz")) as empty:
        ds.load("glass")
    assert "OpenML, data set 41: URLError: <urlopen error no network in this test>" in str(empty.value)
    monkeypatch.setenv("NESTGP_DATA", str(tmp_path / "missing"))
    with pytest.raises(ds.DatasetUnavailableError, match="which is not a directory"):
        ds.load("new_thyroid")


@pytest.mark.parametrize("place", ["NESTGP_DATA", "NESTGP_CACHE"])
def test_damaged_file(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wine.csv.gz").write_bytes(b"abc")
    monkeypatch.setenv(place, str(tmp_path))
    with pytest.raises(ds.ChecksumError) as error:
        ds.load("wine")  # scikit-learn has it, but a damaged file must not go unnoticed
    message = str(error.value)
    assert str(tmp_path / "wine.csv.gz") in message
    assert "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" in message  # of "abc", FIPS 180-2
    assert "570ee220aaf82f48a7380db225432dd6b02dfdf7df8dd928cdd0e66260105136" in message
    assert "replace it" in message


def test_cache_comes_after_the_directory(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "glass.csv.gz").write_bytes((data_dir / "glass.csv.gz").read_bytes())
    assert ds.load("glass").source == str(cache / "glass.csv.gz")
    monkeypatch.setenv("NESTGP_DATA", str(data_dir))
    assert ds.load("glass").source == str(data_dir / "glass.csv.gz")


def test_cache_directory_of_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert ds.cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("NESTGP_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert ds.cache_dir() == tmp_path / "xdg" / "nestgp"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert ds.cache_dir() == Path.home() / ".cache" / "nestgp"
    monkeypatch.setattr("sys.platform", "darwin")
    assert ds.cache_dir() == Path.home() / "Library" / "Caches" / "nestgp"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert ds.cache_dir() == tmp_path / "local" / "nestgp" / "Cache"


# ------------------------------------------------------------------------------------------------------- OpenML


def serve(monkeypatch: pytest.MonkeyPatch, X: Any, labels: Any) -> list[dict[str, Any]]:
    """A fetcher that answers with X and labels; returns the list of requests it will have got."""
    requests: list[dict[str, Any]] = []

    def fetch(**request: Any) -> Any:
        requests.append(request)
        return SimpleNamespace(data=X, target=labels)

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    return requests


def openml_glass(data: ds.Dataset) -> tuple[Any, Any]:
    theirs = ("build wind float", "build wind non-float", "vehic wind float", "containers", "tableware", "headlamps")
    return data.X_train, np.array(theirs)[data.y_train]


def openml_teaching(data: ds.Dataset) -> tuple[Any, Any]:
    """Two of the columns are nominal there: text, as pandas categories."""
    import pandas as pd

    frame = pd.DataFrame(data.X_train.astype(int), columns=list(data.feature_names))
    for column in ("native_english_speaker", "semester"):
        frame[column] = frame[column].astype(str).astype("category")
    return frame, pd.Series((data.y_train + 1).astype(str)).astype("category")


@pytest.mark.parametrize(("name", "data_id", "answer"), [("glass", 41, openml_glass), ("teaching", 48, openml_teaching)])
def test_openml(load: Loader, monkeypatch: pytest.MonkeyPatch, name: str, data_id: int, answer: Any) -> None:
    original = load(name)
    monkeypatch.delenv("NESTGP_DATA")
    requests = serve(monkeypatch, *answer(original))
    fetched = load(name)
    assert [request["data_id"] for request in requests] == [data_id]
    assert requests[0]["data_home"] == ds.cache_dir() / "openml"
    assert fetched.source == f"OpenML, data set {data_id}"
    assert fetched.caveats == ()
    np.testing.assert_array_equal(fetched.X_train, original.X_train)
    np.testing.assert_array_equal(fetched.y_train, original.y_train)


def test_openml_in_another_order_is_a_caveat(load: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    original = load("glass")
    monkeypatch.delenv("NESTGP_DATA")
    X, labels = openml_glass(original)
    serve(monkeypatch, X[::-1], labels[::-1])
    fetched = load("glass")
    np.testing.assert_array_equal(fetched.X_train, original.X_train[::-1])
    assert "rows in the order of OpenML" in fetched.caveats[0]


def test_openml_with_other_values_or_classes_is_refused(load: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    X, labels = openml_glass(load("glass"))
    monkeypatch.delenv("NESTGP_DATA")
    serve(monkeypatch, X + np.eye(*X.shape) * 1e-9, labels)
    with pytest.raises(ds.DatasetUnavailableError, match="214 rows came, but their values are not those"):
        load("glass")
    serve(monkeypatch, X, np.where(labels == "tableware", "table ware", labels))
    with pytest.raises(ds.DatasetUnavailableError, match=re.escape("the classes ['table ware'] are not")):
        load("glass")


def test_openml_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(**_: Any) -> Any:
        raise ImportError("fetch_openml requires pandas")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    with pytest.raises(ds.DatasetUnavailableError, match="needs pandas, which is not installed"):
        ds.load("glass")


def test_openml_mnist_is_split_by_position_and_refused_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.arange(12.0).reshape(6, 2)
    labels = np.array(list("012012"))
    keys = ds._row_keys(X, np.array([0, 1, 2, 0, 1, 2]))
    real = ds._PROBLEMS["mnist"]
    assert real.openml is not None
    stand_in = replace(real, n_train=4, openml=real.openml._replace(in_order=ds._values_sum(keys)))
    monkeypatch.setitem(ds._PROBLEMS, "mnist", stand_in)
    requests = serve(monkeypatch, X, labels)
    data = ds.load("mnist")
    assert requests[0]["data_id"] == 554
    assert data.X_test is not None
    np.testing.assert_array_equal(data.X_train, X[:4].astype(np.float32) / 255)
    np.testing.assert_array_equal(data.X_test, X[4:].astype(np.float32) / 255)
    assert data.targets.tolist() == [1, 2]
    serve(monkeypatch, X[::-1], labels[::-1])
    with pytest.raises(ds.DatasetUnavailableError, match="values are not those of the original"):
        ds.load("mnist")


def test_known_sum_of_mnist_values(data_dir: Path) -> None:
    with np.load(data_dir / "mnist.npz") as arrays:
        X = np.concatenate([arrays["X_train"], arrays["X_test"]])
        y = np.concatenate([arrays["y_train"], arrays["y_test"]])
    known = ds._PROBLEMS["mnist"].openml
    assert known is not None
    assert ds._values_sum(ds._row_keys(X, y)) == known.in_order
