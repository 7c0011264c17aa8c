"""The two tasks of the RAMSIS evaluation (section 7), image and text classification, and its production trace.

Profiles are read as the published results read them: decisions by p95, batch sizes that were not measured filled by a
line up to 32, latencies that never fall with the batch. Needs shared/data/ramsis_image.csv, ramsis_text.csv and
twitter_rates.csv beside the project.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import workers
from stretto.sim.traces import RateTrace

MEASUREMENTS = Path(__file__).resolve().parents[2] / "shared" / "data"
MAX_BATCH = 32
LOADS = tuple(range(400, 4001, 400))  # figure 6, queries/s
TRACE_WORKERS = tuple(range(20, 101, 10))  # figure 5


@dataclass(frozen=True)
class Task:
    """One task: its three SLOs, and the number of workers that it is given under constant load (section 7.2)."""

    name: str
    slos_ms: tuple[float, float, float]
    workers: int

    def deployment(self, worker_count: int, slo_ms: float, names: tuple[str, ...] | None = None) -> Deployment:
        """All of the task's models, or those named, on so many workers."""
        points: dict[str, dict[int, dict[str, float]]] = {}
        accuracy: dict[str, float] = {}
        with open(measurements(f"ramsis_{self.name}.csv"), encoding="utf-8") as file:
            for row in csv.DictReader(file):
                latency = {name: float(row[f"{name}_ms"]) for name in ("mean", "p50", "p95", "p99")}
                points.setdefault(row["model"], {})[int(row["batch"])] = latency
                accuracy[row["model"]] = float(row["accuracy"])
        variants = tuple(
            Variant(name, accuracy[name], (LatencyProfile.measured(found, MAX_BATCH),))
            for name, found in points.items()
            if names is None or name in names
        )
        return Deployment((Application(self.name, int(slo_ms * NS_PER_MS), variants),), workers(worker_count))


IMAGE = Task("image", (150.0, 300.0, 500.0), 60)
TEXT = Task("text", (100.0, 200.0, 300.0), 20)
TASKS = (IMAGE, TEXT)


def measurements(name: str) -> Path:
    """Returns the path of a file of measurements; a benchmark ends here when it is missing."""
    path = MEASUREMENTS / name
    if not path.exists():
        sys.exit(f"this benchmark needs shared/data/{name} beside the project")
    return path


def trace_of(name: str = "twitter_rates.csv") -> RateTrace:
    """The production trace: each rate is held for 10 s, as in the published code, from the start again when it ends."""
    return RateTrace.read(measurements(name), "hold")
