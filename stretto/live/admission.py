"""The door: how many queries may wait in a lane. What is beyond that is refused at once, while its client can still
turn elsewhere, rather than given up when its deadline is near.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.check import selected_variants
from stretto.core.deployment import Deployment
from stretto.core.plan import Lane, Late, Plan, Worklist

SHARE = 0.5  # of what could be answered in time; a full queue is waited through, and answers must not end at the brink
FEWEST = 4


def with_doors(plan: Plan, deployment: Deployment, ratios: NDArray[Any] | None = None) -> Plan:
    """Each lane holds what its workers can answer well within the SLO by their quickest way.

    `ratios` are measured over profiled latencies, by variant and kind.
    """
    applications: dict[int, list[int]] = {}
    for number, route in enumerate(plan.routes):
        for lane in (*route.lanes, *route.demands):
            applications.setdefault(lane, []).append(number)
    if ratios is None:
        ratios = np.ones((len(deployment.variants), len(deployment.kinds)))
    lanes = tuple(
        replace(lane, capacity=min(lane.capacity, _capacity(lane, applications.get(number, []), deployment, ratios)))
        for number, lane in enumerate(plan.lanes)
    )
    return replace(plan, lanes=lanes)


def _capacity(lane: Lane, applications: list[int], deployment: Deployment, ratios: NDArray[Any]) -> int:
    if isinstance(lane.select, Worklist) or lane.late is Late.KEEP or not applications:
        return lane.capacity
    slo_ns = max(deployment.applications[number].slo_ns for number in applications)
    by_kind: dict[str, float] = {}
    largest_request = FEWEST
    for kind in {deployment.workers[worker].kind for worker in lane.workers}:
        by_kind[kind] = 0.0
        for variant in selected_variants(lane):
            profile = deployment.variants[variant].profile_on(kind)
            if profile is None:
                continue
            ratio = float(ratios[variant, deployment.kinds.index(kind)])
            sizes = np.arange(1, min(profile.max_batch, lane.release.max_batch) + 1)
            latency_ns = profile.table_ns[deployment.quantile, sizes] * ratio
            largest_request = max(largest_request, int(np.searchsorted(latency_ns, slo_ns, side="right")))
            by_kind[kind] = max(by_kind[kind], float((sizes * (slo_ns - latency_ns) / latency_ns).max()))
    total = sum(by_kind[deployment.workers[worker].kind] for worker in lane.workers)
    # Every row of a request is a query: what can be answered in one batch must fit through.
    return max(largest_request, int(SHARE * total))
