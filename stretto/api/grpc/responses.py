"""From the data plane's answers to the protocol's messages. Tensors are always raw and are copied once."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import Message

from stretto.api.datatypes import NUMPY_OF, join_bytes
from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.messages import Array, InferResponse, OutputTensor
from stretto.api.shared_memory import parameters_of
from stretto.core.protobuf import delimited

ACKNOWLEDGE = "ack"  # of a request: it wants to know when it has come; of a message in a stream: it has
RAW_OUTPUTS, STREAMED_RESPONSE = 6, 2  # field numbers of open_inference.proto

M = TypeVar("M", bound=Message)


def infer_response(response: InferResponse) -> bytes:
    """A serialized ModelInferResponse. The raw tensors are its last fields, so they are put behind the rest."""
    message = protocol.ModelInferResponse(
        model_name=response.application, model_version=response.version, id=response.id
    )
    fill(message.parameters, response.parameters)
    parts: list[bytes | memoryview] = [b""]
    for output in response.outputs:
        output_message = message.outputs.add(name=output.name, datatype=output.datatype, shape=output.array.shape)
        content: bytes | memoryview = b""  # also where nothing is sent: it holds the place of this output
        if output.shared is None:
            content = raw_content(output)
        else:
            fill(output_message.parameters, parameters_of(output.shared))
        parts += (delimited(RAW_OUTPUTS, len(content)), content)
    parts[0] = message.SerializeToString()
    return b"".join(parts)


def streamed(response: bytes) -> bytes:
    """A serialized ModelStreamInferResponse around a serialized ModelInferResponse."""
    return delimited(STREAMED_RESPONSE, len(response)) + response


def streamed_acknowledgement(request_id: str) -> bytes:
    """The whole request has come; its answer follows in a message of its own. Only for those that ask for it."""
    response = protocol.ModelStreamInferResponse()
    response.infer_response.id = request_id
    response.infer_response.parameters[ACKNOWLEDGE].bool_param = True
    return response.SerializeToString()


def streamed_error(request_id: str, message: str, parameters: Mapping[str, Any]) -> bytes:
    """A request of a stream that gets no answer. The id says which one; `parameters` say why."""
    response = protocol.ModelStreamInferResponse(error_message=message)
    response.infer_response.id = request_id
    fill(response.infer_response.parameters, parameters)
    return response.SerializeToString()


def raw_content(output: OutputTensor) -> bytes | memoryview:
    if output.datatype == "BYTES":
        return join_bytes(output.array.ravel())
    array: Array = np.ascontiguousarray(output.array, NUMPY_OF[output.datatype])
    return array.reshape(-1).view(np.uint8).data


def fill(parameters: Any, values: Mapping[str, Any]) -> None:
    """Values into a map of InferParameter."""
    for key, value in values.items():
        if isinstance(value, bool):
            parameters[key].bool_param = value
        elif isinstance(value, Integral):
            parameters[key].int64_param = int(value)
        elif isinstance(value, Real):
            parameters[key].double_param = float(value)
        else:
            parameters[key].string_param = str(value)


def from_json(kind: type[M], layout: Mapping[str, Any]) -> M:
    """A message from its JSON layout; what open_inference.proto leaves out is left out."""
    return json_format.ParseDict(layout, kind(), ignore_unknown_fields=True)
