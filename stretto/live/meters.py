"""What was measured while serving: histograms by stage and sums by variant. Cheap enough for every query."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.live.shelf import Report

# Upper edges in seconds; what is beyond the last is counted in one more bucket.
EDGES_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.035, 0.05, 0.075),
    *(0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
)
EDGES_NS = tuple(round(edge * 1e9) for edge in EDGES_S)
SLACK_EDGES_NS = tuple(
    round(edge * 1e9)
    for edge in (-1.0, -0.1, -0.01, -0.001, 0.0, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)
)
BATCH_EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
STAGES = ("queue", "run", "total", "slack")


class Histogram:
    """Counts by bucket, and the sum."""

    __slots__ = ("_counts", "_edges", "_many", "edges", "sum")

    def __init__(self, edges: tuple[int, ...] = EDGES_NS):
        self.edges = edges
        self._edges = np.array(edges)
        self._counts = [0] * (len(edges) + 1)
        self._many = np.zeros(len(edges) + 1, np.int64)  # counted together
        self.sum = 0

    def add(self, value: int, times: int = 1) -> None:
        self._counts[bisect_left(self.edges, value)] += times
        self.sum += value * times

    def add_all(self, values: NDArray[np.int64]) -> None:
        self._many += np.bincount(self._edges.searchsorted(values), minlength=len(self._many))
        self.sum += int(values.sum())

    @property
    def counts(self) -> list[int]:
        return (self._many + self._counts).tolist()


@dataclass
class VariantMeter:
    """Of one variant. Times are summed over queries, as protocol statistics want them."""

    queries: int = 0
    batches: int = 0
    failed: int = 0
    run_ns: int = 0  # over queries: each counts the run that it was in
    failed_ns: int = 0
    busy_ns: int = 0  # over batches
    last_ended_ms: int = 0
    by_size: Counter[int] = field(default_factory=Counter)  # batches
    run_by_size: Counter[int] = field(default_factory=Counter)  # ns


class Meters:
    """By (application, variant) and by application and stage."""

    def __init__(self) -> None:
        self.variants: defaultdict[tuple[str, str], VariantMeter] = defaultdict(VariantMeter)
        self.stages: defaultdict[str, tuple[Histogram, Histogram, Histogram, Histogram]] = defaultdict(
            lambda: (Histogram(), Histogram(), Histogram(), Histogram(SLACK_EDGES_NS))
        )
        self.batch_sizes: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(BATCH_EDGES))
        self.planning = Histogram()  # from a planner's question to the plan's adoption
        self.plans_failed = 0  # times that there was no plan to follow, and the one before stayed
        self.short_circuited: Counter[str] = Counter()  # queries answered by their evidence, by application

    def batch(self, label: tuple[str, str], count: int, report: Report) -> None:
        meter = self.variants[label]
        run_ns = report.ended_ns - report.started_ns
        failed = len(report.failures)
        meter.batches += 1
        meter.last_ended_ms = time.time_ns() // 1_000_000
        meter.queries += count - failed
        meter.failed += failed
        meter.run_ns += run_ns * (count - failed)
        meter.failed_ns += run_ns * failed
        meter.busy_ns += run_ns
        meter.by_size[count] += 1
        meter.run_by_size[count] += run_ns
        self.batch_sizes[label[0]].add(count)

    def queries(
        self,
        application: str,
        arrivals_ns: Sequence[int] | NDArray[np.int64],
        deadlines_ns: Sequence[int] | NDArray[np.int64],
        started_ns: int,
        run_ns: int,
        now_ns: int,
    ) -> None:
        """The queries of one batch that are answered now."""
        queue, run, total, slack = self.stages[application]
        run.add(run_ns, len(arrivals_ns))
        if isinstance(arrivals_ns, np.ndarray) and isinstance(deadlines_ns, np.ndarray):
            queue.add_all(started_ns - arrivals_ns)
            total.add_all(now_ns - arrivals_ns)
            slack.add_all(deadlines_ns - now_ns)
            return
        for arrival_ns, deadline_ns in zip(arrivals_ns, deadlines_ns, strict=True):
            queue.add(started_ns - arrival_ns)
            total.add(now_ns - arrival_ns)
            slack.add(deadline_ns - now_ns)
