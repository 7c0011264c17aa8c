"""uvicorn's protocol, held tighter and cut shorter.

Tighter: bounded headers and connections, errors as JSON, an end to requests that never become complete, and a lost
client cancels its queries. Shorter: an inference at an address that was answered before goes from the parser to the
data plane and back without a task, an event or ASGI messages, which cost more than all the rest together.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from stretto.api.errors import ApiError, Reason, too_large
from stretto.api.http.encode import Header, encode_error

if TYPE_CHECKING:
    from stretto.api.http.app import App, Asked
    from stretto.api.limits import Limits
    from stretto.api.messages import InferResponse
    from stretto.api.plane import Plane
    from stretto.live.requests import Request

log = logging.getLogger("stretto.api")


class _NoEvent:
    """In the place of the event that wakes a task: there is none."""

    def set(self) -> None: ...


NO_EVENT = _NoEvent()


class Direct:
    """An inference on its way without a task. Its attributes are those of uvicorn's cycles that are looked at."""

    __slots__ = ("asked", "disconnected", "entered", "keep_alive", "parts", "response_complete", "size")
    message_event = NO_EVENT

    def __init__(self, asked: Asked, keep_alive: bool):
        self.asked = asked
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False
        self.parts: list[bytes] = []
        self.size = 0
        self.entered: Request | None = None


def protocol_class(app: App, plane: Plane, limits: Limits) -> type[HttpToolsProtocol]:
    """uvicorn makes protocols itself, from a class; this one knows its plane."""

    class Protocol(HttpToolsProtocol):
        """Of one connection."""

        cycle: Any

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.open_requests: set[Request] = set()
            self.header_bytes = 0
            self.since_s = time.monotonic()  # the last request began, or the last answer was sent
            self.is_reading = True
            if len(self.connections) > limits.connections:
                self.refuse(ApiError(Reason.OVERLOADED, "there are too many connections; try again later", 1.0))

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            for request in tuple(self.open_requests):
                plane.cancel(request)
            if isinstance(self.cycle, Direct) and self.cycle.entered is not None:
                plane.cancel(self.cycle.entered)

        # -- the parser's callbacks ----------------------------------------------------------------------------------

        def on_message_begin(self) -> None:
            self.url = b""
            self.expect_100_continue = False
            self.headers = []
            self.header_bytes = 0
            self.since_s = time.monotonic()
            self.is_reading = True

        def on_url(self, url: bytes) -> None:
            self.count(len(url))
            self.url += url

        def on_header(self, name: bytes, value: bytes) -> None:
            self.count(len(name) + len(value) + 4)
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

        def on_headers_complete(self) -> None:
            before = self.cycle
            if before is None or before.response_complete:
                known = app.known_infer(self.url)
                if known is not None and self.parser.get_method() == b"POST" and not self.expect_100_continue:
                    self.begin_direct(known)
                    return
            url, headers, expects = self.url, self.headers, self.expect_100_continue
            super().on_message_begin()  # which makes the scope that only tasks need
            self.url, self.expect_100_continue = url, expects
            self.headers.extend(headers)
            self.scope["stretto.open"] = self.open_requests  # type: ignore[typeddict-unknown-key]
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            direct = self.cycle
            if not isinstance(direct, Direct):
                super().on_body(body)
            elif not direct.response_complete:
                direct.parts.append(body)
                direct.size += len(body)
                if direct.size > direct.asked.limit:
                    self.answer(*encode_error(too_large(f"a request may have {direct.asked.limit} bytes")), last=True)

        def on_message_complete(self) -> None:
            self.is_reading = False
            direct = self.cycle
            if not isinstance(direct, Direct):
                super().on_message_complete()
            elif not direct.response_complete:
                self.enter(direct)

        # -- inferences without a task -------------------------------------------------------------------------------

        def begin_direct(self, known: tuple[str, str]) -> None:
            keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
            try:
                self.cycle = Direct(app.asked(self.headers, *known), keep_alive)
            except ApiError as error:
                self.cycle = Direct(app.no_asked, keep_alive)
                self.answer(*encode_error(error), last=True)  # the body that follows is not read

        def enter(self, direct: Direct) -> None:
            body = direct.parts[0] if len(direct.parts) == 1 else b"".join(direct.parts)
            direct.parts.clear()

            def done(result: InferResponse | ApiError) -> None:
                direct.entered = None
                if direct.disconnected:
                    return
                if isinstance(result, ApiError):
                    self.answer(*encode_error(result))
                else:
                    self.answer(*app.encoded(direct.asked, result))

            try:
                entered = plane.begin(app.decoded(direct.asked, body), done)
                if not direct.response_complete:
                    direct.entered = entered
            except ApiError as error:
                self.answer(*encode_error(error))
            except Exception:
                log.exception("a request failed")
                self.answer(*encode_error(ApiError(Reason.FAILED, "the server failed on this request")), last=True)

        def answer(self, status: int, body: bytes, headers: list[Header], last: bool = False) -> None:
            """The answer to the direct call; `last` ends the connection."""
            direct = self.cycle
            last = last or not direct.keep_alive
            self.transport.write(_bytes_of(status, body, headers, last))
            direct.response_complete = True
            self.since_s = time.monotonic()
            if last:
                self.transport.close()
            self.server_state.total_requests += 1
            if self.transport.is_closing():
                return
            self.flow.resume_reading()
            if self.pipeline:
                self.cycle, after = self.pipeline.pop()
                self._start_asgi_task(self.cycle, after)

        # -- what is refused -----------------------------------------------------------------------------------------

        def count(self, size: int) -> None:
            self.header_bytes += size
            if self.header_bytes > limits.http_header_bytes:
                raise ValueError("headers are too large")  # the parser ends, and a 400 is sent

        def data_received(self, data: bytes) -> None:
            if self.parser is None or self.transport.is_closing():
                return
            super().data_received(data)

        def send_400_response(self, msg: str) -> None:
            self.refuse(ApiError(Reason.BAD_REQUEST, "this is no sound HTTP request, or its headers are too large"))

        def refuse(self, error: ApiError) -> None:
            """An error and the end of the connection."""
            plane.count_refusal(error)
            self.transport.write(_bytes_of(*encode_error(error), last=True))
            self.transport.close()

        def end_if_slow(self, now_s: float) -> None:
            """A request that does not become complete, or a connection that nobody uses, is not kept for ever."""
            idle_s = now_s - self.since_s
            is_over = self.cycle is None or self.cycle.response_complete
            if (self.is_reading and idle_s > limits.header_timeout_s) or (is_over and idle_s > limits.keep_alive_s):
                self.transport.close()

        @property
        def is_answering(self) -> bool:
            return isinstance(self.cycle, Direct) and not self.cycle.response_complete

    return Protocol


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
