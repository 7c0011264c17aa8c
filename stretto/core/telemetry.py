"""What planners read: counters and states at one instant, and what changed since the reading before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import Plan


@dataclass(frozen=True)
class WaitingQuery:
    """One queued query, as a window planner sees it."""

    ticket: int
    application: int
    arrival_ns: int
    deadline_ns: int
    client: int
    query_class: int
    priority: int
    demand: int = -1
    tag: int = -1  # the driver's own number
    theta: tuple[float, ...] | None = None  # posterior of its class, where there is evidence


@dataclass(frozen=True, eq=False)
class Telemetry:
    """Counters grow from the start of the dispatcher; `lane_rates` are the running λ estimates."""

    now_ns: int
    submitted: NDArray[np.int64]  # by application
    outcomes: NDArray[np.int64]  # by application and Outcome
    waiting: int
    running: int
    lane_names: tuple[str, ...]
    lane_lengths: NDArray[np.int64]
    lane_rates: NDArray[np.float64]  # queries/s
    worker_busy_ns: NDArray[np.int64]
    worker_free_ns: NDArray[np.int64]  # expected
    worker_alive: NDArray[np.bool_]
    latency_ratio: NDArray[np.float64]  # measured over profiled, by variant and kind
    worker_holds: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), np.bool_))  # [worker, variant]

    def rates_since(self, before: Telemetry) -> NDArray[np.float64]:
        """Arrivals per second by application since an earlier reading."""
        seconds = (self.now_ns - before.now_ns) / 1e9
        if seconds <= 0:
            return np.zeros(len(self.submitted))
        return (self.submitted - before.submitted) / seconds

    def bad_rate_since(self, before: Telemetry) -> float:
        """Share of the queries ended since an earlier reading that had no answer on time; without cancelled ones."""
        ended = (self.outcomes - before.outcomes).sum(axis=0)
        total = ended.sum() - ended[Outcome.DROPPED_CANCELLED]
        return float((total - ended[Outcome.ON_TIME]) / total) if total else 0.0

    def idle_share_since(self, before: Telemetry) -> float:
        """Share of the alive workers' time since an earlier reading in which they ran nothing."""
        span = (self.now_ns - before.now_ns) * int(self.worker_alive.sum())
        if span <= 0:
            return 0.0
        busy = (self.worker_busy_ns - before.worker_busy_ns)[self.worker_alive].sum()
        return float(max(0.0, 1.0 - busy / span))


@dataclass(frozen=True, eq=False)
class View:
    """Everything a planner may look at. `before` is the telemetry of the planner's last call."""

    deployment: Deployment
    now_ns: int = 0
    telemetry: Telemetry | None = None
    before: Telemetry | None = None
    expected_rates: tuple[float, ...] | None = None  # by application, where the owner states them
    waiting: Callable[[], tuple[WaitingQuery, ...]] = tuple

    def rates(self) -> NDArray[np.float64] | None:
        """Measured arrival rates where there are any, else the expected ones, else None."""
        if self.telemetry is not None and self.before is not None and self.telemetry.now_ns > self.before.now_ns:
            return self.telemetry.rates_since(self.before)
        return None if self.expected_rates is None else np.array(self.expected_rates, dtype=np.float64)


Planner = Callable[[View], Plan]
