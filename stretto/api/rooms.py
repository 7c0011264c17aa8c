"""Memory for bodies that come in pieces: rooms of their own, outside the C library's heap.

A body has as much room as its client says that it will be long, and fills it as it comes. In a heap, the rooms of ten
thousand bodies that never end are nine gigabytes of addresses, of which every page that was ever touched stays with the
process. So there is one piece of memory for all, touched ahead: pages that are touched for the first time cost far more
than reading into them. Rooms lie in it side by side, none larger than its body, so that as many bodies as can be have
one. What finds no place there has memory that goes back to the system with its body.
"""

from __future__ import annotations

import contextlib
import mmap
import os

import numpy as np

from stretto.api.messages import Array
from stretto.live.face.memory import FrontMemory, Room
from stretto.live.lent import lend

KEPT_BYTES = 64 << 20
FOR_A_GPU = 4  # times as much: a sixth of a second of images of 600 kB, as fast as one process reads them
MOST_BYTES = KEPT_BYTES // 16  # of one room: a body beyond that is put together from several
USUAL_BYTES = 1 << 20  # larger rooms are given while half of it is free: whoever states much leaves the rest to others
POPULATE = getattr(mmap, "MAP_POPULATE", 0)
NO_HUGE_PAGES = getattr(mmap, "MADV_NOHUGEPAGE", None)  # one of those would be two megabytes for the first byte


class Rooms:
    """Of all connections. `kept_bytes` stay with the process, from `take_ahead` on."""

    def __init__(self, kept_bytes: int = KEPT_BYTES):
        self._kept_bytes = kept_bytes
        self._kept: Array | None = None
        self._free = Room(0)
        self._given_back: list[tuple[int, int]] = []  # where, and how much: on any thread, at any moment

    def take_ahead(self, times: int = 1) -> None:
        """Before the first body comes, and before workers start: their processes see it too, where the system can.
        `times` as much where bodies are large and many: once they find no room they cost twice the time, which makes
        more of them wait.
        """
        if self._kept is not None or not self._kept_bytes:
            return
        self._kept_bytes *= times
        if hasattr(os, "memfd_create"):
            self._lent = lend(FrontMemory.made(self._kept_bytes))
            self._kept = self._lent.bytes
            self._kept[:: mmap.PAGESIZE] = 0  # its pages are taken now
        else:
            self._kept = _memory(self._kept_bytes, POPULATE)
        self._free = Room(self._kept_bytes)

    def room(self, size: int) -> memoryview:
        """So many bytes, not filled with zeros. What is larger than `MOST_BYTES` is the C library's, and goes back."""
        if size > MOST_BYTES:
            return np.empty(size, np.uint8).data
        while self._given_back:
            self._free.give(*self._given_back.pop())
        is_scarce = size > USUAL_BYTES and 2 * self._free.free < self._kept_bytes
        place = -1 if is_scarce else self._free.take(size)
        if place < 0 or self._kept is None:
            return _memory(size).data
        room = self._kept[place : place + size].view(_Kept)
        room.given_back, room.place = self._given_back, place
        return room.data


class _Kept(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """A room in what is kept. Views and arrays of it keep it; when the last of them is gone, it is free."""

    given_back: list[tuple[int, int]]
    place: int

    def __del__(self) -> None:
        self.given_back.append((self.place, self.nbytes))


def _memory(size: int, flags: int = 0) -> Array:
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
    if NO_HUGE_PAGES is not None:
        with contextlib.suppress(OSError):  # a kernel without
            memory.madvise(NO_HUGE_PAGES)
    return np.frombuffer(memory, np.uint8)
