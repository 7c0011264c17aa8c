"""A snapshot: everything that an operator sees of one instant, frozen.

Metrics, statistics, simulated time series and dashboards render it. It holds counters, never differences: whoever wants
to know what happened between two instants takes two, so that no reader disturbs another.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.core.advice import Scaling
from stretto.core.client import Client
from stretto.core.deployment import Deployment
from stretto.core.fleet import Fleet
from stretto.core.outcome import Outcome
from stretto.core.plan import Delays, Plan
from stretto.core.telemetry import Telemetry


@dataclass(frozen=True)
class Distribution:
    """Counts by bucket; `edges` are upper ones, and what is beyond the last is counted in one more bucket."""

    edges: tuple[int, ...]
    counts: tuple[int, ...]
    sum: int

    @property
    def total(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True)
class ApplicationState:
    """One application since the server started. `stages` are distributions of ns: queue, run, total, slack."""

    name: str
    slo_ns: int
    rate: float  # λ, queries/s
    submitted: int
    outcomes: tuple[int, ...]  # by Outcome
    stages: dict[str, Distribution] = field(default_factory=dict)
    batch_sizes: Distribution | None = None
    short_circuited: int = 0  # queries answered by their evidence
    utility: float = 0.0  # of all its answers: expected accuracy, less what lateness takes by the application's penalty

    @property
    def on_time(self) -> int:
        return self.outcomes[Outcome.ON_TIME]


@dataclass(frozen=True)
class VariantState:
    """One variant since the server started. Times are summed over queries, as protocol statistics want them."""

    application: str
    name: str
    queries: int = 0
    batches: int = 0
    failed: int = 0
    run_ns: int = 0
    failed_ns: int = 0
    busy_ns: int = 0  # over batches
    last_ended_ms: int = 0
    sizes: tuple[tuple[int, int, int], ...] = ()  # batch size, batches, ns
    latency_ratio: float | None = None  # measured over profiled, on its slowest kind; None: not served now
    losses: int = 0  # workers that it took down
    set_aside: str = ""  # what it is not served for at present, in one word
    times_set_aside: int = 0


@dataclass(frozen=True)
class LaneState:
    """A lane of the plan in force."""

    name: str
    length: int
    capacity: int
    rate: float


@dataclass(frozen=True)
class SlotState:
    """A slot of the fleet."""

    name: str
    kind: str
    is_present: bool
    busy_ns: int  # over all of the server's life
    holds: tuple[str, ...]  # application/variant


@dataclass(frozen=True)
class RecordingState:
    """Of the recording of events."""

    is_active: bool
    written_bytes: int
    problem: str = ""  # why it stopped


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Of a server, or of a simulation, which leaves out what it has none of."""

    now_ns: int
    planner: str
    waiting: int
    running: int
    applications: tuple[ApplicationState, ...]
    variants: tuple[VariantState, ...]
    lanes: tuple[LaneState, ...]
    slots: tuple[SlotState, ...]
    fleet: Fleet
    telemetry: Telemetry  # of the deployment that is served
    delays: Delays = field(default_factory=Delays)
    clients: tuple[Client, ...] = ()  # the latest to ask; there may be more
    client_count: int = 0
    restarts: int = 0  # of workers that were lost
    replaced: int = 0  # workers whose process held too much memory
    on_probation: int = 0  # models that are tried before they are served
    switch_hits: int = 0  # times that a worker had the variant in memory that a plan newly gave it
    switch_misses: int = 0  # and that it had to load it
    planning: Distribution | None = None  # ns that plans took, to their adoption
    plans_failed: int = 0  # times that there was no plan to follow, and the one before stayed
    loop_lag: Distribution | None = None  # ns that the event loop was held, looked at every 10 ms
    loop_lag_ns: int = 0  # of it, that plans reckon with
    policies_made: int = 0
    policies_waiting: int = 0
    evidence_computed: int | None = None  # queries; None: nobody looks at evidence
    evidence_left_out: int = 0
    recording: RecordingState | None = None  # None: nothing is recorded
    scaling: Scaling | None = None  # None: the fleet is not scaled
    partition: int | None = None  # version of the partition whose sub-cluster this is; None: it is none's
    leaving: int = 0  # applications that go to another sub-cluster


def snapshot_of(deployment: Deployment, telemetry: Telemetry, plan: Plan, delays: Delays) -> Snapshot:
    """What one dispatcher shows. A server adds what it counted over all of its life."""
    return Snapshot(
        now_ns=telemetry.now_ns,
        planner=plan.planner,
        waiting=telemetry.waiting,
        running=telemetry.running,
        applications=tuple(
            ApplicationState(
                application.name,
                application.slo_ns,
                float(telemetry.rates[number]),
                int(telemetry.submitted[number]),
                tuple(telemetry.outcomes[number].tolist()),
            )
            for number, application in enumerate(deployment.applications)
        ),
        variants=tuple(
            VariantState(
                deployment.applications[deployment.application_of[number]].name,
                variant.name,
                latency_ratio=float(telemetry.latency_ratio[number].max()),
            )
            for number, variant in enumerate(deployment.variants)
        ),
        lanes=tuple(
            LaneState(lane.name, int(length), lane.capacity, float(rate))
            for lane, length, rate in zip(plan.lanes, telemetry.lane_lengths, telemetry.lane_rates, strict=True)
        ),
        slots=tuple(
            SlotState(
                worker.name,
                worker.kind,
                bool(telemetry.worker_alive[number]),
                int(telemetry.worker_busy_ns[number]),
                _labels(deployment, telemetry.worker_holds[number]),
            )
            for number, worker in enumerate(deployment.workers)
        ),
        fleet=Fleet(deployment.workers, tuple(telemetry.worker_alive.tolist())),
        telemetry=telemetry,
        delays=delays,
        switch_hits=telemetry.switch_hits,
        switch_misses=telemetry.switch_misses,
    )


def _labels(deployment: Deployment, holds: NDArray[np.bool_]) -> tuple[str, ...]:
    return tuple(deployment.variant_label(variant) for variant in np.flatnonzero(holds).tolist())
