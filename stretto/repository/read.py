"""Finds and reads a repository: a folder of applications, one application's folder, or Stretto's own zoo."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

from stretto.config.fields import ConfigError, suggestion
from stretto.core.errors import StrettoError
from stretto.repository.application import APPLICATION_FILE, VARIANTS_FOLDER, ApplicationFiles, read_application
from stretto.repository.files import MAX_MODEL_BYTES, Place
from stretto.repository.problems import Problem, Problems, RepositoryError, Unreadable
from stretto.repository.repository import Repository, is_there

MAX_APPLICATIONS = 1000
ZOO = "zoo"


def read_repository(
    reference: str | Path, *, max_model_bytes: int = MAX_MODEL_BYTES, before: Iterable[ApplicationFiles] = ()
) -> Repository:
    """A path, "zoo" or "zoo:APP"; a folder called zoo is written ./zoo. What is wrong with one application is its own
    affair: it is left out, and named among the unreadable; `before` is as in `repository_of`. RepositoryError with all
    that is wrong where none can be read.
    """
    places = application_places(reference, Problems())
    return repository_of(str(reference), [read_one(place, max_model_bytes) for place in places], before)


def inspect_repository(reference: str | Path, *, max_model_bytes: int = MAX_MODEL_BYTES) -> tuple[Repository, Problems]:
    """As much as could be read, and everything that is wrong with it. StrettoError where there is nothing to read."""
    problems = Problems()
    places = application_places(reference, problems)
    applications: list[ApplicationFiles] = []
    for place in places:
        application = _read(place, max_model_bytes, problems)
        if application is not None:
            applications.append(application)
    return Repository(str(reference), tuple(applications)), problems


def read_one(place: Place, max_model_bytes: int = MAX_MODEL_BYTES) -> ApplicationFiles | Unreadable:
    """An application that is sound, or what is wrong with it."""
    problems = Problems()
    application = _read(place, max_model_bytes, problems)
    for variant in () if application is None else application.variants:
        try:
            variant.read_sha256  # noqa: B018  whoever serves it asks for that first
        except StrettoError as error:
            problems.add(Problem(error.message if isinstance(error, ConfigError) else str(error), variant.label))
    if application is None or problems.errors:
        return Unreadable(place.path.name, place.label, problems.errors)
    return application


def repository_of(
    reference: str, found: Sequence[ApplicationFiles | Unreadable], before: Iterable[ApplicationFiles] = ()
) -> Repository:
    """What cannot be read now stays as it was read `before`, as long as its models are there. RepositoryError where
    there is nothing.
    """
    earlier = {files.name: files for files in before if is_there(files)}
    unreadable = tuple(each for each in found if isinstance(each, Unreadable))
    usable = tuple(
        files for each in found if (files := earlier.get(each.name) if isinstance(each, Unreadable) else each)
    )
    if not usable:
        raise RepositoryError(tuple(problem for each in unreadable for problem in each.problems), reference)
    return Repository(reference, usable, unreadable)


def _read(place: Place, max_model_bytes: int, problems: Problems) -> ApplicationFiles | None:
    """As much as can be."""
    return (
        None if problems.attempt(None, place.resolved) is None else read_application(place, max_model_bytes, problems)
    )


def zoo_folder() -> Path:
    """The trained models that come with Stretto."""
    folder = resources.files("stretto") / ZOO
    if not isinstance(folder, Path) or not folder.is_dir():
        raise StrettoError("this installation of Stretto has no zoo; install it again, unpacked, or name a folder")
    return folder


def application_places(reference: str | Path, problems: Problems) -> list[Place]:
    """The folders of the applications. Whether one leads out of the repository is seen when it is read."""
    if isinstance(reference, str) and reference.partition(":")[0] == ZOO:
        return _zoo(reference, problems)
    root = _root(Path(reference), str(reference).rstrip("/") or "/")
    if root.child(APPLICATION_FILE).exists():
        return [root]
    return _inside(root, problems)


def _zoo(reference: str, problems: Problems) -> list[Place]:
    boundary = Path(os.path.realpath(zoo_folder()))
    root = Place(boundary, boundary, ZOO)
    _, colon, name = reference.partition(":")
    # Who asks for one application is not told about the folders beside it.
    places = _inside(root, Problems() if colon else problems)
    zoo_places = [Place(boundary, place.path, f"{ZOO}:{place.path.name}") for place in places]
    if not colon:
        return zoo_places
    names = [place.path.name for place in zoo_places]
    if name not in names:
        raise StrettoError(f"the zoo has no application {name[:40]!r}; {suggestion(name, names[:20])}")
    return [zoo_places[names.index(name)]]


def _root(path: Path, label: str) -> Place:
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise StrettoError(f"{label}: there is no such folder; name a model repository, or zoo") from None
    if not real.is_dir():
        raise StrettoError(f"{label}: is a file; name the folder of the model repository")
    return Place(real, real, label)


def _inside(root: Place, problems: Problems) -> list[Place]:
    """Folders with an app.toml, those that look as if one was forgotten, and those where nothing can be seen."""
    places: list[Place] = []
    for place in root.entries():
        if place.child(APPLICATION_FILE).exists() or place.child(VARIANTS_FOLDER).exists() or place.is_broken_link():
            places.append(place)
        elif place.is_folder():
            if place.is_bare():
                places.append(place)
            else:
                problems.warn(place.label, f"holds no {APPLICATION_FILE}, so it is no application and left out")
    if not places:
        root.fail(f"holds no application; add NAME/{APPLICATION_FILE} and NAME/{VARIANTS_FOLDER}/…")
    if len(places) > MAX_APPLICATIONS:
        root.fail(f"holds {len(places)} applications; at most {MAX_APPLICATIONS} are taken")
    return places
