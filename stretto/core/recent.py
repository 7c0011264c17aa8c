"""What one client did lately: queries per second, and the harmonic mean of the bandwidths that it reported.

Both over the last second, in steps of a tenth; the oldest step counts by the share of it that is still within. The
server keeps one of these per client, and the simulated server the same. Time comes in as an argument; memory is fixed.
"""

from __future__ import annotations

import math

from stretto.core.profile import NS_PER_S

STEPS = 10
STEP_NS = NS_PER_S // STEPS
SPAN_NS = STEPS * STEP_NS
LEAST_AGE_NS = NS_PER_S // 4  # a younger client is taken to have been there so long

SLOWEST, FASTEST = 1_000.0, 1.25e10  # bytes/s that a report may say: 8 kbit/s to 100 Gbit/s
LEAST_BEYOND_BYTES = 128  # of a frame beyond the probe that it is compared with; fewer tell nothing
LEAST_SENDING_NS = NS_PER_S // 2_000  # about as much as a scheduler is off


def plausible(bytes_per_s: float) -> float | None:
    """A reported bandwidth within what networks have; None where it is no positive finite number."""
    if not math.isfinite(bytes_per_s) or bytes_per_s <= 0:
        return None
    return min(max(bytes_per_s, SLOWEST), FASTEST)


def bandwidth_of(frame_bytes: int, took_ns: int, probe_bytes: int, round_trip_ns: int) -> float | None:
    """Bytes/s of a frame that was acknowledged `took_ns` after its first byte was sent, nothing else on the way, next
    to a probe that went there and back: what the frame took longer is the time of the bytes that it has more, for the
    probe's own took time too. One that was too quick to tell counts as half a millisecond, which is careful, and lets
    a bandwidth that grew be noticed. None: it has too few bytes more to tell.
    """
    beyond_bytes = frame_bytes - probe_bytes
    if beyond_bytes < LEAST_BEYOND_BYTES:
        return None
    return plausible(beyond_bytes * NS_PER_S / max(took_ns - round_trip_ns, LEAST_SENDING_NS))


class Recent:
    """Ring buffers by step. `now_ns` must not go back by more than a step; what is older counts as of the latest."""

    __slots__ = ("_first_ns", "_first_queries", "_last", "_queries", "_reports", "_slowness", "_step")

    def __init__(self, now_ns: int) -> None:
        self._first_ns, self._first_queries = now_ns, 0
        self._step = now_ns // STEP_NS  # the latest that anything was counted in
        self._queries = [0] * (STEPS + 1)
        self._reports = [0] * (STEPS + 1)
        self._slowness = [0.0] * (STEPS + 1)  # sums of s/byte: the harmonic mean is reports over this
        self._last: float | None = None  # harmonic mean of the last second in which there were reports

    def passed(self, now_ns: int) -> None:
        """It is so late now."""
        step = now_ns // STEP_NS
        if step > self._step:
            self._move_to(step)

    def counted(self, now_ns: int, queries: int = 1) -> None:
        """So many queries came."""
        self.passed(now_ns)
        if not self._first_queries:
            self._first_ns, self._first_queries = now_ns, queries
        self._queries[self._step % (STEPS + 1)] += queries

    def reported(self, now_ns: int, bytes_per_s: float) -> None:
        """The client measured this bandwidth. Anything but a positive finite number is passed over."""
        within = plausible(bytes_per_s)
        if within is None:
            return
        self.passed(now_ns)
        place = self._step % (STEPS + 1)
        self._reports[place] += 1
        self._slowness[place] += 1.0 / within

    def rate(self, now_ns: int) -> float:
        """Queries per second over the last second. In a client's first second: those after its first request over the
        time since, for frames at 0, 40 and 80 ms are 25 a second, not 37.
        """
        counted = self._sum(self._queries, now_ns)
        age_ns = now_ns - self._first_ns
        if age_ns >= SPAN_NS:
            return counted
        return max(counted, (counted - self._first_queries) * NS_PER_S / max(age_ns, LEAST_AGE_NS))

    def bytes_per_s(self, now_ns: int) -> float | None:
        """Harmonic mean over the last second. What was known last where nothing was reported since: a client whose
        frames wait or are too small to measure has a network all the same. None: never reported.
        """
        reports = self._sum(self._reports, now_ns)
        if reports > 0:
            return reports / self._sum(self._slowness, now_ns)
        return self._mean_of_ring() or self._last

    def _mean_of_ring(self) -> float | None:
        reports = sum(self._reports)
        return reports / sum(self._slowness) if reports else None

    def _sum(self, ring: list[int] | list[float], now_ns: int) -> float:
        step, into_ns = divmod(now_ns, STEP_NS)
        behind = step - self._step  # whole steps in which nothing was counted
        if behind < 0:
            behind, into_ns = 0, 0
        elif behind > STEPS:
            return 0.0
        oldest = self._step + 1  # its place is next to be taken; there are STEPS + 1
        total = sum(ring)
        for gone in range(oldest, oldest + behind):
            total -= ring[gone % (STEPS + 1)]
        return total - ring[(oldest + behind) % (STEPS + 1)] * (into_ns / STEP_NS)

    def _move_to(self, step: int) -> None:
        """Steps that are older than a second make room."""
        mean = self._mean_of_ring()
        if mean is not None:
            self._last = mean
        if step - self._step > STEPS:
            for ring in (self._queries, self._reports, self._slowness):
                ring[:] = [0] * (STEPS + 1)
        else:
            for gone in range(self._step + 1, step + 1):
                place = gone % (STEPS + 1)
                self._queries[place] = self._reports[place] = 0
                self._slowness[place] = 0.0
        self._step = step
