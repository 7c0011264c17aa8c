"""Runs a module on a GPU, each batch size captured once as a CUDA graph.

A graph holds the copy of the inputs to the GPU, all kernels, and the copy of the answers back, at fixed addresses; a
run is one launch. Launching kernel by kernel is what small batches spend their time on otherwise. All graphs of a model
share one pool of memory, which is sound because one batch runs at a time and its answers leave before the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.backends.model import Array, Batch, TensorSpec

WARM_RUNS = 3  # before a capture: lazy initialisation and cuDNN's choice of algorithms must not be captured


@dataclass
class _Prepared:
    """One batch size: pinned host arrays at both ends, and what lies between."""

    host_inputs: dict[str, Any]
    inputs: dict[str, Array]  # the same memory, as arrays
    device_inputs: dict[str, Any]
    graph: Any = None
    host_outputs: Any = None
    outputs: Any = None


class GpuRunner:
    """With `capture` off the same copies and kernels are launched one by one."""

    def __init__(self, module: Any, specs: tuple[TensorSpec, ...], device: Any, capture: bool):
        import torch

        self._torch = torch
        self._module = module
        self._specs = specs
        self._device = device
        self._capture = capture
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = None
        self._by_batch: dict[int, _Prepared] = {}

    def buffers(self, batch: int) -> dict[str, Array]:
        """Pinned memory that the GPU reads directly."""
        return self._prepared(batch).inputs

    def run(self, batch: int, inputs: Batch) -> Any:
        """The answers, in the nesting that the module gives them, as arrays over pinned memory."""
        prepared = self._prepared(batch)
        for name, array in prepared.inputs.items():
            if inputs[name] is not array:
                np.copyto(array, inputs[name])
        with self._torch.cuda.stream(self._stream):
            if not self._capture:
                self._launch(prepared)
            else:
                if prepared.graph is None:
                    self._captured(prepared)
                prepared.graph.replay()
            self._stream.synchronize()
        return prepared.outputs

    def _prepared(self, batch: int) -> _Prepared:
        if batch not in self._by_batch:
            torch = self._torch
            host, device = {}, {}
            for spec in self._specs:
                tensor = torch.from_numpy(spec.zeros(batch))
                host[spec.name] = tensor.pin_memory()
                device[spec.name] = torch.empty_like(tensor, device=self._device)
            self._by_batch[batch] = _Prepared(host, {name: tensor.numpy() for name, tensor in host.items()}, device)
        return self._by_batch[batch]

    def _captured(self, prepared: _Prepared) -> None:
        torch = self._torch
        for _ in range(WARM_RUNS):
            self._launch(prepared)
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            self._launch(prepared)
        self._pool = self._pool or graph.pool()
        prepared.graph = graph

    def _launch(self, prepared: _Prepared) -> None:
        for name, tensor in prepared.device_inputs.items():
            tensor.copy_(prepared.host_inputs[name], non_blocking=True)
        answer = self._module(*prepared.device_inputs.values())
        if prepared.host_outputs is None:
            self._stream.synchronize()
            prepared.host_outputs = _mapped(answer, lambda t: self._torch.empty_like(t, device="cpu").pin_memory())
            prepared.outputs = _mapped(prepared.host_outputs, lambda t: t.numpy())
        for host, value in zip(_flat(prepared.host_outputs), _flat(answer), strict=True):
            host.copy_(value, non_blocking=True)


def _mapped(answer: Any, change: Any) -> Any:
    if isinstance(answer, Mapping):
        return {name: change(value) for name, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [change(value) for value in answer]
    return change(answer)


def _flat(answer: Any) -> list[Any]:
    if isinstance(answer, Mapping):
        return list(answer.values())
    return list(answer) if isinstance(answer, list | tuple) else [answer]
