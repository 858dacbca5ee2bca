"""Reference cases from the authors' implementation, as class-major arrays."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.oracles._types import Array, Labels


class ReferenceCase(NamedTuple):
    """One case: y are codes 0..c−1, sites (c, n), 0 at the observed class; dK lists ∂K/∂log θ."""

    K: Array
    Kstar: Array
    Kss: Array
    y: Labels
    n_classes: int
    alpha: Array
    beta: Array
    dK: list[Array]
    values: dict[str, Any]


def reference_directory() -> Path:
    """The `reference` folder of $NESTGP_SHARED or, if unset, of `shared` beside the repository root."""
    shared = os.environ.get("NESTGP_SHARED")
    root = Path(shared) if shared else Path(__file__).resolve().parents[2].parent / "shared"
    return root / "reference"


def load_case(name: str) -> ReferenceCase:
    """Case `name` (A_toy1d, B_2d_c4_s2_l0.5, D_ard_d3); FileNotFoundError if its file is absent."""
    values = json.loads((reference_directory() / f"{name}.json").read_text())
    inputs = values["inputs"]
    X, X_test = np.array(inputs["X"]), np.array(inputs["X_test"])
    s2 = np.exp(inputs["kernel"]["log_sigma2"])
    lengths = np.broadcast_to(np.exp(inputs["kernel"]["log_lengthscale"]), (X.shape[1],))
    y = np.array(inputs["y"]) - 1
    c = inputs["n_classes"]
    K = squared_exponential(X, X, s2, lengths)
    scaled = ((X[:, None, :] - X[None, :, :]) / lengths) ** 2
    isotropic = inputs["kernel"]["structure"] == "isotropic"
    distances = [scaled.sum(axis=-1)] if isotropic else list(np.moveaxis(scaled, -1, 0))
    return ReferenceCase(
        K=K,
        Kstar=squared_exponential(X, X_test, s2, lengths),
        Kss=np.full(len(X_test), s2),
        y=y,
        n_classes=c,
        alpha=expand_sites(np.array(values["ep"]["site_alpha"]), y, c),
        beta=expand_sites(np.array(values["ep"]["site_beta"]), y, c),
        dK=[K, *(K * d for d in distances)],
        values=values,
    )


def squared_exponential(X1: Array, X2: Array, s2: float, lengths: Array) -> Array:
    """k(x, x') = s2 exp(−½ Σ_d (x_d − x'_d)² / l_d²)  (eq. 2)."""
    return np.asarray(s2 * np.exp(-0.5 * np.sum(((X1[:, None, :] - X2[None, :, :]) / lengths) ** 2, axis=-1)))


def expand_sites(listed: Array, y: Labels, c: int) -> Array:
    """(c, n) with 0 at the observed class, from (n, c−1) that lists the other classes in increasing order."""
    full = np.zeros((c, len(y)))
    for i, row in enumerate(listed):
        full[[k for k in range(c) if k != y[i]], i] = row
    return full
