"""What every plan gets before a dispatcher follows it: lanes for demands, one worker for applications on trial, the
delays around a batch, floors that keep a queue from staying old, and doors.

A planner knows profiles and loads. It does not know that a client demands a certain variant, how long a queue may grow
before waiting in it is hopeless, which models are not to be trusted yet, or how long a batch is on its way. This is the
same in simulation, where delays come from the scenario, and live, where they are measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.check import selected_variants
from stretto.core.conditions import Conditions, Demand
from stretto.core.deployment import Deployment, with_slos
from stretto.core.plan import (
    Deferred,
    Delays,
    Eager,
    Fixed,
    Lane,
    Late,
    MostAccurate,
    Order,
    Plan,
    Select,
    Table,
    Tables,
    Worklist,
)
from stretto.planning.floors import Crew, with_floors

# Of the SLO, which what is in a full lane takes: it is waited through, and none should end at the brink. And of what
# could be answered in time behind what runs, where that is not counted.
DOOR_SHARE, WAITING_SHARE = 0.85, 0.8
SMALLEST_DOOR = 4
RATIO_STEP = 1.1  # latencies within this factor have the same doors


def complete(
    plan: Plan,
    deployment: Deployment,
    conditions: Conditions,
    latency_ratio: NDArray[np.float64] | None = None,
    *,
    crew: Crew | None = None,
    has_doors: bool = True,
) -> Plan:
    """The plan that a dispatcher follows. `latency_ratio` is measured over profiled latency, by variant and kind;
    `crew` says who works. Without doors there are no floors either: a published planner's lanes stay as they are.
    """
    whole = with_demands(plan, deployment, conditions.demands)
    whole = with_trials(whole, deployment, conditions.on_trial, conditions.trial_worker)
    whole = with_delays(whole, conditions.delays)
    if has_doors:
        if crew is not None:
            whole = with_floors(whole, deployment, _ratios(deployment, latency_ratio), crew)
        left_ns = conditions.left_ns
        whole = with_doors(whole, deployment if left_ns is None else with_slos(deployment, left_ns), latency_ratio)
    return whole


def with_demands(plan: Plan, deployment: Deployment, demands: Sequence[Demand]) -> Plan:
    """With a lane for each demand; demand i of an application is the i-th one in `demands` that is for it.

    A query that demands variants may not wait in the common lane, whose batches may run any variant.
    """
    if not demands:
        return plan
    lanes = list(plan.lanes)
    routes = list(plan.routes)
    for demand in demands:
        route = routes[demand.application]
        workers = tuple(dict.fromkeys(w for lane in route.lanes for w in plan.lanes[lane].workers))
        routes[demand.application] = replace(route, demands=(*route.demands, len(lanes)))
        lanes.append(_demand_lane(demand, deployment, plan.lanes[route.lanes[0]], workers))
    return replace(plan, lanes=tuple(lanes), routes=tuple(routes))


def _demand_lane(demand: Demand, deployment: Deployment, common: Lane, workers: tuple[int, ...]) -> Lane:
    """Served by the workers of the common lane that can run what is demanded; where none can, by all that can. Batches
    are as large as its profiles go: how many the common lane takes together was chosen for another variant and load.
    """

    def able(numbers: Sequence[int]) -> tuple[int, ...]:
        kinds = {kind for v in demand.variants for kind in deployment.kinds if deployment.variants[v].profile_on(kind)}
        return tuple(number for number in numbers if deployment.workers[number].kind in kinds)

    names = "+".join(deployment.variants[variant].name for variant in demand.variants)
    is_fixed = len(demand.variants) == 1
    crew = able(workers) or able(range(len(deployment.workers)))
    late = Late.DROP_WHEN_INFEASIBLE if common.late is Late.REFUSE else common.late
    release = Deferred(when_gathered=common.release.when_gathered) if isinstance(common.release, Deferred) else Eager()
    return Lane(
        name=f"{deployment.applications[demand.application].name} by {names}",
        workers=crew,
        select=Fixed(demand.variants[0]) if is_fixed else MostAccurate(demand.variants),
        order=Order.EARLIEST_DEADLINE,
        release=release,
        late=late,
        worker_choice=common.worker_choice,
        capacity=common.capacity,
        delays=common.delays,
    )


def with_trials(plan: Plan, deployment: Deployment, applications: Sequence[int], worker: int) -> Plan:
    """Of these applications, those that have several workers are served by this one alone; their queries wait for it.

    A lane stays as it is where another application uses it, where its batches are named by worker, where its workers
    are not like this one, or where the plan gives this one's memory to other variants.
    """
    lanes_of = [{*route.lanes, *route.demands} for route in plan.routes]
    spread = [each for each in applications if len({w for n in lanes_of[each] for w in plan.lanes[n].workers}) > 1]
    if not spread:
        return plan
    trial_lanes = set().union(*(lanes_of[each] for each in spread))
    trial_lanes.difference_update(*(lanes for each, lanes in enumerate(lanes_of) if each not in spread))
    traits = [(each.kind, each.memory_bytes, each.resident) for each in deployment.workers]

    def may_move(lane: Lane) -> bool:
        is_alike = all(traits[each] == traits[worker] for each in lane.workers)
        is_placed = plan.placement is None or set(selected_variants(lane)) <= set(plan.placement[worker])
        return is_alike and is_placed and not isinstance(lane.select, Worklist)

    lanes = tuple(
        replace(lane, workers=(worker,), select=_without_crowd(lane.select))
        if number in trial_lanes and may_move(lane)
        else lane
        for number, lane in enumerate(plan.lanes)
    )
    return replace(plan, lanes=lanes)


def _without_crowd(select: Select) -> Select:
    return replace(select, crowd=None) if isinstance(select, Tables) else select


def with_delays(plan: Plan, delays: Delays) -> Plan:
    """Every lane reckons with these at least, and with its planner's own where those are longer."""
    if delays == Delays():
        return plan
    return replace(plan, lanes=tuple(replace(lane, delays=_longer(lane, delays)) for lane in plan.lanes))


def _longer(lane: Lane, delays: Delays) -> Delays:
    """How late a timer may ring concerns only lanes whose batches a timer starts."""
    concerned = replace(delays, timer_ns=delays.timer_ns if _waits_for_timer(lane) else 0, evidence_ns=0)
    return Delays(*map(max, astuple(lane.delays), astuple(concerned)))


def _waits_for_timer(lane: Lane) -> bool:
    select = lane.select
    tables = (select,) if isinstance(select, Table) else select.tables if isinstance(select, Tables) else ()
    return not isinstance(lane.release, Eager) or any(table.has_waits for table in tables)


def with_doors(plan: Plan, deployment: Deployment, latency_ratio: NDArray[np.float64] | None = None) -> Plan:
    """Each dropping lane holds what its workers can answer well within the SLO by their quickest way. Where it runs one
    variant, what runs is part of that; where it chooses, what runs now says little of what is run when many wait.

    What is beyond that is refused at once, while its client can still turn elsewhere, rather than when its deadline is
    near.
    """
    applications: dict[int, list[int]] = {}
    for number, route in enumerate(plan.routes):
        for lane in (*route.lanes, *route.demands):
            applications.setdefault(lane, []).append(number)
    ratios = _ratios(deployment, latency_ratio)
    lanes = tuple(
        replace(lane, capacity=min(lane.capacity, _door(lane, applications.get(number, []), deployment, ratios)))
        for number, lane in enumerate(plan.lanes)
    )
    return replace(plan, lanes=lanes)


def _ratios(deployment: Deployment, latency_ratio: NDArray[np.float64] | None) -> NDArray[np.float64]:
    rows = (len(deployment.variants), len(deployment.kinds))
    return np.ones(rows) if latency_ratio is None else latency_ratio


def stepped(latency_ratio: NDArray[np.float64], before: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Rounded to steps, so that doors do not move with every batch; as `before` where none is a step away from that."""
    is_like = before is not None and before.shape == latency_ratio.shape
    if before is not None and is_like and (np.abs(np.log(latency_ratio / before)) < math.log(RATIO_STEP)).all():
        return before
    steps: NDArray[np.float64] = np.rint(np.log(latency_ratio) / math.log(RATIO_STEP))
    return RATIO_STEP**steps


def _door(lane: Lane, applications: list[int], deployment: Deployment, ratios: NDArray[np.float64]) -> int:
    if isinstance(lane.select, Worklist) or lane.late is Late.KEEP or not applications:
        return lane.capacity
    slo_ns = max(deployment.applications[number].slo_ns for number in applications)
    counts_running = isinstance(lane.select, Fixed)
    may_take_ns = DOOR_SHARE * slo_ns - lane.delays.control_ns
    by_kind: dict[str, float] = {}
    least = SMALLEST_DOOR
    for kind in {deployment.workers[worker].kind for worker in lane.workers}:
        by_kind[kind] = 0.0
        for variant in selected_variants(lane):
            profile = deployment.variants[variant].profile_on(kind)
            if profile is None:
                continue
            ratio = float(ratios[variant, deployment.kinds.index(kind)])
            sizes = np.arange(1, min(profile.max_batch, lane.release.max_batch) + 1)
            latency_ns = profile.table_ns[deployment.quantile, sizes] * ratio
            if counts_running:  # a batch waits until one of the workers, which start one after the other, is free
                is_quick = ((1 + 1 / len(lane.workers)) * latency_ns <= may_take_ns) | (sizes == 1)
                held = (sizes * may_take_ns / latency_ns)[is_quick]
            else:
                # Every row of a request is a query: what can be answered in one batch must fit through.
                least = max(least, int(np.searchsorted(latency_ns, slo_ns, side="right")))
                held = WAITING_SHARE * sizes * (slo_ns - latency_ns) / latency_ns
            by_kind[kind] = max(by_kind[kind], float(held.max()))
    return max(least, int(sum(by_kind[deployment.workers[worker].kind] for worker in lane.workers)))
