"""How frames travel: over HTTP here, over a gRPC stream in frame_grpc.py. One transport serves one client."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol, TypeVar

from stretto.client.address import Request, endpoint_of, model_path
from stretto.client.answer import Answer, answer_of, content_of
from stretto.client.frame_input import FrameInput, FrameTensor, frame_input
from stretto.client.json_text import json_bytes
from stretto.client.metadata import application_metadata
from stretto.client.response import DEFAULT_MAX_ANSWER_BYTES
from stretto.client.streams import StreamPool, Transfer

CALL_NS = 10_000_000_000  # for a call without a frame
ACKNOWLEDGE = b"Stretto-Ack: 1\r\n"


class Message(Protocol):
    """A request, ready to be written."""

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        ...


M = TypeVar("M", bound=Message)


class Transport(Protocol[M]):
    """Every call raises StrettoClientError where it gets no answer."""

    @property
    def probe_bytes(self) -> int:
        """On the wire, of the message that `round_trip_ns` sends."""
        ...

    async def describe(self, application: str) -> FrameInput: ...

    def message(self, application: str, tensor: FrameTensor, parameters: dict[str, Any]) -> M: ...

    async def send(self, message: M, timeout_ns: int, transfer: Transfer) -> Answer:
        """One frame; `transfer` hears when it was written and when the server had it."""
        ...

    async def round_trip_ns(self) -> int:
        """How long a message takes there and back that has as few bytes as can be: no token, which the server does not
        ask for there, and which may have more bytes than a small frame.
        """
        ...

    async def close(self) -> None: ...


class HttpFrames:
    """A frame is one request on a connection of its own; connections are kept."""

    def __init__(self, url: str, token: str | None, ca_file: str | Path | None, max_connections: int) -> None:
        self._pool = StreamPool(endpoint_of(url, token, ca_file), max_connections, DEFAULT_MAX_ANSWER_BYTES)
        self._probe = endpoint_of(url).get("/v2/health/live")

    @property
    def probe_bytes(self) -> int:
        return self._probe.size

    async def describe(self, application: str) -> FrameInput:
        content = content_of(await self._pool.send(self._pool.endpoint.get(model_path(application)), CALL_NS))
        metadata = application_metadata(content)
        listed = content["inputs"][0].get("parameters") if metadata.inputs else None
        return frame_input(metadata, listed if isinstance(listed, dict) else {})

    def message(self, application: str, tensor: FrameTensor, parameters: dict[str, Any]) -> Request:
        tensor_parameters: dict[str, Any] = {"binary_data_size": len(tensor.raw)}
        if tensor.encoding:
            tensor_parameters["encoding"] = tensor.encoding
        text = json_bytes(
            {
                "inputs": [
                    {
                        "name": tensor.name,
                        "datatype": tensor.datatype,
                        "shape": tensor.shape,
                        "parameters": tensor_parameters,
                    }
                ],
                "parameters": {"binary_data_output": True, **parameters},
            }
        )
        path = model_path(application, leaf="infer")
        return self._pool.endpoint.post(path, (text, tensor.raw), len(text), ACKNOWLEDGE)

    async def send(self, message: Request, timeout_ns: int, transfer: Transfer) -> Answer:
        return answer_of(await self._pool.send(message, timeout_ns, transfer))

    async def round_trip_ns(self) -> int:
        """Whatever the status of the answer. The time that a connection takes to open does not count."""
        transfer = Transfer(lambda: None)
        await self._pool.send(self._probe, CALL_NS, transfer)
        assert transfer.started_ns is not None
        return time.monotonic_ns() - transfer.started_ns

    async def close(self) -> None:
        await self._pool.close()
