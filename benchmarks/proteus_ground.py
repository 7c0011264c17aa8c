"""The ground that Proteus was published on: nine applications of 46 variants, 40 workers of three kinds, SLO 300 ms.

Each family of models is an application, with accuracies normalised to the best of its family. Latency is the p50, on a
line between measured batch sizes, and made monotone from the right as everywhere: a batch may run as a larger one. The
two files of arrivals hold about five minutes each. Needs shared/data/proteus_*.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.profile import NS_PER_MS, LatencyProfile, Quantile
from stretto.core.worker import UNLIMITED_MEMORY, Worker
from stretto.sim.arrivals import ARRIVAL, application_numbers, slos_ns

MEASUREMENTS = Path(__file__).resolve().parents[2] / "shared" / "data"
PROFILES = MEASUREMENTS / "proteus_profiles.csv"
ARRIVALS = ("zipf_exponential", "medium_normal_load")
WORKERS = {"cpu": 20, "gpu_ampere": 10, "gpu_pascal": 10}
SLO_MS = 300.0


def arrivals_path(name: str) -> Path:
    return MEASUREMENTS / f"proteus_{name}.csv.gz"


def is_there() -> bool:
    """Whether the files that all this is read from are beside the project."""
    return all(path.exists() for path in (PROFILES, *map(arrivals_path, ARRIVALS)))


def require() -> None:
    """Ends a benchmark that cannot run, in a sentence."""
    if not is_there():
        sys.exit(
            "this benchmark needs shared/data/proteus_profiles.csv and the two proteus_*.csv.gz beside the project"
        )


def ground(load_s: float | None = None, counts: dict[str, int] | None = None) -> Deployment:
    """`load_s`: a worker holds one variant, none at the start, and takes so long to change it; None: it holds all."""
    sizes, load_ns = (0, 0) if load_s is None else (1, int(load_s * 1e9))
    families: dict[str, list[Variant]] = {}
    for (family, name), (accuracy, points) in _measured().items():
        profiles = tuple(_profile(kind, by_batch) for kind, by_batch in points.items())
        model = Variant(name, accuracy, profiles, memory_bytes=sizes, load_ns=load_ns)
        families.setdefault(family, []).append(model)
    applications = tuple(
        Application(family, int(SLO_MS * NS_PER_MS), tuple(variants)) for family, variants in families.items()
    )
    memory, resident = (UNLIMITED_MEMORY, None) if load_s is None else (1, ())
    workers = tuple(
        Worker(f"{kind}-{number}", kind, memory, resident)
        for kind, count in (counts or WORKERS).items()
        for number in range(count)
    )
    return Deployment(applications, workers, Quantile.P50)


@cache
def _measured() -> dict[tuple[str, str], tuple[float, dict[str, dict[int, float]]]]:
    """By family and variant: accuracy, and by kind of worker the p50 (ms) by batch size."""
    found: dict[tuple[str, str], tuple[float, dict[str, dict[int, float]]]] = {}
    with open(PROFILES, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = row["variant"].replace("/", ":")
            entry = found.setdefault((row["family"], name), (float(row["normalised_accuracy"]) / 100, {}))
            entry[1].setdefault(row["kind"], {})[int(row["batch"])] = float(row["p50_ms"])
    return found


def _profile(kind: str, by_batch: dict[int, float]) -> LatencyProfile:
    measured = sorted(by_batch)
    sizes = np.arange(1, measured[-1] + 1)
    row = np.interp(sizes, measured, [by_batch[size] for size in measured])
    row = np.minimum.accumulate(row[::-1])[::-1]
    table = np.concatenate([[0], np.rint(row * NS_PER_MS).astype(np.int64)])
    return LatencyProfile(np.tile(table, (len(Quantile), 1)), kind)


@dataclass(frozen=True, eq=False)
class Recorded:
    """A source that gives what was recorded: the same whatever the seed. `families` go by number in `family`."""

    families: tuple[str, ...]
    family: NDArray[np.int64]
    time_ns: NDArray[np.int64]

    @staticmethod
    def read(name: str) -> Recorded:
        with gzip.open(arrivals_path(name), "rt", encoding="utf-8") as file:
            rows = [(row["family"], float(row["arrival_ms"])) for row in csv.DictReader(file)]
        names, numbers = np.unique([family for family, _ in rows], return_inverse=True)
        times = np.rint(np.array([time for _, time in rows]) * NS_PER_MS).astype(np.int64)
        order = np.argsort(times, kind="stable")
        return Recorded(tuple(names.tolist()), numbers[order], times[order])

    @property
    def seconds(self) -> float:
        """Up to just after the last arrival."""
        return float(self.time_ns[-1] + NS_PER_MS) / 1e9

    def chunks(self, deployment: Deployment, seconds: float, seed: int) -> Iterator[NDArray[np.void]]:
        until = int(np.searchsorted(self.time_ns, seconds * 1e9))
        if until == 0:
            return
        rows = np.zeros(until, dtype=ARRIVAL)
        rows["application"] = self._applications(deployment)[:until]
        rows["time_ns"] = self.time_ns[:until]
        rows["deadline_ns"] = rows["time_ns"] + slos_ns(deployment)[rows["application"]]
        rows["client"] = rows["query_class"] = -1
        yield rows

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        return tuple((self.counts(deployment, seconds)[0] / seconds).tolist())

    def counts(self, deployment: Deployment, window_s: float) -> NDArray[np.int64]:
        """Arrivals by window and application."""
        window = (self.time_ns // int(window_s * 1e9)).astype(np.int64)
        counts = np.zeros((int(window[-1]) + 1, len(deployment.applications)), np.int64)
        np.add.at(counts, (window, self._applications(deployment)), 1)
        return counts

    def _applications(self, deployment: Deployment) -> NDArray[np.int64]:
        numbers = application_numbers(deployment)
        return np.array([numbers[name] for name in self.families])[self.family]
