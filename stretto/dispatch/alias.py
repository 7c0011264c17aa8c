"""Walker's alias method: a weighted random pick with one uniform number, whatever the number of columns.

The one table of this kind in the package: weighted routes draw from it, and so do the simulator's mixes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled


def as_shares(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights that are finite, not negative and not all zero, as shares that sum to one."""
    shares: NDArray[np.float64] = weights / weights.max()  # first, so that the sum of very large weights stays finite
    shares /= math.fsum(shares.tolist())
    return shares


def alias_table(shares: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(keep, other): a pick of column i gives i with probability keep[i], else other[i]."""
    keep, other = np.ones(len(shares)), np.arange(len(shares))
    fill_alias(shares, keep, other, np.empty(len(shares)), np.empty(len(shares), np.int64))
    return keep, other


@compiled
def fill_alias(shares: Any, keep: Any, other: Any, heights: Any, stack: Any) -> None:
    """Vose's construction: columns below the average height are filled up from those above. `heights` and `stack` are
    room for as many numbers: low columns stand at the beginning of the stack, high ones at its end.
    """
    count = len(shares)
    lows, highs, largest = 0, count, 0
    for column in range(count):
        heights[column] = shares[column] * count
        if shares[column] > shares[largest]:
            largest = column
        if heights[column] < 1:
            stack[lows] = column
            lows += 1
        else:
            highs -= 1
            stack[highs] = column
    while lows > 0 and highs < count:
        lows -= 1
        below, above = stack[lows], stack[highs]
        keep[below] = heights[below]
        other[below] = above
        heights[above] -= 1 - heights[below]
        if heights[above] < 1:
            highs += 1
            stack[lows] = above
            lows += 1
    # Rounding may leave columns unpaired. They are full, except that a share of zero must never be picked.
    for place in range(lows):
        if shares[stack[place]] == 0:
            keep[stack[place]] = 0.0
            other[stack[place]] = largest
