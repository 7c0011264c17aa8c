"""uvicorn's protocol, held tighter and cut shorter.

Tighter: bounded connections, errors as JSON, an end to requests that never become complete, and a lost client cancels
its queries; intake.py bounds what is read. Shorter: an inference at an address that was answered before goes from the
parser to the data plane and back without a task, an event or ASGI messages, which cost more than all the rest together.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from stretto.api.errors import ApiError, Reason, no_room, too_large, too_many_connections
from stretto.api.http.arrival import lain_ns
from stretto.api.http.encode import Header, encode_error
from stretto.api.http.exchange import Direct
from stretto.api.http.intake import Intake

if TYPE_CHECKING:
    from uvicorn import Config
    from uvicorn.server import ServerState

    from stretto.api.http.app import App
    from stretto.api.plane import Plane
    from stretto.live.requests import Request

ACKNOWLEDGEMENT = b"HTTP/1.1 102 Processing\r\n\r\n"  # an informational response: the answer comes after it
STILL_THERE = b"HTTP/1.1 100 Continue\r\n\r\n"
LOOK_S = 0.05  # how often a connection is looked at whose client sends no more
SHORT_REST = 65_536  # of a refused body: it is read, and the connection kept
LINGER_S = 1.0  # that a client has to see its refusal
SWEPT = 64  # connections that are looked at in one turn of the event loop


class Connection(Intake):
    """Of one connection: what becomes of its requests."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        loop: asyncio.AbstractEventLoop,
        api: App,
        plane: Plane,
        most_connections: int,
    ):
        super().__init__(config, state, loop, plane)
        self.most_connections = most_connections  # of its listener
        self.api = api
        self.open_requests: set[Request] = set()
        self.unsound: ApiError | None = None  # to be sent after the answers to the requests before
        self.is_half_closed = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        is_plain = transport.get_extra_info("sslcontext") is None
        self.descriptor = transport.get_extra_info("socket").fileno() if is_plain else -1
        if len(self.connections) > self.most_connections:
            self.refuse(too_many_connections())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.pipeline.clear()
        running, self.running = self.running, None
        if running is None:
            return
        running.disconnected = True
        for request in tuple(self.open_requests):
            self.plane.cancel(request)
        if isinstance(running, Direct) and running.entered is not None:
            self.plane.cancel(running.entered)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. It may have left, or wait for its answers all the same (a half-closed connection).
        What left answers the next packet with a reset: an interim response tells, which every client passes over.
        """
        if self.descriptor < 0 or self.is_refused or not self.is_owing:
            return False  # the connection ends
        self.is_half_closed = True
        if self.parser is not None and self.parser.get_http_version() != "1.0":
            self.write(STILL_THERE)
        self.loop.call_later(LOOK_S, self.look_for_client)
        return True

    def look_for_client(self) -> None:
        if self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self.loop.call_later(LOOK_S, self.look_for_client)

    @property
    def is_owing(self) -> bool:
        """A request that is complete has no answer yet."""
        running = self.running
        is_own = self.is_reading and self.has_head and running is self.cycle
        return running is not None and not running.response_complete and not is_own

    # -- the parser's callbacks ----------------------------------------------------------------------------------

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
        HttpToolsProtocol.on_message_begin(self)  # which makes the scope that only tasks need
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
        self.body_bytes += len(body)
        direct = self.cycle
        if not isinstance(direct, Direct):
            super().on_body(body)
        elif not direct.response_complete:
            direct.came(body)
            if self.body_bytes > direct.asked.limit:
                self.refuse_direct(direct, too_large(f"a request may have {direct.asked.limit} bytes"), is_early=True)

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
            self.cycle = self.running = direct = Direct(self, self.api.refused(self.headers), keep_alive)
            self.refuse_direct(direct, error, is_early=True)

    def refuse_direct(self, direct: Direct, error: ApiError, is_early: bool = False) -> None:
        self.answer(direct, *encode_error(self.plane.count_refusal(error)), is_early=is_early)

    def answer(self, direct: Direct, status: int, body: bytes, headers: list[Header], is_early: bool = False) -> None:
        """`is_early`: the body is still on its way. It is read and forgotten, for a client that met a closed
        connection while it sends would not see the answer.
        """
        if self.plane.is_leaving:
            direct.keep_alive = False
        self.write(_bytes_of(status, body, headers, not direct.keep_alive))
        direct.response_complete = True
        direct.parts = []
        self.since_s = time.monotonic()
        self.server_state.total_requests += 1
        if not direct.keep_alive:
            if not is_early:
                self.transport.close()
        elif self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self.unsound is not None:
            self.send_unsound()
        elif self.is_half_closed:
            self.transport.close()
        elif self.flow.read_paused:
            self.flow.resume_reading()

    def waited_ns(self) -> int:
        """How long the last byte of the request had been there before it was read, as well as can be known."""
        lag, now_ns = self.plane.lag, time.monotonic_ns()
        return min(lain_ns(self.transport), lag.most_ns(now_ns)) if lag.may_have_waited(now_ns) else 0

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
        if self.is_half_closed and self.running.response_complete:
            self.transport.close()

    # -- what is refused -----------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """There is no room for what is being read: its client may try again."""
        self.plane.budget.let_go(self)
        direct = self.cycle
        if isinstance(direct, Direct) and self.is_reading and self.has_head and not direct.response_complete:
            is_long = direct.asked.stated - self.body_bytes > SHORT_REST
            direct.keep_alive &= not is_long
            self.refuse_direct(direct, no_room(), is_early=True)
            if is_long:  # it is not read any more, for that would cost others their time
                self.transport.pause_reading()
                self.loop.call_later(LINGER_S, self.transport.close)
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
        if self.transport.can_write_eof() and len(self.connections) <= self.most_connections:
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
        elif self.is_reading and idle_s > self.limits.header_timeout_s:
            if self.header_bytes:  # else nothing came at all
                self.plane.count_refusal(ApiError(Reason.EXPIRED, "the request did not become complete"))
            self.transport.close()
        elif (self.running is None or self.running.response_complete) and idle_s > self.limits.keep_alive_s:
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
    """Ends connections whose request is not complete in time, or that stand idle; for ever. A crowd that came together
    has its end together too: others have their turn in between.
    """
    while True:
        await asyncio.sleep(period_s)
        for number, connection in enumerate(list(connections), 1):
            if hasattr(connection, "end_if_slow"):
                connection.end_if_slow(time.monotonic())
            if number % SWEPT == 0:
                await asyncio.sleep(0)
