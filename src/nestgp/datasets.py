"""The paper's seven problems (Table 2) and MNIST, with their splits.

    for split in load("glass").folds():
        clf.fit(split.X_train, split.y_train).predict_proba(split.X_test)

`load` takes the first source that has the data: the directory NESTGP_DATA, the cache directory (NESTGP_CACHE, or
`nestgp` in the user's cache), scikit-learn (wine), OpenML (glass, teaching, MNIST). What comes from a file or from OpenML is
checked against a known sum: of the bytes, or of the values where the bytes cannot be known.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets as sklearn_datasets
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

AnyFloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Protocol = Literal["ten-fold", "train-test"]

_FOLDS = 10
_SEED = 0


class DatasetUnavailableError(FileNotFoundError):
    """No source has the data."""


class ChecksumError(ValueError):
    """The data are not the known ones."""


@dataclass(frozen=True, eq=False)
class Split:
    """One training set and one test set, ready for a classifier.

    `train` and `test` are the rows that they were taken from, so that the results of all folds go into one array:
    `lpd[split.test] = …` with `lpd` of length `dataset.n_test`. `clean` (n_test,) marks the test rows whose input is
    not among the training inputs, whatever its label: a choice that looked at test labels would bias the score.
    """

    X_train: AnyFloatArray
    y_train: IntArray
    X_test: AnyFloatArray
    y_test: IntArray
    train: IntArray
    test: IntArray
    clean: BoolArray


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification problem as its source has it: X (n, d) not standardised, y (n,) integer codes 0..c−1.

    >>> wine = load("wine")
    >>> wine.X_train.shape, wine.class_names, wine.ard, wine.protocol
    ((178, 13), ('cultivar 1', 'cultivar 2', 'cultivar 3'), True, 'ten-fold')
    >>> [len(split.test) for split in wine.folds()]
    [18, 18, 18, 18, 18, 18, 18, 18, 17, 17]
    """

    name: str
    X_train: AnyFloatArray
    y_train: IntArray
    X_test: AnyFloatArray | None  # None: the paper uses ten-fold cross-validation
    y_test: IntArray | None
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...]
    ard: bool  # one lengthscale per covariate
    standardised: bool  # `folds` standardises, with training statistics
    source: str  # where the data were found
    caveats: tuple[str, ...] = ()  # what a reader of results must know

    @property
    def protocol(self) -> Protocol:
        """How the paper measures predictive performance on this problem."""
        return "ten-fold" if self.X_test is None else "train-test"

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def targets(self) -> IntArray:
        """Labels in the order of `Split.test`: of all rows (ten-fold), or of the test rows."""
        return self.y_train if self.y_test is None else self.y_test

    @property
    def n_test(self) -> int:
        """Rows that `folds` predicts in all."""
        return len(self.targets)

    @cached_property
    def repeated(self) -> BoolArray:
        """Rows (input and label) seen before, (n_test,): in an earlier row (ten-fold), or in the training set."""
        if self.X_test is None or self.y_test is None:
            keys = _row_keys(self.X_train, self.y_train)
            first: dict[bytes, int] = {}
            return np.array([first.setdefault(key, i) != i for i, key in enumerate(keys)])
        return ~_absent(_row_keys(self.X_test, self.y_test), _row_keys(self.X_train, self.y_train))

    def folds(self) -> Iterator[Split]:
        """Ten stratified folds with a fixed seed, or the one given split.

        The paper does not publish its folds: these are StratifiedKFold(10, shuffle=True, random_state=0). It says
        that all covariates were standardised; grey levels of images stay as they are here, as in the GPML book.
        """
        if self.X_test is None:
            X_held, pairs = self.X_train, _stratified(self.y_train)
        else:
            X_held, pairs = self.X_test, [(np.arange(len(self.y_train)), np.arange(self.n_test))]
        for train, test in pairs:
            X, X_test = self.X_train[train], X_held[test]
            clean = _absent(_row_keys(X_test), _row_keys(X))
            if self.standardised:
                scaler = StandardScaler().fit(X)  # leaves the scale of constant columns alone
                X, X_test = scaler.transform(X), scaler.transform(X_test)
            yield Split(X, self.y_train[train], X_test, self.targets[test], train, test, clean)


def load(name: str) -> Dataset:
    """The named problem, from the first source that has it; `names()` lists them.

    Raises
    ------
    DatasetUnavailableError : no source has it; the message says why for each of them and what to do.
    ChecksumError : a file was found but is not the known one.
    """
    if name not in _PROBLEMS:
        raise ValueError(f"no data set {name!r}: choose from {', '.join(_PROBLEMS)}")
    problem = _PROBLEMS[name]
    failures = []
    for source in (_from_directory, _from_cache, _from_package, _from_openml):
        found = source(problem)
        if isinstance(found, _Found):
            return _dataset(name, problem, found)
        failures.append(found)
    raise DatasetUnavailableError(
        f"no source has the data set {name!r}:\n"
        + "".join(f"  - {failure}\n" for failure in failures)
        + f"Original: {problem.origin}. Put {problem.file} (sha256 {problem.sha256}) into a directory and set NESTGP_DATA "
        f"to that directory, or put it into {cache_dir()}."
    )


def names() -> tuple[str, ...]:
    """Names that `load` knows, in the order of the paper's Table 2."""
    return tuple(_PROBLEMS)


def cache_dir() -> Path:
    """NESTGP_CACHE, or `nestgp` in the user's cache directory of this platform."""
    if chosen := os.environ.get("NESTGP_CACHE"):
        return Path(chosen)
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "nestgp" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "nestgp"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "nestgp"


# ---------------------------------------------------------------------------------------------- what is known


class _OpenML(NamedTuple):
    data_id: int
    labels: tuple[str, ...]  # their names of the classes, in the order of our codes
    in_order: str  # `_values_sum` of the rows as the original has them
    sorted_rows: str | None  # the same in any order; None: the order matters, since the split is by position


@dataclass(frozen=True)
class _Problem:
    """How to get at one problem. `labels` are the codes in the file; only rows with these are kept."""

    file: str
    sha256: str
    origin: str
    features: tuple[str, ...]
    classes: tuple[str, ...]
    ard: bool = False
    standardised: bool = False
    n_train: int | None = None  # of the file's rows, the first ones; None: cross-validation
    labels: tuple[int, ...] | None = None  # None: 0..c−1
    package: Callable[..., Any] | None = None
    openml: _OpenML | None = None


class _Found(NamedTuple):
    X: NDArray[Any]
    y: IntArray
    source: str
    caveats: tuple[str, ...] = ()


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _pixels(side: int) -> tuple[str, ...]:
    return tuple(f"pixel_{row}_{column}" for row in range(side) for column in range(side))


_DIGITS = tuple("0123456789")
_USPS = _Problem(
    file="usps_resampled.npz",
    sha256="4a0846eab878e4d33ff2c61ff81f3e76cf50793bd25a9c4f631adf0857cd1152",
    origin="usps_resampled.mat of the GPML book (Rasmussen and Williams, 2006), as npz with X_train, y_train, X_test, y_test",
    features=_pixels(16),
    classes=_DIGITS,
    n_train=4649,
)

_PROBLEMS = {
    "new_thyroid": _Problem(
        file="new_thyroid.csv.gz",
        sha256="ee945dfe29e2c3a2d6d9a07aa4b814d1f5d5e19215a4591dbcec4efa258aeb34",
        origin="UCI Thyroid Disease, new-thyroid.data",
        features=("t3_resin_uptake", "total_thyroxin", "total_triiodothyronine", "basal_tsh", "max_tsh_diff"),
        classes=("normal", "hyperthyroid", "hypothyroid"),
        ard=True,
        standardised=True,
    ),
    "teaching": _Problem(
        file="teaching.csv.gz",
        sha256="b137b8afc603247c1b416ca811802cbabb1cdc79594127167f0ba2aea5930a80",
        origin="UCI Teaching Assistant Evaluation, tae.data",
        features=("native_english_speaker", "instructor", "course", "semester", "class_size"),
        classes=("low", "medium", "high"),
        ard=True,
        standardised=True,
        openml=_OpenML(
            48,
            ("1", "2", "3"),
            "eccb41726f657eec341391f18587c78b54276ab159936d43b11cc99eb1399ae9",
            "cc9f791558bcb1a93b60164281cfb2a47e67ca79e040c2dd893ea348c59b4fec",
        ),
    ),
    "glass": _Problem(
        file="glass.csv.gz",
        sha256="f89de7bde572444e8945182d45641a00818751119fe47b93a36b5c740daba6f1",
        origin="UCI Glass Identification, glass.data",
        features=("RI", "Na", "Mg", "Al", "Si", "K", "Ca", "Ba", "Fe"),
        classes=(
            "building windows, float",
            "building windows, non-float",
            "vehicle windows, float",
            "containers",
            "tableware",
            "headlamps",
        ),
        ard=True,
        standardised=True,
        openml=_OpenML(
            41,
            ("build wind float", "build wind non-float", "vehic wind float", "containers", "tableware", "headlamps"),
            "174471dfc42094ac08277bf6bbe549effa0961fc4cde0ae5276d15bff16ae72f",
            "b42119ed4b6733cf3ad6ab81ab83ee0315fe14b7bd1c5b88b8298a0f60391bbf",
        ),
    ),
    "wine": _Problem(
        file="wine.csv.gz",
        sha256="570ee220aaf82f48a7380db225432dd6b02dfdf7df8dd928cdd0e66260105136",
        origin="UCI Wine, wine.data",
        features=_words(
            "alcohol malic_acid ash alcalinity_of_ash magnesium total_phenols flavanoids "
            "nonflavanoid_phenols proanthocyanins color_intensity hue od280_od315 proline"
        ),
        classes=("cultivar 1", "cultivar 2", "cultivar 3"),
        ard=True,
        standardised=True,
        package=sklearn_datasets.load_wine,
    ),
    "image_segmentation": _Problem(
        file="image_segmentation.csv.gz",
        sha256="54cfe4a9307252546a56b6c7e7c63039e8cfbf519bed780a54f5390739a681b2",
        origin="UCI Image Segmentation, segmentation.data and then segmentation.test, without region-pixel-count",
        features=_words(
            "region_centroid_col region_centroid_row short_line_density_5 short_line_density_2 vedge_mean "
            "vedge_sd hedge_mean hedge_sd intensity_mean rawred_mean rawblue_mean rawgreen_mean exred_mean "
            "exblue_mean exgreen_mean value_mean saturation_mean hue_mean"
        ),
        classes=("brickface", "sky", "foliage", "cement", "window", "path", "grass"),
        standardised=True,
        n_train=210,
    ),
    "usps_357": replace(_USPS, classes=("3", "5", "7"), labels=(3, 5, 7)),
    "usps": _USPS,
    "mnist": _Problem(
        file="mnist.npz",
        sha256="58c05ffd9880e3b6ddfe8c74b89ccc40c0da6f6152f4c5203a7c6a12919c2344",
        origin="MNIST (LeCun, Cortes and Burges), the four idx files, as npz with X_train, y_train, X_test, y_test",
        features=_pixels(28),
        classes=_DIGITS,
        n_train=60_000,
        openml=_OpenML(554, _DIGITS, "832af7ab0d46efd8e6719006c3199c62d9cebc6299004e41c26c64f0a4d5901b", None),
    ),
}


# ---------------------------------------------------------- sources: data, or a sentence that says why there are none


def _from_directory(problem: _Problem) -> _Found | str:
    chosen = os.environ.get("NESTGP_DATA")
    if not chosen:
        return "directory: the environment variable NESTGP_DATA is not set"
    if not Path(chosen).is_dir():
        return f"directory: NESTGP_DATA is {chosen}, which is not a directory"
    return _read(Path(chosen) / problem.file, problem) or f"directory: {chosen} (NESTGP_DATA) has no {problem.file}"


def _from_cache(problem: _Problem) -> _Found | str:
    return _read(cache_dir() / problem.file, problem) or f"cache: {cache_dir()} has no {problem.file}"


def _from_package(problem: _Problem) -> _Found | str:
    if problem.package is None:
        return "packages: no installed package that nestgp knows carries it"
    X, y = problem.package(return_X_y=True)
    return _Found(X, y.astype(np.int64), f"scikit-learn, {problem.package.__name__}")


def _from_openml(problem: _Problem) -> _Found | str:
    """Rows in OpenML's order, whose values are known to be those of the original."""
    if problem.openml is None:
        return "OpenML: not there in a form that could be checked against the original"
    source = f"OpenML, data set {problem.openml.data_id}"
    try:
        # pandas keeps category codes as they are written; without it they come back renumbered.
        bunch = sklearn_datasets.fetch_openml(
            data_id=problem.openml.data_id,
            as_frame=True,
            parser="pandas",
            data_home=cache_dir() / "openml",
            n_retries=1,
        )
        X = np.asarray(bunch.data, dtype=np.float64)
    except ImportError as error:
        return f"{source}: needs pandas, which is not installed: pip install pandas ({error})"
    except (OSError, ValueError, HTTPException) as error:  # no network, or an answer that is not the data
        return f"{source}: {type(error).__name__}: {error}"
    unknown = set(map(str, bunch.target)) - set(problem.openml.labels)
    if unknown:
        return f"{source}: the classes {sorted(unknown)} are not those of the original"
    y = np.array([problem.openml.labels.index(str(label)) for label in bunch.target], dtype=np.int64)
    keys = _row_keys(X, y)
    if _values_sum(keys) == problem.openml.in_order:
        return _Found(_as_in_the_file(X, problem), y, source)
    if problem.openml.sorted_rows is not None and _values_sum(sorted(keys)) == problem.openml.sorted_rows:
        return _Found(X, y, source, (f"rows in the order of {source}, not the original's: the folds hold other rows",))
    return f"{source}: {len(keys)} rows came, but their values are not those of the original"


def _read(path: Path, problem: _Problem) -> _Found | None:
    """Rows of a gzip CSV with `target` last, or of an npz, training rows first; None where there is no file."""
    if not path.is_file():
        return None
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != problem.sha256:
        raise ChecksumError(
            f"{path} is not the known file: its sha256 is {found}, expected {problem.sha256}. It is damaged or another "
            f"version; replace it by the original ({problem.origin}), or remove it so that the next source is tried."
        )
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            X = np.concatenate([arrays["X_train"], arrays["X_test"]])
            y = np.concatenate([arrays["y_train"], arrays["y_test"]])
    else:
        table = np.loadtxt(path, delimiter=",", skiprows=1)
        X, y = table[:, :-1], table[:, -1]
    return _Found(X, y.astype(np.int64), str(path))


# ------------------------------------------------------------------------------------------------------- helpers


def _dataset(name: str, problem: _Problem, found: _Found) -> Dataset:
    labels = np.array(problem.labels if problem.labels is not None else range(len(problem.classes)))
    keep = np.isin(found.y, labels)
    X, y = _grey_levels(found.X[keep]), np.searchsorted(labels, found.y[keep]).astype(np.int64)
    n = len(y) if problem.n_train is None else int(keep[: problem.n_train].sum())
    held_out = problem.n_train is not None
    return Dataset(
        name=name,
        X_train=X[:n],
        y_train=y[:n],
        X_test=X[n:] if held_out else None,
        y_test=y[n:] if held_out else None,
        feature_names=problem.features,
        class_names=problem.classes,
        ard=problem.ard,
        standardised=problem.standardised,
        source=found.source,
        caveats=found.caveats,
    )


def _as_in_the_file(X: AnyFloatArray, problem: _Problem) -> NDArray[Any]:
    """Grey levels as bytes, as the npz file has them; other values as they are."""
    return X.astype(np.uint8) if problem.file.endswith(".npz") else X


def _grey_levels(X: NDArray[Any]) -> AnyFloatArray:
    """Bytes 0..255 become grey levels in [0, 1], single precision since MNIST has 55 million; others, doubles."""
    return X.astype(np.float32) / np.float32(255) if X.dtype == np.uint8 else X.astype(np.float64)


def _stratified(y: IntArray) -> list[tuple[IntArray, IntArray]]:
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=_SEED)
    with warnings.catch_warnings():
        # Glass has 9 rows of tableware: one fold is without, which ten folds cannot avoid.
        warnings.filterwarnings("ignore", message="The least populated class in y", category=UserWarning)
        return list(folds.split(np.zeros((len(y), 1)), y))


def _row_keys(X: AnyFloatArray, y: IntArray | None = None) -> list[bytes]:
    """One sum per row (input, and label if given): equal rows have equal keys. Adding 0 makes −0 a 0."""
    labels = [b""] * len(X) if y is None else [label.tobytes() for label in y.astype("<f8")]
    return [hashlib.sha256((x.astype("<f8") + 0.0).tobytes() + label).digest() for x, label in zip(X, labels, strict=True)]


def _values_sum(keys: list[bytes]) -> str:
    return hashlib.sha256(b"".join(keys)).hexdigest()


def _absent(keys: list[bytes], others: list[bytes]) -> BoolArray:
    """Which keys are not among the others, (n,)."""
    seen = set(others)
    return np.array([key not in seen for key in keys], dtype=bool)
