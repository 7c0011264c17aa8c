"""What an application takes and gives, as its server says; and how given arrays are made to fit that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stretto.client.errors import BadAnswer, BadRequest
from stretto.client.tensors import Array, cast

MAX_TENSORS = 1000
MAX_VARIANTS = 1000
MAX_NAME = 128
Inputs = ArrayLike | Mapping[str, ArrayLike]


@dataclass(frozen=True)
class TensorMetadata:
    """The first axis of `shape` is the batch; -1 is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ApplicationMetadata:
    name: str
    versions: tuple[str, ...]
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


def application_metadata(content: Any) -> ApplicationMetadata:
    """From the JSON of GET /v2/models/APP."""
    if not isinstance(content, dict) or not isinstance(content.get("name"), str):
        raise BadAnswer("the server's description of the application is not understood")
    versions = content.get("versions") or []
    if not isinstance(versions, list):
        raise BadAnswer("the server's list of variants is not understood")
    return ApplicationMetadata(
        content["name"],
        tuple(str(version) for version in versions),
        _tensors(content.get("inputs")),
        _tensors(content.get("outputs")),
    )


PENALTIES = ("step", "linear", "sigmoid")


@dataclass(frozen=True)
class ApplicationConfiguration:
    """Only what a load asks for. `ladder` names all variants from fast to accurate, those that are not served too; it
    is empty, and `slo_ms` None, where the server does not tell. `penalty` says what a late answer is worth: step,
    linear or sigmoid.
    """

    slo_ms: float | None = None
    ladder: tuple[str, ...] = ()
    penalty: str = "step"


def application_configuration(content: Any) -> ApplicationConfiguration:
    """From the JSON of GET /v2/models/APP/config, whatever server wrote it."""
    penalty = _parameter(content, "penalty")
    return ApplicationConfiguration(
        _slo_ms(_parameter(content, "slo_ms")),
        _ladder(_parameter(content, "ladder")),
        penalty if penalty in PENALTIES else "step",
    )


def _parameter(content: Any, name: str) -> str:
    match content:
        case {"parameters": dict(named)}:
            match named.get(name):
                case {"string_value": str(text)}:
                    return text
    return ""


def _slo_ms(text: str) -> float | None:
    try:
        slo_ms = float(text)
    except ValueError:
        return None
    return slo_ms if math.isfinite(slo_ms) and slo_ms > 0 else None


def _ladder(text: str) -> tuple[str, ...]:
    if len(text) > MAX_VARIANTS * (MAX_NAME + 1):
        return ()
    names = tuple(dict.fromkeys(text.split(",")))
    return names if len(names) <= MAX_VARIANTS and all(0 < len(name) <= MAX_NAME for name in names) else ()


def _tensors(listed: Any) -> tuple[TensorMetadata, ...]:
    if not isinstance(listed, list) or len(listed) > MAX_TENSORS:
        raise BadAnswer("the server's description of the tensors is not understood")
    return tuple(_tensor(description) for description in listed)


def _tensor(description: Any) -> TensorMetadata:
    match description:
        case {"name": str(name), "datatype": str(datatype), "shape": list(shape)}:
            if all(type(size) is int for size in shape):
                return TensorMetadata(name, datatype, tuple(shape))
    raise BadAnswer("the server's description of a tensor is not understood")


def prepared(metadata: ApplicationMetadata, inputs: Inputs) -> list[tuple[TensorMetadata, Array]]:
    """Each input with its array, in the declared type and with a batch axis."""
    declared = {tensor.name: tensor for tensor in metadata.inputs}
    if not isinstance(inputs, Mapping):
        if len(declared) != 1:
            raise BadRequest(
                f"application {metadata.name} takes {len(declared)} inputs ({', '.join(declared)}); "
                "give a dict of arrays by name"
            )
        inputs = {next(iter(declared)): inputs}
    for name in inputs:
        if name not in declared:
            raise BadRequest(f"application {metadata.name} has no input {name!r:.60}; it takes {', '.join(declared)}")
    return [(declared[name], _prepared(declared[name], array)) for name, array in inputs.items()]


def _prepared(tensor: TensorMetadata, given: ArrayLike) -> Array:
    try:
        array = np.asarray(given)
    except ValueError:
        raise BadRequest(f"input {tensor.name} is no array: its rows differ in length") from None
    rank = len(tensor.shape)
    if array.ndim == rank - 1:
        array = array[np.newaxis]  # a single query
    if array.ndim != rank:
        shape = "×".join("N" if size < 0 else str(size) for size in tensor.shape)
        raise BadRequest(f"input {tensor.name} takes an array of {shape}, or one query of it, not {array.shape}")
    return cast(array, tensor.datatype, tensor.name)
