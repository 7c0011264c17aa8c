"""The protocol's tensor types and numpy's, and the encoding of BYTES."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from stretto.api.errors import bad_request
from stretto.api.messages import Array

NUMPY_OF: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}
DATATYPE_OF: dict[str, str] = {dtype.name: name for name, dtype in NUMPY_OF.items()}
LENGTH = struct.Struct("<I")


def numpy_dtype(datatype: str, tensor: str) -> np.dtype[Any]:
    """The numpy type of a datatype; a 400 where there is none."""
    dtype = NUMPY_OF.get(datatype)
    if dtype is None:
        raise bad_request(f"tensor {tensor} has datatype {datatype[:20]!r}; known are {', '.join(NUMPY_OF)}")
    return dtype


def parse_bytes(data: memoryview | bytes, count: int, tensor: str) -> Array:
    """`count` strings, each behind its length in four bytes."""
    if len(data) < LENGTH.size * count:
        raise bad_request(f"tensor {tensor} holds {len(data)} bytes, too few for {count} strings with their lengths")
    data = bytes(data)
    strings: list[bytes] = []
    place, end = 0, len(data)
    for number in range(count):
        start = place + LENGTH.size
        if start > end:
            raise bad_request(f"tensor {tensor} ends within its string {number}")
        place = start + LENGTH.unpack_from(data, place)[0]
        if place > end:
            raise bad_request(
                f"string {number} of tensor {tensor} has length {place - start}, but {end - start} are left"
            )
        strings.append(data[start:place])
    if place != end:
        raise bad_request(f"tensor {tensor} goes on {end - place} bytes after its last string")
    array = np.empty(count, object)
    array[:] = strings
    return array


def join_bytes(strings: Iterable[bytes]) -> bytes:
    """The encoding of BYTES: each string behind its length in four bytes."""
    return b"".join(LENGTH.pack(len(text)) + text for text in strings)
