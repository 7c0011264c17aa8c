"""Whether all values of a tensor lie between two bounds. Compiled: numpy's two reductions would cost as much as the
dispatcher does. The compiler is loaded with the first call, so that listeners can open before it.
"""

from __future__ import annotations

from functools import cache
from math import isfinite
from typing import Any

import numpy as np

from stretto.api.messages import Array
from stretto.api.numerals import numbers_in

LARGE = 16_384  # numbers, from where on numpy's two vectorised passes are quicker
SMALL = 4_096  # numbers, up to where a sum of squares costs least


@cache
def _compiled_within() -> Any:
    from stretto.api.within import within

    return within


@cache
def _compiled_finite() -> Any:
    from stretto.api.within import finite

    return finite


def rehearse_bounds() -> None:
    """So that no request waits for the compiler."""
    are_within(np.zeros(1, np.float32), 0.0, 1.0)
    are_finite(np.zeros(1, np.float32))
    numbers_in(b"1", 0, 1, 1)


def are_finite(array: Array) -> bool:
    if array.dtype.char == "f":
        if array.size <= SMALL and isfinite(np.vdot(array, array)):
            return True  # else one is not, or some are so large that each must be looked at
        return bool(_compiled_finite()(_lent(array.ravel())))
    return bool(np.isfinite(array).all())


def are_within(array: Array, low: float, high: float) -> bool:
    """False also where a value is not a number."""
    if array.dtype.char == "f" and array.size < LARGE:
        return bool(_compiled_within()(_lent(array.ravel()), low, high))
    return bool(array.min() >= low and array.max() <= high)


def _lent(values: Array) -> Array:
    """A view of its own: arrays of our own and those lent by a request's body are of one type to the compiler."""
    values.setflags(write=False, align=False)
    return values
