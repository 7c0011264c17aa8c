"""A real server on a free port of the loopback, and a real client of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np

from stretto.api.access import Access
from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.grpc.server import bind, make_server
from stretto.api.limits import Limits
from tests.api.grpc.mirror_plane import MirrorPlane

SERVICE = "/inference.GRPCInferenceService/"
PATIENCE_S = 20.0
DEFAULT_LIMITS = Limits()
T = TypeVar("T")


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Runs a test's scenario; one that hangs fails."""

    async def bounded() -> T:
        return await asyncio.wait_for(scenario, PATIENCE_S)

    return asyncio.run(bounded())


class Client:
    """Calls by name, with messages or with bytes. Failures raise grpc.aio.AioRpcError."""

    def __init__(self, plane: MirrorPlane, server: grpc.aio.Server, address: str, channel: grpc.aio.Channel):
        self.plane = plane
        self.server = server
        self.address = address
        self.channel = channel

    def call(self, name: str, request: Any, **options: Any) -> Any:
        """An awaitable call, which can be cancelled."""
        kind = getattr(protocol, f"{name}Response")
        method = self.channel.unary_unary(
            SERVICE + name, request_serializer=type(request).SerializeToString, response_deserializer=kind.FromString
        )
        return method(request, **{"timeout": PATIENCE_S, **options})

    async def send(self, name: str, body: bytes) -> bytes:
        """A call with any bytes for its message."""
        return await self.channel.unary_unary(SERVICE + name)(body, timeout=PATIENCE_S)

    async def infer(self, request: protocol.ModelInferRequest, **options: Any) -> protocol.ModelInferResponse:
        return await self.call("ModelInfer", request, **options)

    def stream(self, **options: Any) -> Any:
        method = self.channel.stream_stream(
            SERVICE + "ModelStreamInfer",
            request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
            response_deserializer=protocol.ModelStreamInferResponse.FromString,
        )
        return method(**{"timeout": PATIENCE_S, **options})


@asynccontextmanager
async def served(
    *,
    limits: Limits = DEFAULT_LIMITS,
    is_management: bool = True,
    token: str | None = None,
) -> AsyncIterator[Client]:
    plane = MirrorPlane()
    access = Access(() if token is None else (token,))
    server = make_server(plane, limits=limits, is_management=is_management, access=access)
    address = f"127.0.0.1:{bind(server, '127.0.0.1:0')}"
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
            yield Client(plane, server, address, channel)
    finally:
        await server.stop(0)


async def failure(call: Any) -> grpc.aio.AioRpcError:
    """The error that a call ends with."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call was answered")


def reason_of(error: grpc.aio.AioRpcError) -> str | None:
    return dict(error.trailing_metadata()).get("stretto-reason")


def raw_request(*arrays: np.ndarray, datatype: str = "FP32", model: str = "mirror", **fields: Any) -> Any:
    """A ModelInferRequest with raw contents; the inputs are called t0, t1, …; keyword arguments as its fields."""
    request = protocol.ModelInferRequest(model_name=model, **fields)
    for place, array in enumerate(arrays):
        request.inputs.add(name=f"t{place}", datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def classes_request(rows: int = 1, **fields: Any) -> Any:
    request = raw_request(np.ones((rows, 4), np.float32), model="classes", **fields)
    request.inputs[0].name = "x"
    return request


def text(value: str) -> protocol.InferParameter:
    return protocol.InferParameter(string_param=value)
