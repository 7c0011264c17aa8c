"""Memory that the server and one worker process share: two slots, each with room for a batch and its answers.

It has no name in any file system, only descriptors, so that nothing is left behind however a process ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence

import numpy as np

from stretto.backends.model import Array
from stretto.backends.pinned import pin, unpin
from stretto.live.shelf import ModelSpec

SLOTS = 2  # a worker runs one batch and holds at most one more
ALIGNMENT = 64
Run = tuple[int, int]  # rows, and the number of their shape among the model's input shapes


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def slot_bytes(specs: Iterable[ModelSpec]) -> int:
    """What the largest batch of any of these models needs, with its answers."""
    needs = [
        _aligned(spec.max_batch * spec.input_bytes) + _aligned(spec.max_batch * spec.output_bytes) for spec in specs
    ]
    return max(needs, default=ALIGNMENT)


def runs_of(parts: Sequence[Array], spec: ModelSpec) -> list[Run]:
    """The rows of these parts by shape, as they follow each other; nothing where all have the model's one shape."""
    if len(spec.input_shapes) < 2:
        return []
    runs: list[Run] = []
    for part in parts:
        shape = spec.input_shapes.index(part.shape[1:])
        if runs and runs[-1][1] == shape:
            runs[-1] = (runs[-1][0] + len(part), shape)
        else:
            runs.append((len(part), shape))
    return runs


def fill(rooms: Sequence[Array], parts: Sequence[Array]) -> None:
    """The rows of these parts into the memory for them, which is divided by shape alone."""
    room, place = 0, 0
    for part in parts:
        if place == len(rooms[room]):
            room, place = room + 1, 0
        rooms[room][place : place + len(part)] = part
        place += len(part)


class Arena:
    """Close it when the process is gone."""

    def __init__(self, descriptor: int, slot_size: int, ahead: bool = False):
        """`ahead`: all pages are taken now, and not when a batch is first written there."""
        self.descriptor = descriptor
        self.slot_size = slot_size
        populate = getattr(mmap, "MAP_POPULATE", 0) if ahead else 0
        self._map = mmap.mmap(descriptor, SLOTS * slot_size, mmap.MAP_SHARED | populate)
        self._is_pinned = False

    @staticmethod
    def made(slot_size: int, ahead: bool = False) -> Arena:
        """New memory, zeroed; taken from the system when it is touched, unless `ahead`."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("stretto", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:  # it has no name by now, and lives while a descriptor does
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, SLOTS * slot_size)
        return Arena(descriptor, slot_size, ahead)

    def inputs(self, slot: int, spec: ModelSpec, rows: int) -> Array:
        return self._array(slot * self.slot_size, spec.input_dtype, (rows, *spec.input_shape))

    def parts(self, slot: int, spec: ModelSpec, runs: Sequence[Run]) -> list[Array]:
        """Queries of several shapes: rows of one shape that follow each other are one array, and each row has room for
        the largest shape.
        """
        start, arrays = slot * self.slot_size, []
        for rows, shape in runs:
            arrays.append(self._array(start, spec.input_dtype, (rows, *spec.input_shapes[shape])))
            start += rows * spec.input_bytes
        return arrays

    def batch(self, slot: int, spec: ModelSpec, rows: int, runs: Sequence[Run]) -> list[Array]:
        """Room for a batch: by runs where shapes differ, else one array."""
        return self.parts(slot, spec, runs) if runs else [self.inputs(slot, spec, rows)]

    def answers(self, slot: int, spec: ModelSpec, rows: int) -> Array:
        start = slot * self.slot_size + _aligned(spec.max_batch * spec.input_bytes)
        return self._array(start, spec.output_dtype, (rows, *spec.output_shape))

    def _array(self, start: int, dtype: str, shape: tuple[int, ...]) -> Array:
        return np.ndarray(shape, dtype, self._map, start)

    def pin(self) -> None:
        """So that a GPU reads it directly, where the system allows that; once is enough."""
        if not self._is_pinned:
            self._is_pinned = pin(self._map)

    def close(self) -> None:
        if self._is_pinned:
            unpin(self._map)
        os.close(self.descriptor)
        with contextlib.suppress(BufferError):  # an array of it is still looked at; the memory goes with that
            self._map.close()
