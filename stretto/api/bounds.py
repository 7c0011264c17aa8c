"""Whether all values of a tensor lie between two bounds. Compiled: numpy's two reductions would cost as much as the
dispatcher does.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from stretto.api.messages import Array


@numba.njit(cache=True, nogil=True)
def _within(values: Any, low: float, high: float) -> bool:
    inside = True
    for value in values:
        inside &= (value >= low) & (value <= high)  # false for what is not a number
    return inside


def rehearse_bounds() -> None:
    """The kinds of array that a request may become, one's own and lent, so that no request waits for the compiler."""
    for array in (np.zeros(1, np.float32), np.frombuffer(bytes(4), np.float32)):
        are_within(array, 0.0, 1.0)


def are_within(array: Array, low: float, high: float) -> bool:
    """False also where a value is not a number."""
    if array.dtype == np.float32 and array.flags.c_contiguous:
        return bool(_within(array.reshape(-1), low, high))
    return bool(array.min() >= low and array.max() <= high)
