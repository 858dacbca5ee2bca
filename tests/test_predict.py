"""Class probabilities: inner EP against its oracle, the integral against bivariate normals and QMC."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_ndtr

from nestgp import predict
from nestgp.predict import class_probabilities, ep_log_probabilities, exact_log_probabilities
from tests.oracles._types import Array
from tests.oracles.inner import inner_ep
from tests.oracles.integrals import (
    class_probabilities_bvn,
    class_probabilities_qmc,
    contrasts,
    log_likelihood,
    log_orthant,
)

RULES = ["ep", "exact"]


def random_latents(m: int, c: int, scale: float = 1.0, seed: int = 0) -> tuple[Array, Array]:
    """Means (m, c) and covariances (m, c, c) of typical size ``scale``."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((m, c, c))
    cov = scale * (A @ np.swapaxes(A, 1, 2) / c + 0.3 * np.eye(c))
    return np.sqrt(scale) * rng.standard_normal((m, c)), cov


@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("c", [2, 3, 5, 10])
def test_ep_rule_is_the_log_normaliser_of_the_literal_inner_ep(c: int, scale: float) -> None:
    mean, cov = random_latents(4, c, scale, seed=c)
    expected = [
        [inner_ep(m, V, k, tol=1e-10).log_z for k in range(c)] for m, V in zip(mean, cov, strict=True)
    ]
    assert_allclose(ep_log_probabilities(mean, cov), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-6, 0.1, 1.0, 30.0, 1e4])
def test_exact_rule_for_three_classes_is_the_bivariate_normal(scale: float) -> None:
    mean, cov = random_latents(20, 3, scale, seed=3)
    expected = [class_probabilities_bvn(m, V) for m, V in zip(mean, cov, strict=True)]
    found = np.exp(exact_log_probabilities(mean, cov))
    assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)


@pytest.mark.parametrize(("c", "atol"), [(4, 2e-5), (6, 3e-5), (8, 2e-4), (10, 2e-4)])
def test_exact_rule_for_more_classes_is_near_quasi_monte_carlo(c: int, atol: float) -> None:
    mean, cov = random_latents(3, c, 3.0, seed=c)
    expected = [class_probabilities_qmc(m, V, 2**11) for m, V in zip(mean, cov, strict=True)]
    assert_allclose(np.exp(exact_log_probabilities(mean, cov)), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("gap", [-300.0, -20.0, 0.0, 1.0, 50.0])
@pytest.mark.parametrize("rule", RULES)
def test_two_classes_are_closed_form(rule: str, gap: float) -> None:
    mean, cov = np.array([[[0.0, gap]]]), np.array([[[[2.0, 0.5], [0.5, 1.0]]]])
    expected = log_ndtr(np.array([-gap, gap]) / np.sqrt(2.0 + 2.0))  # V(f_1 − f_0) = 2, and two unit noises
    assert_allclose(class_probabilities(mean, cov, rule)[0], expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("rule", "atol"), [("ep", 5e-3), ("exact", 3e-5)])
@pytest.mark.parametrize("c", [3, 5])
def test_without_latent_uncertainty_it_is_the_likelihood(c: int, rule: str, atol: float) -> None:
    f = np.random.default_rng(c).standard_normal((5, c))
    expected = [np.exp([log_likelihood(row, k) for k in range(c)]) for row in f]
    found = np.exp(class_probabilities(f[None], np.zeros((1, 5, c, c)), rule))
    assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize(("rule", "rel"), [("ep", 2e-2), ("exact", 2e-2)])
@pytest.mark.parametrize("c", [3, 5])
@pytest.mark.parametrize("gap", [-10.0, -60.0, -200.0])
@pytest.mark.parametrize("common", [0.0, 0.5])
def test_tiny_probabilities_keep_their_logarithm(
    common: float, gap: float, c: int, rule: str, rel: float
) -> None:
    mean = np.zeros((1, c))
    mean[0, 0] = gap
    cov = np.eye(c)[None] + common
    C = contrasts(c, 0)
    expected, error = log_orthant(C @ mean[0], C @ (cov[0] + np.eye(c)) @ C.T)
    assert error <= 5e-3
    found = class_probabilities(mean[None], cov[None], rule)[0, 0]
    # ``rel`` is the relative error of a probability of exp(−20) to exp(−8018).
    assert found == pytest.approx(expected, abs=rel)


@pytest.mark.parametrize("h", [0.0, 1e-320, 1e-200, 1e-160, 1e-20])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("common", [0.0, 0.5])
def test_equal_latents_are_equally_probable_however_small_their_difference(
    h: float, sign: float, common: float
) -> None:
    # Without covariance between the classes the integral is one-dimensional and takes another way.
    mean, cov = np.array([[0.0, h, sign * h]]), np.eye(3)[None] + common
    assert_allclose(np.exp(exact_log_probabilities(mean, cov)), 1 / 3, rtol=1e-10)


@pytest.mark.parametrize("common", [0.0, 1e4, 1e8])
@pytest.mark.parametrize("rule", RULES)
def test_what_the_classes_have_in_common_does_not_matter(rule: str, common: float) -> None:
    mean, cov = random_latents(6, 4, 2.0)
    plain = class_probabilities(mean[None], cov[None], rule)
    moved = class_probabilities(mean[None] + np.sqrt(common), cov[None] + common, rule)
    assert_allclose(moved, plain, rtol=0, atol=1e-13 + 1e-15 * common)


@pytest.mark.parametrize("c", [2, 3, 4, 8])
@pytest.mark.parametrize("rule", RULES)
def test_rows_sum_to_one(rule: str, c: int) -> None:
    mean, cov = random_latents(50, c, 5.0)
    log_p = class_probabilities(mean[None], cov[None], rule)
    assert log_p.max() <= 1e-15
    assert_allclose(np.exp(log_p).sum(axis=1), 1.0, atol=1e-14)


@pytest.mark.parametrize(("rule", "atol"), [("ep", 1e-8), ("exact", 2e-4)])
@pytest.mark.parametrize("c", [3, 5])
def test_permuted_classes_permute_the_probabilities(c: int, rule: str, atol: float) -> None:
    mean, cov = random_latents(10, c, 2.0)
    order = np.random.default_rng(1).permutation(c)
    plain = class_probabilities(mean[None], cov[None], rule)
    permuted = class_probabilities(mean[None][..., order], cov[None][..., order[:, None], order], rule)
    # Inner EP stops at a residual of 1e-9; quasi-Monte Carlo meets the classes in another order.
    assert_allclose(permuted, plain[:, order], rtol=0, atol=atol)


@pytest.mark.parametrize("rule", RULES)
def test_batches_do_not_matter(rule: str) -> None:
    mean, cov = random_latents(600, 4)  # more than one task, more than one block of quasi-Monte Carlo rows
    whole = class_probabilities(mean[None], cov[None], rule)
    for rows in ([0], [299, 17], range(250, 520)):
        part = class_probabilities(mean[None][:, rows], cov[None][:, rows], rule)
        assert_allclose(part, whole[list(rows)], rtol=0, atol=1e-13)


def test_independent_latents_do_not_depend_on_their_neighbours() -> None:
    mean, cov = random_latents(5, 4)
    cov[2] = np.diag(np.diagonal(cov[2]))
    whole = class_probabilities(mean[None], cov[None], "exact")
    assert_array_equal(whole[2], class_probabilities(mean[None][:, [2]], cov[None][:, [2]], "exact")[0])
    assert_array_equal(whole[[0, 4]], class_probabilities(mean[None][:, [0, 4]], cov[None][:, [0, 4]], "exact"))


def test_threads_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    mean, cov = random_latents(600, 3)
    one = ep_log_probabilities(mean, cov)
    monkeypatch.setattr("nestgp.threads.blas_threads", lambda: 2)
    assert_array_equal(ep_log_probabilities(mean, cov), one)


@pytest.mark.parametrize("rule", RULES)
def test_a_mixture_is_the_average_of_its_parts(rule: str) -> None:
    mean, cov = random_latents(15, 3)
    mean, cov = mean.reshape(3, 5, 3), cov.reshape(3, 5, 3, 3)
    parts = [np.exp(class_probabilities(mean[s : s + 1], cov[s : s + 1], rule)) for s in range(3)]
    assert_allclose(np.exp(class_probabilities(mean, cov, rule)), np.mean(parts, axis=0), rtol=1e-13)
    # A mixture of equal parts is one of them.
    repeated = class_probabilities(np.repeat(mean[:1], 4, axis=0), np.repeat(cov[:1], 4, axis=0), rule)
    assert_allclose(np.exp(repeated), parts[0], rtol=1e-13)


def test_a_row_on_which_inner_ep_fails_is_integrated_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    mean, cov = random_latents(5, 3)
    plain = ep_log_probabilities(mean, cov)
    exact = exact_log_probabilities(mean, cov)
    compiled = predict.tilted.log_normalisers

    def failing(*args: object) -> None:
        compiled(*args)
        out = args[-1]
        assert isinstance(out, np.ndarray)
        out[2, 1] = np.nan

    monkeypatch.setattr(predict.tilted, "log_normalisers", failing)
    found = ep_log_probabilities(mean, cov)
    assert_array_equal(found[[0, 1, 3, 4]], plain[[0, 1, 3, 4]])
    assert_array_equal(found[2], exact[2])
    assert np.abs(exact[2] - plain[2]).max() > 1e-6


def test_an_unknown_rule_is_named() -> None:
    mean, cov = random_latents(2, 3)
    with pytest.raises(ValueError, match=r"probabilities='softmax': .*use one of \['ep', 'exact'"):
        class_probabilities(mean[None], cov[None], "softmax")
