"""sample.npz: a few labelled queries of an application, for demos, tests and a check of accuracy.

"inputs" are queries as clients send them and "labels" their classes; "inputs_VARIANT" are the same queries as a variant
of another input size takes them. Pickled objects are never read, and no more memory is taken than the file's own size
says it needs.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.config.fields import ConfigError
from stretto.repository.files import Place
from stretto.repository.tensors import shape_text

SAMPLE_FILE = "sample.npz"
MAX_FILE_BYTES = 2**30
MAX_ARRAY_BYTES = 2**31
MAX_ARRAYS = 10_000
NUMBERS = "biuf"
NOT_SOUND = "is no sound .npz file of numbers; write it again with numpy.savez_compressed"


@dataclass(frozen=True)
class SampleFile:
    """Stored numbers are divided by `divide_by`: images may be kept as the bytes that they were.

    With `whole_only`, fractions are left alone: labelled data from elsewhere may be scaled already.
    """

    place: Place
    divide_by: float = 1.0
    whole_only: bool = False

    @property
    def path(self) -> Path:
        return self.place.path


@dataclass(frozen=True, eq=False)
class Sample:
    """Queries with their true classes, in the dtype and shape that the variant takes."""

    inputs: NDArray[Any]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


def check_sample(sample: SampleFile, shape: tuple[int, ...]) -> None:
    """From the headers alone: whether the arrays are there and of the right shapes."""
    shapes = array_headers(sample.place)
    for name in ("inputs", "labels"):
        if name not in shapes:
            sample.place.fail(f"has no array {name}; it must hold inputs and labels")
    (inputs, inputs_dtype), (labels, labels_dtype) = shapes["inputs"], shapes["labels"]
    if inputs_dtype.kind not in NUMBERS or labels_dtype.kind not in "iu" or len(labels) != 1:
        sample.place.fail("must hold numbers as inputs and one whole number per query as labels")
    if labels[0] == 0:
        sample.place.fail("holds no query; put a few labelled ones in, or remove the file")
    if inputs != (labels[0], *shape):
        sample.place.fail(
            f"inputs are {shape_text(inputs)}, but {labels[0]} labels and an input of {shape_text(shape)} need "
            f"{shape_text((labels[0], *shape))}"
        )


def load_sample(sample: SampleFile, variant: str | None, dtype: str, shape: tuple[int, ...], classes: int) -> Sample:
    """The queries as a variant takes them (`variant` None: as clients send them)."""
    place = sample.place
    headers = array_headers(place)
    name = f"inputs_{variant}" if f"inputs_{variant}" in headers else "inputs"
    for needed in (name, "labels"):
        if needed not in headers:
            place.fail(f"has no array {needed}; it must hold inputs and labels")
    try:
        with np.load(place.file(MAX_FILE_BYTES), allow_pickle=False) as arrays:
            inputs, labels = arrays[name], arrays["labels"]
    except ConfigError:
        raise
    except Exception:  # as in array_headers
        place.fail(NOT_SOUND)
    if inputs.dtype.kind not in NUMBERS or labels.dtype.kind not in "iu" or labels.ndim != 1 or not len(labels):
        place.fail("must hold numbers as inputs and one whole number per query as labels, of one query at least")
    if inputs.shape != (len(labels), *shape):
        needs = shape_text((len(labels), *shape))
        place.fail(
            f"{name} are {shape_text(inputs.shape)}, but {needs} are needed"
            + (f"; add an array inputs_{variant}" if variant is not None and name == "inputs" else "")
        )
    highest = int(labels.max())
    if int(labels.min()) < 0 or (classes and highest >= classes):
        place.fail(f"has labels from {int(labels.min())} to {highest}, but there are {classes} classes, from 0")
    if sample.divide_by != 1 and (inputs.dtype.kind in "iu" or not sample.whole_only):
        inputs = inputs / np.float64(sample.divide_by)
    made = as_taken(inputs, dtype)
    if made is None:
        place.fail(not_taken(name, dtype, sample.divide_by))
    return Sample(made, labels.astype(np.int64))


def as_taken(inputs: NDArray[Any], dtype: str) -> NDArray[Any] | None:
    """As an application of this dtype takes them; None where it takes whole numbers and these are others, which would
    be cut down to zeros.
    """
    with np.errstate(invalid="ignore"):
        made = np.ascontiguousarray(inputs, dtype=np.dtype(dtype))
    return None if made.dtype.kind in "iu" and not np.array_equal(made, inputs) else made


def not_taken(name: str, dtype: str, divide_by: float) -> str:
    divided = f" when they are divided by {divide_by:g}, as [sample] of app.toml says" if divide_by != 1 else ""
    return f"{name} hold numbers that are no {dtype}{divided}; store them as the application takes them"


def array_headers(place: Place) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of each array, held against the bytes that are really there."""
    path = place.file(MAX_FILE_BYTES)
    headers: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) > MAX_ARRAYS:
                place.fail(f"holds more than {MAX_ARRAYS} arrays")
            for member in members:
                with archive.open(member) as file:
                    header = _header(file)
                    content = member.file_size - file.tell()
                if np.prod(header[0], dtype=object) * header[1].itemsize != content or content > MAX_ARRAY_BYTES:
                    raise ValueError("the header does not tell what is there")
                headers[member.filename.removesuffix(".npy")] = header
    except ConfigError:
        raise
    except Exception:  # zipfile, zlib and numpy raise a dozen kinds on files that are cut short or made up
        place.fail(NOT_SOUND)
    return headers


def _header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("pickled objects are not read")
    return shape, dtype
