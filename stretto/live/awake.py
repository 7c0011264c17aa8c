"""An event loop that does not sleep while a short batch computes on a GPU.

To be woken takes a loop 50 to 100 µs, on a virtual machine more, and what it does next is slow at first: as long again
as a batch of one. So it looks for news instead, until the batch ends and for a moment after, in which a client that
waited for its answer asks again. That takes a core for the time of such batches; longer ones are slept through.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque

SHORT_NS = 2_000_000  # a batch that is expected to take no longer
LATE_NS = 500_000  # after its expected end
NEXT_NS = 500_000  # after an answer: so long a large body takes to come
ENOUGH_CORES = 4  # for a loop and a worker that both look for news


class Awake:
    """Of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._expected_ns: deque[int] = deque()  # ends of the batches that compute, in their order
        self._until_ns = 0
        self._is_looking = False
        self._has_cores = len(os.sched_getaffinity(0)) >= ENOUGH_CORES if hasattr(os, "sched_getaffinity") else False

    def began(self, expected_ns: int) -> None:
        """A batch on a GPU, by when it is expected to end."""
        self._expected_ns.append(expected_ns)
        self._stay(0)

    def ended(self) -> None:
        """The first of those that began."""
        if self._expected_ns:
            self._expected_ns.popleft()
        if self._is_looking:
            self._stay(time.monotonic_ns() + NEXT_NS)

    def _stay(self, until_ns: int) -> None:
        now_ns = time.monotonic_ns()
        if self._expected_ns and self._expected_ns[0] - now_ns <= SHORT_NS:
            until_ns = max(until_ns, self._expected_ns[0] + LATE_NS)
        self._until_ns = until_ns
        if self._has_cores and not self._is_looking and until_ns > now_ns:
            self._is_looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Once more at the next turn: a loop with something to do polls its sockets and does not wait."""
        if time.monotonic_ns() < self._until_ns:
            self._loop.call_soon(self._look)
        else:
            self._is_looking = False
