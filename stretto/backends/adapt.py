"""Fits queries to a variant that takes another image size than was sent (`core/resize.py` says how).

The zoo's variants of several sizes were trained on images made smaller in the same way.
"""

from __future__ import annotations

from stretto.backends.model import Array, BackendError
from stretto.core.resize import resized


class Adapter:
    """From any shape that clients may send to the shape that the variant takes; only the last two axes may differ."""

    def __init__(self, sources: tuple[tuple[int, ...], ...], target: tuple[int, ...]):
        for source in sources:
            if len(source) != len(target) or len(source) < 2 or source[:-2] != target[:-2]:
                raise BackendError(
                    f"a query of shape {list(source)} cannot be made {list(target)}: only images are made larger or "
                    "smaller, along their last two axes"
                )
        self._height, self._width = target[-2:]

    def __call__(self, rows: Array) -> Array:
        """Queries of one size, as the variant takes them."""
        return resized(rows, self._height, self._width)
