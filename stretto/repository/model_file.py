"""The model of a variant: where it lies, and whether it is what the application says. Nothing of it is run here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stretto.config.fields import Fields
from stretto.core.errors import StrettoError
from stretto.repository.files import Place
from stretto.repository.onnx_header import OnnxHeader, OnnxTensor, read_onnx_header
from stretto.repository.onnx_tensors import tensor_problem
from stretto.repository.tensors import InputTensor, OutputTensor, shape_list, shape_text

# What each way of keeping a model ends in. Pickles (.pt, .pth, .pkl, .bin) are not among them.
SUFFIXES = {"onnx": ".onnx", "exported": ".pt2", "safetensors": ".safetensors"}


@dataclass(frozen=True)
class ModelFile:
    """`path` is the real one, behind all links; `header` is there where the file is ONNX."""

    place: Place
    path: Path
    header: OnnxHeader | None = None


def find_model(folder: Place, fields: Fields | None, kept_as: str, max_bytes: int) -> ModelFile:
    """The file that variant.toml names, or model.onnx, model.pt2, model.safetensors. `kept_as` is a key of SUFFIXES."""
    suffix = SUFFIXES[kept_as]
    place = folder.child(f"model{suffix}")
    if fields is not None and fields.has("file"):
        place = folder.named(fields, "file")
        if not place.path.name.endswith(suffix):
            fields.fail(f"file must end in {suffix} for {kept_as}; pickles are not read", "file")
        if not place.exists():
            fields.fail(f"there is no {place.label}; put the model there or correct file", "file")
    elif not place.exists():
        folder.fail(f"there is no model; put it there as {place.path.name}, or name it in variant.toml: file = …")
    path = place.file(max_bytes)
    if path.stat().st_size == 0:
        place.fail("is empty; copy the model again")
    return ModelFile(place, path, _header(place, path, max_bytes) if kept_as == "onnx" else None)


def _header(place: Place, path: Path, max_bytes: int) -> OnnxHeader:
    try:
        header = read_onnx_header(path)
    except OSError as error:
        place.fail(f"cannot be read ({error.strerror or 'input error'})")
    except StrettoError as error:
        place.fail(str(error))
    for location in header.external:
        weights = Place(place.boundary, path.parent / location, f"{place.label.rpartition('/')[0]}/{location}")
        if not weights.exists():
            place.fail(f"keeps its weights in {location}, which is not there; copy that file too")
        weights.file(max_bytes)
    return header


def check_tensors(
    model: ModelFile, takes: InputTensor, gives: OutputTensor, shape: tuple[int, ...], max_batch: int | None
) -> None:
    """Refuses an ONNX model that is not what it is declared to be; `shape` is the input of this variant."""
    if model.header is None:
        return
    place, header = model.place, model.header
    for what, tensors in (("input", header.inputs), ("output", header.outputs)):
        for tensor in tensors:
            rank = None if tensor.shape is None else len(tensor.shape)
            problem = tensor_problem(what, tensor.name, str(tensor.dtype), tensor.is_number, rank)
            if problem is not None:
                place.fail(problem)
    found_input = _named(place, "input", header.inputs, takes.name)
    found_output = _named(place, "output", header.outputs, gives.name)
    if len(header.inputs) > 1:
        other = next(tensor.name for tensor in header.inputs if tensor is not found_input)
        place.fail(f"takes a second input {other[:40]}; a query is one tensor, so export it with one input")
    is_divided = takes.stays_bytes and takes.divide_by is not None and (found_input.dtype or "").startswith("float")
    dtype = str(found_input.dtype) if is_divided else takes.dtype
    _check_tensor(place, "input", found_input, dtype, shape)
    _check_tensor(place, "output", found_output, gives.dtype, gives.shape)
    fixed = found_input.shape[0] if found_input.shape else None
    if fixed is not None and (fixed != 1 or max_batch != 1):
        instead = ", or write max_batch = 1 in variant.toml" if fixed == 1 else ""
        place.fail(f"takes batches of exactly {fixed}; export it with a dynamic batch axis{instead}")


def _named(place: Place, what: str, tensors: tuple[OnnxTensor, ...], name: str) -> OnnxTensor:
    for tensor in tensors:
        if tensor.name == name:
            return tensor
    has = ", ".join(tensor.name[:40] for tensor in tensors[:5]) or "none"
    place.fail(f"has no {what} {name}; it has {has}. Correct name in [{what}] of app.toml, or export it again")


def _check_tensor(place: Place, what: str, tensor: OnnxTensor, dtype: str, shape: tuple[int, ...]) -> None:
    """Everything but the batch; a size that the model leaves free is any."""
    if tensor.dtype is not None and tensor.dtype != dtype:
        place.fail(f"has {what} {tensor.name} of {tensor.dtype}, but {dtype} is declared; correct [{what}] of app.toml")
    if tensor.shape is None:
        return
    real = tensor.shape[1:]
    if len(real) == len(shape) and all(size in (None, want) for size, want in zip(real, shape, strict=True)):
        return
    known = tuple(size for size in real if size is not None)
    remedy = f"correct [{what}] of app.toml"
    if what == "input" and len(known) == len(real):
        remedy += f", or, for this variant alone, write input_shape = {shape_list(known)} in variant.toml"
    place.fail(f"has {what} {tensor.name} of {shape_text(real)}, but {shape_text(shape)} is declared; {remedy}")
