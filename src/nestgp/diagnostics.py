"""Scores, calibration and paired comparison of class probabilities.

Pure functions. `proba` is (n, c) with rows that sum to one, as `predict_proba` returns; `y` is (n,), integer
codes 0..c−1.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv

from nestgp.arrays import FloatArray

Seed = int | np.random.Generator | None

_BOOTSTRAP_BLOCK = 2**20  # weights held in memory at once
_BOOTSTRAP_DRAWS = 4000


class Interval(NamedTuple):
    """A mean and a central credible interval that holds `level` of the posterior."""

    mean: float
    low: float
    high: float
    level: float = 0.95


class ReliabilityCurve(NamedTuple):
    """Non-empty bins of the largest class probability, each array (n_bins,) or shorter."""

    confidence: FloatArray  # mean of the largest probability in the bin
    accuracy: FloatArray  # share of the bin whose most probable class was the true one
    low: FloatArray  # 95% interval of that share, Beta posterior with Jeffreys' prior
    high: FloatArray
    size: NDArray[np.int64]  # points in the bin


def log_predictive_density(proba: ArrayLike, y: ArrayLike) -> FloatArray:
    """log p(y_i | x_i, data) of each point, (n,); −∞ where the true class was given probability zero."""
    p, codes = _checked(proba, y)
    with np.errstate(divide="ignore"):
        return np.log(p[np.arange(codes.size), codes])


def mean_log_predictive_density(proba: ArrayLike, y: ArrayLike) -> float:
    """Mean over points of log p(y_i | x_i, data): 0 is perfect, −log c is what ignorance scores.

    >>> round(mean_log_predictive_density([[0.5, 0.5], [0.1, 0.9]], [0, 1]), 6)
    -0.399254
    """
    return float(np.mean(log_predictive_density(proba, y)))


def accuracy(proba: ArrayLike, y: ArrayLike) -> float:
    """Share of points whose most probable class is the true one."""
    p, codes = _checked(proba, y)
    return float(np.mean(p.argmax(axis=1) == codes))


def brier(proba: ArrayLike, y: ArrayLike) -> float:
    """Brier score, mean of Σ_k (p_ik − [y_i = k])²: 0 is perfect, 2 is certain and always wrong.

    >>> brier([[0.5, 0.5], [0.0, 1.0]], [0, 1])
    0.25
    """
    p, codes = _checked(proba, y)
    onehot = np.eye(p.shape[1])[codes]
    return float(np.mean(np.sum((p - onehot) ** 2, axis=1)))


def reliability_curve(proba: ArrayLike, y: ArrayLike, n_bins: int = 10) -> ReliabilityCurve:
    """How often the most probable class was right, in equal-width bins of its probability.

    Calibrated probabilities have accuracy = confidence in every bin, up to the intervals.
    """
    p, codes = _checked(proba, y)
    if not (isinstance(n_bins, int | np.integer) and n_bins >= 1):
        raise ValueError(f"n_bins={n_bins!r}: use an integer >= 1")
    top = p.max(axis=1)
    correct = (p.argmax(axis=1) == codes).astype(np.float64)
    # The right edge belongs to its bin: a probability of exactly one is in the last, not beyond it.
    bins = np.clip(np.ceil(top * n_bins).astype(np.int64) - 1, 0, n_bins - 1)
    count = np.bincount(bins, minlength=n_bins)
    used = count > 0
    n = count[used]
    hits = np.bincount(bins, weights=correct, minlength=n_bins)[used]
    confidence = np.bincount(bins, weights=top, minlength=n_bins)[used] / n
    # At the ends Jeffreys' interval is closed by convention: no misses leave 1 possible, no hits leave 0.
    low = np.where(hits == 0, 0.0, betaincinv(hits + 0.5, n - hits + 0.5, 0.025))
    high = np.where(hits == n, 1.0, betaincinv(hits + 0.5, n - hits + 0.5, 0.975))
    return ReliabilityCurve(confidence, hits / n, low, high, n)


def expected_calibration_error(proba: ArrayLike, y: ArrayLike, n_bins: int = 10) -> float:
    """Σ_b (n_b / n) |accuracy_b − confidence_b| over the bins of `reliability_curve`.

    Biased upwards when bins hold few points: compare it only between methods on the same points.
    """
    curve = reliability_curve(proba, y, n_bins)
    gap = np.abs(curve.accuracy - curve.confidence)
    return float(np.sum(curve.size * gap) / np.sum(curve.size))


def bayesian_bootstrap_interval(
    values: ArrayLike, level: float = 0.95, n: int = _BOOTSTRAP_DRAWS, rng: Seed = 0
) -> Interval:
    """Mean of the values and a credible interval for the mean of what they were drawn from.

    The Bayesian bootstrap: the mean is Σ_i w_i values_i with w ~ Dirichlet(1, …, 1), drawn `n` times. The
    default seed is fixed, so the same values give the same interval.
    """
    v = np.asarray(values, dtype=np.float64)
    if v.ndim != 1 or v.size == 0:
        raise ValueError(f"values must be a non-empty one-dimensional array, got shape {v.shape}")
    if not np.all(np.isfinite(v)):
        raise ValueError(
            f"{np.sum(~np.isfinite(v))} of {v.size} values are not finite: no interval exists "
            "(a log density of −∞ means that probability zero was given to what happened)"
        )
    if not (isinstance(n, int | np.integer) and n >= 1):
        raise ValueError(f"n={n!r}: use an integer >= 1")
    tail = _tail(level)
    generator = np.random.default_rng(rng)
    means = np.empty(n)
    rows = max(1, _BOOTSTRAP_BLOCK // v.size)
    for start in range(0, n, rows):
        # Exponentials over their sum are Dirichlet(1, …, 1).
        w = generator.standard_exponential((min(rows, n - start), v.size))
        means[start : start + rows] = (w @ v) / w.sum(axis=1)
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(v.mean()), float(low), float(high), level)


def compare_log_density(lpd_a: ArrayLike, lpd_b: ArrayLike, level: float = 0.95, rng: Seed = 0) -> Interval:
    """Mean of lpd_a − lpd_b over the same points, Bayesian bootstrap interval; above zero a is better."""
    a, b = np.asarray(lpd_a, dtype=np.float64), np.asarray(lpd_b, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"a paired comparison needs the same points: got shapes {a.shape} and {b.shape}")
    return bayesian_bootstrap_interval(a - b, level=level, rng=rng)


def compare_accuracy(
    correct_a: ArrayLike, correct_b: ArrayLike, level: float = 0.95, prior: float = 1.0
) -> Interval:
    """Posterior of accuracy(a) − accuracy(b) on the same points; above zero a is better.

    Each point is worse, same or better under a than under b: a multinomial with Dirichlet prior (section
    5.4), so the difference is δ = p_better − p_worse with p ~ Dirichlet(counts + prior). The paper does not
    say which non-informative prior it took; the default is the uniform one. Quantiles come from the exact
    distribution function, not from draws.

    >>> compare_accuracy([True] * 10, [True] * 10).mean
    0.0
    """
    a, b = np.asarray(correct_a), np.asarray(correct_b)
    if a.shape != b.shape or a.ndim != 1 or a.dtype != bool or b.dtype != bool:
        raise ValueError(
            f"need two boolean arrays over the same points, got {a.dtype} {a.shape} and {b.dtype} {b.shape}"
        )
    if prior <= 0:
        raise ValueError(f"prior must be positive, got {prior}")
    better = float(np.sum(a & ~b)) + prior
    worse = float(np.sum(b & ~a)) + prior
    same = float(np.sum(a == b)) + prior
    tail = _tail(level)
    low, high = (_difference_quantile(q, worse, same, better) for q in (tail, 1 - tail))
    return Interval((better - worse) / (better + same + worse), low, high, level)


def _difference_quantile(q: float, worse: float, same: float, better: float) -> float:
    """The t with P(p_better − p_worse ≤ t) = q under Dirichlet(worse, same, better).

    With s = p_better + p_worse ~ Beta(better + worse, same) and r = p_better / s ~ Beta(better, worse),
    independent, p_better − p_worse = s(2r − 1) and P(· ≤ t) = E_s P(r ≤ (1 + t/s)/2): one integral, on the
    quantiles of s.
    """
    nodes, weights = np.polynomial.legendre.leggauss(400)
    s = betaincinv(better + worse, same, (nodes + 1) / 2)

    def excess(t: float) -> float:
        r = np.clip((1 + t / s) / 2, 0.0, 1.0)
        return float(weights @ betainc(better, worse, r)) / 2 - q

    return float(brentq(excess, -1.0, 1.0, xtol=1e-10))


def _tail(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    return (1 - level) / 2


def _checked(proba: ArrayLike, y: ArrayLike) -> tuple[FloatArray, NDArray[np.intp]]:
    p, codes = np.asarray(proba, dtype=np.float64), np.asarray(y)
    if p.ndim != 2 or codes.shape != p.shape[:1] or codes.size == 0:
        raise ValueError(f"need proba (n, c) and y (n,) with n > 0, got {p.shape} and {codes.shape}")
    if not np.issubdtype(codes.dtype, np.integer) or codes.min() < 0 or codes.max() >= p.shape[1]:
        raise ValueError(
            f"y must hold integer codes 0..{p.shape[1] - 1}; "
            "for labels use np.searchsorted(clf.classes_, labels)"
        )
    if not (np.all(p >= 0) and np.allclose(p.sum(axis=1), 1.0, rtol=0, atol=1e-6)):
        raise ValueError("each row of proba must be non-negative and sum to one")
    return p, codes.astype(np.intp)
