"""Labelled queries that the small repository of tests/repository/build.py would get: three clouds of rows of four."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stretto.repository.sample import Sample
from tests.repository.build import CLASSES, SHAPE, Built, build

CENTRES = np.array([[0, 0, 0, 0], [3, 0, 3, 0], [0, 3, 0, 3]], np.float32)


def clouds(rows: int, seed: int = 0, spread: float = 0.8) -> Sample:
    random = np.random.default_rng(seed)
    labels = np.arange(rows) % CLASSES
    noise = spread * random.standard_normal((rows, 4))
    return Sample((CENTRES[labels] + noise).astype(np.float32).reshape(rows, *SHAPE), labels.astype(np.int64))


def write(file: Path, sample: Sample) -> Path:
    np.savez_compressed(file, inputs=sample.inputs, labels=sample.labels)
    return file


def with_metrics(root: Path) -> Built:
    """The small repository, whose variants are good at different classes."""
    built = build(root)
    built.metrics("fast", accuracy=0.7, recall=[0.9, 0.7, 0.5], confusion=[[9, 1, 0], [0, 7, 3], [5, 0, 5]])
    built.metrics("good", accuracy=0.9, recall=[0.8, 0.95, 0.95])
    return built
