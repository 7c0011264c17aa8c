"""The interface of a loaded model, and the errors it may raise.

A model belongs to one worker: it runs one batch at a time and must never be called from two threads at once. It takes
and gives named arrays whose first axis is the batch. What it gives may be a view of memory that its next run
overwrites: copy what has to live longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError

Array = NDArray[Any]
Batch = Mapping[str, Array]
Parts = Mapping[str, Sequence[Array]]  # of a batch: rows that follow each other, and lie in several places


class BackendError(StrettoError):
    """A model that cannot be loaded, or a batch that it cannot take: what is wrong, in which file, and what to do."""


class BatchFailure(BackendError):
    """A batch that the model took and then failed on; `position` is the query at fault, where that is known."""

    def __init__(self, reason: str, position: int | None = None):
        super().__init__(reason if position is None else f"{reason} (query {position} of the batch)")
        self.reason = reason
        self.position = position


class NoDevice(BackendError):
    """The device that a model is to be on is not there."""


class DeviceLost(Exception):
    """The device under this process is of no more use to it: the process has to end, and another to take its place."""


class DeviceSpoilt(DeviceLost):
    """The same, and it was a model that did it."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output. `shape` leaves out the batch; None stands for a size that may vary."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    numpy_dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            dtype = np.dtype(self.dtype)
        except TypeError:
            dtype = np.dtype(object)
        if dtype.kind not in "biufc":
            raise BackendError(f"tensor {self.name} has type {self.dtype[:40]}; tensors hold numbers, as float32")
        object.__setattr__(self, "numpy_dtype", dtype)

    @property
    def is_fixed(self) -> bool:
        """Every size but the batch is known."""
        return None not in self.shape

    def fits(self, shape: tuple[int, ...]) -> bool:
        """A query (without the batch axis) has this shape."""
        return shape == self.shape or (
            len(shape) == len(self.shape)
            and all(want is None or want == size for want, size in zip(self.shape, shape, strict=True))
        )

    def shape_text(self) -> str:
        """(batch, 1, 28, 28), as it stands in messages."""
        return "(" + ", ".join(["batch", *("any" if size is None else str(size) for size in self.shape)]) + ")"

    def zeros(self, batch: int) -> Array:
        """A batch of nothing; a size that may vary is 1."""
        return np.zeros((batch, *(size or 1 for size in self.shape)), self.numpy_dtype)


class Model(Protocol):
    """What an executor and the profiler see."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What a batch must hold."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What a run gives."""

    @property
    def fixed_batch(self) -> int | None:
        """The one batch size that the model takes; None where it takes any."""

    @property
    def memory_bytes(self) -> int:
        """What the model holds while it is loaded: weights, buffers, captured graphs."""

    def prepare(self, batches: Iterable[int]) -> None:
        """Do ahead what the first run of each of these batch sizes would have to do."""

    def buffers(self, batch: int) -> dict[str, Array]:
        """Reused arrays for a batch of this size. Queries gathered here reach the model without another copy; a run of
        any other arrays may overwrite them.
        """

    def run(self, inputs: Batch) -> dict[str, Array]:
        """Run one batch; BackendError where it does not fit, BatchFailure where the model fails on it."""

    def unload(self) -> None:
        """Give the memory back; the model cannot run any more."""


class Started(Protocol):
    """A batch that was started."""

    def is_done(self) -> bool: ...

    def answers(self) -> dict[str, Array]:
        """Waits for them."""


@runtime_checkable
class Overlapping(Model, Protocol):
    """A model whose next batch may be started before this one has ended; of two slots each holds one batch."""

    @property
    def overlaps(self) -> bool:
        """Whether it does so on the device where it is."""

    def slot_buffers(self, slot: int, batch: int) -> dict[str, Array]:
        """As `buffers`, for a batch in this slot."""

    def launch(self, slot: int, inputs: Parts) -> Started:
        """Start a batch, of a size that it was prepared for. Its inputs stay as they are until it is done."""


def batch_size(inputs: Batch, specs: tuple[TensorSpec, ...], fixed_batch: int | None, label: str) -> int:
    """The size of a batch that fits `specs`; BackendError with a sentence where it does not."""
    batch = -1
    for spec in specs:
        array = inputs.get(spec.name)
        if array is None:
            raise BackendError(f"{label} needs input {spec.name}; the batch has {', '.join(inputs) or 'none'}")
        shape = array.shape
        if not shape or not spec.fits(shape[1:]):
            raise BackendError(
                f"input {spec.name} of {label} must have shape {spec.shape_text()}, not {_shape(shape)}; reshape it"
            )
        if array.dtype != spec.numpy_dtype:
            raise BackendError(
                f"input {spec.name} of {label} must be {spec.dtype}, not {array.dtype}; convert the data first"
            )
        if batch not in (-1, shape[0]):
            raise BackendError(f"the inputs of {label} hold {batch} and {shape[0]} queries; give equally many")
        batch = shape[0]
    if len(inputs) > len(specs):
        extra = next(name for name in inputs if all(name != spec.name for spec in specs))
        raise BackendError(f"{label} has no input {extra[:40]}; it has {', '.join(spec.name for spec in specs)}")
    if batch < 1:
        raise BackendError(f"a batch for {label} needs at least one query")
    if fixed_batch is not None and batch != fixed_batch:
        raise BackendError(
            f"{label} takes batches of exactly {fixed_batch}, not {batch}; export it with a dynamic batch axis"
        )
    return batch


def in_one_part(inputs: Batch) -> Parts:
    return {name: (array,) for name, array in inputs.items()}


def check_outputs(outputs: Batch, specs: tuple[TensorSpec, ...], batch: int, label: str) -> None:
    """Refuses what a run gave if it is not what the model says it gives."""
    for spec in specs:
        array = outputs.get(spec.name)
        if array is None:
            raise BatchFailure(f"{label} gave no output {spec.name}")
        if not array.shape or array.shape[0] != batch or not spec.fits(array.shape[1:]):
            raise BatchFailure(
                f"output {spec.name} of {label} must have shape {spec.shape_text()} with a batch of {batch}, "
                f"not {_shape(array.shape)}"
            )


def _shape(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"
