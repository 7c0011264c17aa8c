"""Work beside the serving goes on only as fast as the serving bears it.

The lowest priority is not enough. A core that runs such work is not idle, so that the kernel does not bring it what
waits for another core before its next round: on two cores one batch in ten took a third longer. And where processor
time is rationed as a whole, as in a container with a quota or on a shared host, what the work takes is missing for the
answers. So it is stopped and goes on, by SIGSTOP and SIGCONT:

- while workers and the event loop need all cores, it is stopped, but for a small share of the time that it is owed, so
  that it comes to an end on a machine that is always busy;
- the event loop's own timers are watched. When they come late, the work is stopped for a growing part of the time; when
  they are on time again it gets more, up to all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

SLOT_S = 0.1  # of it the work has its share, then it is stopped
TICK_S = 0.002  # between two looks at the cores and the timers
LATE_S = 0.005  # a timer so late hurts answers
LEAST_SHARE = 0.1  # at first, and so that it comes to an end on a host that is always late
OWED_SHARE = 0.05  # of the time, whatever workers need
OWED_S = 0.01  # from so much on it is given what it is owed, at once
MORE, LESS = 0.05, 0.5  # added after a slot without a late timer; times what it had after one with


class Pace:
    """For one process at a time, between `begin` and `end`. All of it is called on the loop. `has_spare_core` says
    whether the serving leaves one at this moment.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, has_spare_core: Callable[[], bool] = lambda: True):
        self._loop, self._has_spare_core = loop, has_spare_core
        self._process: int | None = None
        self._is_stopped = False
        self._share = LEAST_SHARE
        self._slot_start = self._due = self._latest = 0.0
        self._looked = self._owed_s = 0.0
        self._is_paid = False  # what it is owed, at this moment
        self._tick: asyncio.TimerHandle | None = None

    @property
    def share(self) -> float:
        """Of the time, in which the work may run."""
        return self._share

    def begin(self, process: int) -> None:
        self.end()
        self._process = process
        self._slot_start = self._looked = self._loop.time()
        self._latest = self._owed_s = 0.0
        self._look_again()

    def end(self) -> None:
        """The process goes on, whatever its share was."""
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        self._set_stopped(False)
        self._process = None

    def _look_again(self) -> None:
        self._due = self._loop.time() + TICK_S
        self._tick = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        self._latest = max(self._latest, now - self._due)
        if now - self._slot_start >= SLOT_S:
            self._share = shared(self._share, self._latest)
            self._slot_start, self._latest = now, 0.0
        try:
            is_owed, is_in_turn = self._is_owed(now), now - self._slot_start < self._share * SLOT_S
            self._set_stopped(not is_owed and not (is_in_turn and self._has_spare_core()))
        finally:
            self._look_again()

    def _is_owed(self, now: float) -> bool:
        """Whether it has had less than it is owed at least, by so much that it is worth a while."""
        passed_s, self._looked = now - self._looked, now
        self._owed_s += OWED_SHARE * passed_s - (0.0 if self._is_stopped else passed_s)
        self._owed_s = min(max(self._owed_s, -OWED_S), OWED_S)
        self._is_paid = self._owed_s >= OWED_S or (self._is_paid and self._owed_s > 0)
        return self._is_paid

    def _set_stopped(self, is_stopped: bool) -> None:
        if is_stopped == self._is_stopped or self._process is None:
            return
        self._is_stopped = is_stopped
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(self._process, signal.SIGSTOP if is_stopped else signal.SIGCONT)


def shared(share: float, late_s: float) -> float:
    """The share of the next slot, after one whose latest timer was so late."""
    if late_s > LATE_S:
        return max(LEAST_SHARE, share * LESS)
    return min(1.0, share + MORE)
