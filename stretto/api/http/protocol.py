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
from functools import partial
from typing import TYPE_CHECKING, Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from stretto.api.errors import ApiError, Reason, too_large
from stretto.api.http.encode import Header, encode_error
from stretto.api.http.exchange import Direct, Flow

if TYPE_CHECKING:
    from uvicorn import Config
    from uvicorn.server import ServerState

    from stretto.api.http.app import App
    from stretto.api.messages import InferRequest, InferResponse
    from stretto.api.plane import Plane
    from stretto.live.requests import Request

log = logging.getLogger("stretto.api")


ACKNOWLEDGEMENT = b"HTTP/1.1 102 Processing\r\n\r\n"  # an informational response: the answer comes after it
UNSOUND = "this is no sound HTTP request, or its headers are too large"
FAILED = ApiError(Reason.FAILED, "the server failed on this request")


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
        self.has_told = False
        self.header_bytes = 0
        self.untold_bytes = 0
        if len(self.connections) > self.limits.connections:
            self.refuse(ApiError(Reason.OVERLOADED, "there are too many connections; try again later", 1.0))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.pipeline.clear()
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
            return
        self._unset_keepalive_if_required()
        rest = data
        while rest:
            try:
                self.parser.feed_data(rest)
                break
            except HttpParserUpgrade as upgrade:
                rest = self.head_without_upgrade() + rest[upgrade.args[0] :]
            except HttpParserError:
                self.end_unsound()
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
        self.header_bytes = self.untold_bytes = 0
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

    def on_body(self, body: bytes) -> None:
        self.has_told = True
        direct = self.cycle
        if not isinstance(direct, Direct):
            super().on_body(body)
        elif not direct.response_complete:
            if not direct.body:
                direct.body = body
            else:  # not a list of parts: a client may send two bytes at a time
                if isinstance(direct.body, bytes):
                    direct.body = bytearray(direct.body)
                direct.body += body
            if len(direct.body) > direct.asked.limit:
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
            self.enter(direct)
        elif not direct.keep_alive:
            self.transport.close()

    # -- inferences without a task -------------------------------------------------------------------------------

    def begin_direct(self, known: tuple[str, str]) -> None:
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        try:
            self.cycle = self.running = direct = Direct(self.api.asked(self.headers, *known), keep_alive)
            direct.asked.begun_ns = self.begun_ns
            direct.asked.head_bytes = self.header_bytes
            direct.asked.is_acknowledged &= self.parser.get_http_version() != "1.0"
        except ApiError as error:
            self.cycle = self.running = direct = Direct(self.api.no_asked, keep_alive)
            self.answer(direct, *encode_error(error), is_early=True)

    def enter(self, direct: Direct) -> None:
        """The request is complete: into the data plane, or back with the reason why not."""
        body = bytes(direct.body)
        direct.body = b""
        if direct.asked.is_acknowledged:
            self.acknowledge()
        try:
            request = self.api.decoded(direct.asked, body)
            if self.plane.reads_slowly(request):
                direct.reading = self.loop.create_task(self.begin_when_read(direct, request))
            else:
                self.begin(direct, request)
        except Exception as error:
            self.end(direct, _told(error))

    async def begin_when_read(self, direct: Direct, request: InferRequest) -> None:
        """A request whose images are read in a thread first."""
        try:
            await self.plane.read_images(request)
            if not direct.disconnected:
                self.begin(direct, request)
        except Exception as error:
            self.end(direct, _told(error))

    def begin(self, direct: Direct, request: InferRequest) -> None:
        entered = self.plane.begin(request, partial(self.end, direct))
        if not direct.response_complete:
            direct.entered = entered

    def end(self, direct: Direct, result: InferResponse | ApiError) -> None:
        direct.entered = None
        if direct.disconnected or direct.response_complete:
            return
        if isinstance(result, ApiError):
            self.answer(direct, *encode_error(result))
        else:
            self.answer(direct, *self.api.encoded(direct.asked, result))

    def answer(self, direct: Direct, status: int, body: bytes, headers: list[Header], is_early: bool = False) -> None:
        """`is_early`: the body is still on its way. It is read and forgotten, for a client that met a closed
        connection while it sends would not see the answer.
        """
        self.write(_bytes_of(status, body, headers, not direct.keep_alive))
        direct.response_complete = True
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
                self.end_unsound()

    def end_unsound(self) -> None:
        """Nothing more is read. Sound requests before are answered first, so that answers keep their order."""
        if self.transport.is_closing():
            return
        self.parser = None  # type: ignore[assignment]
        self.unsound = ApiError(Reason.BAD_REQUEST, UNSOUND)
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
        """An error and the end of the connection."""
        if not self.transport.is_closing():
            self.plane.count_refusal(error)
            self.transport.write(_bytes_of(*encode_error(error), last=True))
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


def _told(error: Exception) -> ApiError:
    """What a client hears of a failure: of one of ours, no more than that it was one."""
    if isinstance(error, ApiError):
        return error
    log.error("a request failed", exc_info=error)
    return FAILED


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
