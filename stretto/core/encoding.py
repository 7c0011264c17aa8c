"""Images as JPEG or PNG. Pillow does it, and is loaded when the first is encoded."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError

FORMATS = {"jpeg": "JPEG", "png": "PNG"}  # as a request names the encoding, and as Pillow does
CHANNELS = (1, 3)
JPEG_QUALITY = 90
MAX_EDGE = 65_535  # what JPEG can hold
WHITE = 255.0


class EncodingError(StrettoError):
    """Images that cannot be encoded as asked."""


def encoded(rows: NDArray[Any], encoding: str, quality: int = JPEG_QUALITY, white: float = 1.0) -> list[bytes]:
    """Each image of [n, h, w], [n, 1, h, w] or [n, 3, h, w] by itself, as "jpeg" or "png".

    Bytes (uint8) go as they are; of other numbers `white` is the brightest, which becomes 255. `quality` is JPEG's,
    from 1 to 100.
    """
    if encoding not in FORMATS:
        raise EncodingError(f"there is no encoding {encoding[:40]!r}; there are {', '.join(FORMATS)}")
    if not 1 <= quality <= 100:
        raise EncodingError(f"quality is from 1 to 100, not {quality}")
    planes = pixels(rows, white)
    image = _pillow()
    options: dict[str, Any] = {"quality": quality} if encoding == "jpeg" else {}
    contents: list[bytes] = []
    for plane in planes:
        file = io.BytesIO()
        image.fromarray(plane).save(file, FORMATS[encoding], **options)
        contents.append(file.getvalue())
    return contents


def pixels(rows: NDArray[Any], white: float = 1.0) -> list[NDArray[np.uint8]]:
    """Each image as Pillow takes it: bytes, [h, w] where it is grey, [h, w, 3] where it has colours."""
    if rows.ndim == 3:
        rows = rows[:, None]
    if rows.ndim != 4 or rows.shape[1] not in CHANNELS:
        raise EncodingError(f"images to encode are [n, h, w], [n, 1, h, w] or [n, 3, h, w], not {list(rows.shape)}")
    check_edges(rows.shape[2], rows.shape[3])
    if rows.dtype != np.uint8:
        rows = np.rint(np.clip(rows.astype(np.float32) * (WHITE / white), 0, WHITE)).astype(np.uint8)
    if rows.shape[1] == 1:
        return [np.ascontiguousarray(row[0]) for row in rows]
    return [np.ascontiguousarray(row.transpose(1, 2, 0)) for row in rows]


def check_edges(height: int, width: int) -> None:
    if not (1 <= height <= MAX_EDGE and 1 <= width <= MAX_EDGE):
        raise EncodingError(f"an image has edges from 1 to {MAX_EDGE} pixels, not {height} × {width}")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise EncodingError("encoding images needs Pillow; install it with: pip install 'stretto[images]'") from None
    return Image
