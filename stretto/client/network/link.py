"""One client's link, and the pipe that each of its directions is: bytes in, the same bytes out, later.

A pipe is a token bucket in its form as a schedule: bytes are cut into segments as they come in, and each segment gets
the moment at which its last byte will have passed, from the bandwidth that the trace has until then. So a timer that
rings late delays what is due, but takes nothing from the rate. Knows no socket and no clock: time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from stretto.core.bandwidth import Bandwidth, constant
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS, NS_PER_S

SEGMENT_BYTES = 1448  # what a packet of 1500 bytes carries; a slow link delivers no less than that at a time
SEGMENT_NS = 1_000_000  # of a fast link: so much at a time, or the event loop would do nothing else
BURST_NS = 300_000  # how far back idle time may still be used: about what it takes until written bytes are seen here
HELD_UP_NS = 100_000_000  # the same for a sender that was held up, so that the link only seemed to be idle
QUEUE_BYTES = 65_536
MAX_QUEUE_BYTES = 2**30
MAX_DELAY_NS = 60 * NS_PER_S
FAST = 125e6  # bytes/s of a direction that nobody restricts

Owner = TypeVar("Owner")


@dataclass(frozen=True)
class Link:
    """What a client's way to the server is like; `down` of None: a gigabit a second.

    A delay is of one direction, and comes on top of the time that the bytes take to pass. `queue_bytes` is how much
    waits at either end before the sender is held up.
    """

    up: Bandwidth
    down: Bandwidth | None = None
    up_delay_ns: int = 0
    down_delay_ns: int = 0
    queue_bytes: int = QUEUE_BYTES
    burst_ns: int = BURST_NS

    def __post_init__(self) -> None:
        for delay_ns in (self.up_delay_ns, self.down_delay_ns):
            if not 0 <= delay_ns <= MAX_DELAY_NS:
                raise StrettoError(f"a link's delay is {delay_ns / NS_PER_MS:g} ms; it is from 0 to a minute")
        if not SEGMENT_BYTES <= self.queue_bytes <= MAX_QUEUE_BYTES:
            raise StrettoError(
                f"a link's queue is {self.queue_bytes} bytes; it holds from {SEGMENT_BYTES} to {MAX_QUEUE_BYTES}"
            )
        if not 0 <= self.burst_ns <= NS_PER_S:
            raise StrettoError(f"a link's burst is {self.burst_ns / NS_PER_MS:g} ms; it is from 0 to a second")

    def pipes(self, start_ns: int) -> tuple[Pipe, Pipe]:
        """Up and down; the traces begin at `start_ns`."""
        down = constant(FAST) if self.down is None else self.down
        return (
            Pipe(self.up, start_ns, self.up_delay_ns, self.queue_bytes, self.burst_ns),
            Pipe(down, start_ns, self.down_delay_ns, self.queue_bytes, self.burst_ns),
        )


class Pipe(Generic[Owner]):
    """One direction. Whatever is put in comes out in the same order, with the owner that it was put in for.

    Bytes wait first (queued), then travel for the delay. A mark has no bytes; it follows what was put in before it.
    """

    def __init__(self, bandwidth: Bandwidth, start_ns: int, delay_ns: int, queue_bytes: int, burst_ns: int = BURST_NS):
        self._bandwidth = bandwidth
        self._start_ns = start_ns
        self._delay_ns = delay_ns
        self._queue_bytes = queue_bytes
        self._burst_ns = burst_ns
        self._passed_ns = start_ns  # when the last byte that was put in will have passed
        self._waiting: deque[tuple[int, int, Owner, bytes | None]] = deque()  # (passed, put in) and for whom
        self._travelling: deque[tuple[int, Owner, bytes | None]] = deque()
        self._queued = 0
        self._underway = 0

    @property
    def queued(self) -> int:
        """Bytes that have not passed yet."""
        return self._queued

    @property
    def underway(self) -> int:
        """Bytes that are inside, queued or travelling."""
        return self._underway

    @property
    def room(self) -> int:
        """Bytes that may be put in."""
        return max(0, self._queue_bytes - self._queued)

    @property
    def is_low(self) -> bool:
        """Whether a sender that was held up may go on."""
        return 2 * self._queued <= self._queue_bytes

    @property
    def wake_at_ns(self) -> int | None:
        """When `moved` next has something to do."""
        first_ns = [entries[0][0] for entries in (self._waiting, self._travelling) if entries]
        return min(first_ns) if first_ns else None

    def restart(self, start_ns: int) -> None:
        """The trace begins at this moment; what is inside goes on by what it was before."""
        self._start_ns = start_ns

    def put(self, now_ns: int, owner: Owner, content: bytes, was_held_up: bool = False) -> None:
        """Bytes for an owner, no more than there is room for. `was_held_up`: but for us they would have come before."""
        if len(content) > self.room:
            raise StrettoError(f"{len(content)} bytes were put into a queue that has room for {self.room}")
        bandwidth, start_ns = self._bandwidth, self._start_ns
        passed_ns = max(self._passed_ns, now_ns - (HELD_UP_NS if was_held_up else self._burst_ns))
        place = 0
        while place < len(content):
            rate = bandwidth.rate_at(passed_ns - start_ns)
            segment = content[place : place + max(SEGMENT_BYTES, int(rate * SEGMENT_NS / NS_PER_S))]
            passed_ns += bandwidth.time_to_send(passed_ns - start_ns, len(segment))
            self._waiting.append((passed_ns, now_ns, owner, segment))
            place += len(segment)
        self._passed_ns = passed_ns
        self._queued += len(content)
        self._underway += len(content)

    def mark(self, now_ns: int, owner: Owner) -> None:
        """The owner's bytes end here; comes out as None after all that was put in before."""
        self._waiting.append((max(self._passed_ns, now_ns), now_ns, owner, None))

    def moved(self, now_ns: int) -> Iterator[tuple[Owner, bytes | None]]:
        """What has come out by now: bytes, or None for a mark."""
        waiting, travelling = self._waiting, self._travelling
        while waiting and waiting[0][0] <= now_ns:
            passed_ns, put_ns, owner, content = waiting.popleft()
            self._queued -= 0 if content is None else len(content)
            # Time that was made good for a late timer is not taken off the delay.
            travelling.append((max(passed_ns, put_ns) + self._delay_ns, owner, content))
        while travelling and travelling[0][0] <= now_ns:
            _, owner, content = travelling.popleft()
            self._underway -= 0 if content is None else len(content)
            yield owner, content
