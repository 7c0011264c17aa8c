"""Tensors as a repository declares them: what clients send, what they get, and what a model file says it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.config.fields import Fields, shown

MAX_DIMENSIONS = 8
MAX_SIZE = 2**31 - 1
MAX_ELEMENTS = 2**31 - 1
DTYPES = (
    *("float32", "float64", "float16", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)


class OutputKind(StrEnum):
    """What the numbers of an answer mean; with all but the last there is one per class, and the largest one wins."""

    PROBABILITIES = "probabilities"
    LOGITS = "logits"
    SCORES = "scores"
    VALUES = "values"

    @property
    def has_classes(self) -> bool:
        return self is not OutputKind.VALUES


Shape = tuple[int, ...]
Size = tuple[int, int]  # height and width of an image


@dataclass(frozen=True)
class InputTensor:
    """One query, without the batch. `values` says in words what the numbers are.

    `sizes` are the image sizes that a client may send in place of that of `shape`, which is one of them; none: only
    `shape`. Where images come as bytes (encoded, or raw UINT8), each is divided by `divide_by`; None: they may not.
    Where `dtype` is uint8 they stay bytes up to the worker, and only models that take floats get them divided.
    `frame_bytes` are the bytes of one query as it is sent, by size, where app.toml says so.
    """

    name: str
    dtype: str
    shape: Shape
    values: str | None = None
    sizes: tuple[Size, ...] = ()
    encodings: tuple[str, ...] = ("raw",)
    divide_by: float | None = None
    frame_bytes: tuple[int, ...] = ()

    @property
    def stays_bytes(self) -> bool:
        """Bytes are what the application takes, and a model that takes floats gets them divided."""
        return self.dtype == "uint8"

    @property
    def elements(self) -> int:
        """Numbers of the largest query that may be sent."""
        return math.prod(self.largest)

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """All that a query may have."""
        return tuple((*self.shape[:-2], *size) for size in self.sizes) or (self.shape,)

    @cached_property
    def largest(self) -> Shape:
        return max(self.shapes, key=math.prod)

    @property
    def channels(self) -> int:
        """Of an image: 1 where it is grey."""
        return 1 if len(self.shape) == 2 else self.shape[0]

    def shape_for(self, takes: Shape) -> Shape:
        """What a client sends for a variant that takes this shape: the smallest that needs no enlarging, else the
        largest.
        """
        covering = [
            shape
            for shape in self.shapes
            if len(shape) == len(takes) and all(sent >= taken for sent, taken in zip(shape, takes, strict=True))
        ]
        return min(covering, key=math.prod) if covering else self.largest


@dataclass(frozen=True)
class OutputTensor:
    """One answer, without the batch. Where it has classes, they are the last axis of the shape.

    `tolerance` says when values are right: each of them lies within it of the true one. None where nobody said so.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: OutputKind = OutputKind.PROBABILITIES
    tolerance: float | None = None

    @cached_property
    def row_bytes(self) -> int:
        """Of one answer."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def can_be_right(self) -> bool:
        """Somebody said when an answer is right."""
        return self.kind.has_classes or self.tolerance is not None

    def are_right(self, said: NDArray[Any], truth: NDArray[Any]) -> NDArray[np.bool_]:
        """Of each row: whether its classes are the true ones, or its values near enough. What is no number is wrong."""
        if self.kind.has_classes:
            is_right = said == truth
        else:
            is_right = np.abs(said.astype(np.float64) - truth) <= (self.tolerance or 0.0)
        return np.asarray(is_right.reshape(len(said), -1).all(axis=1))

    @property
    def classes(self) -> int:
        """How many classes an answer has; 0 where it has none."""
        return self.shape[-1] if self.kind.has_classes else 0


def read_shape(fields: Fields, key: str) -> tuple[int, ...]:
    """A list of sizes, each at least 1; possibly empty, for one number per query."""
    values = fields.table[key] if fields.has(key) else None
    if not isinstance(values, list) or len(values) > MAX_DIMENSIONS:
        fields.fail(
            f"{key} is {shown(values)}; give a list of at most {MAX_DIMENSIONS} sizes, without the batch, "
            "as [3, 224, 224]",
            key,
        )
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            fields.fail(f"{key} holds {shown(value)}; sizes are whole numbers from 1 to {MAX_SIZE}", key, position)
    if math.prod(values) > MAX_ELEMENTS:
        fields.fail(f"{key} makes {math.prod(values)} numbers; at most {MAX_ELEMENTS} are taken", key)
    return tuple(values)


def shape_text(shape: tuple[int | None, ...]) -> str:
    """1×28×28; a free size is ?"""
    return "×".join("?" if size is None else str(size) for size in shape) or "one number"


def shape_list(shape: tuple[int, ...]) -> str:
    """[1, 28, 28], as it stands in a file."""
    return "[" + ", ".join(map(str, shape)) + "]"
