"""Floors: the smallest batch with which the workers of a lane keep up with its load.

A queue that has grown old can keep itself so: each head has just enough time left for a batch of one, such batches are
slower than the queries come, and the next head is as old. Every lane that drops late queries is therefore told from
which load on which batch is the least that keeps up (equation 3 of Symphony with the workers that are there). The
dispatcher gives up a head that had time for such a batch when it came and has none any more. Eager lanes of one variant
also stagger their batches by it. A planner that states floors of its own keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.check import selected_variants
from stretto.core.deployment import Deployment
from stretto.core.plan import ByLoad, Eager, Fixed, Lane, Late, MostAccurate, Plan, Table, Tables
from stretto.core.profile import NS_PER_S
from stretto.core.view import View

SHARE_STEP = 1.1  # shares of the workers within this factor have the same floors


@dataclass(frozen=True)
class Crew:
    """The workers that are there, and the share of their time that each application should need."""

    present: tuple[int, ...]
    shares: tuple[float, ...]


def crew_of(view: View, before: Crew | None = None) -> Crew:
    """Shares follow the load and the least worker time of a query; they stay while none has moved by a step."""
    deployment, present = view.deployment, view.present
    if len(deployment.applications) == 1:
        return Crew(present, (1.0,))
    rates = np.ones(len(deployment.applications)) if view.rates is None or view.rates.sum() <= 0 else view.rates
    least_ns = np.array([_least_ns(deployment, number) for number in range(len(rates))])
    work = np.maximum(rates, 1e-3 * rates.max()) * least_ns
    shares = work / work.sum()
    if before is not None and len(before.shares) == len(shares):
        moved = np.abs(np.log(shares / np.array(before.shares)))
        if (moved < np.log(SHARE_STEP)).all():
            return Crew(present, before.shares)
    return Crew(present, tuple(shares.tolist()))


def with_floors(plan: Plan, deployment: Deployment, latency_ratio: NDArray[np.float64], crew: Crew) -> Plan:
    """The plan with floors for every lane that drops late queries, chooses its batches and has no floors yet."""
    concerned = [number for number, lane in enumerate(plan.lanes) if _may_grow_old(lane)]
    if not concerned:
        return plan
    shares = _shares_of_lanes(plan, len(deployment.workers), crew)
    lanes = list(plan.lanes)
    for number in concerned:
        floors = _floor_rates(lanes[number], deployment, latency_ratio, shares[number])
        release = replace(lanes[number].release, floor_rates=floors)
        if isinstance(release, Eager) and isinstance(lanes[number].select, Fixed):
            release = replace(release, staggers=True)
        lanes[number] = replace(lanes[number], release=release)
    return replace(plan, lanes=tuple(lanes))


def _may_grow_old(lane: Lane) -> bool:
    drops = lane.late in (Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE)
    chooses = isinstance(lane.select, Fixed | ByLoad | MostAccurate | Table | Tables)
    return drops and chooses and not lane.release.floor_rates


def _shares_of_lanes(plan: Plan, workers: int, crew: Crew) -> list[dict[int, float]]:
    """By lane and worker that is there: the part of the worker's time that the lane should have."""
    weight = np.zeros(len(plan.lanes))
    for share, route in zip(crew.shares, plan.routes, strict=True):
        for led_to in {*route.lanes, *route.demands}:
            weight[led_to] += share / len(route.lanes)
    total = np.zeros(workers)
    for number, lane in enumerate(plan.lanes):
        total[list(lane.workers)] += weight[number]
    present = set(crew.present)
    return [
        {worker: weight[number] / total[worker] for worker in lane.workers if worker in present and total[worker] > 0}
        for number, lane in enumerate(plan.lanes)
    ]


def _floor_rates(
    lane: Lane, deployment: Deployment, latency_ratio: NDArray[np.float64], shares: dict[int, float]
) -> tuple[float, ...]:
    """By batch size from 1: the arrival rate (queries/s) above which the lane's workers do not keep up with less."""
    variants = selected_variants(lane)
    slo_ns = max(deployment.applications[deployment.application_of[variant]].slo_ns for variant in variants)
    workers = max(sum(shares.values()), 1.0)
    most_ns = slo_ns * workers / (workers + 1)  # equation 2 of Symphony
    of_kind: dict[str, NDArray[np.float64]] = {}
    pace = np.zeros(lane.release.max_batch)  # queries a ns by batch size, of all workers
    for worker, share in shares.items():
        kind = deployment.workers[worker].kind
        if kind not in of_kind:
            of_kind[kind] = _best_pace(deployment, variants, kind, latency_ratio, most_ns)
        own = of_kind[kind][: len(pace)]
        pace[: len(own)] += share * own
    if not pace.any():
        return ()
    rates = np.maximum.accumulate(pace[: pace.argmax()]) * NS_PER_S
    return (0.0, *rates.tolist())


def _best_pace(
    deployment: Deployment, variants: Sequence[int], kind: str, latency_ratio: NDArray[np.float64], most_ns: float
) -> NDArray[np.float64]:
    """Queries a ns of one worker by batch size, each size on the variant that is quickest; 0 where none is in time."""
    profiles = {variant: profile for variant in variants if (profile := deployment.variants[variant].profile_on(kind))}
    pace = np.zeros(max((profile.max_batch for profile in profiles.values()), default=0))
    for variant, profile in profiles.items():
        ratio = latency_ratio[variant, deployment.kinds.index(kind)]
        latency_ns = profile.table_ns[deployment.quantile, 1:] * ratio
        sizes = np.arange(1, len(latency_ns) + 1)
        own = np.where(latency_ns <= most_ns, sizes / latency_ns, 0.0)
        pace[: len(own)] = np.maximum(pace[: len(own)], own)
    return pace


def _least_ns(deployment: Deployment, application: int) -> float:
    """The least worker time of a query, on the mean over the kinds that can answer it in time."""
    slo_ns, variants = deployment.applications[application].slo_ns, deployment.variants_of(application)
    ones = np.ones((len(deployment.variants), len(deployment.kinds)))
    paces = [_best_pace(deployment, variants, kind, ones, slo_ns) for kind in deployment.kinds]
    best = [float(pace.max()) for pace in paces if pace.any()]
    return len(best) / sum(best) if best else slo_ns
