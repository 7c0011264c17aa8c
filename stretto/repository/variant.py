"""One variant's folder: its model, what it is worth, and its profiles. variant.toml may be left out."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from stretto.config.fields import ConfigError, Fields
from stretto.core.application import UNKNOWN_ACCURACY, check_name
from stretto.core.profile import MAX_BATCH_LIMIT, MAX_LATENCY_MS
from stretto.repository.files import Place
from stretto.repository.metrics import Metrics, read_metrics
from stretto.repository.model_code import code_sha256
from stretto.repository.model_digest import model_file_sha256
from stretto.repository.model_file import ModelFile, check_tensors, find_model
from stretto.repository.problems import Problems
from stretto.repository.profiles import StoredProfile, profile_at, profile_path
from stretto.repository.tensors import InputTensor, OutputTensor, read_shape

BACKENDS = ("onnx", "torch", "callable")
FORMATS = ("exported", "safetensors")
PRECISIONS = ("float32", "bfloat16", "float16")
ACCURACY_SOURCES = ("measured", "literature")
UNKNOWN = "unknown"
PLAIN_KEYS = (
    *("enabled", "backend", "accuracy", "accuracy_source"),
    *("input_shape", "max_batch", "memory_mb", "load_ms"),
    *("precision", "channels_last"),
)
BACKEND_KEYS = ("file", "format", "code")  # that belong to some backends only
CODE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
MAX_CODE = 512
MAX_PROFILES = 1000
MAX_MEMORY_MB = 1e9
BYTES_PER_MB = 1_000_000


class ProfileState(StrEnum):
    """What a variant's profiles are worth on a machine."""

    OK = "ok"
    STALE = "stale"
    FOREIGN = "foreign"
    NONE = "none"


@dataclass(frozen=True)
class VariantFiles:
    """What the folder says. `file` is the real path of the model, None for a callable.

    `accuracy` is what was measured on this very model, whose digest metrics.json keeps; else `stated_accuracy`, which
    stands in variant.toml. Else it is "unknown", the `accuracy_source`, and nobody is told it: it is then the figure of
    the model before, by which plans order the variants, or 0 where there is none.

    `memory_bytes` and `load_ms` are there only where variant.toml states them; they then go before what was measured.
    """

    name: str
    folder: Path
    label: str
    accuracy: float
    input_shape: tuple[int, ...]
    accuracy_source: str = "measured"
    enabled: bool = True
    backend: str = "onnx"
    file: Path | None = None
    format: str | None = None
    code: str | None = None
    max_batch: int | None = None
    memory_bytes: int | None = None
    load_ms: float | None = None
    metrics: Metrics | None = None
    profiles: tuple[StoredProfile, ...] = ()
    precision: str = "float32"  # of a torch model: what it computes in
    channels_last: bool | None = None  # the layout of its images; None: as goes with the precision
    stated_accuracy: float | None = None
    unmeasured: str = ""  # why metrics.json does not count

    @property
    def has_accuracy(self) -> bool:
        """It is known of this very model, or stated."""
        return self.accuracy_source != UNKNOWN

    @property
    def is_measured(self) -> bool:
        """metrics.json is of this very model."""
        return self.metrics is not None and not self.unmeasured

    @property
    def has_rank(self) -> bool:
        """There is a figure, if only of the model before, by which plans can order it among the others."""
        return self.has_accuracy or self.metrics is not None

    @property
    def promised_accuracy(self) -> float:
        """What clients may be told; UNKNOWN_ACCURACY where nobody knows."""
        return self.accuracy if self.has_accuracy else UNKNOWN_ACCURACY

    @property
    def fastest_ms(self) -> float:
        """The mean of its smallest batch, on the kind of machine that is fastest; infinite where none was measured."""
        return min((profile.batches[min(profile.batches)].mean for profile in self.profiles), default=math.inf)

    def profile_on(self, kind: str) -> StoredProfile | None:
        """What was measured on a kind of machine."""
        return next((profile for profile in self.profiles if profile.kind == kind), None)

    def profile_path(self, kind: str) -> Path:
        """Where a profile for a kind of machine goes."""
        return profile_path(self.folder, kind)

    def model_sha256(self) -> str:
        """Of the model's file and those beside it that hold its weights; of the code where it has no file. A profile of
        another one is stale, also of the same file in another precision or layout.
        """
        digest = code_sha256(self.folder, str(self.code)) if self.file is None else model_file_sha256(self.file)
        if (self.precision, self.channels_last) == ("float32", None):
            return digest
        return hashlib.sha256(f"{digest} {self.precision} {self.channels_last}".encode()).hexdigest()

    @cached_property
    def read_sha256(self) -> str:
        """The same, as it was when it was first asked for: whatever becomes of the files, this is what was read."""
        return self.model_sha256()

    def profile_state(self, kind: str, kinds_here: tuple[str, ...]) -> ProfileState:
        """What can be said of the profile for `kind` on a machine that offers the workers `kinds_here`."""
        profile = self.profile_on(kind)
        if profile is None:
            return ProfileState.FOREIGN if self.profiles else ProfileState.NONE
        if profile.is_stale(self.model_sha256()):
            return ProfileState.STALE
        return ProfileState.OK if kind in kinds_here else ProfileState.FOREIGN


@dataclass(frozen=True)
class Declared:
    """What an application says of all its variants; None where that could not be read."""

    takes: InputTensor | None
    gives: OutputTensor | None


def read_variant(folder: Place, declared: Declared, max_model_bytes: int, problems: Problems) -> VariantFiles | None:
    """None where something was wrong; then `problems` has grown."""
    before = len(problems.errors)
    variant: VariantFiles | None = None
    with problems.gathered():
        check_name("variant", folder.path.name)
        folder.resolved()
        place = folder.child("variant.toml")
        fields = place.toml() if place.exists() else None
        variant = _variant(folder, fields, declared, max_model_bytes, problems)
    return variant if len(problems.errors) == before else None


def _variant(
    folder: Place, fields: Fields | None, declared: Declared, max_model_bytes: int, problems: Problems
) -> VariantFiles:
    """Goes on after a mistake, with a value that is never used."""
    attempt = problems.attempt
    before = len(problems.errors)
    backend: str | None = "onnx"  # None where a mistake leaves it open
    model_format, code, enabled = None, None, True
    max_batch, memory_mb, load_ms = None, None, None
    precision, channels_last = "float32", None
    if fields is not None:
        enabled = attempt(True, fields.flag, "enabled", True)
        backend = attempt(None, fields.choice, "backend", BACKENDS, "onnx")
        backend, model_format, code = attempt((None, None, None), _code, fields, backend)
        max_batch = attempt(None, fields.optional_integer, "max_batch", 1, MAX_BATCH_LIMIT)
        memory_mb = attempt(None, fields.optional_number, "memory_mb", 0, MAX_MEMORY_MB)
        load_ms = attempt(None, fields.optional_number, "load_ms", 0, MAX_LATENCY_MS)
        precision, channels_last = attempt((precision, None), _computes_in, fields, backend)
    model: ModelFile | None = None
    if backend in ("onnx", "torch"):
        model = attempt(None, find_model, folder, fields, model_format or "onnx", max_model_bytes)
    measured = folder.child("metrics.json")
    classes = 0 if declared.gives is None else declared.gives.classes
    metrics = attempt(None, read_metrics, measured, classes, problems) if measured.exists() else None
    stated, source = attempt((None, UNKNOWN), _stated, fields)
    shape = attempt(None, _input_shape, fields, metrics, declared.takes)
    if fields is not None:
        # A reader that stopped at a mistake has not asked for every key.
        fields.asked.update(PLAIN_KEYS if len(problems.errors) == before else (*PLAIN_KEYS, *BACKEND_KEYS))
        problems.refuse_unknown(fields, also=BACKEND_KEYS)
    if model is not None and shape is not None and declared.takes is not None and declared.gives is not None:
        attempt(None, check_tensors, model, declared.takes, declared.gives, shape, max_batch)
    variant = VariantFiles(
        folder.path.name,
        folder.path,
        folder.label,
        stated or 0.0,
        shape or (),
        source,
        enabled,
        backend or "onnx",
        None if model is None else model.path,
        model_format,
        code,
        max_batch,
        None if memory_mb is None else round(memory_mb * BYTES_PER_MB),
        load_ms,
        metrics,
        _profiles(folder.child("profiles"), problems),
        precision,
        channels_last,
        stated,
    )
    return variant if metrics is None else attempt(variant, _measured, variant, metrics, declared.gives)


def _measured(variant: VariantFiles, metrics: Metrics, gives: OutputTensor | None) -> VariantFiles:
    """What was measured on this very model goes before what is stated, and that before what was measured on another."""
    if metrics.model_sha256 is None:
        unmeasured = "metrics.json does not say of which model it is"
    elif metrics.model_sha256 != variant.model_sha256():
        unmeasured = "the model has changed since it was measured"
    elif gives is not None and metrics.tolerance != gives.tolerance:
        unmeasured = "it was measured with another tolerance"
    else:
        return replace(variant, accuracy=metrics.accuracy, accuracy_source="measured")
    accuracy = variant.accuracy if variant.has_accuracy else metrics.accuracy
    return replace(variant, metrics=metrics.of_another_model(), accuracy=accuracy, unmeasured=unmeasured)


def _code(fields: Fields, backend: str | None) -> tuple[str | None, str | None, str | None]:
    """The backend, the format of a torch model, and the code where there is some to name."""
    model_format = fields.choice("format", FORMATS, "exported") if backend == "torch" else None
    if backend != "callable" and model_format != "safetensors":
        return backend, model_format, None
    code = fields.text("code")
    if len(code) > MAX_CODE or not CODE.fullmatch(code):
        fields.fail('code must be "module:function", as "mymodels.heart:classify"', "code")
    return backend, model_format, code


def _computes_in(fields: Fields, backend: str | None) -> tuple[str, bool | None]:
    """The precision and the layout of a torch model."""
    for key in ("precision", "channels_last"):
        if fields.has(key) and backend not in ("torch", None):
            fields.fail(f"{key} is for the torch backend; an {backend} model computes as it was exported", key)
    precision = fields.choice("precision", PRECISIONS, "float32")
    return precision, fields.flag("channels_last", False) if fields.has("channels_last") else None


def _stated(fields: Fields | None) -> tuple[float | None, str]:
    """The accuracy in variant.toml, which says where it comes from."""
    stated = [key for key in ("accuracy", "accuracy_source") if fields is not None and fields.has(key)]
    if not stated:
        return None, UNKNOWN
    assert fields is not None
    accuracy = fields.number("accuracy", 0, 1)
    if "accuracy_source" not in stated:
        fields.fail('say where the accuracy comes from: accuracy_source = "measured" or "literature"', "accuracy")
    return accuracy, fields.choice("accuracy_source", ACCURACY_SOURCES)


def _input_shape(fields: Fields | None, metrics: Metrics | None, takes: InputTensor | None) -> tuple[int, ...] | None:
    """What variant.toml says, else what was measured, else what clients send."""
    if fields is not None and fields.has("input_shape"):
        return read_shape(fields, "input_shape")
    if metrics is not None and metrics.input_shape is not None:
        return metrics.input_shape
    return None if takes is None else takes.shape


def _profiles(folder: Place, problems: Problems) -> tuple[StoredProfile, ...]:
    if not folder.exists():
        return ()
    places = [place for place in problems.attempt([], folder.entries) if place.path.name.endswith(".json")]
    if len(places) > MAX_PROFILES:
        with problems.gathered():
            folder.fail(f"holds more than {MAX_PROFILES} profiles")
        return ()
    profiles = [problems.attempt(None, _profile, place) for place in places]
    return tuple(profile for profile in profiles if profile is not None)


def _profile(place: Place) -> StoredProfile:
    try:
        return profile_at(place)
    except ConfigError as error:
        remedy = "; correct it, or remove the file and run stretto profile"
        raise ConfigError(error.label, error.message + remedy, error.line) from None
