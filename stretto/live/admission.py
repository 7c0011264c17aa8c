"""The door: how many queries may wait in a lane. What is beyond that is refused at once, while its client can still
turn elsewhere, rather than given up when its deadline is near.
"""

from __future__ import annotations

from dataclasses import replace

from stretto.core.check import selected_variants
from stretto.core.deployment import Deployment
from stretto.core.plan import Lane, Late, Plan, Worklist

SHARE = 0.9  # of what could be answered in time if nothing else came and nothing went wrong
FEWEST = 4


def with_doors(plan: Plan, deployment: Deployment) -> Plan:
    """Each lane holds at most what its workers can answer within the SLO by their quickest way."""
    applications: dict[int, list[int]] = {}
    for number, route in enumerate(plan.routes):
        for lane in (*route.lanes, *route.demands):
            applications.setdefault(lane, []).append(number)
    lanes = tuple(
        replace(lane, capacity=min(lane.capacity, _capacity(lane, applications.get(number, []), deployment)))
        for number, lane in enumerate(plan.lanes)
    )
    return replace(plan, lanes=lanes)


def _capacity(lane: Lane, applications: list[int], deployment: Deployment) -> int:
    if isinstance(lane.select, Worklist) or lane.late is Late.KEEP or not applications:
        return lane.capacity
    slo_ns = max(deployment.applications[number].slo_ns for number in applications)
    variants = [deployment.variants[v] for number in applications for v in deployment.variants_of(number)]
    # Every row of a request is a query, and the largest request must fit through while nobody waits.
    fewest = max(FEWEST, *(profile.max_batch for variant in variants for profile in variant.profiles))
    total = 0.0
    for worker in lane.workers:
        kind = deployment.workers[worker].kind
        best = 0.0
        for variant in selected_variants(lane):
            profile = deployment.variants[variant].profile_on(kind)
            if profile is None:
                continue
            largest = min(profile.largest_batch_within(slo_ns, deployment.quantile), lane.release.max_batch)
            for batch in range(1, largest + 1):
                latency_ns = profile.latency_ns(batch, deployment.quantile)
                best = max(best, batch * (slo_ns - latency_ns) / latency_ns)
        total += best
    return max(fewest, int(SHARE * total))
