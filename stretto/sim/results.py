"""What a simulation found: a summary for people and programs, and every query's end where it was recorded."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import OUTCOME_COUNT, Outcome
from stretto.core.snapshot import Snapshot
from stretto.sim.autoscale import FleetTrace
from stretto.sim.tally import BUCKETS, mean_ns, percentile_ns


@dataclass(frozen=True)
class VariantSummary:
    """What one variant did."""

    name: str
    answered: int
    share: float  # of the application's answers
    batch_mean: float


@dataclass(frozen=True)
class Figures:
    """The figures that hold for a whole run and for each of its applications."""

    submitted: int
    outcomes: dict[str, int]
    unfinished: int  # still waiting or running when the run ended
    goodput: float  # on-time answers per second
    bad_rate: float  # share of queries without an answer on time, cancelled ones left out
    on_time_rate: float
    accuracy: float  # per on-time answer
    correct_on_time: float  # share of queries answered right and on time
    utility: float  # mean worth of a query: a right answer's is what its lateness leaves (SneakPeek, equation 2)
    latency_ms: dict[str, float]
    queueing_ms: dict[str, float]
    batch_mean: float
    answered_by_evidence: int  # without a worker (short-circuit)
    has_accuracy: bool  # False: some variant's accuracy was not given, and figures of accuracy say nothing


@dataclass(frozen=True)
class ApplicationSummary(Figures):
    """One application."""

    name: str
    slo_ms: float
    variants: tuple[VariantSummary, ...]


@dataclass(frozen=True)
class Summary(Figures):
    """A whole run."""

    seconds: float
    planner: str
    seed: int
    batch_histogram: tuple[int, ...]  # batches by size, from 0
    worker_use: float  # mean share of time in which workers ran something
    worker_busy: tuple[float, ...]
    applications: tuple[ApplicationSummary, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; accuracy is None where it was not given."""
        summary = asdict(self)
        for part in (summary, *summary["applications"]):
            if not part["has_accuracy"]:
                part["accuracy"] = part["correct_on_time"] = part["utility"] = None
        return summary

    @property
    def worst_bad_rate(self) -> float:
        """Of the application that fares worst, among those that were called; 0 where none was."""
        return max((application.bad_rate for application in self.applications if application.submitted), default=0.0)


@dataclass(frozen=True, eq=False)
class Result:
    """`queries` has one row per query (dtype loop.RECORD) where the run recorded them."""

    summary: Summary
    queries: NDArray[Any] | None
    samples: tuple[Snapshot, ...]
    latency_histogram: NDArray[np.int64]  # [application, bucket]
    queueing_histogram: NDArray[np.int64]
    fleet: FleetTrace | None = None  # where it was scaled

    def save(self, path: str | Path) -> None:
        """As .npz; the same run gives the same bytes."""
        arrays: dict[str, Any] = {
            "latency_histogram": self.latency_histogram,
            "queueing_histogram": self.queueing_histogram,
            "batch_histogram": np.array(self.summary.batch_histogram),
            "outcome_names": np.array([outcome.name.lower() for outcome in Outcome]),
        }
        if self.queries is not None:
            arrays |= {name: self.queries[name] for name in self.queries.dtype.names or ()}
        try:
            with open(path, "wb") as file:
                np.savez_compressed(file, **arrays)
        except OSError as error:
            raise StrettoError(f"{path} cannot be written ({error.strerror or 'output error'})") from None


@dataclass(frozen=True, eq=False)
class Tallies:
    """The loop's counts, shaped."""

    submitted: NDArray[np.int64]  # by application
    counts: NDArray[np.int64]  # [application, outcome]
    variant_counts: NDArray[np.int64]  # [variant, on time or late]
    evidence_counts: NDArray[np.int64]  # [application, on time or late], answered by evidence
    late_worth: NDArray[np.float64]  # [variant]
    late_evidence_worth: NDArray[np.float64]  # [application]
    latency_histogram: NDArray[np.int64]
    queueing_histogram: NDArray[np.int64]
    batch_histogram: NDArray[np.int64]  # [variant, size]


def _percentiles(histogram: NDArray[np.int64]) -> dict[str, float]:
    return {
        "mean": mean_ns(histogram) / 1e6,
        **{f"p{share}": percentile_ns(histogram, share / 100) / 1e6 for share in (50, 95, 99)},
    }


def _figures(tallies: Tallies, deployment: Deployment, applications: list[int], seconds: float) -> dict[str, Any]:
    counts = tallies.counts[applications].sum(axis=0)
    submitted = int(tallies.submitted[applications].sum())
    variants = [variant for application in applications for variant in deployment.variants_of(application)]
    accuracies = np.array([deployment.variants[variant].accuracy for variant in variants])
    on_time = int(counts[Outcome.ON_TIME])
    evidence = np.array([deployment.applications[number].evidence_accuracy or 0.0 for number in applications])
    correct = float(
        tallies.variant_counts[variants, 0] @ accuracies + tallies.evidence_counts[applications, 0] @ evidence
    )
    late = float(tallies.late_worth[variants] @ accuracies + tallies.late_evidence_worth[applications] @ evidence)
    asked = submitted - int(counts[Outcome.DROPPED_CANCELLED])
    sizes = tallies.batch_histogram[variants].sum(axis=0)
    return {
        "submitted": submitted,
        "outcomes": {outcome.name.lower(): int(counts[outcome]) for outcome in Outcome},
        "unfinished": submitted - int(counts.sum()),
        "goodput": on_time / seconds,
        "bad_rate": (asked - on_time) / asked if asked else 0.0,  # so that exactly one in a hundred is 0.01
        "on_time_rate": on_time / asked if asked else 1.0,
        "accuracy": correct / on_time if on_time else 0.0,
        "correct_on_time": correct / asked if asked else 0.0,
        "utility": (correct + late) / asked if asked else 0.0,
        "latency_ms": _percentiles(tallies.latency_histogram[applications].sum(axis=0)),
        "queueing_ms": _percentiles(tallies.queueing_histogram[applications].sum(axis=0)),
        "batch_mean": _batch_mean(sizes),
        "answered_by_evidence": int(tallies.evidence_counts[applications].sum()),
        "has_accuracy": all(deployment.variants[variant].has_accuracy for variant in variants),
    }


def _batch_mean(sizes: NDArray[np.int64]) -> float:
    batches = int(sizes.sum())
    return float(sizes @ np.arange(len(sizes))) / batches if batches else 0.0


def summarise(
    tallies: Tallies,
    deployment: Deployment,
    *,
    seconds: float,
    planner: str,
    seed: int,
    worker_busy: NDArray[np.float64],
) -> Summary:
    """From counts to figures. `seconds` is the counted part of the run."""
    applications = []
    for number, application in enumerate(deployment.applications):
        figures = _figures(tallies, deployment, [number], seconds)
        answered = max(1, int(tallies.counts[number, : Outcome.LATE + 1].sum()))
        variants = tuple(
            VariantSummary(
                name=deployment.variants[variant].name,
                answered=int(tallies.variant_counts[variant].sum()),
                share=float(tallies.variant_counts[variant].sum() / answered),
                batch_mean=_batch_mean(tallies.batch_histogram[variant]),
            )
            for variant in deployment.variants_of(number)
        )
        applications.append(
            ApplicationSummary(**figures, name=application.name, slo_ms=application.slo_ns / 1e6, variants=variants)
        )
    if len(applications) > 1:  # else it is the figures of the only one
        figures = _figures(tallies, deployment, list(range(len(applications))), seconds)
    sizes = tallies.batch_histogram.sum(axis=0)
    used = int(np.max(np.flatnonzero(sizes), initial=0)) + 1
    return Summary(
        **figures,
        seconds=seconds,
        planner=planner,
        seed=seed,
        batch_histogram=tuple(int(count) for count in sizes[:used]),
        worker_use=float(worker_busy.mean()),
        worker_busy=tuple(float(share) for share in worker_busy),
        applications=tuple(applications),
    )


def with_fleet(result: Result, fleet: FleetTrace) -> Result:
    """Of a fleet that was scaled: workers are used while they are there, and slots that are empty are not idle."""
    summary = result.summary
    there = sum(fleet.worker_seconds.values())
    scaled = 0.0 if there <= 0 else min(1.0, sum(summary.worker_busy) * fleet.seconds / there)
    return replace(result, summary=replace(summary, worker_use=scaled), fleet=fleet)


def empty_tallies(deployment: Deployment, stride: int) -> dict[str, NDArray[Any]]:
    """Zeroed arrays of the shapes that the loop writes."""
    applications, variants = len(deployment.applications), len(deployment.variants)
    return {
        "counts": np.zeros((applications, OUTCOME_COUNT), dtype=np.int64),
        "variant_counts": np.zeros((variants, 2), dtype=np.int64),
        "evidence_counts": np.zeros((applications, 2), dtype=np.int64),
        "late_worth": np.zeros(variants),
        "late_evidence_worth": np.zeros(applications),
        "latency_histogram": np.zeros((applications, BUCKETS), dtype=np.int64),
        "queueing_histogram": np.zeros((applications, BUCKETS), dtype=np.int64),
        "batch_histogram": np.zeros((variants, stride), dtype=np.int64),
    }
