"""What a connection holds besides its parser: the inference on its way, and how far its client may be ahead."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl

if TYPE_CHECKING:
    from stretto.api.http.app import Asked
    from stretto.live.requests import Request


class _NoEvent:
    """In the place of the event that wakes a task: there is none."""

    def set(self) -> None: ...


NO_EVENT = _NoEvent()


class Direct:
    """An inference on its way without a task. It has the attributes of uvicorn's cycles that the protocol looks at."""

    __slots__ = ("asked", "body", "disconnected", "entered", "keep_alive", "reading", "response_complete")
    message_event = NO_EVENT

    def __init__(self, asked: Asked, keep_alive: bool):
        self.asked = asked
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False
        self.body: bytes | bytearray = b""
        self.entered: Request | None = None
        self.reading: asyncio.Task[None] | None = None  # of its images, where that takes long


class Flow(FlowControl):
    """How much is read ahead of the answers. uvicorn stops at the first request that waits for its turn; then nobody
    would notice that the client left. Here it is when a client is far ahead, or does not take its answers.
    """

    def __init__(self, transport: asyncio.Transport, pipeline: deque[Any]):
        super().__init__(transport)
        self._pipeline = pipeline
        self._ahead_bytes = 0  # that came while requests waited for their turn

    def came(self, size: int) -> None:
        self._ahead_bytes = self._ahead_bytes + size if self._pipeline else 0
        self.pause_reading()

    def pause_reading(self) -> None:
        if (self.write_paused or self._ahead_bytes > HIGH_WATER_LIMIT) and not self._transport.is_closing():
            super().pause_reading()

    def resume_reading(self) -> None:
        if not self._pipeline:
            self._ahead_bytes = 0
            if not self.write_paused and not self._transport.is_closing():
                super().resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.resume_reading()
