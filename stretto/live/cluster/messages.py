"""What the scheduler and a worker say to each other, and what a front end and a worker do.

Heads of numbers, text in JSON where it is rare, and tensors as they lie in memory. Time crosses as time left and as
durations, never as a clock. Nothing that arrives is unpickled; what cannot be read is a StrettoError.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.live.face.messages import NONSENSE

NUMBER = struct.Struct("<Q")


class Order(IntEnum):
    """To a worker, then from it."""

    HOLD = (
        1  # JSON: keys of the models that it shall keep of those that it has; it belongs to the scheduler from here on
    )
    LOAD = 2  # the number of the order, 1 where it goes on beside the batches; the model as in a frame to a process
    UNLOAD = 3  # the key
    RUN = 4  # a batch: see Batch
    KILL = 5  # what runs and what it holds, at once
    GONE = 6  # the token of a front end that brings nothing any more
    GO = 7  # it has nothing of this scheduler any more, and gets nothing: it may end
    UP = 11  # it reads what it is told
    LOADED = 12  # the number of the order; the problem, or nothing
    ENDED = 13  # the number of the batch, how long it ran; failures as in a frame from a process
    GREW = 14  # bytes, and the key of the model that ran meanwhile
    LOST = 15  # JSON: what it held and ran is lost, the reason, and its Loss
    HOLDS = 16  # bytes of memory
    LEAVING = 17  # it is to end: it finishes what it has, and wants nothing more


LOAD = struct.Struct("<QB")
ENDED = struct.Struct("<Qq")
RUN = struct.Struct("<QqH")  # the number of the batch, how long its tensors are waited for, bytes of the key
# Rows that follow each other in a batch: who brings them, how many they are, and the number of their shape.
PART = np.dtype([("front", "<u8"), ("rows", "<u4"), ("size", "<u4")])
TENSORS = struct.Struct(
    "<QQI"
)  # the batch, the front end's token, how many runs of rows; then rows of each, 0: not here
ANSWERS = struct.Struct("<QI")  # the batch, rows; then the places of those that have no answer
PLACE = np.dtype("<u4")


@dataclass(frozen=True)
class Batch:
    number: int
    wait_ns: int
    key: str
    parts: Sequence[tuple[int, int, int]]  # as PART

    def encoded(self) -> bytes:
        key = self.key.encode()
        return RUN.pack(self.number, self.wait_ns, len(key)) + key + np.array(self.parts, PART).tobytes()

    @staticmethod
    def read(payload: memoryview) -> Batch:
        number, wait_ns, length = head(RUN, payload)
        end = RUN.size + length
        if len(payload) <= end or (len(payload) - end) % PART.itemsize:
            raise StrettoError(NONSENSE)
        key = bytes(payload[RUN.size : end]).decode("utf-8", "replace")
        parts: list[tuple[int, int, int]] = np.frombuffer(payload, PART, offset=end).tolist()
        if not all(rows for _, rows, _ in parts):
            raise StrettoError(NONSENSE)
        return Batch(number, wait_ns, key, parts)


def head(layout: struct.Struct, payload: memoryview) -> tuple[Any, ...]:
    if len(payload) < layout.size:
        raise StrettoError(NONSENSE)
    return layout.unpack_from(payload)


def counted(layout: struct.Struct, payload: memoryview) -> tuple[tuple[Any, ...], NDArray[np.uint32]]:
    """A head, and the numbers that follow it."""
    numbers = head(layout, payload)
    if (len(payload) - layout.size) % PLACE.itemsize:
        raise StrettoError(NONSENSE)
    return numbers, np.frombuffer(payload, PLACE, offset=layout.size)


def numbered(layout: struct.Struct, payload: memoryview) -> tuple[tuple[Any, ...], str]:
    """A head, and the text that follows it."""
    return head(layout, payload), bytes(payload[layout.size :]).decode("utf-8", "replace")
