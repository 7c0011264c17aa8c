"""Profiles the variants of a repository one after the other, and writes what it finds where it may."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stretto.backends.adapt import Adapter
from stretto.backends.load import load_model
from stretto.backends.of_variant import model_source
from stretto.backends.rungs import rungs
from stretto.backends.source import BACKENDS, ModelSource
from stretto.core.application import check_name
from stretto.core.errors import ProfileError, StrettoError
from stretto.core.profile import MAX_BATCH_LIMIT
from stretto.core.resize import resized
from stretto.evidence.build import Built
from stretto.evidence.index import import_faiss
from stretto.profiling.accuracy import BATCH, Evaluation, Labelled, measured, read_labelled
from stretto.profiling.evidence import build_and_write, has_training_data
from stretto.profiling.frames import frame_bytes
from stretto.profiling.latency import BATCHES, Progress, check_batches
from stretto.profiling.memory import measure_memory
from stretto.profiling.pareto import pareto_front
from stretto.profiling.sizes import accuracy_at_sizes
from stretto.profiling.sizes import as_json as sizes_as_json
from stretto.profiling.stored import machine_of, stored_profile
from stretto.profiling.variant import measure_model
from stretto.repository.application import ApplicationFiles
from stretto.repository.profiles import StoredProfile, as_json, write_profile
from stretto.repository.read import ZOO, read_repository, zoo_folder
from stretto.repository.repository import Repository
from stretto.repository.stored_evidence import StoredEvidence
from stretto.repository.stored_evidence import as_json as evidence_as_json
from stretto.repository.tensors import Shape
from stretto.repository.variant import VariantFiles

RANDOM_QUERIES = 4  # to measure with, where there is no sample
ACCURACY_SHARE = 0.1  # of a variant's progress bar, where accuracy is measured


@dataclass(frozen=True)
class Request:
    """How to measure, for all variants. `data` is labelled test data, `evidence` labelled training data."""

    batches: tuple[int, ...] = BATCHES
    threads: int = 1
    device: str = "cpu"
    budget_s: float = 20.0
    kind: str | None = None
    data: Path | None = None
    evidence: Path | None = None


@dataclass(frozen=True)
class ProfiledVariant:
    """What came of one variant; `written` is where its profile went, None where nothing was written. `accuracy` is None
    where nobody knows it of this model; `stated` is what variant.toml says.
    """

    application: str
    name: str
    label: str
    stored: StoredProfile
    accuracy: float | None
    accuracy_source: str
    evaluation: Evaluation | None = None
    written: Path | None = None
    stated: float | None = None

    def p95_ms(self, batch: int) -> float:
        """Of the batch, or of the smallest one that was measured."""
        return (self.stored.batches.get(batch) or self.stored.batches[min(self.stored.batches)]).p95


@dataclass(frozen=True)
class _Chosen:
    application: ApplicationFiles
    variant: VariantFiles

    @property
    def label(self) -> str:
        return f"{self.application.name}/{self.variant.name}"


@dataclass(frozen=True)
class Session:
    """A repository, opened for measuring."""

    repository: Repository
    request: Request
    kind: str
    variants: tuple[_Chosen, ...]
    is_dry: bool = False
    with_evidence: tuple[ApplicationFiles, ...] = ()  # those whose evidence is built after their variants

    def build_evidence(self, application: ApplicationFiles) -> tuple[Built, Path | None]:
        """From the application's training data, or those of the request; and where it went, if anywhere."""
        return build_and_write(application, self.request.evidence, self.request.data, self.is_dry)

    def measure(self, number: int, progress: Progress | None = None) -> ProfiledVariant:
        """Measures one variant and writes its profile; with labelled data its metrics too."""
        application, variant = self.variants[number].application, self.variants[number].variant
        request, digest = self.request, variant.model_sha256()  # before it is loaded: a file may be replaced meanwhile
        source = model_source(application, variant, request.threads, request.device)
        batches = _allowed(request.batches, application, variant)
        memory = measure_memory(source, max(batches))  # in a process of its own: it may be a model that never answers
        evaluation = None
        if request.data is not None:
            evaluation = _evaluated(application, variant, source, request.data, _part(progress, 0.0, ACCURACY_SHARE))
        sent = _sent(application, variant)
        timed = measure_model(
            source,
            _samples(application, variant, sent),
            batches,
            budget_s=request.budget_s,
            progress=_part(progress, ACCURACY_SHARE if request.data is not None else 0.0, 1.0),
            adapter=None if sent is None else Adapter((sent,), variant.input_shape),
            memory=memory,
        )
        sent_bytes = frame_bytes(application, variant)
        stored = stored_profile(timed, source, digest, self.kind, sent_bytes)
        written = None
        if not self.is_dry:
            written = variant.profile_path(self.kind)
            write_profile(written, stored)
            if evaluation is not None:
                write_metrics(variant, evaluation, digest, application.output.tolerance)
        known = variant.accuracy if variant.has_accuracy else None
        accuracy = known if evaluation is None else evaluation.accuracy
        origin = variant.accuracy_source if evaluation is None else "measured"
        label = self.variants[number].label
        stated = variant.stated_accuracy
        return ProfiledVariant(
            application.name, variant.name, label, stored, accuracy, origin, evaluation, written, stated
        )

    def ladder(self, application: str) -> tuple[str, ...]:
        """All its variants from fast to accurate, with what was written by now."""
        files = self.repository.application(application)
        return files.ladder if self.is_dry else read_repository(files.folder).applications[0].ladder

    def as_json(
        self, variants: list[ProfiledVariant], evidence: Mapping[str, StoredEvidence] | None = None
    ) -> dict[str, Any]:
        """All of it, as plain data."""
        applications: dict[str, Any] = {}
        for profiled in variants:
            entry: dict[str, Any] = {
                "accuracy": profiled.accuracy,
                "accuracy_source": profiled.accuracy_source,
                "stated_accuracy": profiled.stated,
                "profile": as_json(profiled.stored),
                "written": profiled.written is not None,
            }
            if profiled.evaluation is not None:
                entry |= {"samples": profiled.evaluation.samples, "recall": list(profiled.evaluation.recall)}
                entry["confusion"] = profiled.evaluation.confusion.tolist()
            applications.setdefault(profiled.application, {"variants": {}})["variants"][profiled.name] = entry
        for name, content in applications.items():
            own_variants = [variant for variant in variants if variant.application == name]
            content["pareto_front"] = pareto_front(points_of(own_variants, self.request.batches[0]))
            if evidence and name in evidence:
                content["evidence"] = evidence_as_json(evidence[name])
        noisy = [variant.label for variant in variants if variant.stored.noisy]
        return {
            "repository": self.repository.reference,
            "kind": self.kind,
            "applications": applications,
            "noisy": noisy,
        }


def measured_batches(text: str | None, device: str = "cpu") -> tuple[int, ...]:
    """ "1,2,4" → (1, 2, 4); None: what a worker on the device runs, up to any size."""
    if text is None:
        return BATCHES if device == "cpu" else rungs(MAX_BATCH_LIMIT)
    try:
        sizes = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ProfileError(f"batch sizes {text[:40]!r} are no whole numbers; write them as 1,2,4,8") from None
    return check_batches(sizes)


def open_session(
    reference: str,
    request: Request,
    *,
    names: tuple[str, ...] = (),
    backend: str | None = None,
    out: Path | None = None,
    in_place: bool = False,
    dry_run: bool = False,
) -> Session:
    """Refuses before the first run what could not be written after the last one."""
    if backend is not None and backend not in BACKENDS:
        raise StrettoError(f"there is no backend {backend[:40]!r}; there are {', '.join(BACKENDS)}")
    if request.kind is not None:
        check_name("machine kind", request.kind)
    if request.data is not None and not request.data.is_file():
        raise StrettoError(f"there is no file {request.data}; give an .npz file with arrays inputs and labels")
    is_zoo = reference.partition(":")[0] == ZOO
    if sum((out is not None, in_place, dry_run)) > 1:
        raise StrettoError("--out, --in-place and --dry-run say three different things; give one of them")
    if is_zoo and out is None and not dry_run:
        _check_checkout(in_place)
    machine = machine_of(ModelSource(device=request.device).device)
    repository = read_repository(reference)
    _check_names(repository, names)
    if out is not None:
        repository = _copied(repository, out)
    chosen = tuple(
        _Chosen(application, variant)
        for application in repository.applications
        for variant in application.variants
        if (variant.name in names if names else variant.enabled) and backend in (None, variant.backend)
    )
    if request.data is not None:
        for each in chosen:
            _check_scored(each.application)
    if not chosen:
        what = f"variant of backend {backend}" if backend else "enabled variant"
        raise StrettoError(f"{reference} has no {what}; there is nothing to measure")
    with_evidence = tuple(
        application
        for application in repository.applications
        if request.evidence is not None or (has_training_data(application) and not names)
    )
    _check_evidence(request, with_evidence)
    return Session(repository, request, request.kind or machine.kind, chosen, dry_run, with_evidence)


def _check_evidence(request: Request, applications: tuple[ApplicationFiles, ...]) -> None:
    if request.evidence is not None and len(applications) != 1:
        raise StrettoError("--evidence is the training data of one application; name that application's folder")
    for application in applications:
        if application.evidence_settings.model == "variant" and request.evidence is not None:
            raise StrettoError(f'{application.label} says model = "variant" in [evidence], which learns from no data')
    if request.evidence is not None and not request.evidence.is_file():
        raise StrettoError(f"there is no file {request.evidence}; give an .npz file with arrays inputs and labels")
    if applications:
        import_faiss()


def _check_scored(application: ApplicationFiles) -> None:
    if not application.output.can_be_right:
        raise ProfileError(
            f'{application.label}: kind = "values" has no classes, so nobody said which answers are right; write '
            "tolerance = … below [output] of app.toml, within which of the true one every value must lie, or leave "
            "--data out and state the accuracy in variant.toml"
        )


def _check_names(repository: Repository, names: tuple[str, ...]) -> None:
    known = [variant.name for application in repository.applications for variant in application.variants]
    for name in names:
        if name not in known:
            raise StrettoError(f"{repository.reference} has no variant {name[:40]!r}; it has {', '.join(known[:20])}")


def _check_checkout(in_place: bool) -> None:
    if not in_place:
        raise StrettoError(
            "the zoo is a part of Stretto itself; profile a copy of it with --out DIR, or only look with --dry-run "
            "(in a source checkout, --in-place writes into it)"
        )
    if not (zoo_folder().parent.parent / "pyproject.toml").is_file():
        raise StrettoError("--in-place is for a source checkout, and this Stretto is installed; give --out DIR")


def _copied(repository: Repository, out: Path) -> Repository:
    """The applications in `out`, which is made where it is missing; never over something that is there."""
    for application in repository.applications:
        target = out / application.name
        if os.path.lexists(target):
            raise StrettoError(f"{target} is there already; profile it as it is: stretto profile {target}")
    try:
        for application in repository.applications:
            shutil.copytree(application.folder, out / application.name)
    except OSError as error:
        raise StrettoError(f"{out} cannot be written ({error.strerror or 'output error'})") from None
    copies = [read_repository(out / application.name) for application in repository.applications]
    return replace(repository, applications=tuple(copy.applications[0] for copy in copies))


def _allowed(batches: tuple[int, ...], application: ApplicationFiles, variant: VariantFiles) -> tuple[int, ...]:
    largest = _largest_batch(application, variant)
    allowed = tuple(batch for batch in batches if batch <= largest)
    if not allowed:
        raise ProfileError(f"batches go up to {largest} here; measure some of those")
    return allowed


def _largest_batch(application: ApplicationFiles, variant: VariantFiles) -> int:
    return min(application.limits.max_batch, variant.max_batch or application.limits.max_batch)


def _sent(application: ApplicationFiles, variant: VariantFiles) -> Shape | None:
    """The shape of queries to measure with, where it is not the variant's own: the largest of those, which takes the
    longest to resize. None where clients send nothing else.
    """
    others = [shape for shape in application.input.shapes if shape != variant.input_shape]
    return max(others, key=math.prod, default=None)


def _samples(application: ApplicationFiles, variant: VariantFiles, sent: Shape | None) -> dict[str, Any] | None:
    """Queries as clients send them, or, where they need no resizing, as the variant takes them."""
    takes = application.input
    if sent is None:
        return None if application.sample_file is None else {takes.name: application.sample(variant).inputs}
    if application.sample_file is None:
        random = np.random.default_rng(1).random((RANDOM_QUERIES, *sent))
        return {takes.name: random.astype(takes.dtype)}
    return {takes.name: resized(application.sample().inputs, *sent[-2:])}


def _evaluated(
    application: ApplicationFiles, variant: VariantFiles, source: ModelSource, file: Path, progress: Progress | None
) -> Evaluation:
    data = labelled_for(application, variant, file)
    model = load_model(source)
    try:
        batch = min(BATCH, _largest_batch(application, variant))
        own_part = _part(progress, 0.0, 1 / (1 + len(application.input.sizes)))
        evaluation = measured(model, data, application.output, batch=batch, progress=own_part)
        if not application.input.sizes:
            return evaluation
        sent = labelled_for(application, None, file)
        left = _part(progress, 1 / (1 + len(application.input.sizes)), 1.0)
        return replace(
            evaluation, by_size=accuracy_at_sizes(model, application, variant, sent, batch=batch, progress=left)
        )
    finally:
        model.unload()


def labelled_for(application: ApplicationFiles, variant: VariantFiles | None, file: Path) -> Labelled:
    """Labelled data as this variant takes it: the array inputs_VARIANT where there is one, else inputs; as clients send
    it where there is no variant.

    Whole numbers are scaled as the application's own sample is.
    """
    divide_by = 1.0 if application.sample_file is None else application.sample_file.divide_by
    preferred = "inputs" if variant is None else f"inputs_{variant.name}"
    values = None if application.output.kind.has_classes else application.output
    return read_labelled(file, preferred, divide_by, application.input.dtype, values)


def points_of(variants: Sequence[ProfiledVariant], batch: int) -> dict[str, tuple[float, float]]:
    """Accuracy and latency, by name, of those whose accuracy is known."""
    return {each.name: (each.accuracy, each.p95_ms(batch)) for each in variants if each.accuracy is not None}


def write_metrics(
    variant: VariantFiles, evaluation: Evaluation, model_sha256: str, tolerance: float | None = None
) -> None:
    """Brings metrics.json up to date, keeping what else it holds; the digest is of the model that was measured, the
    tolerance that of values that were counted as right.
    """
    path = variant.folder / "metrics.json"
    content: dict[str, Any] = {} if variant.metrics is None else json.loads(path.read_text(encoding="utf-8"))
    content["accuracy"] = round(evaluation.accuracy, 6)
    content["model_sha256"] = model_sha256
    content["test_samples"] = evaluation.samples
    for key in ("recall", "confusion", "validation_accuracy", "quadratic", "accuracy_by_size", "tolerance"):
        content.pop(key, None)
    if tolerance is not None:
        content["tolerance"] = tolerance
    if evaluation.by_size:
        content["accuracy_by_size"] = sizes_as_json(evaluation.by_size)
    # a class that the data does not hold has no recall, and half a list is none
    if evaluation.recall and None not in evaluation.recall:
        content["recall"] = [round(value, 6) for value in evaluation.recall if value is not None]
    quadratic = [round(value, 6) for value in evaluation.quadratic if value is not None and -1 <= value <= 1]
    if quadratic and len(quadratic) == len(evaluation.quadratic):  # else a class is missing, or a "probability" is none
        content["quadratic"] = quadratic
    if evaluation.confusion.size:
        content["confusion"] = evaluation.confusion.tolist()
    part = path.with_name(f".metrics.json.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise StrettoError(f"{path} cannot be written ({error.strerror or 'output error'})") from None
    finally:
        part.unlink(missing_ok=True)


def _part(progress: Progress | None, start: float, end: float) -> Progress | None:
    return None if progress is None else lambda fraction: progress(start + (end - start) * fraction)
