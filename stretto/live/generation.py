"""One deployment as it is served: its dispatcher, its models and the queries in it.

When the repository changes, a new generation takes over what waits, while batches on their way end in the old one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stretto.backends.of_variant import model_source
from stretto.core.deployment import Deployment
from stretto.core.errors import PlanError
from stretto.core.outcome import Outcome
from stretto.core.plan import Plan
from stretto.dispatch.dispatcher import Dispatcher
from stretto.dispatch.layout import first_residents
from stretto.live.admission import with_doors
from stretto.live.requests import Query, Request
from stretto.live.shelf import ModelSpec
from stretto.planners.demands import Demand, with_demands
from stretto.repository.application import ApplicationFiles

LEAST_HANDOFF_NS = 200_000
MOST_HANDOFF_NS = 10_000_000
HANDOFF_MARGIN = 1.5
HANDOFF_STEP = 0.05
MAX_DEMANDS = 64  # lanes for demands, of one application


@dataclass(frozen=True)
class Served:
    """What is to be served: the files of each application, in the deployment's order, and the models by variant."""

    deployment: Deployment
    files: tuple[ApplicationFiles, ...]
    specs: tuple[ModelSpec, ...]


def served(deployment: Deployment, files: Mapping[str, ApplicationFiles], threads: int, device: str) -> Served:
    """The models that a deployment of these applications needs."""
    specs: list[ModelSpec] = []
    for number, variant in enumerate(deployment.variants):
        application = files[deployment.applications[deployment.application_of[number]].name]
        folder = application.variant(variant.name)
        source = model_source(application, folder, threads, device)
        takes, gives = application.input, application.output
        specs.append(
            ModelSpec(
                f"{application.name}/{variant.name}@{folder.model_sha256()[:16]}",
                source,
                takes.name,
                takes.dtype,
                tuple(takes.shape),
                gives.name,
                gives.dtype,
                tuple(gives.shape),
                max(profile.max_batch for profile in variant.profiles),
            )
        )
    ordered = tuple(files[application.name] for application in deployment.applications)
    return Served(deployment, ordered, tuple(specs))


class NoSuchVariant(Exception):
    """A demand that no variant of the application can meet."""


class Generation:
    """`plan` is what a planner made; lanes for demands and doors are added here, before the dispatcher sees it."""

    def __init__(self, served: Served, dispatcher: Dispatcher, plan: Plan):
        self.served = served
        self.deployment = served.deployment
        self.dispatcher = dispatcher
        self.plan = plan
        self.numbers = {app.name: number for number, app in enumerate(self.deployment.applications)}
        self.queries: dict[int, Query] = {}  # by ticket
        self.accuracy = [variant.accuracy for variant in self.deployment.variants]
        self.names = [variant.name for variant in self.deployment.variants]
        self.moved = np.zeros(len(self.deployment.applications), np.int64)  # to a later generation
        self._first_memory = first_residents(self.deployment)
        self._handoff_ns: float = LEAST_HANDOFF_NS
        self._demands: list[Demand] = []
        self._numbers_of: dict[Demand, int] = {}

    def label(self, variant: int) -> tuple[str, str]:
        """Application and variant, by name."""
        return self.deployment.applications[self.deployment.application_of[variant]].name, self.names[variant]

    def theta_of(self, ticket: int, tag: int) -> tuple[float, ...] | None:
        """What evidence there is of a query's class."""
        query = self.queries.get(ticket)
        return None if query is None else query.theta

    def adopt(self, now_ns: int, plan: Plan) -> None:
        """Follow the planner's plan, with the lanes that demands in use need."""
        self.dispatcher.adopt(now_ns, self.complete(plan))
        self.plan = plan

    def complete(self, plan: Plan) -> Plan:
        """With doors, with lanes for demands, and with the time that a batch takes from here to its worker."""
        ratios = self.dispatcher.latency_ratio()
        whole = with_doors(with_demands(plan, self.deployment, self._demands), self.deployment, ratios)
        handoff_ns = round(min(max(HANDOFF_MARGIN * self._handoff_ns, LEAST_HANDOFF_NS), MOST_HANDOFF_NS))
        lanes = tuple(
            replace(lane, delays=replace(lane.delays, control_ns=max(lane.delays.control_ns, handoff_ns)))
            for lane in whole.lanes
        )
        return replace(whole, lanes=lanes)

    def handed_over(self, took_ns: int) -> None:
        """How long a batch was on its way, to the worker and back. The next plan gives a worker its next batch so long
        before it is free; where cores are short that hides what would else be idle time.
        """
        self._handoff_ns += HANDOFF_STEP * (took_ns - self._handoff_ns)

    def demand_of(self, now_ns: int, application: int, request: Request) -> int:
        """The number of the request's demand; -1: any variant may answer. A new demand gets its lane at once."""
        if not request.pinned and request.min_accuracy <= 0:
            return -1
        demand = Demand(application, self._allowed(application, request))
        if len(demand.variants) == len(self.deployment.variants_of(application)) and not request.pinned:
            return -1
        number = self._numbers_of.get(demand)
        if number is None:
            number = sum(other.application == application for other in self._demands)
            if number >= MAX_DEMANDS:
                raise NoSuchVariant("too many different demands are in use; ask for fewer")
            self._demands.append(demand)
            try:
                self.adopt(now_ns, self.plan)
            except PlanError:  # as where it needs more memory than a worker has
                self._demands.pop()
                raise NoSuchVariant("no worker can serve what this demand asks for") from None
            self._numbers_of[demand] = number
        return number

    def _allowed(self, application: int, request: Request) -> tuple[int, ...]:
        numbers = self.deployment.variants_of(application)
        if request.pinned:
            allowed = [number for number in numbers if self.names[number] == request.pinned]
        else:
            allowed = [number for number in numbers if self.accuracy[number] >= request.min_accuracy]
        if not allowed:
            raise NoSuchVariant("no variant that is served meets this demand")
        return tuple(sorted(allowed, key=lambda number: -self.accuracy[number]))

    def first_models(self, worker: int) -> Sequence[ModelSpec]:
        """What the dispatcher takes the worker to hold when it joins."""
        return [self.served.specs[variant] for variant in self._first_memory[worker]]

    def rates(self, now_ns: int) -> dict[str, float]:
        """λ by application."""
        rates = self.dispatcher.telemetry(now_ns).rates
        return {name: float(rates[number]) for name, number in self.numbers.items()}

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Submitted and outcomes by application, without the queries that moved on."""
        submitted, outcomes = self.dispatcher.counts()
        outcomes[:, Outcome.DROPPED_CANCELLED] -= self.moved
        return submitted - self.moved, outcomes

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return not self.queries
