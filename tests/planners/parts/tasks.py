"""Small tasks to solve by hand, and the image task of the RAMSIS evaluation where its measurements are at hand."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import workers
from stretto.planners.parts.task import Task, task_of

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "ramsis_image.csv"
needs_measurements = pytest.mark.skipif(
    not SHARED.exists(), reason="the RAMSIS measurements (ramsis_image.csv) are not here"
)


def small_deployment(count: int = 3, slo_ms: float = 60.0, max_batch: int = 8) -> Deployment:
    fast = Variant("fast", 0.6, (LatencyProfile.linear(3, 5, max_batch),))
    middle = Variant("middle", 0.7, (LatencyProfile.linear(5, 10, max_batch),))
    slow = Variant("slow", 0.9, (LatencyProfile.linear(9, 16, max_batch),))
    useless = Variant("useless", 0.65, (LatencyProfile.linear(6, 12, max_batch),))
    return Deployment((Application("app", int(slo_ms * NS_PER_MS), (fast, middle, slow, useless)),), workers(count))


def small_task(count: int = 3, slo_ms: float = 60.0, max_batch: int = 8) -> Task:
    return task_of(small_deployment(count, slo_ms, max_batch), 0).only([0, 1, 2])


def image_deployment(count: int = 60, slo_ms: float = 150.0) -> Deployment:
    """Read as the published results did: batches to 32, decisions by p95, gaps filled by a line, monotone."""
    points: dict[str, dict[int, dict[str, float]]] = {}
    accuracy: dict[str, float] = {}
    with open(SHARED, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            latency = {name: float(row[f"{name}_ms"]) for name in ("mean", "p50", "p95", "p99")}
            points.setdefault(row["model"], {})[int(row["batch"])] = latency
            accuracy[row["model"]] = float(row["accuracy"])
    variants = tuple(
        Variant(name, accuracy[name], (LatencyProfile.measured(found, 32),)) for name, found in points.items()
    )
    return Deployment((Application("image", int(slo_ms * NS_PER_MS), variants),), workers(count))


def dense(states: int, target: np.ndarray, probability: np.ndarray) -> np.ndarray:
    row = np.zeros(states)
    np.add.at(row, target, probability)
    return row
