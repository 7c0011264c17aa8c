"""Fields of protobuf messages, written by hand: enough to add a little to an ONNX file without the onnx library, and to
write an answer from prepared bytes. (The client writes its own: it imports nothing of the server.)
"""

from __future__ import annotations

MAX_MESSAGE_BYTES = 2**31 - 1  # what one message may hold


def field(number: int, content: bytes) -> bytes:
    """A text, some bytes or a message."""
    return delimited(number, len(content)) + content


def delimited(number: int, length: int) -> bytes:
    """What stands before a field of so many bytes."""
    return varint(number << 3 | 2) + varint(length)


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    """A number that is not negative, seven bits a byte, low ones first."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
