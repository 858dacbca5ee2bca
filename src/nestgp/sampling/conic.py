"""Exact draws of the auxiliary variables v_i | f_i, y_i: N(f_i, I) cut to the cone v_y > v_j (section 4.2.2).

v_y alone has the log-concave density N(v_y | f_y, 1) Π_j Φ(v_y − f_j); given it, the others are independent truncated normals.
No inner Gibbs chain is needed.
"""

import math

import numba
import numpy as np

from nestgp.quadrature import _log_integrand, without

_jit = numba.njit(cache=True, nogil=True)


@_jit
def _largest(mean_y, others, ones, rng):  # type: ignore[no-untyped-def]
    """v_y by rejection from two tangents of its log density, an exponential on either side of its mode; 3 of 4 accepted.

    The slope of the log density is convex and falls, so Newton steps from mean_y stay left of the mode: a rough one will do.
    """
    s = mean_y
    while True:
        _, first, second = _log_integrand(s, mean_y, 1.0, others, ones)
        width = 1.0 / math.sqrt(-second)
        if first * width < 0.3:
            break
        s -= first / second
    left, right = s - 0.8 * width, s + 1.1 * width
    left_value, left_slope, _ = _log_integrand(left, mean_y, 1.0, others, ones)
    right_value, right_slope, _ = _log_integrand(right, mean_y, 1.0, others, ones)
    meet = (right_value - left_value + left_slope * left - right_slope * right) / (left_slope - right_slope)
    top = left_value + left_slope * (meet - left)
    left_share = 1.0 / (1.0 - left_slope / right_slope)  # of the areas 1/left_slope and −1/right_slope
    while True:
        slope = left_slope if rng.random() < left_share else right_slope
        x = meet + math.log1p(-rng.random()) / slope
        hat = top + slope * (x - meet)
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
        without(k, f[:, i], others)
        largest = _largest(f[k, i], others, ones, rng)
        v[k, i] = largest
        for j in range(c):
            if j != k:
                v[j, i] = f[j, i] - _normal_above(f[j, i] - largest, rng)
