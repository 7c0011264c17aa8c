"""Inputs of a request that lie with a front end: what the engine and the workers need to know of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stretto.backends.model import Array
from stretto.core.errors import StrettoError
from stretto.live.face.memory import FrontMemory


@dataclass(frozen=True, slots=True)
class Lying:
    """Rows of one request. The first axis of `shape` counts them, as with an array.

    `memory` is where they can be read on this machine; None: a worker gets them from the front end.
    """

    front: int  # the front end, by the scheduler's number
    number: int  # the request, by the front end's number
    row: int  # the first of them
    shape: tuple[int, ...]
    dtype: str
    size: int  # the number of their shape among those of the application's input
    memory: FrontMemory | None = None
    place: int = -1  # of this first row

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Lying:
        first, end, _ = rows.indices(self.shape[0])
        place = self.place if self.memory is None else self.place + first * self.row_bytes
        return replace(self, row=self.row + first, shape=(end - first, *self.shape[1:]), place=place)

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.row_bytes

    def array(self) -> Array:
        """Where they lie; nothing is copied."""
        if self.memory is None:
            raise StrettoError("these tensors lie on another machine")
        return self.memory.array(self.place, self.dtype, self.shape)


Inputs = Array | Lying


def as_array(inputs: Inputs) -> Array:
    return inputs.array() if isinstance(inputs, Lying) else inputs


def as_arrays(parts: Sequence[Inputs]) -> list[Array]:
    """Of a batch that is run here. Where a front end is gone, and its memory with it, nobody waits for its rows: zeros
    stand for them, so that the others of the batch are answered.
    """
    return [
        np.zeros(part.shape, part.dtype) if isinstance(part, Lying) and part.memory is None else as_array(part)
        for part in parts
    ]
