"""Opens an application's evidence for use: what is stored beside it, or the variant that app.toml names."""

from __future__ import annotations

import logging

import numpy as np

from stretto.backends.load import load_model
from stretto.backends.of_variant import model_source
from stretto.core.errors import StrettoError
from stretto.evidence.features import Features, Projection, source_of
from stretto.evidence.index import Index, import_faiss
from stretto.evidence.model import Decision, Evidence, Neighbours
from stretto.repository.application import ApplicationFiles
from stretto.repository.stored_evidence import Vectors, load_vectors

log = logging.getLogger("stretto.evidence")

LARGEST = 1e12  # of a feature: squares of differences must stay numbers
WITHOUT = "goes without evidence of classes"


def load_evidence(application: ApplicationFiles) -> Evidence | None:
    """None where there is none or it cannot be used; then one warning says why. Takes some seconds at most.

    What comes back may be used from any thread: `posterior(inputs)` is θ [queries, classes].
    """
    try:
        evidence = open_evidence(application)
        evidence.posterior(np.zeros((1, *application.input.shape), application.input.dtype))  # whether it works at all
        return evidence
    except StrettoError as error:
        reason = str(error)
    except (MemoryError, RuntimeError) as error:  # of Faiss, or of a variant's runtime
        reason = f"its evidence could not be loaded ({type(error).__name__})"
    log.warning("application %s %s: %s", application.name, WITHOUT, reason)
    return None


def open_evidence(application: ApplicationFiles) -> Evidence:
    """StrettoError where there is none or it cannot be used."""
    settings = application.evidence_settings
    alpha = np.asarray(settings.alpha(application.classes))
    if settings.model == "variant":
        name = str(settings.variant)
        variant = application.variant(name)
        model = load_model(model_source(application, variant))
        recall = () if variant.metrics is None else variant.metrics.recall
        witness = Decision(model, application.output.name)
        return Evidence(
            *(application.name, application.input, application.classes, witness),
            *(settings.k or 1, alpha, application.measured_evidence, recall),
        )
    stored = application.stored_evidence
    if stored is None:
        raise StrettoError(
            f"it has no evidence; build it with: stretto profile {application.label} --evidence TRAINING.npz"
        )
    import_faiss()  # before anything is read
    k = settings.k or stored.k
    measured = stored.at(k)
    if measured is None:
        known = ", ".join(str(trial.k) for trial in stored.tried)
        raise StrettoError(
            f"k is {k}, but its evidence was measured with {known}; take one of those, or build it again"
        )
    if stored.layer is not None:
        variant = application.variant(str(stored.variant))
        if variant.model_sha256() != stored.model_sha256:
            raise StrettoError(f"variant {variant.name} changed since its evidence was built; build it again")
    elif stored.of_bytes != application.input.stays_bytes:
        now, then = ("bytes", "floats") if application.input.stays_bytes else ("numbers", "bytes")
        raise StrettoError(f"its evidence was built of {then}, but clients send {now}; build it again")
    vectors = load_vectors(application.place, stored)
    witness_of = neighbours(application, vectors, stored.index, stored.scale, k, stored.variant, stored.layer)
    return Evidence(
        *(application.name, application.input, stored.classes, witness_of),
        *(k, alpha, application.measured_evidence, () if application.has_other_prior else measured.recall),
    )


def neighbours(
    application: ApplicationFiles,
    vectors: Vectors,
    index: str,
    scale: float,
    k: int,
    variant: str | None = None,
    layer: str | None = None,
) -> Neighbours:
    """An index over stored vectors."""
    projection = None
    if vectors.mean is not None and vectors.components is not None:
        projection = Projection(vectors.mean, vectors.components)
    rows = vectors.stored * np.float32(scale) + vectors.low
    if not np.isfinite(rows).all() or np.abs(rows).max(initial=0.0) > LARGEST:  # Faiss would end the process
        raise StrettoError("its evidence holds numbers that are no features; build it again")
    features = Features(source_of(application, variant, layer), projection)
    return Neighbours(features, Index(index, rows, k), vectors.labels.astype(np.int64))
