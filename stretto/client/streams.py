"""Asyncio connections to one server, kept open between calls of one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from stretto.client.address import Endpoint, Request
from stretto.client.answer import Response
from stretto.client.errors import BadAnswer, ConnectionFailed, Expired, Stale, StrettoClientError, cause
from stretto.client.response import ResponseReader

KEPT_IDLE_S = 60.0  # less than the server's own keep_alive_s, so that it seldom closes first


class Transfer:
    """When a request was written, and when the server had all of it; on the monotonic clock, None: not yet.

    `on_arrival` is called once, as soon as it is known that nothing of it is on its way any more.
    """

    __slots__ = ("acknowledged_ns", "has_arrived", "on_arrival", "started_ns")

    def __init__(self, on_arrival: Callable[[], None]) -> None:
        self.started_ns: int | None = None
        self.acknowledged_ns: int | None = None
        self.has_arrived = False
        self.on_arrival = on_arrival

    def started(self) -> None:
        self.started_ns = time.monotonic_ns()
        self.acknowledged_ns = None

    def acknowledged(self) -> None:
        if self.acknowledged_ns is None:
            self.acknowledged_ns = time.monotonic_ns()
            self.arrived()

    def arrived(self) -> None:
        if not self.has_arrived:
            self.has_arrived = True
            self.on_arrival()


class Stream(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, max_answer_bytes: int, lost: Callable[[Stream], None]) -> None:
        self._reader = ResponseReader(max_answer_bytes)
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Response] | None = None
        self._transfer: Transfer | None = None
        self._is_used = False
        self.idle_since_s = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: Request, transfer: Transfer | None = None) -> Response:
        """Stale where the server had closed this connection since it was last used."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise self._broken(None)
        self._answer = asyncio.get_running_loop().create_future()
        self._transfer = transfer
        try:
            if transfer is not None:
                transfer.started()
            transport.write(request.joined())
            return await self._answer
        finally:
            self._answer = self._transfer = None

    def abort(self) -> None:
        """Closes at once; the server takes that as a cancel of what it still works on."""
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is one only in spirit

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None or answer.done():
            self.abort()  # nothing was asked
            return
        try:
            is_complete = self._reader.feed(data)
            if self._transfer is not None and self._reader.is_acknowledged:
                self._transfer.acknowledged()
            if is_complete:
                self._is_used = True
                answer.set_result(self._reader.take())
        except BadAnswer as error:
            answer.set_exception(error)
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(self)
        if self._answer is None or self._answer.done():
            return
        self._answer.set_exception(self._broken(error))

    def _broken(self, error: Exception | None) -> Exception:
        if self._is_used and not self._reader.has_begun:
            return Stale()
        return ConnectionFailed(f"the connection broke before the answer was complete ({cause(error)})")


class StreamPool:
    """At most `max_connections` at a time; calls beyond that wait for one, within their own time."""

    def __init__(self, endpoint: Endpoint, max_connections: int, max_answer_bytes: int):
        self.endpoint = endpoint
        self._free = asyncio.Semaphore(max_connections)
        self._max_answer_bytes = max_answer_bytes
        self._idle: list[Stream] = []
        self._all: set[Stream] = set()
        self._is_closed = False

    async def send(self, request: Request, timeout_ns: int, transfer: Transfer | None = None) -> Response:
        """One request, one response; `timeout_ns` is for all of it. Cancelling it closes the connection."""
        is_connected = False
        try:
            async with asyncio.timeout(timeout_ns / 1e9), self._free:
                self._check_open()
                idle_connection = self._take()
                if idle_connection is not None:
                    is_connected = True
                    try:
                        return await self._exchange(idle_connection, request, transfer)
                    except Stale:
                        is_connected = False
                        self._check_open()  # it may have been this client that closed it
                made = await self._open()
                is_connected = True
                return await self._exchange(made, request, transfer)
        except TimeoutError:
            error: StrettoClientError = ConnectionFailed(f"{self.endpoint.shown} cannot be reached (it took too long)")
            if is_connected:
                error = Expired("no answer came within the deadline and the grace; this client stopped waiting")
            raise error from None

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionFailed("this client is closed")

    async def _exchange(self, stream: Stream, request: Request, transfer: Transfer | None) -> Response:
        try:
            response = await stream.exchange(request, transfer)
        except BaseException:  # a cancelled task too
            stream.abort()
            raise
        if response.keeps_alive and not self._is_closed:
            stream.idle_since_s = asyncio.get_running_loop().time()
            self._idle.append(stream)
        else:
            stream.abort()
        return response

    async def _open(self) -> Stream:
        endpoint = self.endpoint
        try:
            _, stream = await asyncio.get_running_loop().create_connection(
                lambda: Stream(self._max_answer_bytes, self._forget),
                endpoint.host,
                endpoint.port,
                ssl=endpoint.tls,
                server_hostname=endpoint.host if endpoint.tls is not None else None,
            )
        except TimeoutError:
            raise
        except (OSError, UnicodeError) as error:
            raise ConnectionFailed(f"{endpoint.shown} cannot be reached ({cause(error)})") from None
        self._all.add(stream)
        return stream

    def _take(self) -> Stream | None:
        oldest_s = asyncio.get_running_loop().time() - KEPT_IDLE_S
        while self._idle:
            stream = self._idle.pop()
            if stream.is_open and stream.idle_since_s >= oldest_s:
                return stream
            stream.abort()
        return None

    def _forget(self, stream: Stream) -> None:
        self._all.discard(stream)

    async def close(self) -> None:
        self._is_closed = True
        self._idle.clear()
        for stream in list(self._all):
            stream.abort()
        # Once round the loop, so that the transports close before it does.
        await asyncio.sleep(0)
