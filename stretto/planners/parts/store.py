"""Libraries of policies in a file: compressed arrays without pickled objects, and what they were computed from.

A file says in words what it is for. Policies for another profile, SLO, number of workers or set of options are refused
with the first thing that differs: following them would break their promises silently.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.core.npz import check_arrays
from stretto.core.profile import MAX_BATCH_LIMIT
from stretto.planners.parts.library import Library, Recipe
from stretto.planners.parts.policy import Expectation, Policy, Stored
from stretto.planners.parts.task import Task

FORMAT = 2
MAX_BYTES = 1 << 30
LARGEST = 1e12  # of a load
LONGEST_NS = 10**15  # of a slack
FIGURES = ("accuracy", "late", "correct", "full", "median", "p99")
Path = str | os.PathLike[str]


def save_libraries(path: Path, libraries: Sequence[Library]) -> None:
    """Write libraries, one for each application and kind of worker."""
    arrays: dict[str, NDArray[Any]] = {}
    heads = []
    for number, library in enumerate(libraries):
        if not library.policies:
            raise StrettoError(f"there are no policies for application {library.task.application} to store")
        task, policies = library.task, library.policies
        described = description(task, library.options)
        heads.append({"for": described, "variants": task.variants, "complete to": library.complete_to})
        arrays[f"{number}.load"] = np.array([policy.load for policy in policies])
        arrays[f"{number}.slack_ns"] = policies[0].slack_ns
        arrays[f"{number}.variant"] = _stacked([policy.variant for policy in policies])
        arrays[f"{number}.batch"] = _stacked([policy.batch for policy in policies])
        arrays[f"{number}.expectation"] = np.array(
            [[asdict(policy.expectation)[name] for name in FIGURES] for policy in policies]
        )
    head = json.dumps({"format": FORMAT, "libraries": heads})
    arrays["head"] = np.frombuffer(head.encode(), dtype=np.uint8)
    try:
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise StrettoError(f"{os.path.basename(path)}: cannot be written ({error.strerror})") from None


def load_libraries(path: Path) -> tuple[Stored, ...]:
    """Read what `save_libraries` wrote; anything else is refused."""
    name = os.path.basename(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if not check_arrays(archive, MAX_BYTES):
                raise StrettoError(f"{name}: too large for a file of policies")
        with np.load(path, allow_pickle=False) as arrays:
            head = json.loads(arrays["head"].tobytes().decode())
            if head["format"] != FORMAT:
                raise StrettoError(f"{name}: written by another version; make the policies anew")
            return tuple(
                _stored(name, number, library_head, arrays) for number, library_head in enumerate(head["libraries"])
            )
    except StrettoError:
        raise
    except OSError as error:
        raise StrettoError(f"{name}: cannot be read ({error.strerror or 'not a file of policies'})") from None
    except Exception:  # zipfile, zlib, json and numpy raise a dozen kinds on files that are cut short or made up
        raise StrettoError(f"{name}: not a file of policies, or damaged") from None


def digest_of(path: Path) -> str:
    """What tells a file of policies from another."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StrettoError(f"{os.path.basename(path)}: cannot be read ({error.strerror})") from None


def matching(stored: Sequence[Stored], task: Task, options: Recipe) -> Library:
    """The stored library for a task, or a sentence about what differs."""
    wanted = description(task, options)
    for library in stored:
        if library.described == wanted:
            return Library(task, options, library.policies, library.complete_to)
    nearest = max(stored, key=lambda library: _alike(library.described, wanted), default=None)
    if nearest is None:
        raise StrettoError(f"there are no stored policies for application {task.application}")
    what = next(what for what in wanted if nearest.described.get(what) != wanted[what])
    has, needs = nearest.described.get(what, "nothing"), wanted[what]
    if what == "profile":
        reason = "for other latencies or accuracies of the variants than the profile in use has"
    else:
        reason = f"for {what} {has}, not {needs}"
    raise StrettoError(f"{nearest.file}: these policies are {reason}; make them anew")


def description(task: Task, options: Recipe) -> dict[str, str]:
    """All that policies depend on, but for the load."""
    return task.described() | options.described()


def _alike(described: dict[str, str], wanted: dict[str, str]) -> int:
    """How many things agree before the first that does not."""
    return next((i for i, what in enumerate(wanted) if described.get(what) != wanted[what]), len(wanted))


def _stacked(tables: Sequence[NDArray[np.int32]]) -> NDArray[np.int16]:
    """Tables of different lengths as one array: the last row of a table holds for all longer queues."""
    longest = max(len(table) for table in tables)
    padded = [np.concatenate([table, np.repeat(table[-1:], longest - len(table), axis=0)]) for table in tables]
    return np.stack(padded).astype(np.int16)


def _stored(name: str, number: int, library_head: Any, arrays: Any) -> Stored:
    load, slack = arrays[f"{number}.load"], arrays[f"{number}.slack_ns"]
    variant, batch = arrays[f"{number}.variant"], arrays[f"{number}.batch"]
    figures = arrays[f"{number}.expectation"]
    variants = tuple(str(variant) for variant in library_head["variants"])
    numbers = np.concatenate([load.ravel(), figures.ravel(), [float(library_head["complete to"])]])
    sound = (
        all(array.dtype.kind in "iu" for array in (slack, variant, batch))
        and bool(np.isfinite(numbers).all())
        and bool((np.abs(numbers) <= LARGEST).all())
        and load.ndim == 1
        and len(load) > 0
        and bool((load > 0).all())
        and bool((np.diff(load) > 0).all())
        and len(slack) > 1
        and bool((np.diff(slack) > 0).all())
        and slack[0] == 0
        and int(slack[-1]) <= LONGEST_NS
        and variant.shape == batch.shape
        and variant.ndim == 3
        and variant.shape[0] == len(load)
        and variant.shape[1] >= 3
        and variant.shape[2] == len(slack)
        and figures.shape == (len(load), len(FIGURES))
        and bool(((variant >= -1) & (variant < len(variants))).all())
        and bool(((batch >= 1) & (batch <= MAX_BATCH_LIMIT)).all())
        and bool((variant[:, 1:, 0] >= 0).all())
    )
    if not sound:
        raise StrettoError(f"{name}: damaged; make the policies anew")
    policies = tuple(
        Policy(
            float(load[i]),
            slack.astype(np.int64),
            variant[i].astype(np.int32),
            batch[i].astype(np.int32),
            Expectation(**dict(zip(FIGURES, figures[i].tolist(), strict=True))),
        )
        for i in range(len(load))
    )
    described = {str(what): str(value) for what, value in library_head["for"].items()}
    return Stored(name, described, variants, float(library_head["complete to"]), policies)
