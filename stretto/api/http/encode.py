"""Responses and errors into bytes, with the headers that tell how to read them."""

from __future__ import annotations

import math
from typing import Any

import orjson

from stretto.api.datatypes import join_bytes
from stretto.api.errors import ApiError
from stretto.api.messages import InferResponse, OutputTensor
from stretto.api.shared_memory import parameters_of

# Headers of an answer are whole lines.
JSON_TYPE = b"content-type: application/json\r\n"
BINARY_TYPE = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"


def encode_response(response: InferResponse) -> tuple[bytes, bytes]:
    """Raw tensors follow the JSON part where an output is wanted so."""
    outputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for output in response.outputs:
        entry: dict[str, Any] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": output.array.shape,
        }
        if output.shared is not None:
            entry["parameters"] = parameters_of(output.shared)
        elif output.binary:
            data = _raw(output)
            parts.append(data)
            entry["parameters"] = {"binary_data_size": len(data)}
        else:
            entry["data"] = _listed(output)
        outputs.append(entry)
    content: dict[str, Any] = {
        "model_name": response.application,
        "model_version": response.version,
        "parameters": response.parameters,
        "outputs": outputs,
    }
    if response.id:
        content["id"] = response.id
    head = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    if not parts:
        return head, JSON_TYPE
    return b"".join((head, *parts)), BINARY_TYPE % len(head)


def _raw(output: OutputTensor) -> bytes:
    if output.datatype == "BYTES":
        return join_bytes(output.array.ravel().tolist())
    return output.array.tobytes()


def _listed(output: OutputTensor) -> Any:
    if output.datatype == "BYTES":
        return [text.decode("utf-8", "replace") for text in output.array.ravel().tolist()]
    if output.datatype == "FP16":
        return output.array.ravel().tolist()
    return output.array.ravel()


def encode_error(error: ApiError) -> tuple[int, bytes, bytes]:
    """Status, body and headers."""
    headers = JSON_TYPE
    if error.retry_after_s is not None:
        headers += b"retry-after: %d\r\n" % max(1, math.ceil(error.retry_after_s))
    content: dict[str, Any] = {
        "error": error.message.encode("utf-8", "replace").decode(),
        "reason": error.reason.word,
    }
    if error.parameters:
        content["parameters"] = error.parameters
    body = orjson.dumps(content)
    return error.reason.http_status, body, headers


def encode_json(content: Any) -> bytes:
    return orjson.dumps(content)
