"""Which calls may have their message read now. gRPC tells nothing of a message before all of it is there, so each that
is being read may become the longest that is allowed: only so many are read at a time as the memory holds of those.

A call whose message is not asked for costs 64 KiB at most (gRPC's own window). Where places are short, the read that
has lasted longest gives way, of the connection that has most of them; a quarter of the places is kept for connections
whose last message came without delay. So those that send slowly, or nothing, stand in the way of nobody else.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from stretto.api.budget import SHARE_PART
from stretto.api.errors import ApiError, Reason, no_room
from stretto.api.limits import Limits

TURN_S = 0.25  # a read that lasts longer, and longer than the longest message should, gives way where others wait
SLOW_BYTES_PER_S = 16e6
SPARE_PART = 4
WAITING = 16  # calls for each place, that may wait for one
KNOWN = 10_000  # connections remembered
LOOK_S = 1.0  # how often reads are looked at that nobody waits for
LOOK_SOON_S = 0.05


def did_not_come() -> ApiError:
    return ApiError(Reason.EXPIRED, "the message of the call did not come")


class Read:
    """One message on its way."""

    __slots__ = ("began_s", "failure", "is_one_call", "peer", "task", "turn")

    def __init__(self, peer: str, is_one_call: bool):
        self.peer = peer
        self.is_one_call = is_one_call  # it must come; the next message of a stream may take its time
        self.began_s = 0.0
        self.task = asyncio.current_task()
        self.turn: asyncio.Future[None] | None = None  # while it waits for a place
        self.failure: Callable[[], ApiError] | None = None  # why it has to end


class Reads:
    """Of all listeners together. On the event loop's thread only."""

    def __init__(self, limits: Limits):
        self.places = limits.reads_at_once
        self.refused = 0  # calls that gave way, or found no place
        self._timeout_s = limits.header_timeout_s
        self._turn_s = max(TURN_S, limits.message_bytes / SLOW_BYTES_PER_S)
        self._open_places = self.places - self.places // SPARE_PART  # for connections that are not known
        self._reading: dict[Read, None] = {}  # the oldest first
        self._waiting: dict[Read, None] = {}
        self._of_peer: Counter[str] = Counter()  # reading
        self._known: OrderedDict[str, None] = OrderedDict()
        self._bytes_of: dict[str, int] = {}  # of messages that were read and are not answered
        self._share = max(limits.budget_bytes // SHARE_PART, limits.message_bytes)
        self._look: asyncio.TimerHandle | None = None

    @property
    def reading(self) -> int:
        return len(self._reading)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, peer: str, size: int) -> None:
        """A message was read. ApiError where its connection has more in flight than its share. Either way it is to be
        given back.
        """
        self._bytes_of[peer] = held = self._bytes_of.get(peer, 0) + size
        if held > self._share:
            self.refused += 1
            raise no_room()

    def give_back(self, peer: str, size: int) -> None:
        left = self._bytes_of.pop(peer, 0) - size
        if left > 0:
            self._bytes_of[peer] = left

    async def read(self, context: Any, peer: str, is_one_call: bool = True) -> Any:
        """The next message of a call, or EOF. ApiError where there is no place for it, or no more."""
        read = Read(peer, is_one_call)
        if self._waiting or not self._is_free_for(read):
            await self._wait(read)
        return await self._read(read, context)

    async def _read(self, read: Read, context: Any) -> Any:
        loop = asyncio.get_running_loop()
        read.began_s = loop.time()
        self._reading[read] = None
        self._of_peer[read.peer] += 1
        if self._look is None:
            self._look = loop.call_later(LOOK_S, self._look_around)
        try:
            body = await context.read()
        except asyncio.CancelledError:
            # gRPC has what came of the message until the call is over; so long the place is taken.
            context.add_done_callback(lambda _: self._leave(read))
            if read.failure is None or read.task is None or read.task.uncancel():
                raise  # its client left
            raise read.failure() from None
        except BaseException:
            self._leave(read)
            raise
        self._leave(read)
        if loop.time() - read.began_s < self._turn_s:
            self._known[read.peer] = None
            self._known.move_to_end(read.peer)
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
        return body

    def _leave(self, read: Read) -> None:
        del self._reading[read]
        self._of_peer[read.peer] -= 1
        if not self._of_peer[read.peer]:
            del self._of_peer[read.peer]
        if self._waiting:
            self._give_places()

    def _is_free_for(self, read: Read) -> bool:
        return len(self._reading) < (self.places if read.peer in self._known else self._open_places)

    async def _wait(self, read: Read) -> None:
        if len(self._waiting) >= WAITING * self.places:
            last = next((each for each in reversed(self._waiting) if each.peer not in self._known), None)
            if last is None or read.peer not in self._known:
                self.refused += 1
                raise no_room()
            self._end(last, no_room)
        read.turn = asyncio.get_running_loop().create_future()
        self._waiting[read] = None
        self._give_places()
        if not read.turn.done():
            self._displace()
        if self._look is not None and len(self._waiting) == 1:
            self._look.cancel()
            self._look = read.turn.get_loop().call_later(LOOK_SOON_S, self._look_around)
        try:
            await read.turn
        finally:
            self._waiting.pop(read, None)

    def _give_places(self) -> None:
        """To those who are known first, then to who has least; among equals to who came first."""
        free = (
            self.places - len(self._reading) - sum(read.turn is not None and read.turn.done() for read in self._waiting)
        )
        waiting = sorted(self._waiting, key=lambda read: (read.peer not in self._known, self._of_peer[read.peer]))
        for read in waiting:
            if free <= 0 or (read.peer not in self._known and free <= self.places - self._open_places):
                return
            if read.turn is not None and not read.turn.done():
                read.turn.set_result(None)
                free -= 1

    def _displace(self) -> None:
        """One read for each call that waits: those that lasted longest, of connections that have most."""
        now_s = asyncio.get_running_loop().time()
        leaving = sum(read.failure is not None for read in self._reading)
        old = [read for read in self._reading if read.failure is None and now_s - read.began_s >= self._turn_s]
        old.sort(key=lambda read: (-self._of_peer[read.peer], read.began_s))
        for read in old[: max(0, len(self._waiting) - leaving)]:
            self._end(read, no_room)

    def _end(self, read: Read, failure: Callable[[], ApiError]) -> None:
        self.refused += 1
        read.failure = failure
        self._known.pop(read.peer, None)
        if read.turn is not None and not read.turn.done():
            read.turn.set_exception(failure())
        elif read.task is not None:
            read.task.cancel()

    def _look_around(self) -> None:
        """While anything is read: messages that do not come, and those who wait for them."""
        self._look = None
        if not self._reading and not self._waiting:
            return
        loop = asyncio.get_running_loop()
        for read in list(self._reading):
            if read.is_one_call and read.failure is None and loop.time() - read.began_s > self._timeout_s:
                self._end(read, did_not_come)
        if self._waiting:
            self._displace()
        self._look = loop.call_later(LOOK_SOON_S if self._waiting else LOOK_S, self._look_around)
