"""The ONNX Runtime backend, on the CPU or, with a build of the runtime for it, on a GPU.

Inputs and outputs are bound by address once for each batch size, so a run in the model's own buffers costs no copy and
no binding on the CPU. Runs release Python's lock. Threads of the pool sleep when idle unless asked to spin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.backends.device_failure import device_failure
from stretto.backends.model import Array, BackendError, Batch, BatchFailure, TensorSpec, batch_size, check_outputs
from stretto.backends.onnx_bytes import AS_BYTES, taking_bytes
from stretto.backends.onnx_session import new_session, providers_of, run_problem
from stretto.backends.progress import prepared
from stretto.backends.resident import resident_bytes
from stretto.backends.source import ModelSource
from stretto.repository.onnx_tensors import tensor_problem

DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(bool)": "bool",
}


@dataclass
class _Bound:
    """One batch size: its session and binding, the arrays bound at present, and the model's own arrays."""

    session: Any
    binding: Any
    bound: dict[str, Array]
    inputs: dict[str, Array]
    outputs: dict[str, Array]  # empty where the runtime allocates them, because their shape is not known ahead


class OnnxModel:
    """A session of ONNX Runtime; on a GPU one for each batch size.

    There the plans of all convolutions are made anew when a session meets another size than it had the time before,
    which takes 0.1 s for a network of fifty layers.
    """

    def __init__(self, source: ModelSource, spin: bool = False):
        self._source, self._spin = source, spin
        self._label, self._on_gpu = source.label, source.device != "cpu"
        self._providers = providers_of(source)
        self._names: dict[str, str] = {}  # in the graph, of inputs that have another there
        before = resident_bytes()
        self._sessions: dict[int, Any] = {0: self._new_session()}  # the first is nobody's yet
        assert source.file is not None
        self._weights_bytes = max(resident_bytes() - before, source.file.stat().st_size)
        self.inputs, input_batches = self._specs(self._sessions[0].get_inputs(), "input")
        self.outputs, _ = self._specs(self._sessions[0].get_outputs(), "output")
        fixed = {size for size in input_batches if size is not None}
        if len(fixed) > 1:
            raise BackendError(f"{self._label} fixes several batch sizes; export it with a dynamic batch")
        self.fixed_batch: int | None = fixed.pop() if fixed else None
        self._room: dict[str, Array] = {}
        self._by_batch: dict[int, _Bound] = {}

    def _new_session(self) -> Any:
        source = self._source
        content = taking_bytes(source) if source.takes_bytes else None
        if content is not None:
            self._names = {source.inputs[0].name: source.inputs[0].name + AS_BYTES}
        return new_session(source, self._providers, content, self._spin)

    def _specs(self, nodes: Any, what: str) -> tuple[tuple[TensorSpec, ...], list[int | None]]:
        specs, batches = [], []
        known_as = {name: known for known, name in self._names.items()} if what == "input" else {}
        for node in nodes:
            problem = tensor_problem(what, node.name, node.type, node.type in DTYPES, len(node.shape))
            if problem is not None:
                raise BackendError(f"{self._label} {problem}")
            first, *rest = (size if isinstance(size, int) and size > 0 else None for size in node.shape)
            specs.append(TensorSpec(known_as.get(node.name, node.name), DTYPES[node.type], tuple(rest)))
            batches.append(first)
        return tuple(specs), batches

    @property
    def memory_bytes(self) -> int:
        return self._weights_bytes + sum(array.nbytes for array in self._room.values())

    def prepare(self, batches: Iterable[int]) -> None:
        """Binds each size and runs it once, so that the runtime has planned its memory; on a GPU twice, for what is
        planned in the first run is taken in the second.
        """
        sizes = sorted(set(batches), reverse=True)
        for number, batch in enumerate(sizes):
            prepared(number, len(sizes))
            for _ in range(2 if self._on_gpu else 1):
                self.run(self.buffers(batch))

    def buffers(self, batch: int) -> dict[str, Array]:
        return dict(self._bound(batch).inputs)

    def run(self, inputs: Batch) -> dict[str, Array]:
        batch = batch_size(inputs, self.inputs, self.fixed_batch, self._label)
        state = self._bound(batch)
        try:
            for name, array in inputs.items():
                if self._on_gpu or state.bound[name] is not array:
                    self._bind_input(state, name, array)
            state.session.run_with_iobinding(state.binding)  # run options would cost 0.1 ms a run
        except Exception as error:
            failure = device_failure(self._label, str(error)) if self._on_gpu else None
            raise failure or BatchFailure(self._run_reason(batch, str(error))) from None
        if state.outputs:
            return dict(state.outputs)
        values = state.binding.copy_outputs_to_cpu()
        outputs = {spec.name: np.asarray(value) for spec, value in zip(self.outputs, values, strict=True)}
        check_outputs(outputs, self.outputs, batch, self._label)
        return outputs

    def _run_reason(self, batch: int, message: str) -> str:
        answer = re.search(r"output OrtValue .* output '([^']*)' .*computed output shape .* \{([\d,]*)\}", message)
        if answer is None:
            return f"{self._label} failed on a batch of {batch}: {run_problem(message)}"
        name, shape = answer.group(1), answer.group(2).replace(",", ", ")
        return f"output {name} of {self._label} has shape ({shape}) for a batch of {batch}: not one answer a query"

    def unload(self) -> None:
        self._by_batch, self._room, self._sessions = {}, {}, {}

    def _bound(self, batch: int) -> _Bound:
        state = self._by_batch.get(batch)
        return state if state is not None else self._bind(batch)

    def _bind(self, batch: int) -> _Bound:
        session = self._session_for(batch)
        inputs = {spec.name: self._array("input", spec, batch) for spec in self.inputs}
        known = all(spec.is_fixed for spec in self.outputs)
        outputs = {spec.name: self._array("output", spec, batch) for spec in self.outputs} if known else {}
        binding = session.io_binding()
        state = _Bound(session, binding, {}, inputs, outputs)
        if not self._on_gpu:  # what is bound for a GPU is copied to it at once, and bound for each run
            for name, array in inputs.items():
                self._bind_input(state, name, array)
        for spec in self.outputs:
            if known:
                array = outputs[spec.name]
                binding.bind_output(spec.name, "cpu", 0, spec.numpy_dtype.type, array.shape, array.ctypes.data)
            else:
                binding.bind_output(spec.name)
        self._by_batch[batch] = state
        return state

    def _session_for(self, batch: int) -> Any:
        if not self._sessions:
            raise BackendError(f"{self._label} was unloaded; load it again")
        if not self._on_gpu:
            return self._sessions[0]
        if batch not in self._sessions:
            first = self._sessions.pop(0, None)
            self._sessions[batch] = first or self._new_session()
        return self._sessions[batch]

    def _bind_input(self, state: _Bound, name: str, array: Array) -> None:
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        state.binding.bind_input(
            self._names.get(name, name), "cpu", 0, array.dtype.type, array.shape, array.ctypes.data
        )
        state.bound[name] = array  # kept, so that the address stays good

    def _array(self, what: str, spec: TensorSpec, batch: int) -> Array:
        """The first rows of memory that all batch sizes share; bindings to memory it outgrew are forgotten."""
        key = f"{what} {spec.name}"
        if len(self._room.get(key, ())) < batch:
            self._room[key] = spec.zeros(batch)
            self._by_batch.clear()
        return self._room[key][:batch]
