"""One request on its way to its answer: an inference without a task, or a call that a task answers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

from stretto.api.answers import SENTENCES, answer, refusal
from stretto.api.errors import ApiError, Reason, as_api_error
from stretto.api.http.encode import encode_by_terms
from stretto.api.rooms import MOST_BYTES
from stretto.core.outcome import Outcome

if TYPE_CHECKING:
    from stretto.api.http.app import App, Asked
    from stretto.api.messages import InferRequest, InferResponse, Terms
    from stretto.api.plane import Plane
    from stretto.live.requests import Request

log = logging.getLogger("stretto.api")

ON_TIME, LATE = Outcome.ON_TIME, Outcome.LATE  # asked for with every answer
SMALL_PART = 8_192  # bytes of a body
ALIGNED = 16
IN_A_ROW_NS = 5_000_000  # from a body's turn to its next wait
ROOM = MOST_BYTES - ALIGNED  # that is made at least, where a large body comes
UNSTATED = 65_536  # likewise, where nobody said how large
NOTHING = memoryview(b"")


class Answering(Protocol):
    """The connection that a request came on."""

    loop: asyncio.AbstractEventLoop
    api: App
    plane: Plane

    def acknowledge(self) -> None: ...

    def go_ahead(self) -> None: ...

    def waited_ns(self) -> int: ...

    def answer(self, exchange: Exchange, status: int, body: bytes, headers: bytes) -> None: ...

    def refuse_exchange(self, exchange: Exchange, error: ApiError) -> None: ...


class Direct:
    """An inference. Its body comes in parts from the parser, or straight from the socket, into `room`."""

    __slots__ = (
        *("asked", "begun_ns", "came_bytes", "connection", "disconnected", "entered", "has_all", "head_bytes"),
        *("held_ns", "in_a_row_ns", "is_answered", "keep_alive", "parts", "reading", "resumed_ns", "room", "terms"),
    )
    is_head = False

    def __init__(self, connection: Answering, asked: Asked, keep_alive: bool, begun_ns: int, head_bytes: int):
        self.connection = connection
        self.asked = asked
        self.keep_alive = keep_alive
        self.begun_ns = begun_ns
        self.head_bytes = head_bytes
        self.disconnected = False
        self.is_answered = False
        self.has_all = False
        self.came_bytes = 0
        self.held_ns = 0  # the longest that its body had to wait for its turns, in a row
        self.in_a_row_ns = self.resumed_ns = 0  # since when it waits again and again: how long, and its last turn
        self.parts: list[bytes | memoryview] = []  # of its body
        self.room = NOTHING  # where the next bytes of it go
        self.entered: Request | None = None
        self.reading: asyncio.Task[None] | None = None  # of its images, where that takes long
        self.terms: Terms | None = None  # that it was taken by

    def came(self, body: bytes) -> None:
        """A part of its body, from the parser. One that is small, or all of it, is kept as it is."""
        if self.is_answered:
            self.came_bytes += len(body)
        elif not self.came_bytes and (len(body) < SMALL_PART or len(body) == self.asked.stated):
            self.came_bytes = len(body)
            self.parts.append(body)
        else:
            if self.parts and isinstance(self.parts[0], bytes):  # more came than the first, small part
                first, self.parts, self.came_bytes = self.parts[0], [], 0
                self._put(first)
            self._put(body)

    def _put(self, body: bytes) -> None:
        left = memoryview(body)
        while left:
            room = self.more_room()
            size = min(len(room), len(left))
            room[:size] = left[:size]
            self.filled(size)
            left = left[size:]

    @property
    def account(self) -> bytes:
        """Whose token it came with; nothing where it came without."""
        return self.asked.account

    # -- straight from the socket --------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """Of a body whose length was stated."""
        return self.asked.stated - self.came_bytes

    def more_room(self) -> memoryview:
        """For the next bytes of its body, and for no more than it has. As much as came before, so that who states much
        and sends little costs little.
        """
        if not self.room:
            size = min(self.left, max(ROOM, self.came_bytes)) if self.left > 0 else max(UNSTATED, self.came_bytes)
            skipped = -self.asked.json_bytes % ALIGNED  # so that the tensor behind the JSON part is aligned
            self.room = self.connection.plane.rooms.room(skipped + size)[skipped:]
            self.parts.append(self.room)
        return self.room

    def waited(self, since_ns: int, now_ns: int) -> None:
        """For its turn to be read. What it waits again right after its turn is one wait: its client was not the slow
        one, and a body that is read in many turns has lost all of them.
        """
        if since_ns - self.resumed_ns > IN_A_ROW_NS:
            self.in_a_row_ns = 0
        self.in_a_row_ns += now_ns - since_ns
        self.held_ns = max(self.held_ns, self.in_a_row_ns)
        self.resumed_ns = now_ns

    def filled(self, size: int) -> None:
        """So much of the room."""
        self.came_bytes += size
        self.room = self.room[size:] if size < len(self.room) else NOTHING

    # -- when it is complete -------------------------------------------------------------------------------------

    def complete(self) -> None:
        self.has_all = True
        parts, self.parts = self.parts, []
        if self.room:  # of a body whose length was not stated
            parts[-1], self.room = parts[-1][: -len(self.room)], NOTHING
        self.enter(parts[0] if len(parts) == 1 else b"".join(parts))

    def enter(self, body: bytes | memoryview) -> None:
        """Into the data plane, or back with the reason why not."""
        connection, asked = self.connection, self.asked
        if asked.is_acknowledged:
            connection.acknowledge()
        try:
            spent_ns = max(connection.waited_ns(), self.held_ns)
            terms_and_array = connection.api.by_terms(asked, body)
            if terms_and_array is not None:
                self.terms, array = terms_and_array
                entered = connection.plane.begin_by(self.terms, array, spent_ns, self._ended)
                self.entered = None if self.is_answered else entered
                return
            request = connection.api.decoded(asked, body, self.begun_ns, self.head_bytes)
            request.spent_ns = spent_ns
            if connection.plane.reads_slowly(request):
                self.reading = connection.loop.create_task(self._begin_when_read(request))
            else:
                self._begin(request)
        except Exception as error:
            self._end(as_api_error(error))

    async def _begin_when_read(self, request: InferRequest) -> None:
        """A request whose images are read in a thread first."""
        try:
            await self.connection.plane.read_images(request)
            if not self.disconnected:
                self._begin(request)
        except Exception as error:
            self._end(as_api_error(error))

    def _begin(self, request: InferRequest) -> None:
        entered = self.connection.plane.begin(request, self._end)
        self.entered = None if self.is_answered else entered

    def _ended(self, entered: Request) -> None:
        """One that was taken by its terms."""
        connection, terms = self.connection, self.terms
        assert terms is not None
        connection.plane.let_go(entered)
        try:
            if entered.outcome is not ON_TIME and entered.outcome is not LATE:  # some rows may have answers
                self._end(connection.plane.count_refusal(refusal(entered, {})))
            elif len(entered.variants) > 1 or entered.short_circuited:
                self._end(answer(entered, terms.files, "", terms.wanted))
            elif not self.disconnected and not self.is_answered:
                self.entered = None
                status, (content, headers) = 200, encode_by_terms(terms, entered)
                if self.asked.compression:
                    status, content, headers = connection.api.packed(self.asked, content, headers)
                connection.answer(self, status, content, headers)
        except Exception:  # the engine calls this, and the others of the batch come after
            log.exception("an answer cannot be given")
            self._end(ApiError(Reason.FAILED, SENTENCES[Outcome.FAILED]))

    def _end(self, result: InferResponse | ApiError) -> None:
        self.entered = None
        if self.disconnected or self.is_answered:
            return
        if isinstance(result, ApiError):
            self.connection.refuse_exchange(self, result)
        else:
            self.connection.answer(self, *self.connection.api.encoded(self.asked, result))

    def leave(self) -> None:
        """Its client is gone."""
        self.disconnected = True
        self.parts, self.room = [], NOTHING
        if self.entered is not None:
            self.connection.plane.cancel(self.entered)


class Call:
    """Any other request. The task begins with its head, and asks for its body when it wants it."""

    def __init__(self, connection: Answering, scope: dict[str, Any], keep_alive: bool, expects: bool):
        self.connection = connection
        self.scope = scope
        self.keep_alive = keep_alive
        self.is_head = scope["method"] == "HEAD"
        self.disconnected = False
        self.is_answered = False
        self.has_all = False
        self.body = bytearray()
        self._expects = expects  # to be told to go ahead with the body
        self._event = asyncio.Event()  # something came, or nothing will

    @property
    def account(self) -> bytes:
        """Whose token it came with; nothing where it came without, or where nobody asked for one."""
        return self.scope.get("stretto.account", b"")

    def came(self, body: bytes) -> None:
        if not self.is_answered:
            self.body += body
            self._event.set()

    def complete(self) -> None:
        self.has_all = True
        self._event.set()

    def leave(self) -> None:
        self.disconnected = True
        self._event.set()

    async def run(self) -> None:
        answer = await self.connection.api(self.scope, self.receive)
        if answer is not None and not self.disconnected:
            self.connection.answer(self, *answer)

    async def receive(self) -> tuple[bytes, bool] | None:
        """What came of the body since the last time, and whether more is to come; None: the client is gone."""
        if self._expects and not self.has_all:  # who has sent all of it, or has nothing to send, waits for no word
            self.connection.go_ahead()
        self._expects = False
        await self._event.wait()
        self._event.clear()
        if self.disconnected:
            return None
        body, self.body = self.body, bytearray()
        return bytes(body), not self.has_all


Exchange = Direct | Call
