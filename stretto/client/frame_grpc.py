"""Frames over one gRPC stream (ModelStreamInfer): requests go one way, acknowledgements and answers come back by id."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import grpc.aio

from stretto.client import grpc_wire as wire
from stretto.client.answer import Answer, answer_of_parts
from stretto.client.errors import BY_REASON, BadAnswer, ConnectionFailed, Expired, Failed, StrettoClientError, printable
from stretto.client.frame_input import FrameInput, FrameTensor, frame_input
from stretto.client.metadata import ApplicationMetadata, TensorMetadata
from stretto.client.response import DEFAULT_MAX_ANSWER_BYTES
from stretto.client.streams import Transfer
from stretto.client.tensors import NUMPY_OF, Array, array_of_raw, checked_shape
from stretto.core.errors import StrettoError

SERVICE = "/inference.GRPCInferenceService/"
CALL_S = 10.0
# Bytes of HTTP/2 around what is sent, as gRPC's own library writes them: the head of a message and of its frame, two
# window updates, which go with every message, and a call's headers, once both sides have them in their tables.
MESSAGE_BYTES = 14 + 2 * 13
PROBE_BYTES = 18 + MESSAGE_BYTES  # of a call with an empty message and without a token
REFUSED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
SAID = 0  # the status of an error that a server said, which has no HTTP status


@dataclass(frozen=True)
class StreamMessage:
    """A serialized ModelInferRequest."""

    id: str
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data) + MESSAGE_BYTES


@dataclass
class _Waiting:
    answer: asyncio.Future[Answer]
    transfer: Transfer


class GrpcFrames:
    """The stream is opened before the first frame, whose time its headers would take too, and anew after it broke."""

    probe_bytes = PROBE_BYTES

    def __init__(self, url: str, token: str | None, ca_file: str | Path | None) -> None:
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._channel = _channel(url, ca_file)
        self._shown = url
        self._numbers = itertools.count()
        self._waiting: dict[str, _Waiting] = {}
        self._stream: Any = None
        self._reading: asyncio.Task[None] | None = None

    async def describe(self, application: str) -> FrameInput:
        name = wire.text_field(1, application)
        metadata = _metadata(await self._call("ModelMetadata", name))
        described = frame_input(metadata, _image_parameters(await self._call("ModelConfig", name)))
        self._opened()
        return described

    def message(self, application: str, tensor: FrameTensor, parameters: dict[str, Any]) -> StreamMessage:
        number = str(next(self._numbers))
        tensor_parameters = {"encoding": tensor.encoding} if tensor.encoding else {}
        given = {"ack": True, **parameters}
        described = tensor.name, tensor.datatype, tensor.shape, tensor_parameters
        return StreamMessage(number, wire.infer_request(application, number, given, described, tensor.raw))

    async def send(self, message: StreamMessage, timeout_ns: int, transfer: Transfer) -> Answer:
        waiting = _Waiting(asyncio.get_running_loop().create_future(), transfer)
        self._waiting[message.id] = waiting
        try:
            async with asyncio.timeout(timeout_ns / 1e9):
                stream = self._opened()
                transfer.started()
                await stream.write(message.data)
                return await waiting.answer
        except TimeoutError:
            raise Expired("no answer came within the SLO and the grace; this client stopped waiting") from None
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            raise self._broken(error) from None
        finally:
            self._waiting.pop(message.id, None)
            if waiting.answer.done() and not waiting.answer.cancelled():
                waiting.answer.exception()  # somebody looked

    async def round_trip_ns(self) -> int:
        begun_ns = time.monotonic_ns()
        try:
            await self._channel.unary_unary(SERVICE + "ServerLive")(b"", timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            if error.code() not in REFUSED:  # by what stands before the server, which asks for a token everywhere
                raise self._broken(error) from None
        return time.monotonic_ns() - begun_ns

    async def close(self) -> None:
        self._end(ConnectionFailed("this client is closed"))
        await self._channel.close()

    def _opened(self) -> Any:
        if self._stream is None or self._stream.done():
            method = self._channel.stream_stream(SERVICE + "ModelStreamInfer")
            self._stream = method(metadata=self._metadata)
            self._reading = asyncio.get_running_loop().create_task(self._read(self._stream))
        return self._stream

    async def _read(self, stream: Any) -> None:
        problem: StrettoClientError = ConnectionFailed("the server ended the stream")
        try:
            while (data := await stream.read()) is not grpc.aio.EOF:
                self._heard(data)
        except BadAnswer as error:
            problem = error
        except grpc.aio.AioRpcError as error:
            problem = self._broken(error)
        if self._stream is stream:
            stream.cancel()
            self._stream = None
            self._fail(problem)

    def _heard(self, data: bytes) -> None:
        said, response = "", b""
        for number, value in wire.fields(data):
            if number == 1:
                said = wire.text(value)
            elif number == 2 and not isinstance(value, int):
                response = bytes(value)
        request_id, parameters, outputs = _response(response)
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return  # it was given up
        if parameters.get("ack") is True:
            waiting.transfer.acknowledged()
        elif waiting.answer.done():
            return
        elif said:
            waiting.answer.set_exception(_error(said, parameters))
        else:
            waiting.answer.set_result(answer_of_parts(outputs, parameters, request_id))

    def _fail(self, problem: StrettoClientError) -> None:
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(problem)

    def _end(self, problem: StrettoClientError) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()
        if self._reading is not None:
            self._reading.cancel()
        self._fail(problem)

    def _broken(self, error: BaseException) -> StrettoClientError:
        if not isinstance(error, grpc.aio.AioRpcError):
            return ConnectionFailed("the stream broke before the answer was complete")
        trailing = {key: value for key, value in error.trailing_metadata() or () if isinstance(value, str)}
        reason, details = trailing.get("stretto-reason"), printable(error.details() or error.code().name)
        if reason in BY_REASON:
            return _error(details, {"reason": reason})
        return ConnectionFailed(f"{self._shown} cannot be reached, or the stream broke ({details})")

    async def _call(self, name: str, data: bytes) -> bytes:
        try:
            answer: bytes = await self._channel.unary_unary(SERVICE + name)(
                data, timeout=CALL_S, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise self._broken(error) from None
        return answer


def _error(said: str, parameters: dict[str, Any]) -> StrettoClientError:
    kind = BY_REASON.get(str(parameters.get("reason")), Failed)
    error = kind(printable(said), SAID)
    error.parameters = {key: value for key, value in parameters.items() if key != "reason"}
    return error


def _channel(url: str, ca_file: str | Path | None) -> grpc.aio.Channel:
    parts = urlsplit(url)
    if parts.scheme not in ("grpc", "grpcs") or not parts.netloc or parts.username is not None or parts.path.strip("/"):
        raise StrettoError(f"{url[:80]!r} is no URL of a gRPC server; write it as grpc://127.0.0.1:8001")
    options = [
        ("grpc.max_receive_message_length", DEFAULT_MAX_ANSWER_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.http2.bdp_probe", 0),  # its pings would go with some frames and not with others
    ]
    if parts.scheme == "grpc":
        if ca_file is not None:
            raise StrettoError("a CA file belongs to a grpcs:// URL; change the URL or leave the CA file out")
        return grpc.aio.insecure_channel(parts.netloc, options)
    try:
        roots = None if ca_file is None else Path(ca_file).read_bytes()
    except OSError as error:
        raise StrettoError(f"the CA file {ca_file} cannot be read ({error.strerror})") from None
    return grpc.aio.secure_channel(parts.netloc, grpc.ssl_channel_credentials(roots), options)


# -- messages --------------------------------------------------------------------------------------------------------


def _metadata(data: bytes) -> ApplicationMetadata:
    """ModelMetadataResponse: name 1, versions 2, platform 3, inputs 4, outputs 5."""
    name, versions, tensors = "", [], {4: [], 5: []}  # type: ignore[var-annotated]
    for number, value in wire.fields(data):
        if number == 1:
            name = wire.text(value)
        elif number == 2:
            versions.append(wire.text(value))
        elif number in tensors and not isinstance(value, int):
            tensors[number].append(TensorMetadata(*_tensor(value)[:3]))
    return ApplicationMetadata(name, tuple(versions), tuple(tensors[4]), tuple(tensors[5]))


def _tensor(data: bytes | memoryview) -> tuple[str, str, tuple[int, ...]]:
    name, datatype, shape = "", "", []  # type: ignore[var-annotated]
    for number, value in wire.fields(data):
        if number == 1:
            name = wire.text(value)
        elif number == 2:
            datatype = wire.text(value)
        elif number == 3:
            shape += wire.numbers(value)
    return name, datatype, tuple(shape)


def _image_parameters(data: bytes) -> dict[str, Any]:
    """ModelConfigResponse: config 1, whose parameters are 14, a map to messages with a text of number 1."""
    parameters: dict[str, Any] = {}
    for config in _messages(data, 1):
        for entry in _messages(config, 14):
            key = next((wire.text(value) for number, value in wire.fields(entry) if number == 1), "")
            for content in _messages(entry, 2):
                parameters[key] = next((wire.text(value) for number, value in wire.fields(content) if number == 1), "")
    with contextlib.suppress(KeyError, ValueError):
        parameters["divide_by"] = float(parameters["divide_by"])
    return parameters


def _messages(data: bytes | memoryview, wanted: int) -> list[bytes | memoryview]:
    return [value for number, value in wire.fields(data) if number == wanted and not isinstance(value, int)]


def _response(data: bytes) -> tuple[str, dict[str, Any], dict[str, Array]]:
    """ModelInferResponse: id 3, parameters 4, outputs 5, raw contents 6."""
    request_id, parameters, described, raws = "", {}, [], []  # type: ignore[var-annotated]
    for number, value in wire.fields(data):
        if number == 3:
            request_id = wire.text(value)
        elif number == 4:
            key, content = wire.parameter_of(value)
            parameters[key] = content
        elif number == 5 and not isinstance(value, int):
            described.append(_tensor(value))
        elif number == 6 and not isinstance(value, int):
            raws.append(memoryview(value))
    if len(described) != len(raws):
        raise BadAnswer("the answer does not hold what it describes")
    outputs = {}
    for (name, datatype, shape), raw in zip(described, raws, strict=True):
        if datatype not in NUMPY_OF:
            raise BadAnswer("an output of the answer is not understood")
        outputs[name] = array_of_raw(datatype, checked_shape(list(shape), name), raw, name)
    return request_id, parameters, outputs
