"""The reading side of a connection: from the socket to the parser, bounded, in turns, and counted.

A connection is read a portion a turn of the event loop, so that nobody's requests wait for all of another's. Headers,
chunks and what the parser tells nothing of are bounded here; bodies are held to the budget that all share.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stretto.api.errors import ApiError, Reason, no_room
from stretto.api.http.exchange import Direct, Flow
from stretto.api.plane import Plane

UNSOUND = "this is no sound HTTP request, or its headers are too large"
TINY_CHUNKS = "the chunks of the body are too small"
NOTHING = memoryview(b"")
TURN_BYTES = 16_384  # of requests that are taken in for one connection before others have their turn
TINY_CHUNK = 64  # a body may have so many chunks, and after that they must be this large at the mean
FREE_CHUNKS = 4096
LINGER_BYTES = 4_000_000  # that a client may go on sending after its last request


class Intake(HttpToolsProtocol):
    """Of one connection. `cycle` is the request that was read last, `running` the one that is answered now."""

    cycle: Any
    flow: Flow  # type: ignore[assignment]

    def __init__(self, config: Config, state: ServerState, loop: asyncio.AbstractEventLoop, plane: Plane):
        super().__init__(config, state, {}, loop)
        self.plane = plane
        self.limits = plane.limits
        self.max_header_bytes = plane.limits.http_header_bytes
        self.running: Any = None
        self.since_s = time.monotonic()  # the last request began, or the last answer was sent
        self.is_reading = True
        self.has_head = False
        self.is_upgrade = False
        self.is_refused = False  # nothing is read or written any more
        self.has_told = False
        self.header_bytes = 0
        self.untold_bytes = 0
        self.body_bytes = 0
        self.forgotten_bytes = 0
        self.chunks = 0
        self.complaint = UNSOUND
        self.held = 0  # the budget's
        self.rest = NOTHING  # came, and waits for this connection's next turn

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport, self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if isinstance(self.cycle, Direct):
            self.cycle.disconnected = True
            self.cycle.parts = []
            self.cycle = None  # a cycle of references would wait for the collector
        self.rest = NOTHING
        self.plane.budget.let_go(self)

    def data_received(self, data: bytes) -> None:
        if self.parser is None or self.transport.is_closing():
            self.forget(len(data))
            return
        self._unset_keepalive_if_required()
        if len(data) <= TURN_BYTES and not self.rest:
            self.feed(data)
        else:
            self.rest = memoryview(bytes(self.rest) + data if self.rest else data)
            self.go_on()

    def go_on(self) -> None:
        """Take in what is this connection's for one turn of the event loop, and let others have theirs. What is taken
        apart piece by piece is held to `TURN_BYTES`; the body of an inference whose length was stated costs nothing.
        """
        has_taken = False
        while self.rest and self.parser is not None and not self.transport.is_closing():
            size = min(self.body_left, len(self.rest))
            if not size:
                if has_taken:
                    break
                has_taken = True
                size = TURN_BYTES
                if self.is_between:  # the head by itself, so that the body behind it need not be put together
                    size = bytes(self.rest[:TURN_BYTES]).find(b"\r\n\r\n") + 4
                    size = TURN_BYTES if size < 4 else size
            portion = self.rest[:size]
            self.rest = self.rest[size:] if size < len(self.rest) else NOTHING  # an empty slice would keep all of it
            self.feed(portion)
        if self.parser is None or self.transport.is_closing():
            self.rest = NOTHING
            return
        if self.rest and not self.plane.budget.hold(self, len(self.rest)):
            self.rest = NOTHING
            self.end_unsound(no_room())
            return
        self.flow.end_turn()
        self.loop.call_soon(self.take_turn)

    def take_turn(self) -> None:
        if self.rest:
            self.plane.budget.let_go_of(self, len(self.rest))
            self.go_on()
        else:
            self.flow.begin_turn()

    @property
    def is_between(self) -> bool:
        """A request begins with the next byte."""
        return not self.is_reading or (self.cycle is None and not self.header_bytes)

    @property
    def body_left(self) -> int:
        """Of the inference that is being read, or forgotten, where its length was stated."""
        direct = self.cycle
        if not self.is_reading or not self.has_head or not isinstance(direct, Direct):
            return 0
        return max(0, direct.asked.stated - self.body_bytes)

    def feed(self, data: bytes | memoryview) -> None:
        rest = data
        while rest:
            try:
                self.parser.feed_data(rest)
                break
            except HttpParserUpgrade as upgrade:
                rest = self.head_without_upgrade() + bytes(rest[upgrade.args[0] :])
            except HttpParserError:
                self.end_unsound(ApiError(Reason.BAD_REQUEST, self.complaint))
                return
        if self.is_reading or self.pipeline:
            self.came(len(data))

    def head_without_upgrade(self) -> bytes:
        """The parser takes what follows an Upgrade header for another protocol. We speak none: the request is read
        again as if it had not asked, body and all, by a new parser.
        """
        parts = [self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            if name != b"upgrade":
                parts += [name, b": ", value, b"\r\n"]
        self.is_upgrade = False
        self.parser = HttpRequestParser(self)
        return b"".join((*parts, b"\r\n"))

    def forget(self, size: int) -> None:
        """Came after the last request that is answered."""
        self.forgotten_bytes += size
        if self.forgotten_bytes > LINGER_BYTES and not self.transport.is_closing():
            if self.is_refused:
                self.transport.close()
            else:
                self.transport.pause_reading()

    def came(self, size: int) -> None:
        """Data that a request is not complete with, or that is ahead of the answers.

        The parser keeps a header to itself until it is whole, and tells nothing of a chunk's extensions: what comes
        without being told of is counted like headers.
        """
        self.flow.came(size)
        if self.has_told:
            self.has_told = False
        elif self.is_reading:
            self.untold_bytes += size
            if self.untold_bytes > self.max_header_bytes:
                self.end_unsound(ApiError(Reason.BAD_REQUEST, UNSOUND))
                return
        if self.is_forgotten:
            self.plane.budget.let_go(self)
        elif not self.plane.budget.hold(self, size + (size >> 3)):  # what grows has some room to grow
            self.give_up()

    @property
    def is_forgotten(self) -> bool:
        """What comes belongs to a request that was answered already."""
        return self.is_reading and self.has_head and not self.pipeline and bool(self.cycle.response_complete)

    def give_up(self) -> None:
        """There is no room for what is being read."""
        raise NotImplementedError

    def end_unsound(self, error: ApiError) -> None:
        """Nothing more is read. Sound requests before are answered first, so that answers keep their order."""
        raise NotImplementedError

    # -- the parser's callbacks that only count ------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self.header_bytes = self.untold_bytes = self.body_bytes = self.chunks = 0
        self.begun_ns = time.monotonic_ns()
        self.since_s = self.begun_ns / 1e9
        self.is_reading = self.has_told = True
        self.has_head = False

    def on_url(self, url: bytes) -> None:
        self.url += url
        self.header_bytes += len(url)
        if self.header_bytes > self.max_header_bytes:
            raise ValueError("the address is too long")  # the parser ends, and a 400 is sent

    def on_header(self, name: bytes, value: bytes) -> None:
        self.header_bytes += len(name) + len(value) + 4
        if self.header_bytes > self.max_header_bytes:
            raise ValueError("headers are too large")
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise ValueError("only chunked is known")
        self.headers.append((name, value))

    def on_chunk_header(self) -> None:
        self.chunks += 1
        if self.chunks > FREE_CHUNKS and self.chunks * TINY_CHUNK > self.body_bytes:
            self.complaint = TINY_CHUNKS
            raise ValueError(TINY_CHUNKS)
