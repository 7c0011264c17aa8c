"""What a client does to its images before it sends them: make them smaller, and encode them. Pure functions.

Resizing needs numpy alone and is the same code that a worker runs; encoding needs Pillow, which
`pip install 'stretto[images]'` brings.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.client.errors import StrettoClientError
from stretto.core.resize import resized as resized_to

RAW = "raw"
FORMATS = {"jpeg": "JPEG", "png": "PNG"}  # as a request names the encoding, and as Pillow does
MODES = {1: "L", 3: "RGB"}
JPEG_QUALITY = 90
MAX_EDGE = 65_535  # what JPEG can hold
WHITE = 255.0


class CannotEncode(StrettoClientError):
    """The images cannot be encoded as asked; nothing was sent."""


def edges_of(size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width: 12 is 12 × 12."""
    height, width = (size, size) if isinstance(size, int) else size
    if not (1 <= height <= MAX_EDGE and 1 <= width <= MAX_EDGE):
        raise CannotEncode(f"an image has edges from 1 to {MAX_EDGE} pixels, not {height} × {width}")
    return height, width


def resized(rows: NDArray[Any], size: int | tuple[int, int]) -> NDArray[Any]:
    """Images [..., h, w] at another size, in the same dtype: the mean of the area that each new pixel covers; where
    they become larger, the smoothest image with these means.
    """
    if rows.ndim < 2:
        raise CannotEncode(f"images are arrays of [..., height, width], not {list(rows.shape)}")
    return resized_to(rows, *edges_of(size))


def encoded(rows: NDArray[Any], encoding: str, quality: int = JPEG_QUALITY, white: float = 1.0) -> list[bytes]:
    """Each image of [n, h, w], [n, 1, h, w] or [n, 3, h, w] by itself, as "jpeg" or "png".

    Bytes (uint8) go as they are; of other numbers `white` is the brightest, which becomes 255. `quality` is JPEG's,
    from 1 to 100.
    """
    if encoding not in FORMATS:
        raise CannotEncode(f"there is no encoding {encoding[:40]!r}; there are {', '.join(FORMATS)}")
    if not 1 <= quality <= 100:
        raise CannotEncode(f"quality is from 1 to 100, not {quality}")
    planes = pixels(rows, white)
    image = _pillow()
    options: dict[str, Any] = {"quality": quality} if encoding == "jpeg" else {}
    found: list[bytes] = []
    for plane in planes:
        file = io.BytesIO()
        image.fromarray(plane).save(file, FORMATS[encoding], **options)
        found.append(file.getvalue())
    return found


def pixels(rows: NDArray[Any], white: float = 1.0) -> list[NDArray[np.uint8]]:
    """Each image as Pillow takes it: bytes, [h, w] where it is grey, [h, w, 3] where it has colours."""
    if rows.ndim == 3:
        rows = rows[:, None]
    if rows.ndim != 4 or rows.shape[1] not in MODES:
        raise CannotEncode(f"images to encode are [n, h, w], [n, 1, h, w] or [n, 3, h, w], not {list(rows.shape)}")
    edges_of((rows.shape[2], rows.shape[3]))
    if rows.dtype != np.uint8:
        rows = np.rint(np.clip(rows.astype(np.float32) * (WHITE / white), 0, WHITE)).astype(np.uint8)
    if rows.shape[1] == 1:
        return [np.ascontiguousarray(row[0]) for row in rows]
    return [np.ascontiguousarray(row.transpose(1, 2, 0)) for row in rows]


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise CannotEncode("encoding images needs Pillow; install it with: pip install 'stretto[images]'") from None
    return Image
