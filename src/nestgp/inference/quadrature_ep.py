"""Quadrature IEP: the same class-independent EP with tilted moments by one-dimensional quadrature."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from nestgp.arrays import FloatArray, IntArray
from nestgp.inference.checks import check_options, check_problem
from nestgp.inference.factorised import MIXING, FactorisedState, Tilted
from nestgp.inference.loop import make_mixer, run
from nestgp.inference.result import Fit
from nestgp.quadrature import probit_integrals


@dataclass(frozen=True)
class QuadratureEP:
    """Class-independent EP with exact tilted moments (to about 1e-10, see :mod:`nestgp.quadrature`).

    Parameters
    ----------
    damping, max_iter, tol : as for :class:`IndependentEP`.
    """

    damping: float | str = "adaptive"
    max_iter: int = 200
    tol: float = 1e-6

    likelihood: ClassVar[str] = "probit"
    default_rule: ClassVar[str] = "exact"
    search_tol: ClassVar[float] = 3e-2  # log Z is stationary at a fixed point: its error is of second order

    def infer(self, K: FloatArray, y: IntArray, n_classes: int, init: Fit | None = None) -> Fit:
        """Posterior, evidence and its gradient for kernel matrix K (n, n) or (c, n, n) and labels y (n,)."""
        check_options(self.max_iter, self.tol)
        make_mixer(self.damping)
        K, y = check_problem(K, y, n_classes)

        def rule(mean: FloatArray, variance: FloatArray, sites: FloatArray) -> Tilted:
            n = y.size
            out = Tilted(np.empty(n), np.empty((n, n_classes)), np.empty((n, n_classes)), sites, 0.0)
            moments = (np.ascontiguousarray(mean), np.ascontiguousarray(variance), y)
            probit_integrals(*moments, out.log_z, out.slope, out.curvature)
            return out

        state = FactorisedState(rule, K, y, n_classes, 0)
        return run(state, init, partial(make_mixer, self.damping, **MIXING), self.max_iter, self.tol)
