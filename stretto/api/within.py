"""The compiled loops of bounds.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.compiled import compiled, compiled_sum


@compiled
def within(values: Any, low: float, high: float) -> bool:
    """Of float32 numbers, compared as such, which takes half the time: the bounds are the outermost that lie within."""
    least, most = np.float32(low), np.float32(high)
    if least < low:
        least = np.nextafter(least, np.float32(np.inf))
    if most > high:
        most = np.nextafter(most, np.float32(-np.inf))
    outside = np.uint32(0)
    for place in range(len(values)):
        value = values[place]
        outside |= np.uint32(not ((value >= least) & (value <= most)))  # also what is not a number
    return bool(outside == 0)


@compiled_sum
def finite(values: Any) -> bool:
    """Of float32 numbers: what is not finite is no zero when it is multiplied by zero, nor is any sum with that. To
    compare numbers, or their bits, would take more than twice as long.
    """
    total = np.float32(0.0)
    for place in range(len(values)):
        total += values[place] * np.float32(0.0)
    return bool(total == 0.0)
