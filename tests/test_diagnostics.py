"""Scores and comparisons against values worked out by hand or in closed form."""

import numpy as np
import pytest

from nestgp import diagnostics as dg

PROBA = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.25, 0.5, 0.25]])
Y = np.array([0, 1, 0, 1])


def test_mean_log_predictive_density_by_hand() -> None:
    expected = np.mean(np.log([0.7, 0.8, 0.3, 0.5]))
    assert dg.mean_log_predictive_density(PROBA, Y) == pytest.approx(expected, rel=1e-15)


def test_zero_probability_of_what_happened_is_minus_infinity() -> None:
    lpd = dg.log_predictive_density([[1.0, 0.0], [0.0, 1.0]], [1, 1])
    np.testing.assert_array_equal(lpd, [-np.inf, 0.0])


def test_brier_and_accuracy_by_hand() -> None:
    rows = [
        0.3**2 + 0.2**2 + 0.1**2,
        0.1**2 + 0.2**2 + 0.1**2,
        0.7**2 + 0.3**2 + 0.4**2,
        0.25**2 * 2 + 0.5**2,
    ]
    assert dg.brier(PROBA, Y) == pytest.approx(np.mean(rows), rel=1e-14)
    assert dg.brier([[0.0, 1.0]], [0]) == 2.0
    assert dg.accuracy(PROBA, Y) == 0.75


def test_reliability_bins_by_hand() -> None:
    curve = dg.reliability_curve(PROBA, Y, n_bins=2)  # top: 0.7 and 0.8 right; 0.4 wrong, 0.5 right
    np.testing.assert_array_equal(curve.size, [2, 2])
    np.testing.assert_allclose(curve.confidence, [0.45, 0.75], rtol=1e-15)
    np.testing.assert_array_equal(curve.accuracy, [0.5, 1.0])
    assert curve.high[1] == 1.0
    assert np.all((curve.low <= curve.accuracy) & (curve.accuracy <= curve.high))
    gap = 0.5 * 0.05 + 0.5 * 0.25
    assert dg.expected_calibration_error(PROBA, Y, n_bins=2) == pytest.approx(gap, rel=1e-14)


def test_certain_predictions_fall_in_the_last_bin() -> None:
    curve = dg.reliability_curve([[1.0, 0.0], [0.0, 1.0]], [0, 1], n_bins=10)
    np.testing.assert_array_equal(curve.size, [2])
    assert dg.expected_calibration_error([[1.0, 0.0]], [1], n_bins=10) == 1.0


def test_calibration_error_vanishes_when_labels_are_drawn_from_the_probabilities() -> None:
    rng = np.random.default_rng(3)
    proba = rng.dirichlet(np.ones(4), size=40_000)
    y = (rng.random((40_000, 1)) > np.cumsum(proba, axis=1)).sum(axis=1)
    # Ten bins of thousands of points: the noise of the sum is about sqrt(10 · 2 · 0.2 / (π · 40000)) ≈ 0.006.
    assert dg.expected_calibration_error(proba, y) < 0.012
    sharpened = proba**2 / np.sum(proba**2, axis=1, keepdims=True)
    assert dg.expected_calibration_error(sharpened, y) > 0.1


def test_bootstrap_of_two_values_is_uniform() -> None:
    # Dirichlet(1, 1) weights on {0, 1}: the mean is uniform on (0, 1), so its 90% interval is (0.05, 0.95).
    interval = dg.bayesian_bootstrap_interval([0.0, 1.0], level=0.9, n=40_000, rng=1)
    assert interval.mean == 0.5
    # Standard error of a uniform's empirical 5% quantile: sqrt(0.05 · 0.95 / 40000) = 0.0011; four of them.
    assert interval.low == pytest.approx(0.05, abs=0.0044)
    assert interval.high == pytest.approx(0.95, abs=0.0044)


def test_bootstrap_matches_the_normal_limit_and_repeats() -> None:
    values = np.random.default_rng(2).normal(
        1.0, 2.0, size=5_000
    )  # more values than one block of weights holds
    interval = dg.bayesian_bootstrap_interval(values)
    half = 1.959964 * values.std() / np.sqrt(values.size)
    # 4000 draws place the 2.5% quantile with a standard error of 0.042 standard deviations; four of them.
    assert interval.low == pytest.approx(values.mean() - half, abs=0.17 * half / 1.96)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.17 * half / 1.96)
    assert interval == dg.bayesian_bootstrap_interval(values)


def test_bootstrap_blocks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(4).normal(size=30)
    whole = dg.bayesian_bootstrap_interval(values)
    monkeypatch.setattr(dg, "_BOOTSTRAP_BLOCK", 100)
    # The draws are the same; sums over differently shaped blocks round differently.
    np.testing.assert_allclose(dg.bayesian_bootstrap_interval(values), whole, rtol=1e-12)


def test_accuracy_comparison_without_data_is_the_prior() -> None:
    # Uniform on the simplex: P(δ > t) = (1 − t)²/2 for t ≥ 0, so the 97.5% quantile is 1 − sqrt(0.05).
    nothing = np.zeros(0, dtype=bool)
    interval = dg.compare_accuracy(nothing, nothing)
    assert interval.mean == 0.0
    # The distribution function has a kink at t = s: Gauss-Legendre with 400 nodes is good to about 1e-5.
    assert interval.high == pytest.approx(1 - np.sqrt(0.05), abs=2e-5)
    assert interval.low == pytest.approx(-interval.high, abs=1e-8)


def test_accuracy_comparison_matches_dirichlet_draws() -> None:
    a = np.array([True] * 80 + [True] * 9 + [False] * 3 + [False] * 8)
    b = np.array([True] * 80 + [False] * 9 + [True] * 3 + [False] * 8)
    interval = dg.compare_accuracy(a, b)
    assert interval.mean == pytest.approx((9 - 3) / 103, rel=1e-14)
    p = np.random.default_rng(5).dirichlet([4.0, 89.0, 10.0], size=400_000)
    low, high = np.quantile(p[:, 2] - p[:, 0], [0.025, 0.975])
    # Spread of δ is 0.035 and the Monte Carlo error of these quantiles about 1.5e-4; four of them.
    assert interval.low == pytest.approx(low, abs=6e-4)
    assert interval.high == pytest.approx(high, abs=6e-4)
    swapped = dg.compare_accuracy(b, a)
    np.testing.assert_allclose(
        [swapped.mean, swapped.low, swapped.high], [-interval.mean, -interval.high, -interval.low], atol=1e-8
    )


def test_log_density_comparison_is_paired() -> None:
    rng = np.random.default_rng(6)
    b = rng.normal(-1.0, 3.0, size=200)
    interval = dg.compare_log_density(b + 0.5, b)
    # A constant difference is certain, however much the values themselves spread.
    np.testing.assert_allclose(interval[:3], 0.5, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dg.brier(PROBA, Y[:3]), r"got \(4, 3\) and \(3,\)"),
        (lambda: dg.brier(PROBA, Y + 2), r"codes 0\.\.2"),
        (lambda: dg.brier(PROBA, Y.astype(float)), "integer codes"),
        (lambda: dg.brier(PROBA * 1.1, Y), "sum to one"),
        (lambda: dg.bayesian_bootstrap_interval([0.0, -np.inf]), "1 of 2 values are not finite"),
        (lambda: dg.bayesian_bootstrap_interval([]), "non-empty"),
        (lambda: dg.bayesian_bootstrap_interval([1.0], level=95), "level must be between 0 and 1, got 95"),
        (lambda: dg.compare_log_density([0.0], [0.0, 1.0]), "same points"),
        (lambda: dg.compare_accuracy([1, 0], [1, 0]), "boolean"),
        (lambda: dg.compare_accuracy([True], [True], prior=0.0), "prior must be positive"),
        (lambda: dg.reliability_curve(PROBA, Y, n_bins=0), "n_bins=0: use an integer >= 1"),
    ],
)
def test_errors_say_what_to_change(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
