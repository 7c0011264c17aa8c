"""The ONNX Runtime backend, on the CPU or, with a build of the runtime for it, on a GPU.

Inputs and outputs are bound by address once for each batch size, so a run in the model's own buffers costs no copy and
no binding. Runs release Python's lock. Threads of the pool sleep when idle unless asked to spin.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stretto.backends.device_failure import device_failure
from stretto.backends.model import Array, BackendError, Batch, BatchFailure, TensorSpec, batch_size, check_outputs
from stretto.backends.onnx_bytes import AS_BYTES, taking_bytes
from stretto.backends.progress import prepared
from stretto.backends.resident import resident_bytes
from stretto.backends.source import ModelSource
from stretto.core.errors import StrettoError
from stretto.repository.onnx_header import read_onnx_header
from stretto.repository.profiles import file_sha256

log = logging.getLogger("stretto.backends")
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
SILENT = 4  # only fatal messages; what goes wrong is raised, with a sentence
ERRORS = 3  # and errors, as of a library that cannot be loaded
MAX_REASON = 300


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
        before = resident_bytes()
        self._sessions: dict[int, Any] = {0: new_session(source, spin)}  # the first is nobody's yet
        nodes, answers = self._sessions[0].get_inputs(), self._sessions[0].get_outputs()
        assert source.file is not None
        self._weights_bytes = max(resident_bytes() - before, source.file.stat().st_size)
        self._behind = AS_BYTES if source.takes_bytes and all(node.name.endswith(AS_BYTES) for node in nodes) else ""
        self.inputs, input_batches = self._specs(nodes, "input", self._behind)
        self.outputs, _ = self._specs(answers, "output")
        fixed = {size for size in input_batches if size is not None}
        if len(fixed) > 1:
            raise BackendError(f"{self._label} fixes several batch sizes; export it with a dynamic batch")
        self.fixed_batch: int | None = fixed.pop() if fixed else None
        self._room: dict[str, Array] = {}
        self._by_batch: dict[int, _Bound] = {}

    def _specs(self, nodes: Any, what: str, behind: str = "") -> tuple[tuple[TensorSpec, ...], list[int | None]]:
        specs, batches = [], []
        for node in nodes:
            if node.type not in DTYPES:
                raise BackendError(f"{what} {node.name} of {self._label} is a {node.type}; tensors must be numbers")
            if not node.shape:
                raise BackendError(
                    f"{what} {node.name} of {self._label} has no batch axis; export it with the batch as first axis"
                )
            first, *rest = (size if isinstance(size, int) and size > 0 else None for size in node.shape)
            specs.append(TensorSpec(node.name.removesuffix(behind), DTYPES[node.type], tuple(rest)))
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
                if self._on_gpu or state.bound[name] is not array:  # what is bound for a GPU is copied to it at once
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
            self._sessions[batch] = first or new_session(self._source, self._spin)
        return self._sessions[batch]

    def _bind_input(self, state: _Bound, name: str, array: Array) -> None:
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        state.binding.bind_input(name + self._behind, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        state.bound[name] = array  # kept, so that the address stays good

    def _array(self, what: str, spec: TensorSpec, batch: int) -> Array:
        """The first rows of memory that all batch sizes share; bindings to memory it outgrew are forgotten."""
        key = f"{what} {spec.name}"
        if len(self._room.get(key, ())) < batch:
            self._room[key] = spec.zeros(batch)
            self._by_batch.clear()
        return self._room[key][:batch]


def new_session(source: ModelSource, spin: bool) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise BackendError("ONNX models need ONNX Runtime; install it with: pip install onnxruntime") from None
    if source.file is None:
        raise BackendError("the onnx backend needs a model file, as model.onnx")
    on_gpu = source.device != "cpu"
    providers = gpu_providers(source, onnxruntime) if on_gpu else ["CPUExecutionProvider"]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = source.threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = SILENT
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    model: str | bytes = str(source.file)
    if source.takes_bytes:
        model = taking_bytes(source)
        folder = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(folder, str(source.file.parent))
    if on_gpu:
        find_cuda(onnxruntime)
    try:
        session = onnxruntime.InferenceSession(model, options, providers=providers)
    except Exception as error:  # the runtime's errors have no common parent
        raise BackendError(load_problem(source.label, str(error))) from None
    if on_gpu and session.get_providers()[0] == "CPUExecutionProvider":
        raise BackendError(f"{source.label}: ONNX Runtime cannot use {source.device} here; it says why in its log")
    return session


def gpu_providers(source: ModelSource, onnxruntime: Any) -> list[Any]:
    """Of a session on a GPU: TensorRT where it is installed, then CUDA, which has every operator, then the CPU."""
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise BackendError(
            f"{source.label}: this ONNX Runtime has no CUDA; install onnxruntime-gpu in its place, or serve the model "
            "as an exported program of PyTorch"
        )
    device = int(source.device.partition(":")[2] or 0)
    # By itself CUDA would try every algorithm of every convolution, for seconds at the first run of each batch size.
    # And it would take twice the memory each time it needs more; here the largest batch comes first.
    cuda = {
        "device_id": device,
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
    }
    providers: list[Any] = [("CUDAExecutionProvider", cuda), "CPUExecutionProvider"]
    if importlib.util.find_spec("tensorrt") is not None:
        assert source.file is not None
        providers.insert(0, ("TensorrtExecutionProvider", {"device_id": device} | engine_cache(source.file, device)))
    return providers


def find_cuda(onnxruntime: Any) -> None:
    """CUDA's libraries may lie in packages of pip, as PyTorch's do, where no loader looks by itself."""
    onnxruntime.set_default_logger_severity(ERRORS)  # it warns of plug-ins that nobody asked for, at every session
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        onnxruntime.preload_dlls()
    if said.getvalue():
        log.warning("ONNX Runtime, looking for CUDA's libraries: %s", " ".join(said.getvalue().split()))


def engine_cache(file: Path, device: int) -> dict[str, Any]:
    """Options of TensorRT: engines, which take long to build, are kept in the user's cache, if that can be written.

    ONNX Runtime knows its engines by the names in a graph, whatever the weights: each model, by content, has a folder
    of its own. So has each GPU: two processes would write the same file.
    """
    from stretto.core.compile_cache import user_folder  # imports Numba

    try:
        files = [file, *(file.parent / name for name in read_onnx_header(file).external)]
        digest = hashlib.sha256(" ".join(map(file_sha256, files)).encode()).hexdigest()
        folder = user_folder().parent / "engines" / f"{digest[:24]}-{device}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, StrettoError):
        return {}
    return {"trt_engine_cache_enable": True, "trt_engine_cache_path": str(folder)}


def load_problem(label: str, message: str) -> str:
    """What ONNX Runtime says about a file, as a sentence without paths."""
    lowered = message.lower()
    if "external" in lowered:
        named = re.findall(r'"([^"]+)"|\[([^\]]+\.\w+)\]', message)
        file = next((part.rpartition("/")[2] for pair in named for part in pair if part), "")
        which = f" in {file}" if file else " in an external data file"
        if "out of bounds" in lowered or "file_length" in lowered:
            return f"{label} keeps weights in an external data file that is too short; copy the file again"
        if "escapes" in lowered or "outside" in lowered:
            return f"{label} keeps weights{which}, outside its own folder; put that file beside the model"
        return f"{label} keeps weights{which}, which cannot be read; put that file beside the model"
    if "protobuf" in lowered or "no graph was found" in lowered:
        return f"{label} is no ONNX model, or is cut off or damaged; copy or export it again"
    if "unsupported model ir version" in lowered or "opset" in lowered:
        return f"{label} was made for a newer ONNX Runtime ({run_problem(message)}); update it or export again"
    return f"{label} cannot be loaded: {run_problem(message)}; export it again"


def run_problem(message: str) -> str:
    """The last and most exact part of a message of ONNX Runtime, without the places in its source."""
    text = " ".join(message.split())
    for mark in (r".*ONNXRuntimeError\] : \d+ : \w+ : ", r".*Status Message: ", r"^Error in execution: "):
        text = re.sub(mark, "", text)
    text = re.sub(r"\S*\w+\.(cc|h|cpp):\d+ (\S+ ){0,4}?\S*\([^)]*\)\s*", "", text)
    text = re.sub(r"(?<!\S)\"?/\S+", "", text).strip()
    return text[:MAX_REASON].rstrip(". ") or "no reason given"
