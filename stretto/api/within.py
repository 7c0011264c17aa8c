"""The compiled loops of bounds.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.compiled import compiled

EXPONENT, LOWEST = np.uint32(0x7F800000), np.uint32(0x00800000)  # of the bits of a float32


@compiled
def within(values: Any, low: float, high: float) -> bool:
    inside = True
    for value in values:
        inside &= (value >= low) & (value <= high)  # false for what is not a number
    return inside


@compiled
def finite(bits: Any) -> bool:
    """Of float32 numbers, as their bits: an exponent of ones, plus one, reaches the sign. To compare numbers would take
    as long as reading them from the socket.
    """
    reached = np.uint32(0)
    for place in range(len(bits)):
        reached |= (bits[place] & EXPONENT) + LOWEST
    return bool(reached < np.uint32(0x80000000))
