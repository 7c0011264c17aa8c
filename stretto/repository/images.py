"""[input] of app.toml, as far as it is about images: the sizes and encodings that a client may send."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

from stretto.config.fields import Fields, shown, suggestion
from stretto.repository.tensors import MAX_ELEMENTS, Shape, Size, shape_list

RAW = "raw"
ENCODINGS = (RAW, "jpeg", "png")
IMAGE_KEYS = ("sizes", "encodings", "divide_by", "frame_bytes")
MAX_SIZES = 64
MAX_EDGE = 4096  # resizing is a product with a matrix of the two lengths
MAX_FRAME_BYTES = 2**31 - 1
MIN_DIVISOR, MAX_DIVISOR = 1e-30, 1e30  # as a 32-bit float
WHITE = 255.0
CHANNELS = (1, 3)
NO_BYTES = ("bool", "int8")  # which cannot hold 0 to 255
INSTALL = "pip install 'stretto[images]'"


def can_decode() -> bool:
    """Whether JPEG and PNG can be read here."""
    return importlib.util.find_spec("PIL") is not None


def read_images(fields: Fields, shape: Shape, dtype: str) -> dict[str, Any]:
    """The fields of InputTensor that are about images."""
    sizes = _sizes(fields, shape) if fields.has("sizes") else ()
    encodings = _encodings(fields, shape, dtype) if fields.has("encodings") else (RAW,)
    divide_by = fields.optional_number("divide_by", MIN_DIVISOR, MAX_DIVISOR)
    if divide_by is not None and dtype in NO_BYTES:
        fields.fail(f"divide_by is for images of bytes, which {dtype} cannot hold; leave it out", "divide_by")
    if divide_by is None and encodings != (RAW,):
        divide_by = WHITE if dtype.startswith("float") else 1.0
    frame_bytes = _frame_bytes(fields, sizes) if fields.has("frame_bytes") else ()
    return {"sizes": sizes, "encodings": encodings, "divide_by": divide_by, "frame_bytes": frame_bytes}


def _sizes(fields: Fields, shape: Shape) -> tuple[Size, ...]:
    """12 is 12 × 12; [12, 16] is 12 high and 16 wide."""
    if len(shape) < 2:
        fields.fail(f"sizes are of images, whose shape ends in height and width, not {shape_list(shape)}", "sizes")
    values = fields.table["sizes"]
    if not isinstance(values, list) or not 1 <= len(values) <= MAX_SIZES:
        fields.fail(f"sizes is {shown(values)}; give a list of 1 to {MAX_SIZES}, as [8, 16, [16, 24]]", "sizes")
    sizes: list[Size] = []
    for position, value in enumerate(values):
        pair = value if isinstance(value, list) else [value, value]
        for edge in pair:
            if isinstance(edge, bool) or not isinstance(edge, int) or not 1 <= edge <= MAX_EDGE:
                fields.fail(
                    f"sizes holds {shown(edge)}; edges are whole numbers from 1 to {MAX_EDGE}", "sizes", position
                )
        if len(pair) != 2:
            fields.fail("sizes holds a list that is not [height, width]", "sizes", position)
        if (pair[0], pair[1]) in sizes:
            fields.fail(f"sizes holds {size_text((pair[0], pair[1]))} twice", "sizes", position)
        if math.prod((*shape[:-2], *pair)) > MAX_ELEMENTS:
            fields.fail(f"sizes holds {size_text((pair[0], pair[1]))}, which makes too many numbers", "sizes", position)
        sizes.append((pair[0], pair[1]))
    if shape[-2:] not in sizes:
        fields.fail(f"sizes does not hold {size_text((shape[-2], shape[-1]))}, the size of shape; add it", "sizes")
    return tuple(sizes)


def _encodings(fields: Fields, shape: Shape, dtype: str) -> tuple[str, ...]:
    encodings = fields.texts("encodings")
    for position, encoding in enumerate(encodings):
        if encoding not in ENCODINGS:
            fields.fail(f"encodings holds {shown(encoding)}; {suggestion(encoding, ENCODINGS)}", "encodings", position)
        if encoding in encodings[:position]:
            fields.fail(f"encodings holds {shown(encoding)} twice", "encodings", position)
    if RAW not in encodings:
        fields.fail('encodings must hold "raw": every client of the protocol can send that', "encodings")
    if encodings != (RAW,):
        if not (len(shape) == 2 or (len(shape) == 3 and shape[0] in CHANNELS)):
            fields.fail(
                "encoded images have shape [height, width], [1, height, width] or [3, height, width], "
                f"not {shape_list(shape)}",
                "encodings",
            )
        if max(shape[-2:]) > MAX_EDGE:
            fields.fail(f"encoded images have edges of at most {MAX_EDGE} pixels", "encodings")
        if dtype in NO_BYTES:
            fields.fail(f"encoded images hold bytes, which {dtype} cannot; change dtype", "encodings")
    return encodings


def _frame_bytes(fields: Fields, sizes: tuple[Size, ...]) -> tuple[int, ...]:
    values = fields.numbers("frame_bytes", 1, MAX_FRAME_BYTES)
    if len(values) != max(1, len(sizes)):
        fields.fail(
            f"frame_bytes has {len(values)} numbers for {max(1, len(sizes))} sizes; give one each", "frame_bytes"
        )
    return tuple(round(value) for value in values)


def size_text(size: Size) -> str:
    """12x16: height and width, as requests and files write it."""
    return f"{size[0]}x{size[1]}"


def sizes_text(sizes: tuple[Size, ...]) -> str:
    return ",".join(map(size_text, sizes))
