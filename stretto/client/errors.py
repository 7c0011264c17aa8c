"""Why a call got no answer: one exception per reason of docs/serving.md, and two for what no server said."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from stretto.core.errors import StrettoError

MAX_MESSAGE = 1000


class StrettoClientError(StrettoError):
    """A call without an answer. `reason` is the word on the wire, `status` the HTTP status where one came."""

    reason: ClassVar[str] = ""

    def __init__(self, message: str, status: int | None = None):
        super().__init__(message)
        self.status = status
        self.parameters: dict[str, Any] = {}  # what the server says besides; docs/network.md has them


class Expired(StrettoClientError):
    """The deadline passed before it ran, or the answer did not come within the deadline and the grace."""

    reason = "expired"


class Infeasible(StrettoClientError):
    """No variant could answer by the deadline any more, though it had not passed yet."""

    reason = "infeasible"


class Overloaded(StrettoClientError):
    """Too much work. `retry_after_s`: when to try again, where the server says so."""

    reason = "overloaded"

    def __init__(self, message: str, status: int | None = None, retry_after_s: float | None = None):
        super().__init__(message, status)
        self.retry_after_s = retry_after_s


class Cancelled(StrettoClientError):
    """The server took the query as withdrawn."""

    reason = "cancelled"


class Unavailable(StrettoClientError):
    """The server is starting or draining, or no worker is left that can serve."""

    reason = "unavailable"


class Failed(StrettoClientError):
    """The model failed on it, or the worker was lost."""

    reason = "failed"


class BadRequest(StrettoClientError):
    """The request is not understood or breaks a limit. `status` is None where the client itself refused to send it."""

    reason = "bad_request"


class NotFound(StrettoClientError):
    """No such application, variant or address."""

    reason = "not_found"


class Unauthenticated(StrettoClientError):
    """A bearer token is needed, and was missing or wrong."""

    reason = "unauthenticated"


class Forbidden(StrettoClientError):
    """It is a matter of the management listener."""

    reason = "forbidden"


class ConnectionFailed(StrettoClientError):
    """The server could not be reached, or the connection broke before the answer was complete."""


class BadAnswer(StrettoClientError):
    """What came back is not an answer of this protocol, or is larger than this client accepts."""


class Stale(Exception):
    """A kept connection turned out to be closed before a byte of the answer came: a new one may be tried.

    Never leaves this package.
    """


BY_REASON: dict[str, type[StrettoClientError]] = {
    kind.reason: kind
    for kind in (
        *(Expired, Infeasible, Overloaded, Cancelled, Unavailable, Failed),
        *(BadRequest, NotFound, Unauthenticated, Forbidden),
    )
}
# For errors that a proxy in between made, which know no reason.
BY_STATUS: dict[int, type[StrettoClientError]] = {
    400: BadRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    405: BadRequest,
    412: Infeasible,
    413: BadRequest,
    429: Overloaded,
    499: Cancelled,
    500: Failed,
    502: Unavailable,
    503: Unavailable,
    504: Expired,
}


def kind_of(status: int, content: Any) -> type[StrettoClientError]:
    """The exception for an answer that is not 2xx; `content` is its parsed body, or None."""
    reason = content.get("reason") if isinstance(content, dict) else None
    if isinstance(reason, str) and reason in BY_REASON:
        return BY_REASON[reason]
    if status in BY_STATUS:
        return BY_STATUS[status]
    if 400 <= status < 500:
        return BadRequest
    return Failed if 500 <= status < 600 else BadAnswer


def error_of(status: int, content: Any, retry_after_s: float | None) -> StrettoClientError:
    """The exception itself, with the server's own sentence."""
    kind = kind_of(status, content)
    message = content.get("error") if isinstance(content, dict) else None
    if not isinstance(message, str) or not message:
        message = f"the server answered with HTTP status {status} and no reason"
    message = printable(message)
    error = kind(message, status, retry_after_s) if issubclass(kind, Overloaded) else kind(message, status)
    parameters = content.get("parameters") if isinstance(content, dict) else None
    if isinstance(parameters, dict):
        error.parameters = parameters
    return error


def printable(text: str) -> str:
    """Foreign text as one bounded line, without what would steer a terminal."""
    return "".join(sign if sign.isprintable() else " " for sign in text[:MAX_MESSAGE])


def cause(error: Exception | None) -> str:
    """Why a connection failed, in the system's words: asyncio's own text names addresses of the inside."""
    if error is None:
        return "the server closed it"
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, UnicodeError):
        return "that is no name of a host"
    said = getattr(error, "verify_message", "") or getattr(error, "reason", "")  # of TLS
    if said:
        return str(said)
    number = getattr(error, "errno", None)
    return os.strerror(number) if number and number > 0 else "no such host, or it does not answer"
