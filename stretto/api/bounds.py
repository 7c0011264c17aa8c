"""Whether all values of a tensor lie between two bounds. Compiled: numpy's two reductions would cost as much as the
dispatcher does. The compiler is loaded with the first call, so that listeners can open before it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from stretto.api.messages import Array
from stretto.api.numerals import numbers_in

LARGEST = float(np.finfo(np.float32).max)


@cache
def _compiled_within() -> Any:
    from stretto.api.within import within

    return within


def rehearse_bounds() -> None:
    """So that no request waits for the compiler."""
    are_within(np.zeros(1, np.float32), 0.0, 1.0)
    numbers_in(b"1", 0, 1, 1)


def are_finite(array: Array) -> bool:
    if array.dtype == np.float32:
        return are_within(array, -LARGEST, LARGEST)
    return bool(np.isfinite(array).all())


def are_within(array: Array, low: float, high: float) -> bool:
    """False also where a value is not a number."""
    if array.dtype == np.float32 and array.flags.c_contiguous:
        values = array.reshape(-1)  # a view of its own
        values.setflags(write=False, align=False)  # one's own arrays and those lent by a request's body are of one type
        return bool(_compiled_within()(values, low, high))
    return bool(array.min() >= low and array.max() <= high)
