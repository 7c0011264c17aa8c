"""The Python backend: a function, or an object that can be called, from a batch to an answer.

One input comes as an array, several as a dict by name; the answer is an array, or a dict by name. docs/repository.md
says the same to users, under "A variant in Python".
"""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from stretto.backends.model import Array, BackendError, Batch, BatchFailure, TensorSpec, batch_size, check_outputs
from stretto.backends.source import ModelSource
from stretto.repository.model_code import code_sha256, module_beside

REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
MAX_REASON = 300
RAISED = (Exception, SystemExit)  # by a model's own code: sys.exit() must end neither a worker nor a command


def named_object(reference: str, folder: Path | None = None) -> Any:
    """What "module:name" names: in `folder`, beside the model, where that has such a module, else in what is installed.

    The module is imported: the reference must come from somebody trusted to run code.
    """
    if not REFERENCE.fullmatch(reference):
        raise BackendError(f"{reference[:80]!r} is no code reference; write module:function, as models.heart:classify")
    module_name, _, name = reference.partition(":")
    package = None
    if folder is not None and module_beside(folder, reference) is not None:
        package = _package_of(folder, reference)
    try:
        module = importlib.import_module(module_name if package is None else f"{package}.{module_name}")
    except ModuleNotFoundError as error:
        missing = (error.name or module_name).removeprefix(f"{package}.")
        where = f", nor {module_name.replace('.', '/')}.py beside the model" if missing == module_name else ""
        raise BackendError(f"{reference} cannot be imported: there is no module {missing}{where}; install it") from None
    except RAISED as error:
        raise BackendError(f"{reference} cannot be imported: {reason_of(error)}") from None
    if not hasattr(module, name):
        raise BackendError(f"module {module_name} has no {name}; correct the reference {reference}")
    return getattr(module, name)


def _package_of(folder: Path, code: str) -> str:
    """The folder of a variant as a package of its own, whose name nobody else has: modules of two variants may have the
    same name, none of them hides an installed one, and one that has changed is another.
    """
    digest = hashlib.sha256(f"{folder.resolve()} {code_sha256(folder, code)}".encode()).hexdigest()
    name = f"stretto_variant_{digest[:24]}"
    if name not in sys.modules:
        importlib.invalidate_caches()
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    return name


def reason_of(error: BaseException) -> str:
    """An exception in one line of bounded length."""
    text = " ".join(str(error)[: 10 * MAX_REASON].split())[:MAX_REASON]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def load_callable(source: ModelSource) -> CallableModel:
    """The function that `source.code` names; a class is made into an object first, where it may load weights."""
    if source.code is None:
        raise BackendError("the callable backend needs code to call, as module:function")
    if not source.inputs:
        raise BackendError(f"{source.code} does not say what it takes; declare its input tensors")
    if source.device != "cpu":
        raise BackendError(f"{source.code} runs where its own code says; leave the device at cpu")
    function = named_object(source.code, source.folder)
    if isinstance(function, type):
        try:
            function = function()
        except RAISED as error:
            raise BackendError(f"{source.code} could not be made: {reason_of(error)}") from None
    return CallableModel(function, source.inputs, source.outputs, source.label)


class CallableModel:
    """`function` is called with the very array that `run` was given."""

    fixed_batch = None

    def __init__(
        self,
        function: Callable[[Any], Any],
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...] = (),
        label: str = "the function",
    ):
        if not callable(function):
            raise BackendError(f"{label} is a {type(function).__name__}, which cannot be called; name a function")
        self.inputs = inputs
        self.outputs = outputs
        self._function: Callable[[Any], Any] | None = function
        self._label = label
        self._room: dict[str, Array] = {}

    @property
    def memory_bytes(self) -> int:
        """Only the buffers are known; what the function itself holds shows when it is profiled."""
        return sum(array.nbytes for array in self._room.values())

    def prepare(self, batches: Iterable[int]) -> None:
        for batch in batches:
            self.buffers(batch)

    def buffers(self, batch: int) -> dict[str, Array]:
        for spec in self.inputs:
            if len(self._room.get(spec.name, ())) < batch:
                self._room[spec.name] = spec.zeros(batch)
        return {name: array[:batch] for name, array in self._room.items()}

    def run(self, inputs: Batch) -> dict[str, Array]:
        if self._function is None:
            raise BackendError(f"{self._label} was unloaded; load it again")
        batch = batch_size(inputs, self.inputs, None, self._label)
        given: Any = inputs[self.inputs[0].name] if len(self.inputs) == 1 else dict(inputs)
        try:
            answer = self._function(given)
        except RAISED as error:
            raise BatchFailure(f"{self._label} failed on a batch of {batch}: {reason_of(error)}") from None
        outputs = self._named(answer)
        specs = self.outputs or tuple(TensorSpec(name, "float32", array.shape[1:]) for name, array in outputs.items())
        check_outputs(outputs, specs, batch, self._label)
        return outputs

    def unload(self) -> None:
        unload = getattr(self._function, "unload", None)
        self._function, self._room = None, {}
        if callable(unload):
            unload()

    def _named(self, answer: Any) -> dict[str, Array]:
        if isinstance(answer, Mapping):
            return {str(name): np.asarray(value) for name, value in answer.items()}
        name = self.outputs[0].name if self.outputs else "output"
        array = np.asarray(answer)
        if array.dtype == object:
            raise BatchFailure(f"{self._label} gave a {type(answer).__name__}, which is no array of numbers")
        return {name: array}
