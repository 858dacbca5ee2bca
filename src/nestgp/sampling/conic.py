"""Exact draws of the auxiliary variables v_i | f_i, y_i: N(f_i, I) cut to the cone v_y > v_j (section 4.2.2).

v_y alone has the log-concave density N(v_y | f_y, 1) Π_j Φ(v_y − f_j); given it, the others are independent truncated normals.
No inner Gibbs chain is needed.
"""

import math

import numba
import numpy as np

from nestgp.quadrature import _log_integrand, _mode

_jit = numba.njit(cache=True, nogil=True)


@_jit
def _largest(mean_y, others, ones, rng):  # type: ignore[no-untyped-def]
    """v_y by rejection from three tangents of its log density: flat at the mode, exponential on both sides; 4 of 5 accepted."""
    mode = _mode(mean_y, 1.0, others, ones)
    top, _, second = _log_integrand(mode, mean_y, 1.0, others, ones)
    width = 1.0 / math.sqrt(-second)
    left, left_slope, _ = _log_integrand(mode - width, mean_y, 1.0, others, ones)
    right, right_slope, _ = _log_integrand(mode + width, mean_y, 1.0, others, ones)
    a = mode - width + (top - left) / left_slope
    b = mode + width + (top - right) / right_slope
    areas = (1.0 / left_slope, b - a, -1.0 / right_slope)
    total = areas[0] + areas[1] + areas[2]
    while True:
        pick = rng.random() * total
        if pick < areas[0]:
            x = a + math.log1p(-rng.random()) / left_slope
            hat = top + left_slope * (x - a)
        elif pick < areas[0] + areas[1]:
            x = a + (b - a) * rng.random()
            hat = top
        else:
            x = b + math.log1p(-rng.random()) / right_slope
            hat = top + right_slope * (x - b)
        if math.log1p(-rng.random()) <= _log_integrand(x, mean_y, 1.0, others, ones)[0] - hat:
            return x


@_jit
def _normal_above(low, rng):  # type: ignore[no-untyped-def]
    """Standard normal given that it exceeds ``low``: plain rejection, or from a shifted exponential in the tail."""
    if low < 0.45:
        while True:
            x = rng.standard_normal()
            if x > low:
                return x
    rate = 0.5 * (low + math.sqrt(low * low + 4.0))
    while True:
        x = low - math.log1p(-rng.random()) / rate
        if math.log1p(-rng.random()) <= -0.5 * (x - rate) ** 2:
            return x


@_jit
def draw_auxiliary(f, y, rng, v):  # type: ignore[no-untyped-def]
    """Fill v (c, n) with exact draws given latents f (c, n) and labels y (n,)."""
    c, n = f.shape
    others = np.empty(c - 1)
    ones = np.ones(c - 1)
    for i in range(n):
        k = y[i]
        row = 0
        for j in range(c):
            if j != k:
                others[row] = f[j, i]
                row += 1
        largest = _largest(f[k, i], others, ones, rng)
        v[k, i] = largest
        for j in range(c):
            if j != k:
                v[j, i] = f[j, i] - _normal_above(f[j, i] - largest, rng)
