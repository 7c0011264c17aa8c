"""How long the event loop is held by what it runs, and so how long bytes lie ready before anybody reads them.

A beat that should come every 10 ms comes as much later as the loop was held. What queries lose so is taken off the
slack that planners see, told in steps as the other delays are, so that plans change only when it really did.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

import numpy as np

from stretto.live.delays import WELL_BELOW, stepped
from stretto.live.meters import Histogram

BEAT_NS = 10_000_000
NOTICED_NS = 5_000_000  # timers of the loop are only so precise; less says nothing
REMEMBERED = 1_000  # beats: ten seconds
LOW = 0.1  # this share of the queries may lose more than planners are told
NEVER_NS = 2**62


class LoopLag:
    """Of one event loop, on its thread."""

    def __init__(self) -> None:
        self.seen = Histogram()
        self._sound_until_ns = NEVER_NS  # until the next beat is due, and some more
        self._late_until_ns = 0  # what is read before that may have waited while the loop was held
        self._longest_ns = 0  # that it was held then
        self._late_ns: deque[int] = deque(maxlen=REMEMBERED)
        self._lost_ns: int | None = None  # by queries, as of the last beat; None: not reckoned yet
        self.told_ns = 0  # last, to planners
        self.elsewhere_ns = 0  # in another process that reads what clients send
        self._due_ns = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beat: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._expect(time.monotonic_ns())

    def stop(self) -> None:
        if self._beat is not None:
            self._beat.cancel()

    def may_have_waited(self, now_ns: int) -> bool:
        """Whether what is read now may have been ready for a while. Two comparisons, for every request."""
        return now_ns > self._sound_until_ns or now_ns < self._late_until_ns

    def most_ns(self, now_ns: int) -> int:
        """How long it can have waited for the loop."""
        return max(now_ns - self._due_ns + BEAT_NS, self._longest_ns if now_ns < self._late_until_ns else 0)

    def tell_ns(self) -> int:
        """What planners should reckon with now: all but a few of the queries lose no more."""
        if self._lost_ns is None:
            # What is not remembered was calm: a start that holds the loop for a moment says nothing of what comes.
            late_ns = np.fromiter(self._late_ns, np.int64, len(self._late_ns))
            self._lost_ns = lost(late_ns, REMEMBERED * BEAT_NS)
        measured_ns = stepped(self._lost_ns) if self._lost_ns >= NOTICED_NS else 0
        if not WELL_BELOW * self.told_ns < measured_ns < self.told_ns:
            self.told_ns = measured_ns
        return max(self.told_ns, self.elsewhere_ns)

    def _expect(self, now_ns: int) -> None:
        assert self._loop is not None
        self._due_ns = now_ns + BEAT_NS
        self._sound_until_ns = self._due_ns + NOTICED_NS
        self._beat = self._loop.call_later(BEAT_NS / 1e9, self._beats)

    def _beats(self) -> None:
        now_ns = time.monotonic_ns()
        late_ns = max(0, now_ns - self._due_ns)
        self.seen.add(late_ns)
        self._late_ns.append(late_ns)
        self._lost_ns = None
        if late_ns > NOTICED_NS:  # whatever is read for as long again may have come while it was held
            self._longest_ns = late_ns if now_ns >= self._late_until_ns else max(self._longest_ns, late_ns)
            self._late_until_ns = now_ns + late_ns + BEAT_NS
        self._expect(now_ns)


def lost(late_ns: np.ndarray[tuple[int], np.dtype[np.int64]], least_ns: int = 0) -> int:
    """What a share of `LOW` of the queries loses at least, where they come at any moment with equal chance.

    One that comes while the loop is held waits for the rest of that time: P(waits longer than x) is the sum of what
    the beats were later than x, over all time, which is `least_ns` at least.
    """
    total = float(max(late_ns.sum() + BEAT_NS * len(late_ns), least_ns))
    late = late_ns[late_ns > NOTICED_NS].astype(np.float64)
    low, high = 0.0, float(late.max()) if len(late) else 0.0
    while high - low > NOTICED_NS / 8:
        middle = (low + high) / 2
        if np.maximum(late - middle, 0.0).sum() > LOW * total:
            low = middle
        else:
            high = middle
    return round(low)
