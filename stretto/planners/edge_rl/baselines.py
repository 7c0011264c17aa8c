"""What edge RL compares itself with (section 5.1.7): one model everywhere, a single queue, INFaaS, and the stationary
approximation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.plan import (
    Eager,
    Lane,
    Late,
    Order,
    Plan,
    Route,
    RouteRule,
    Table,
    Tables,
    WorkerChoice,
    by_application,
)
from stretto.core.view import View
from stretto.planners.edge_rl.instances import BUFFER, Instance, dealt_plan, instances_of
from stretto.planners.edge_rl.waiting import is_late
from stretto.planners.parts.rates import rates_of

SHARE_STEPS = 400  # of the search for the largest share of the accurate instances
TENTH = 0.1


def _fair(view: View, choose: Callable[[Deployment, int], Sequence[Instance]], planner: str) -> Plan:
    """In turn to instances of one model, on every worker that is there."""
    deployment = view.deployment
    crews = [choose(deployment, application) for application in range(len(deployment.applications))]
    weights = []
    for crew in crews:
        there = np.array([view.alive[instance.worker] for instance in crew], np.float64)
        weights.append(there if there.any() else np.ones(len(crew)))
    plan = dealt_plan(deployment, crews, weights, planner=planner)
    routes = tuple(
        Route(
            RouteRule.ROUND_ROBIN,
            tuple(lane for lane, weight in zip(route.lanes, route.weights, strict=True) if weight),
        )
        for route in plan.routes
    )
    return replace(plan, routes=routes)


def _of_model(deployment: Deployment, application: int, is_light: bool) -> tuple[Instance, ...]:
    """Every worker that can run the application's quickest variant, or the most accurate one of those in use."""
    able = [
        Instance(number, variant, profile.latency_ns(1, deployment.quantile), deployment.variants[variant].accuracy)
        for number, worker in enumerate(deployment.workers)
        for variant in deployment.variants_of(application)
        if (profile := deployment.variants[variant].profile_on(worker.kind)) is not None
    ]
    if is_light:
        chosen = min(able, key=lambda each: (each.service_ns, -each.accuracy)).variant
    else:
        chosen = max(instances_of(deployment, application), key=lambda each: each.accuracy).variant
    return tuple(instance for instance in able if instance.variant == chosen)


@dataclass(frozen=True)
class Lightweight:
    """LW: every worker runs the quickest variant."""

    def __call__(self, view: View) -> Plan:
        return _fair(view, lambda deployment, number: _of_model(deployment, number, True), "lightweight")


@dataclass(frozen=True)
class Heavyweight:
    """HW: every worker runs the most accurate variant. `early` (HW-E): what will be late is dropped from the buffer."""

    early: bool = False

    def __call__(self, view: View) -> Plan:
        plan = _fair(view, lambda deployment, number: _of_model(deployment, number, False), "heavyweight")
        if not self.early:
            return plan
        lanes = tuple(replace(lane, late=Late.DROP_WHEN_INFEASIBLE) for lane in plan.lanes)
        return replace(plan, lanes=lanes, planner="heavyweight_early")


@dataclass(frozen=True)
class SingleQueue:
    """SQ: one queue from which idle instances take. Published are two readings: the instance that is idle longest takes
    the next query, or an accurate one wherever one is idle (`prefer_accurate`).
    """

    prefer_accurate: bool = False

    def __call__(self, view: View) -> Plan:
        choice = WorkerChoice.PREFERENCE if self.prefer_accurate else WorkerChoice.EARLIEST_FREE
        applications = range(len(view.deployment.applications))
        lanes = tuple(replace(common_lane(view.deployment, number), worker_choice=choice) for number in applications)
        return by_application(lanes, planner="single_queue")


def common_lane(deployment: Deployment, application: int) -> Lane:
    """One lane for all instances, the most accurate first, one query at a time."""
    crew = sorted(instances_of(deployment, application), key=lambda each: (-each.accuracy, each.worker))
    return Lane(
        name=deployment.applications[application].name,
        workers=tuple(instance.worker for instance in crew),
        select=Tables(tuple(_always(kind, variant) for kind, variant in kinds_of(deployment, crew).items())),
        order=Order.FIRST_COME,
        release=Eager(1),
        late=Late.KEEP,
        capacity=(BUFFER - 1) * len(crew),
    )


def kinds_of(deployment: Deployment, crew: Sequence[Instance]) -> dict[str, int]:
    """The variant of each kind of worker. Instances of one kind have one variant."""
    return {deployment.workers[instance.worker].kind: instance.variant for instance in crew}


def _always(kind: str, variant: int) -> Table:
    cell = np.ones((1, 1), np.int32)
    return Table(1, variant * cell, cell, kind)


@dataclass
class Infaas:
    """INFaaS as edge RL has it: time has slots of 0.1 s, and all queries of a slot go to the model whose instances have
    the fewest queries waiting; of two that are equal, to the one that was not asked last. The paper does not print the
    rule; this reading gives its row.
    """

    _last: dict[int, NDArray[np.int64]] = field(default_factory=dict)  # by application: the model asked last

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        crews = [instances_of(deployment, application) for application in range(len(deployment.applications))]
        lines = None if view.lines is None else view.lines(1)
        weights = []
        first = 0
        for application, crew in enumerate(crews):
            length = np.zeros((1, len(crew)))
            if lines is not None:
                length[0] = lines.length[first : first + len(crew)]
            last = self._last.get(application, np.zeros(1, np.int64))
            shares, self._last[application] = infaas_shares(crew, length, last)
            weights.append(shares[0])
            first += len(crew)
        return dealt_plan(deployment, crews, weights, planner="infaas")


def infaas_shares(
    crew: Sequence[Instance], length: NDArray[Any], last: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Shares [system, instance] from queue lengths, and the model that takes them; of many systems at once."""
    variants = list(dict.fromkeys(instance.variant for instance in crew))
    model = np.array([variants.index(instance.variant) for instance in crew])
    is_of = model[None, :] == np.arange(len(variants))[:, None]  # [model, instance]
    waiting = np.maximum(length - 1, 0) @ is_of.T / is_of.sum(axis=1)
    just_asked = np.arange(len(variants))[None, :] == last[:, None]
    chosen = np.argmin(waiting + 1e-6 * just_asked, axis=1)
    shares = is_of[chosen].astype(np.float64)
    return shares / shares.sum(axis=1, keepdims=True), chosen


@dataclass(frozen=True)
class Stationary:
    """SA: for the load as it is now, the largest share for the accurate instances such that no more than `late` of any
    instance's queries are late in an M/D/1 queue that has run for ever.

    Published, it is told the phase of the load and its rate; a server measures the load. `tenths`: shares of accurate
    instances are whole tenths, as those that the paper reports seem to be.
    """

    late: float = 0.02
    tenths: bool = False

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        crews = [instances_of(deployment, application) for application in range(len(deployment.applications))]
        rates = rates_of(view, 1.0)
        weights = [
            stationary_shares(crew, float(rate), deployment.applications[number].slo_ns, self.late, self.tenths)
            for number, (crew, rate) in enumerate(zip(crews, rates, strict=True))
        ]
        return dealt_plan(deployment, crews, weights, planner="stationary")


def stationary_shares(
    crew: Sequence[Instance], rate: float, slo_ns: int, late: float, tenths: bool = False
) -> NDArray[np.float64]:
    """Shares by instance. Models take as much as they can, the most accurate first; the rest goes by speed."""
    shares = np.zeros(len(crew))
    left = 1.0
    for accuracy in sorted({instance.accuracy for instance in crew}, reverse=True):
        places = [place for place, instance in enumerate(crew) if instance.accuracy == accuracy]
        slowest_ns = max(crew[place].service_ns for place in places)
        steps = np.linspace(left, 0.0, SHARE_STEPS)
        share = next((s for s in steps if is_late(rate * s / len(places), slowest_ns, slo_ns) <= late), 0.0)
        each = share / len(places)
        if tenths and share < left:
            each = int(each / TENTH) * TENTH
        shares[places] = each
        left -= each * len(places)
    if left > 1e-9:
        speed = np.array([1.0 / instance.service_ns for instance in crew])
        shares += left * speed / speed.sum()
    return shares
