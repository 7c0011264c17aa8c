"""A model from where it comes, with what its backend needs; held to what its application declares."""

from __future__ import annotations

from stretto.backends.model import BackendError, Model, TensorSpec
from stretto.backends.source import ModelSource


def load_model(source: ModelSource) -> Model:
    """A model ready to run, in this process."""
    if source.file is not None and not source.file.is_file():
        raise BackendError(f"there is no file {source.file.name}; put the model there or correct its name")
    model: Model
    if source.backend == "onnx":
        from stretto.backends.onnx import OnnxModel
        from stretto.backends.padded import padded

        model = padded(OnnxModel(source), source.device)
    elif source.backend == "torch":
        from stretto.backends.torch import load_torch

        model = load_torch(source)
    else:
        from stretto.backends.callable import load_callable

        model = load_callable(source)
    try:
        _check_declared(source.label, "input", source.inputs, model.inputs)
        _check_declared(source.label, "output", source.outputs, model.outputs)
    except BackendError:
        model.unload()
        raise
    return model


def _check_declared(label: str, what: str, declared: tuple[TensorSpec, ...], actual: tuple[TensorSpec, ...]) -> None:
    """The model is what its application says it is."""
    if not declared:
        return
    by_name = {spec.name: spec for spec in actual}
    for spec in declared:
        real = by_name.get(spec.name)
        if real is None:
            raise BackendError(f"{label} has no {what} {spec.name}; it has {', '.join(by_name)}")
        if real.numpy_dtype != spec.numpy_dtype:
            raise BackendError(f"{what} {spec.name} of {label} is {real.dtype}, but {spec.dtype} is declared")
        sizes = zip(real.shape, spec.shape, strict=False)
        if len(real.shape) != len(spec.shape) or any(None not in pair and pair[0] != pair[1] for pair in sizes):
            raise BackendError(
                f"{what} {spec.name} of {label} has shape {real.shape_text()}, but {spec.shape_text()} is declared; "
                f"correct one of them"
            )
    undeclared = [name for name in by_name if all(name != spec.name for spec in declared)]
    if what == "input" and undeclared:
        raise BackendError(f"{label} also takes input {undeclared[0]}, which is not declared")
