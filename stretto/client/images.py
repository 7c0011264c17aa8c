"""What a client does to its images before it sends them: make them smaller, and encode them. Pure functions.

Encoding needs Pillow, which `pip install 'stretto[images]'` brings. Resizing is the same code that a worker runs and
needs numpy alone. Large frames of a camera are made smaller by Pillow where it is there, in a small part of the time:
each new pixel is then the mean of the old ones whose centres it covers, and not of its area to the fraction of a pixel.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.client.errors import BadAnswer, StrettoClientError
from stretto.core import encoding as encodings
from stretto.core.encoding import FORMATS, JPEG_QUALITY, EncodingError
from stretto.core.resize import resized as resized_to

RAW = "raw"
ENCODINGS = (RAW, *FORMATS)
MAX_SIZES = 1000
LARGE_PIXELS = 100_000  # with fewer, numpy takes no longer than a millisecond or two
LEAST_SHRINKING = 2  # along both edges, for Pillow: with more, a pixel at an area's edge changes the mean little
PILLOW_DTYPES = (np.uint8, np.float32)

Size = tuple[int, int]  # height and width


class CannotEncode(StrettoClientError):
    """The images cannot be resized or encoded as asked; nothing was sent."""


def edges_of(size: int | Size) -> Size:
    """Height and width: 12 is 12 × 12."""
    height, width = (size, size) if isinstance(size, int) else size
    try:
        encodings.check_edges(height, width)
    except EncodingError as error:
        raise CannotEncode(str(error)) from None
    return height, width


def resized(rows: NDArray[Any], size: int | Size) -> NDArray[Any]:
    """Images [..., h, w] at another size, in the same dtype: the mean of the area that each new pixel covers; where
    they become larger, the smoothest image with these means.
    """
    if rows.ndim < 2:
        raise CannotEncode(f"images are arrays of [..., height, width], not {list(rows.shape)}")
    height, width = edges_of(size)
    old_height, old_width = rows.shape[-2:]
    is_large = old_height * old_width >= LARGE_PIXELS and rows.dtype in PILLOW_DTYPES
    if is_large and old_height >= LEAST_SHRINKING * height and old_width >= LEAST_SHRINKING * width:
        image = _pillow()
        if image is not None:
            return _by_pillow(image, rows, height, width)
    return resized_to(rows, height, width)


def _by_pillow(image: Any, rows: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    made = np.empty((*rows.shape[:-2], height, width), rows.dtype)
    for plane in np.ndindex(rows.shape[:-2]):
        made[plane] = image.fromarray(rows[plane]).resize((width, height), image.Resampling.BOX)
    return made


@cache
def _pillow() -> Any:
    """Pillow's module of images; None where it is not installed."""
    try:
        from PIL import Image
    except ImportError:
        return None
    return Image


def encoded(rows: NDArray[Any], encoding: str, quality: int = JPEG_QUALITY, white: float = 1.0) -> list[bytes]:
    """Each image of [n, h, w], [n, 1, h, w] or [n, 3, h, w] by itself, as "jpeg" or "png".

    Bytes (uint8) go as they are; of other numbers `white` is the brightest, which becomes 255: 255 over the
    application's divide_by. `quality` is JPEG's, from 1 to 100.
    """
    try:
        return encodings.encoded(rows, encoding, quality, white)
    except EncodingError as error:
        raise CannotEncode(str(error)) from None


def sizes_in(text: Any) -> tuple[Size, ...]:
    """ "8x8,12x16", as a server's metadata says it → ((8, 8), (12, 16)): height and width."""
    try:
        pairs = [tuple(int(edge) for edge in size.split("x")) for size in text.split(",", MAX_SIZES)]
    except (AttributeError, ValueError):
        raise BadAnswer("the server's list of image sizes is not understood") from None
    if any(len(pair) != 2 or min(pair) < 1 for pair in pairs):
        raise BadAnswer("the server's list of image sizes is not understood")
    return tuple((pair[0], pair[1]) for pair in pairs)
