"""Inner EP: moments of a Gaussian times probit factors Φ(g_j), g = C f + h u, batched over points (appendix A).

A likelihood enters only through its *contrast*: the matrix [C | h] that turns the latents f and one auxiliary variable
u ~ N(0, 1) into the arguments g of the probit factors. The multinomial probit has g_j = f_y − f_j + u. Everything happens
in the p-dimensional space of g, so no c×c matrix is ever inverted, and the posterior of g *with* its sites follows from
that of f without forming a cavity:

    u | f ~ N((hᵀβ̃ − hᵀT̃ C f)/s, 1/s),  s = 1 + Σ_j h_j² α̃_j      ⇒      cov g = G C Σ Cᵀ Gᵀ + h hᵀ/s,  G = I − h (hα̃)ᵀ/s
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numba
import numpy as np

from nestgp.arrays import FloatArray, IntArray

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_SQRT_HALF = math.sqrt(0.5)
_jit = numba.njit(cache=True, nogil=True)


@dataclass(frozen=True)
class Contrast:
    """Sparse rows of [C | h] for every kind of observation (for classes: one kind per observed class).

    Attributes
    ----------
    index, coefficient : (kinds, p, r); row j of C has ``coefficient[..., j, s]`` in column ``index[..., j, s]``.
    loading : (kinds, p), the column h of the auxiliary variable.
    """

    index: IntArray
    coefficient: FloatArray
    loading: FloatArray

    @classmethod
    def from_dense(cls, matrices: FloatArray) -> Contrast:
        """From dense matrices [C | h], (kinds, p, c + 1)."""
        C, h = matrices[..., :-1], matrices[..., -1]
        width = max(1, int((C != 0).sum(axis=-1).max()))
        index = np.argsort(C == 0, axis=-1, kind="stable")[..., :width]
        coefficient = np.take_along_axis(C, index, axis=-1)
        return cls(np.ascontiguousarray(index), np.ascontiguousarray(coefficient), np.ascontiguousarray(h))


@cache
def multinomial_probit(n_classes: int) -> Contrast:
    """Rows e_y − e_j for j ≠ y in increasing order, h = 1 (section 3.2.1)."""
    c = n_classes
    matrices = np.zeros((c, c - 1, c + 1))
    for y in range(c):
        for row, j in enumerate(k for k in range(c) if k != y):
            matrices[y, row, [y, j, c]] = 1.0, -1.0, 1.0
    return Contrast.from_dense(matrices)


@_jit
def log_ndtr_and_ratio(z):  # type: ignore[no-untyped-def]
    """log Φ(z), r = φ(z)/Φ(z), and r + z, accurate for every z.

    Below −8 by Mills' continued fraction r = x + 1/(x + 2/(x + …)), x = −z: Φ itself underflows at −38, and r + z cancels.
    """
    if z < -8.0:
        x = -z
        tail = x
        for k in range(30, 1, -1):
            tail = x + k / tail
        ratio = x + 1.0 / tail
        return -0.5 * z * z - _LOG_SQRT_2PI - math.log(ratio), ratio, 1.0 / tail
    if z > 0.0:
        log_cdf = math.log1p(-0.5 * math.erfc(z * _SQRT_HALF))
    else:
        log_cdf = math.log(0.5 * math.erfc(-z * _SQRT_HALF))
    ratio = math.exp(-0.5 * z * z - _LOG_SQRT_2PI - log_cdf)
    return log_cdf, ratio, ratio + z


@_jit
def probit_moments(m, v):  # type: ignore[no-untyped-def]
    """log Ẑ, m̂, v̂ and 1 − v̂/v of N(g | m, v) Φ(g) (eqs. 32-34).

    With q = r (r + z): v̂ = v − v² q/(1 + v) = v (1 + v (1 − q))/(1 + v), which does not cancel for large v.
    """
    scale = math.sqrt(1.0 + v)
    log_z, ratio, ratio_plus_z = log_ndtr_and_ratio(m / scale)
    q = ratio * ratio_plus_z
    return log_z, m + v * ratio / scale, v * (1.0 + v * (1.0 - q)) / (1.0 + v), v * q / (1.0 + v)


@_jit
def log_site_integral(m, v, alpha, beta):  # type: ignore[no-untyped-def]
    """log ∫ N(g | m, v) exp(−½ α̃ g² + β̃ g) dg."""
    t = 1.0 + alpha * v
    return -0.5 * math.log(t) + 0.5 * (2.0 * m * beta + v * beta * beta - alpha * m * m) / t


@_jit
def _project(mean, cov, index, coefficient, m, V):  # type: ignore[no-untyped-def]
    """m = C μ and V = C Σ Cᵀ for one point, Σ packed by lower triangle (c(c+1)/2,)."""
    p, width = index.shape
    for j in range(p):
        total = 0.0
        for s in range(width):
            total += coefficient[j, s] * mean[index[j, s]]
        m[j] = total
        for k in range(j + 1):
            total = 0.0
            for s in range(width):
                a = index[j, s]
                for t in range(width):
                    b = index[k, t]
                    at = a * (a + 1) // 2 + b if a >= b else b * (b + 1) // 2 + a
                    total += coefficient[j, s] * coefficient[k, t] * cov[at]
            V[j, k] = total
            V[k, j] = total


@_jit
def _augment(m, V, h, alpha, beta, scratch):  # type: ignore[no-untyped-def]
    """Add the auxiliary variable to moments that already hold the sites (module docstring), in place.

    With α̃ = β̃ = 0 this is V + h hᵀ. Returns s.
    """
    p = m.size
    s = 1.0
    location = 0.0
    for j in range(p):
        s += h[j] * h[j] * alpha[j]
        location += h[j] * beta[j]
    drift = 0.0
    spread = 0.0
    for j in range(p):
        drift += h[j] * alpha[j] * m[j]
        total = 0.0
        for k in range(p):
            total += V[j, k] * h[k] * alpha[k]
        scratch[j] = total  # V (h∘α̃)
        spread += h[j] * alpha[j] * total
    for j in range(p):
        m[j] += h[j] * (location - drift) / s
        for k in range(p):
            V[j, k] += h[j] * h[k] * (1.0 / s + spread / (s * s)) - (h[j] * scratch[k] + scratch[j] * h[k]) / s
    return s


@_jit
def _site_update(m, v, alpha, beta):  # type: ignore[no-untyped-def]
    """Undamped change of one site and what it rests on (eqs. 30-36).

    Returns (valid, Δα̃, Δβ̃, residual, log Ẑ − log of the site's own integral). The residual is the mismatch of tilted and
    current marginal moments: the larger of |m̂ − m|/√v and |v̂/v − 1|.
    """
    share = 1.0 - alpha * v  # v / v₋
    if not (v > 0.0 and share > 1e-14):
        return False, 0.0, 0.0, np.inf, 0.0
    v_cavity = v / share
    m_cavity = (m - v * beta) / share
    log_z, m_hat, v_hat, loss = probit_moments(m_cavity, v_cavity)
    if not (v_hat > 0.0 and math.isfinite(m_hat)):
        return False, 0.0, 0.0, np.inf, 0.0
    # α̃ = 1/v̂ − 1/v₋ and β̃ = m̂/v̂ − m₋/v₋ without the difference of nearly equal numbers.
    new_alpha = loss / v_hat
    new_beta = (m_hat - m_cavity) / v_cavity + new_alpha * m_hat
    residual = max(abs(m_hat - m) / math.sqrt(v), abs(v_hat / v - 1.0))
    log_term = log_z - log_site_integral(m_cavity, v_cavity, alpha, beta)
    return True, new_alpha - alpha, new_beta - beta, residual, log_term


@_jit
def _rank_one(m, V, j, d_alpha, d_beta, scratch):  # type: ignore[no-untyped-def]
    """Moments of g after site j changed (eqs. 37-38), in place; returns log(1 + Δα̃ v_j), NaN if that is not positive."""
    p = m.size
    v = V[j, j]
    t = 1.0 + d_alpha * v
    if not t > 0.0:
        return np.nan
    shift = (d_beta - d_alpha * m[j]) / t
    weight = d_alpha / t
    for k in range(p):
        scratch[k] = V[k, j]
    for k in range(p):
        m[k] += scratch[k] * shift
        for r in range(p):
            V[k, r] -= weight * scratch[k] * scratch[r]
    return math.log(t)


@_jit
def _sweep(m, V, alpha, beta, parallel, scratch, changes):  # type: ignore[no-untyped-def]
    """One pass over the sites of a point, one after the other or all from the same moments; in place.

    Returns (valid, largest residual met, Σ log(1 + Δα̃ v)).
    """
    p = m.size
    worst = 0.0
    log_det = 0.0
    for j in range(p):
        ok, d_alpha, d_beta, residual, _ = _site_update(m[j], V[j, j], alpha[j], beta[j])
        if not ok:
            return False, np.inf, 0.0
        worst = max(worst, residual)
        changes[0, j] = d_alpha
        changes[1, j] = d_beta
        if not parallel:
            log_det += _rank_one(m, V, j, d_alpha, d_beta, scratch)
            alpha[j] += d_alpha
            beta[j] += d_beta
    if parallel:
        for j in range(p):
            log_det += _rank_one(m, V, j, changes[0, j], changes[1, j], scratch)
            alpha[j] += changes[0, j]
            beta[j] += changes[1, j]
    return math.isfinite(log_det), worst, log_det


@_jit
def update_sites(  # type: ignore[no-untyped-def]
    mean, cov, kind, index, coefficient, loading, alpha, beta, sweeps, inner_tol, parallel, new_alpha, new_beta, scale
):
    """New inner sites of every point from its marginal moments, warm-started (section 3.2.3).

    Parameters
    ----------
    mean : (c, n); cov : packed (c(c+1)/2, n); kind : (n,) row of the contrast.
    alpha, beta : (n, p) sites contained in those moments; new_alpha, new_beta : (n, p) outputs, undamped.
    sweeps, inner_tol, parallel : inner EP stops after ``sweeps`` passes, or earlier at a residual of ``inner_tol``.
    scale : (n, p) output, variance of each g_j under the moments given.

    Returns
    -------
    valid : False if a cavity has no variance; residual : largest mismatch *before* the update; log_terms :
    Σ_ij [log Φ(z_ij) − log ∫ N(g | m₋, v₋) t̃(g) dg] at the sites given.
    """
    n, p = alpha.shape
    m = np.empty(p)
    V = np.empty((p, p))
    scratch = np.empty(p)
    changes = np.empty((2, p))
    worst = 0.0
    log_terms = 0.0
    for i in range(n):
        a = new_alpha[i]
        b = new_beta[i]
        a[:] = alpha[i]
        b[:] = beta[i]
        _project(mean[:, i], cov[:, i], index[kind[i]], coefficient[kind[i]], m, V)
        _augment(m, V, loading[kind[i]], a, b, scratch)
        for j in range(p):
            ok, _, _, residual, log_term = _site_update(m[j], V[j, j], a[j], b[j])
            if not ok:
                return False, np.inf, 0.0
            scale[i, j] = V[j, j]
            worst = max(worst, residual)
            log_terms += log_term
        for _ in range(sweeps):
            ok, residual, _ = _sweep(m, V, a, b, parallel, scratch, changes)
            if not ok:
                return False, np.inf, 0.0
            if residual <= inner_tol:
                break
    return True, worst, log_terms


@_jit
def refine_sites(  # type: ignore[no-untyped-def]
    mean, cov, kind, index, coefficient, loading, sites, ahead, sweeps, inner_tol, parallel, new_alpha, new_beta
):
    """A second update of every point's sites, from the means that those of the first imply and the cavity's old covariance.

    Parameters
    ----------
    sites, ahead : (2, n, p), α̃ and β̃ before and after the first update.
    mean : (c, n) with the sites ``ahead``; cov : packed (c(c+1)/2, n) with ``sites``.

    The rest as for :func:`update_sites`. Returns False if a cavity has no variance.
    """
    n, p = new_alpha.shape
    m = np.empty(p)
    m_ahead = np.empty(p)
    V = np.empty((p, p))
    scratch = np.empty(p)
    changes = np.empty((2, p))
    for i in range(n):
        a = new_alpha[i]
        b = new_beta[i]
        alpha = sites[0, i]
        beta = sites[1, i]
        a[:] = ahead[0, i]
        b[:] = ahead[1, i]
        h = loading[kind[i]]
        _project(mean[:, i], cov[:, i], index[kind[i]], coefficient[kind[i]], m, V)
        s = 1.0
        shift = 0.0
        for j in range(p):
            s += h[j] * h[j] * a[j]
            shift += h[j] * (b[j] - a[j] * m[j])
        for j in range(p):
            m_ahead[j] = m[j] + h[j] * shift / s
        _augment(m, V, h, alpha, beta, scratch)  # for V; m is of no use from here
        for j in range(p):
            if not math.isfinite(_rank_one(m, V, j, a[j] - alpha[j], b[j] - beta[j], scratch)):
                return False
        for _ in range(sweeps):
            ok, residual, _ = _sweep(m_ahead, V, a, b, parallel, scratch, changes)
            if not ok:
                return False
            if residual <= inner_tol:
                break
    return True


@_jit
def _log_z(m, V, alpha, beta, start, log_det):  # type: ignore[no-untyped-def]
    """log ∫ N(g | start, Q) Π_j Φ(g_j) dg of inner EP, given its sites, their moments (m, V) and log|I + Q T̃|.

    Σ_j [log Ẑ_j − log ∫ N(g | cavity) t̃_j] + log ∫ N(g | start, Q) exp(−½ gᵀT̃g + β̃ᵀg) dg, the last one equal to
    −½ log|I + QT̃| − ½ sᵀT̃s + β̃ᵀs + ½ (β̃ − T̃s)ᵀ(m − s), s = start. NaN where a cavity is invalid.
    """
    total = -0.5 * log_det
    for j in range(m.size):
        ok, _, _, _, log_term = _site_update(m[j], V[j, j], alpha[j], beta[j])
        if not ok:
            return np.nan
        r = beta[j] - alpha[j] * start[j]
        total += log_term - 0.5 * alpha[j] * start[j] ** 2 + beta[j] * start[j] + 0.5 * r * (m[j] - start[j])
    return total


@_jit
def log_normaliser(  # type: ignore[no-untyped-def]
    mean, cov, index, coefficient, loading, max_sweeps, tol, m, V, alpha, beta, start, scratch, changes
):
    """log ∫ N(f | mean, cov) Π_j Φ(g_j) df by inner EP to convergence from zero sites, one point."""
    alpha[:] = 0.0
    beta[:] = 0.0
    _project(mean, cov, index, coefficient, m, V)
    _augment(m, V, loading, alpha, beta, scratch)
    start[:] = m
    log_det = 0.0
    for _ in range(max_sweeps):
        ok, residual, change = _sweep(m, V, alpha, beta, False, scratch, changes)
        log_det += change
        if not ok:
            return np.nan
        if residual <= tol:
            break
    return _log_z(m, V, alpha, beta, start, log_det)


@_jit
def log_normalisers(mean, cov, index, coefficient, loading, max_sweeps, tol, out):  # type: ignore[no-untyped-def]
    """``out[i, k]`` = log normaliser of point i for every kind k of observation; mean (n, c), cov (n, c(c+1)/2)."""
    kinds, p = loading.shape
    m = np.empty(p)
    V = np.empty((p, p))
    alpha = np.empty(p)
    beta = np.empty(p)
    start = np.empty(p)
    scratch = np.empty(p)
    changes = np.empty((2, p))
    for i in range(mean.shape[0]):
        for k in range(kinds):
            out[i, k] = log_normaliser(
                mean[i], cov[i], index[k], coefficient[k], loading[k], max_sweeps, tol, m, V, alpha, beta, start, scratch, changes
            )


@_jit
def independent_moments(  # type: ignore[no-untyped-def]
    mean, variance, kind, index, coefficient, loading, alpha, beta, sweeps, inner_tol, log_z, slope, curvature
):
    """Tilted moments of every point under a class-independent cavity N(mean, diag(variance)), both (n, c), by inner EP.

    Inner sites alpha, beta (n, p) are continued in place. Outputs: log Ẑ (n,), its slope Cᵀ(β̃ − T̃ m̃) and its negative
    curvature diag Cᵀ(T̃ − T̃ Ṽ T̃)C in the cavity mean (n, c). Returns (valid, largest inner residual before the update).
    """
    n, p = alpha.shape
    c = mean.shape[1]
    m = np.empty(p)
    V = np.empty((p, p))
    start = np.empty(p)
    zero = np.zeros(p)
    scratch = np.empty(p)
    changes = np.empty((2, p))
    packed = np.zeros(c * (c + 1) // 2)
    worst = 0.0
    for i in range(n):
        for k in range(c):
            packed[k * (k + 1) // 2 + k] = variance[i, k]
        columns = index[kind[i]]
        values = coefficient[kind[i]]
        a = alpha[i]
        b = beta[i]
        _project(mean[i], packed, columns, values, m, V)
        _augment(m, V, loading[kind[i]], zero, zero, scratch)
        start[:] = m
        log_det = 0.0
        for j in range(p):
            log_det += _rank_one(m, V, j, a[j], b[j], scratch)
        for sweep in range(sweeps):
            ok, residual, change = _sweep(m, V, a, b, False, scratch, changes)
            if not ok:
                return False, np.inf
            log_det += change
            if sweep == 0:
                worst = max(worst, residual)
            if residual <= inner_tol:
                break
        log_z[i] = _log_z(m, V, a, b, start, log_det)
        slope[i] = 0.0
        curvature[i] = 0.0
        for j in range(p):
            for s in range(columns.shape[1]):
                k = columns[j, s]
                slope[i, k] += values[j, s] * (b[j] - a[j] * m[j])
                curvature[i, k] += values[j, s] ** 2 * a[j]
                for q in range(p):
                    for t in range(columns.shape[1]):
                        if columns[q, t] == k:
                            curvature[i, k] -= values[j, s] * values[q, t] * a[j] * V[j, q] * a[q]
    return True, worst
