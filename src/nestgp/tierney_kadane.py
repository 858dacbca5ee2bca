"""Class probabilities as ratios of evidences, p(y_*) = Z(y, y_*)/Z(y), after Tierney and Kadane (section 4.1.1).

A prediction rule, not an inference: it asks an inference for the evidence of n + 1 points, the new one given each label in turn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import logsumexp

from nestgp.arrays import FloatArray, IntArray
from nestgp.inference.extension import bordered
from nestgp.inference.result import Fit

#: New points whose modes are found together.
POINTS_AT_ONCE = 16


def tierney_kadane_log_probabilities(
    inference: Any,
    fit: Fit,
    K: FloatArray,
    y: IntArray,
    n_classes: int,
    k_star: FloatArray,
    prior_variance: FloatArray,
    naive: bool = False,
) -> FloatArray:
    """Log class probabilities (m, c), normalised over the labels.

    Parameters
    ----------
    fit : the inference on the n training points; K, y : what it was given.
    k_star : (n, m) or (c, n, m) covariance of training and new inputs; prior_variance : (m,) or (c, m).
    naive : solve every extended problem from scratch; otherwise ``inference.extend``, where there is one, starts it from the
        solution for n points.
    """
    m = k_star.shape[-1]
    out = np.empty((m, n_classes))
    if not naive and hasattr(inference, "extend"):
        for first in range(0, m, POINTS_AT_ONCE):
            part = slice(first, first + POINTS_AT_ONCE)
            out[part] = inference.extend(fit, K, y, n_classes, k_star[..., part], prior_variance[..., part])
    else:
        for j in range(m):
            K_ext = bordered(K, k_star[..., j], prior_variance[..., j])
            for k in range(n_classes):
                extended = inference.infer(K_ext, np.append(y, k), n_classes)
                out[j, k] = extended.log_evidence if extended.converged else np.nan
    if not np.isfinite(out).all():
        raise ArithmeticError(
            f"{int((~np.isfinite(out)).any(axis=1).sum())} test points have an extended problem without a result: "
            "raise max_iter, or use probabilities='auto'"
        )
    return out - logsumexp(out, axis=1, keepdims=True)
