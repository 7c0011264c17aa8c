"""Writes each application's labels and a labelled, stratified sample of its test split.

    python -m training.sample --data CACHE --out stretto/zoo [--only activity]

sample.npz holds `labels` (int64) and `inputs`: images as uint8 [n, 1, 28, 28], to be divided by 255; series as float32
[n, 6, 100] in g and rad/s. The resolution ladder adds `inputs_NAME`, downsampled by area, for each of its variants.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from training.ladders import LADDERS, Ladder, task_of
from training.tasks import Task


def main() -> None:
    """Write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder that data.py filled")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(LADDERS), choices=list(LADDERS))
    options = parser.parse_args()
    for application in options.only:
        ladder = LADDERS[application]
        folder = options.out / application
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "labels.txt").write_text("\n".join(ladder.labels) + "\n")
        np.savez_compressed(folder / "sample.npz", **sample(ladder, options.data))
        print(f"{folder / 'sample.npz'}: {(folder / 'sample.npz').stat().st_size / 1000:.0f} kB")


def sample(ladder: Ladder, cache: Path) -> dict[str, np.ndarray]:
    """The arrays of one sample.npz."""
    whole = task_of(ladder, replace(ladder.rungs[0], size=28), cache, "cpu")
    labels = whole.test[1].numpy()
    random = np.random.default_rng(0)
    of_each = [random.permutation(np.flatnonzero(labels == label))[: ladder.sample] for label in np.unique(labels)]
    rows = random.permutation(np.concatenate(of_each))
    arrays = {"inputs": _stored(whole, rows), "labels": labels[rows]}
    for rung in ladder.rungs:
        if rung.size != 28:
            arrays[f"inputs_{rung.name}"] = _stored(task_of(ladder, rung, cache, "cpu"), rows)
    return arrays


def _stored(task: Task, rows: np.ndarray) -> np.ndarray:
    """Images as the bytes they were; series rounded to 1/1024 of their unit, which halves the file."""
    inputs = task.test[0].numpy()[rows]
    if len(task.shape) == 3:
        return np.round(inputs * 255).astype(np.uint8)
    return (np.round(inputs * 1024) / 1024).astype(np.float32)


if __name__ == "__main__":
    main()
