"""From a ModelInferRequest to the data plane's request. Every number in it is checked before it is used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from stretto.api.datatypes import numpy_dtype, parse_bytes
from stretto.api.errors import bad_request, too_large
from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.grpc import wire
from stretto.api.limits import Limits
from stretto.api.messages import Array, InferRequest, InputTensor, WantedOutput
from stretto.api.shared_memory import placeholder, span_in

# The field of typed contents that each datatype takes; there is none for FP16.
CONTENTS_OF = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
# The field's own type, where it is wider than that of some datatype which it carries.
WIDE = {"int_contents": np.dtype("<i4"), "uint_contents": np.dtype("<u4")}
TYPED_VALUES = 1_000_000  # of one request; see wire.TYPED_BYTES

M = TypeVar("M", bound=Message)


def parse(kind: type[M], body: bytes, at_most: int) -> M:
    """A message of a call that carries no tensors."""
    if len(body) > at_most:
        raise too_large(f"the message has {len(body)} bytes; this call takes at most {at_most}")
    return parsed(kind, body)


def parsed(kind: type[M], body: bytes) -> M:
    try:
        return kind.FromString(body)
    except DecodeError:
        raise wire.malformed() from None


def infer_request(body: bytes, limits: Limits) -> InferRequest:
    """The request that a message of ModelInfer holds. Its tensors are views of the message where that can be."""
    split = wire.split(body, limits)
    message = parsed(protocol.ModelInferRequest, split.message)
    if len(message.id) > limits.id_length:
        raise bad_request(f"the id has {len(message.id)} characters; at most {limits.id_length} are allowed")
    inputs = list(message.inputs)
    sent = sum(not is_shared(tensor) for tensor in inputs)
    if split.raw and len(split.raw) != sent:
        hint = "; those in shared memory have none" if sent < len(inputs) else ""
        raise bad_request(f"there are {sent} inputs but {len(split.raw)} raw_input_contents{hint}")
    hold_slow_values(inputs, is_raw=bool(split.raw))
    raw = iter(split.raw)
    return InferRequest(
        sent_bytes=len(body),
        application=held_name(message.model_name, "the model", limits),
        version=held_name(message.model_version, "the version", limits) if message.model_version else "",
        id=message.id,
        inputs=[input_tensor(tensor, body, raw, limits) for tensor in inputs],
        outputs=[wanted_output(output, limits) for output in message.outputs],
        parameters=parameter_values(message.parameters, "the request", limits),
    )


def hold_slow_values(inputs: Iterable[protocol.ModelInferRequest.InferInputTensor], is_raw: bool) -> None:
    """Strings and typed values are taken one by one, and nothing else is served meanwhile: hold their number."""
    strings, typed = 0, 0
    for tensor in inputs:
        # A negative extent is refused later; here it must not make up for a large one.
        count = abs(math.prod(tensor.shape))
        strings += count if tensor.datatype == "BYTES" else 0
        typed += 0 if is_raw or is_shared(tensor) else count
    if strings > wire.STRINGS:
        raise too_large(f"the request has {strings} strings; at most {wire.STRINGS} are allowed")
    if typed > TYPED_VALUES:
        raise too_large(
            f"the request has {typed} values in typed contents; above {TYPED_VALUES}, use raw_input_contents"
        )


def is_shared(tensor: protocol.ModelInferRequest.InferInputTensor) -> bool:
    """Its values are in shared memory. A parameter without any value is as good as not given."""
    region = "shared_memory_region"
    return region in tensor.parameters and tensor.parameters[region].WhichOneof("parameter_choice") is not None


def input_tensor(
    tensor: protocol.ModelInferRequest.InferInputTensor, body: bytes, raws: Iterator[wire.Span], limits: Limits
) -> InputTensor:
    """`raws` are the raw contents that no earlier input has taken."""
    name = held_name(tensor.name, "an input", limits)
    encoding, shared = "", None
    if tensor.parameters:
        parameters = parameter_values(tensor.parameters, f"tensor {name}", limits)
        shared = span_in(parameters, name)
        encoding = parameters.get("encoding", "")
        if not isinstance(encoding, str) or len(encoding) > limits.name_length:
            raise bad_request(f'encoding of tensor {name} must be a word, as "png"')
    numpy_dtype(tensor.datatype, name)
    shape = list(tensor.shape)
    count = element_count(shape, name, limits)
    if shared is not None:
        if tensor.contents.ListFields():
            raise bad_request(f"tensor {name} is in shared memory, and has contents besides: only one may be given")
        return InputTensor(name, tensor.datatype, placeholder(tensor.datatype, tuple(shape)), encoding, shared)
    raw = next(raws, None)
    if raw is None:
        array = typed_array(tensor, name, count)
    elif tensor.HasField("contents") and tensor.contents.ListFields():
        raise bad_request(f"tensor {name} has contents of its own beside raw_input_contents: only one may be given")
    else:
        array = raw_array(body, raw, tensor.datatype, name, count)
    return InputTensor(name, tensor.datatype, array.reshape(shape), encoding)


def element_count(shape: list[int], name: str, limits: Limits) -> int:
    """How many elements a shape has, which is never more than a message has bytes."""
    if len(shape) > limits.dimensions:
        raise bad_request(f"tensor {name} has {len(shape)} dimensions; at most {limits.dimensions} are allowed")
    count, room = 1, 1
    for extent in shape:
        if extent < 0:
            raise bad_request(f"tensor {name} has the shape {shape}; an extent cannot be negative")
        count *= extent
        # Also beside an extent of 0: numpy multiplies the others all the same.
        room *= max(extent, 1)
        if room > max(limits.body_bytes, limits.inflated_bytes):
            raise too_large(f"tensor {name} has the shape {shape}, which is more than a message can hold")
    return count


def raw_array(body: bytes, raw: wire.Span, datatype: str, name: str, count: int) -> Array:
    start, end = raw
    if datatype == "BYTES":
        return parse_bytes(memoryview(body)[start:end], count, name)
    dtype = numpy_dtype(datatype, name)
    if count * dtype.itemsize != end - start:
        raise bad_request(
            f"tensor {name} holds {end - start} bytes, but its shape and datatype need {count * dtype.itemsize}"
        )
    if dtype == np.bool_:
        octets = np.frombuffer(body, np.uint8, count, start)
        if count and octets.max() > 1:
            raise bad_request(f"tensor {name} is BOOL but has bytes other than 0 and 1")
        return octets.view(np.bool_)
    array: Array = np.frombuffer(body, dtype, count, start)
    # Compiled code below may take alignment for granted, and where a tensor begins in a message is chance.
    return array if array.flags.aligned else array.copy()


def typed_array(tensor: protocol.ModelInferRequest.InferInputTensor, name: str, count: int) -> Array:
    field_name = CONTENTS_OF.get(tensor.datatype)
    if field_name is None:
        raise bad_request(f"tensor {name} is {tensor.datatype}, which has no typed contents: use raw_input_contents")
    given = [descriptor.name for descriptor, _ in tensor.contents.ListFields()]
    if any(other != field_name for other in given):
        raise bad_request(
            f"tensor {name} is {tensor.datatype}, which belongs in {field_name}, not in {', '.join(given)}"
        )
    values = getattr(tensor.contents, field_name)
    if len(values) != count:
        raise bad_request(f"tensor {name} holds {len(values)} values, but its shape needs {count}")
    dtype = numpy_dtype(tensor.datatype, name)
    if tensor.datatype == "BYTES":
        strings = np.empty(count, object)
        strings[:] = list(values)
        return strings
    wide = np.fromiter(values, WIDE.get(field_name, dtype), count)
    narrow = wide.astype(dtype, copy=False)
    if wide.dtype != dtype and not np.array_equal(narrow, wide):
        raise bad_request(f"tensor {name} has values that {tensor.datatype} cannot hold")
    return narrow


def wanted_output(output: protocol.ModelInferRequest.InferRequestedOutputTensor, limits: Limits) -> WantedOutput:
    name = held_name(output.name, "a wanted output", limits)
    parameters = parameter_values(output.parameters, f"output {name}", limits)
    classes = parameters.get("classification", 0)
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 0:
        raise bad_request(f"classification of output {name} is not a whole number of at least 0")
    return WantedOutput(name, classes, shared=span_in(parameters, name))


def parameter_values(parameters: Mapping[str, protocol.InferParameter], owner: str, limits: Limits) -> dict[str, Any]:
    """Parameters as Python values; one without any value is as good as not given."""
    if len(parameters) > limits.parameters:
        raise bad_request(f"{owner} has {len(parameters)} parameters; at most {limits.parameters} are allowed")
    values = {}
    for key, parameter in parameters.items():
        held_name(key, "a parameter", limits)
        choice = parameter.WhichOneof("parameter_choice")
        if choice is not None:
            values[key] = getattr(parameter, choice)
    return values


def held_name(name: str, what: str, limits: Limits) -> str:
    if not name:
        raise bad_request(f"{what} has no name")
    if len(name) > limits.name_length:
        raise bad_request(f"the name of {what} has {len(name)} characters; at most {limits.name_length} are allowed")
    return name
