"""Batches that run padded to the next rung of a ladder, so that a GPU meets only sizes that it was made ready for."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.backends.model import Array, Batch, Model, batch_size
from stretto.backends.rungs import rung_of, rungs


def padded(model: Model, device: str) -> Model:
    """The model as it is on the CPU, or where it takes one batch size only."""
    return model if device == "cpu" or model.fixed_batch is not None else Padded(model)


class Padded:
    """A model that runs every batch as the next larger rung. Rows behind the batch are zeros: a query that was
    there before might fail again.
    """

    fixed_batch = None

    def __init__(self, model: Model, label: str = "the model"):
        self._model, self._label = model, label
        self.inputs, self.outputs = model.inputs, model.outputs
        self._ladder: tuple[int, ...] = ()

    @property
    def memory_bytes(self) -> int:
        return self._model.memory_bytes

    def prepare(self, batches: Iterable[int]) -> None:
        """Every rung up to the largest."""
        self._climb(max(batches))

    def buffers(self, batch: int) -> dict[str, Array]:
        return {name: array[:batch] for name, array in self._model.buffers(self._rung(batch)).items()}

    def run(self, inputs: Batch) -> dict[str, Array]:
        batch = batch_size(inputs, self.inputs, None, self._label)
        held = self._model.buffers(self._rung(batch))
        for name, array in inputs.items():
            if array.base is not held[name].base or array.ctypes.data != held[name].ctypes.data:
                held[name][:batch] = array
            held[name][batch:] = 0
        return {name: array[:batch] for name, array in self._model.run(held).items()}

    def unload(self) -> None:
        self._model.unload()

    def _rung(self, batch: int) -> int:
        if not self._ladder or batch > self._ladder[-1]:
            self._climb(batch)
        return rung_of(batch, self._ladder)

    def _climb(self, largest: int) -> None:
        if not self._ladder or largest > self._ladder[-1]:
            self._model.prepare(rungs(largest))
            self._ladder = rungs(largest)
