"""What an ONNX file says about itself: its inputs, outputs and the files that hold its weights.

Walks the protobuf fields of the file and skips all weights, so a model of gigabytes takes milliseconds and neither onnx
nor onnxruntime is needed. Field numbers are those of onnx.proto. It proves no model sound: a backend does that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from stretto.core.errors import StrettoError

MAX_FIELDS = 2_000_000
MAX_TEXT = 65_536
VARINT, BYTES = 0, 2
FIXED = {1: 8, 5: 4}  # wire type → bytes
MODEL_GRAPH = 7
GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT = 5, 11, 12
TENSOR_NAME = 8
VALUE_NAME, VALUE_TYPE = 1, 2
TYPE_TENSOR, TYPE_SEQUENCE, TYPE_MAP = 1, 4, 5
OTHER_TYPES = {TYPE_SEQUENCE: "sequence", TYPE_MAP: "map", 8: "sparse tensor", 9: "optional value"}
SEQUENCE_ELEMENT = 1
TENSOR_ELEMENT, TENSOR_SHAPE = 1, 2
SHAPE_DIM = 1
DIM_VALUE = 1

ELEMENT_TYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
}
NUMBERS = frozenset(ELEMENT_TYPES.values())
OTHER_ELEMENTS = {8: "string", 14: "complex64", 15: "complex128", 16: "bfloat16"}


@dataclass(frozen=True)
class OnnxTensor:
    """An input or output. A size of None is free; a shape or dtype of None is not told. The dtype of what is no tensor
    of numbers is what it is in words.
    """

    name: str
    dtype: str | None
    shape: tuple[int | None, ...] | None

    @property
    def is_number(self) -> bool:
        """As far as it tells."""
        return self.dtype is None or self.dtype in NUMBERS


@dataclass(frozen=True)
class OnnxHeader:
    """`external` are the names of the files beside the model that hold its weights."""

    inputs: tuple[OnnxTensor, ...]
    outputs: tuple[OnnxTensor, ...]
    external: tuple[str, ...]


# Every way from a model to a tensor, which may name a file: by the kind of message, which field holds which kind.
INSIDE = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
MAX_DEPTH = 100  # of messages in messages, which is as much as protobuf reads
NODE_OPERATOR = 4
ENTRY_KEY, ENTRY_VALUE = 1, 2
IN_MEMORY = "_ORT_MEM_ADDR_"  # ONNX Runtime takes what stands behind such a name for an address in its own memory
OUTSIDE = "keeps weights in a file outside its folder; export it again with the weights beside it"


def external_files(file: BinaryIO) -> tuple[str, ...]:
    """The names of all files beside a model that tensors anywhere in it name: weights, constants, those of branches,
    loops and functions. StrettoError where one lies elsewhere.
    """
    size = file.seek(0, 2)
    file.seek(0)
    walk, names = Walk(file), set[str]()
    _gather(walk, "model", size, names, MAX_DEPTH)
    for name in names:
        beside = PurePosixPath(name)
        if not beside.parts or beside.is_absolute() or ".." in beside.parts or not name.isprintable():
            raise StrettoError(OUTSIDE)
        if IN_MEMORY in name:
            raise StrettoError("keeps weights at an address in memory; export it again")
    return tuple(sorted(names))


def _gather(walk: Walk, kind: str, end: int, names: set[str], depth: int) -> None:
    if depth == 0:
        raise _broken()
    inside = INSIDE[kind]
    for number, wire, stop in walk.fields(end):
        if wire != BYTES:
            continue
        if kind == "node" and number == NODE_OPERATOR and walk.text(stop) == "EPContext":
            raise StrettoError("holds parts that were compiled for one device, from any file; export it without them")
        if inside.get(number) == "entry":
            texts = {key: walk.text(stop) for key, entry_wire, stop in walk.fields(stop) if entry_wire == BYTES}
            if texts.get(ENTRY_KEY) == "location":
                names.add(texts.get(ENTRY_VALUE, ""))
        elif number in inside:
            _gather(walk, inside[number], stop, names, depth - 1)


def read_onnx_header(path: Path) -> OnnxHeader:
    """Refuses, in words without the file's name, what is no ONNX model or is cut short."""
    with path.open("rb") as file:
        if file.read(24).startswith(b"version https://git-lfs"):
            raise StrettoError("is a pointer of Git LFS, not the model; fetch it with: git lfs pull")
        external = external_files(file)
        size = file.seek(0, 2)
        file.seek(0)
        walk = Walk(file)
        contents = _Found()
        for number, wire, end in walk.fields(size):
            if (number, wire) == (MODEL_GRAPH, BYTES):
                contents.graphs += 1
                _graph(walk, end, contents)
    if contents.graphs != 1 or not contents.outputs:
        raise StrettoError("is no ONNX model; export it again")
    # Before version 4 of the format, weights stood among the inputs too.
    inputs = tuple(tensor for tensor in contents.inputs if tensor.name not in contents.weights)
    return OnnxHeader(inputs, tuple(contents.outputs), external)


@dataclass
class _Found:
    graphs: int = 0
    inputs: list[OnnxTensor] = field(default_factory=list)
    outputs: list[OnnxTensor] = field(default_factory=list)
    weights: set[str] = field(default_factory=set)


class Walk:
    """A cursor over the fields of nested messages. Whoever gets a field may leave the cursor anywhere inside it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.left = MAX_FIELDS
        self.value = 0  # of the number last seen

    def fields(self, end: int) -> Iterator[tuple[int, int, int]]:
        """(number, wire type, end of the field) of each field up to `end`."""
        while self.file.tell() < end:
            self.left -= 1
            if self.left < 0:
                raise StrettoError("has more parts than any real model; export it again")
            number, wire = divmod(self.varint(), 8)
            start = self.file.tell()
            if wire == VARINT:
                self.value = self.varint()
                stop = self.file.tell()
            elif wire == BYTES:
                length = self.varint()
                stop = self.file.tell() + length
            elif wire in FIXED:
                stop = start + FIXED[wire]
            else:
                raise _broken()
            if number == 0 or stop > end:
                raise _broken()
            yield number, wire, stop
            self.file.seek(stop)

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.file.read(1)
            if not byte:
                break
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return value
        raise _broken()

    def text(self, end: int) -> str:
        length = end - self.file.tell()
        if length > MAX_TEXT:
            raise _broken()
        content = self.file.read(length)
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            raise _broken() from None


def _broken() -> StrettoError:
    return StrettoError("is no ONNX model, or is cut off or damaged; copy or export it again")


def _graph(walk: Walk, end: int, contents: _Found) -> None:
    for number, wire, stop in walk.fields(end):
        if wire != BYTES:
            continue
        if number == GRAPH_INITIALIZER:
            _weight(walk, stop, contents)
        elif number == GRAPH_INPUT:
            contents.inputs.append(read_tensor(walk, stop))
        elif number == GRAPH_OUTPUT:
            contents.outputs.append(read_tensor(walk, stop))


def _weight(walk: Walk, end: int, contents: _Found) -> None:
    for number, wire, stop in walk.fields(end):
        if (number, wire) == (TENSOR_NAME, BYTES):
            contents.weights.add(walk.text(stop))


def read_tensor(walk: Walk, end: int) -> OnnxTensor:
    name, dtype, shape = "", None, None
    for number, wire, stop in walk.fields(end):
        if (number, wire) == (VALUE_NAME, BYTES):
            name = walk.text(stop)
        elif (number, wire) == (VALUE_TYPE, BYTES):
            for kind, kind_wire, kind_stop in walk.fields(stop):
                if (kind, kind_wire) == (TYPE_TENSOR, BYTES):
                    dtype, shape = _tensor_type(walk, kind_stop)
                elif kind_wire == BYTES and kind in OTHER_TYPES:
                    dtype = _other_type(walk, kind, kind_stop)
    return OnnxTensor(name, dtype, shape)


def _other_type(walk: Walk, kind: int, end: int) -> str:
    """In words; of a sequence also what it is of."""
    if kind == TYPE_SEQUENCE:
        for element, wire, stop in walk.fields(end):
            if (element, wire) == (SEQUENCE_ELEMENT, BYTES):
                inside = [part for part, part_wire, _ in walk.fields(stop) if part_wire == BYTES]
                if inside[:1] == [TYPE_MAP]:
                    return "sequence of maps"
    return OTHER_TYPES[kind]


def _tensor_type(walk: Walk, end: int) -> tuple[str | None, tuple[int | None, ...] | None]:
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    for number, wire, stop in walk.fields(end):
        if (number, wire) == (TENSOR_ELEMENT, VARINT):
            known = ELEMENT_TYPES | OTHER_ELEMENTS
            dtype = known.get(walk.value, f"ONNX element type {walk.value}")
        elif (number, wire) == (TENSOR_SHAPE, BYTES):
            shape = tuple(_size(walk, size) for number, _, size in walk.fields(stop) if number == SHAPE_DIM)
    return dtype, shape


def _size(walk: Walk, end: int) -> int | None:
    size: int | None = None
    for number, wire, _ in walk.fields(end):
        if (number, wire) == (DIM_VALUE, VARINT):
            size = walk.value if walk.value < 2**63 else None  # a negative number
    return size
