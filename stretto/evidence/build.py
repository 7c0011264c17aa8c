"""Builds evidence from labelled data: fits the projection, stores the vectors as bytes, tries k on held-out queries.

k is chosen by the error of estimated accuracy on the held-out part (see error.py); accuracy and recall of the
evidence itself are measured on test data where there are some, else on the held-out part. Neither is in the index.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.core.evidence import posterior_mean
from stretto.evidence.error import measure_errors
from stretto.evidence.features import Features, fit_projection, source_of
from stretto.evidence.index import import_faiss, likely_index
from stretto.evidence.load import neighbours
from stretto.evidence.model import Evidence, Neighbours, tallied
from stretto.evidence.scores import score_matrix
from stretto.repository.application import ApplicationFiles
from stretto.repository.evidence import EvidenceSettings
from stretto.repository.sample import Sample
from stretto.repository.stored_evidence import MAX_NUMBERS, MAX_VECTORS, Origin, StoredEvidence, Tried, Vectors, packed

KS = (1, 3, 5, 10, 20, 40, 80, 160)
HELD_OUT_SHARE = 0.1
MAX_HELD_OUT = 5000
LEVELS = 255

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Named:
    """Labelled queries, and what people call them."""

    name: str
    sample: Sample

    def origin(self) -> Origin:
        digest = hashlib.sha256(np.ascontiguousarray(self.sample.inputs).tobytes())
        digest.update(self.sample.labels.astype("<i8").tobytes())
        return Origin(self.name, digest.hexdigest(), len(self.sample))


@dataclass(frozen=True, eq=False)
class Built:
    """What can be stored, the bytes of its arrays, and the same evidence ready for use."""

    stored: StoredEvidence
    content: bytes
    evidence: Evidence


def build_evidence(
    application: ApplicationFiles,
    data: Named,
    held_out: Named | None = None,
    measured_on: Named | None = None,
    settings: EvidenceSettings | None = None,
    seed: int = 0,
) -> Built:
    """`held_out` chooses k: without it a part of the data is kept back. `measured_on` is test data, if there are any.

    Queries that resemble one another (windows of one recording) must not be split between data and held-out part, so
    give that part then.
    """
    settings = application.evidence_settings if settings is None else settings
    if settings.model != "neighbours":
        raise StrettoError(f'{application.name} says model = "variant", which needs no building')
    if not application.classes:
        raise StrettoError(f"evidence is about classes, and the answers of {application.name} have none")
    import_faiss()
    whole = data.origin()
    sample = data.sample
    if held_out is None:
        sample, back = split(data.sample, HELD_OUT_SHARE, seed)
        held_out = Named(f"a part of {data.name}"[:200], back)
    measured_on = held_out if measured_on is None else measured_on
    vectors, scale = _vectors(application, sample, settings, seed)
    ks = _ks(settings.k, len(sample))
    index = settings.index or likely_index(len(sample))
    witness = neighbours(application, vectors, index, scale, max(ks), settings.variant, settings.layer)
    alpha = np.asarray(settings.alpha(application.classes))
    tried, k = _tried(application, witness, ks, alpha, held_out.sample, measured_on.sample)
    content = packed(vectors)
    stored = StoredEvidence(
        application.classes,
        application.input.shape,
        index,
        settings.k or k,
        tried,
        len(vectors.stored),
        vectors.stored.shape[1],
        scale,
        hashlib.sha256(content).hexdigest(),
        whole,
        held_out.origin(),
        measured_on.origin(),
        vectors.components is not None,
        settings.variant if settings.layer is not None else None,
        settings.layer,
        None if settings.layer is None else application.variant(str(settings.variant)).model_sha256(),
        of_bytes=application.input.stays_bytes,
        prior=settings.prior,
    )
    best = stored.at(stored.k)
    assert best is not None
    evidence = Evidence(
        *(application.name, application.input, application.classes, witness),
        *(stored.k, alpha, best.accuracy, best.recall),
    )
    return Built(stored, content, evidence)


def split(sample: Sample, share: float, seed: int) -> tuple[Sample, Sample]:
    """The larger part and the part kept back, drawn at random, at most MAX_HELD_OUT of them."""
    count = len(sample)
    back = min(MAX_HELD_OUT, round(count * share))
    if back < 1 or back >= count:
        raise StrettoError(f"{count} labelled queries are too few to keep some back; give more, or a held-out part")
    order = np.random.default_rng(seed).permutation(count)
    rest, kept_back = np.sort(order[back:]), np.sort(order[:back])
    return (
        Sample(sample.inputs[rest], sample.labels[rest]),
        Sample(sample.inputs[kept_back], sample.labels[kept_back]),
    )


def _ks(wanted: int | None, count: int) -> tuple[int, ...]:
    if wanted is not None and wanted > count:
        raise StrettoError(f"k is {wanted}, but there are only {count} labelled queries")
    return tuple(sorted({k for k in KS if k <= count} | ({wanted} if wanted is not None else set())))


def _vectors(
    application: ApplicationFiles, data: Sample, settings: EvidenceSettings, seed: int
) -> tuple[Vectors, float]:
    source = source_of(application, settings.variant, settings.layer)
    rows = Features(source)(data.inputs)
    if not np.isfinite(rows).all():
        raise StrettoError("the labelled data, or features of them, are not all finite numbers; clean them first")
    projection = None
    if settings.dimensions is not None:
        projection = fit_projection(rows, settings.dimensions, seed)
        rows = projection(rows)
    if len(rows) > MAX_VECTORS or rows.size > MAX_NUMBERS:
        raise StrettoError(
            f"{len(rows)} vectors of {rows.shape[1]} numbers are too many to keep; project onto fewer dimensions, or "
            "give fewer labelled queries"
        )
    low = rows.min(axis=0)
    scale = float(np.float32(max(float((rows.max(axis=0) - low).max()) / LEVELS, 1e-30)))
    stored = np.clip(np.rint((rows - low) / np.float32(scale)), 0, LEVELS).astype(np.uint8)
    labels = data.labels.astype(np.min_scalar_type(max(0, application.classes - 1)))
    mean, components = (None, None) if projection is None else (projection.mean, projection.components)
    return Vectors(stored, labels, low.astype(np.float32), mean, components), scale


def _tried(
    application: ApplicationFiles,
    witness: Neighbours,
    ks: tuple[int, ...],
    alpha: NDArray[np.float64],
    held_out: Sample,
    measured_on: Sample,
) -> tuple[tuple[Tried, ...], int]:
    """Every k with what was measured of it, and the one that the held-out queries choose."""
    chosen_by = measure_errors(witness, held_out, ks, alpha, scores_or_classes(application))
    measured_by = witness.votes(measured_on.inputs, max(ks))
    tried: list[Tried] = []
    for k in ks:
        answers = posterior_mean(tallied(measured_by[:, :k], application.classes), alpha).argmax(axis=1)
        is_right = answers == measured_on.labels
        recall = _recall(is_right, measured_on.labels, application.classes)
        tried.append(Tried(k, float(is_right.mean()), recall, chosen_by.by_k[k].error))
    return tuple(tried), chosen_by.best_k


def scores_or_classes(application: ApplicationFiles) -> NDArray[np.float64]:
    """Recall by variant; where none was measured, as if there were a variant for each class that knows only that."""
    _, matrix, _ = score_matrix(application)
    return matrix if len(matrix) else np.eye(application.classes)


def _recall(is_right: NDArray[np.bool_], labels: Integers, classes: int) -> tuple[float, ...]:
    """A class that was not measured gets the overall accuracy."""
    seen = np.bincount(labels, minlength=classes)
    hits = np.bincount(labels[is_right], minlength=classes)
    overall = float(is_right.mean())
    return tuple(float(hit / count) if count else overall for hit, count in zip(hits, seen, strict=True))


def with_k(stored: StoredEvidence, k: int) -> StoredEvidence:
    """The same evidence with another of the ks that were tried."""
    if stored.at(k) is None:
        raise StrettoError(f"k is {k}, which was not tried when the evidence was built")
    return replace(stored, k=k)


def measured_again(application: ApplicationFiles, evidence: Evidence, sample: Sample) -> StoredEvidence:
    """What is stored, with every k measured on these queries with the prior in force."""
    stored = application.stored_evidence
    assert stored is not None and isinstance(evidence.witness, Neighbours)
    ks = tuple(trial.k for trial in stored.tried)
    tried, _ = _tried(application, evidence.witness, ks, evidence.alpha, sample, sample)
    origin = Named("the application's queries, measured again", sample).origin()
    return replace(stored, tried=tried, prior=application.evidence_settings.prior, measured_on=origin)
