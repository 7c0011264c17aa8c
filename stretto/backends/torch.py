"""The PyTorch backend: exported programs (.pt2), or weights (.safetensors) for a module that the user's code builds.

Never unpickles. On a GPU a ladder of batch sizes is captured as CUDA graphs (see cuda.py); on the CPU the module runs
eagerly. The number of threads is a setting of the whole process: a worker has its own. cuDNN does not search for its
algorithms: that took 0.35 to 1.9 s for each batch size on an H200, and what it chose by itself was as fast.
"""

from __future__ import annotations

import gc
import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from stretto.backends.callable import RAISED, named_object, reason_of
from stretto.backends.device_failure import device_errors
from stretto.backends.model import (
    Array,
    BackendError,
    Batch,
    BatchFailure,
    DeviceLost,
    NoDevice,
    Parts,
    TensorSpec,
    batch_size,
    check_outputs,
)
from stretto.backends.program import READING, module_on, read_program, take_apart
from stretto.backends.source import PRECISIONS, ModelSource

log = logging.getLogger("stretto.backends")

NO_VIEW = "view size is not compatible"  # of PyTorch, for a network that expects numbers channel by channel


def import_torch() -> Any:
    """PyTorch, or what to install."""
    try:
        import torch
    except ImportError:
        raise BackendError("the torch backend needs PyTorch; install it with: pip install 'stretto[torch]'") from None
    return torch


@cache
def import_ahead() -> None:
    """All that loading an exported program imports, which takes seconds. Nothing where there is no PyTorch, or another
    one: that is told when a model is loaded. It stays, so that the collector never looks at it.
    """
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        for name in ("torch", "torch.export", "torch.export.pt2_archive._package"):
            importlib.import_module(name)
    except ImportError:
        return
    finally:
        gc.collect()
        gc.freeze()
        if was_collecting:
            gc.enable()


def load_torch(source: ModelSource, capture: bool = True) -> TorchModel:
    """From a .pt2 file, or from a .safetensors file and the code that builds its module."""
    import_torch()
    with device_errors(source.label, is_load=True):
        return _loaded(source, capture)


def _loaded(source: ModelSource, capture: bool) -> TorchModel:
    if source.file is None:
        raise BackendError("the torch backend needs a model file, as model.pt2, or model.safetensors plus code")
    suffix = source.file.suffix.lower()
    check_device(source.device)
    if suffix == ".pt2":
        module, inputs, fixed_batch = _exported(source)
    elif suffix == ".safetensors":
        inputs, fixed_batch = source.inputs, None
        module = _built(source)
    else:
        raise BackendError(
            f"{source.label} is neither a .pt2 nor a .safetensors file; pickled models (.pt, .pth) are not loaded, "
            f"because they can run any code"
        )
    takes_bytes = source.takes_bytes and len(inputs) == 1
    if takes_bytes and suffix == ".pt2":
        takes_bytes = inputs[0].numpy_dtype.kind == "f"
        inputs = (replace(inputs[0], dtype="uint8"),) if takes_bytes else inputs
    return TorchModel(
        module,
        inputs,
        tuple(spec.name for spec in source.outputs),
        source.label,
        source.device,
        source.threads,
        fixed_batch,
        capture,
        source.precision,
        source.has_channels_last,
        source.divide_by if takes_bytes else None,
    )


def _exported(source: ModelSource) -> tuple[Any, tuple[TensorSpec, ...], int | None]:
    """The program of a file as a module, what it takes, and the batch where it is fixed."""
    assert source.file is not None
    with READING:
        program = read_program(source.file)
        inputs, fixed_batch = _user_inputs(program, source.label)
        module = module_on(program, source.device, source.has_channels_last)
    if len(inputs) == len(source.inputs):  # the names in the file are those of the arguments of some function
        inputs = tuple(replace(spec, name=given.name) for spec, given in zip(inputs, source.inputs, strict=True))
    return module, inputs, fixed_batch


def check_device(device: str) -> None:
    """Refuses a GPU that is not there."""
    torch = import_torch()
    if device == "cpu":
        return
    if not torch.cuda.is_available():
        raise NoDevice("there is no CUDA device that PyTorch can use here; run on the CPU with device cpu")
    number = device.partition(":")[2] or "0"
    if not number.isdecimal() or int(number) >= torch.cuda.device_count():
        raise NoDevice(f"there is no device {device}; CUDA devices here go up to {torch.cuda.device_count() - 1}")


def _built(source: ModelSource) -> Any:
    """The module that the user's code makes, with the weights of the file in it."""
    assert source.file is not None
    if source.code is None:
        raise BackendError(f"{source.label} holds weights only; name the code that builds its module, as heart:build")
    if not source.inputs:
        raise BackendError(f"{source.label} does not say what it takes; declare its input tensors")
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load
    except ImportError:
        raise BackendError("weights need safetensors; install it with: pip install 'stretto[torch]'") from None
    try:
        weights = load(source.file.read_bytes())  # not mapped: others may write to the file meanwhile
    except (SafetensorError, OSError, ValueError):
        raise BackendError(f"{source.label} is no safetensors file, or is cut off or damaged; copy it again") from None
    build = named_object(source.code, source.folder)
    try:
        module = build()
    except RAISED as error:
        raise BackendError(f"{source.code} could not build a module: {reason_of(error)}") from None
    torch = import_torch()
    if not isinstance(module, torch.nn.Module):
        raise BackendError(f"{source.code} gave a {type(module).__name__}; it must build a torch.nn.Module")
    try:
        missing, unexpected = module.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise BackendError(f"{source.label} does not fit {source.code}: {reason_of(error)}") from None
    if missing or unexpected:
        what = [f"lacks {', '.join(missing[:3])}"] if missing else []
        what += [f"has {', '.join(unexpected[:3])} too many"] if unexpected else []
        raise BackendError(f"{source.label} does not fit {source.code}: it {' and '.join(what)}; name other code")
    return module.eval()


def _user_inputs(program: Any, label: str) -> tuple[tuple[TensorSpec, ...], int | None]:
    """What an exported program takes, and the batch where it is fixed."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    specs, batches = [], set()
    for name in program.graph_signature.user_inputs:
        value = values.get(name)
        if value is None or not value.shape:
            raise BackendError(f"input {name} of {label} has no batch axis; export it with the batch as first axis")
        first, *rest = value.shape
        shape = tuple(size if isinstance(size, int) else None for size in rest)
        specs.append(TensorSpec(name, str(value.dtype).removeprefix("torch."), shape))
        batches.add(first if isinstance(first, int) else None)
    fixed = batches - {None}
    if len(fixed) > 1:
        raise BackendError(f"{label} fixes several batch sizes for its inputs; export it with a dynamic batch")
    return tuple(specs), fixed.pop() if fixed else None


def fitted(module: Any, precision: str, channels_last: bool, divide_by: float | None) -> Any:
    """The module behind what is sent: bytes become numbers, in the float type and the layout that it computes in."""
    torch = import_torch()
    kind = getattr(torch, precision)

    class Fitted(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inside = module.to(kind)
            self.layout = torch.preserve_format
            if channels_last:
                self._lay_out(torch.channels_last)

        def _lay_out(self, layout: Any) -> None:
            with torch.inference_mode(False):
                self.inside = self.inside.to(memory_format=layout)
            self.layout = layout

        def forward(self, *inputs: Any) -> Any:
            try:
                answer = self.inside(*map(self._entering, inputs))
            except RuntimeError as error:
                if self.layout != torch.channels_last or NO_VIEW not in str(error):
                    raise
                # Small batches fit more layouts than large ones do, which are run first: no graph holds the weights as
                # they lie until now.
                log.warning("the network does not compute with channels last, and gets images channel by channel")
                self._lay_out(torch.contiguous_format)
                answer = self.inside(*map(self._entering, inputs))
            if isinstance(answer, Mapping):
                return {name: self._leaving(value) for name, value in answer.items()}
            if isinstance(answer, list | tuple):
                return [self._leaving(value) for value in answer]
            return self._leaving(answer)

        def _entering(self, value: Any) -> Any:
            if divide_by is not None and value.dtype == torch.uint8:
                value = value.float() / divide_by
            if not value.is_floating_point():
                return value
            return value.to(kind, memory_format=self.layout if value.dim() == 4 else torch.preserve_format)

        @staticmethod
        def _leaving(value: Any) -> Any:
            return value.float().contiguous() if value.is_floating_point() else value

    return Fitted()


class TorchModel:
    """A module on one device. `capture=False` runs it eagerly on a GPU too, to compare."""

    def __init__(
        self,
        module: Any,
        inputs: tuple[TensorSpec, ...],
        output_names: Sequence[str] = (),
        label: str = "the module",
        device: str = "cpu",
        threads: int = 1,
        fixed_batch: int | None = None,
        capture: bool = True,
        precision: str = "float32",
        channels_last: bool = False,
        divide_by: float | None = None,
    ):
        torch = import_torch()
        if precision not in PRECISIONS:
            raise BackendError(f"there is no precision {precision[:40]!r}; there are {', '.join(PRECISIONS)}")
        self._torch = torch
        self._label = label
        self._on_gpu = device != "cpu"
        self._output_names = tuple(output_names)
        self.inputs = inputs
        self.fixed_batch = fixed_batch
        self._room: dict[str, Array] = {}
        if self._on_gpu:
            check_device(device)
            if not all(spec.is_fixed for spec in inputs):
                raise BackendError(f"{label} leaves sizes besides the batch open; on a GPU every one must be known")
            device = f"cuda:{device.partition(':')[2] or 0}"
            torch.cuda.set_device(device)
        else:
            torch.set_num_threads(threads)
        self._before = torch.cuda.memory_allocated(device) if self._on_gpu else 0
        self._device = torch.device(device)
        is_as_sent = precision == "float32" and not channels_last and divide_by is None
        self._module: Any = module if is_as_sent else fitted(module, precision, channels_last, divide_by)
        self._module = self._module.to(self._device)
        self._runner: Any = None
        if self._on_gpu:
            from stretto.backends.cuda import GpuRunner

            self._runner = GpuRunner(self._module, inputs, self._device, capture, fixed_batch)
        self.outputs = self._learnt_outputs()

    def _learnt_outputs(self) -> tuple[TensorSpec, ...]:
        """From one batch of zeros: a module does not say what it gives."""
        batch = self.fixed_batch or 1
        outputs = self.run({spec.name: spec.zeros(batch) for spec in self.inputs})
        return tuple(TensorSpec(name, str(array.dtype), array.shape[1:]) for name, array in outputs.items())

    @property
    def memory_bytes(self) -> int:
        if self._on_gpu:
            return int(max(0, self._torch.cuda.memory_allocated(self._device) - self._before))
        held = [*self._module.parameters(), *self._module.buffers()] if self._module is not None else []
        weights = sum(tensor.numel() * tensor.element_size() for tensor in held)
        return int(weights + sum(array.nbytes for array in self._room.values()))

    def prepare(self, batches: Iterable[int]) -> None:
        """On a GPU every batch up to the largest is ready then."""
        if self._runner is None:
            for batch in sorted(set(batches), reverse=True):
                self.run(self.buffers(batch))
            return
        largest = max(batches)
        try:
            with self._torch.inference_mode(), device_errors(self._label):
                self._runner.prepare(largest)
        except (BackendError, DeviceLost):
            raise
        except RAISED as error:
            why = reason_of(error)
            raise BackendError(f"{self._label} cannot be prepared for batches of up to {largest}: {why}") from None

    def launch(self, slot: int, inputs: Parts) -> Launched:
        """On a GPU; for batches that it was prepared for."""
        batch = sum(
            batch_size(dict(zip(inputs, parts, strict=True)), self.inputs, self.fixed_batch, self._label)
            for parts in zip(*inputs.values(), strict=True)
        )
        with self._torch.inference_mode(), device_errors(self._label):
            flight = self._runner.launch(slot, batch, inputs)
        return Launched(flight, self._named, self._label)

    def slot_buffers(self, slot: int, batch: int) -> dict[str, Array]:
        """Pinned memory for a batch that is gathered on this side."""
        return dict(self._runner.buffers(batch, slot))

    @property
    def overlaps(self) -> bool:
        """Whether the next batch may be launched before this one has ended."""
        return self._on_gpu

    def buffers(self, batch: int) -> dict[str, Array]:
        if self._runner is not None:
            return dict(self._runner.buffers(batch))
        for spec in self.inputs:
            if len(self._room.get(spec.name, ())) < batch:
                self._room[spec.name] = spec.zeros(batch)
        return {name: array[:batch] for name, array in self._room.items()}

    def run(self, inputs: Batch) -> dict[str, Array]:
        if self._module is None:
            raise BackendError(f"{self._label} was unloaded; load it again")
        batch = batch_size(inputs, self.inputs, self.fixed_batch, self._label)
        try:
            with self._torch.inference_mode(), device_errors(self._label):
                outputs = self._named(self._answer(batch, inputs))
        except (BatchFailure, DeviceLost):
            raise
        except RAISED as error:
            raise BatchFailure(f"{self._label} failed on a batch of {batch}: {reason_of(error)}") from None
        specs = tuple(TensorSpec(name, str(array.dtype), array.shape[1:]) for name, array in outputs.items())
        check_outputs(outputs, specs, batch, self._label)
        return outputs

    def _answer(self, batch: int, inputs: Batch) -> Any:
        if self._runner is not None:
            return self._runner.run(batch, inputs)
        tensors = [self._torch.from_numpy(_shareable(inputs[spec.name])) for spec in self.inputs]
        return self._module(*tensors)

    def _named(self, answer: Any) -> dict[str, Array]:
        if isinstance(answer, Mapping):
            return {str(name): _array(value) for name, value in answer.items()}
        values = answer if isinstance(answer, list | tuple) else [answer]
        default = ["output"] if len(values) == 1 else [f"output_{number}" for number in range(len(values))]
        names = self._output_names if len(self._output_names) == len(values) else default
        return {name: _array(value) for name, value in zip(names, values, strict=True)}

    def unload(self) -> None:
        if self._module is not None:
            take_apart(self._module)
        self._module, self._runner, self._room = None, None, {}
        if self._on_gpu:
            self._torch.cuda.empty_cache()


@dataclass(frozen=True)
class Launched:
    """A batch on its way, as its model names the answers."""

    flight: Any
    named: Callable[[Any], dict[str, Array]]
    label: str

    def is_done(self) -> bool:
        with device_errors(self.label):
            return bool(self.flight.is_done())

    def answers(self) -> dict[str, Array]:
        with device_errors(self.label):
            return self.named(self.flight.answers())


def _shareable(array: Array) -> Array:
    """PyTorch shares memory with writable arrays only; a read-only one is copied."""
    return array if array.flags.writeable else np.array(array)


def _array(value: Any) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "numpy"):
        raise BatchFailure(f"the module gave a {type(value).__name__}; it must give tensors")
    return np.asarray(value.detach().numpy())
