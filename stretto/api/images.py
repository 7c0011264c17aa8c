"""Encoded images of a request into numbers, as the application takes them. Pillow reads them, and is loaded when the
first comes.

Everything is bounded before Pillow sees a byte: how many images, how many bytes each, that it is what it promises to
be, and that its header says an allowed size, the same for all. Only then is memory taken, and it is known how much.
"""

from __future__ import annotations

import asyncio
import io
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.api.errors import ApiError, bad_request, too_large
from stretto.api.image_headers import BadImage, picture_of, read_header
from stretto.api.messages import Array, InputTensor
from stretto.repository.images import INSTALL, RAW, can_decode, size_text, sizes_text
from stretto.repository.tensors import Shape

if TYPE_CHECKING:
    from stretto.repository.application import ApplicationFiles
    from stretto.repository.tensors import InputTensor as Takes

SPARE_BYTES = 65_536  # of an encoded image, for headers and profiles, besides two for each number
MODES = {1: "L", 3: "RGB"}
# What reading costs, measured (28 × 28 grey: 70 µs; 224 × 224 × 3: 0.5 ms as JPEG, 2 ms as PNG), and how much of it the
# event loop bears: handing work to a thread costs 0.07 ms itself, and at the tail twice that.
IMAGE_US, VALUE_US, BYTE_US = 60.0, 0.015, 0.01
INLINE_US = 500.0
THREADS = 2


@dataclass(frozen=True, slots=True)
class Frames:
    """Images whose headers were checked: all say the size of `shape`, which the application takes."""

    data: list[bytes]
    encoding: str
    shape: Shape
    name: str

    def bytes_as(self, dtype: str) -> int:
        """What they take as numbers, and what they take as they were sent."""
        return len(self.data) * math.prod(self.shape) * np.dtype(dtype).itemsize + sum(map(len, self.data))


def checked_frames(files: ApplicationFiles, tensor: InputTensor) -> Frames:
    """ApiError where the images may not be sent, or are not what they promise to be."""
    takes, encoding = files.input, tensor.encoding
    if tensor.datatype != "BYTES":
        raise bad_request(f"input {takes.name} is {encoding[:20]!r}, so it must be BYTES, not {tensor.datatype}")
    if encoding not in takes.encodings:
        allowed = ", ".join(takes.encodings)
        raise bad_request(f"input {takes.name} cannot be sent as {encoding[:20]!r}; it can be sent as {allowed}")
    if not can_decode():
        raise bad_request(f"this server cannot read {encoding}; send raw images, or install there: {INSTALL}")
    array = tensor.array
    if array.ndim not in (1, 2) or array.shape[1:] not in ((), (1,)):
        raise bad_request(f"encoded images have shape [n] or [n, 1], not {list(array.shape)[:17]}")
    if not 1 <= len(array) <= files.limits.max_batch:
        raise too_large(f"a request holds from 1 to {files.limits.max_batch} queries, not {len(array)}")
    data = array.ravel().tolist()
    most = 2 * takes.elements + SPARE_BYTES
    sizes = takes.sizes or ((takes.shape[-2], takes.shape[-1]),)
    frame_size = (0, 0)
    for number, image in enumerate(data):
        if len(image) > most:
            raise too_large(f"image {number} of input {takes.name} may have {most} bytes, not {len(image)}")
        try:
            header = read_header(image, encoding)
        except BadImage as error:
            raise _refused(number, takes.name, error) from None
        size = (header.height, header.width)
        if size not in sizes:
            raise bad_request(
                f"image {number} of input {takes.name} is {size_text(size)}; allowed are {sizes_text(sizes)} "
                "(height x width)"
            )
        if number and size != frame_size:
            raise bad_request(
                f"the images of one request have one size, not {size_text(frame_size)} and {size_text(size)}"
            )
        frame_size = size
    return Frames(data, encoding, (*takes.shape[:-2], *frame_size), takes.name)


def read_frames(takes: Takes, frames: Frames) -> Array:
    """Batch first, scaled as the application says. ApiError where an image is damaged."""
    made = np.empty((len(frames.data), *frames.shape), takes.dtype)
    for number, image in enumerate(frames.data):
        try:
            pixels = _pixels(image, frames, MODES[takes.channels])
        except BadImage as error:
            raise _refused(number, takes.name, error) from None
        scale(pixels.reshape(frames.shape), takes, made[number])
    return made


def scale(values: Array, takes: Takes, into: Array) -> None:
    """Bytes of images as the numbers that the application takes."""
    divide_by = 1.0 if takes.divide_by is None or takes.stays_bytes else takes.divide_by
    if divide_by == 1:
        into[...] = values
    elif into.dtype.kind == "f":
        exact = np.float64 if into.dtype == np.float64 else np.float32
        np.divide(values, divide_by, out=into, dtype=exact, casting="same_kind")
    else:
        into[...] = np.rint(values / divide_by)


def _pixels(image: bytes, frames: Frames, mode: str) -> Array:
    """Channels first."""
    opened = _opened(image, frames)
    try:
        if opened.mode != mode:
            opened = opened.convert(mode)
        pixels: Array = np.asarray(opened)
    except Exception as error:  # Pillow raises a dozen kinds on data that is cut short or made up
        raise BadImage("is cut short" if "truncated" in str(error) else "is damaged") from None
    return pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _opened(image: bytes, frames: Frames) -> Any:
    """By the one reader that was promised; nothing is decoded yet."""
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile

    try:
        if frames.encoding == "png":
            opened: Any = PngImageFile(io.BytesIO(picture_of(image)))
        else:
            opened = JpegImageFile(io.BytesIO(image))
    except BadImage:
        raise
    except Exception:
        raise BadImage("is damaged") from None
    if opened.size != (frames.shape[-1], frames.shape[-2]):  # a second header, which the first one hid
        raise BadImage("is damaged")
    return opened


def load_decoders() -> None:
    """So that no request waits for them."""
    import PIL.JpegImagePlugin
    import PIL.PngImagePlugin  # noqa: F401


def _refused(number: int, name: str, error: BadImage) -> ApiError:
    return bad_request(f"image {number} of input {name} {error}")


def reading_us(takes: Takes, tensor: InputTensor) -> float:
    """About how long reading the images of a request takes, from what is known before they are looked at."""
    array = tensor.array
    if tensor.datatype != "BYTES" or not array.size:
        return 0.0
    sizes = sum(len(image) for image in array.flat)
    return array.size * (IMAGE_US + VALUE_US * takes.elements) + BYTE_US * sizes


class ImageThreads:
    """Threads for images that would hold up the event loop; started with the first."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self.waiting = 0

    async def read(self, takes: Takes, frames: Frames) -> Array:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "stretto-images")
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, read_frames, takes, frames)
        finally:
            self.waiting -= 1


def is_encoded(tensor: InputTensor) -> bool:
    return tensor.encoding not in ("", RAW)
