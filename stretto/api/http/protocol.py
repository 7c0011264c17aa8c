"""A connection of the HTTP listener: what becomes of its requests, on httptools' parser and the loop's transports.

Bounded connections, errors as JSON, an end to requests that never become complete, and a lost client cancels its
queries; intake.py bounds what is read. An inference by something that is served goes from the parser to the data plane
and back without a task, which would cost more than all the rest together.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from httptools import parse_url

from stretto.api.errors import ApiError, Reason, no_room, too_large, too_many_connections
from stretto.api.http.app import App
from stretto.api.http.arrival import lain_ns
from stretto.api.http.encode import encode_error
from stretto.api.http.exchange import NOTHING, Call, Direct, Exchange
from stretto.api.http.intake import Intake
from stretto.api.http.traffic import Traffic
from stretto.api.plane import Plane

if TYPE_CHECKING:
    from stretto.live.requests import Request

ACKNOWLEDGEMENT = b"HTTP/1.1 102 Processing\r\n\r\n"  # an informational response: the answer comes after it
GO_AHEAD = b"HTTP/1.1 100 Continue\r\n\r\n"
STATUS_LINE = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
LOOK_S = 0.05  # how often a connection is looked at whose client sends no more
SHORT_REST = 65_536  # of a refused body: it is read, and the connection kept
LINGER_S = 1.0  # that a client has to see its refusal
FEW = 128  # connections of a listener: there is no crowd among so many
SOON_NS = 50_000_000  # after its first byte a request should be complete, or it may wait for others


class Connection(Intake):
    """Of one connection: what becomes of its requests."""

    def __init__(self, traffic: Traffic, loop: asyncio.AbstractEventLoop, api: App, plane: Plane):
        super().__init__(loop, api, plane)
        self.traffic = traffic
        self.open_requests: set[Request] = set()
        self.unsound: ApiError | None = None  # to be sent after the answers to the requests before
        self.is_half_closed = False
        self.descriptor = -1
        self.is_plain = True
        self.address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.traffic.joined(self)
        self.plane.budget.connected(1)
        self.descriptor = transport.get_extra_info("socket").fileno()
        self.is_plain = transport.get_extra_info("sslcontext") is None
        if self.traffic.makes_room:
            self.address = str((transport.get_extra_info("peername") or [""])[0])
        if len(self.traffic.connections) > self.traffic.most_connections and not self.traffic.make_room(self):
            self.refuse(too_many_connections())

    def connection_lost(self, exc: Exception | None) -> None:
        self.traffic.left(self)
        self.plane.budget.connected(-1)
        self.traffic.crowd.leave(self)
        super().connection_lost(exc)
        for request in tuple(self.open_requests):
            self.plane.cancel(request)

    def shutdown(self) -> None:
        """The listener ends: so does the connection, when it owes no answer."""
        if self.last is None or self.last.is_answered:
            self.transport.close()
        else:
            self.last.keep_alive = False

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        if self.pipeline and self.running is not None and self.running.is_answered:
            self.go_to_next()

    def eof_received(self) -> bool:
        """The client sends no more. It may have left, or wait for its answers all the same (a half-closed connection).
        What left answers the next packet with a reset: an interim response tells, which every client passes over.
        """
        if not self.is_plain:
            return False  # the connection ends
        if self.is_refused or not self.is_owing:
            self.traffic.leaves(self)
            return True
        self.is_half_closed = True
        if self.parser is not None and self.parser.get_http_version() != "1.0":
            self.write(GO_AHEAD)
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
        is_own = self.is_reading and self.has_head and running is self.last
        return running is not None and not running.is_answered and not is_own

    @property
    def may_give_way(self) -> bool:
        """To a newcomer, where the listener is full: it owes no answer, and its last call showed no token."""
        return not (self.is_owing or self.transport.is_closing() or (self.last is not None and self.last.account))

    # -- in a crowd ----------------------------------------------------------------------------------------------

    def look_if_slow(self) -> None:
        """A request that is not complete soon is read in its turn among others like it, where there are many
        connections, and so is what is forgotten after a refusal. Not over TLS, where the socket's bytes are not the
        request's.
        """
        if (
            len(self.traffic.connections) > FEW
            and not self.flow.is_in_crowd
            and (self.is_refused or self.is_late_to_end)
            and self.is_plain
            and not self.transport.is_closing()
            and (self.flow.waits_for_turn or not self.flow.read_paused)
            and self.traffic.crowd.join(self)
        ):
            self.flow.join_crowd()

    @property
    def is_late_to_end(self) -> bool:
        """The request that is being read; not one that was answered already, nor one behind another."""
        if not self.is_reading or self.is_owing or time.monotonic_ns() - self.begun_ns <= SOON_NS:
            return False
        return not (self.has_head and self.last is not None and self.last.is_answered)

    def leave_crowd(self) -> None:
        self.traffic.crowd.leave(self)
        self.flow.leave_crowd()

    def read_portion(self) -> None:
        """What the event loop would have done. What it knows better, the end of a connection, is left to it."""
        if self.flow.read_paused:
            if not self.flow.waits_for_turn:
                self.leave_crowd()
            return
        try:
            size = 0 if self.transport.is_closing() else os.readv(self.descriptor, [self.get_buffer(-1)])
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self.leave_crowd()
            return
        try:
            self.buffer_updated(size)
        except Exception as error:  # ours: it ends this connection, and nobody else misses a turn
            self.loop.call_exception_handler({"message": "a request could not be read", "exception": error})
            self.transport.abort()

    # -- the parser's callbacks ----------------------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        parser = self.parser
        assert parser is not None
        if parser.should_upgrade():
            if parser.get_method() == b"CONNECT":
                raise ValueError("this is no proxy")
            self.is_upgrade = True
            return
        before = self.last
        is_free = before is None or before.is_answered
        if is_free and before is not None and not before.keep_alive:
            return  # the connection ends with the answer that was given
        is_current = parser.get_http_version() != "1.0"
        keep_alive = is_current and parser.should_keep_alive()
        known = self.api.known_infer(self.url) if is_free else None
        if known is not None and parser.get_method() == b"POST" and not self.expects:
            self.begin_direct(known, keep_alive, is_current)
        elif len(self.pipeline) >= self.limits.pipelined_requests:
            raise ValueError("too many requests wait for the answer to an earlier one")
        else:
            self.last = call = Call(self, self.scope(is_current), keep_alive, self.expects)
            if is_free:
                self.start(call)
            else:
                self.pipeline.append(call)
        self.headers = []  # those that follow the body say nothing
        self.head = b""
        self.has_head = True

    def scope(self, is_current: bool) -> dict[str, object]:
        """Of a call: where it goes, what its headers say, and what its connection can do for it."""
        assert self.parser is not None
        raw_path = parse_url(self.url).path or b"/"  # http://name alone is the root
        scope: dict[str, object] = {
            "method": self.parser.get_method().decode("ascii"),
            "raw_path": raw_path,
            "headers": self.headers,
            "stretto.open": self.open_requests,
            "stretto.begun_ns": self.begun_ns,
            "stretto.head_bytes": self.header_bytes,
        }
        if is_current:
            scope["stretto.acknowledge"] = self.acknowledge
        return scope

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        direct = self.last
        if isinstance(direct, Direct) and not direct.is_answered and direct.came_bytes > direct.asked.limit:
            self.refuse_exchange(direct, too_large(f"a request may have {direct.asked.limit} bytes"))

    def on_message_complete(self) -> None:
        if not self.is_upgrade:
            self.message_came()

    def message_came(self) -> None:
        self.is_reading = False
        if self.flow.is_in_crowd:
            self.leave_crowd()
        exchange = self.last
        if exchange is None:
            return
        if exchange.is_answered:
            if not exchange.keep_alive:
                self.transport.close()
            return
        if self.held and exchange is self.running:
            self.plane.budget.let_go(self)
        exchange.complete()

    # -- answers -------------------------------------------------------------------------------------------------

    def begin_direct(self, known: tuple[str, str], keep_alive: bool, is_current: bool) -> None:
        size = self.header_bytes
        try:
            asked = self.api.asked(self.headers, *known)
            asked.is_acknowledged &= is_current
            self.last = self.running = Direct(self, asked, keep_alive, self.begun_ns, size)
            if keep_alive:
                self.api.remember_head(self.head, asked)
        except ApiError as error:
            self.last = self.running = direct = Direct(
                self, self.api.refused(self.headers), keep_alive, self.begun_ns, size
            )
            self.refuse_exchange(direct, error)

    def start(self, call: Call) -> None:
        self.running = call
        task = self.loop.create_task(call.run())
        self.traffic.tasks.add(task)
        task.add_done_callback(self.traffic.tasks.discard)

    def refuse_exchange(self, exchange: Exchange, error: ApiError) -> None:
        self.answer(exchange, *encode_error(self.plane.count_refusal(error)))

    def answer(self, exchange: Exchange, status: int, body: bytes, headers: bytes) -> None:
        """Where its body is still on its way, that is read and forgotten: a client that met a closed connection while
        it sends would not see the answer.
        """
        if self.plane.is_leaving:
            exchange.keep_alive = False
        self.write(_bytes_of(status, body, headers, not exchange.keep_alive, exchange.is_head))
        exchange.is_answered = True
        if isinstance(exchange, Direct):
            exchange.parts, exchange.room = [], NOTHING
        self.since_s = time.monotonic()
        if self.held and not self.pipeline and not self.is_reading:
            self.plane.budget.let_go(self)
        if exchange.keep_alive:
            self.go_to_next()
        elif exchange.has_all:
            self.transport.close()

    def go_to_next(self) -> None:
        """The last answer is on its way."""
        if self.pipeline:
            if not self.flow.write_paused:  # else its client must take what it was sent first
                self.start(self.pipeline.popleft())
                self.flow.answered()
        elif self.unsound is not None:
            self.send_unsound()
        elif self.is_half_closed:
            self.transport.close()
        elif self.flow.read_paused:
            self.flow.answered()
        elif self.traffic.handover is not None and self.traffic.handover.surplus > 0:
            self.traffic.handover.surplus -= 1
            self.loop.call_soon(self.hand_over)  # what was read with the request is looked at first

    def hand_over(self) -> None:
        """To another front end, between two requests: whatever its client sends next is read there."""
        handover = self.traffic.handover
        is_idle = not self.is_reading and (self.last is None or self.last.is_answered) and not self.rest
        is_idle &= not self.pipeline and not self.is_half_closed and self.unsound is None
        is_sound = self.is_plain and not self.is_refused and not self.transport.is_closing()
        if handover is None or not is_idle or not is_sound or self.transport.get_write_buffer_size():
            return
        if handover.gave(self.descriptor):
            self.traffic.left(self)
            self.transport.abort()  # here alone: the other one has it open

    def waited_ns(self) -> int:
        """How long the last byte of the request had been there before it was read, as well as can be known."""
        lag, now_ns = self.plane.lag, time.monotonic_ns()
        return min(lain_ns(self.descriptor), lag.most_ns(now_ns)) if lag.may_have_waited(now_ns) else 0

    def acknowledge(self) -> None:
        """The last byte of the request that is answered next has come. Answers to those before it are written."""
        if not self.transport.is_closing():
            self.write(ACKNOWLEDGEMENT)

    def go_ahead(self) -> None:
        if not self.transport.is_closing():
            self.write(GO_AHEAD)

    def write(self, data: bytes) -> None:
        """By the system call itself where nothing waits to be written: uvloop's own way there costs 10 µs more.

        Never on a transport that is closing: its descriptor may belong to another connection by now. Nothing follows a
        refusal.
        """
        if self.is_refused:
            return
        written = 0
        if self.is_plain and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            try:  # noqa: SIM105, for it costs less
                written = os.write(self.descriptor, data)
            except OSError:  # full, or gone: the transport finds out by itself
                pass
        if written < len(data):
            self.transport.write(data[written:] if written else data)

    # -- what is refused -----------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """There is no room for what is being read: its client may try again."""
        self.plane.budget.let_go(self)
        direct = self.last
        if isinstance(direct, Direct) and self.is_reading and self.has_head and not direct.is_answered:
            is_long = direct.left > SHORT_REST
            direct.keep_alive &= not is_long
            self.refuse_exchange(direct, no_room())
            if is_long:  # it is not read any more, for that would cost others their time
                self.traffic.crowd.leave(self)
                self.is_refused = True
                self.transport.pause_reading()
                self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.end_unsound(no_room())

    def end_unsound(self, error: ApiError) -> None:
        """Nothing more is read. Sound requests before are answered first, so that answers keep their order."""
        if self.is_refused or self.transport.is_closing():
            return
        self.parser = None
        self.unsound = error
        exchange = self.last if self.is_reading and self.has_head else None
        self.is_reading = False
        if exchange is None:
            self.send_unsound()
        elif exchange.is_answered:
            self.transport.close()  # it was answered before its body was read
        elif exchange is self.running:
            exchange.leave()  # whatever waits for its body
            self.refuse(self.unsound)
        else:
            self.pipeline.pop()
            exchange.is_answered = True
            self.send_unsound()

    def send_unsound(self) -> None:
        if self.unsound is not None and (self.running is None or self.running.is_answered):
            self.refuse(self.unsound)

    def refuse(self, error: ApiError) -> None:
        """An error and the end of the connection. What its client is still sending is read and forgotten for a moment:
        one that meets a closed connection would not see the answer.
        """
        if self.is_refused or self.transport.is_closing():
            return
        self.is_refused = True
        self.parser = None
        self.plane.count_refusal(error)
        self.transport.write(_bytes_of(*encode_error(error), is_last=True))
        if self.transport.can_write_eof() and len(self.traffic.connections) <= self.traffic.most_connections:
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
        elif (self.running is None or self.running.is_answered) and idle_s > self.limits.keep_alive_s:
            self.transport.close()
        elif self.is_begun:
            self.look_if_slow()

    @property
    def is_answering(self) -> bool:
        return isinstance(self.running, Direct) and not self.running.is_answered


def _bytes_of(status: int, body: bytes, headers: bytes, is_last: bool = False, is_head: bool = False) -> bytes:
    if is_last:
        headers += b"connection: close\r\n"
    sent = b"" if is_head else body
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (STATUS_LINE[status], headers, len(body), sent)
