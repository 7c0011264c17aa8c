"""One connection of a load: a request at a time, as little work for each as can be."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol, cast

from stretto.client.answer import Response
from stretto.client.errors import BadAnswer
from stretto.client.response import ResponseReader

MAX_ANSWER_BYTES = 64_000_000


class Owner(Protocol):
    """Who hears of it. `received_ns` is on the monotonic clock."""

    def answered(self, connection: Connection, received_ns: int, response: Response) -> None: ...

    def spoiled(self, connection: Connection) -> None: ...

    def lost(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """`number` is the request under way, -1 without one; `is_used`: it has answered before."""

    __slots__ = ("_owner", "_reader", "_transport", "is_used", "number", "write")

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._reader = ResponseReader(MAX_ANSWER_BYTES)
        self.number = -1
        self.is_used = False

    @property
    def is_untouched(self) -> bool:
        """It answered before, but not a byte of the answer under way has come."""
        return self.is_used and not self._reader.has_begun

    @property
    def peer(self) -> tuple[str, int]:
        host, port = self._transport.get_extra_info("peername")[:2]
        return host, port

    def abort(self) -> None:
        self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is one only in spirit
        self.write = self._transport.write

    def data_received(self, data: bytes) -> None:
        received_ns = time.monotonic_ns()
        if self.number < 0:
            self.abort()  # nothing was asked
            return
        try:
            is_complete = self._reader.feed(data)
        except BadAnswer:
            self._owner.spoiled(self)
            return
        if is_complete:
            self._owner.answered(self, received_ns, self._reader.take())

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.lost(self)
