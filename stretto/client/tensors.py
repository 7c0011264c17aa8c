"""The protocol's tensor types as numpy arrays. Nothing is ever unpickled; no length is believed unchecked."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.client.errors import BadAnswer, BadRequest

Array = NDArray[Any]

# Little-endian, as the protocol sends them. BYTES is an object array of bytes.
NUMPY_OF: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}
MAX_DIMENSIONS = 32
LENGTH = struct.Struct("<I")


def cast(array: Array, datatype: str, tensor: str) -> Array:
    """The array in the declared type, contiguous; BadRequest where that would change what it says."""
    dtype = NUMPY_OF.get(datatype)
    if dtype is None:
        raise BadRequest(f"input {tensor} has datatype {datatype[:20]!r}, which this client does not know")
    if datatype == "BYTES":
        if array.dtype.kind not in "USO":
            raise BadRequest(f"input {tensor} takes strings or bytes, not {array.dtype}")
        return array
    if not _fits(array, dtype):
        raise BadRequest(
            f"input {tensor} takes {datatype}, and casting it from {array.dtype} would lose values; cast it yourself"
        )
    with np.errstate(over="ignore"):
        made = np.asarray(array, dtype=dtype, order="C")
    if made.dtype.kind == "f" and not np.can_cast(array.dtype, made.dtype):
        # Fewer digits are what a smaller type means; infinity in place of a number is not.
        grown = np.isinf(made)
        if grown.any() and not np.array_equal(grown, np.isinf(array)):
            raise BadRequest(f"input {tensor} takes {datatype}, which has no room for its largest values")
    return made


def _fits(array: Array, dtype: np.dtype[Any]) -> bool:
    given = array.dtype
    if given.kind not in "biuf":
        return False
    if dtype.kind == "f":
        return True
    if dtype.kind == "b" or given.kind == "f":
        return given.kind == dtype.kind
    if given.kind == "b" or np.can_cast(given, dtype, "safe") or not array.size:
        return True
    bounds = np.iinfo(dtype)
    return bool(int(array.min()) >= bounds.min and int(array.max()) <= bounds.max)


def raw_of(array: Array, datatype: str) -> bytes | memoryview:
    """The bytes on the wire of an array that `cast` made."""
    if datatype != "BYTES":
        return array.reshape(-1).view(np.uint8).data
    pieces: list[bytes] = []
    for item in array.ravel().tolist():
        if not isinstance(item, str | bytes):
            raise BadRequest(f"a BYTES input holds strings or bytes, not {type(item).__name__}")
        text = item.encode() if isinstance(item, str) else item
        pieces += (LENGTH.pack(len(text)), text)
    return b"".join(pieces)


def checked_shape(shape: Any, tensor: str) -> tuple[int, ...]:
    if not (
        isinstance(shape, list)
        and len(shape) <= MAX_DIMENSIONS
        and all(type(size) is int and 0 <= size < 2**40 for size in shape)
    ):
        raise BadAnswer(f"the answer gives no sound shape for output {tensor}")
    return tuple(shape)


def array_of_raw(datatype: str, shape: tuple[int, ...], raw: memoryview, tensor: str) -> Array:
    """An array of its own: aligned, writable, and not holding the whole answer in memory."""
    dtype = NUMPY_OF[datatype]
    count = math.prod(shape)
    if datatype == "BYTES":
        return _strings(raw, count, tensor).reshape(shape)
    if count * dtype.itemsize != len(raw):
        raise BadAnswer(f"output {tensor} has {len(raw)} bytes for {count} values of {datatype}")
    return np.frombuffer(raw, dtype).reshape(shape).copy()


def array_of_data(datatype: str, shape: tuple[int, ...], data: Any, tensor: str) -> Array:
    """From a JSON list: flat, or nested as the shape says."""
    if not isinstance(data, list):
        raise BadAnswer(f"the answer holds no data for output {tensor}")
    try:
        if datatype == "BYTES":
            flat = [item.encode() for item in _flat(data)]
            made = np.empty(len(flat), object)
            made[:] = flat
        else:
            made = np.array(data, dtype=NUMPY_OF[datatype])
        return made.reshape(shape)
    except (ValueError, TypeError, OverflowError, AttributeError, RecursionError):
        raise BadAnswer(f"the data of output {tensor} do not fit its datatype {datatype} and shape") from None


def _flat(data: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for item in data:
        flat += _flat(item) if isinstance(item, list) else (item,)
    return flat


def _strings(raw: memoryview, count: int, tensor: str) -> Array:
    """`count` strings, each behind its length in four bytes."""
    if count * LENGTH.size > len(raw):
        raise BadAnswer(f"output {tensor} is cut short")
    strings = np.empty(count, object)
    place = 0
    for number in range(count):
        if place + LENGTH.size > len(raw):
            raise BadAnswer(f"output {tensor} is cut short")
        (length,) = LENGTH.unpack_from(raw, place)
        place += LENGTH.size
        if length > len(raw) - place:
            raise BadAnswer(f"output {tensor} is cut short")
        strings[number] = bytes(raw[place : place + length])
        place += length
    if place != len(raw):
        raise BadAnswer(f"output {tensor} goes on after its last string")
    return strings
