"""What one control period showed of the fleet and its load, and how fast each kind of worker is, for autoscaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import Deferred, Plan
from stretto.core.profile import NS_PER_S
from stretto.core.telemetry import Telemetry

Speeds = Mapping[str, Sequence[float]]  # by kind: queries/s of a worker, by application; 0: it cannot


@dataclass(frozen=True)
class Reading:
    """One period: queries by application (without those that were cancelled or failed), workers by kind. A model that
    fails is no reason for more workers.
    """

    now_ns: int
    seconds: float
    came: Sequence[int]
    answered: Sequence[int]  # on time or late
    bad_rate: float
    present: Mapping[str, int]  # at its end
    busy: Mapping[str, float]  # workers, in the mean
    is_flat: bool = True  # the schedule is flat-topped: workers are busy in proportion to the load


def reading_between(deployment: Deployment, before: Telemetry, after: Telemetry, plan: Plan) -> Reading | None:
    """None where the two are not of one dispatcher, or at the same moment. The fleet may have grown between them."""
    seconds = (after.now_ns - before.now_ns) / NS_PER_S
    if seconds <= 0 or before.submitted.shape != after.submitted.shape or (after.submitted < before.submitted).any():
        return None
    ended = after.outcomes - before.outcomes
    aside = ended[:, Outcome.DROPPED_CANCELLED] + ended[:, Outcome.FAILED]
    answered = ended[:, Outcome.ON_TIME] + ended[:, Outcome.LATE]
    busy_ns = after.worker_busy_ns.copy()
    busy_ns[: len(before.worker_busy_ns)] -= before.worker_busy_ns
    present, busy = dict.fromkeys(deployment.kinds, 0), dict.fromkeys(deployment.kinds, 0.0)
    for number, worker in enumerate(deployment.workers):
        present[worker.kind] += int(after.worker_alive[number])
        busy[worker.kind] += float(busy_ns[number]) / NS_PER_S / seconds
    came = np.maximum(after.submitted - before.submitted - aside, 0)
    total = int(ended.sum() - aside.sum())
    bad = 1 - float(ended[:, Outcome.ON_TIME].sum()) / total if total else 0.0
    return Reading(after.now_ns, seconds, came.tolist(), answered.tolist(), bad, present, busy, is_flat_topped(plan))


def is_flat_topped(plan: Plan) -> bool:
    """Whether batches wait until they are large. A plan that starts them as soon as a worker is free keeps all workers
    busy with small ones, or with more accurate variants, at any load.
    """
    return all(isinstance(lane.release, Deferred) for lane in plan.lanes)


def speeds_of(deployment: Deployment) -> Speeds:
    """The most that a worker of each kind answers of each application within its SLO, whatever the variant."""
    speeds: dict[str, list[float]] = {}
    for kind in deployment.kinds:
        row = []
        for application in deployment.applications:
            best = 0.0
            for profile in (variant.profile_on(kind) for variant in application.variants):
                batch = 0 if profile is None else profile.largest_batch_within(application.slo_ns, deployment.quantile)
                if profile is not None and batch:
                    best = max(best, batch * NS_PER_S / profile.latency_ns(batch, deployment.quantile))
            row.append(best)
        speeds[kind] = row
    return speeds
