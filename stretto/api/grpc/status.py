"""What a failed call ends with: its gRPC status, a message for the client and the reason in the trailing metadata."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from stretto.api.errors import ApiError, Reason

LOG = logging.getLogger("stretto.api.grpc")
MESSAGE_LENGTH = 1_000  # trailing metadata as a whole must stay within what clients accept, 8 KiB


@dataclass(frozen=True)
class Status:
    """`retry_after_s` is whole seconds, as in HTTP's header."""

    code: grpc.StatusCode
    message: str
    reason: str
    retry_after_s: int | None = None
    told: Mapping[str, str] = field(default_factory=dict)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        retry = () if self.retry_after_s is None else (("retry-after", str(self.retry_after_s)),)
        told_pairs = ((f"stretto-{name.replace('_', '-')}", value) for name, value in self.told.items())
        return (("stretto-reason", self.reason), *retry, *told_pairs)

    @property
    def parameters(self) -> dict[str, Any]:
        """The same for one request of a stream, which has no metadata of its own."""
        retry = {} if self.retry_after_s is None else {"retry_after": self.retry_after_s}
        return {"reason": self.reason, **retry, **self.told}


def status_of(error: BaseException, call: str) -> Status:
    """What an error means to a client. Anything but an ApiError is our fault: it is logged, and says no more."""
    if isinstance(error, asyncio.CancelledError):
        error = ApiError(Reason.CANCELLED, "the query was cancelled")
    if not isinstance(error, ApiError):
        LOG.error("%s failed", call, exc_info=error)
        error = ApiError(Reason.FAILED, "the server failed on this call; its log says why")
    seconds = None if error.retry_after_s is None else max(1, math.ceil(error.retry_after_s))
    message = error.message if len(error.message) <= MESSAGE_LENGTH else error.message[: MESSAGE_LENGTH - 1] + "…"
    code = grpc.StatusCode[error.reason.grpc_status]
    return Status(code, message, error.reason.word, seconds, error.parameters)


async def end(context: Any, status: Status) -> None:
    """Ends the call; raises what makes gRPC do so."""
    await context.abort(status.code, status.message, status.metadata)


def is_withdrawn() -> bool:
    """A CancelledError in this task was meant for it (its client left): it did not leak out of what it awaits."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
