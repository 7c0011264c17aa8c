"""What was measured while serving: histograms by stage and sums by variant. Cheap enough for every query."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stretto.core.application import Penalty
from stretto.core.compiled import compiled
from stretto.core.lateness import kept_share
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


@compiled
def bucket(edges: Any, value: int) -> int:
    """Of a histogram: the first whose upper edge is not below the value."""
    low, high = 0, len(edges)
    while low < high:
        middle = (low + high) // 2
        if edges[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def count_end(arrival_ns: int, deadline_ns: int, times: Any, books: Any) -> None:
    """Counts one query that was answered. `times` says when its batch started, how long that ran, and when it is now;
    behind them stand sums of waits, of times in all and of slack. `books` are those of `Many`.
    """
    edges, slack_edges, counts, slack_counts, penalty, kept = books
    waited_ns, spent_ns, left_ns = times[0] - arrival_ns, times[2] - arrival_ns, deadline_ns - times[2]
    counts[0, bucket(edges, waited_ns)] += 1
    counts[1, bucket(edges, spent_ns)] += 1
    slack_counts[bucket(slack_edges, left_ns)] += 1
    times[3] += waited_ns
    times[4] += spent_ns
    times[5] += left_ns
    kept[0] += kept_share(penalty, times[2], deadline_ns, deadline_ns - arrival_ns)


@compiled
def count_ends(arrivals_ns: Any, deadlines_ns: Any, times: Any, books: Any) -> None:
    """Counts the queries of one batch."""
    for number in range(len(arrivals_ns)):
        count_end(arrivals_ns[number], deadlines_ns[number], times, books)


class Histogram:
    """Counts by bucket, and the sum."""

    __slots__ = ("_counts", "edges", "many", "sum")

    def __init__(self, edges: tuple[int, ...] = EDGES_NS):
        self.edges = edges
        self._counts = [0] * (len(edges) + 1)
        self.many = np.zeros(len(edges) + 1, np.int64)  # counted together, by compiled code
        self.sum = 0

    def add(self, value: int, times: int = 1) -> None:
        self._counts[bisect_left(self.edges, value)] += times
        self.sum += value * times

    @property
    def counts(self) -> list[int]:
        return (self.many + self._counts).tolist()


Stages = tuple[Histogram, Histogram, Histogram, Histogram]  # as STAGES


class Many:
    """The histograms of one application's stages, for compiled code to count many queries in; and what its answers are
    worth (SneakPeek, equation 2): each as much as it is expected to be accurate, less what its lateness takes.
    """

    def __init__(self, stages: Stages):
        self._stages = stages
        self.penalty = Penalty.STEP
        self.worth = 0.0
        self._kept = np.zeros(1)
        queue, _, total, slack = stages
        both = np.zeros((2, len(queue.edges) + 1), np.int64)
        queue.many, total.many = both
        self._arrays = np.array(queue.edges), np.array(slack.edges), both, slack.many

    @property
    def books(self) -> tuple[Any, ...]:
        """They are what `count_end` writes to: the histograms' edges and counts (of waits and of times in all; of
        slack), the application's penalty, and the sum of what lateness left of its answers.
        """
        return *self._arrays, int(self.penalty), self._kept

    def add(self, count: int, run_ns: int, sums: Sequence[int], accuracy: float) -> None:
        """So many are in the arrays by now, with these sums of waits, times in all and slack. Their answers are
        expected to be so accurate; those of which nobody knows how accurate they are add nothing.
        """
        self.worth += max(0.0, accuracy) * float(self._kept[0])
        self._kept[0] = 0.0
        queue, run, total, slack = self._stages
        run.add(run_ns, count)
        queue.sum, total.sum, slack.sum = queue.sum + sums[0], total.sum + sums[1], slack.sum + sums[2]


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
        self._many: dict[str, Many] = {}
        self.stages: defaultdict[str, Stages] = defaultdict(
            lambda: (Histogram(), Histogram(), Histogram(), Histogram(SLACK_EDGES_NS))
        )
        self.batch_sizes: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(BATCH_EDGES))
        self.planning = Histogram()  # from a planner's question to the plan's adoption
        self.plans_failed = 0  # times that there was no plan to follow, and the one before stayed
        self.short_circuited: Counter[str] = Counter()  # queries answered by their evidence, by application

    def many(self, application: str, penalty: Penalty = Penalty.STEP) -> Many:
        collected = self._many.get(application)
        if collected is None:
            collected = self._many[application] = Many(self.stages[application])
        collected.penalty = penalty
        return collected

    def worth(self, application: str) -> float:
        """Of all its answers."""
        collected = self._many.get(application)
        return 0.0 if collected is None else collected.worth

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
        accuracy: float = 0.0,
        penalty: Penalty = Penalty.STEP,
    ) -> None:
        """The queries of one batch that are answered now; their answers are expected to be so accurate."""
        many, times = self.many(application, penalty), np.array((started_ns, run_ns, now_ns, 0, 0, 0))
        count_ends(np.array(arrivals_ns, np.int64), np.array(deadlines_ns, np.int64), times, many.books)
        many.add(len(arrivals_ns), run_ns, times[3:].tolist(), accuracy)
