"""A frame as the application takes it: which sizes and encodings its server allows, and a frame made into a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.client.errors import BadAnswer, BadRequest
from stretto.client.images import ENCODINGS, RAW, Size, encoded, resized, sizes_in
from stretto.client.metadata import ApplicationMetadata
from stretto.client.tensors import NUMPY_OF, Array, cast, raw_of
from stretto.core.encoding import JPEG_QUALITY, WHITE

ENCODED_SHARE = 0.2  # of its pixels' bytes that a frame is guessed to have when encoded, until one was
READY_EDGE = 640  # pixels, of the black frame that loads what frames need
REQUEST_BYTES = 600  # of the rest of a request


@dataclass(frozen=True)
class FrameInput:
    """What an application takes: an image [h, w] or [channels, h, w] of one of `sizes`."""

    name: str
    datatype: str
    rank: int
    sizes: tuple[Size, ...]
    channels: int = 1
    encodings: tuple[str, ...] = (RAW,)
    divide_by: float | None = None  # of bytes; None: images are not taken as bytes

    def guess_bytes(self, size: Size, encoding: str, is_bytes: bool) -> float:
        """Of a request with a frame at a size."""
        pixels = math.prod(size) * self.channels
        if encoding != RAW:
            return REQUEST_BYTES + ENCODED_SHARE * pixels
        as_bytes = is_bytes and self.divide_by is not None
        return REQUEST_BYTES + pixels * (1 if as_bytes else NUMPY_OF[self.datatype].itemsize)


@dataclass(frozen=True)
class FrameTensor:
    """Ready for either protocol. `encoding` is empty where the numbers are raw."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes | memoryview
    encoding: str = ""


def frame_input(metadata: ApplicationMetadata, parameters: dict[str, Any]) -> FrameInput:
    """From an application's metadata, and the parameters of its one input; BadRequest where it takes no images."""
    if len(metadata.inputs) != 1:
        raise BadRequest(f"application {metadata.name} takes {len(metadata.inputs)} inputs; frames are one image")
    tensor = metadata.inputs[0]
    if tensor.datatype == "BYTES" or len(tensor.shape) not in (3, 4):
        raise BadRequest(f"application {metadata.name} takes no images: {tensor.datatype} of {list(tensor.shape)}")
    sizes: tuple[Size, ...] = ((tensor.shape[-2], tensor.shape[-1]),)
    if "sizes" in parameters:
        sizes = sizes_in(parameters["sizes"])
    if min(min(size) for size in sizes) < 1:
        raise BadAnswer("the server does not say which sizes it takes")
    divide_by = parameters.get("divide_by")
    encodings = parameters.get("encodings")
    return FrameInput(
        tensor.name,
        tensor.datatype,
        len(tensor.shape) - 1,
        sizes,
        1 if len(tensor.shape) == 3 else tensor.shape[1],
        tuple(encodings.split(",")) if isinstance(encodings, str) else (RAW,),
        float(divide_by) if isinstance(divide_by, int | float) and divide_by > 0 else None,
    )


def checked_encoding(takes: FrameInput, encoding: str) -> str:
    if encoding not in ENCODINGS:
        raise BadRequest(f"there is no encoding {encoding[:40]!r}; there are {', '.join(ENCODINGS)}")
    if encoding not in takes.encodings:
        raise BadRequest(f"the server takes frames as {', '.join(takes.encodings)}, not as {encoding}")
    return encoding


def frame_tensor(
    takes: FrameInput, frame: Array, size: Size, encoding: str = RAW, quality: int = JPEG_QUALITY
) -> FrameTensor:
    """A frame at a size, as one query. BadRequest where it is no image of this application."""
    rows = frame[np.newaxis] if frame.ndim < takes.rank else frame
    channels = 1 if takes.rank == 2 else rows.shape[0]
    if rows.ndim != takes.rank or channels != takes.channels:
        wanted = "[height, width]" if takes.rank == 2 else f"[{takes.channels}, height, width]"
        raise BadRequest(f"a frame is an array of {wanted}, not {list(frame.shape)[:9]}")
    if rows.shape[-2:] != size:
        rows = resized(rows, size)
    row = rows[np.newaxis]
    if encoding != RAW:
        white = WHITE / (takes.divide_by or 1.0)  # of numbers that the server would not scale
        data = np.empty(1, object)
        data[:] = encoded(row, encoding, quality, white)
        return FrameTensor(takes.name, "BYTES", (1,), raw_of(data, "BYTES"), encoding)
    datatype = "UINT8" if row.dtype == np.uint8 and takes.divide_by is not None else takes.datatype
    array = cast(row, datatype, takes.name)
    return FrameTensor(takes.name, datatype, array.shape, raw_of(array, datatype))


def make_ready(takes: FrameInput, encoding: str, quality: int) -> None:
    """Makes a black frame ready, so that the first of a camera does not wait until Pillow is loaded."""
    size = min(takes.sizes, key=math.prod)
    shape = (READY_EDGE, READY_EDGE) if takes.rank == 2 else (takes.channels, READY_EDGE, READY_EDGE)
    frame_tensor(takes, np.zeros(shape, NUMPY_OF[takes.datatype]), size, encoding, quality)
