"""What a client does to its images before it sends them: make them smaller, and encode them. Pure functions.

Resizing needs numpy alone and is the same code that a worker runs; encoding needs Pillow, which
`pip install 'stretto[images]'` brings.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from stretto.client.errors import BadAnswer, StrettoClientError
from stretto.core import encoding as encodings
from stretto.core.encoding import FORMATS, JPEG_QUALITY, EncodingError
from stretto.core.resize import resized as resized_to

RAW = "raw"
ENCODINGS = (RAW, *FORMATS)
MAX_SIZES = 1000

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
    return resized_to(rows, *edges_of(size))


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
