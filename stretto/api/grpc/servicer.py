"""The calls of GRPCInferenceService, each a translation of one call of the data plane.

Messages come and go serialized: what arrives is held to its limits before protobuf sees it, and a message that cannot
be parsed is the client's error, not ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from stretto.api.access import Access
from stretto.api.errors import ApiError, Reason, too_large
from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.grpc.compression import plain
from stretto.api.grpc.extensions import Extensions
from stretto.api.grpc.reads import Reads
from stretto.api.grpc.requests import infer_request, parse
from stretto.api.grpc.responses import ACKNOWLEDGE, from_json, infer_response, streamed_acknowledgement
from stretto.api.grpc.served_plane import ServedPlane
from stretto.api.grpc.status import end, is_withdrawn, status_of
from stretto.api.grpc.stream import Write, answer_stream
from stretto.api.limits import Limits
from stretto.api.messages import InferRequest

SERVICE = "inference.GRPCInferenceService"
LONGEST_DEADLINE_S = 3_600.0
TRACEPARENT_LENGTH = 256  # the standard's form has 55; a later version may be longer

Call = Callable[[Any], Awaitable[Message]]
Handler = Callable[[bytes, Any], Awaitable[bytes]]


class Servicer:
    """One listener's calls. `is_management`: it also answers for the repository."""

    def __init__(self, plane: ServedPlane, limits: Limits, is_management: bool, access: Access, reads: Reads):
        self.plane = plane
        self.limits = limits
        self.is_management = is_management
        self.access = access
        self.reads = reads

    def generic_handler(self) -> grpc.GenericRpcHandler:
        """The table of calls, for grpc.aio.Server.add_generic_rpc_handlers."""
        small: dict[str, tuple[type[Message], Call]] = {
            "ServerLive": (protocol.ServerLiveRequest, self.server_live),
            "ServerReady": (protocol.ServerReadyRequest, self.server_ready),
            "ModelReady": (protocol.ModelReadyRequest, self.model_ready),
            "ServerMetadata": (protocol.ServerMetadataRequest, self.server_metadata),
            "ModelMetadata": (protocol.ModelMetadataRequest, self.model_metadata),
            "ModelConfig": (protocol.ModelConfigRequest, self.model_config),
            "ModelStatistics": (protocol.ModelStatisticsRequest, self.model_statistics),
            "RepositoryIndex": (protocol.RepositoryIndexRequest, self.repository_index),
            "RepositoryModelLoad": (protocol.RepositoryModelLoadRequest, self.repository_model_load),
            "RepositoryModelUnload": (protocol.RepositoryModelUnloadRequest, self.repository_model_unload),
            **Extensions(self.plane, self.is_management).calls(),
        }
        calls = {name: self.translated(kind, call) for name, (kind, call) in small.items()}
        calls["ModelInfer"] = self.model_infer
        # As if they were streams of requests: then it is we who say when a message is read.
        handlers = {
            name: grpc.stream_unary_rpc_method_handler(self.guarded(name, call)) for name, call in calls.items()
        }
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self.model_stream_infer)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def guarded(self, name: str, handler: Handler) -> Callable[[Any, Any], Awaitable[bytes]]:
        """A call that reads its message when there is room for it, and ends every failure in a status."""
        reads = self.reads

        async def call(requests: Any, context: Any) -> bytes:
            peer, size = context.peer(), 0
            try:
                body = await reads.read(context, peer)
                if body is grpc.aio.EOF:
                    raise too_large(f"the call has no message, or one of more than {self.limits.message_bytes} bytes")
                size = len(body)
                reads.take(peer, size)
                return await handler(body, context)
            except (asyncio.CancelledError, Exception) as error:
                if isinstance(error, asyncio.CancelledError) and is_withdrawn():
                    raise
                if isinstance(error, ApiError):
                    self.plane.count_refusal(error)
                status = status_of(error, name)
                body = b""  # the error would keep it
            finally:
                if size:
                    reads.give_back(peer, size)
            await end(context, status)
            raise AssertionError  # `end` always raises

        return call

    def translated(self, kind: type[Message], call: Call) -> Handler:
        """A call without tensors: its message is as small as the JSON of a request."""

        async def handler(body: bytes, context: Any) -> bytes:
            body = await plain(body, self.limits.header_json_bytes, self.plane.budget)
            message = parse(kind, body, self.limits.header_json_bytes)
            return (await call(message)).SerializeToString()

        return handler

    async def model_infer(self, body: bytes, context: Any) -> bytes:
        request = infer_request(await plain(body, self.limits.inflated_bytes, self.plane.budget), self.limits)
        take_deadline(request, context.time_remaining())
        if request.parameters.get(ACKNOWLEDGE) is True:
            await context.send_initial_metadata(())
        request.traceparent = traceparent_of(context)
        request.account = self.account_of(context)
        return infer_response(await self.plane.infer(request))

    async def model_stream_infer(self, requests: Any, context: Any) -> None:
        # The stream's own deadline is not a query's: it bounds a conversation, and would press its last requests most.
        traceparent, account = traceparent_of(context), self.account_of(context)

        async def infer(body: bytes, write: Write) -> bytes:
            request = infer_request(body, self.limits)
            if request.parameters.get(ACKNOWLEDGE) is True:
                await write(streamed_acknowledgement(request.id))
            request.traceparent, request.account = traceparent, account
            return infer_response(await self.plane.infer(request))

        await answer_stream(context, infer, self.limits, self.plane, self.reads)

    async def server_live(self, message: protocol.ServerLiveRequest) -> Message:
        return protocol.ServerLiveResponse(live=self.plane.live())

    async def server_ready(self, message: protocol.ServerReadyRequest) -> Message:
        return protocol.ServerReadyResponse(ready=self.plane.ready())

    async def model_ready(self, message: protocol.ModelReadyRequest) -> Message:
        """What is not there is not ready."""
        try:
            is_ready = self.plane.ready(message.name, message.version)
        except ApiError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            is_ready = False
        return protocol.ModelReadyResponse(ready=is_ready)

    async def server_metadata(self, message: protocol.ServerMetadataRequest) -> Message:
        return from_json(protocol.ServerMetadataResponse, self.plane.control.server_metadata())

    async def model_metadata(self, message: protocol.ModelMetadataRequest) -> Message:
        layout = self.plane.control.model_metadata(message.name, message.version)
        return from_json(protocol.ModelMetadataResponse, layout)

    async def model_config(self, message: protocol.ModelConfigRequest) -> Message:
        config = from_json(protocol.ModelConfig, self.plane.control.model_config(message.name, message.version))
        return protocol.ModelConfigResponse(config=config)

    async def model_statistics(self, message: protocol.ModelStatisticsRequest) -> Message:
        await self.plane.control.refresh()
        layout = self.plane.control.statistics(message.name or None, message.version)
        return from_json(protocol.ModelStatisticsResponse, layout)

    async def repository_index(self, message: protocol.RepositoryIndexRequest) -> Message:
        self.hold_to_management()
        return from_json(protocol.RepositoryIndexResponse, {"models": self.plane.control.index(message.ready)})

    async def repository_model_load(self, message: protocol.RepositoryModelLoadRequest) -> Message:
        self.hold_to_management()
        await self.plane.control.load(message.model_name)
        return protocol.RepositoryModelLoadResponse()

    async def repository_model_unload(self, message: protocol.RepositoryModelUnloadRequest) -> Message:
        self.hold_to_management()
        await self.plane.control.unload(message.model_name)
        return protocol.RepositoryModelUnloadResponse()

    def account_of(self, context: Any) -> bytes:
        """Whose token a call came with."""
        return account_in(context.invocation_metadata(), self.access) or b"" if self.access.needs_token else b""

    def hold_to_management(self) -> None:
        if not self.is_management:
            raise ApiError(Reason.FORBIDDEN, "the repository is managed on the management listener's own address")


def take_deadline(request: InferRequest, remaining_s: float | None) -> None:
    """The call's own deadline becomes the query's, unless the request names one or it is too long to mean anything."""
    if "deadline_ms" in request.parameters or request.parameters.get("timeout", 0) != 0:
        return
    if remaining_s is None or remaining_s >= LONGEST_DEADLINE_S:
        return
    if remaining_s <= 0:
        raise ApiError(Reason.EXPIRED, "the deadline of the call had passed when it was read")
    request.parameters["deadline_ms"] = 1_000 * remaining_s


def account_in(metadata: Any, access: Access) -> bytes | None:
    for key, value in metadata or ():
        if key == "authorization" and isinstance(value, str):
            account = access.account_of(value.encode())
            if account is not None:
                return account
    return None


def traceparent_of(context: Any) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "traceparent" and isinstance(value, str) and len(value) <= TRACEPARENT_LENGTH:
            return value
    return ""
