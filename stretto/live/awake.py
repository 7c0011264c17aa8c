"""An event loop that does not sleep while a short batch computes on a GPU.

To be woken takes a loop 50 to 100 µs, on a virtual machine more, and what it does next is slow at first: as long again
as a batch of one. So it looks for news instead, until the batch ends and for a moment after, in which a client that
waited for its answer asks again. That takes a core for the time of such batches; longer ones are slept through.
"""

from __future__ import annotations

import asyncio
import os
import time

SHORT_NS = 2_000_000  # a batch that is expected to take no longer
LATE_NS = 500_000  # after its expected end
NEXT_NS = 200_000  # after an answer
ENOUGH_CORES = 4  # for a loop and a worker that both look for news


class Awake:
    """Of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._until_ns = 0
        self._is_looking = False
        self._has_cores = (os.cpu_count() or 1) >= ENOUGH_CORES

    def began(self, expected_ns: int) -> None:
        """A batch on a GPU, by when it is expected to end."""
        if expected_ns - time.monotonic_ns() <= SHORT_NS:
            self._stay(expected_ns + LATE_NS)

    def ended(self) -> None:
        if self._is_looking:
            self._until_ns = 0  # by what was expected of it
            self._stay(time.monotonic_ns() + NEXT_NS)

    def _stay(self, until_ns: int) -> None:
        self._until_ns = max(self._until_ns, until_ns)
        if self._has_cores and not self._is_looking:
            self._is_looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Once more at the next turn: a loop with something to do polls its sockets and does not wait."""
        if time.monotonic_ns() < self._until_ns:
            self._loop.call_soon(self._look)
        else:
            self._is_looking = False
