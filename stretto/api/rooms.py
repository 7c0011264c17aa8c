"""Memory for bodies that come in pieces: blocks of their own, outside the C library's heap.

A body has as much room as its client says that it will be long, and fills it as it comes. In a heap, the rooms of ten
thousand bodies that never end are nine gigabytes of addresses, of which every page that was ever touched stays with the
process. A block goes back to the system with its body. Some are kept, all of them touched: pages that are touched for
the first time cost far more than reading into them. The one that was free last is the next to be used.
"""

from __future__ import annotations

import contextlib
import mmap
import os

import numpy as np

from stretto.api.messages import Array
from stretto.live.face.memory import FrontMemory
from stretto.live.lent import lend

BLOCK_BYTES = 1 << 20
KEPT_BYTES = 64 << 20
POPULATE = getattr(mmap, "MAP_POPULATE", 0)
NO_HUGE_PAGES = getattr(mmap, "MADV_NOHUGEPAGE", None)  # one of those would be two megabytes for the first byte


class Rooms:
    """Of all connections. `kept_bytes` of blocks stay with the process, and as many more while they are wanted."""

    def __init__(self, kept_bytes: int = KEPT_BYTES):
        self._most_kept = kept_bytes // BLOCK_BYTES
        self._kept: list[Array] = []
        self._lent: FrontMemory | None = None

    def take_ahead(self) -> None:
        """Before the first body comes, and before workers start: their processes see it too, where the system can."""
        count = self._most_kept - len(self._kept)
        if count > 0 and hasattr(os, "memfd_create"):
            self._lent = lend(FrontMemory.made(count * BLOCK_BYTES))
            self._lent.bytes[:: mmap.PAGESIZE] = 0  # its pages are taken now
            self._kept += list(self._lent.bytes.reshape(count, BLOCK_BYTES))
        else:
            self._kept += [_block(POPULATE) for _ in range(count)]

    def room(self, size: int) -> memoryview:
        """So many bytes, not filled with zeros. What is larger than a block is the C library's, and goes back too."""
        if size > BLOCK_BYTES:
            return np.empty(size, np.uint8).data
        is_kept = bool(self._kept)
        block = self._kept.pop() if is_kept else _block()
        room = block[:size].view(_Room)
        room.block, room.rooms, room.was_kept = block, self, is_kept
        return room.data

    def give_back(self, block: Array, was_kept: bool) -> None:
        """Nobody has anything of it any more. What workers see is kept before any other."""
        if was_kept if self._lent is not None else len(self._kept) < self._most_kept:
            self._kept.append(block)


class _Room(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """A part of a block. Views and arrays of it keep it; when the last of them is gone, its block is free."""

    block: Array
    rooms: Rooms
    was_kept: bool

    def __del__(self) -> None:
        self.rooms.give_back(self.block, self.was_kept)


def _block(flags: int = 0) -> Array:
    memory = mmap.mmap(-1, BLOCK_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
    if NO_HUGE_PAGES is not None:
        with contextlib.suppress(OSError):  # a kernel without
            memory.madvise(NO_HUGE_PAGES)
    return np.frombuffer(memory, np.uint8)
