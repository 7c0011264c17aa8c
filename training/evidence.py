"""Makes the zoo's evidence: the vectors by which an application knows a query's likely class (see stretto evidence).

    python -m training.evidence --data CACHE --out stretto/zoo

The index holds training queries only; validation chooses k, and the test split is what accuracy is measured on. Images
are projected onto 32 principal components of their pixels; the wrist's windows, one in ten, onto 32 of their values.
The resolution ladder and the specialists have smaller indexes of the same inputs, to keep the zoo small. Needs faiss
and torch.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stretto.evidence.build import Named, build_evidence
from stretto.repository.read import read_repository
from stretto.repository.sample import Sample
from stretto.repository.stored_evidence import write_evidence
from training.ladders import LADDERS, task_of
from training.tasks import Activity, Images, Task

WINDOWS_LEFT_OUT = 10  # of overlapping windows one in so many is kept


@dataclass(frozen=True)
class Recipe:
    """How many training queries (None: all), how many dimensions, and of overlapping windows one in how many."""

    queries: int | None
    dimensions: int
    one_in: int = WINDOWS_LEFT_OUT


RECIPES = {
    "fashion": Recipe(None, 32),
    "fashion_resolution": Recipe(20_000, 24),
    "mnist": Recipe(None, 32),
    "activity": Recipe(None, 32),
    "activity_specialists": Recipe(None, 16, one_in=20),
}


def main() -> None:
    """Build and write all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder that data.py filled")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(RECIPES), choices=list(RECIPES))
    options = parser.parse_args()
    for name in options.only:
        recipe = RECIPES[name]
        (application,) = read_repository(options.out / name).applications
        training, validation, test = splits(name, options.data)
        kept = Sample(training.inputs[: recipe.queries], training.labels[: recipe.queries])
        settings = replace(application.evidence_settings, dimensions=recipe.dimensions)
        built = build_evidence(
            application,
            Named(f"{LADDERS[name].data}, training", kept),
            Named(f"{LADDERS[name].data}, validation", validation),
            Named(f"{LADDERS[name].data}, test", test),
            settings,
        )
        folder = write_evidence(application.folder, built.stored, built.content)
        print(f"{folder}: {len(built.content) / 1e6:.2f} MB, {built.stored.vectors} vectors, k = {built.stored.k}")
        for one in built.stored.tried:
            print(f"  k = {one.k:2d}: error {one.error:.4f} on validation, own accuracy {one.accuracy:.4f} on test")


def splits(name: str, cache: Path) -> tuple[Sample, Sample, Sample]:
    """Training, validation and test queries of an application, as its clients send them."""
    ladder = LADDERS[name]
    task: Task = task_of(ladder, replace(ladder.rungs[0], size=28), cache, "cpu")
    if isinstance(task, Images):
        training = Sample(task.images.numpy() / np.float32(255), task.labels.numpy())
    else:
        assert isinstance(task, Activity)
        starts, labels = task.starts[:: RECIPES[name].one_in], task.labels[:: RECIPES[name].one_in]
        training = Sample(np.ascontiguousarray(task._windows(starts).numpy()), labels.numpy())
    rest = (
        Sample(np.ascontiguousarray(inputs.numpy()), labels.numpy()) for inputs, labels in (task.validation, task.test)
    )
    return training, next(rest), next(rest)


if __name__ == "__main__":
    main()
