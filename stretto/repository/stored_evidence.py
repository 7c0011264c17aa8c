"""An application's stored evidence: evidence/evidence.json, what was built and measured, and evidence/vectors.npz.

The vectors are plain numbers, never a pickle and never an index file of Faiss: an index is built from them when they
are loaded. A vector is kept as bytes, value = low + scale · byte, with one scale for all dimensions so that distances
keep their meaning.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.config.fields import ConfigError, Fields
from stretto.core.evidence import MAX_ALPHA
from stretto.repository.evidence import INDEXES, MAX_DIMENSIONS, MAX_K, MAX_LAYER_NAME
from stretto.repository.files import Place
from stretto.repository.profiles import file_sha256
from stretto.repository.sample import MAX_FILE_BYTES, NOT_SOUND, array_headers
from stretto.repository.tensors import InputTensor, OutputTensor, read_shape, shape_text

EVIDENCE_FOLDER = "evidence"
DESCRIPTION_FILE = "evidence.json"
VECTORS_FILE = "vectors.npz"
VERSION = 1
MAX_VECTORS = 10_000_000
MAX_NUMBERS = 2**29  # of all vectors: 2 GiB once they are loaded
MAX_SCALE = 1e9
MAX_TRIED = 100
MAX_TEXT = 256
HEX = frozenset("0123456789abcdef")
REMEDY = f"; build it again with stretto profile, or remove the folder {EVIDENCE_FOLDER}"


@dataclass(frozen=True)
class Origin:
    """Labelled data: what it was called, the digest of its inputs and labels, and how many queries it held."""

    name: str
    sha256: str
    queries: int


@dataclass(frozen=True)
class Tried:
    """One k, measured: answers of the evidence itself, and the error of the accuracies estimated from it."""

    k: int
    accuracy: float
    recall: tuple[float, ...]
    error: float


@dataclass(frozen=True)
class StoredEvidence:
    """What evidence.json says, checked. `layer` and what goes with it is None where features are the input itself."""

    classes: int
    input_shape: tuple[int, ...]
    index: str
    k: int
    tried: tuple[Tried, ...]
    vectors: int
    dimensions: int
    scale: float
    vectors_sha256: str
    data: Origin
    held_out: Origin
    measured_on: Origin
    projected: bool = True
    variant: str | None = None
    layer: str | None = None
    model_sha256: str | None = None
    version: int = VERSION
    of_bytes: bool = False  # inputs were bytes, which no floats lie near to
    prior: tuple[float, ...] = ()  # α by class, that its answers were measured with; empty: Jeffreys

    def at(self, k: int) -> Tried | None:
        """What was measured with that k."""
        return next((trial for trial in self.tried if trial.k == k), None)


@dataclass(frozen=True, eq=False)
class Vectors:
    """The arrays: `stored` [vectors, dimensions] bytes, their `labels`, `low` per dimension, and the projection."""

    stored: NDArray[np.uint8]
    labels: NDArray[Any]
    low: NDArray[np.float32]
    mean: NDArray[np.float32] | None = None
    components: NDArray[np.float32] | None = None

    def arrays(self) -> dict[str, NDArray[Any]]:
        both: dict[str, NDArray[Any]] = {"vectors": self.stored, "labels": self.labels, "low": self.low}
        if self.mean is not None and self.components is not None:
            both |= {"mean": self.mean, "components": self.components.astype(np.float16)}
        return both


def read_stored(folder: Place, takes: InputTensor | None, gives: OutputTensor | None) -> StoredEvidence | None:
    """None where nothing was built. Held against the application and, from its headers, against the arrays."""
    place = folder.child(EVIDENCE_FOLDER)
    if not place.exists():
        return None
    try:
        return _read(place, takes, gives)
    except ConfigError as error:
        raise ConfigError(error.label, error.message + REMEDY, error.line) from None


def _read(place: Place, takes: InputTensor | None, gives: OutputTensor | None) -> StoredEvidence:
    top = place.child(DESCRIPTION_FILE).json()
    version = top.integer("version", 1, 10**6)
    if version != VERSION:
        top.fail(f"version is {version}; this Stretto reads version {VERSION}", "version")
    classes = top.integer("classes", 1, 100_000)
    shape = read_shape(top, "input_shape")
    if gives is not None and classes != gives.classes:
        top.fail(f"was built for {classes} classes, but the application has {gives.classes}", "classes")
    if takes is not None and shape != takes.shape:
        now, then = shape_text(takes.shape), shape_text(shape)
        top.fail(f"was built for inputs of {then}, but clients send {now}", "input_shape")
    layer = _text(top, "layer", MAX_LAYER_NAME) if top.has("layer") else None
    stored = StoredEvidence(
        classes,
        shape,
        top.choice("index", INDEXES),
        top.integer("k", 1, MAX_K),
        _tried(top, classes),
        top.integer("vectors", 1, MAX_VECTORS),
        top.integer("dimensions", 1, MAX_DIMENSIONS),
        top.number("scale", 0, MAX_SCALE, above=True),
        _digest(top, "vectors_sha256"),
        _origin(top, "data"),
        _origin(top, "held_out"),
        _origin(top, "measured_on"),
        top.flag("projected", False),
        None if layer is None else _text(top, "variant", MAX_TEXT),
        layer,
        None if layer is None else _digest(top, "model_sha256"),
        version,
        top.flag("of_bytes", False),
        top.numbers("prior", 0, MAX_ALPHA) if top.has("prior") else (),
    )
    top.done()
    if len(stored.prior) not in (0, classes) or not all(stored.prior):
        top.fail(f"prior is one number above 0 for each of {classes} classes", "prior")
    if stored.at(stored.k) is None:
        top.fail(f"k is {stored.k}, which is not among those tried", "k")
    if stored.vectors * stored.dimensions > MAX_NUMBERS:
        top.fail(f"holds {stored.vectors * stored.dimensions} numbers; at most {MAX_NUMBERS} are taken", "vectors")
    _check_arrays(place.child(VECTORS_FILE), stored)
    return stored


def _tried(top: Fields, classes: int) -> tuple[Tried, ...]:
    parts = top.parts("tried")
    if not 1 <= len(parts) <= MAX_TRIED:
        top.fail(f"tried has {len(parts)} entries; there are from 1 to {MAX_TRIED}", "tried")
    trials: list[Tried] = []
    for part in parts:
        recall = part.numbers("recall", 0, 1)
        if len(recall) != classes:
            part.fail(f"recall has {len(recall)} numbers for {classes} classes", "recall")
        trials.append(
            Tried(part.integer("k", 1, MAX_K), part.number("accuracy", 0, 1), recall, part.number("error", 0, 1))
        )
        part.done()
    if len({trial.k for trial in trials}) != len(trials):
        top.fail("tried has one k twice", "tried")
    return tuple(trials)


def _origin(top: Fields, key: str) -> Origin:
    part = top.part(key)
    if part is None:
        top.fail(f"the top level needs {key}")
    origin = Origin(_text(part, "name", MAX_TEXT), _digest(part, "sha256"), part.integer("queries", 1, 10**12))
    part.done()
    return origin


def _text(fields: Fields, key: str, longest: int) -> str:
    text = fields.text(key)
    if len(text) > longest or not text.isprintable():
        fields.fail(f"{key} must be printable and at most {longest} characters long", key)
    return text


def _digest(fields: Fields, key: str) -> str:
    text = fields.text(key)
    if len(text) != 64 or not HEX.issuperset(text):
        fields.fail(f"{key} is no SHA-256 digest", key)
    return text


def _check_arrays(place: Place, stored: StoredEvidence) -> None:
    headers = array_headers(place)
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "vectors": ((stored.vectors, stored.dimensions), "u"),
        "labels": ((stored.vectors,), "iu"),
        "low": ((stored.dimensions,), "f"),
    }
    if stored.projected:
        shapes |= {"mean": ((-1,), "f"), "components": ((stored.dimensions, -1), "f")}
    for name, (wanted, kinds) in shapes.items():
        if name not in headers:
            place.fail(f"has no array {name}")
        shape, dtype = headers[name]
        fits = len(shape) == len(wanted) and all(want in (-1, size) for want, size in zip(wanted, shape, strict=True))
        if not fits or dtype.kind not in kinds or (name == "vectors" and dtype != np.uint8):
            place.fail(
                f"has an array {name} of {shape_text(shape)} {dtype}, which {DESCRIPTION_FILE} does not describe"
            )
    taken = stored.dimensions if not stored.projected else headers["mean"][0][0]
    if stored.projected and headers["components"][0][1] != taken:
        place.fail("has a mean and components of different sizes")
    if stored.layer is None and taken != math.prod(stored.input_shape):
        place.fail(f"takes inputs of {taken} numbers, but one has {math.prod(stored.input_shape)}")


def load_vectors(folder: Place, stored: StoredEvidence) -> Vectors:
    """The arrays themselves, which must be the very ones that were written beside evidence.json."""
    place = folder.child(EVIDENCE_FOLDER).child(VECTORS_FILE)
    path = place.file(MAX_FILE_BYTES)
    if file_sha256(path) != stored.vectors_sha256:
        place.fail(f"is not the file that {DESCRIPTION_FILE} belongs to{REMEDY}")
    _check_arrays(place, stored)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            loaded_arrays = {name: arrays[name] for name in arrays.files}
    except Exception:  # as in array_headers
        place.fail(NOT_SOUND)
    labels = loaded_arrays["labels"]
    if int(labels.min()) < 0 or int(labels.max()) >= stored.classes:
        place.fail(f"has labels from {labels.min()} to {labels.max()} for {stored.classes} classes{REMEDY}")
    floats = {
        name: loaded_arrays[name].astype(np.float32) for name in ("low", "mean", "components") if name in loaded_arrays
    }
    if not all(np.isfinite(array).all() for array in floats.values()):
        place.fail(f"holds numbers that are not finite{REMEDY}")
    projection = (floats["mean"], floats["components"]) if stored.projected else (None, None)
    return Vectors(loaded_arrays["vectors"], labels, floats["low"], *projection)


def packed(vectors: Vectors) -> bytes:
    """vectors.npz, the same bytes for the same arrays."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **vectors.arrays())  # type: ignore[arg-type]
    return buffer.getvalue()


def write_evidence(application: Path, stored: StoredEvidence, content: bytes) -> Path:
    """Into the application's folder: the arrays first, so that evidence.json never describes what is not there."""
    folder = application / EVIDENCE_FOLDER
    assert hashlib.sha256(content).hexdigest() == stored.vectors_sha256
    text = json.dumps(as_json(stored), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    for name, written in ((VECTORS_FILE, content), (DESCRIPTION_FILE, text.encode())):
        _write(folder / name, written)
    return folder


def write_description(application: Path, stored: StoredEvidence) -> None:
    """Only evidence.json: another k, say."""
    text = json.dumps(as_json(stored), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    _write(application / EVIDENCE_FOLDER / DESCRIPTION_FILE, text.encode())


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(content)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be written ({error.strerror or 'output error'})") from None


def as_json(stored: StoredEvidence) -> Mapping[str, Any]:
    """In the order in which a person reads it."""
    content: dict[str, Any] = {
        "version": stored.version,
        "classes": stored.classes,
        "input_shape": list(stored.input_shape),
        "index": stored.index,
        "k": stored.k,
        "tried": [
            {"k": trial.k, "accuracy": _rounded(trial.accuracy), "error": _rounded(trial.error)}
            | {"recall": [_rounded(value) for value in trial.recall]}
            for trial in stored.tried
        ],
        "vectors": stored.vectors,
        "dimensions": stored.dimensions,
        "scale": stored.scale,
        "vectors_sha256": stored.vectors_sha256,
        "projected": stored.projected,
    }
    if stored.of_bytes:
        content["of_bytes"] = True
    if stored.prior:
        content["prior"] = list(stored.prior)
    if stored.layer is not None:
        content |= {"variant": stored.variant, "layer": stored.layer, "model_sha256": stored.model_sha256}
    for key in ("data", "held_out", "measured_on"):
        origin: Origin = getattr(stored, key)
        content[key] = {"name": origin.name, "sha256": origin.sha256, "queries": origin.queries}
    return content


def _rounded(value: float) -> float:
    return round(float(value), 6)
