"""The reading side of a connection: from the socket to the parser, bounded, in turns, and counted.

A connection is read a portion a turn of the event loop, so that nobody's requests wait for all of another's. Headers,
chunks and what the parser tells nothing of are bounded here; bodies are held to the budget that all share.

A head that came before, byte for byte, is not parsed again: its body, whose length it states, goes straight to the
inference that it belongs to, and from the socket into its own memory where it is large.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from stretto.api.errors import ApiError, Reason, no_room, too_many_bodies
from stretto.api.http.app import App, Asked, Header
from stretto.api.http.discard import discarded
from stretto.api.http.exchange import NOTHING, Call, Direct, Exchange
from stretto.api.http.flow import Flow
from stretto.api.plane import Plane

UNSOUND = "this is no sound HTTP request, or its headers are too large"
TINY_CHUNKS = "the chunks of the body are too small"
STALE_NS = 2_000_000_000  # that a body may be on its way before others of its size go first, where there is no room
READ_BYTES = 65_536  # from the socket at a time
HEAD_BYTES = 4_096  # and where a large body is likely to follow: what is read with the head is copied once more
TURN_BYTES = 16_384  # of requests that are taken in for one connection before others have their turn
TINY_CHUNK = 64  # a body may have so many chunks, and after that they must be this large at the mean
FREE_CHUNKS = 4096
LENGTH_DIGITS = 1000  # of a body's length, zeros before it included
SAID_ONCE = frozenset({b"host", b"origin"})  # of two, the one that is looked at may not be the one that was meant
LINGER_BYTES = 4_000_000  # that a client may go on sending after its last request
HEAD_END = b"\r\n\r\n"
EMPTY_LINE = b"\r\n"  # there may be some before a request, and the end of these is no end of a head


class Intake(asyncio.BufferedProtocol):
    """Of one connection. `last` is the request that was read last, `running` the one that is answered now."""

    transport: asyncio.Transport
    flow: Flow
    descriptor: int
    is_plain: bool  # not over TLS
    _incoming = memoryview(bytearray(READ_BYTES))  # of all connections: what is read there is taken at once
    _incoming_head = _incoming[:HEAD_BYTES]

    def __init__(self, loop: asyncio.AbstractEventLoop, api: App, plane: Plane):
        self.loop, self.api, self.plane = loop, api, plane
        self.limits = plane.limits
        self.max_header_bytes = plane.limits.http_header_bytes
        self.parser: HttpRequestParser | None = self.new_parser()
        self.pipeline: deque[Call] = deque()  # requests that wait for their turn
        self.last: Exchange | None = None
        self.running: Exchange | None = None
        self.straight: Direct | None = None  # whose body comes past the parser
        self.sends_large = False  # the last body that came past the parser was long
        self.waits_since_ns = 0  # for its turn to be read; 0: it does not
        self.since_s = time.monotonic()  # the last request began, or the last answer was sent
        self.is_reading = True
        self.is_begun = False  # something came on this connection
        self.has_head = False
        self.is_upgrade = False
        self.is_refused = False  # nothing is read or written any more
        self.has_told = False
        self.url = b""
        self.headers: list[Header] = []
        self.expects = False  # to be told to go ahead with its body
        self.head = b""  # of the request that is being read, where it came in one piece
        self.header_bytes = 0
        self.untold_bytes = 0
        self.body_bytes = 0
        self.forgotten_bytes = 0
        self.chunks = 0
        self.complaint = UNSOUND
        self.begun_ns = 0
        self.held = self.weight = 0  # the budget's
        self.rest = NOTHING  # came, and waits for this connection's next turn

    def new_parser(self) -> HttpRequestParser:
        parser = HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # the last request is answered all the same
        return parser

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.flow = Flow(transport, self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        self.parser = None
        self.pipeline.clear()
        for exchange in (self.last, self.running):
            if exchange is not None:
                exchange.leave()
        self.last = self.running = self.straight = None  # a cycle of references would wait for the collector
        self.rest = NOTHING
        self.plane.budget.let_go(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        direct = self.straight
        if direct is None:
            return self._incoming_head if self.sends_large and self.is_between else self._incoming
        return self._incoming[: direct.left] if direct.is_answered else direct.more_room()

    def buffer_updated(self, nbytes: int) -> None:
        if self.straight is not None:
            self.straight_came(self.straight, nbytes)
        else:
            self.data_received(bytes(self._incoming[:nbytes]))

    def data_received(self, data: bytes) -> None:
        if self.parser is None or self.transport.is_closing():
            self.forget(len(data))
            return
        if not self.rest and (not self.is_reading or not self.is_begun):  # `is_between`, for every request
            end = data.find(HEAD_END) + 4
            head, last = data[:end], self.last
            asked = self.api.known_head(head) if last is None or last.is_answered else None
            if asked is not None and len(data) <= end + asked.stated:
                self.begin_known(asked, data, end)
                return
            self.head = head if end >= 4 and head[:1] not in EMPTY_LINE else b""
        if len(data) <= TURN_BYTES and not self.rest:
            self.feed(data)
        else:
            self.rest = memoryview(bytes(self.rest) + data if self.rest else data)
            self.go_on()

    # -- requests whose head is known ----------------------------------------------------------------------------

    def begin_known(self, asked: Asked, data: bytes, end: int) -> None:
        """`data` begins with the head, and holds nothing behind the body."""
        if self.last is not None and not self.last.keep_alive:
            return  # the connection ends with the answer that was given
        self.begin_message()
        self.has_head = True
        self.header_bytes = end
        self.last = self.running = direct = Direct(self, asked, True, self.begun_ns, end)  # type: ignore[arg-type]
        if len(data) == end + asked.stated:
            self.is_reading = False
            direct.has_all = True
            direct.enter(data[end:])
            return
        self.straight = direct
        self.sends_large = asked.stated > READ_BYTES
        size = len(data) - end
        if size:
            direct.more_room()[:size] = data[end:]
            self.straight_came(direct, size)

    def straight_came(self, direct: Direct, size: int) -> None:
        """Further bytes of a body, where they belong already."""
        has_to_wait = False
        if direct.is_answered:
            direct.came_bytes += size
            if direct.left and self.is_plain:
                direct.came_bytes += discarded(self.descriptor, direct.left)
        else:
            direct.filled(size)
            size += self.read_on(direct, size)
            if direct.left and not self.plane.budget.hold(self, size):
                self.give_up()
            else:
                has_to_wait = self.share_turn(direct, size)
        if not direct.left:
            self.straight = None
            self.message_came()
        elif not has_to_wait:
            self.look_if_slow()

    def read_on(self, direct: Direct, size: int) -> int:
        """What came of a body since the loop read `size`: a turn of the loop for every piece would take as long as the
        reading. Not where there are many, who have their turns. What ended is found by the loop, as an end.
        """
        came = 0
        if self.is_plain and self.plane.turns.has_room(size + direct.left):
            with contextlib.suppress(OSError):
                while direct.left and (more := os.readv(self.descriptor, [direct.more_room()])):
                    direct.filled(more)
                    came += more
        return came

    # -- large bodies, in the order in which they began ----------------------------------------------------------

    def share_turn(self, direct: Direct, size: int) -> bool:
        """So many bytes of its body were read in this turn. True: others have theirs first."""
        if direct.asked.stated <= READ_BYTES:
            return False
        if not self.plane.turns.must_wait(self, size, direct.left, self.begun_ns):
            return False
        self.waits_since_ns = time.monotonic_ns()
        self.flow.end_turn()
        return True

    def turn_came(self, now_ns: int) -> int:
        since_ns, self.waits_since_ns = self.waits_since_ns, 0
        direct = self.last
        if self.transport.is_closing() or self.is_refused or not isinstance(direct, Direct):
            return 0
        waited_ns = now_ns - since_ns
        direct.waited(since_ns, now_ns)
        if not direct.is_answered and self.plane.turns.is_too_long(waited_ns, direct.asked.patience_ns, now_ns):
            self.plane.budget.let_go(self)
            self.refuse_exchange(direct, too_many_bodies())
            if direct is self.straight:
                self.straight_came(direct, 0)
        left = 0 if direct.is_answered else direct.left
        self.take_turn()
        return left

    # -- requests that the parser reads --------------------------------------------------------------------------

    def go_on(self) -> None:
        """Take in what is this connection's for one turn of the event loop, and let others have theirs. What is taken
        apart piece by piece is held to `TURN_BYTES`; the body of an inference whose length was stated costs nothing.
        """
        has_taken, body_bytes = False, 0
        while self.rest and self.parser is not None and not self.transport.is_closing():
            size = min(self.body_left, len(self.rest))
            body_bytes += size
            if not size:
                if has_taken:
                    break
                has_taken = True
                size = TURN_BYTES
                if self.is_between:  # the head by itself, so that the body behind it need not be put together
                    size = bytes(self.rest[:TURN_BYTES]).find(HEAD_END) + 4
                    size = TURN_BYTES if size < 4 else size
            portion = self.rest[:size]
            self.rest = self.rest[size:] if size < len(self.rest) else NOTHING  # an empty slice would keep all of it
            self.feed(portion)
        if self.parser is None or self.transport.is_closing():
            self.rest = NOTHING
            return
        if self.rest and not self.plane.budget.hold(self, len(self.rest)):
            self.rest = NOTHING
            self.plane.budget.let_go(self)  # now: others would be given up for what is gone
            self.end_unsound(no_room())
            return
        direct = self.last
        if body_bytes and isinstance(direct, Direct) and not direct.is_answered and self.share_turn(direct, body_bytes):
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
        return not self.is_reading or not self.is_begun

    @property
    def body_left(self) -> int:
        """Of the inference that is being read, or forgotten, where its length was stated."""
        direct = self.last
        if not self.is_reading or not self.has_head or not isinstance(direct, Direct):
            return 0
        return max(0, direct.left)

    def feed(self, data: bytes | memoryview) -> None:
        rest = data
        while rest:
            try:
                assert self.parser is not None
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
        assert self.parser is not None
        version = self.parser.get_http_version().encode()
        parts = [self.parser.get_method(), b" ", self.url, b" HTTP/", version, b"\r\n"]
        for name, value in self.headers:
            if name != b"upgrade":
                parts += [name, b": ", value, b"\r\n"]
        self.is_upgrade = False
        self.head = b""
        self.parser = self.new_parser()
        return b"".join((*parts, b"\r\n"))

    def forget(self, size: int) -> None:
        """Came after the last request that is answered."""
        self.forgotten_bytes += size
        if self.forgotten_bytes > LINGER_BYTES and not self.transport.is_closing():
            if self.is_refused:
                self.transport.close()
            else:
                self.transport.pause_reading()
        elif self.is_refused:
            self.look_if_slow()

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
        self.look_if_slow()

    @property
    def promised(self) -> int:
        """How long the body is that it reads, where it was stated."""
        direct = self.last
        return direct.asked.stated if isinstance(direct, Direct) and not direct.is_answered else 0

    @property
    def is_stale(self) -> bool:
        return time.monotonic_ns() - self.begun_ns > STALE_NS

    @property
    def is_forgotten(self) -> bool:
        """What comes belongs to a request that was answered already."""
        is_body = self.is_reading and self.has_head and not self.pipeline
        return is_body and self.last is not None and self.last.is_answered

    def message_came(self) -> None:
        """A request is complete."""
        raise NotImplementedError

    def look_if_slow(self) -> None:
        """A request is not complete yet."""
        raise NotImplementedError

    def give_up(self) -> None:
        """There is no room for what is being read."""
        raise NotImplementedError

    def refuse_exchange(self, exchange: Exchange, error: ApiError) -> None:
        raise NotImplementedError

    def end_unsound(self, error: ApiError) -> None:
        """Nothing more is read. Sound requests before are answered first, so that answers keep their order."""
        raise NotImplementedError

    # -- the parser's callbacks that only count ------------------------------------------------------------------

    def begin_message(self) -> None:
        self.header_bytes = self.untold_bytes = self.body_bytes = self.chunks = 0
        self.begun_ns = time.monotonic_ns()
        self.since_s = self.begun_ns / 1e9
        self.is_reading = self.is_begun = self.has_told = True
        self.has_head = False

    def on_message_begin(self) -> None:
        self.url = b""
        self.expects = False
        self.headers = []
        self.begin_message()

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
            self.expects = True
        elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise ValueError("only chunked is known")
        elif name == b"content-length" and len(value) > LENGTH_DIGITS:
            raise ValueError("more zeros than Python reads as a number")
        elif name in SAID_ONCE and any(name == earlier for earlier, _ in self.headers):
            raise ValueError("it says twice who is asked, or by whom")
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.has_told = True
        self.body_bytes += len(body)
        if self.last is not None:
            self.last.came(body)

    def on_chunk_header(self) -> None:
        self.chunks += 1
        if self.chunks > FREE_CHUNKS and self.chunks * TINY_CHUNK > self.body_bytes:
            self.complaint = TINY_CHUNKS
            raise ValueError(TINY_CHUNKS)
