"""Derivatives by central differences."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from tests.oracles._types import Array


def central_difference(
    f: Callable[[Array], ArrayLike], x: ArrayLike, step: float = 1e-5, richardson: bool = False
) -> Array:
    """∂f/∂x, shape x.shape + f(x).shape: [f(x + h) − f(x − h)] / 2h per entry of x.

    With `richardson`, (4 D(h/2) − D(h)) / 3 removes the h² error term, so a larger step can be taken
    and less is lost to rounding.
    """
    x = np.asarray(x, dtype=float)
    if richardson:
        return np.asarray((4 * central_difference(f, x, step / 2) - central_difference(f, x, step)) / 3)
    columns = []
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        columns.append((np.asarray(f(up), dtype=float) - np.asarray(f(down), dtype=float)) / (2 * step))
    return np.array(columns).reshape(x.shape + columns[0].shape)
