"""Kernels: gram matrices and contracted gradients against scikit-learn's own, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import (
    RBF,
    CompoundKernel,
    DotProduct,
    Exponentiation,
    ExpSineSquared,
    Hyperparameter,
    Kernel,
    Matern,
    PairwiseKernel,
    RationalQuadratic,
    WhiteKernel,
)
from sklearn.gaussian_process.kernels import ConstantKernel as C

from nestgp import kernel_gradient, kernels
from nestgp.kernel_gradient import contract

D = 4
ARD = np.array([0.7, 1.3, 2.0, 0.9])


class Doubled(RBF):
    """A subclass with a covariance of its own: whatever is known of RBF does not hold for it."""

    def __call__(self, X, Y=None, eval_gradient=False):
        result = super().__call__(X, Y, eval_gradient)
        return (2 * result[0], 2 * result[1]) if eval_gradient else 2 * result

    def diag(self, X):
        return 2 * super().diag(X)


class Linear(Kernel):
    """A kernel from outside scikit-learn, k = slope · ⟨x, z⟩, which hands out the same array every time."""

    def __init__(self, slope=1.0, slope_bounds=(1e-5, 1e5)):
        self.slope = slope
        self.slope_bounds = slope_bounds

    @property
    def hyperparameter_slope(self):
        return Hyperparameter("slope", "numeric", self.slope_bounds)

    def __call__(self, X, Y=None, eval_gradient=False):
        self.last_ = self.slope * (X @ (X if Y is None else Y).T)
        return (self.last_, self.last_[..., np.newaxis].copy()) if eval_gradient else self.last_

    def diag(self, X):
        return self.slope * np.einsum("ij,ij->i", X, X)

    def is_stationary(self):
        return False


TREES = {
    "constant": C(2.5),
    "integer constant": C(2) * RBF(1),
    "rbf": RBF(1.7),
    "rbf of a one-element array": RBF(np.array([1.7])),
    "rbf ard": RBF(ARD),
    "constant rbf ard": C(3.0) * RBF(ARD),
    "rbf constant": RBF(ARD) * C(0.3),
    "matern 1/2": Matern(1.2, nu=0.5),
    "matern 1/2 ard": C(2.0) * Matern(ARD, nu=0.5),
    "matern 3/2": Matern(1.2, nu=1.5),
    "matern 3/2 ard": C(2.0) * Matern(ARD, nu=1.5),
    "matern 5/2": Matern(1.2, nu=2.5),
    "matern 5/2 ard": C(2.0) * Matern(ARD, nu=2.5),
    "matern inf": Matern(1.2, nu=np.inf),
    "matern inf ard": C(2.0) * Matern(ARD, nu=np.inf),
    "rational quadratic": C(1.5) * RationalQuadratic(1.1, 0.6),
    "rational quadratic, alpha fixed": RationalQuadratic(1.1, 0.6, alpha_bounds="fixed"),
    "rational quadratic, lengthscale fixed": RationalQuadratic(1.1, 0.6, length_scale_bounds="fixed"),
    "dot product": DotProduct(0.8),
    "white": WhiteKernel(0.3),
    "constant rbf plus white": C(2.0) * RBF(ARD) + WhiteKernel(0.1),
    "white plus constant times sum": WhiteKernel(0.1) + C(2.0) * (RBF(ARD) + DotProduct(0.5)),
    "constant times (matern plus white)": C(2.0) * (Matern(ARD, nu=1.5) + WhiteKernel(0.2)),
    "sum of three": C(2.0) * RBF(ARD) + C(0.5) * Matern(3.0) + C(0.1),
    "product of sums": (RBF(ARD) + C(0.5)) * (DotProduct(0.7) + C(2.0) * Matern(2.0)),
    "rbf times dot product": C(2.0) * RBF(ARD) * DotProduct(0.7),
    "dot product first": DotProduct(0.7) * C(2.0) * RBF(ARD),
    "product of two rbfs": RBF(ARD) * RBF(2.0),
    "white times rbf": WhiteKernel(0.4) * RBF(1.5),
    "square of a product": (C(1.5) * RBF(ARD)) ** 2,
    "cubic polynomial": C(0.1) * DotProduct(0.7) ** 3,
    "power of a sum": Exponentiation(RBF(2.0) + WhiteKernel(0.2), 2),
    "root": Exponentiation(C(2.0) * RBF(2.0), 0.5),
    "fixed constant": C(3.0, "fixed") * RBF(ARD),
    "fixed lengthscales": C(3.0) * RBF(ARD, "fixed"),
    "fixed inside": (C(2.0, "fixed") + RBF(ARD, "fixed")) * (DotProduct(0.7) + WhiteKernel(0.1, "fixed")),
    "fixed among positive factors": C(2.0)
    * RBF(ARD, "fixed")
    * RationalQuadratic(1.1, 0.6)
    * C(3.0, "fixed"),
    "all fixed": C(3.0, "fixed") * RBF(1.0, "fixed"),
    "periodic": C(2.0) * ExpSineSquared(1.3, 2.1),
    "periodic times rbf": ExpSineSquared(1.3, 2.1) * RBF(ARD),
    "subclass": C(2.0) * Doubled(ARD) + WhiteKernel(0.1),
    "own kernel": C(2.0) * Linear(0.4) + RBF(ARD),
    "own kernel squared": Linear(0.4) ** 2,
}


def tree_cases():
    return pytest.mark.parametrize("kernel", [pytest.param(k, id=name) for name, k in TREES.items()])


def inputs(n=23, seed=0):
    """Points of which two coincide."""
    X = np.random.default_rng(seed).normal(size=(n, D))
    X[5] = X[2]
    return X


def symmetric(n=23, seed=1):
    A = np.random.default_rng(seed).normal(size=(n, n))
    return A + A.T


def own_contraction(kernel, X, S):
    return np.einsum("ij,ijp->p", S, kernel(X, eval_gradient=True)[1])


def differences(kernel, X, S, h=1e-5):
    """Central differences in theta of Σ S ∘ kernel(X)."""
    theta = kernel.theta
    step = h * np.eye(len(theta))
    value = [np.sum(S * kernel.clone_with_theta(theta + s)(X)) for s in step]
    other = [np.sum(S * kernel.clone_with_theta(theta - s)(X)) for s in step]
    return (np.array(value) - np.array(other)) / (2 * h)


# --- gram, cross, diagonal


@tree_cases()
def test_cross_equals_scikit_learns(kernel):
    X, Z = inputs(), inputs(9, seed=2)
    Z[3] = X[5]
    np.testing.assert_allclose(kernels.cross(kernel, X, Z), kernel(X, Z), rtol=1e-12, atol=1e-14)


@tree_cases()
def test_gram_equals_scikit_learns(kernel):
    X = inputs()
    K = kernels.gram(kernel, X)
    assert K.dtype == np.float64
    assert K.flags.c_contiguous
    np.testing.assert_allclose(K, kernel(X), rtol=1e-12, atol=0)
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_allclose(kernels.diagonal(kernel, X), np.diagonal(K), rtol=1e-12)


@pytest.mark.parametrize("nu", [0.3, 0.8, 1.0, 2.0, 3.5])
def test_gram_of_a_general_matern_equals_scikit_learns(nu):
    kernel = C(2.0) * Matern(ARD, nu=nu)
    np.testing.assert_allclose(kernels.gram(kernel, inputs()), kernel(inputs()), rtol=1e-12)


@pytest.mark.parametrize(("n", "d"), [(1, 3), (2, 1), (33, 1), (32, 7), (97, 40)])
def test_squared_distances_for_sizes_around_the_tile(n, d):
    X = np.random.default_rng(3).normal(size=(n, d))
    K = kernels.gram(RBF(3.0), X)
    expected = np.exp(-0.5 * ((X[:, None] - X[None]) ** 2).sum(-1) / 9.0)
    np.testing.assert_allclose(K, expected, rtol=1e-12)


def test_duplicates_far_from_the_origin_are_at_distance_zero():
    X = 1e7 + inputs()
    K = kernels.gram(RBF(1e-3), X)
    assert K[2, 5] == 1.0
    assert K.sum() == len(X) + 2


@pytest.mark.parametrize("kernel", [RBF(1.0), Matern(1.0, nu=0.5), Matern(1.0, nu=1.5), Matern(1.0, nu=2.5)])
def test_correlations_too_small_to_matter_are_zero(kernel):
    X = np.array([[0.0], [1.0], [12.5], [60.0], [400.0]])
    exact = kernel(X)
    assert np.any((exact > 0.0) & (exact < kernels.NO_CORRELATION))
    for K in (kernels.gram(kernel, X), kernels.cross(kernel, X, X)):
        np.testing.assert_array_equal(K > 0.0, exact >= kernels.NO_CORRELATION)
        np.testing.assert_allclose(K, exact, rtol=1e-12, atol=kernels.NO_CORRELATION)


def test_gram_leaves_a_users_array_alone():
    kernel = C(7.0) * Linear(0.4)
    kernels.gram(kernel, inputs())
    np.testing.assert_allclose(kernel.k2.last_, 0.4 * (inputs() @ inputs().T), rtol=1e-12, atol=1e-14)


def test_gram_cross_and_diagonal_of_a_list_are_those_of_its_kernels():
    X, Z = inputs(), inputs(9, seed=7)
    each = [C(2.0) * RBF(ARD) + WhiteKernel(0.3), DotProduct(0.4), Matern(1.1)]
    for i, k in enumerate(each):
        np.testing.assert_array_equal(kernels.gram(each, X)[i], kernels.gram(k, X))
        np.testing.assert_array_equal(kernels.cross(each, X, Z)[i], kernels.cross(k, X, Z))
        np.testing.assert_array_equal(kernels.diagonal(each, X)[i], kernels.diagonal(k, X))
    assert kernels.cross(each, X, Z).shape == (3, 23, 9)


def test_white_noise_is_in_gram_and_diagonal_but_not_in_cross():
    X = inputs()
    with_noise, without = RBF(1.0) + WhiteKernel(0.5), RBF(1.0)
    np.testing.assert_array_equal(kernels.cross(with_noise, X, X), kernels.cross(without, X, X))
    np.testing.assert_allclose(
        kernels.gram(with_noise, X) - kernels.gram(without, X), 0.5 * np.eye(len(X)), atol=1e-15
    )
    np.testing.assert_array_equal(kernels.diagonal(with_noise, X), np.full(len(X), 1.5))


# --- contract


@tree_cases()
@pytest.mark.parametrize("given", [False, True], ids=["K unknown", "K given"])
def test_contract_equals_scikit_learns_gradient(kernel, given):
    X, S = inputs(), symmetric()
    gradient = contract(kernel, X, S, kernels.gram(kernel, X) if given else None)
    expected = own_contraction(kernel, X, S)
    assert gradient.shape == kernel.theta.shape
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-11 * np.abs(expected).max(initial=0.0))


@pytest.mark.parametrize("nu", [0.3, 0.8, 1.0, 2.0, 3.5, 20.0])
@pytest.mark.parametrize("scale", [1.4, ARD], ids=["isotropic", "ard"])
def test_contract_of_a_general_matern_equals_central_differences(nu, scale):
    kernel, X, S = C(2.0) * Matern(scale, nu=nu), inputs(), symmetric()
    if nu == 20.0:
        X[5] += 0.1  # scikit-learn's Bessel function overflows at coincident points
    # h² of truncation and ε/h of rounding, about 1e-10 each.
    np.testing.assert_allclose(contract(kernel, X, S), differences(kernel, X, S), rtol=1e-7)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_the_bessel_form_meets_the_closed_forms(nu):
    """Only nu itself is looked up exactly, so a neighbour takes the general way."""
    X, S = inputs(), symmetric()
    general = contract(Matern(ARD, nu=np.nextafter(nu, 10)), X, S)
    np.testing.assert_allclose(general, contract(Matern(ARD, nu=nu), X, S), rtol=1e-9)


def test_a_smooth_matern_at_nearly_coincident_points_is_finite():
    X = inputs(6)
    X[1] = X[0] + 1e-40
    X[3, 0] = 1e-170
    X[4] = 0.0
    X[3, 1:] = 0.0
    kernel, S = Matern(1.0, nu=3.5), symmetric(6)
    K = kernels.gram(Matern(1.0, nu=2.5), X)
    assert np.isfinite(contract(kernel, X, S, K)).all()


@pytest.mark.parametrize("metric", ["rbf", "laplacian", "polynomial"])
def test_contract_of_a_pairwise_kernel(metric):
    """scikit-learn differentiates these by a step of 1e-10, so only six digits are there to compare."""
    kernel, X, S = C(2.0) * PairwiseKernel(0.3, metric=metric), inputs(), symmetric()
    np.testing.assert_allclose(contract(kernel, X, S), differences(kernel, X, S), rtol=1e-4)


@pytest.mark.parametrize("name", ["constant rbf ard", "matern 1/2 ard", "matern 5/2 ard"])
def test_contract_with_a_large_offset_and_columns_of_very_different_scale(name):
    kernel, S = TREES[name], symmetric()
    spread = np.array([1e-4, 1.0, 1e3, 1e6])
    offset = spread * np.array([1e3, -1e4, 1e2, 1e4])
    scaled = kernel.clone_with_theta(kernel.theta + np.append(0.0, np.log(spread)))
    X = inputs() * spread + offset
    gradient = contract(scaled, X, S, kernels.gram(scaled, X))
    # Rounding of X itself, at most 1e4 ε of a spread, is what is left.
    np.testing.assert_allclose(gradient, own_contraction(kernel, (X - offset) / spread, S), rtol=1e-9)


@pytest.mark.parametrize("kernel", [RBF(1.3), RBF(ARD)], ids=str)
def test_an_offset_alone_does_not_send_contract_the_slow_way(monkeypatch, kernel):
    monkeypatch.setattr(kernel_gradient, "_CANCELLATION", 0.0)
    X, S = inputs() + 1e5, symmetric()
    np.testing.assert_allclose(contract(kernel, X, S), own_contraction(kernel, X, S), rtol=1e-9)


@pytest.mark.parametrize("kernel", [RBF(1.3), RBF(ARD), Matern(1.3, nu=0.5), Matern(ARD, nu=0.5)], ids=str)
def test_contract_keeps_its_digits_for_tight_clusters_far_apart(kernel):
    """|x|² is 1e12 squared lengthscales here, and only differences of about 1 contribute."""
    X, S = inputs(), symmetric()
    X[12:] += 1e6
    expected = own_contraction(kernel, X, S)
    np.testing.assert_allclose(contract(kernel, X, S), expected, rtol=1e-9)


def test_contract_keeps_its_digits_for_near_duplicates_under_a_rough_kernel():
    X, S = inputs(), symmetric()
    X[7] = X[8] + 1e-9 * np.array([1.0, -2.0, 0.5, 3.0])
    kernel = Matern(ARD, nu=0.5)
    np.testing.assert_allclose(contract(kernel, X, S), own_contraction(kernel, X, S), rtol=1e-9)


def test_contract_of_a_list_is_the_classes_one_after_another():
    X = inputs()
    each = [C(2.0) * RBF(ARD), C(1.0, "fixed") * RBF(1.0, "fixed"), DotProduct(0.4) + WhiteKernel(0.1)]
    S = np.stack([symmetric(seed=s) for s in (1, 2, 3)])
    expected = np.concatenate([own_contraction(k, X, s) for k, s in zip(each, S, strict=True)])
    assert expected.shape == (7,)
    np.testing.assert_allclose(contract(each, X, S), expected, rtol=1e-9)
    np.testing.assert_allclose(contract(each, X, S, kernels.gram(each, X)), expected, rtol=1e-9)


def test_a_given_gram_matrix_is_used_and_never_evaluated_again(monkeypatch):
    X, S = inputs(), symmetric()
    trees = [TREES[name] for name in ("constant rbf ard", "matern 3/2 ard", "constant rbf plus white")]
    trees += [TREES["square of a product"], TREES["constant times (matern plus white)"]]
    known = [(k, kernels.gram(k, X), own_contraction(k, X, S)) for k in trees]

    def refuse(kernel, X):
        raise AssertionError(f"{kernel} was evaluated although its gram matrix was given")

    for module in (kernels, kernel_gradient):
        monkeypatch.setattr(module, "gram_of_one", refuse)
    for kernel, K, expected in known:
        np.testing.assert_allclose(contract(kernel, X, S, K), expected, rtol=1e-9)


def test_contract_changes_none_of_its_arguments():
    X, S = inputs(), symmetric()
    for kernel in TREES.values():
        K = kernels.gram(kernel, X)
        before = X.copy(), S.copy(), K.copy()
        contract(kernel, X, S, K)
        for now, then in zip((X, S, K), before, strict=True):
            np.testing.assert_array_equal(now, then)


def test_contract_names_a_wrong_shape():
    with pytest.raises(ValueError, match=r"weights has shape \(23, 23\).*need \(2, 23, 23\)"):
        contract([RBF(), RBF()], inputs(), symmetric())
    with pytest.raises(ValueError, match=r"K has shape \(5, 5\).*need \(23, 23\)"):
        contract(RBF(), inputs(), symmetric(), np.eye(5))


# --- the fallback in blocks


@pytest.mark.parametrize("kernel", [Doubled(ARD), ExpSineSquared(1.3, 2.1), Linear(0.4)], ids=str)
@pytest.mark.parametrize("rows", [8, 11, 12, 22])
def test_blocks_give_the_same_gradient_as_one(monkeypatch, kernel, rows):
    X, S = inputs(), symmetric()
    sizes = []
    own = kernel_gradient._own_gradient

    def watched(kernel, X):
        gradient = own(kernel, X)
        sizes.append(gradient.nbytes)
        return gradient

    monkeypatch.setattr(kernel_gradient, "_own_gradient", watched)
    monkeypatch.setattr(kernel_gradient, "BLOCK_BYTES", 8 * kernel.n_dims * (2 * rows) ** 2)
    np.testing.assert_allclose(contract(kernel, X, S), own_contraction(kernel, X, S), rtol=1e-9)
    assert max(sizes) <= kernel_gradient.BLOCK_BYTES
    assert (len(sizes) > 1) == (2 * rows < len(X))


def test_a_block_that_cannot_fit_says_what_to_do(monkeypatch):
    monkeypatch.setattr(kernel_gradient, "BLOCK_BYTES", 1000)
    with pytest.raises(MemoryError, match=r"Doubled with 4 free hyperparameters takes .* GiB.*BLOCK_BYTES"):
        contract(Doubled(ARD), inputs(), symmetric())


# --- theta


@tree_cases()
def test_theta_names_and_bounds_have_one_entry_per_free_hyperparameter(kernel):
    theta, names = kernels.theta(kernel), kernels.hyperparameter_names(kernel)
    np.testing.assert_array_equal(theta, kernel.theta)
    assert kernels.bounds(kernel).shape == (len(theta), 2)
    assert len(names) == len(set(names)) == len(theta)
    moved = kernels.with_theta(kernel, theta + 0.25)
    np.testing.assert_allclose(kernels.theta(moved), theta + 0.25, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(kernels.theta(kernel), theta)


@tree_cases()
def test_a_name_leads_to_the_value_in_theta(kernel):
    values = kernel.get_params()
    for name, value in zip(kernels.hyperparameter_names(kernel), kernels.theta(kernel), strict=True):
        base, _, index = name.partition("[")
        found = np.ravel(values[base])[int(index.rstrip("]")) if index else 0]
        assert np.log(found) == pytest.approx(value, abs=1e-15)


@pytest.mark.parametrize("kernel", [RBF([1.0, 2.0]), RBF(1.5), Matern(1.5, nu=1.5)])
def test_contraction_takes_matrices_in_any_order(kernel):
    X = np.random.default_rng(3).standard_normal((60, 2))
    S = np.cov(np.random.default_rng(4).standard_normal((60, 70)))
    K = kernel(X)
    expected = contract(kernel, X, S, K)
    for order in (np.asfortranarray, np.transpose):
        np.testing.assert_allclose(contract(kernel, X, order(S), order(K)), expected, rtol=1e-12)


def test_theta_of_a_list_is_concatenated_in_class_order():
    each = [C(2.0) * RBF([1.0, 3.0]), C(5.0), RBF(4.0, "fixed")]
    assert kernels.hyperparameter_names(each) == [
        "class0: k1__constant_value",
        "class0: k2__length_scale[0]",
        "class0: k2__length_scale[1]",
        "class1: constant_value",
    ]
    np.testing.assert_allclose(np.exp(kernels.theta(each)), [2.0, 1.0, 3.0, 5.0], rtol=1e-15)
    np.testing.assert_allclose(np.exp(kernels.bounds(each)), [[1e-5, 1e5]] * 4)
    moved = kernels.with_theta(each, np.log([1.0, 2.0, 3.0, 4.0]))
    assert isinstance(moved, list)
    assert moved[2] == each[2]
    assert moved[2] is not each[2]
    np.testing.assert_allclose(moved[0].k2.length_scale, [2.0, 3.0])
    assert moved[1].constant_value == pytest.approx(4.0)


def test_a_lower_bound_of_zero_is_minus_infinity_without_a_warning():
    np.testing.assert_array_equal(kernels.bounds(RBF(1.0, (0.0, 1.0))), [[-np.inf, 0.0]])


@pytest.mark.parametrize(
    ("theta", "message"), [([0.0], "2 free hyperparameters"), ([0.0, np.nan], "not finite")]
)
def test_with_theta_refuses(theta, message):
    with pytest.raises(ValueError, match=message):
        kernels.with_theta(C() * RBF(), theta)


# --- the default kernel


def test_default_kernel_has_one_lengthscale_per_column_in_its_units():
    X = np.random.default_rng(5).normal(size=(50, 3)) * [1e-3, 1.0, 1e4] + [0.1, 5.0, 0.0]
    X = np.column_stack([X, np.full(50, 0.1)])
    kernel, units = kernels.default_kernel(X)
    sd = np.append(X.std(axis=0)[:3], 1.0)
    np.testing.assert_allclose(units, np.append(1.0, sd), rtol=1e-12)
    np.testing.assert_allclose(np.exp(kernels.theta(kernel)), np.append(1.0, 2.0 * sd), rtol=1e-12)
    limits = np.exp(kernels.bounds(kernel))
    np.testing.assert_allclose(limits[0], [1e-3, 1e5], rtol=1e-12)
    np.testing.assert_allclose(limits[1:], np.outer(sd, [1e-2, 1e4]), rtol=1e-12)
    kernels.validate(kernel, 3, 4)


@pytest.mark.parametrize(("d", "p"), [(1, 2), (2, 3), (30, 31), (31, 2), (256, 2)])
def test_default_kernel_puts_typical_points_root_two_lengthscales_apart(d, p):
    X = 3.0 * np.random.default_rng(6).normal(size=(40, d))
    kernel, units = kernels.default_kernel(X)
    assert kernels.theta(kernel).shape == units.shape == (p,)
    r2 = -2 * np.log(kernels.gram(kernel, X))
    assert r2.mean() == pytest.approx(
        2.0, rel=1e-9
    )  # E|z − z'|² over all ordered pairs is twice the variance
    if d > 30:
        assert units[1] == pytest.approx(np.sqrt(np.mean(X.var(axis=0))), rel=1e-12)
    kernels.validate(kernel, 3, d)


@pytest.mark.parametrize("d", [1, 4, 40])
def test_default_kernel_of_constant_columns_has_unit_scale(d):
    kernel, units = kernels.default_kernel(np.full((7, d), 0.1))
    np.testing.assert_array_equal(units, np.ones_like(units))
    start = np.sqrt(d) if d <= 30 else 1.0
    np.testing.assert_allclose(np.ravel(kernel.k2.length_scale), start, rtol=1e-15)


# --- what is refused


@pytest.mark.parametrize(
    ("kernel", "error", "message"),
    [
        ("rbf", TypeError, r"kernel is 'rbf', a str: give a kernel of sklearn"),
        (RBF, TypeError, r"the class RBF: give an instance, RBF\(\)"),
        ([RBF(), None, RBF()], TypeError, r"kernel of class 1 is None"),
        ([RBF(), RBF()], ValueError, r"2 kernels for 3 classes: give one kernel shared .* of exactly 3"),
        ([], ValueError, r"0 kernels for 3 classes"),
        (CompoundKernel([RBF()]), TypeError, r"CompoundKernel stacks several kernels.*one kernel per class"),
        (C() * CompoundKernel([RBF()]), TypeError, r"CompoundKernel"),
        (C(0.0) * RBF(), ValueError, r"k1__constant_value = 0\.0: .*positive"),
        (C(0.0, "fixed") * RBF(), ValueError, r"k1__constant_value = 0\.0"),
        (C() * RBF(-1.0), ValueError, r"k2__length_scale = -1\.0"),
        (RBF(np.array([1.0, np.nan, 1.0, 1.0])), ValueError, r"length_scale = \[ *1\. +nan"),
        (RBF(np.inf), ValueError, r"length_scale = inf"),
        (RBF(None), ValueError, r"length_scale = None: .*positive"),
        (C("big") * RBF(), TypeError, r"k1__constant_value = 'big' is not a number"),
        (WhiteKernel(-0.1, "fixed"), ValueError, r"noise_level = -0\.1"),
        (DotProduct(0.0), ValueError, r"sigma_0 = 0\.0"),
        (RBF(1.0) ** -1, ValueError, r"exponent = -1"),
        (Matern(1.0, nu=0.0), ValueError, r"nu = 0\.0"),
        (C() + Matern(1.0, nu=400.0), ValueError, r"k2__nu = 400\.0: .*RBF"),
        (C() * RBF([1.0, 2.0]), ValueError, r"k2__length_scale has 2 lengthscales for 4 columns"),
        (RBF(np.ones((2, 2))), ValueError, r"length_scale has shape \(2, 2\)"),
        (Doubled([1.0, 2.0]), ValueError, r"length_scale has 2 lengthscales for 4 columns"),
        (RationalQuadratic(ARD), ValueError, r"RationalQuadratic takes a single number"),
        (Linear(-1.0), ValueError, r"slope = -1\.0"),
        (RBF(1.0, (2.0, 1.0)), ValueError, r"length_scale_bounds = \[\[2\.0, 1\.0\]\]"),
        ([RBF(), RBF(), C() * RBF(-3.0)], ValueError, r"kernel of class 2: k2__length_scale = -3\.0"),
    ],
)
def test_validate_names_the_problem(kernel, error, message):
    with pytest.raises(error, match=message):
        kernels.validate(kernel, 3, D)


@tree_cases()
def test_validate_accepts_every_tree(kernel):
    kernels.validate(kernel, 3, D)
    kernels.validate([kernel] * 3, 3, D)


@pytest.mark.parametrize(
    "kernel", [DotProduct(0.0, "fixed"), WhiteKernel(0.0, "fixed"), Linear(-1.0, "fixed")]
)
def test_validate_accepts_what_is_meaningful_when_fixed(kernel):
    kernels.validate(kernel, 3, D)
    assert contract(kernel, inputs(), symmetric()).shape == (0,)


@pytest.mark.parametrize("call", [kernels.gram, lambda k, X: contract(k, X, symmetric())])
def test_a_compound_kernel_has_no_gram_matrix(call):
    with pytest.raises(TypeError, match="CompoundKernel"):
        call(CompoundKernel([RBF(), RBF()]), inputs())


def test_inputs_must_be_two_dimensional():
    with pytest.raises(ValueError, match="2-D"):
        kernels.gram(RBF(), np.arange(3.0))


def test_lengthscales_that_do_not_fit_the_columns_are_named_by_gram():
    with pytest.raises(ValueError, match="2 lengthscales for 4 columns"):
        kernels.gram(RBF([1.0, 2.0]), inputs())


def test_check_gram_accepts_covariances_and_rounding():
    K = kernels.gram(RBF(), inputs())
    kernels.check_gram(K)
    kernels.check_gram(np.stack([K, 1e6 * K]))
    K[0, 1] += 1e-9
    kernels.check_gram(K)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({(1, 2): np.nan}, r"has nan at \(1, 2\)"),
        ({(1, 2): np.inf, (2, 1): np.inf}, r"has inf at \(1, 2\)"),
        ({(1, 2): 0.5}, r"not symmetric: 0\.5 at \(1, 2\) but 0 at \(2, 1\)"),
        ({(1, 2): 1e-6}, r"not symmetric"),
        ({(2, 2): -1.0}, r"negative variance -1 at row 2"),
    ],
)
def test_check_gram_names_the_entry(entries, message):
    K = np.eye(3)
    for place, value in entries.items():
        K[place] = value
    with pytest.raises(ValueError, match=message):
        kernels.check_gram(K)
    with pytest.raises(ValueError, match="K of class 1 "):
        kernels.check_gram(np.stack([np.eye(3), K]))


def test_check_gram_names_a_wrong_shape():
    with pytest.raises(ValueError, match=r"shape \(3, 2\), not square"):
        kernels.check_gram(np.ones((3, 2)))
