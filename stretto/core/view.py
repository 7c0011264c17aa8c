"""What a planner sees: the deployment, and what was measured, already given its meaning.

One form of each thing: one λ per application, one mask of workers that are there, one of latencies that were measured.
`stretto.planning` makes views from telemetry; a planner reads nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.client import Client
from stretto.core.deployment import Deployment
from stretto.core.outcome import OUTCOME_COUNT, Outcome
from stretto.core.plan import Delays, Plan

UNMEASURED: Any = None  # becomes the default that the deployment implies


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
class Lines:
    """What the lanes hold: queries that wait in a lane or run in a batch of it, the oldest first."""

    length: NDArray[np.int64]  # by lane: waiting and running
    running: NDArray[np.int64]  # by lane
    started_ns: NDArray[np.int64]  # by lane: when the batch that runs began, the latest of several; -1: none runs
    arrival_ns: NDArray[np.int64]  # [lane, place]: of the oldest queries; -1: there are no more


@dataclass(frozen=True, eq=False)
class View:
    """Frozen. What nobody measured yet has its default: every worker there and free, latencies as profiled."""

    deployment: Deployment
    now_ns: int = 0
    rates: NDArray[np.float64] | None = None  # λ by application, queries/s: measured, else expected; None: unknown
    expected_rates: tuple[float, ...] | None = None  # by application, where the owner states them
    dispersion: NDArray[np.float64] = UNMEASURED  # by application: variance over mean of a count of arrivals
    alive: NDArray[np.bool_] = UNMEASURED  # by worker: it is there
    free_ns: NDArray[np.int64] = UNMEASURED  # by worker: when it is expected to be free
    holds: NDArray[np.bool_] | None = None  # [worker, variant] in memory; None: as the deployment says
    latency_ratio: NDArray[np.float64] = UNMEASURED  # measured over profiled, [variant, kind]
    is_measured: NDArray[np.bool_] = UNMEASURED  # [variant, kind] the ratio was measured at all
    ended: NDArray[np.int64] = UNMEASURED  # [application, outcome] since the last view
    idle_share: float | None = None  # of the time of workers that are there, since the last view
    plan: Plan | None = None  # in force, as its planner made it
    lane_rates: NDArray[np.float64] | None = None  # λ by lane of that plan
    delays: Delays = field(default_factory=Delays)  # as measured, or as a scenario states them
    clients: Callable[[], tuple[Client, ...]] = tuple
    waiting: Callable[[], tuple[WaitingQuery, ...]] = tuple
    lines: Callable[[int], Lines] | None = None  # with so many of the oldest queries of each lane; None: no lane yet

    def __post_init__(self) -> None:
        deployment = self.deployment
        applications, workers = len(deployment.applications), len(deployment.workers)
        rows = (len(deployment.variants), len(deployment.kinds))
        if self.expected_rates is not None:
            self._default("rates", np.array(self.expected_rates, np.float64))
        self._default("dispersion", np.ones(applications))
        self._default("alive", np.ones(workers, np.bool_))
        self._default("free_ns", np.full(workers, self.now_ns, np.int64))
        self._default("latency_ratio", np.ones(rows))
        self._default("is_measured", np.zeros(rows, np.bool_))
        self._default("ended", np.zeros((applications, OUTCOME_COUNT), np.int64))

    def _default(self, name: str, value: NDArray[Any]) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    @property
    def present(self) -> tuple[int, ...]:
        """The workers that are there; all of them where none is, for they may come back."""
        return tuple(np.flatnonzero(self.alive).tolist()) or tuple(range(len(self.alive)))

    @property
    def bad_rate(self) -> float:
        """Share of the queries that ended since the last view without an answer on time; without cancelled ones."""
        ended = self.ended.sum(axis=0)
        total = ended.sum() - ended[Outcome.DROPPED_CANCELLED]
        return float((total - ended[Outcome.ON_TIME]) / total) if total else 0.0


Planner = Callable[[View], Plan]
