"""uvicorn's protocol, held tighter and cut shorter.

Tighter: bounded headers and connections, errors as JSON, an end to requests that never become complete, and a lost
client cancels its queries. Shorter: an inference at an address that was answered before goes from the parser to the
data plane and back without a task, an event or ASGI messages, which cost more than all the rest together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING, Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from stretto.api.errors import ApiError, Reason, no_room, too_large
from stretto.api.http.encode import Header, encode_error
from stretto.api.http.exchange import Direct, Flow

if TYPE_CHECKING:
    from uvicorn import Config
    from uvicorn.server import ServerState

    from stretto.api.http.app import App
    from stretto.api.plane import Plane
    from stretto.live.requests import Request

log = logging.getLogger("stretto.api")


ACKNOWLEDGEMENT = b"HTTP/1.1 102 Processing\r\n\r\n"  # an informational response: the answer comes after it
UNSOUND = "this is no sound HTTP request, or its headers are too large"
TINY_CHUNKS = "the chunks of the body are too small"
NOTHING = memoryview(b"")
TURN_BYTES = 16_384  # of requests that are taken in for one connection before others have their turn
TINY_CHUNK = 64  # a body may have so many chunks, and after that they must be this large at the mean
FREE_CHUNKS = 4096
LINGER_S = 1.0  # that a client has to see its refusal, and what it may go on sending meanwhile
LINGER_BYTES = 4_000_000


class Connection(HttpToolsProtocol):
    """Of one connection. `cycle` is the request that was read last, `running` the one that is answered now."""

    cycle: Any
    flow: Flow  # type: ignore[assignment]

    def __init__(self, config: Config, state: ServerState, loop: asyncio.AbstractEventLoop, api: App, plane: Plane):
        super().__init__(config, state, {}, loop)
        self.api = api
        self.plane = plane
        self.limits = plane.limits
        self.max_header_bytes = plane.limits.http_header_bytes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport, self.pipeline)
        self.running: Any = None
        self.open_requests: set[Request] = set()
        is_plain = transport.get_extra_info("sslcontext") is None
        self.descriptor = transport.get_extra_info("socket").fileno() if is_plain else -1
        self.unsound: ApiError | None = None  # to be sent after the answers to the requests before
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
        self.held = 0
        self.rest = NOTHING  # came, and waits for this connection's next turn
        if len(self.connections) > self.limits.connections:
            self.refuse(ApiError(Reason.OVERLOADED, "there are too many connections; try again later", 1.0))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.pipeline.clear()
        self.rest = NOTHING
        self.plane.budget.let_go(self)
        running = self.running
        if running is None:
            return
        running.disconnected = True
        for request in tuple(self.open_requests):
            self.plane.cancel(request)
        if isinstance(running, Direct) and running.entered is not None:
            self.plane.cancel(running.entered)

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

    def forget(self, size: int) -> None:
        """Came after the last request that is answered."""
        self.forgotten_bytes += size
        if self.forgotten_bytes > LINGER_BYTES and not self.transport.is_closing():
            if self.is_refused:
                self.transport.close()
            else:
                self.transport.pause_reading()

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
            portion, self.rest = self.rest[:size], self.rest[size:]
            self.feed(portion)
        if self.parser is None or self.transport.is_closing():
            self.rest = NOTHING
            return
        self.flow.end_turn()
        self.loop.call_soon(self.take_turn)

    def take_turn(self) -> None:
        if self.rest:
            self.go_on()
        else:
            self.flow.begin_turn()

    @property
    def is_between(self) -> bool:
        """A request begins with the next byte."""
        return not self.is_reading or (self.cycle is None and not self.header_bytes)

    @property
    def body_left(self) -> int:
        """Of the inference that is being read, where its length was stated and it is kept."""
        direct = self.cycle
        if not self.is_reading or not self.has_head or not isinstance(direct, Direct) or direct.response_complete:
            return 0
        return max(0, direct.asked.stated - len(direct.body))

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

    # -- the parser's callbacks ----------------------------------------------------------------------------------

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
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("this is no proxy")
            self.is_upgrade = True
            return
        before = self.cycle
        if before is None or before.response_complete:
            if before is not None and not before.keep_alive:
                return  # the connection ends with the answer that was given
            known = self.api.known_infer(self.url)
            if known is not None and self.parser.get_method() == b"POST" and not self.expect_100_continue:
                self.begin_direct(known)
                self.has_head = True
                return
        if len(self.pipeline) >= self.limits.pipelined_requests:
            raise ValueError("too many requests wait for the answer to an earlier one")
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()  # which makes the scope that only tasks need
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        self.scope["stretto.open"] = self.open_requests  # type: ignore[typeddict-unknown-key]
        self.scope["stretto.begun_ns"] = self.begun_ns  # type: ignore[typeddict-unknown-key]
        self.scope["stretto.head_bytes"] = self.header_bytes  # type: ignore[typeddict-unknown-key]
        if self.parser.get_http_version() != "1.0":
            self.scope["stretto.acknowledge"] = self.acknowledge  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()
        self.headers = []  # those that follow the body say nothing
        self.has_head = True

    def on_chunk_header(self) -> None:
        self.chunks += 1
        if self.chunks > FREE_CHUNKS and self.chunks * TINY_CHUNK > self.body_bytes:
            self.complaint = TINY_CHUNKS
            raise ValueError(TINY_CHUNKS)

    def on_body(self, body: bytes) -> None:
        self.has_told = True
        self.body_bytes += len(body)
        direct = self.cycle
        if not isinstance(direct, Direct):
            super().on_body(body)
        elif not direct.response_complete and direct.came(body) > direct.asked.limit:
            error = self.plane.count_refusal(too_large(f"a request may have {direct.asked.limit} bytes"))
            self.answer(direct, *encode_error(error), is_early=True)

    def on_message_complete(self) -> None:
        if self.is_upgrade:
            return
        self.is_reading = False
        direct = self.cycle
        if not isinstance(direct, Direct):
            super().on_message_complete()
        elif not direct.response_complete:
            if self.held:
                self.plane.budget.let_go(self)
            direct.enter()
        elif not direct.keep_alive:
            self.transport.close()

    # -- inferences without a task -------------------------------------------------------------------------------

    def begin_direct(self, known: tuple[str, str]) -> None:
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        try:
            self.cycle = self.running = direct = Direct(self, self.api.asked(self.headers, *known), keep_alive)
            direct.asked.begun_ns = self.begun_ns
            direct.asked.head_bytes = self.header_bytes
            direct.asked.is_acknowledged &= self.parser.get_http_version() != "1.0"
        except ApiError as error:
            self.cycle = self.running = direct = Direct(self, self.api.no_asked, keep_alive)
            self.answer(direct, *encode_error(error), is_early=True)

    def answer(self, direct: Direct, status: int, body: bytes, headers: list[Header], is_early: bool = False) -> None:
        """`is_early`: the body is still on its way. It is read and forgotten, for a client that met a closed
        connection while it sends would not see the answer.
        """
        self.write(_bytes_of(status, body, headers, not direct.keep_alive))
        direct.response_complete = True
        direct.body = b""
        self.since_s = time.monotonic()
        self.server_state.total_requests += 1
        if not direct.keep_alive:
            if not is_early:
                self.transport.close()
        elif self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self.unsound is not None:
            self.send_unsound()
        elif self.flow.read_paused:
            self.flow.resume_reading()

    def waited_ns(self) -> int:
        """How long the last byte of the request had been there before it was read, as well as can be known."""
        return 0

    def acknowledge(self) -> None:
        """The last byte of the request that is answered next has come. Answers to those before it are written."""
        if not self.transport.is_closing():
            self.write(ACKNOWLEDGEMENT)

    def write(self, data: bytes) -> None:
        """By the system call itself where nothing waits to be written: uvloop's own way there costs 10 µs more.

        Never on a transport that is closing: its descriptor may belong to another connection by now.
        """
        written = 0
        if self.descriptor >= 0 and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            with contextlib.suppress(OSError):  # full, or gone: the transport finds out by itself
                written = os.write(self.descriptor, data)
        if written < len(data):
            self.transport.write(data[written:] if written else data)

    # -- requests that wait for their turn -----------------------------------------------------------------------

    def _start_asgi_task(self, cycle: Any, after: Any) -> None:
        self.running = cycle
        super()._start_asgi_task(cycle, after)

    def on_response_complete(self) -> None:
        self.since_s = time.monotonic()
        if self.held and not self.pipeline and not self.is_reading:
            self.plane.budget.let_go(self)
        super().on_response_complete()
        self.send_unsound()

    # -- what is refused -----------------------------------------------------------------------------------------

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
        """There is no room for what is being read: its client may try again."""
        self.plane.budget.let_go(self)
        direct = self.cycle
        if isinstance(direct, Direct) and self.is_reading and self.has_head and not direct.response_complete:
            self.answer(direct, *encode_error(self.plane.count_refusal(no_room())), is_early=True)
        else:
            self.end_unsound(no_room())

    def end_unsound(self, error: ApiError) -> None:
        """Nothing more is read. Sound requests before are answered first, so that answers keep their order."""
        if self.is_refused or self.transport.is_closing():
            return
        self.parser = None  # type: ignore[assignment]
        self.unsound = error
        cycle, is_its_own = self.cycle, self.is_reading and self.has_head
        self.is_reading = False
        if is_its_own and cycle.response_complete:
            self.transport.close()  # it was answered before its body was read
        elif is_its_own and cycle is self.running:
            cycle.disconnected = True  # whatever waits for its body
            self.refuse(self.unsound)
        else:
            if is_its_own:
                self.pipeline.popleft()
                cycle.response_complete = True
            self.send_unsound()

    def send_unsound(self) -> None:
        if self.unsound is not None and (self.running is None or self.running.response_complete):
            self.refuse(self.unsound)

    def refuse(self, error: ApiError) -> None:
        """An error and the end of the connection. What its client is still sending is read and forgotten for a moment:
        one that meets a closed connection would not see the answer.
        """
        if self.is_refused or self.transport.is_closing():
            return
        self.is_refused = True
        self.parser = None  # type: ignore[assignment]
        self.plane.count_refusal(error)
        self.transport.write(_bytes_of(*encode_error(error), last=True))
        if self.transport.can_write_eof() and len(self.connections) <= self.limits.connections:
            self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()

    def end_if_slow(self, now_s: float) -> None:
        """A request that does not become complete, or a connection that nobody uses, is not kept for ever."""
        idle_s = now_s - self.since_s
        if self.flow.write_paused or self.transport.is_closing():
            if idle_s > self.limits.keep_alive_s:  # nobody reads the answer
                self.transport.abort()
        elif self.flow.read_paused:
            return  # it is we who do not read
        elif (self.is_reading and idle_s > self.limits.header_timeout_s) or (
            (self.running is None or self.running.response_complete) and idle_s > self.limits.keep_alive_s
        ):
            self.transport.close()

    @property
    def is_answering(self) -> bool:
        return isinstance(self.running, Direct) and not self.running.response_complete


def _bytes_of(status: int, body: bytes, headers: list[Header], last: bool = False) -> bytes:
    parts = [STATUS_LINE[status]]
    for name, value in headers:
        parts += [name, b": ", value, b"\r\n"]
    if last:
        parts.append(b"connection: close\r\n")
    parts.append(b"content-length: %d\r\n\r\n" % len(body))
    parts.append(body)
    return b"".join(parts)


async def sweep(connections: set[Any], period_s: float) -> None:
    """Ends connections whose request is not complete in time, or that stand idle; for ever."""
    while True:
        await asyncio.sleep(period_s)
        now_s = time.monotonic()
        for connection in list(connections):
            if hasattr(connection, "end_if_slow"):
                connection.end_if_slow(now_s)
