"""Lanes for queries that demand certain variants: one pinned variant, or any that is accurate enough.

Such a query may not wait in the common lane, whose batches may run any variant. Whatever a planner plans, its lanes are
joined by one lane for each demand in use, with the same workers and the same way with late queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stretto.core.deployment import Deployment
from stretto.core.plan import Deferred, Eager, Fixed, Lane, Late, MostAccurate, Order, Plan
from stretto.planners.parts.floors import single_variant_lane


@dataclass(frozen=True)
class Demand:
    """Only these variants may answer; of one application, the most accurate first."""

    application: int
    variants: tuple[int, ...]


def with_demands(plan: Plan, deployment: Deployment, demands: Sequence[Demand]) -> Plan:
    """The plan with a lane for each demand; demand i of an application is the i-th one in `demands` that is its own."""
    lanes = list(plan.lanes)
    routes = list(plan.routes)
    for demand in demands:
        route = routes[demand.application]
        like = plan.lanes[route.lanes[0]]
        workers = tuple(dict.fromkeys(w for lane in route.lanes for w in plan.lanes[lane].workers))
        routes[demand.application] = replace(route, demands=(*route.demands, len(lanes)))
        lanes.append(_lane(demand, deployment, like, workers))
    return replace(plan, lanes=tuple(lanes), routes=tuple(routes))


def _lane(demand: Demand, deployment: Deployment, like: Lane, workers: tuple[int, ...]) -> Lane:
    """Served by the workers of the common lane that can run what is demanded; where none can, by all that can."""

    def able(numbers: Sequence[int]) -> tuple[int, ...]:
        kinds = {kind for v in demand.variants for kind in deployment.kinds if deployment.variants[v].profile_on(kind)}
        return tuple(number for number in numbers if deployment.workers[number].kind in kinds)

    names = "+".join(deployment.variants[variant].name for variant in demand.variants)
    fixed = len(demand.variants) == 1
    crew = able(workers) or able(range(len(deployment.workers)))
    late = Late.DROP_WHEN_INFEASIBLE if like.late is Late.REFUSE else like.late
    drops = late in (Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE)
    floors = single_variant_lane(deployment, demand.variants[0], crew).release.floor_rates if fixed and drops else ()
    is_deferred = isinstance(like.release, Deferred)
    return Lane(
        name=f"{deployment.applications[demand.application].name} by {names}",
        workers=crew,
        select=Fixed(demand.variants[0]) if fixed else MostAccurate(demand.variants),
        order=Order.EARLIEST_DEADLINE,
        release=replace(like.release if is_deferred else Eager(like.release.max_batch), floor_rates=floors),
        late=late,
        worker_choice=like.worker_choice,
        capacity=like.capacity,
        delays=like.delays,
    )
