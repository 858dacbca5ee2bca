"""Bad input gets an error that names problem, value and remedy; difficult input gets a correct answer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Hyperparameter,
    Kernel,
    Matern,
    StationaryKernelMixin,
    WhiteKernel,
)

from nestgp import GPClassifier
from nestgp.hyper import HalfStudentT
from nestgp.inference import NestedEP, Status
from nestgp.sampling import Gibbs
from tests.oracles._types import Array, Labels
from tests.problems import problem, rbf

RNG = np.random.default_rng(0)
X = RNG.standard_normal((24, 2))
Y = np.arange(24) % 3
X[:, 0] += Y


def fit(kernel: Any = None, X: Any = X, y: Any = Y, **options: Any) -> GPClassifier:
    return GPClassifier(rbf(1.0, 0.0) if kernel is None else kernel, **{"optimizer": None, **options}).fit(
        X, y
    )


# --- data that cannot be used ---


@pytest.mark.parametrize(("value", "message"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_values_that_are_not_finite(value: float, message: str) -> None:
    broken = X.copy()
    broken[3, 1] = value
    with pytest.raises(ValueError, match=f"Input X contains {message}"):
        fit(X=broken)
    with pytest.raises(ValueError, match=f"Input X contains {message}"):
        fit().predict_proba(broken)


def test_labels_that_are_missing() -> None:
    y = Y.astype(float)
    y[2] = np.nan
    with pytest.raises(ValueError, match="Input y contains NaN"):
        fit(y=y)


def test_one_class_only() -> None:
    with pytest.raises(ValueError, match=r"one class only, .*7.*at least two classes"):
        fit(y=np.full(24, 7))


def test_lengths_that_differ() -> None:
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[24, 20\]"):
        fit(y=Y[:20])


def test_no_rows_and_no_columns() -> None:
    with pytest.raises(ValueError, match="0 sample"):
        fit(X=np.empty((0, 2)), y=np.empty(0))
    with pytest.raises(ValueError, match="0 feature"):
        fit(X=np.empty((24, 0)))
    with pytest.raises(ValueError, match="Reshape your data"):
        fit(X=X[:, 0])


def test_another_number_of_columns_at_prediction() -> None:
    clf = fit()
    for method in (clf.predict, clf.predict_proba, clf.predict_log_proba, clf.predict_latent):
        with pytest.raises(ValueError, match="X has 3 features, but GPClassifier is expecting 2 features"):
            method(np.ones((4, 3)))


def test_regression_targets() -> None:
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        fit(y=X[:, 0])


def test_several_columns_of_labels() -> None:
    with pytest.raises(ValueError, match="1d array"):
        fit(y=np.column_stack([Y, Y]))


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csr_array])
def test_sparse_input(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"Sparse data was passed.*dense data is required"):
        fit(X=kind(X))


def test_words_in_place_of_numbers() -> None:
    with pytest.raises(ValueError, match="could not convert string to float"):
        fit(X=np.full((24, 2), "a"))


def test_a_kernel_too_large_for_double_precision_predicts_nothing() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 40)
    X = 1e6 * (rng.standard_normal((40, 2)) + y[:, None])
    clf = GPClassifier(DotProduct(), optimizer=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clf.fit(X, y)
        with pytest.raises(ArithmeticError, match="too large for double precision: scale the columns of X"):
            clf.predict_proba(X)


@pytest.mark.parametrize("scale", [1e160, 1e-200])
def test_a_column_that_cannot_be_squared_is_named(scale: float) -> None:
    X = np.random.default_rng(0).standard_normal((12, 2)) * [1.0, scale]
    with pytest.raises(ValueError, match=r"column 1 of X runs from .* change its unit"):
        GPClassifier().fit(X, np.arange(12) % 3)


@pytest.mark.parametrize("values", [{"df": 0}, {"df": -1.0}, {"scale": 0.0}, {"scale": np.nan}, {"scale": None}])
def test_a_prior_with_impossible_values(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"HalfStudentT\({next(iter(values))}=.*use a positive number"):
        HalfStudentT(**values)


def test_a_kernel_matrix_that_is_not_symmetric() -> None:
    K = 3.0 * np.eye(3) + 0.5
    K[0, 1] = 1.0
    for given in (K, np.stack([3.0 * np.eye(3), K, 3.0 * np.eye(3)])):
        with pytest.raises(ValueError, match="K is not symmetric"):
            NestedEP().infer(given, np.array([0, 1, 2]), 3)


def test_a_sampler_and_a_kernel_that_is_no_covariance() -> None:
    X = np.random.default_rng(0).standard_normal((20, 2))
    clf = GPClassifier(ExpSineSquared(), inference=Gibbs(10, 5, 1), optimizer=None)
    with pytest.raises(ValueError, match=r"no chain could start\. The kernel matrix has a clearly negative eigenvalue"):
        clf.fit(X, np.arange(20) % 3)


def test_checkpoints_go_into_a_new_folder_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).standard_normal((9, 2)), np.arange(9) % 3
    clf = GPClassifier(RBF(), inference=Gibbs(5, 2, 1, checkpoint=str(tmp_path / "new" / "run")), optimizer=None, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clf.fit(X, y)
    (saved,) = (tmp_path / "new").glob("*.pkl")
    saved.write_bytes(saved.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"checkpoint .*run.chain0.pkl cannot be read .*: delete it"):
        clf.fit(X, y)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "predict_log_proba", "predict_latent"])
def test_prediction_before_fit(method: str) -> None:
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(GPClassifier(), method)(X)


def test_evidence_before_fit() -> None:
    with pytest.raises(NotFittedError, match="not fitted yet"):
        GPClassifier().log_marginal_likelihood()


# --- parameters ---


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"inference": "nuts"}, ValueError, r"inference='nuts': use one of \['ep'.*NestedEP"),
        ({"inference": 3}, TypeError, "inference=3 has no method infer"),
        (
            {"probabilities": "softmax"},
            ValueError,
            r"probabilities='softmax': .*use .*'auto'.*'ep', 'exact'",
        ),
        ({"optimizer": "adam"}, ValueError, r"optimizer='adam': use 'l-bfgs-b', .*or None"),
        ({"prior": "gamma"}, ValueError, "prior='gamma': use 'half-student-t', None"),
        ({"prior": 2.0}, TypeError, r"prior=2\.0 has no method evaluate"),
        ({"n_restarts": -1}, ValueError, "n_restarts=-1: use an integer >= 0"),
        ({"n_restarts": 1.5}, ValueError, r"n_restarts=1\.5"),
        ({"inference": NestedEP(damping=3.0)}, ValueError, r"damping=3\.0 is neither"),
        ({"inference": NestedEP(max_iter=-1)}, ValueError, "max_iter=-1: use an integer >= 1"),
        ({"inference": NestedEP(tol=-1.0)}, ValueError, r"tol=-1\.0"),
    ],
)
def test_parameters_are_named_with_their_value_and_the_choice(options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        fit(**options)
    GPClassifier(**options)  # nothing is checked before fit: scikit-learn's rule


@pytest.mark.parametrize(
    ("kernel", "error", "message"),
    [
        ([rbf(0.0, 0.0)] * 2, ValueError, "2 kernels for 3 classes: .* exactly 3"),
        ([rbf(0.0, 0.0)] * 4, ValueError, "4 kernels for 3 classes"),
        ("rbf", TypeError, "kernel is 'rbf', a str: give a kernel of sklearn"),
        (RBF, TypeError, r"the class RBF: give an instance, RBF\(\)"),
        ([rbf(0.0, 0.0), 3, rbf(0.0, 0.0)], TypeError, "kernel of class 1 is 3"),
        (
            ConstantKernel(-1.0) * RBF(1.0),
            ValueError,
            r"k1__constant_value = -1\.0: a log scale needs positive",
        ),
        (ConstantKernel(1.0) * RBF(0.0), ValueError, r"k2__length_scale = 0\.0"),
        (ConstantKernel(1.0) * RBF(np.nan), ValueError, "k2__length_scale = nan"),
        (
            ConstantKernel(1.0) * RBF([1.0, 2.0, 3.0]),
            ValueError,
            "3 lengthscales for 2 columns of X: give one per column",
        ),
        (Matern(1.0, nu=-0.5), ValueError, r"nu = -0\.5"),
        (RBF(1.0, (2.0, 1.0)), ValueError, "length_scale_bounds"),
    ],
)
@pytest.mark.parametrize("optimizer", [None, "l-bfgs-b"])
def test_kernels_are_named_with_their_value_and_the_remedy(
    kernel: Any, error: Any, message: str, optimizer: Any
) -> None:
    with pytest.raises(error, match=message):
        fit(kernel, optimizer=optimizer)


class Negative(StationaryKernelMixin, Kernel):
    """A "kernel" of a user that is no covariance: k(x, x') = |x − x'|, times a free scale."""

    def __init__(self, scale: float = 1.0, diagonal: float = 0.0, tilt: float = 0.0) -> None:
        self.scale, self.diagonal, self.tilt = scale, diagonal, tilt

    @property
    def hyperparameter_scale(self) -> Hyperparameter:
        return Hyperparameter("scale", "numeric", (1e-3, 1e3))

    def __call__(self, X: Array, Y: Array | None = None, eval_gradient: bool = False) -> Any:
        X = np.atleast_2d(X)
        other = X if Y is None else np.atleast_2d(Y)
        K = self.scale * np.linalg.norm(X[:, None] - other[None], axis=2)
        if Y is None:
            K = K + self.diagonal * np.eye(len(X)) + self.tilt * np.triu(np.ones_like(K))
        return (K, K[:, :, None]) if eval_gradient else K

    def diag(self, X: Array) -> Array:
        return np.full(len(X), self.diagonal)


def test_a_users_kernel_that_is_not_positive_definite() -> None:
    with pytest.raises(ValueError, match=r"not_positive_definite.*negative eigenvalue.*WhiteKernel"):
        fit(Negative())
    with pytest.raises(ArithmeticError, match=r"none of \d+ evaluations .*is it positive definite"):
        fit(Negative(), optimizer="l-bfgs-b")


def test_a_users_kernel_that_is_not_symmetric() -> None:
    with pytest.raises(ValueError, match=r"K is not symmetric: .*correct the kernel"):
        fit(Negative(tilt=0.5))


def test_a_users_kernel_with_negative_variance() -> None:
    with pytest.raises(ValueError, match="negative variance -1 at row 0: correct the kernel"):
        fit(Negative(diagonal=-1.0))


def test_too_few_iterations_warn_with_status_and_advice() -> None:
    clf = GPClassifier(rbf(1.0, 0.0), inference=NestedEP(max_iter=2), optimizer=None)
    with pytest.warns(
        ConvergenceWarning, match=r"max_iterations after 2 iterations, residual .*raise max_iter"
    ):
        clf.fit(X, Y)
    assert clf.status_ is Status.MAX_ITERATIONS
    assert np.isfinite(clf.log_marginal_likelihood_value_)
    assert_allclose(clf.predict_proba(X).sum(axis=1), 1.0)
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        clf.log_marginal_likelihood(clf.kernel_.theta)


def test_theta_of_another_length() -> None:
    with pytest.raises(ValueError, match=r"theta has shape \(3,\), but the kernel has 2 free"):
        fit().log_marginal_likelihood(np.zeros(3))


# --- difficult, but legal ---


def check_answer(clf: GPClassifier, X: Array) -> Array:
    assert clf.status_ is Status.CONVERGED
    p = clf.predict_proba(X)
    assert np.isfinite(p).all()
    assert_allclose(p.sum(axis=1), 1.0, atol=1e-14)
    return p


def test_a_class_with_one_row() -> None:
    y = np.where(X[:, 0] > 0.5, 1, 0)
    y[5] = 2
    searched = GPClassifier().fit(X, y)
    check_answer(searched, X)
    assert np.isfinite(searched.loo_log_proba_).all()
    p = check_answer(fit(rbf(2.0, -1.0), y=y), X)
    assert p[5, 2] == p[:, 2].max() > 2 * p[:, 2].mean()


def test_constant_columns_change_nothing() -> None:
    wide = np.column_stack([X, np.full(24, 3.0), np.zeros(24)])
    plain, other = GPClassifier(prior=None).fit(X, Y), GPClassifier(prior=None).fit(wide, Y)
    check_answer(other, wide)
    assert other.log_marginal_likelihood_value_ == pytest.approx(
        plain.log_marginal_likelihood_value_, abs=1e-3
    )
    assert_allclose(other.predict_proba(wide), plain.predict_proba(X), rtol=0, atol=0.01)


def test_only_constant_columns_give_the_class_frequencies() -> None:
    y = np.array([0] * 12 + [1] * 6 + [2] * 6)
    p = check_answer(fit(rbf(3.0, 0.0), np.ones((24, 2)), y), np.ones((1, 2)))
    assert_allclose(p[0], [0.5, 0.25, 0.25], atol=0.04)  # 24 rows against a wide prior
    assert p[0, 1] == pytest.approx(p[0, 2], abs=1e-6)
    searched = check_answer(GPClassifier().fit(np.ones((24, 2)), y), np.ones((1, 2)))
    assert 1 / 3 < searched[0, 0] <= p[0, 0] + 1e-6  # the search may take a narrow prior, nearer to uniform


def test_duplicates_count_as_evidence() -> None:
    p = problem("duplicates")
    clf = GPClassifier(p.kernel, optimizer=None).fit(p.X, p.y)
    check_answer(clf, p.X)
    one, three = (fit(X=X[:12].repeat(k, axis=0), y=Y[:12].repeat(k)) for k in (1, 3))
    own = np.arange(12), Y[:12]
    assert (three.predict_proba(X[:12])[own] > one.predict_proba(X[:12])[own]).mean() > 0.8


def test_more_columns_than_rows() -> None:
    rng = np.random.default_rng(1)
    wide = rng.standard_normal((12, 40))
    y = np.arange(12) % 3
    wide[:, 0] += 10 * y
    clf = GPClassifier().fit(wide, y)
    check_answer(clf, wide)
    assert clf.score(wide, y) == 1.0
    narrow = GPClassifier().fit(wide[:, :20], y)
    check_answer(narrow, wide[:, :20])


def test_two_rows() -> None:
    clf = GPClassifier().fit(np.array([[0.0], [1.0]]), np.array(["a", "b"]))
    p = check_answer(clf, np.array([[0.0], [0.5], [1.0]]))
    assert_allclose(p[1], 0.5, atol=1e-9)
    assert_allclose(p[0], p[2][::-1], atol=1e-9)


def test_columns_of_very_different_size() -> None:
    wild = X * np.array([1e-150, 1e150])
    p = check_answer(GPClassifier().fit(wild, Y), wild)
    assert_allclose(p, GPClassifier().fit(X, Y).predict_proba(X), rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, object])
def test_other_types_of_numbers(dtype: Any) -> None:
    rounded = np.round(4 * X)
    expected = fit(X=rounded).predict_proba(rounded)
    assert_allclose(
        fit(X=rounded.astype(dtype)).predict_proba(rounded.astype(dtype)), expected, rtol=0, atol=1e-12
    )


def test_white_noise_in_the_kernel() -> None:
    clf = fit(rbf(1.0, 0.0) + WhiteKernel(0.3))
    check_answer(clf, X)
    _, cov = clf.predict_latent(X)
    assert np.linalg.eigvalsh(cov).min() > 0


def test_lists_and_views() -> None:
    expected = fit().predict_proba(X)
    assert_allclose(fit(X=X.tolist(), y=Y.tolist()).predict_proba(X.tolist()), expected, rtol=0, atol=1e-14)
    view: Labels = np.repeat(Y, 2)[::2]
    assert_allclose(fit(X=np.asfortranarray(X), y=view).predict_proba(X), expected, rtol=0, atol=1e-14)
