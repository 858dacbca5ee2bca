"""Small named problems, and the inference methods that every test of inference runs over.

A test that holds for every method is written once and parametrised by ``METHODS`` × ``PROBLEMS``; what is
true of nested EP's fixed point only takes ``NESTED``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, Matern, WhiteKernel

from nestgp import kernels
from nestgp.inference import IndependentEP, Inference, Laplace, NestedEP, QuadratureEP, VariationalBayes
from tests.oracles._types import Array, Labels

#: Tight enough that the fixed points of two schedules are the same number.
TIGHT = 1e-11


@dataclass(frozen=True)
class Problem:
    """Inputs X (n, d), codes y (n,) of n_classes classes, and a kernel or one per class."""

    name: str
    X: Array
    y: Labels
    n_classes: int
    kernel: Kernel | list[Kernel]

    @property
    def K(self) -> Array:
        """Kernel matrix, (n, n) or (c, n, n)."""
        return kernels.gram(self.kernel, self.X)

    def inputs(self) -> tuple[Array, Labels, int]:
        """What ``Inference.infer`` takes."""
        return self.K, self.y, self.n_classes


def rbf(log_s2: float, *log_l: float) -> Kernel:
    """exp(log_s2) exp(−½ Σ_d (x_d − x'_d)²/l_d²): one lengthscale, or one per column."""
    lengths = np.exp(log_l) if len(log_l) > 1 else float(np.exp(log_l[0]))
    return ConstantKernel(float(np.exp(log_s2)), (1e-12, 1e12)) * RBF(lengths, (1e-6, 1e6))


def _tiny() -> Problem:
    X = np.array([[-1.0], [-0.4], [0.1], [0.9], [1.3]])
    return Problem("tiny", X, np.array([0, 1, 1, 2, 0]), 3, rbf(0.7, 0.0))


def _toy() -> Problem:
    rng = np.random.default_rng(15)
    x = np.sort(rng.uniform(-3.0, 3.0, 15))
    y = np.digitize(x + 0.3 * rng.standard_normal(15), [-1.0, 1.0])
    return Problem("toy", x[:, None], y, 3, rbf(2.0, 0.0))


def _overlapping() -> Problem:
    rng = np.random.default_rng(4)
    y = np.arange(24) % 4
    centres = np.array([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    return Problem("overlapping", centres[y] + rng.standard_normal((24, 2)), y, 4, rbf(2.0, 0.5))


def _separable() -> Problem:
    rng = np.random.default_rng(5)
    y = np.arange(18) % 3
    centres = np.array([[-4.0, 0.0], [4.0, 0.0], [0.0, 5.0]])
    return Problem("separable", centres[y] + 0.5 * rng.standard_normal((18, 2)), y, 3, rbf(4.0, 1.0))


def _many_classes() -> Problem:
    rng = np.random.default_rng(8)
    y = np.arange(24) % 8
    angle = 2 * np.pi * y / 8
    X = 2 * np.column_stack([np.cos(angle), np.sin(angle)]) + 0.6 * rng.standard_normal((24, 2))
    return Problem("many classes", X, y, 8, rbf(1.5, 0.3))


def _imbalanced() -> Problem:
    rng = np.random.default_rng(6)
    X = rng.standard_normal((20, 2))
    y = np.where(X[:, 0] > 0.3, 1, 0)
    y[7] = 2  # the only row of its class
    return Problem("imbalanced", X, y, 3, rbf(2.0, 0.0))


def _duplicates() -> Problem:
    rng = np.random.default_rng(7)
    X = np.repeat(rng.standard_normal((6, 2)), 3, axis=0)  # K has rank 6 of 18
    y = np.repeat(np.arange(6) % 3, 3)
    y[[1, 10]] = [2, 0]  # the same input with different labels
    return Problem("duplicates", X, y, 3, rbf(1.0, 0.5))


def _hard() -> Problem:
    rng = np.random.default_rng(9)
    X = rng.standard_normal((21, 2))
    y = np.digitize(X[:, 0] + 0.5 * rng.standard_normal(21), [-0.5, 0.5])
    return Problem("hard", X, y, 3, rbf(8.0, 0.5))


def _per_class() -> Problem:
    rng = np.random.default_rng(10)
    X = rng.standard_normal((16, 2))
    y = np.arange(16) % 3
    each = [rbf(1.0, 0.0), rbf(2.0, 0.5, -0.5), ConstantKernel(3.0) * Matern(1.5, nu=2.5) + WhiteKernel(0.1)]
    return Problem("per class", X, y, 3, each)


def _two_classes() -> Problem:
    rng = np.random.default_rng(11)
    X = rng.standard_normal((16, 2))
    y = (X.sum(axis=1) + 0.7 * rng.standard_normal(16) > 0).astype(np.int64)
    return Problem("two classes", X, y, 2, rbf(2.0, 0.3))


_MAKERS: dict[str, Callable[[], Problem]] = {
    "tiny": _tiny,
    "toy": _toy,
    "overlapping": _overlapping,
    "separable": _separable,
    "many classes": _many_classes,
    "imbalanced": _imbalanced,
    "duplicates": _duplicates,
    "hard": _hard,
    "per class": _per_class,
    "two classes": _two_classes,
}


@cache
def problem(name: str) -> Problem:
    """The problem of that name, made once."""
    made = _MAKERS[name]()
    made.X.setflags(write=False)
    made.y.setflags(write=False)
    return made


#: Names for ``pytest.mark.parametrize``.
PROBLEMS = list(_MAKERS)


def clusters(log_s2: float, log_l: float) -> Problem:
    """36 points in three separated clusters: at log σ² = 8, log l = 3 a fixed damping of 0.8 wanders."""
    rng = np.random.default_rng(1)
    centres = 6.0 * rng.standard_normal((3, 2))
    y = np.repeat(np.arange(3), 12)
    return Problem("clusters", centres[y] + rng.standard_normal((36, 2)), y, 3, rbf(log_s2, log_l))


#: Schedules of nested EP: all have one fixed point.
NESTED: dict[str, NestedEP] = {
    "adaptive": NestedEP(tol=TIGHT),
    "inner sweeps": NestedEP(inner_sweeps=5, tol=TIGHT),
    "inner converged": NestedEP(inner_sweeps="converge", tol=TIGHT),
    "inner parallel": NestedEP(inner_updates="parallel", tol=TIGHT),
    "outer sequential": NestedEP(updates="sequential", tol=TIGHT, max_iter=60),
    "mixed precision": NestedEP(precision="mixed", tol=TIGHT),
    "damping 0.5": NestedEP(damping=0.5, tol=TIGHT, max_iter=1000),
    "damping 0.8": NestedEP(damping=0.8, tol=TIGHT, max_iter=1000),
}

#: Every inference method of the library, at a tolerance where its answers can be compared.
METHODS: dict[str, Inference] = {
    **NESTED,
    "iep": IndependentEP(tol=TIGHT, max_iter=600),
    "iep incremental": IndependentEP(inner_sweeps=1, tol=TIGHT, max_iter=600),
    "qiep": QuadratureEP(tol=TIGHT, max_iter=600),
    "vb": VariationalBayes(tol=TIGHT),
    "laplace": Laplace(tol=TIGHT),
}
