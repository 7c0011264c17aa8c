"""All connections of one listener: how many there may be, who leaves, and who has been there for too long."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Protocol

from stretto.api.handover import Handover
from stretto.api.http.crowd import Crowd

SWEPT = 64  # connections that are looked at in one turn of the event loop


class Connection(Protocol):
    """One of them."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    address: str  # of its client's machine
    since_s: float  # its last request began, or its last answer was sent

    @property
    def is_answering(self) -> bool: ...

    @property
    def may_give_way(self) -> bool:
        """It owes no answer, and its last call showed no token."""
        ...

    def end_if_slow(self, now_s: float) -> None: ...

    def shutdown(self) -> None: ...


@dataclass(eq=False)
class Traffic:
    """Of one listener: its open connections, at most so many, and the tasks that answer their calls."""

    most_connections: int
    makes_room: bool = False  # for newcomers, when it is full
    connections: set[Connection] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    leaving: deque[Connection] = field(default_factory=deque)  # whose client has closed them
    crowd: Crowd = field(default_factory=Crowd)  # connections whose request does not become complete
    handover: Handover | None = None  # where others listen on the same port

    def joined(self, connection: Connection) -> None:
        self.connections.add(connection)
        if self.handover is not None:
            self.handover.has(len(self.connections))

    def make_room(self, newcomer: Connection | None = None) -> bool:
        """Whether somebody gives way to a newcomer: the connection that has been silent for longest, of the address
        that has most of these. So whoever opens many cannot keep others out, and who showed a token stays.
        """
        if not self.makes_room:
            return False
        silent = [each for each in self.connections if each is not newcomer and each.may_give_way]
        if not silent:
            return False
        of_address = Counter(connection.address for connection in silent)
        min(silent, key=lambda each: (-of_address[each.address], each.since_s)).transport.close()
        return True

    def left(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self.handover is not None:
            self.handover.has(len(self.connections))

    def leaves(self, connection: Connection) -> None:
        """A crowd that leaves together does so in portions: others have their turn in between."""
        if not self.leaving:
            connection.loop.call_soon(self._close_some)
        self.leaving.append(connection)

    def _close_some(self) -> None:
        for _ in range(min(SWEPT, len(self.leaving))):
            connection = self.leaving.popleft()
            connection.transport.close()
        if self.leaving:
            connection.loop.call_soon(self._close_some)

    @property
    def is_answering(self) -> bool:
        return bool(self.tasks) or any(connection.is_answering for connection in self.connections)


async def sweep(connections: set[Connection], period_s: float) -> None:
    """Ends connections whose request is not complete in time, or that stand idle; for ever. A crowd that came together
    has its end together too: others have their turn in between.
    """
    while True:
        await asyncio.sleep(period_s)
        for number, connection in enumerate(list(connections), 1):
            connection.end_if_slow(time.monotonic())
            if number % SWEPT == 0:
                await asyncio.sleep(0)
