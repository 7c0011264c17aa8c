"""Fits a query to a variant that takes another image size: each target pixel is the mean of the area that it covers.

The zoo's variants of several sizes were trained on images made smaller in the same way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.model import Array, BackendError


class Adapter:
    """From the shape that clients send to the shape that the variant takes; only the last two axes may differ."""

    def __init__(self, source: tuple[int, ...], target: tuple[int, ...]):
        if len(source) != len(target) or len(source) < 2 or source[:-2] != target[:-2]:
            raise BackendError(
                f"a query of shape {list(source)} cannot be made {list(target)}: only images are made larger or "
                "smaller, along their last two axes"
            )
        self._rows = area_weights(source[-2], target[-2])
        self._columns = area_weights(source[-1], target[-1]).T

    def __call__(self, rows: Array) -> Array:
        """A batch of queries, as the variant takes them."""
        resized = self._rows @ rows.astype(np.float32, copy=False) @ self._columns
        if rows.dtype.kind in "iu":
            resized = np.rint(resized)
        return resized.astype(rows.dtype, copy=False)


def area_weights(source: int, target: int) -> NDArray[Any]:
    """Row i: how much of each source pixel lies under target pixel i."""
    edges = np.arange(target + 1) * (source / target)
    pixels = np.arange(source)
    covered = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return (covered.clip(min=0) * (target / source)).astype(np.float32)
