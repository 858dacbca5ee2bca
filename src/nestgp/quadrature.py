"""Multinomial probit integrals over class-independent latents, by one-dimensional quadrature (exact to about 1e-10).

With independent f_k ~ N(μ_k, σ_k²) the sum s = u + f_y is Gaussian, and everything follows from

    Z = ∫ N(s | μ_y, 1 + σ_y²) Π_{j≠y} Φ((s − μ_j)/√(1 + σ_j²)) ds

and its derivatives in μ. σ = 0 is the likelihood itself (eq. 4), cavity moments give the tilted moments of class-independent EP,
posterior moments the predictive probability of any class-independent method.
"""

import math

import numba
import numpy as np

from nestgp.tilted import log_ndtr_and_ratio

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
#: The integrand is followed until it has fallen by exp(−_DROP).
_DROP = 40.0
#: Nodes of one grid for all classes.
_MOST_NODES = 1000
#: Weight, beside that of the mode, at which `probit_slopes` ends.
_SMALLEST_WEIGHT = 1e-16
_jit = numba.njit(cache=True, nogil=True)


@_jit
def without(k, every, others):  # type: ignore[no-untyped-def]
    """All entries but the k-th, into ``others``."""
    others[:k] = every[:k]
    others[k:] = every[k + 1 :]


@_jit
def _log_integrand(s, mean_y, S, mean, sd):  # type: ignore[no-untyped-def]
    """log of the integrand at s, without the constant of N, and its first two derivatives."""
    d = (s - mean_y) / S
    value, first, second = -0.5 * d * (s - mean_y), -d, -1.0 / S
    for j in range(mean.size):
        log_cdf, r, r_plus_z = log_ndtr_and_ratio((s - mean[j]) / sd[j])
        value += log_cdf
        first += r / sd[j]
        second -= r * r_plus_z / (sd[j] * sd[j])
    return value, first, second


@_jit
def _mode(mean_y, S, mean, sd):  # type: ignore[no-untyped-def]
    """Maximum of the log-concave integrand by bracketed Newton steps; it lies at or above mean_y."""
    low, high = mean_y, np.inf
    s = mean_y
    for _ in range(200):
        _, first, second = _log_integrand(s, mean_y, S, mean, sd)
        if first >= 0.0:
            low = s
        else:
            high = s
        new = s - first / second
        if new <= low or new >= high:
            new = 0.5 * (low + high) if high < np.inf else s + 2.0 * math.sqrt(S)
        if abs(new - s) <= 1e-3 * math.sqrt(-1.0 / second) or new == s:
            break
        s = new
    return s


@_jit
def _range(mode, width, mean_y, S, mean, sd, top):  # type: ignore[no-untyped-def]
    """Where the integrand has fallen by exp(−_DROP) on either side of its mode."""
    low, high = mode, mode
    step = 4.0 * width
    while _log_integrand(low, mean_y, S, mean, sd)[0] > top - _DROP:
        low -= step
        step = width
    step = 4.0 * width
    while _log_integrand(high, mean_y, S, mean, sd)[0] > top - _DROP:
        high += step
        step = width
    return low, high


@_jit
def _rule(mode, width, mean_y, S, mean, sd, top):  # type: ignore[no-untyped-def]
    """Nodes and weights (2, q): the trapezoidal rule, or Gauss-Legendre panels where the scales differ so much that it is dearer.

    The integrand is entire and its Fourier transform falls like exp(−½ ω² h²), h² the harmonic sum of all variances, so a step
    of 0.7 h is exact to 1e-15. The panels are fine where a factor bends and coarse elsewhere.
    """
    low, high = _range(mode, width, mean_y, S, mean, sd, top)
    p = mean.size
    step = 0.7 / math.sqrt(1.0 / S + np.sum(1.0 / (sd * sd)))
    count = int((high - low) / step) + 2
    if count <= 20 * (6 * p + 13):
        step = (high - low) / (count - 1)
        out = np.empty((2, count))
        out[0] = low + step * np.arange(count)
        out[1] = step
        return out
    root = math.sqrt(S)
    points = np.empty(6 * p + 14)
    points[:2] = low, high
    points[2:9] = mode + width * np.array([-8.0, -4.0, -1.5, 0.0, 1.5, 4.0, 8.0])
    points[9:14] = mean_y + root * np.array([-5.0, -2.5, 0.0, 2.5, 5.0])
    for j in range(p):
        points[14 + 6 * j : 20 + 6 * j] = mean[j] + sd[j] * np.array([-7.0, -3.5, -1.0, 1.0, 3.5, 7.0])
    borders = np.unique(np.minimum(np.maximum(points, low), high))
    q = _NODES.size
    out = np.empty((2, q * (borders.size - 1)))
    for b in range(borders.size - 1):
        half = 0.5 * (borders[b + 1] - borders[b])
        out[0, b * q : (b + 1) * q] = borders[b] + half * (1.0 + _NODES)
        out[1, b * q : (b + 1) * q] = half * _WEIGHTS
    return out


@_jit
def _integrate(mean_y, S, mean, sd, slope, curvature, sums):  # type: ignore[no-untyped-def]
    """log Z, and −∂log Z/∂μ_j, −∂²log Z/∂μ_j² for the other classes; returns (log Z, −∂²log Z/∂μ_y²).

    ∂²log Z/∂μ_j² = Var[r_j]/sd_j² − E[r_j (r_j + z_j)]/sd_j², and the like for the sum over j, under the tilted density of s:
    no difference of nearly equal numbers is left. ``sums`` is scratch (3, p + 1): E[r], E[r²], E[r(r+z)], the last column for R.
    """
    p = mean.size
    mode = _mode(mean_y, S, mean, sd)
    top, _, second = _log_integrand(mode, mean_y, S, mean, sd)
    rule = _rule(mode, math.sqrt(-1.0 / second), mean_y, S, mean, sd, top)
    centre = np.empty(p + 1)
    centre[p] = 0.0
    for j in range(p):
        centre[j] = log_ndtr_and_ratio((mode - mean[j]) / sd[j])[1] / sd[j]
        centre[p] += centre[j]
    mass = 0.0
    sums[:] = 0.0
    at = np.empty((2, p + 1))
    for q in range(rule.shape[1]):
        s = rule[0, q]
        value = -0.5 * (s - mean_y) ** 2 / S
        at[0, p], at[1, p] = 0.0, 0.0
        for j in range(p):
            log_cdf, r, r_plus_z = log_ndtr_and_ratio((s - mean[j]) / sd[j])
            value += log_cdf
            at[0, j] = r / sd[j]
            at[1, j] = r * r_plus_z / (sd[j] * sd[j])
            at[0, p] += at[0, j]
            at[1, p] += at[1, j]
        w = rule[1, q] * math.exp(value - top)
        mass += w
        for j in range(p + 1):
            d = at[0, j] - centre[j]
            sums[0, j] += w * d
            sums[1, j] += w * d * d
            sums[2, j] += w * at[1, j]
    for j in range(p):
        shift = sums[0, j] / mass
        slope[j] = centre[j] + shift
        curvature[j] = max(sums[2, j] / mass - (sums[1, j] / mass - shift * shift), 0.0)
    shift = sums[0, p] / mass
    own = max(sums[2, p] / mass - (sums[1, p] / mass - shift * shift), 0.0)
    return math.log(mass) + top - 0.5 * math.log(2.0 * math.pi * S), own


@_jit
def probit_integrals(mean, variance, y, log_z, slope, curvature):  # type: ignore[no-untyped-def]
    """For every point: log Z (n,), ∂log Z/∂μ (n, c) and −∂²log Z/∂μ_k² (n, c), all outputs; mean, variance (n, c)."""
    n, c = mean.shape
    others = np.empty(c - 1)
    sd = np.empty(c - 1)
    first = np.empty(c - 1)
    second = np.empty(c - 1)
    sums = np.empty((3, c))
    for i in range(n):
        k = y[i]
        row = 0
        for j in range(c):
            if j != k:
                others[row] = mean[i, j]
                sd[row] = math.sqrt(1.0 + variance[i, j])
                row += 1
        log_z[i], own = _integrate(mean[i, k], 1.0 + variance[i, k], others, sd, first, second, sums)
        total = 0.0
        row = 0
        for j in range(c):
            if j != k:
                slope[i, j] = -first[row]
                curvature[i, j] = second[row]
                total += first[row]
                row += 1
        slope[i, k] = total
        curvature[i, k] = own


@_jit
def probit_probabilities(mean, variance, log_p):  # type: ignore[no-untyped-def]
    """log p(class k) of every class, the output (n, c), for independent latents with mean, variance (n, c).

    The trapezoidal rule of `_rule` on one grid for all classes of a row, since the factors Φ are nearly the same for each. The
    integrand of class k falls at least like exp(−½ d²/S_k) with the distance d from its mode, and the grid holds all of them.
    """
    n, c = mean.shape
    sd, mode, top, log_cdf, mass = np.empty(c), np.empty(c), np.empty(c), np.empty(c), np.empty(c)
    others, other_sd, scratch = np.empty(c - 1), np.empty(c - 1), np.empty((5, c))
    reach = math.sqrt(2.0 * _DROP)
    for i in range(n):
        low, high, sum_of_precisions = np.inf, -np.inf, 0.0
        for k in range(c):
            sd[k] = math.sqrt(1.0 + variance[i, k])
            sum_of_precisions += 1.0 / (1.0 + variance[i, k])
        for k in range(c):
            without(k, mean[i], others)
            without(k, sd, other_sd)
            mode[k] = _mode(mean[i, k], sd[k] * sd[k], others, other_sd)
            top[k] = _log_integrand(mode[k], mean[i, k], sd[k] * sd[k], others, other_sd)[0]
            low, high = min(low, mode[k] - reach * sd[k]), max(high, mode[k] + reach * sd[k])
        step = 0.7 / math.sqrt(sum_of_precisions)
        if not (high - low) / step < _MOST_NODES:  # scales too different for one grid
            for k in range(c):
                without(k, mean[i], others)
                without(k, sd, other_sd)
                args = (others, other_sd, scratch[0, 1:], scratch[1, 1:], scratch[2:])
                log_p[i, k] = _integrate(mean[i, k], sd[k] * sd[k], *args)[0]
            continue
        mass[:] = 0.0
        for q in range(int((high - low) / step) + 1):
            s = low + q * step
            total = 0.0
            for k in range(c):
                log_cdf[k] = log_ndtr_and_ratio((s - mean[i, k]) / sd[k])[0]
                total += log_cdf[k]
            for k in range(c):
                d = (s - mean[i, k]) / sd[k]
                fall = total - log_cdf[k] - 0.5 * d * d - top[k]
                if fall > -_DROP:
                    mass[k] += math.exp(fall)
        for k in range(c):
            log_p[i, k] = math.log(mass[k] * step / sd[k]) + top[k] - 0.5 * math.log(2.0 * math.pi)


@_jit
def _add_node(s, others, top, ratio, first):  # type: ignore[no-untyped-def]
    """Weight exp(log integrand − top) of a node at unit variances and μ_y = 0, added to ``first`` (p,) times the ratios there."""
    value = -0.5 * s * s
    for j in range(others.size):
        log_cdf, ratio[j], _ = log_ndtr_and_ratio(s - others[j])
        value += log_cdf
    w = math.exp(value - top)
    for j in range(others.size):
        first[j] += w * ratio[j]
    return w


@_jit
def probit_slopes(f, y, log_p, slope):  # type: ignore[no-untyped-def]
    """log p(y_i | f_i) (n,) and its gradient (n, c), both outputs, at latents f (n, c).

    The trapezoidal rule with a step of 0.8 h (see `_rule`), exact to 1e-12, in about half the time of `probit_integrals`.
    """
    n, c = f.shape
    p = c - 1
    others, ratio, first = np.empty(p), np.empty(p), np.empty(p)
    sd = np.ones(p)
    step = 0.8 / math.sqrt(c)
    most = int(12.0 * math.sqrt(c)) + 2  # the curvature is at least 1: a weight is below 1e-16 at a distance of 8.6
    for i in range(n):
        k = y[i]
        without(k, f[i], others)
        others -= f[i, k]
        mode = _mode(0.0, 1.0, others, sd)
        top = _log_integrand(mode, 0.0, 1.0, others, sd)[0]
        first[:] = 0.0
        mass = _add_node(mode, others, top, ratio, first)
        for side in (-step, step):
            for q in range(1, most):
                w = _add_node(mode + q * side, others, top, ratio, first)
                mass += w
                if not w > _SMALLEST_WEIGHT:
                    break
        log_p[i] = math.log(mass * step) + top - 0.5 * math.log(2.0 * math.pi)
        slope[i, k] = first.sum() / mass
        for j in range(p):
            slope[i, j if j < k else j + 1] = -first[j] / mass


@_jit
def probit_hessians(f, y, log_p, slope, hessian):  # type: ignore[no-untyped-def]
    """log p(y_i | f_i) (n,), its gradient (n, c) and negative Hessian W_i (n, c, c) at latents f (n, c); all outputs.

    For j, l ≠ y: W_jl = δ_jl E[r_j (r_j + z_j)] − Cov[r_j, r_l]; the row and column of y follow from W 1 = 0.
    """
    n, c = f.shape
    p = c - 1
    others = np.empty(p)
    sd = np.ones(p)
    centre = np.empty(p)
    r = np.empty(p)
    own = np.empty(p)
    bend = np.empty(p)
    first = np.empty(p)
    second = np.empty((p, p))
    for i in range(n):
        k = y[i]
        without(k, f[i], others)
        mode = _mode(f[i, k], 1.0, others, sd)
        top, _, curvature = _log_integrand(mode, f[i, k], 1.0, others, sd)
        rule = _rule(mode, math.sqrt(-1.0 / curvature), f[i, k], 1.0, others, sd, top)
        for j in range(p):
            centre[j] = log_ndtr_and_ratio(mode - others[j])[1]
        mass = 0.0
        first[:] = 0.0
        bend[:] = 0.0
        second[:] = 0.0
        for q in range(rule.shape[1]):
            s = rule[0, q]
            value = -0.5 * (s - f[i, k]) ** 2
            w = rule[1, q]
            for j in range(p):
                log_cdf, ratio, ratio_plus_z = log_ndtr_and_ratio(s - others[j])
                value += log_cdf
                r[j] = ratio - centre[j]
                own[j] = ratio * ratio_plus_z
            w *= math.exp(value - top)
            mass += w
            for j in range(p):
                first[j] += w * r[j]
                bend[j] += w * own[j]
                for m in range(j + 1):
                    second[j, m] += w * r[j] * r[m]
        log_p[i] = math.log(mass) + top - 0.5 * math.log(2.0 * math.pi)
        _fill_hessian(k, mass, centre, first, bend, second, slope[i], hessian[i])


@_jit
def _fill_hessian(k, mass, centre, first, bend, second, slope, W):  # type: ignore[no-untyped-def]
    """Gradient and negative Hessian of one point from the sums over its nodes."""
    p = centre.size
    slope[k] = 0.0
    W[:] = 0.0
    for j in range(p):
        a = j if j < k else j + 1
        mean = centre[j] + first[j] / mass
        slope[a] = -mean
        slope[k] += mean
        for m in range(j + 1):
            b = m if m < k else m + 1
            covariance = second[j, m] / mass - first[j] * first[m] / (mass * mass)
            W[a, b] = (bend[j] / mass if j == m else 0.0) - covariance
            W[b, a] = W[a, b]
    for a in range(p + 1):
        if a != k:
            total = 0.0
            for b in range(p + 1):
                if b != k:
                    total += W[a, b]
            W[a, k] = -total
            W[k, a] = -total
            W[k, k] += total
