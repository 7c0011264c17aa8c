"""Finds and reads a repository: a folder of applications, one application's folder, or Stretto's own zoo."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from stretto.config.fields import suggestion
from stretto.core.errors import StrettoError
from stretto.repository.application import APPLICATION_FILE, VARIANTS_FOLDER, ApplicationFiles, read_application
from stretto.repository.files import MAX_MODEL_BYTES, Place
from stretto.repository.problems import Problems, RepositoryError
from stretto.repository.repository import Repository

MAX_APPLICATIONS = 1000
ZOO = "zoo"


def read_repository(reference: str | Path, *, max_model_bytes: int = MAX_MODEL_BYTES) -> Repository:
    """A path, "zoo" or "zoo:APP". RepositoryError with all that is wrong; a folder called zoo is written ./zoo."""
    repository, problems = inspect_repository(reference, max_model_bytes=max_model_bytes)
    if problems.errors:
        raise RepositoryError(problems.errors, repository.reference)
    return repository


def inspect_repository(reference: str | Path, *, max_model_bytes: int = MAX_MODEL_BYTES) -> tuple[Repository, Problems]:
    """As much as could be read, and everything that is wrong with it. StrettoError where there is nothing to read."""
    problems = Problems()
    places = application_places(reference, problems)
    applications: list[ApplicationFiles] = []
    for place in places:
        application = read_application(place, max_model_bytes, problems)
        if application is not None:
            applications.append(application)
    return Repository(str(reference), tuple(applications)), problems


def zoo_folder() -> Path:
    """The trained models that come with Stretto."""
    folder = resources.files("stretto") / ZOO
    if not isinstance(folder, Path) or not folder.is_dir():
        raise StrettoError("this installation of Stretto has no zoo; install it again, unpacked, or name a folder")
    return folder


def application_places(reference: str | Path, problems: Problems) -> list[Place]:
    """The folders of the applications, none of which may lead out of the repository."""
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
    """Folders with an app.toml, and those that look as if one was forgotten."""
    places: list[Place] = []
    for place in root.entries():
        if place.child(APPLICATION_FILE).exists() or place.child(VARIANTS_FOLDER).exists():
            if problems.attempt(None, place.resolved) is not None:
                places.append(place)
        elif place.is_broken_link():
            problems.attempt(None, place.resolved)
        elif place.is_folder():
            problems.warn(place.label, f"holds no {APPLICATION_FILE}, so it is no application and left out")
    if not places and not problems.errors:
        root.fail(f"holds no application; add NAME/{APPLICATION_FILE} and NAME/{VARIANTS_FOLDER}/…")
    if len(places) > MAX_APPLICATIONS:
        root.fail(f"holds {len(places)} applications; at most {MAX_APPLICATIONS} are taken")
    return places
