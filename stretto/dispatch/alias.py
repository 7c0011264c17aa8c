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
    fill_alias(shares, keep, other)
    return keep, other


@compiled
def fill_alias(shares: Any, keep: Any, other: Any) -> None:
    """Vose's construction: columns below the average height are filled up from those above."""
    count = len(shares)
    heights = shares * count
    low, high = np.empty(count, np.int64), np.empty(count, np.int64)
    lows = highs = largest = 0
    for column in range(count):
        if shares[column] > shares[largest]:
            largest = column
        if heights[column] < 1:
            low[lows] = column
            lows += 1
        else:
            high[highs] = column
            highs += 1
    while lows > 0 and highs > 0:
        lows -= 1
        below, above = low[lows], high[highs - 1]
        keep[below] = heights[below]
        other[below] = above
        heights[above] -= 1 - heights[below]
        if heights[above] < 1:
            highs -= 1
            low[lows] = above
            lows += 1
    # Rounding may leave columns unpaired. They are full, except that a share of zero must never be picked.
    for place in range(lows):
        if shares[low[place]] == 0:
            keep[low[place]] = 0.0
            other[low[place]] = largest
