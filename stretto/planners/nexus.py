"""Nexus (Shen et al., SOSP 2019): every epoch the load is packed onto workers, and each worker runs its share alone.

A session (an application with its variant) has a lane on each worker that holds it. Front ends deal queries to the
lanes by the packed shares, each for itself (Symphony section 3.3 says what that costs). A worker goes round its lanes,
and early drop slides a window of the planned batch over the queue: heads that would make the batch smaller than planned
are given up. Batches are as planned; with `filling` they hold what has gathered by then, as far as deadlines allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Eager, Fixed, Lane, LaneChoice, Late, Missing, Order, Plan, Route, RouteRule
from stretto.core.profile import NS_PER_S
from stretto.core.view import View
from stretto.planners.packing import Session, pack_workers
from stretto.planners.parts.choose import choose_variants, serving_workers
from stretto.planners.parts.rates import rates_of

EPOCH_NS = 30 * NS_PER_S  # over which the load is measured, and for which it is packed
LEAST_SHARE = 1e-3  # an application without arrivals is packed as if it had this share of the mean rate


@dataclass(frozen=True)
class Nexus:
    """Nexus packs equal workers. Of unequal ones it takes those that serve every session, and plans for the slowest."""

    variants: Mapping[str, str] = field(default_factory=dict)
    filling: bool = False
    front_ends: int = 1

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        chosen = choose_variants(deployment, self.variants)
        workers = _fleet(view, chosen)
        sessions = _sessions(view, chosen, workers)
        memory_bytes = min(deployment.workers[worker].memory_bytes for worker in workers)
        nodes = pack_workers(sessions, memory_bytes, len(workers))
        lanes: list[Lane] = []
        shares: list[list[tuple[int, float]]] = [[] for _ in chosen]  # by application: lane and rate
        placement: list[tuple[int, ...]] = [()] * len(deployment.workers)
        for worker, node in zip(workers, nodes, strict=True):
            placement[worker] = tuple(chosen[part.session] for part in node.parts)
            for part in node.parts:
                shares[part.session].append((len(lanes), part.rate))
                lanes.append(self._lane(deployment, worker, part.session, chosen[part.session], part.batch))
        return Plan(
            lanes=tuple(lanes),
            routes=tuple(_route(by_lane, self.front_ends) for by_lane in shares),
            lane_choice=LaneChoice.ROUND_ROBIN,
            placement=tuple(placement),
            rate_window_ns=EPOCH_NS,
            planner="nexus",
        )

    def _lane(self, deployment: Deployment, worker: int, application: int, variant: int, batch: int) -> Lane:
        floors = (0.0,) * batch
        return Lane(
            name=f"{deployment.applications[application].name}@{deployment.workers[worker].name}",
            workers=(worker,),
            select=Fixed(variant),
            order=Order.FIRST_COME,
            release=Eager(floor_rates=floors) if self.filling else Eager(batch, floor_rates=floors),
            late=Late.DROP_WHEN_DISPATCHED,
            missing=Missing.WAIT,
        )


def _fleet(view: View, chosen: Sequence[int]) -> tuple[int, ...]:
    able = set.intersection(*(set(serving_workers(view.deployment, variant)) for variant in chosen))
    if not able:
        raise StrettoError("Nexus packs equal workers, and no worker can run every application's variant")
    alive = {worker for worker in able if view.alive[worker]}
    return tuple(sorted(alive or able))


def _sessions(view: View, chosen: Sequence[int], workers: Sequence[int]) -> tuple[Session, ...]:
    deployment = view.deployment
    kinds = dict.fromkeys(deployment.workers[worker].kind for worker in workers)
    rates = rates_of(view, 1.0)
    rates = np.maximum(rates, LEAST_SHARE * rates.mean())
    sessions = []
    for application, variant, rate in zip(deployment.applications, chosen, rates, strict=True):
        profiles = [deployment.profile(variant, kind) for kind in kinds]
        columns = min(profile.max_batch for profile in profiles) + 1
        slowest = np.max([profile.table_ns[deployment.quantile, :columns] for profile in profiles], axis=0)
        model = deployment.variants[variant]
        sessions.append(
            Session(slowest, application.slo_ns, float(rate), model.memory_bytes, model.dynamic_memory_bytes)
        )
    return tuple(sessions)


def _route(shares: Sequence[tuple[int, float]], front_ends: int) -> Route:
    lanes = tuple(lane for lane, _ in shares)
    if len(lanes) == 1:
        return Route(RouteRule.BY_APPLICATION, lanes)
    total = sum(rate for _, rate in shares)
    return Route(RouteRule.DEALT, lanes, tuple(rate / total for _, rate in shares), front_ends=front_ends)
