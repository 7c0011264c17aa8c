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
LARGE_BATCH = 24  # from which on arrays are quicker than a loop
STAGES = ("queue", "run", "total", "slack")


class Histogram:
    """Counts by bucket, and the sum."""

    __slots__ = ("_edges", "counts", "edges", "sum")

    def __init__(self, edges: tuple[int, ...] = EDGES_NS):
        self.edges = edges
        self._edges = np.array(edges)
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0

    def add(self, value: int, times: int = 1) -> None:
        self.counts[bisect_left(self.edges, value)] += times
        self.sum += value * times

    def add_all(self, values: NDArray[np.int64]) -> None:
        for bucket, times in Counter(np.searchsorted(self._edges, values).tolist()).items():
            self.counts[bucket] += times
        self.sum += int(values.sum())


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
        arrivals_ns: Sequence[int],
        deadlines_ns: Sequence[int],
        started_ns: int,
        run_ns: int,
        now_ns: int,
    ) -> None:
        """The queries of one batch that are answered now."""
        queue, run, total, slack = self.stages[application]
        run.add(run_ns, len(arrivals_ns))
        if len(arrivals_ns) >= LARGE_BATCH:
            came_ns, due_ns = np.array(arrivals_ns), np.array(deadlines_ns)
            queue.add_all(started_ns - came_ns)
            total.add_all(now_ns - came_ns)
            slack.add_all(due_ns - now_ns)
            return
        for arrival_ns, deadline_ns in zip(arrivals_ns, deadlines_ns, strict=True):
            queue.add(started_ns - arrival_ns)
            total.add(now_ns - arrival_ns)
            slack.add(deadline_ns - now_ns)
