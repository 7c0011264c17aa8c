"""Reads HTTP/1.1 responses from the bytes of one connection, one after the other. Knows no socket.

Bounds everything that a server could make grow: head, body, and what comes unasked.
"""

from __future__ import annotations

import math

import httptools

from stretto.client.answer import Response
from stretto.client.errors import BadAnswer

MAX_HEAD_BYTES = 65_536
DEFAULT_MAX_ANSWER_BYTES = 256_000_000
JSON_LENGTH = b"inference-header-content-length"
RETRY_AFTER = b"retry-after"
PROCESSING = 102


class ResponseReader:
    """Feed it what was received until `feed` says True, then `take` the response."""

    __slots__ = (
        "_body",
        "_is_acknowledged",
        "_is_complete",
        "_is_in_body",
        "_is_surplus",
        "_json_length",
        "_keeps_alive",
        "_max_bytes",
        "_parser",
        "_received",
        "_retry_after_s",
        "_size",
        "_status",
    )

    def __init__(self, max_bytes: int = DEFAULT_MAX_ANSWER_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._reset()

    def _reset(self) -> None:
        self._received = 0
        self._body: list[bytes] = []
        self._size = 0
        self._status = 0
        self._json_length: int | None = None
        self._retry_after_s: float | None = None
        self._is_in_body = self._is_complete = self._is_surplus = self._is_acknowledged = False
        self._keeps_alive = True

    @property
    def has_begun(self) -> bool:
        """At least one byte of the answer came."""
        return self._received > 0

    @property
    def is_acknowledged(self) -> bool:
        """An informational answer came: the server has read the whole request, and works on it."""
        return self._is_acknowledged

    def feed(self, data: bytes) -> bool:
        """True once the response is complete. BadAnswer where these bytes are none, or too many."""
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            raise BadAnswer("what came back is no HTTP answer") from None
        if self._size > self._max_bytes:
            raise BadAnswer(f"the answer is larger than the {self._max_bytes} bytes that this client accepts")
        # Where the body comes in chunks, their framing may take as much again.
        limit = MAX_HEAD_BYTES + (2 * self._max_bytes if self._is_in_body else 0)
        if self._received > limit:
            raise BadAnswer("the answer has an endless head")
        if self._is_surplus:
            raise BadAnswer("the server sent more than one answer to a request")
        return self._is_complete

    def take(self) -> Response:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        response = Response(self._status, body, self._json_length, self._retry_after_s, self._keeps_alive)
        self._reset()
        return response

    # What httptools calls.

    def on_message_begin(self) -> None:
        self._is_surplus = self._is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 31 and name.lower() == JSON_LENGTH:
            self._json_length = int(value) if value.isdigit() and len(value) < 16 else 2**62
        elif len(name) == 11 and name.lower() == RETRY_AFTER:
            self._retry_after_s = _seconds(value)

    def on_headers_complete(self) -> None:
        self._is_in_body = True

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= self._max_bytes:
            self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue and its like come before the answer
            self._json_length = self._retry_after_s = None
            self._is_in_body = False
            self._is_acknowledged |= status == PROCESSING
            return
        self._status = status
        self._keeps_alive = self._parser.should_keep_alive()
        self._is_complete = True


def _seconds(value: bytes) -> float | None:
    """Retry-After in seconds; its other form, a date, is not used here."""
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
