"""ModelStreamInfer: requests of one stream, each answered when it is ready.

A stream has so many requests unanswered at a time and no more: then nothing is read until an answer has been taken by
the client, so a client that does not read its answers stops itself. When the stream ends or its client leaves, no task
of it is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from stretto.api.errors import ApiError, Reason
from stretto.api.grpc import wire
from stretto.api.grpc.compression import plain
from stretto.api.grpc.reads import Reads
from stretto.api.grpc.responses import streamed, streamed_error
from stretto.api.grpc.served_plane import ServedPlane
from stretto.api.grpc.status import end, is_withdrawn, status_of
from stretto.api.limits import Limits

CALL = "ModelStreamInfer"


Write = Callable[[bytes], Awaitable[None]]
Infer = Callable[[bytes, Write], Awaitable[bytes]]


async def answer_stream(context: Any, infer: Infer, limits: Limits, plane: ServedPlane, reads: Reads) -> None:
    """Reads requests until the client has no more, and writes answers until none is owed."""
    peer = context.peer()
    refusal: ApiError | None = None
    unanswered = asyncio.Semaphore(limits.requests_per_stream)
    writing = asyncio.Lock()  # gRPC takes one message at a time

    async def write(message: bytes) -> None:
        async with writing:
            await context.write(message)

    async def answer(body: bytes) -> None:
        try:
            await write(await answer_to(body, infer, limits, plane, write, partial(reads.take, peer, len(body))))
        finally:
            reads.give_back(peer, len(body))
        unanswered.release()

    try:
        async with asyncio.TaskGroup() as answers:
            while True:
                await unanswered.acquire()
                try:
                    body = await reads.read(context, peer, is_one_call=False)
                except ApiError as error:
                    refusal = plane.count_refusal(error)
                    break
                if body is grpc.aio.EOF:
                    break
                answers.create_task(answer(body))
    except ExceptionGroup as failures:
        # Requests fail inside `answer_to`; what fails here is the stream itself. Mostly it is a client that left while
        # an answer was on its way, which is no failure of ours.
        is_broken = failures.split(grpc.aio.BaseError)[1] is None
        cause = ApiError(Reason.CANCELLED, "the stream is broken") if is_broken else failures
        await end(context, status_of(cause, CALL))
    if refusal is not None:
        await end(context, status_of(refusal, CALL))


async def answer_to(
    body: bytes, infer: Infer, limits: Limits, plane: ServedPlane, write: Write, take: Callable[[], None]
) -> bytes:
    """A serialized ModelStreamInferResponse: the answer, or why there is none."""
    try:
        take()
        body = await plain(body, limits.inflated_bytes, plane.budget)
        return streamed(await infer(body, write))
    except (asyncio.CancelledError, Exception) as error:
        if isinstance(error, asyncio.CancelledError) and is_withdrawn():
            raise
        if isinstance(error, ApiError):
            plane.count_refusal(error)
        status = status_of(error, CALL)
    return streamed_error(wire.request_id(body, limits), status.message, status.parameters)
