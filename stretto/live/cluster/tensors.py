"""Where a worker takes tensors: front ends connect, bring the rows of batches, and get their answers the same way."""

from __future__ import annotations

import itertools
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq

from stretto.backends.model import Array
from stretto.core.errors import StrettoError
from stretto.live.cluster.messages import ANSWERS, PLACE, TENSORS, counted
from stretto.live.cluster.wire import Bounds, Unreachable, Wires
from stretto.live.face.messages import NONSENSE

log = logging.getLogger("stretto.cluster")

MAX_BYTES = 1 << 31  # of one frame: as much as a client may send at all
MOST_EARLY_BYTES = 1 << 30  # that no batch has taken yet
BOUNDS = Bounds(1_000, MAX_BYTES, MOST_EARLY_BYTES)
EARLY_S = 10.0  # after which none will
LINGER_MS = 1_000  # for answers that are on their way when it closes
COPIED_BYTES = 1 << 16  # less than that is copied rather than kept track of


@dataclass(frozen=True)
class Brought:
    """What one front end brought for one batch: for each run of its rows how many came, and their bytes."""

    caller: bytes
    rows: Sequence[int]
    frames: Sequence[Any]
    came_s: float

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.frames))

    def arrays(self, dtype: str, shapes: Sequence[tuple[int, ...]]) -> list[Array | None]:
        """Each run as an array of its shape; None where it did not come. StrettoError where the bytes do not fit."""
        if len(shapes) != len(self.rows):
            raise StrettoError(NONSENSE)
        kind, arrays, place, frame = np.dtype(dtype), list[Array | None](), 0, 0
        is_joined = len(self.frames) == 1
        if is_joined and len(self.frames[0]) and len(set(shapes)) == 1:
            return self._together(kind, shapes[0])
        for rows, shape in zip(self.rows, shapes, strict=True):
            if not rows:
                arrays.append(None)
                continue
            size = rows * math.prod(shape) * kind.itemsize
            data = self.frames[frame][place : place + size] if frame < len(self.frames) else b""
            if len(data) != size or (not is_joined and size != len(self.frames[frame])):
                raise StrettoError(NONSENSE)
            arrays.append(np.frombuffer(data, np.uint8).view(kind).reshape(rows, *shape))
            place, frame = (place + size, frame) if is_joined else (0, frame + 1)
        return arrays

    def _together(self, kind: np.dtype[Any], shape: tuple[int, ...]) -> list[Array | None]:
        """All of one shape, one behind the other: parts of one array."""
        total = sum(self.rows)
        if len(self.frames[0]) != total * math.prod(shape) * kind.itemsize:
            raise StrettoError(NONSENSE)
        whole = np.frombuffer(self.frames[0], np.uint8).view(kind).reshape(total, *shape)
        ends = itertools.accumulate(self.rows)
        return [whole[end - rows : end] if rows else None for rows, end in zip(self.rows, ends, strict=True)]


class TensorDoor:
    """`came` is called with a batch and a front end's token when something was brought for it."""

    def __init__(self, wires: Wires, endpoint: str, came: Callable[[int, int], None]):
        self._came = came
        self._brought: OrderedDict[tuple[int, int], Brought] = OrderedDict()
        self._held_bytes = 0
        self._loop = wires.loop
        self._wire = wires.listening(endpoint, self._heard, BOUNDS, is_large=True)

    @property
    def endpoint(self) -> str:
        return self._wire.endpoint

    def take(self, batch: int, front: int) -> Brought | None:
        """From here on it is the caller's."""
        brought = self._brought.pop((batch, front), None)
        self._held_bytes -= 0 if brought is None else brought.nbytes
        return brought

    def answer(self, caller: bytes, batch: int, rows: int, answers: Array | None, failed: Sequence[int]) -> None:
        """To the one that brought these rows, in its order; `failed` are places in it that mean nothing."""
        head = ANSWERS.pack(batch, rows) + np.array(failed, PLACE).tobytes()
        data = b"" if answers is None else np.ascontiguousarray(answers).reshape(-1).view(np.uint8).data
        try:
            self._wire.send((caller, head, data), copy=len(data) < COPIED_BYTES)
        except Unreachable:
            log.debug("a front end was gone before its answers came")

    def close(self) -> None:
        self._wire.socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._wire.close()

    def _heard(self, frames: list[Any]) -> None:
        """What is nonsense is forgotten; whoever waits for it waits no longer than it would have anyway."""
        try:
            (batch, front, runs), rows = counted(TENSORS, frames[1])
        except (StrettoError, IndexError):
            return
        if len(rows) != runs or len(frames) < 2:
            return
        self.take(batch, front)
        brought = Brought(bytes(frames[0]), rows.tolist(), frames[2:], self._loop.time())
        self._brought[batch, front] = brought
        self._held_bytes += brought.nbytes
        self.forget_old()
        self._came(batch, front)

    def forget_old(self) -> None:
        """What was brought for batches that nobody runs, and what is too much."""
        while self._brought:
            which, oldest = next(iter(self._brought.items()))
            if self._held_bytes <= MOST_EARLY_BYTES and self._loop.time() - oldest.came_s < EARLY_S:
                return
            self.take(*which)
