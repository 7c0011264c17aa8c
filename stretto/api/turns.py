"""The order in which large bodies are read: so many bytes a turn of the event loop, the oldest request first.

Read side by side, bodies that come faster than they can be read would all be late together. Beyond a turn's share a
connection waits, with its bytes in the system's memory, until the bodies that began before are read. Nobody holds a
place: one whose bytes are not there when its turn comes is passed over, and waits again only when they come and others
are there too. What has waited for too large a part of its time is refused before it is read, so that the time goes to
bodies that can still be answered.
"""

from __future__ import annotations

import asyncio
import time
from heapq import heappop, heappush
from typing import Protocol

SHARE_BYTES = 2_000_000  # that are read in one turn of the event loop
MOST_RESUMED = 32  # connections that have their turn together, whatever they have left
PATIENCE_PART = 4  # this part of its application's SLO may a body wait for its turn, and twice as long in a burst


class Reader(Protocol):
    """A connection with a large body that is not complete."""

    loop: asyncio.AbstractEventLoop

    def turn_came(self, now_ns: int) -> int:
        """Read on, or refuse the body; how many bytes may be read now."""


class Turns:
    """Of all connections of one event loop."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Reader]] = []  # a heap: when the request began, a number, the connection
        self._number = 0
        self._since_ns = 0  # somebody has been waiting, without a break
        self._read_bytes = 0  # of large bodies, in this turn
        self._is_due = False  # the next turn's beginning

    def __len__(self) -> int:
        """Bodies that wait for their turn."""
        return len(self._waiting)

    def must_wait(self, reader: Reader, size: int, left: int, begun_ns: int) -> bool:
        """So many bytes of a body were read, and as many are left. True: the reader stops reading until its turn
        comes.
        """
        self._read_bytes += size
        if not self._is_due:
            self._is_due = True
            reader.loop.call_soon(self._begin, reader.loop)
        if not left or self._read_bytes < SHARE_BYTES:
            return False
        if not self._waiting:
            self._since_ns = time.monotonic_ns()
        self._number += 1
        heappush(self._waiting, (begun_ns, self._number, reader))
        return True

    def has_room(self, size: int) -> bool:
        """So much more may be read in this turn without anybody's waiting."""
        return not self._waiting and self._read_bytes + size <= SHARE_BYTES

    def is_too_long(self, waited_ns: int, patience_ns: int, now_ns: int) -> bool:
        """Whether a body that waited so long is to be refused. A burst passes by itself; where the queue has stood for
        longer than that, it would only be handed on.
        """
        is_burst = now_ns - self._since_ns < 2 * patience_ns
        return waited_ns > (2 * patience_ns if is_burst else patience_ns)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """The next turn: the oldest bodies may be read."""
        self._read_bytes = 0
        room, now_ns = SHARE_BYTES, time.monotonic_ns()
        for _ in range(min(MOST_RESUMED, len(self._waiting))):
            room -= heappop(self._waiting)[2].turn_came(now_ns)
            if room <= 0:
                break
        self._is_due = bool(self._waiting)
        if self._is_due:
            loop.call_soon(self._begin, loop)
