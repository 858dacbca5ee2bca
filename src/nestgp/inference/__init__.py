"""Inference methods: one frozen dataclass of options each, all with ``infer(K, y, n_classes, init=None) -> Fit``."""

from nestgp.inference.independent_ep import IndependentEP
from nestgp.inference.laplace import Laplace
from nestgp.inference.nested_ep import NestedEP
from nestgp.inference.quadrature_ep import QuadratureEP
from nestgp.inference.result import Fit, Inference, Iteration, Status
from nestgp.inference.variational import VariationalBayes

__all__ = [
    "Fit",
    "IndependentEP",
    "Inference",
    "Iteration",
    "Laplace",
    "NestedEP",
    "QuadratureEP",
    "Status",
    "VariationalBayes",
]
