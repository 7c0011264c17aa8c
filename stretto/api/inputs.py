"""What a request may hold: its tensors and parameters, checked against the application before the engine sees them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.api.bounds import are_finite, are_within
from stretto.api.datatypes import DATATYPE_OF
from stretto.api.errors import bad_request, too_large
from stretto.api.images import (
    checked_frames,
    is_encoded,
    read_frames,
    scale,
)
from stretto.api.messages import Array, InputTensor, WantedOutput
from stretto.core.profile import NS_PER_MS
from stretto.repository.images import sizes_text

if TYPE_CHECKING:
    from stretto.repository.application import ApplicationFiles
    from stretto.repository.tensors import InputTensor as ApplicationInput

MAX_DEADLINE_MS = 3_600_000.0
# A classification is made on the event loop, in text.
CLASSIFIED_NUMBERS, CLASSIFIED_STRINGS = 1_000_000, 5_000


def checked_input(files: ApplicationFiles, inputs: list[InputTensor]) -> Array:
    """The one input, batch first, as the application takes it; of one of the sizes that it takes."""
    tensor = named_input(files, inputs)
    if tensor.encoding and is_encoded(tensor):
        array = read_frames(files.input, checked_frames(files, tensor))
    else:
        array = _raw_input(files, tensor)
    check_values(files, array)
    return array


def check_values(files: ApplicationFiles, array: Array) -> None:
    """They are within the application's bounds, and finite."""
    takes, limits = files.input, files.limits
    if limits.min_value is not None or limits.max_value is not None:
        low = -math.inf if limits.min_value is None else limits.min_value
        high = math.inf if limits.max_value is None else limits.max_value
        if not are_within(array, low, high):
            raise bad_request(f"the values of input {takes.name} must lie between {low:g} and {high:g}")
    elif array.dtype.kind == "f" and not are_finite(array):
        raise bad_request(f"the values of input {takes.name} must be finite")


def named_input(files: ApplicationFiles, inputs: list[InputTensor]) -> InputTensor:
    takes = files.input
    if len(inputs) != 1:
        raise bad_request(f"application {files.name} takes one input, {takes.name}; {len(inputs)} were given")
    tensor = inputs[0]
    if tensor.name != takes.name:
        raise bad_request(f"application {files.name} has no input {tensor.name[:60]!r}; it takes {takes.name}")
    return tensor


def _raw_input(files: ApplicationFiles, tensor: InputTensor) -> Array:
    takes, array = files.input, tensor.array
    # Images as bytes, scaled as encoded ones are; where the application takes bytes, models get them as they come.
    is_bytes = tensor.datatype == "UINT8" and takes.divide_by is not None and not takes.stays_bytes
    if tensor.datatype != DATATYPE_OF[takes.dtype] and not is_bytes:
        hint = ""
        if tensor.datatype == "BYTES" and len(takes.encodings) > 1:
            hint = f"; encoded images need a parameter encoding: {', '.join(takes.encodings)}"
        raise bad_request(f"input {takes.name} must be {DATATYPE_OF[takes.dtype]}, not {tensor.datatype}{hint}")
    if array.shape[1:] not in takes.shapes or not array.shape:
        raise bad_request(f"input {takes.name} must have {_shapes_text(takes)}, not {list(array.shape)[:17]}")
    if not 1 <= len(array) <= files.limits.max_batch:
        raise too_large(f"a request holds from 1 to {files.limits.max_batch} queries, not {len(array)}")
    if is_bytes:
        scaled: Array = np.empty(array.shape, takes.dtype)
        scale(array, takes, scaled)
        return scaled
    return array


def _shapes_text(takes: ApplicationInput) -> str:
    if not takes.sizes:
        return f"shape {[-1, *takes.shape]}"
    return f"shape {[-1, *takes.shape[:-2], 'height', 'width']} of {sizes_text(takes.sizes)}".replace("'", "")


def checked_outputs(files: ApplicationFiles, wanted: list[WantedOutput], rows: int) -> WantedOutput:
    """The one output, as it is wanted; a classification along its last axis, whatever its numbers mean."""
    gives = files.output
    if not wanted:
        return WantedOutput(gives.name)
    for output in wanted:
        if output.name != gives.name:
            raise bad_request(f"application {files.name} has no output {output.name[:60]!r}; it gives {gives.name}")
    if len(wanted) > 1:
        raise bad_request(f"output {gives.name} is asked for {len(wanted)} times")
    count = wanted[0].classification
    if count:
        if count < 0:
            raise bad_request("classification must be above 0")
        if not gives.shape or gives.shape[-1] < 2:
            raise bad_request(f"output {gives.name} has one number a query, so there is no classification")
        numbers = rows * math.prod(gives.shape)
        if (
            numbers > CLASSIFIED_NUMBERS
            or numbers // gives.shape[-1] * min(count, gives.shape[-1]) > CLASSIFIED_STRINGS
        ):
            raise too_large(
                f"output {gives.name} is too large for such a classification; ask for its numbers, or fewer"
            )
    return wanted[0]


def slack_from(parameters: dict[str, Any], default_ns: int) -> int:
    if "deadline_ms" in parameters:
        value = number_in(parameters, "deadline_ms", 0.0, MAX_DEADLINE_MS, 0.0)
        if value <= 0:
            raise bad_request(f"deadline_ms must be above 0 and at most {MAX_DEADLINE_MS:.0f}")
        return max(1, round(value * NS_PER_MS))
    timeout = whole_in(parameters, "timeout", 0, round(MAX_DEADLINE_MS * 1000), 0)
    return timeout * 1000 or default_ns


def number_in(parameters: dict[str, Any], name: str, low: float, high: float, default: float) -> float:
    value = parameters.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise bad_request(f"{name} must be a number from {low:g} to {high:.10g}")
    return float(value)


def whole_in(parameters: dict[str, Any], name: str, low: int, high: int, default: int) -> int:
    value = parameters.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise bad_request(f"{name} must be a whole number from {low} to {high}")
    return value
