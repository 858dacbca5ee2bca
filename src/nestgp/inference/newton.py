"""Newton directions by conjugate gradients, for many problems side by side.

(K⁻¹ + W) s = r is solved without K⁻¹: every direction travels with its image K⁻¹s, which a preconditioner Σ₀ = (K⁻¹ + W₀)⁻¹ gives
for free, K⁻¹Σ₀r = r − W₀Σ₀r. Arrays are (c, n, Q): Q problems, one per column.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nestgp.arrays import FloatArray

#: r → (Σ₀ r, K⁻¹ Σ₀ r).
Preconditioner = Callable[[FloatArray], tuple[FloatArray, FloatArray]]


def newton_direction(
    gradient: FloatArray,
    precondition: Preconditioner,
    hessian_times: Callable[[FloatArray], FloatArray],
    tol: float | FloatArray,
    max_steps: int,
) -> tuple[FloatArray, FloatArray]:
    """s and K⁻¹s with (K⁻¹ + W) s = gradient, to ``tol`` times the first residual in the norm of Σ₀, in at most ``max_steps``."""
    residual = gradient.copy()
    d, d_image = precondition(residual)
    step, step_image = np.zeros_like(d), np.zeros_like(d)
    rz = _dot(residual, d)
    limit = tol * np.sqrt(np.maximum(rz, 0.0))
    for taken in range(1, max_steps + 1):
        product = d_image + hessian_times(d)
        curvature = _dot(d, product)
        alpha = np.divide(rz, curvature, out=np.zeros_like(rz), where=curvature > 0.0)
        step += alpha * d
        step_image += alpha * d_image
        if taken == max_steps:
            break
        residual -= alpha * product
        z, z_image = precondition(residual)
        new = _dot(residual, z)
        if np.all(np.sqrt(np.maximum(new, 0.0)) <= limit):
            break
        beta = np.divide(new, rz, out=np.zeros_like(rz), where=rz > 0.0)
        d, d_image = z + beta * d, z_image + beta * d_image
        rz = new
    return step, step_image


def _dot(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.einsum("knq,knq->q", a, b)
