"""Images that are sent as bytes, for an ONNX graph that takes floats: they become numbers inside the graph.

So a GPU gets bytes, a quarter of what floats would be, and divides them itself. The graph's input gets another name and
type, and nodes in front make of it what the graph was exported for: a few bytes of protobuf, written into a copy of the
file in memory. Field numbers are those of onnx.proto; the onnx library is not needed.
"""

from __future__ import annotations

import io
import struct

from stretto.backends.model import BackendError
from stretto.backends.onnx_files import read_model
from stretto.backends.source import ModelSource
from stretto.core.errors import StrettoError
from stretto.core.protobuf import MAX_MESSAGE_BYTES, field, number_field
from stretto.repository.onnx_header import BYTES, ELEMENT_TYPES, GRAPH_INPUT, MODEL_GRAPH, OnnxTensor, Walk, read_tensor

AS_BYTES = "/bytes"  # behind the name of an input that takes bytes in place of floats
IS_INT, IS_TENSOR = 2, 4  # kinds of attribute
ELEMENTS = {name: number for number, name in ELEMENT_TYPES.items()}
FLOATS = ("float16", "float32", "float64")


def taking_bytes(source: ModelSource) -> bytes | None:
    """The model with an input NAME + AS_BYTES in place of NAME; None where that takes no floats."""
    assert source.file is not None and source.divide_by is not None
    content = read_model(source.file)
    if len(content) > MAX_MESSAGE_BYTES:
        raise BackendError(f"{source.label} is too large to take bytes; keep its weights in a file beside it")
    walk, start = Walk(io.BytesIO(content)), 0
    try:
        for number, wire, end in walk.fields(len(content)):
            if (number, wire) == (MODEL_GRAPH, BYTES):
                graph = _graph(walk, content, end, source.inputs[0].name, source.divide_by)
                return None if graph is None else content[:start] + field(MODEL_GRAPH, graph) + content[end:]
            start = end
    except StrettoError as error:
        raise BackendError(f"{source.label} {error}") from None
    return None


def _graph(walk: Walk, content: bytes, end: int, name: str, divide_by: float) -> bytes | None:
    begin = start = walk.file.tell()
    for number, wire, stop in walk.fields(end):
        if (number, wire) == (GRAPH_INPUT, BYTES):
            tensor = read_tensor(walk, stop)
            if tensor.name == name and tensor.dtype in FLOATS:
                nodes = _in_front(name, tensor.dtype, divide_by)
                return nodes + content[begin:start] + field(GRAPH_INPUT, _input(tensor)) + content[stop:end]
        start = stop
    return None


def _input(tensor: OnnxTensor) -> bytes:
    """ValueInfoProto{name, type{tensor_type{elem_type, shape{dim…}}}}; a dim without a value is free."""
    shape = b""
    if tensor.shape is not None:
        sizes = (b"" if size is None else number_field(1, size) for size in tensor.shape)
        shape = field(2, b"".join(field(1, size) for size in sizes))
    return field(1, (tensor.name + AS_BYTES).encode()) + field(2, field(1, number_field(1, ELEMENTS["uint8"]) + shape))


def _in_front(name: str, dtype: str, divide_by: float) -> bytes:
    """Nodes from the bytes to what the graph takes; half floats are divided as whole ones and rounded once."""
    wide = "float64" if dtype == "float64" else "float32"
    value = struct.pack("<d" if wide == "float64" else "<f", divide_by)
    tensor = number_field(2, ELEMENTS[wide]) + field(9, value)  # TensorProto{data_type, raw_data}, a scalar
    divided = name if wide == dtype else f"{name}{AS_BYTES}/divided"
    divisor, numbers = f"{name}{AS_BYTES}/divisor", f"{name}{AS_BYTES}/numbers"
    nodes = [
        _node("Constant", [], divisor, field(1, b"value") + field(5, tensor) + number_field(20, IS_TENSOR)),
        _node("Cast", [name + AS_BYTES], numbers, _cast_to(wide)),
        _node("Div", [numbers, divisor], divided),
    ]
    return b"".join(nodes + ([_node("Cast", [divided], name, _cast_to(dtype))] if divided != name else []))


def _cast_to(dtype: str) -> bytes:
    return field(1, b"to") + number_field(3, ELEMENTS[dtype]) + number_field(20, IS_INT)


def _node(kind: str, inputs: list[str], output: str, attribute: bytes = b"") -> bytes:
    """GraphProto{node: NodeProto{input…, output, op_type, attribute}}, without a name, which another may have."""
    content = b"".join(field(1, name.encode()) for name in inputs)
    content += field(2, output.encode()) + field(4, kind.encode())
    return field(1, content + (field(5, attribute) if attribute else b""))
