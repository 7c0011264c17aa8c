"""One application's folder: app.toml, its labels, its sample and its variants."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stretto.config.fields import ConfigError, Fields, shown
from stretto.core.application import Penalty, check_name, from_fast_to_accurate
from stretto.core.errors import StrettoError
from stretto.core.profile import MAX_BATCH_LIMIT
from stretto.repository.evidence import (
    DEFAULT_EVIDENCE,
    EVIDENCE_KEYS,
    EvidenceSettings,
    check_variant,
    read_settings,
)
from stretto.repository.files import Place
from stretto.repository.images import IMAGE_KEYS, read_images
from stretto.repository.labels import read_labels
from stretto.repository.problems import Problem, Problems
from stretto.repository.sample import SAMPLE_FILE, Sample, SampleFile, check_sample, load_sample
from stretto.repository.stored_evidence import StoredEvidence, read_stored
from stretto.repository.tensors import (
    DTYPES,
    MAX_ELEMENTS,
    InputTensor,
    OutputKind,
    OutputTensor,
    read_shape,
    shape_list,
)
from stretto.repository.variant import Declared, VariantFiles, read_variant

APPLICATION_FILE = "app.toml"
OTHER_PRIOR = "evidence was measured with another prior, so nothing is answered from it until it is measured again"
VARIANTS_FOLDER = "variants"
MAX_VARIANTS = 1000
MAX_SLO_MS = 3_600_000.0
MAX_NAME = 256
MAX_TEXT = 10_000
MAX_BODY_BYTES = 2**31 - 1
MAX_VALUE = 1e300
DEFAULT_MAX_BATCH = 64
DEFAULT_BODY_BYTES = 16_000_000
KEYS = {
    "": ("name", "slo_ms", "penalty", "description", "input", "output", "limits", "sample", "evidence"),
    "input": ("name", "dtype", "shape", "values", *IMAGE_KEYS),
    "output": ("name", "dtype", "shape", "kind", "labels", "labels_file", "tolerance"),
    "limits": ("max_batch", "max_body_bytes", "max_elements", "min_value", "max_value"),
    "sample": ("file", "divide_by"),
    "evidence": EVIDENCE_KEYS,
}
# TOML gives every key below a [header] to that header, which is easily forgotten; so say where a key belongs.
SHARED_KEYS = ("name", "dtype", "shape", "divide_by")
HOMES = {
    key: f"[{part}]" if part else "the top, before the first [header]"
    for part, keys in KEYS.items()
    for key in keys
    if key not in (*SHARED_KEYS, *KEYS)
}


@dataclass(frozen=True)
class Limits:
    """What a server takes from clients of this application, before any model sees it."""

    max_batch: int = DEFAULT_MAX_BATCH
    max_body_bytes: int = DEFAULT_BODY_BYTES
    max_elements: int = MAX_ELEMENTS
    min_value: float | None = None
    max_value: float | None = None


@dataclass(frozen=True)
class ApplicationFiles:
    """What the folder says, checked. `labels` is empty where the answer has no classes.

    `ladder` names all variants that are enabled, from fast to accurate, also where `variants` is only a part of them.
    """

    name: str
    folder: Path
    label: str
    slo_ms: float
    input: InputTensor
    output: OutputTensor
    variants: tuple[VariantFiles, ...]
    penalty: Penalty = Penalty.STEP
    labels: tuple[str, ...] = ()
    limits: Limits = Limits()
    description: str = ""
    sample_file: SampleFile | None = None
    evidence_settings: EvidenceSettings = DEFAULT_EVIDENCE
    stored_evidence: StoredEvidence | None = None
    boundary: Path | None = None
    ladder: tuple[str, ...] = ()

    @property
    def place(self) -> Place:
        """The folder, for reading more of it."""
        return Place(self.boundary or self.folder.resolve(), self.folder, self.label)

    @property
    def evidence_accuracy(self) -> float | None:
        """Of the evidence's own answers, where it may answer and that was measured."""
        return self.measured_evidence if self.evidence_settings.answers else None

    @property
    def has_evidence(self) -> bool:
        """Whether evidence of its queries' classes can be had."""
        return self.evidence_settings.model == "variant" or self.stored_evidence is not None

    @property
    def measured_evidence(self) -> float | None:
        """How often evidence is right, as profiled; None where that was not measured with the prior in force."""
        settings, stored = self.evidence_settings, self.stored_evidence
        if settings.model == "variant":
            variant = self.variant(str(settings.variant))
            is_own = settings.agrees_with((), self.classes, settings.k or 1)
            return variant.accuracy if variant.has_accuracy and is_own else None
        measured = None if stored is None else stored.at(settings.k or stored.k)
        return None if measured is None or self.has_other_prior else measured.accuracy

    @property
    def has_other_prior(self) -> bool:
        """Whether evidence was measured with another prior than app.toml states."""
        stored = self.stored_evidence
        has_classes = stored is not None and stored.classes == self.classes > 0
        return stored is not None and has_classes and not self.evidence_settings.agrees_with(stored.prior, self.classes)

    @property
    def classes(self) -> int:
        """How many classes an answer has; 0 where it has none."""
        return self.output.classes

    def variant(self, name: str) -> VariantFiles:
        for variant in self.variants:
            if variant.name == name:
                return variant
        names = ", ".join(variant.name for variant in self.variants)
        raise StrettoError(f"application {self.name} has no variant {name[:40]!r}; it has {names}")

    def sample(self, variant: VariantFiles | None = None) -> Sample:
        """Labelled queries, as clients send them or as a variant takes them."""
        if self.sample_file is None:
            raise ConfigError(self.label, f"application {self.name} has no sample; put one there as {SAMPLE_FILE}")
        name, shape = (None, self.input.shape) if variant is None else (variant.name, variant.input_shape)
        return load_sample(self.sample_file, name, self.input.dtype, shape, self.classes)


@dataclass
class _Head:
    """app.toml as far as it could be read; None where it could not."""

    slo_ms: float | None = None
    penalty: Penalty = Penalty.STEP
    description: str = ""
    input: InputTensor | None = None
    output: OutputTensor | None = None
    labels: tuple[str, ...] = ()
    limits: Limits = Limits()
    sample: SampleFile | None = None
    evidence: EvidenceSettings = DEFAULT_EVIDENCE


def read_application(folder: Place, max_model_bytes: int, problems: Problems) -> ApplicationFiles | None:
    """As much as could be read; None where app.toml could not. The variants are looked at either way."""
    problems.attempt(None, check_name, "application", folder.path.name)
    place = folder.child(APPLICATION_FILE)
    top = problems.attempt(None, place.toml)
    head = _Head() if top is None else _head(top, folder, problems)
    declared = Declared(head.input, head.output)
    variants = _variants(folder, declared, max_model_bytes, problems)
    _check_evidence(top, head, variants, problems)
    _check_sizes(head.input, variants, problems)
    stored = problems.attempt(None, read_stored, folder, head.input, head.output)
    if head.slo_ms is None or head.input is None or head.output is None:
        return None
    files = ApplicationFiles(
        folder.path.name,
        folder.path,
        folder.label,
        head.slo_ms,
        head.input,
        head.output,
        variants,
        head.penalty,
        head.labels,
        head.limits,
        head.description,
        head.sample,
        head.evidence,
        stored,
        folder.boundary,
        from_fast_to_accurate({each.name: (each.accuracy, each.fastest_ms) for each in variants if each.enabled}),
    )
    if head.evidence.model == "neighbours" and stored is not None and files.has_other_prior:
        problems.warn(place.label, f"{OTHER_PRIOR}: stretto evidence {folder.label} --keep")
    return files


def _head(top: Fields, folder: Place, problems: Problems) -> _Head:
    attempt = problems.attempt
    head = _Head()
    attempt(None, _check_own_name, top, folder.path.name)
    head.slo_ms = attempt(None, top.number, "slo_ms", 0, MAX_SLO_MS, above=True)
    penalties = [penalty.name.lower() for penalty in Penalty]
    head.penalty = Penalty[attempt("step", top.choice, "penalty", penalties, "step").upper()]
    head.description = attempt("", _text, top, "description", MAX_TEXT)
    parts = {name: attempt(None, top.part, name) for name in KEYS if name}
    head.input = attempt(None, _input, top, parts["input"])
    head.output, head.labels = attempt((None, ()), _output, top, parts["output"], folder)
    if parts["limits"] is not None:
        head.limits = attempt(Limits(), _limits, parts["limits"], head.input)
    elif head.input is not None:
        head.limits = Limits(max_elements=head.input.elements)
    head.sample = attempt(None, _sample, parts["sample"], folder, head.input)
    head.evidence = attempt(DEFAULT_EVIDENCE, read_settings, parts["evidence"], folder, head.output, head.sample)
    for name, fields in (("", top), *parts.items()):
        if fields is not None:
            fields.asked.update(KEYS[name])  # a reader that stopped at a mistake has not asked for all of them
            problems.refuse_unknown(fields, HOMES)
    return head


def _check_own_name(top: Fields, folder_name: str) -> None:
    name = top.text("name", folder_name)
    if name != folder_name:
        top.fail(f"name is {shown(name)}, but the folder is {folder_name}; rename one, or leave name out", "name")


def _text(fields: Fields, key: str, longest: int) -> str:
    text = fields.text(key) if fields.has(key) else ""
    if len(text) > longest:
        fields.fail(f"{key} is longer than {longest} characters", key)
    return text


def _tensor_name(fields: Fields | None, default: str) -> str:
    if fields is None:
        return default
    name = fields.text("name", default)
    if len(name) > MAX_NAME or not name.isprintable():
        fields.fail(f"name must be printable and at most {MAX_NAME} characters long", "name")
    return name


def _input(top: Fields, fields: Fields | None) -> InputTensor | None:
    if fields is None:
        if top.has("input"):
            return None  # it is no table, which was told already
        top.fail("there is no [input]; add one with shape = [3, 224, 224], say")
    name = _tensor_name(fields, "input")
    dtype = fields.choice("dtype", DTYPES, "float32")
    if not fields.has("shape"):
        fields.fail("[input] needs shape, without the batch, as [3, 224, 224]")
    shape = read_shape(fields, "shape")
    values = _text(fields, "values", MAX_TEXT) or None
    return InputTensor(name, dtype, shape, values, **read_images(fields, shape, dtype))


def _output(top: Fields, fields: Fields | None, folder: Place) -> tuple[OutputTensor | None, tuple[str, ...]]:
    if fields is None and top.has("output"):
        return None, ()
    kinds = [kind.value for kind in OutputKind]
    kind = OutputKind("probabilities" if fields is None else fields.choice("kind", kinds, "probabilities"))
    name = _tensor_name(fields, "output")
    dtype = "float32" if fields is None else fields.choice("dtype", DTYPES, "float32")
    shape = read_shape(fields, "shape") if fields is not None and fields.has("shape") else None
    labels, file = read_labels(fields, folder)
    if labels and not kind.has_classes:
        assert fields is not None  # the kind that is taken where none is given has classes
        fields.fail(f"kind is {shown(kind.value)}, which has no classes, but there are labels; keep one", "kind")
    if shape is None:
        if not labels:
            where = top if fields is None else fields
            where.fail("[output] needs shape, without the batch, as [10]; or labels, or a file labels.txt")
        shape = (len(labels),)
    if kind.has_classes and not shape:
        assert fields is not None
        fields.fail(f"kind {kind.value} has one number per class; give their count, as [10]", "shape")
    if labels and len(labels) != shape[-1]:
        wrong = (
            f"{len(labels)} labels for {shape[-1]} classes ([output] shape {shape_list(shape)}); correct one of them"
        )
        if file is not None:
            raise ConfigError(file.label, wrong, len(labels))
        assert fields is not None
        fields.fail(wrong, "labels")
    tolerance = None if fields is None else fields.optional_number("tolerance", 0, MAX_VALUE)
    if tolerance is not None and kind.has_classes:
        assert fields is not None
        fields.fail(f'tolerance is for kind = "values"; of {kind.value} the largest wins, so leave it out', "tolerance")
    return OutputTensor(name, dtype, shape, kind, tolerance), labels


def _limits(fields: Fields, takes: InputTensor | None) -> Limits:
    max_batch = fields.integer("max_batch", 1, MAX_BATCH_LIMIT, DEFAULT_MAX_BATCH)
    max_body_bytes = fields.integer("max_body_bytes", 1, MAX_BODY_BYTES, DEFAULT_BODY_BYTES)
    elements = 1 if takes is None else takes.elements
    max_elements = fields.integer("max_elements", 1, MAX_ELEMENTS, elements)
    if max_elements < elements:
        fields.fail(f"max_elements is {max_elements}, but one input has {elements}; raise it", "max_elements")
    min_value = fields.optional_number("min_value", -MAX_VALUE, MAX_VALUE)
    max_value = fields.optional_number("max_value", -MAX_VALUE, MAX_VALUE)
    if min_value is not None and max_value is not None and min_value > max_value:
        fields.fail(f"max_value is {max_value:g}, below min_value, which is {min_value:g}", "max_value")
    return Limits(max_batch, max_body_bytes, max_elements, min_value, max_value)


def _sample(fields: Fields | None, folder: Place, takes: InputTensor | None) -> SampleFile | None:
    place = folder.child(SAMPLE_FILE)
    divide_by = 1.0
    if fields is not None:
        place = folder.named(fields, "file", SAMPLE_FILE)
        divide_by = fields.number("divide_by", 0, MAX_VALUE, 1.0, above=True)
        if not place.exists():
            fields.fail(f"there is no {place.label}; put the sample there, or leave [sample] out")
    elif not place.exists():
        return None
    sample = SampleFile(place, divide_by)
    if takes is not None:
        check_sample(sample, takes.shape)
    return sample


def _check_evidence(top: Fields | None, head: _Head, variants: tuple[VariantFiles, ...], problems: Problems) -> None:
    if top is None or head.evidence.variant is None or problems.errors:  # a variant may be missing because of those
        return
    with problems.gathered():
        fields = top.part("evidence")
        assert fields is not None
        check_variant(fields, head.evidence, None if head.input is None else head.input.shape, variants)


def _check_sizes(takes: InputTensor | None, variants: tuple[VariantFiles, ...], problems: Problems) -> None:
    """Where clients choose among sizes, they are told that of the variant which will answer: they must be able to."""
    if takes is None or not takes.sizes:
        return
    for variant in variants:
        if variant.input_shape not in takes.shapes:
            problems.add(
                Problem(
                    f"takes {shape_list(variant.input_shape)}, a size that clients may not send; add it to sizes in "
                    "[input] of app.toml",
                    variant.label,
                )
            )


def _variants(folder: Place, declared: Declared, max_model_bytes: int, problems: Problems) -> tuple[VariantFiles, ...]:
    place = folder.child(VARIANTS_FOLDER)
    if not place.exists():
        with problems.gathered():
            folder.fail(f"there is no {VARIANTS_FOLDER} folder; add {VARIANTS_FOLDER}/NAME/model.onnx")
        return ()
    entries = problems.attempt(None, place.entries)
    if entries is None:
        return ()
    folders = [entry for entry in entries if entry.is_folder() or entry.is_broken_link()]
    with problems.gathered():
        if not folders:
            place.fail(f"holds no variant; add {VARIANTS_FOLDER}/NAME/model.onnx")
        if len(folders) > MAX_VARIANTS:
            place.fail(f"holds {len(folders)} variants; at most {MAX_VARIANTS} are taken")
    variants = [read_variant(entry, declared, max_model_bytes, problems) for entry in folders[:MAX_VARIANTS]]
    return tuple(variant for variant in variants if variant is not None)
