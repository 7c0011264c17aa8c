"""Where a front end keeps the tensors of its requests: in memory that the workers of its machine read and write.

Requests of one shape follow each other. A part of the memory that one of them has left waits for the next, with the
arrays that lie there: to look for room and to make two arrays each time took 5 µs of a request's 50.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.core.errors import StrettoError
from stretto.live.face.memory import FrontMemory, Room, aligned
from stretto.live.requests import Request
from stretto.live.rows import as_array
from stretto.repository.application import ApplicationFiles

if TYPE_CHECKING:
    from stretto.live.face.front import Directory

SPARE_BYTES = 4 << 20  # of parts of one shape that wait for a request
MOST_SHAPES = 64  # that have such parts


class Shape:
    """Of the requests of an application as these files describe it, with their answers."""

    def __init__(self, files: ApplicationFiles, shape: tuple[int, ...]):
        self.files = files
        self.inputs = np.dtype(files.input.dtype), shape
        self.answers = np.dtype(files.output.dtype), (shape[0], *files.output.shape)
        self.answers_behind = aligned(math.prod(shape) * self.inputs[0].itemsize)
        self.size = aligned(max(1, self.answers_behind + shape[0] * files.output.row_bytes))
        self.spare: list[Part] = []
        self.most_spare = SPARE_BYTES // self.size


class Part:
    """Of the memory: it is a request's, or waits for one."""

    __slots__ = ("answers", "inputs", "place", "shape")

    def __init__(self, memory: FrontMemory, place: int, shape: Shape):
        self.place, self.shape = place, shape
        self.inputs = memory.array(place, *shape.inputs)
        self.answers = memory.array(place + shape.answers_behind, *shape.answers)


class SharedStore:
    """A Store. What a request was read from is not kept: its inputs are those in the memory."""

    def __init__(self, memory: FrontMemory):
        self._memory = memory
        self._room = Room(memory.size)
        self._shapes: dict[tuple[str, tuple[int, ...]], Shape] = {}  # by application and shape of its inputs
        self._parts: dict[int, Part] = {}  # by request

    def put(self, number: int, request: Request, files: ApplicationFiles) -> int | None:
        inputs = as_array(request.inputs)
        shape = self._shapes.get((files.name, inputs.shape))
        if shape is None or shape.files is not files:
            shape = self._meet(files, inputs.shape)
        part = shape.spare.pop() if shape.spare else self._taken(shape)
        if part is None:
            return None
        part.inputs[...] = inputs
        request.inputs = part.inputs
        self._parts[number] = part
        return part.place

    def answers(self, number: int, request: Request, files: ApplicationFiles) -> np.ndarray[Any, Any] | None:
        return self._parts[number].answers.copy()

    def left_behind(self, number: int, request: Request, files: ApplicationFiles) -> np.ndarray[Any, Any] | None:
        return None  # whether all are there, only the scheduler knew

    def told(self, kind: int, payload: memoryview, directory: Directory) -> None:
        raise StrettoError("the scheduler spoke nonsense")

    def drop(self, number: int) -> None:
        part = self._parts.pop(number, None)
        if part is None:
            return
        shape = part.shape
        if len(shape.spare) < shape.most_spare:
            shape.spare.append(part)
        else:
            self._room.give(part.place, shape.size)

    @property
    def free(self) -> int:
        """Bytes that are no request's."""
        return self._room.free + sum(len(shape.spare) * shape.size for shape in self._shapes.values())

    def _meet(self, files: ApplicationFiles, inputs: tuple[int, ...]) -> Shape:
        """A shape that is new, or was another one's until now."""
        key = files.name, inputs
        left = [key] if key in self._shapes else []
        if not left and len(self._shapes) >= MOST_SHAPES:
            left = list(self._shapes)
        for each in left:
            self._forget(self._shapes.pop(each))
        shape = self._shapes[key] = Shape(files, inputs)
        return shape

    def _forget(self, shape: Shape) -> None:
        """What requests of it still have goes back to the room when they end."""
        self._empty(shape)
        shape.most_spare = 0

    def _empty(self, shape: Shape) -> None:
        for part in shape.spare:
            self._room.give(part.place, shape.size)
        shape.spare.clear()

    def _taken(self, shape: Shape) -> Part | None:
        """A new part; None where there is no room, not even with what waits for requests of other shapes."""
        place = self._room.take(shape.size)
        if place < 0:
            for other in self._shapes.values():
                self._empty(other)
            place = self._room.take(shape.size)
        return None if place < 0 else Part(self._memory, place, shape)
