"""Images of one size made another. Clients, workers and the training of the zoo share it, so that all see one image.

Smaller: each new pixel is the mean of the area that it covers. Larger: the smoothest image (least squares of the
differences between neighbours, along each axis) whose means over the old pixels are the old pixels; so an image that
was made larger and then smaller again is what it was. The weights of a pair of lengths are one matrix; resizing is two
products with such matrices.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

REMEMBERED = 256  # pairs of lengths whose weights are kept

Weights = NDArray[np.float32]


def resized(rows: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    """The last two axes are made `height` × `width`, in the same dtype; whole numbers are rounded.

    Values stay within those of each image, also where a smooth curve through its means would go beyond them.
    """
    if rows.shape[-2:] == (height, width):
        return rows
    along_rows, along_columns = weights(rows.shape[-2], height), weights(rows.shape[-1], width)
    made: NDArray[Any] = along_rows @ rows.astype(np.float32, copy=False) @ along_columns.T
    if height > rows.shape[-2] or width > rows.shape[-1]:
        made = made.clip(rows.min(axis=(-2, -1), keepdims=True), rows.max(axis=(-2, -1), keepdims=True))
    if rows.dtype.kind in "iu":
        made = np.rint(made)
    return made.astype(rows.dtype, copy=False)


@lru_cache(REMEMBERED)
def weights(source: int, target: int) -> Weights:
    """Row i: how much of each source pixel goes into target pixel i. Every row adds up to 1; nobody may write to it."""
    made = area_weights(source, target) if target <= source else smooth_weights(source, target)
    made.setflags(write=False)
    return made


def area_weights(source: int, target: int) -> Weights:
    """Row i: the share of target pixel i that each source pixel covers."""
    return _covered(source, target).astype(np.float32)


def smooth_weights(source: int, target: int) -> Weights:
    """For target > source: the weights U with `area_weights(target, source) @ U` = 1 that give the least sum of squared
    differences between neighbouring target pixels.

    Those are the best linear guess for a random walk of which only means are known, unbiased for any level: the
    conditions on U are solved with the walk's generalised covariance, −|i − j|/2.
    """
    means = _covered(target, source)
    place = np.arange(target)
    covariance = -0.5 * np.abs(place[:, None] - place)
    conditions = np.ones((source + 1, source + 1))
    conditions[:source, :source] = means @ covariance @ means.T
    conditions[source, source] = 0.0
    sides = np.ones((target, source + 1))
    sides[:, :source] = covariance @ means.T
    return np.ascontiguousarray(np.linalg.solve(conditions, sides.T).T[:, :source], np.float32)


def _covered(source: int, target: int) -> NDArray[np.float64]:
    edges = np.arange(target + 1) * (source / target)
    pixels = np.arange(source)
    covered = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return np.asarray(covered.clip(min=0) * (target / source), np.float64)
