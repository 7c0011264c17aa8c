"""The memory of a front end that the scheduler and the workers of its machine see: tensors lie here until their request
has ended, and their answers come here.

It has no name in any file system, only descriptors, so that nothing is left behind however a process ends.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import weakref
from bisect import bisect_left

import numpy as np
from numpy.typing import DTypeLike

from stretto.backends.model import Array
from stretto.core.errors import StrettoError

ALIGNMENT = 64


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class FrontMemory:
    """Seen by all; only the front end gives room in it. It goes with the last that refers to it: batches that still
    run may look at it after its front end is gone.
    """

    def __init__(self, descriptor: int, size: int):
        self.descriptor = descriptor
        self.size = size
        self._map = mmap.mmap(descriptor, size, mmap.MAP_SHARED)
        self.bytes = np.frombuffer(self._map, np.uint8)
        self.address = int(self.bytes.ctypes.data)
        weakref.finalize(self, os.close, descriptor)

    @staticmethod
    def made(size: int, name: str = "stretto-front") -> FrontMemory:
        """New memory; taken from the system when it is touched. Operators see the name among a process's maps."""
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL  # nobody who maps it is left with less
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return FrontMemory(descriptor, size)

    def array(self, place: int, dtype: DTypeLike, shape: tuple[int, ...]) -> Array:
        """StrettoError where that is not all inside."""
        kind = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype)
        width = kind.itemsize
        if place < 0 or place % width or place + math.prod(shape) * width > self.size:
            raise StrettoError("a front end named memory that it does not have")
        return np.ndarray(shape, kind, self._map, place)

    def write(self, place: int, array: Array) -> None:
        """StrettoError where that is not all inside."""
        end = place + array.nbytes
        if place < 0 or end > self.size:
            raise StrettoError("a front end named memory that it does not have")
        self._map[place:end] = array.tobytes()


class Room:
    """Who has which part of such a memory: the first hole that is large enough is taken."""

    def __init__(self, size: int):
        self._starts = [0]  # of the holes, in order
        self._sizes = [size]

    def take(self, size: int) -> int:
        """Where so much is free from now on the caller's; -1 where nothing is."""
        size = aligned(max(1, size))
        for hole, free in enumerate(self._sizes):
            if free >= size:
                start = self._starts[hole]
                if free == size:
                    del self._starts[hole], self._sizes[hole]
                else:
                    self._starts[hole], self._sizes[hole] = start + size, free - size
                return start
        return -1

    def give(self, start: int, size: int) -> None:
        """What was taken is free again; holes that touch become one."""
        size = aligned(max(1, size))
        starts, sizes = self._starts, self._sizes
        hole = bisect_left(starts, start)
        if hole < len(starts) and start + size == starts[hole]:
            starts[hole], sizes[hole] = start, sizes[hole] + size
        else:
            starts.insert(hole, start)
            sizes.insert(hole, size)
        if hole and starts[hole - 1] + sizes[hole - 1] == starts[hole]:
            sizes[hole - 1] += sizes[hole]
            del starts[hole], sizes[hole]

    @property
    def free(self) -> int:
        return sum(self._sizes)
