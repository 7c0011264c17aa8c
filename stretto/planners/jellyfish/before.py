"""What the plan in force has: which model each worker runs, where each client is, and whether that may stay so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.plan import Fixed, Plan, RouteRule
from stretto.planners.jellyfish.demand import Demand, Ladder
from stretto.planners.jellyfish.problem import UNMAPPED, Mapping, Problem, faults, mapping_of
from stretto.planners.jellyfish.update import NOT_KNOWN


def lane_name(deployment: Deployment, application: int, worker: int) -> str:
    return f"{deployment.applications[application].name}@{deployment.workers[worker].name}"


def idle_as_before(mapping: Mapping, before: NDArray[np.int64]) -> Mapping:
    """A worker without clients keeps its model: what nobody asked for is no reason to load anything."""
    is_idle = np.bincount(mapping.worker_of[mapping.worker_of != UNMAPPED], minlength=len(before)) == 0
    return replace(mapping, models=np.where(is_idle & (before != NOT_KNOWN), before, mapping.models))


def models_before(plan: Plan | None, ladder: Ladder) -> NDArray[np.int64]:
    """By worker of the ladder, the model that the plan in force has it run; NOT_KNOWN where it has none of these."""
    running: dict[int, int] = {}
    for lane in plan.lanes if plan is not None else ():
        if len(lane.workers) == 1 and lane.capacity > 0 and isinstance(lane.select, Fixed):
            running[lane.workers[0]] = lane.select.variant
    numbers = {variant: model for model, variant in enumerate(ladder.variants)}
    return np.array([numbers.get(running.get(worker, -1), NOT_KNOWN) for worker in ladder.workers], np.int64)


def places_before(
    plan: Plan | None, deployment: Deployment, application: int, ladder: Ladder, demand: Demand
) -> NDArray[np.int64]:
    """By client, the place in the ladder of the worker that it is routed to now."""
    places = np.full(demand.problem.clients, UNMAPPED, np.int64)
    route = plan.routes[application] if plan is not None and len(plan.routes) > application else None
    if plan is None or route is None or route.rule is not RouteRule.BY_CLIENT:
        return places
    names = {lane_name(deployment, application, worker): place for place, worker in enumerate(ladder.workers)}
    for number, client in enumerate(demand.clients):
        if client.slot < len(route.targets):
            lane = plan.lanes[route.lanes[route.targets[client.slot]]]
            places[number] = names.get(lane.name, UNMAPPED)
    return places


def mapping_before(problem: Problem, models: NDArray[np.int64], places: NDArray[np.int64]) -> Mapping | None:
    """The mapping in force under what is measured now; None where it does not hold any more, or parts have no name."""
    batches = np.zeros(problem.workers, np.int64)
    for worker in range(problem.workers):
        clients = places == worker
        if clients.any():
            batches[worker] = problem.largest[problem.kind_of[worker], models[worker], clients].min()
    mapping = mapping_of(problem, models, batches, places)
    return None if mapping.mapped == 0 or faults(problem, mapping) else mapping
