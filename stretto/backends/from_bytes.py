"""Images that are sent as bytes, for a model that takes floats: they become numbers where the model runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from stretto.backends.model import Array, Batch, Model, TensorSpec, batch_size
from stretto.backends.source import ModelSource


def from_bytes(model: Model, source: ModelSource) -> Model:
    """The model as it is, or, where bytes are declared and it takes floats, behind the division of each byte."""
    if not source.takes_bytes or len(model.inputs) != 1 or model.inputs[0].numpy_dtype.kind != "f":
        return model
    assert source.divide_by is not None
    return FromBytes(model, source.divide_by, source.label)


class FromBytes:
    """A model that takes bytes in place of the floats of the one inside."""

    def __init__(self, model: Model, divide_by: float, label: str):
        self._model, self._divide_by, self._label = model, divide_by, label
        self.inputs: tuple[TensorSpec, ...] = (replace(model.inputs[0], dtype="uint8"),)
        self.outputs = model.outputs
        self.fixed_batch = model.fixed_batch
        self._room: Array = self.inputs[0].zeros(0)

    @property
    def memory_bytes(self) -> int:
        return self._model.memory_bytes + self._room.nbytes

    def prepare(self, batches: Iterable[int]) -> None:
        sizes = tuple(batches)
        self._model.prepare(sizes)
        self.buffers(max(sizes))

    def buffers(self, batch: int) -> dict[str, Array]:
        if len(self._room) < batch:
            self._room = self.inputs[0].zeros(batch)
        return {self.inputs[0].name: self._room[:batch]}

    def run(self, inputs: Batch) -> dict[str, Array]:
        floats = self._model.buffers(batch_size(inputs, self.inputs, self.fixed_batch, self._label))
        name = self.inputs[0].name
        into = floats[name]
        np.divide(inputs[name], self._divide_by, out=into, dtype=np.result_type(into, np.float32), casting="same_kind")
        return self._model.run(floats)

    def unload(self) -> None:
        self._model.unload()
