"""What a worker process and the server say to each other: small frames on a socket. Tensors go through shared memory.

A frame is its length, one byte for its kind, three numbers, and text in JSON where there is more to say. Nothing that
arrives is ever unpickled.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from stretto.backends.model import TensorSpec
from stretto.backends.source import ModelSource
from stretto.core.errors import StrettoError
from stretto.live.shelf import ModelSpec

HEAD = struct.Struct("<IBqqq")
MAX_FRAME = 64_000_000
RUNS = b"\0"  # between a key and runs of rows
RUN_OF_ROWS = struct.Struct("<IH")
# Front end, number of the shape, rows, and where the first of them lies.
PLACE = np.dtype([("front", "<u4"), ("shape", "<u4"), ("rows", "<u4"), ("place", "<i8")])
ONE_PLACE = struct.Struct("<IIIq")  # the same, one by one


class Kind(IntEnum):
    """To the worker, then from it."""

    MAP = 1  # shared memory comes with this frame, as a descriptor; a: bytes of a slot
    LOAD = 2  # text: the model; a: the number of the order, b: 1 where it goes on beside the batches
    UNLOAD = 3  # text: the key
    RUN = 4  # text: the key, and the runs where shapes differ; a: the number of the job, b: slot, c: rows
    STOP = 5
    MAP_FRONT = 6  # memory of a front end, as a descriptor; a: its number, b: bytes
    UNMAP_FRONT = 7  # a: its number
    RUN_LYING = 8  # as RUN, with rows in memory that it sees; text: the key and their places
    LOADED = 11  # a: the number of the order; text: the problem, or nothing
    ENDED = 12  # a: the number of the job, b: started_ns, c: ended_ns; text: failures, or nothing
    READY = 13
    LOADING = 15  # a: the number of the order, b: thousandths of it that are done
    GREW = 14  # text: the key; a: bytes that the process has grown by while this model ran, since it started


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    a: int = 0
    b: int = 0
    c: int = 0
    text: bytes = b""

    def encoded(self) -> bytes:
        return HEAD.pack(HEAD.size + len(self.text), self.kind, self.a, self.b, self.c) + self.text


class FrameReader:
    """Bytes as they come, into frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        if not self._held and len(data) >= HEAD.size:
            length, kind, a, b, c = HEAD.unpack_from(data)
            if length == len(data):  # one frame, and all of it, as mostly
                yield Frame(kind, a, b, c, data[HEAD.size :])
                return
        self._held += data
        while len(self._held) >= HEAD.size:
            length, kind, a, b, c = HEAD.unpack_from(self._held)
            if not HEAD.size <= length <= MAX_FRAME:
                raise StrettoError("a worker spoke nonsense")
            if len(self._held) < length:
                return
            text = bytes(self._held[HEAD.size : length])
            del self._held[:length]
            yield Frame(kind, a, b, c, text)


def failures_as_text(failures: dict[int, str]) -> bytes:
    """By position; nothing where there are none."""
    return json.dumps(failures).encode() if failures else b""


def failures_in(text: bytes) -> dict[int, str]:
    if not text:
        return {}
    try:
        return {int(position): str(why) for position, why in json.loads(text).items()}
    except (ValueError, AttributeError):
        raise StrettoError("a worker spoke nonsense") from None


def run_as_text(key: str, runs: Sequence[tuple[int, int]] = ()) -> bytes:
    """The key; with queries of several shapes, also how many rows of which shape follow each other."""
    if not runs:
        return key.encode()
    return key.encode() + RUNS + b"".join(RUN_OF_ROWS.pack(*run) for run in runs)


def key_in(text: bytes) -> str:
    return text.partition(RUNS)[0].decode()


def runs_in(text: bytes) -> list[tuple[int, int]]:
    return list(RUN_OF_ROWS.iter_unpack(text.partition(RUNS)[2]))


def places_as_text(key: str, places: bytes) -> bytes:
    """The key, and where the rows of the batch lie, in order."""
    return key.encode() + RUNS + places


def places_in(text: bytes) -> list[tuple[int, int, int, int]]:
    return list(ONE_PLACE.iter_unpack(text.partition(RUNS)[2]))


def spec_as_text(spec: ModelSpec) -> bytes:
    """Every field by its name, tensors and the model's source too."""

    def plain(value: Any) -> Any:
        if isinstance(value, Path):
            return str(value)
        return {each.name: getattr(value, each.name) for each in fields(value) if each.init}

    return json.dumps(spec, default=plain).encode()


def spec_from_text(text: bytes) -> ModelSpec:
    content = json.loads(text)
    source = content["source"]
    for path in ("file", "folder"):
        source[path] = None if source[path] is None else Path(source[path])
    for what in ("inputs", "outputs"):
        source[what] = tuple(TensorSpec(**each | {"shape": tuple(each["shape"])}) for each in source[what])
    shapes: dict[str, Any] = {what: tuple(content[what]) for what in ("input_shape", "output_shape")}
    shapes["input_shapes"] = tuple(map(tuple, content["input_shapes"]))
    return ModelSpec(**content | shapes | {"source": ModelSource(**source)})
