"""What one request said besides its numbers, for others to repeat: who says the same bytes brings nothing new but its
tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.api.messages import Array, Terms
from stretto.api.numerals import numbers_in

LONG_TEXT = 65_536  # bytes of JSON that are looked at before they are read


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
    """`before` stands before the numbers and `after` behind them; raw ones have nothing behind them."""

    terms: Terms
    before: bytes
    after: bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    elements: int
    raw_bytes: int

    def tensor(self, body: bytes | memoryview) -> Array | None:
        """Of a body that says the same; None where this one does not, or where its numbers are no plain ones."""
        start, size = len(self.before), len(body)
        if body[:start] != self.before:
            return None
        if not self.after:
            if size != start + self.raw_bytes:
                return None
            # A short tensor is copied, for then its numbers are aligned; the memory of a long one was made so.
            rest = body[start:] if size <= LONG_TEXT else memoryview(body)[start:]
            return np.frombuffer(rest, self.dtype).reshape(self.shape)
        text = bytes(body)
        end = size - len(self.after)
        if not start <= end or size > LONG_TEXT or not text.endswith(self.after):
            return None
        array = numbers_in(text, start, end, self.elements)
        return None if array is None else array.reshape(self.shape)
