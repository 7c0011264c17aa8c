"""What a dispatcher counted, at one instant. `stretto.planning` says what it means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.outcome import Outcome


@dataclass(frozen=True, eq=False)
class Telemetry:
    """Counters grow from the start of the dispatcher; rates are running estimates over the plan's rate window."""

    now_ns: int
    submitted: NDArray[np.int64]  # by application
    outcomes: NDArray[np.int64]  # by application and Outcome
    rates: NDArray[np.float64]  # λ by application, queries/s, of queries that demand no variant
    is_rated: NDArray[np.bool_]  # by application: counted for a whole window
    waiting: int
    running: int
    lane_names: tuple[str, ...]
    lane_lengths: NDArray[np.int64]
    lane_rates: NDArray[np.float64]  # queries/s
    worker_busy_ns: NDArray[np.int64]
    worker_free_ns: NDArray[np.int64]  # expected
    worker_alive: NDArray[np.bool_]
    worker_holds: NDArray[np.bool_]  # [worker, variant]
    latency_ratio: NDArray[np.float64]  # measured over profiled, by variant and kind
    is_measured: NDArray[np.bool_]  # by variant and kind: any batch was measured
    dispersion: NDArray[np.float64] | None = None  # of counts of arrivals, by application: variance over mean
    switch_hits: int = 0  # times that a plan gave a worker another variant to hold, which it had already
    switch_misses: int = 0  # and that it had to load it

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False  # several read it, and none may disturb another

    def rates_since(self, before: Telemetry) -> NDArray[np.float64]:
        """Arrivals per second by application since an earlier reading, whatever they demand."""
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
