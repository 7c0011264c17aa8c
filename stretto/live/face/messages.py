"""What a front end and the scheduler say to each other: arrays of numbers, and text in JSON for what is rare.

A message is a kind and a payload. Time crosses as time left, never as a clock. No tensor is ever in one of these, and
nothing that arrives is unpickled. A payload that cannot be read is a StrettoError, and the end of the link.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError

MAX_PAYLOAD = 16_000_000
MAX_ROWS = 65_535  # of one request
HEAD = struct.Struct("<II")  # a number of the message's own, and how many records follow
NO_VARIANT = 0xFFFF


class Kind(IntEnum):
    """To the scheduler, then from it."""

    HELLO = 1  # JSON: who this is
    SUBMIT = 2  # records SUBMIT, for the directory of the head's number; extras by position
    CANCEL = 3  # numbers of requests whose clients are gone
    CLOSED = 4  # JSON: requests that ended otherwise than the scheduler knows; see Closed. BOOKED is the answer
    COUNTS = 5  # JSON: what the front end counted itself, each second: so it also says that it lives
    PROBLEM = 7  # JSON: why it cannot start
    ASK = 9  # nothing: it wants to know STATISTICS
    ELSEWHERE = 8  # JSON: what leaves, by an edition of the directory, and is ready at another scheduler
    KNOWN = 10  # the number of the directory that it serves by now
    DIRECTORY = 11  # JSON: what is served at present, and by which numbers it is known
    ENDED = 12  # records ENDED; extras by position
    BOOKED = 13  # the number of a report of CLOSED, which came
    STATISTICS = 14  # JSON: of all applications
    DECISION = 15  # records DECISION: where rows are to be sent
    WORKERS = 16  # JSON: where workers take tensors, by number
    OPTIONS = 17  # JSON: what a front end on the scheduler's machine is to do; the first message there
    SETTINGS = 18  # JSON: what of that has changed
    PROGRESS = 19  # JSON: how far the scheduler's own start is
    STOP = 20  # nothing: answers that are on their way go out, then it ends
    TAKEN_UP = 21  # to the scheduler: the number of the settings that are in force there
    LISTENS = 22  # to the scheduler, on its machine: clients can connect


SUBMIT = np.dtype(
    [
        ("number", "<u8"),  # the front end's own, of this request; never used again
        ("left_ns", "<i8"),
        ("spent_ns", "<i8"),  # since it came, at the front end
        ("place", "<i8"),  # of its rows in the memory that is shared; -1: they are there alone
        ("application", "<u4"),  # by the directory
        ("rows", "<u4"),
        ("size", "<u4"),  # among the shapes of the application's input
        ("priority", "<i4"),
    ]
)
SUBMIT_RECORD = struct.Struct("<QqqqIIIi")  # the same, one at a time
ENDED = np.dtype(
    [
        ("number", "<u8"),
        ("queue_ns", "<i8"),
        ("run_ns", "<i8"),
        ("accuracy", "<f8"),  # expected, summed over the rows
        ("batch", "<u4"),
        ("variant", "<u2"),  # by the directory; NO_VARIANT: none, or several, which the extras name
        ("outcome", "<u2"),
    ]
)
ENDED_RECORD = struct.Struct("<QqqdIHH")  # the same, one at a time
# One run of neighbouring rows of one request. Those of one batch follow each other, in the order that they have there.
DECISION = np.dtype(
    [
        ("number", "<u8"),
        ("batch", "<u8"),
        ("worker", "<u4"),  # by its number
        ("row", "<u4"),
        ("rows", "<u4"),
        ("size", "<u2"),  # of the whole batch
        ("variant", "<u2"),  # by the directory
    ]
)
NUMBER = np.dtype("<u8")
NONSENSE = "the other side of a link spoke nonsense"

Extras = Mapping[int, Mapping[str, Any]]  # by position


def packed(dtype: np.dtype[Any], records: Sequence[Any], number: int = 0, extras: Extras | None = None) -> bytes:
    """Records, each a tuple in the order of the fields (or a number), behind a head of their own."""
    return joined([np.array(records, dtype).tobytes()], len(records), number, extras)


def joined(parts: Sequence[bytes], count: int, number: int = 0, extras: Extras | None = None) -> bytes:
    """So many records that are bytes already."""
    tail = json.dumps(extras, separators=(",", ":")).encode() if extras else b""
    return b"".join((HEAD.pack(number, count), *parts, tail))


def unpacked(dtype: np.dtype[Any], payload: bytes | memoryview) -> tuple[int, NDArray[Any], Extras]:
    """The head's number, the records and what there is beyond them."""
    number, count, extras = _read_head(dtype.itemsize, payload)
    records = np.frombuffer(payload, dtype, count, HEAD.size)
    records.setflags(write=False, align=False)  # wherever they lie: compiled code is for one kind of array
    return number, records, extras


def read_records(record: struct.Struct, payload: memoryview) -> tuple[Iterator[tuple[Any, ...]], Extras]:
    """The same one record at a time, for who looks at each: as tuples, for which an array takes twice as long."""
    _, count, extras = _read_head(record.size, payload)
    return record.iter_unpack(payload[HEAD.size : HEAD.size + count * record.size]), extras


def _read_head(record_bytes: int, payload: bytes | memoryview) -> tuple[int, int, Extras]:
    """The head's number, how many records there are, and what there is beyond them."""
    if len(payload) < HEAD.size:
        raise StrettoError(NONSENSE)
    number, count = HEAD.unpack_from(payload)
    end = HEAD.size + count * record_bytes
    if end > len(payload):
        raise StrettoError(NONSENSE)
    if end == len(payload):
        return number, count, {}
    content = plain(payload[end:])
    try:
        extras = {int(position): value for position, value in content.items()}
    except ValueError:
        raise StrettoError(NONSENSE) from None
    if not all(0 <= position < count and isinstance(value, dict) for position, value in extras.items()):
        raise StrettoError(NONSENSE)
    return number, count, extras


def text(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def plain(payload: bytes | memoryview) -> dict[str, Any]:
    """A JSON object."""
    try:
        content = json.loads(bytes(payload))
    except (ValueError, RecursionError):
        raise StrettoError(NONSENSE) from None
    if not isinstance(content, dict):
        raise StrettoError(NONSENSE)
    return content
