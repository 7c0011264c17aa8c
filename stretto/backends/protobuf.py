"""Fields of protobuf messages, written by hand: enough to add a little to an ONNX file without the onnx library."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 2**31 - 1  # what one message may hold


def field(number: int, content: bytes) -> bytes:
    """A text, some bytes or a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def number_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
