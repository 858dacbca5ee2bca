"""Latent moments → class probabilities.

Multinomial probit: with latents N(μ, Σ) at an input, class k has the probability that v_k is the largest of v ~ N(μ, Σ + I), an
orthant probability of the c − 1 differences v_k − v_j. Two rules: inner EP (fast, within about 1e-3), and the integral itself.
Softmax: the integral by quasi-Monte Carlo.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri, ndtri_exp, owens_t
from scipy.stats import qmc

from nestgp import tilted
from nestgp.arrays import FloatArray, IntArray
from nestgp.likelihoods import softmax_log_probabilities
from nestgp.quadrature import probit_probabilities
from nestgp.threads import for_each, single_threaded_blas

Rule = Callable[[FloatArray, FloatArray], FloatArray]

#: Inner EP for a probability stops at this residual; it takes 5 to 20 sweeps.
EP_TOL, EP_SWEEPS = 1e-9, 500
#: Points of the quasi-Monte Carlo rule for the probit, a power of two.
QMC_POINTS = 4096
#: Fewest and most points for the softmax, and the agreement of two halves that ends the doubling.
SOFTMAX_POINTS, SOFTMAX_TOL = (16384, 524288), 5e-5
#: Most of those numbers kept (64 MB): fewer points where there are many classes.
SOFTMAX_NUMBERS = 1 << 23
#: Softmax probabilities below this are integrated around where they come from, with so many points.
TAIL, TAIL_POINTS, TAIL_STEPS = 1e-3, 4096, 50
#: Relative negative variance that is rounding and no error.
NEGATIVE = 1e-2
#: Relative variance that tells equal principal axes apart: far below the integration error, far above rounding.
TIE_BREAK = 1e-6
_ROWS_PER_TASK = 256


def class_probabilities(mean: FloatArray, cov: FloatArray, rule: str = "ep", likelihood: str = "probit") -> FloatArray:
    """Log class probabilities (m, c), normalised, for a mixture of S latent Gaussians.

    Parameters
    ----------
    mean : (S, m, c); cov : (S, m, c, c).
    rule : "ep" (probit only) or "exact"; likelihood : "probit" or "softmax".
    """
    logs = component_log_probabilities(mean, cov, rule, likelihood)
    return logs[0] if len(logs) == 1 else logsumexp(logs, axis=0) - np.log(len(logs))


def component_log_probabilities(mean: FloatArray, cov: FloatArray, rule: str, likelihood: str) -> FloatArray:
    """Log class probabilities (S, m, c) of every component of a mixture by itself; parameters of :func:`class_probabilities`."""
    check_rule(rule, likelihood)
    different = cov[:1] if cov.strides[0] == 0 else cov  # draws that share their hyperparameters share their covariances
    broken = sum(int(broken_covariances(each).sum()) for each in different)
    if broken:  # and then there is no telling which digits are left of the others
        raise ArithmeticError(
            f"the latent covariances of {broken} of {cov.shape[0] * cov.shape[1]} rows have lost their digits: some variance is "
            "negative. The kernel is too large for double precision: scale the columns of X, or bound its variance"
        )
    integrate = RULES[likelihood][rule]
    if likelihood == "softmax" and len(mean) > 1:  # draws average over most of the integration error: each needs fewer points
        integrate = partial(softmax_exact_log_probabilities, points=max(256, 65536 // len(mean)))
    return np.stack([_normalise(integrate(m, s)) for m, s in zip(mean, cov, strict=True)])


def broken_covariances(cov: FloatArray) -> NDArray[np.bool_]:
    """Where some f_k − f_l has a clearly negative variance, (m,); cov (m, c, c)."""
    out = np.empty(len(cov), dtype=bool)
    for first in range(0, len(cov), _ROWS_PER_TASK):
        part = cov[first : first + _ROWS_PER_TASK]
        variance = np.einsum("mkk->mk", part)
        of_differences = variance[:, :, None] + variance[:, None, :] - 2.0 * part
        lowest, largest = of_differences.min(axis=(1, 2), initial=0.0), of_differences.max(axis=(1, 2), initial=0.0)
        out[first : first + _ROWS_PER_TASK] = lowest < -NEGATIVE * (1.0 + largest)
    return out


def check_rule(rule: str, likelihood: str) -> None:
    """ValueError unless the likelihood has that rule."""
    if rule not in RULES[likelihood]:
        raise ValueError(f"probabilities={rule!r}: with the {likelihood} likelihood use one of {sorted(RULES[likelihood])}")


def _normalise(log_p: FloatArray) -> FloatArray:
    return log_p - logsumexp(log_p, axis=1, keepdims=True)


def ep_log_probabilities(mean: FloatArray, cov: FloatArray) -> FloatArray:
    """log Ẑ of inner EP for every row and candidate class (m, c), not normalised (appendices A and B)."""
    m, c = mean.shape
    table = tilted.multinomial_probit(c)
    rows, cols = np.tril_indices(c)
    out = np.empty((m, c))
    starts = range(0, m, _ROWS_PER_TASK)
    contrast = (table.index, table.coefficient, table.loading)

    def work(task: int) -> None:
        part = slice(starts[task], starts[task] + _ROWS_PER_TASK)
        packed = np.ascontiguousarray(cov[part][:, rows, cols])
        tilted.log_normalisers(np.ascontiguousarray(mean[part]), packed, *contrast, EP_SWEEPS, EP_TOL, out[part])

    with single_threaded_blas() as workers:
        for_each(work, len(starts), workers)
    broken = ~np.isfinite(out).all(axis=1)
    if broken.any():  # moments so extreme that inner EP has no valid cavity: integrate instead
        out[broken] = exact_log_probabilities(mean[broken], cov[broken])
    return out


def exact_log_probabilities(mean: FloatArray, cov: FloatArray) -> FloatArray:
    """Log of the integral for every row and class (m, c): closed form for c = 2, Owen's T for 3, quasi-Monte Carlo above.

    Independent latents need only one dimension whatever c (:mod:`nestgp.quadrature`). The quasi-Monte Carlo points are fixed, so
    the answer is the same from run to run; its error is about 1e-5 up to six classes and 1e-4 above.
    """
    c = mean.shape[1]
    alone = ~np.any(cov[:, ~np.eye(c, dtype=bool)], axis=1)
    out = np.empty(mean.shape)
    out[alone] = _independent_log_probabilities(mean[alone], np.einsum("mkk->mk", cov[alone]))
    out[~alone] = _coupled_log_probabilities(mean[~alone], cov[~alone])
    return out


def _coupled_log_probabilities(mean: FloatArray, cov: FloatArray) -> FloatArray:
    m, c = mean.shape
    out = np.empty((m, c))
    noisy = cov + np.eye(c)
    for k in range(c):
        others = np.array([j for j in range(c) if j != k])
        b = mean[:, [k]] - mean[:, others]
        cross = noisy[:, k, others]
        V = noisy[:, k, k][:, None, None] - cross[:, :, None] - cross[:, None, :] + noisy[:, others[:, None], others]
        out[:, k] = _log_orthant(b, V)
    return out


def _independent_log_probabilities(mean: FloatArray, variance: FloatArray) -> FloatArray:
    out = np.empty(mean.shape)
    mean, variance = np.ascontiguousarray(mean), np.ascontiguousarray(np.maximum(variance, 0.0))
    starts = range(0, len(mean), _ROWS_PER_TASK)

    def work(task: int) -> None:
        part = slice(starts[task], starts[task] + _ROWS_PER_TASK)
        probit_probabilities(mean[part], variance[part], out[part])

    with single_threaded_blas() as workers:
        for_each(work, len(starts), workers)
    return out


def softmax_exact_log_probabilities(mean: FloatArray, cov: FloatArray, points: int | None = None) -> FloatArray:
    """log E[softmax(f)] for f ~ N(mean, cov), (m, c), by fixed quasi-Monte Carlo points.

    Each row takes as many points as it needs: their number doubles until the new half and the old one agree to within 5e-5, so
    that their mean is about twice as good, and :func:`_log_tail` has the small probabilities. ``points`` fixes the number
    instead.
    A shift common to all classes changes nothing and is projected out. The points go through the principal axes of what is left,
    so that the best-spread coordinates meet the largest variance; equal variances, whose axes would be rounding error's choice
    and so differ from batch to batch, are told apart by a millionth.
    """
    m, c = mean.shape
    out = np.empty((m, c))
    centre = np.eye(c) - 1.0 / c
    centred = centre @ cov @ centre
    apart = centre @ np.diag(np.arange(c) / c**2) @ centre
    values, vectors = np.linalg.eigh(centred + TIE_BREAK * np.einsum("mkk->m", centred)[:, None, None] * apart)
    roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    roots = np.ascontiguousarray(roots[:, :, :0:-1])

    def work(i: int) -> None:
        if points is not None:
            p = _mean_softmax(_normal_points(c - 1, points), mean[i], roots[i])
        else:
            p = _adaptive_mean_softmax(mean[i], roots[i])
        out[i] = np.log(np.maximum(p, 1e-300))
        if points is None:
            small = np.flatnonzero(p < TAIL)
            out[i, small] = _log_tail(small, mean[i], roots[i])

    with single_threaded_blas() as workers:
        for_each(work, m, workers if points is None else 1)  # a row with few points takes less time than a thread to hand it to
    return out


def _adaptive_mean_softmax(mean: FloatArray, root: FloatArray) -> FloatArray:
    most = min(SOFTMAX_POINTS[1], SOFTMAX_NUMBERS // root.shape[1])
    count = SOFTMAX_POINTS[0]
    p = _mean_softmax(_normal_points(root.shape[1], count), mean, root)
    while 2 * count <= most:
        more = _mean_softmax(_normal_points(root.shape[1], 2 * count)[count:], mean, root)
        gap = float(np.abs(p - more).max())
        p = 0.5 * (p + more)
        count *= 2
        if gap <= SOFTMAX_TOL:
            break
    return p


def _mean_softmax(z: FloatArray, mean: FloatArray, root: FloatArray) -> FloatArray:
    """Mean of softmax(mean + root z) over the rows of z, (c,)."""
    total = np.zeros(len(mean))
    for first in range(0, len(z), SOFTMAX_POINTS[0]):
        f = z[first : first + SOFTMAX_POINTS[0]] @ root.T
        f += mean
        f -= f.max(axis=1, keepdims=True)
        np.exp(f, out=f)
        f /= f.sum(axis=1, keepdims=True)
        total += f.sum(axis=0)
    return total / len(z)


def _log_tail(classes: IntArray, mean: FloatArray, root: FloatArray) -> FloatArray:
    """log E[softmax_k(mean + root z)] for classes k whose probability comes from far out: z = a + u, u standard normal.

    a is where softmax_k(z) N(z) is largest. The weight of a point is then exp(log softmax_k(a + u) − aᵀu − ½|a|²), and as
    log softmax is concave, with slope a at a, no weight exceeds that of u = 0: the relative error stays bounded however small p.
    """
    out = np.empty(classes.size)
    u = _normal_points(root.shape[1], TAIL_POINTS)
    for j, k in enumerate(classes):
        a = _largest_contribution(k, mean, root)
        log_p = softmax_log_probabilities(mean + (a + u) @ root.T)[:, k]
        out[j] = logsumexp(log_p - u @ a) - 0.5 * float(a @ a) - np.log(len(u))
    return out


def _largest_contribution(k: int, mean: FloatArray, root: FloatArray) -> FloatArray:
    """The maximum of log softmax_k(mean + root z) − ½|z|², a concave function, by Newton's method."""

    def value(z: FloatArray) -> tuple[float, FloatArray]:
        log_p = softmax_log_probabilities((mean + root @ z)[None])[0]
        return float(log_p[k] - 0.5 * z @ z), np.exp(log_p)

    z = np.zeros(root.shape[1])
    now, p = value(z)
    for _ in range(TAIL_STEPS):
        slope = root[k] - root.T @ p - z
        curvature = root.T @ (p[:, None] * root) - np.outer(root.T @ p, root.T @ p) + np.eye(z.size)
        step = np.linalg.solve(curvature, slope)
        if float(slope @ step) < 1e-6:
            break
        length = 1.0
        while (then := value(z + length * step))[0] < now and length > 1e-6:
            length *= 0.5
        z, (now, p) = z + length * step, then
    return z


@cache
def _normal_points(dimension: int, points: int) -> FloatArray:
    """(points, dimension) fixed standard normal points; the first half of 2n points are the n points."""
    u = qmc.Sobol(dimension, scramble=True, rng=20130101).random(2 ** int(np.ceil(np.log2(points))))
    return ndtri(np.clip(u, 1e-12, 1.0 - 1e-12))


def _log_orthant(b: FloatArray, V: FloatArray) -> FloatArray:
    """log P(x < b) for x ~ N(0, V), rows of b (m, p) and V (m, p, p)."""
    p = b.shape[1]
    sd = np.sqrt(np.einsum("mjj->mj", V))
    if p == 1:
        return log_ndtr(b[:, 0] / sd[:, 0])
    if p > 2:
        return _separation_of_variables(b, V)
    h, k = (b / sd).T
    value = _bivariate_normal(h, k, V[:, 0, 1] / (sd[:, 0] * sd[:, 1]))
    small = value < 1e-8  # a difference of numbers near ½: right to 1e-16, not relatively
    log_value = np.log(np.maximum(value, 1e-300))
    if small.any():
        log_value[small] = _separation_of_variables(b[small], V[small])
    return log_value


def _bivariate_normal(h: FloatArray, k: FloatArray, rho: FloatArray) -> FloatArray:
    """P(x < h, y < k) of a standard bivariate normal by Owen's T function."""
    h = np.where(np.abs(h) < 1e-300, 1e-300, h)
    k = np.where(np.abs(k) < 1e-300, 1e-300, k)
    root = np.sqrt(np.maximum((1.0 - rho) * (1.0 + rho), 1e-300))
    value = 0.5 * (ndtr(h) + ndtr(k)) - owens_t(h, (k / h - rho) / root) - owens_t(k, (h / k - rho) / root)
    return np.maximum(np.where((h < 0) != (k < 0), value - 0.5, value), 0.0)  # h k itself may underflow


@cache
def _sobol(dimension: int) -> FloatArray:
    """(dimension, points) fixed scrambled Sobol points, folded by the tent map so that the integrand is periodic."""
    points = qmc.Sobol(dimension, scramble=True, rng=20130101).random(QMC_POINTS)
    return np.ascontiguousarray((1.0 - np.abs(2.0 * points - 1.0)).T)


def _separation_of_variables(b: FloatArray, V: FloatArray) -> FloatArray:
    """log P(x < b) by Genz's transformation to the unit cube, the least likely variable first."""
    m, p = b.shape
    log_u = np.log(_sobol(p - 1))
    out = np.empty(m)
    rows = max(1, (32 << 20) // (8 * QMC_POINTS * p))
    for start in range(0, m, rows):
        part = slice(start, start + rows)
        limits, L = _ordered_cholesky(b[part].copy(), V[part].copy())
        size = limits.shape[0]
        y = np.empty((p - 1, size, QMC_POINTS))
        log_p = np.zeros((size, QMC_POINTS))
        for i in range(p):
            t = np.repeat(limits[:, i : i + 1], QMC_POINTS, axis=1)
            for j in range(i):
                t -= L[:, i, j, None] * y[j]
            t /= L[:, i, i, None]
            log_e = log_ndtr(t)
            log_p += log_e
            if i < p - 1:
                y[i] = ndtri_exp(log_u[i] + log_e)
        out[part] = logsumexp(log_p, axis=1) - np.log(QMC_POINTS)
    return out


def _ordered_cholesky(b: FloatArray, V: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Cholesky factors of V (m, p, p), variables reordered so that the conditionally least likely x_i < b_i comes first."""
    m, p = b.shape
    L = np.zeros_like(V)
    y = np.zeros((m, p))
    every = np.arange(m)
    for j in range(p):
        left = np.maximum(np.einsum("mii->mi", V)[:, j:] - (L[:, j:, :j] ** 2).sum(axis=2), 1e-300)
        t = (b[:, j:] - np.einsum("mir,mr->mi", L[:, j:, :j], y[:, :j])) / np.sqrt(left)
        pivot = j + t.argmin(axis=1)
        for a in (b, V, L):
            a[every, j], a[every, pivot] = a[every, pivot].copy(), a[every, j].copy()
        V[every, :, j], V[every, :, pivot] = V[every, :, pivot].copy(), V[every, :, j].copy()
        L[:, j, j] = np.sqrt(np.maximum(V[:, j, j] - (L[:, j, :j] ** 2).sum(axis=1), 1e-300))
        below = V[:, j + 1 :, j] - np.einsum("mir,mr->mi", L[:, j + 1 :, :j], L[:, j, :j])
        L[:, j + 1 :, j] = below / L[:, j, j, None]
        limit = (b[:, j] - np.einsum("mr,mr->m", L[:, j, :j], y[:, :j])) / L[:, j, j]
        y[:, j] = -np.exp(-0.5 * limit**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(limit))  # mean of the truncated normal
    return b, L


RULES: dict[str, dict[str, Rule]] = {
    "probit": {"ep": ep_log_probabilities, "exact": exact_log_probabilities},
    "softmax": {"exact": softmax_exact_log_probabilities},
}
