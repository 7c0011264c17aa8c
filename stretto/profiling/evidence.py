"""Builds an application's evidence from its labelled training data, as `stretto profile` does after the variants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stretto.core.errors import StrettoError
from stretto.evidence.build import Built, Named, build_evidence
from stretto.repository.application import ApplicationFiles, read_application
from stretto.repository.files import MAX_MODEL_BYTES, Place
from stretto.repository.problems import Problems, RepositoryError
from stretto.repository.sample import SampleFile, load_sample
from stretto.repository.stored_evidence import write_evidence


def has_training_data(application: ApplicationFiles) -> bool:
    """app.toml names labelled data, and they are there."""
    data = application.evidence_settings.data
    return data is not None and data.place.exists()


def labelled_file(application: ApplicationFiles, file: Path) -> SampleFile:
    """A file from anywhere, scaled as the application's own labelled data are."""
    if not file.is_file():
        raise StrettoError(f"there is no file {file.name}; give an .npz file with arrays inputs and labels")
    divide_by = 1.0 if application.sample_file is None else application.sample_file.divide_by
    return SampleFile(Place(file.resolve().parent, file, file.name), divide_by, whole_only=True)


def read_named(application: ApplicationFiles, file: SampleFile) -> Named:
    """Labelled queries as clients send them."""
    takes = application.input
    return Named(file.path.name, load_sample(file, None, takes.dtype, takes.shape, application.classes))


def build_from_files(application: ApplicationFiles, data: Path | None = None, test: Path | None = None) -> Built:
    """`data` goes before what app.toml names; `test` is what variants are measured on, where given."""
    settings = application.evidence_settings
    training = settings.data if data is None else labelled_file(application, data)
    if training is None:
        raise StrettoError(
            f'{application.label} names no training data; write [evidence] data = "train.npz", or give --evidence FILE'
        )
    kept_back = settings.held_out
    return build_evidence(
        application,
        read_named(application, training),
        None if kept_back is None else read_named(application, kept_back),
        None if test is None else read_named(application, labelled_file(application, test)),
        replace(settings, data=None, held_out=None),
    )


def build_and_write(
    application: ApplicationFiles, data: Path | None, test: Path | None, is_dry: bool = False
) -> tuple[Built, Path | None]:
    """Reads the application again first: metrics that were measured just now decide which k is best."""
    problems = Problems()
    fresh = read_application(application.place, MAX_MODEL_BYTES, problems)
    if fresh is None or problems.errors:
        raise RepositoryError(problems.errors, application.label)
    built = build_from_files(fresh, data, test)
    return built, None if is_dry else write_evidence(fresh.folder, built.stored, built.content)
