"""Tensors as a repository declares them: what clients send, what they get, and what a model file says it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

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


@dataclass(frozen=True)
class InputTensor:
    """One query, without the batch. `values` says in words what the numbers are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: str | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class OutputTensor:
    """One answer, without the batch. Where it has classes, they are the last axis of the shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: OutputKind = OutputKind.PROBABILITIES

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
