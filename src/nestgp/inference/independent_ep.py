"""Nested IEP: tilted moments by inner EP, between-class couplings left out of the posterior (section 3.2.2, end)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from nestgp import tilted
from nestgp.arrays import FloatArray, IntArray
from nestgp.inference.checks import check_inner_sweeps, check_options, check_problem
from nestgp.inference.factorised import MIXING, FactorisedState, Tilted
from nestgp.inference.loop import InvalidStateError, make_mixer, run
from nestgp.inference.nested_ep import INNER_SWEEPS, INNER_TOL
from nestgp.inference.result import Fit


@dataclass(frozen=True)
class IndependentEP:
    """Nested EP that matches the mean and the diagonal of the tilted covariance.

    Parameters
    ----------
    damping : "adaptive", or a number in (0, 1] applied to the natural parameters of the outer sites: the paper's plain
        scheme, which can need thousands of iterations.
    inner_sweeps : "converge", or the number of passes of inner EP per outer iteration (1: incremental).
    max_iter, tol : as for :class:`NestedEP`.
    """

    damping: float | str = "adaptive"
    inner_sweeps: int | str = "converge"
    max_iter: int = 200
    tol: float = 1e-6

    likelihood: ClassVar[str] = "probit"
    default_rule: ClassVar[str] = "ep"
    search_tol: ClassVar[float] = 3e-2  # log Z is stationary at a fixed point: its error is of second order

    def infer(self, K: FloatArray, y: IntArray, n_classes: int, init: Fit | None = None) -> Fit:
        """Posterior, evidence and its gradient for kernel matrix K (n, n) or (c, n, n) and labels y (n,)."""
        check_options(self.max_iter, self.tol)
        check_inner_sweeps(self.inner_sweeps)
        make_mixer(self.damping)
        K, y = check_problem(K, y, n_classes)
        contrast = tilted.multinomial_probit(n_classes)
        converge = self.inner_sweeps == "converge"
        inner = (INNER_SWEEPS if converge else int(self.inner_sweeps), INNER_TOL if converge else 0.0)

        def rule(mean: FloatArray, variance: FloatArray, sites: FloatArray) -> Tilted:
            n = y.size
            out = Tilted(np.empty(n), np.empty((n, n_classes)), np.empty((n, n_classes)), sites.copy(), 0.0)
            table = (contrast.index, contrast.coefficient, contrast.loading)
            moments = (np.ascontiguousarray(mean), np.ascontiguousarray(variance), y, *table)
            valid, residual = tilted.independent_moments(
                *moments, *out.inner, *inner, out.log_z, out.slope, out.curvature
            )
            if not valid:
                raise InvalidStateError("an inner cavity has no positive variance")
            return Tilted(out.log_z, out.slope, out.curvature, out.inner, 0.0 if converge else residual)

        state = FactorisedState(rule, K, y, n_classes, n_classes - 1)
        return run(state, init, partial(make_mixer, self.damping, **MIXING), self.max_iter, self.tol)
