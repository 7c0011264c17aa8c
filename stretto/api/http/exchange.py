"""What a connection holds besides its parser: the inference on its way, and how far its client may be ahead."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl

from stretto.api.errors import ApiError, Reason
from stretto.api.http.encode import Header

if TYPE_CHECKING:
    from stretto.api.http.app import App, Asked
    from stretto.api.messages import InferRequest, InferResponse
    from stretto.api.plane import Plane
    from stretto.live.requests import Request

log = logging.getLogger("stretto.api")


class _NoEvent:
    """In the place of the event that wakes a task: there is none."""

    def set(self) -> None: ...


NO_EVENT = _NoEvent()
SMALL_PART, LARGE_PART = 8_192, 65_536  # bytes of a body


class Answering(Protocol):
    """The connection that an inference came on."""

    loop: asyncio.AbstractEventLoop
    api: App
    plane: Plane

    def acknowledge(self) -> None: ...

    def waited_ns(self) -> int: ...

    def answer(self, direct: Direct, status: int, body: bytes, headers: list[Header]) -> None: ...

    def refuse_direct(self, direct: Direct, error: ApiError) -> None: ...


class Direct:
    """An inference on its way without a task. It has the attributes of uvicorn's cycles that the protocol looks at."""

    __slots__ = (
        *("asked", "connection", "disconnected", "entered", "keep_alive"),
        *("parts", "reading", "response_complete"),
    )
    message_event = NO_EVENT

    def __init__(self, connection: Answering, asked: Asked, keep_alive: bool):
        self.connection = connection
        self.asked = asked
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False
        self.parts: list[bytes | bytearray] = []  # of its body
        self.entered: Request | None = None
        self.reading: asyncio.Task[None] | None = None  # of its images, where that takes long

    def came(self, body: bytes) -> None:
        """A part of its body. Small ones are put together, for a client may send two bytes at a time; large ones are
        not, for what grows and moves leaves holes in the memory, which cost more than all bodies together.
        """
        parts = self.parts
        if parts and len(body) < SMALL_PART and len(parts[-1]) < LARGE_PART:
            if isinstance(parts[-1], bytes):
                parts[-1] = bytearray(parts[-1])
            parts[-1] += body
        else:
            parts.append(body)

    def enter(self) -> None:
        """It is complete: into the data plane, or back with the reason why not."""
        connection = self.connection
        parts, self.parts = self.parts, []
        body = parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)
        if self.asked.is_acknowledged:
            connection.acknowledge()
        try:
            request = connection.api.decoded(self.asked, body)
            request.spent_ns = connection.waited_ns()
            if connection.plane.reads_slowly(request):
                self.reading = connection.loop.create_task(self._begin_when_read(request))
            else:
                self._begin(request)
        except Exception as error:
            self._end(told(error))

    async def _begin_when_read(self, request: InferRequest) -> None:
        """A request whose images are read in a thread first."""
        try:
            await self.connection.plane.read_images(request)
            if not self.disconnected:
                self._begin(request)
        except Exception as error:
            self._end(told(error))

    def _begin(self, request: InferRequest) -> None:
        entered = self.connection.plane.begin(request, self._end)
        if not self.response_complete:
            self.entered = entered

    def _end(self, result: InferResponse | ApiError) -> None:
        self.entered = None
        if self.disconnected or self.response_complete:
            return
        if isinstance(result, ApiError):
            self.connection.refuse_direct(self, result)
        else:
            self.connection.answer(self, *self.connection.api.encoded(self.asked, result))


def told(error: Exception) -> ApiError:
    """What a client hears of a failure: of one of ours, no more than that it was one."""
    if isinstance(error, ApiError):
        return error
    log.error("a request failed", exc_info=error)
    return ApiError(Reason.FAILED, "the server failed on this request")


class Flow(FlowControl):
    """How much is read ahead of the answers. uvicorn stops at the first request that waits for its turn; then nobody
    would notice that the client left. Here it is when a client is far ahead, does not take its answers, or sent more
    than is its turn.
    """

    def __init__(self, transport: asyncio.Transport, pipeline: deque[Any]):
        super().__init__(transport)
        self._pipeline = pipeline
        self._ahead_bytes = 0  # that came while requests waited for their turn
        self._has_had_turn = False

    def came(self, size: int) -> None:
        self._ahead_bytes = self._ahead_bytes + size if self._pipeline else 0
        self.pause_reading()

    def pause_reading(self) -> None:
        if self._is_ahead and not self._transport.is_closing():
            super().pause_reading()

    @property
    def _is_ahead(self) -> bool:
        return self.write_paused or self._has_had_turn or self._ahead_bytes > HIGH_WATER_LIMIT

    def resume_reading(self) -> None:
        if not self._pipeline:
            self._ahead_bytes = 0
            self._resume()

    def _resume(self) -> None:
        if not self._is_ahead and not self._transport.is_closing():
            super().resume_reading()

    def end_turn(self) -> None:
        """Enough was taken in for this turn of the event loop."""
        self._has_had_turn = True
        self.pause_reading()

    def begin_turn(self) -> None:
        self._has_had_turn = False
        self._resume()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.resume_reading()
