"""The few protobuf messages of the inference protocol that frames need, written and read by hand: no generated code
comes with the client. What comes from the server is bounded by its own length; fields that are not known are passed
over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from stretto.client.errors import BadAnswer

VARINT, DOUBLE, TEXT, FLOAT = 0, 1, 2, 5  # wire types
MAX_VARINT_BYTES = 10
WIDTHS = {DOUBLE: 8, FLOAT: 4}
Value = int | bytes | memoryview


# -- writing ---------------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    value &= 2**64 - 1  # a negative one is written as of 64 bits
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def text_field(number: int, value: str | bytes) -> bytes:
    """A string, bytes, or a message that was written before."""
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | TEXT) + varint(len(data)) + data


def parameter(key: str, value: bool | int | float | str) -> bytes:
    """An entry of a map of InferParameter, without its own field number."""
    if isinstance(value, bool):
        choice = varint(1 << 3 | VARINT) + varint(value)
    elif isinstance(value, int):
        choice = varint(2 << 3 | VARINT) + varint(value)
    elif isinstance(value, float):
        choice = varint(4 << 3 | DOUBLE) + struct.pack("<d", value)
    else:
        choice = text_field(3, value)
    return text_field(1, key) + text_field(2, choice)


def infer_request(
    application: str,
    request_id: str,
    parameters: Mapping[str, Any],
    tensor: tuple[str, str, tuple[int, ...], Mapping[str, Any]],
    raw: bytes | memoryview,
) -> bytes:
    """A ModelInferRequest with one input (name, datatype, shape, parameters) and its raw content."""
    name, datatype, shape, tensor_parameters = tensor
    entry = b"".join(
        (
            text_field(1, name),
            text_field(2, datatype),
            text_field(3, b"".join(map(varint, shape))),
            *(text_field(4, parameter(key, value)) for key, value in tensor_parameters.items()),
        )
    )
    parts = (
        text_field(1, application),
        text_field(3, request_id),
        *(text_field(4, parameter(key, value)) for key, value in parameters.items()),
        text_field(5, entry),
        varint(7 << 3 | TEXT),
        varint(len(raw)),
        raw,
    )
    return b"".join(parts)


# -- reading ---------------------------------------------------------------------------------------------------------


def fields(data: bytes | memoryview) -> Iterator[tuple[int, Value]]:
    """Number and value of each field; BadAnswer where it is no message."""
    view, place = memoryview(data), 0
    while place < len(view):
        key, place = _varint(view, place)
        wire_type = key & 7
        if wire_type == VARINT:
            value, place = _varint(view, place)
            yield key >> 3, value
            continue
        if wire_type == TEXT:
            width, place = _varint(view, place)
        elif wire_type in WIDTHS:
            width = WIDTHS[wire_type]
        else:
            raise _unsound()
        if width > len(view) - place:
            raise _unsound()
        yield key >> 3, view[place : place + width]
        place += width


def text(value: Value) -> str:
    if isinstance(value, int):
        raise _unsound()
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise _unsound() from None


def numbers(value: Value) -> list[int]:
    """Of a repeated int64, packed or a single one."""
    if isinstance(value, int):
        return [_signed(value)]
    integers, place, view = [], 0, memoryview(value)
    while place < len(view):
        number, place = _varint(view, place)
        integers.append(_signed(number))
    return integers


def parameter_of(entry: Value) -> tuple[str, Any]:
    """Key and value of a map entry of InferParameter."""
    key, value = "", None
    for number, content in fields(_message(entry)):
        if number == 1:
            key = text(content)
        elif number == 2:
            for choice, chosen in fields(_message(content)):
                value = _chosen(choice, chosen)
    return key, value


def _chosen(choice: int, value: Value) -> Any:
    if choice == 1:
        return bool(value)
    if choice == 2 and isinstance(value, int):
        return _signed(value)
    if choice == 3:
        return text(value)
    if choice == 4 and not isinstance(value, int) and len(value) == 8:
        return struct.unpack("<d", value)[0]
    return value if isinstance(value, int) else None


def _message(value: Value) -> bytes | memoryview:
    if isinstance(value, int):
        raise _unsound()
    return value


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _varint(view: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(MAX_VARINT_BYTES):
        if place >= len(view):
            raise _unsound()
        octet = view[place]
        place += 1
        value |= (octet & 0x7F) << 7 * shift
        if octet < 0x80:
            return value & 2**64 - 1, place
    raise _unsound()


def _unsound() -> BadAnswer:
    return BadAnswer("the server's message is not understood")
