"""Why a call got no answer, with its status in HTTP and gRPC. docs/serving.md has the same table for users.

gRPC's status codes are named here, not imported: the data plane knows no protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum

from stretto.core.outcome import Outcome

log = logging.getLogger("stretto.api")


class Reason(Enum):
    """`value` is the word on the wire; then the HTTP status and the name of the gRPC status."""

    EXPIRED = ("expired", 504, "DEADLINE_EXCEEDED")
    INFEASIBLE = ("infeasible", 412, "FAILED_PRECONDITION")
    OVERLOADED = ("overloaded", 429, "RESOURCE_EXHAUSTED")
    CANCELLED = ("cancelled", 499, "CANCELLED")
    UNAVAILABLE = ("unavailable", 503, "UNAVAILABLE")
    FAILED = ("failed", 500, "INTERNAL")
    BAD_REQUEST = ("bad_request", 400, "INVALID_ARGUMENT")
    TOO_LARGE = ("bad_request", 413, "INVALID_ARGUMENT")
    NOT_FOUND = ("not_found", 404, "NOT_FOUND")
    NOT_ALLOWED = ("bad_request", 405, "INVALID_ARGUMENT")
    UNAUTHENTICATED = ("unauthenticated", 401, "UNAUTHENTICATED")
    FORBIDDEN = ("forbidden", 403, "PERMISSION_DENIED")

    @property
    def word(self) -> str:
        return self.value[0]

    @property
    def http_status(self) -> int:
        return self.value[1]

    @property
    def grpc_status(self) -> str:
        return self.value[2]


class ApiError(Exception):
    """A call that gets no answer. The message is for the client: it names nothing of the inside."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        retry_after_s: float | None = None,
        parameters: Mapping[str, str] | None = None,
    ):
        """`parameters` tell a client what to do; docs/network.md has them."""
        super().__init__(message)
        self.parameters = parameters or {}
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.is_counted = False  # among the refusals, or as the outcome of its queries


REASONS = {
    Outcome.DROPPED_EXPIRED: Reason.EXPIRED,
    Outcome.DROPPED_INFEASIBLE: Reason.INFEASIBLE,
    Outcome.DROPPED_OVERLOAD: Reason.OVERLOADED,
    Outcome.DROPPED_CANCELLED: Reason.CANCELLED,
    Outcome.FAILED: Reason.FAILED,
}


def as_api_error(error: Exception) -> ApiError:
    """What a client hears of a failure: of one of ours, no more than that it was one."""
    if isinstance(error, ApiError):
        return error
    log.error("a request failed", exc_info=error)
    return ApiError(Reason.FAILED, "the server failed on this request")


def bad_request(message: str) -> ApiError:
    return ApiError(Reason.BAD_REQUEST, message)


def too_large(message: str) -> ApiError:
    return ApiError(Reason.TOO_LARGE, message)


def no_room() -> ApiError:
    """Beyond the budget of memory."""
    return ApiError(Reason.OVERLOADED, "too much is being sent at present; try again later", 1.0)


def too_many_bodies() -> ApiError:
    """They come faster than they can be read."""
    return ApiError(Reason.OVERLOADED, "more is being sent than can be read in time; try again later", 1.0)


def too_many_connections() -> ApiError:
    return ApiError(Reason.OVERLOADED, "there are too many connections; try again later", 1.0)


def not_found(message: str) -> ApiError:
    return ApiError(Reason.NOT_FOUND, message)
