"""One deployment as it is served: its dispatcher, its models and the queries in it.

When the repository changes, a new generation takes over what waits, while batches on their way end in the old one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import mul

import numpy as np
from numpy.typing import NDArray

from stretto.backends.of_variant import model_source
from stretto.core.application import Penalty
from stretto.core.conditions import Conditions, Demand
from stretto.core.deployment import Deployment
from stretto.core.errors import PlanError
from stretto.core.outcome import Outcome
from stretto.core.plan import Delays
from stretto.dispatch.dispatcher import Dispatcher
from stretto.dispatch.layout import first_residents
from stretto.live.face.columns import Queries
from stretto.live.face.remote import RemoteQuery
from stretto.live.fleet import WorkerSpec, slot_specs
from stretto.live.recorder import Journal
from stretto.live.requests import NoSuchVariant, Query, Request
from stretto.live.shelf import ModelSpec
from stretto.live.witness import class_of
from stretto.planning.session import InForce, Session, on_larger_fleet
from stretto.repository.application import ApplicationFiles

MAX_DEMANDS = 64  # lanes for demands, of one application
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Served:
    """What is to be served: the files of each application, in the deployment's order, and the models by variant.

    Workers on different devices load a model of one key from different sources: `by_slot` has those of each worker, or
    nothing where all are alike.
    """

    deployment: Deployment
    files: tuple[ApplicationFiles, ...]
    specs: tuple[ModelSpec, ...]
    by_slot: tuple[tuple[ModelSpec, ...], ...] = ()

    @cached_property
    def keys(self) -> frozenset[str]:
        """Of its models."""
        return frozenset(spec.key for spec in self.specs)

    @property
    def has_several(self) -> bool:
        """Applications."""
        return len(self.deployment.applications) > 1

    def spec(self, worker: int, variant: int) -> ModelSpec:
        """The model of a variant as this worker loads it."""
        return self.by_slot[worker][variant] if self.by_slot else self.specs[variant]


def served(deployment: Deployment, files: Mapping[str, ApplicationFiles], fleet: Sequence[WorkerSpec]) -> Served:
    """The models that a deployment of these applications needs, on each of its workers."""
    slots = slot_specs(fleet)
    by_device = {
        device: tuple(_spec(deployment, files, number, *device) for number in range(len(deployment.variants)))
        for device in dict.fromkeys((spec.threads, spec.device) for spec in slots)
    }
    by_slot = tuple(by_device[spec.threads, spec.device] for spec in slots)
    ordered = tuple(files[application.name] for application in deployment.applications)
    return Served(deployment, ordered, by_slot[0], by_slot if len(by_device) > 1 else ())


def _spec(
    deployment: Deployment, files: Mapping[str, ApplicationFiles], number: int, threads: int, device: str
) -> ModelSpec:
    variant = deployment.variants[number]
    application = files[deployment.applications[deployment.application_of[number]].name]
    folder = application.variant(variant.name)
    takes = application.input
    sizes = f"+{sizes_digest(takes.shapes)}" if len(takes.shapes) > 1 else ""
    key = f"{application.name}/{variant.name}@{folder.read_sha256[:16]}{sizes}"
    source = model_source(application, folder, threads, device)
    gives = application.output
    return ModelSpec(
        key,
        source,
        takes.name,
        takes.dtype,
        takes.largest,
        gives.name,
        gives.dtype,
        tuple(gives.shape),
        max(profile.max_batch for profile in variant.profiles),
        takes.shapes if len(takes.shapes) > 1 else (),
        gives.kind.has_classes,
    )


def sizes_digest(shapes: tuple[tuple[int, ...], ...]) -> str:
    """So that models that take other sizes than before are loaded anew."""
    return hashlib.sha256(repr(shapes).encode()).hexdigest()[:8]


class Generation:
    """`in_force` is the plan that its dispatcher follows, completed with the lanes that demands in use need."""

    def __init__(
        self, served: Served, dispatcher: Dispatcher, session: Session, in_force: InForce, journal: Journal
    ) -> None:
        self.served = served
        self.deployment = served.deployment
        self.dispatcher = dispatcher
        self.in_force = in_force
        self.numbers = {app.name: number for number, app in enumerate(self.deployment.applications)}
        self.queries = Queries(self)  # by ticket
        self.accuracy = [variant.promised_accuracy for variant in self.deployment.variants]  # that answers state
        self.names = [variant.name for variant in self.deployment.variants]
        self._frame_bytes = {
            (application.name, variant.input_size): variant.frame_bytes
            for application in self.deployment.applications
            for variant in application.variants
            if variant.input_size and variant.frame_bytes
        }
        self._recall = [variant.recall for variant in self.deployment.variants]
        self._accuracy_by_size = [
            dict(variant.accuracy_by_size) if variant.has_accuracy else {} for variant in self.deployment.variants
        ]
        self.moved = np.zeros(len(self.deployment.applications), np.int64)  # to a later generation
        self._session = session
        self._journal = journal
        self._first_memory = first_residents(self.deployment)
        self._number_of_demand: dict[Demand, int] = {}

    def enter(self, query: Query | RemoteQuery, now_ns: int, application: int, demand: int, more: bool = False) -> None:
        """Into its dispatcher. `more`: others come before batches are formed."""
        request = query.request
        query.generation = self
        query_class = -1 if query.theta is None else class_of(query.theta)
        given = application, request.deadline_ns, -1, request.client, query_class, request.priority, demand
        query.ticket = ticket = self.dispatcher.submit(now_ns, *given, more, query.is_ending)
        self.queries[ticket] = query

    def penalty(self, variant: int) -> Penalty:
        """Of the application that this variant answers."""
        return self.deployment.applications[self.deployment.application_of[variant]].penalty

    def label(self, variant: int) -> tuple[str, str]:
        """Application and variant, by name."""
        return self.deployment.applications[self.deployment.application_of[variant]].name, self.names[variant]

    def frame_ratio(self, application: str, shape: tuple[int, ...], sent_bytes: int) -> float | None:
        """The bytes of a request of this shape, by query, over what is expected of its size; None: nothing is."""
        expected = self._frame_bytes.get((application, shape[1:]))
        return None if expected is None or sent_bytes <= 0 or not shape[0] else sent_bytes / shape[0] / expected

    def takes(self, application: int, request: Request | RemoteQuery) -> bool:
        """Its tensors are still what models of the application take and give."""
        spec = self.served.specs[self.deployment.variants_of(application)[0]]
        inputs, shapes = request.inputs, spec.shapes
        is_alike = inputs.shape[1:] in shapes and np.dtype(inputs.dtype) == np.dtype(spec.input_dtype)
        return is_alike and (not isinstance(request, RemoteQuery) or request.each.answer_bytes == spec.output_bytes)

    def has_sizes(self, variant: int) -> bool:
        """What is expected of it depends on the size at which images were sent."""
        return bool(self._accuracy_by_size[variant])

    def accuracy_for(self, variant: int, request: Request | RemoteQuery) -> float:
        """That is expected of a variant for a request's images, by the size at which they were sent. One that nobody
        knows is below all that may be asked for.
        """
        by_size = self._accuracy_by_size[variant]
        return by_size.get(request.inputs.shape[1:], self.accuracy[variant]) if by_size else self.accuracy[variant]

    def expected_for(self, variant: int, query: Query | RemoteQuery) -> float:
        """As `accuracy_for`, by what evidence says of the query's class where it said anything (equation 9)."""
        recall = self._recall[variant]
        if query.theta is None or len(recall) != len(query.theta) or self.has_sizes(variant):
            return self.accuracy_for(variant, query.request)
        return min(1.0, sum(map(mul, query.theta, recall)))

    def theta_of(self, ticket: int, tag: int) -> tuple[float, ...] | None:
        """What evidence there is of a query's class."""
        query = self.queries.get(ticket)
        return None if query is None else query.theta

    def follow(self, now_ns: int, in_force: InForce, conditions: Conditions) -> None:
        """Follow a plan from now on, under these conditions. PlanError where it cannot be; then all stays as it was,
        also for who reads the journal.
        """
        try:
            wanted = self._session.under(in_force, conditions)
            if wanted is not in_force:
                self._journal.under(now_ns, self.dispatcher, conditions)
            if wanted.plan is not self.dispatcher.plan:
                self.dispatcher.follow(now_ns, wanted.plan)
        except Exception:
            if in_force is self.in_force:
                self._journal.under(now_ns, self.dispatcher, in_force.conditions)
            else:
                self._journal.refused(now_ns, self.dispatcher)
            raise
        self.in_force = wanted

    def conditions(self, delays: Delays) -> Conditions:
        """The demands in use, under these delays."""
        return Conditions(self.in_force.conditions.demands, delays)

    def demand_of(
        self, now_ns: int, application: int, request: Request | RemoteQuery, avoids: frozenset[str] = NOTHING
    ) -> int:
        """The number of the request's demand; -1: any variant may answer. A new demand gets its lane at once. `avoids`
        are keys of models that may not answer it.
        """
        if not request.pinned and request.min_accuracy <= 0 and not avoids:
            return -1
        demand = Demand(application, self._allowed(application, request, avoids))
        if len(demand.variants) == len(self.deployment.variants_of(application)) and not request.pinned:
            return -1
        number = self._number_of_demand.get(demand)
        if number is None:
            conditions = self.in_force.conditions
            number = sum(other.application == application for other in conditions.demands)
            if number >= MAX_DEMANDS:
                raise NoSuchVariant("too many different demands are in use; ask for fewer")
            wider = replace(conditions, demands=(*conditions.demands, demand))
            try:
                self.follow(now_ns, self.in_force, wider)
            except PlanError:  # as where it needs more memory than a worker has
                raise NoSuchVariant("no worker can serve what this demand asks for") from None
            self._number_of_demand[demand] = number
        return number

    def _allowed(
        self, application: int, request: Request | RemoteQuery, avoids: frozenset[str] = NOTHING
    ) -> tuple[int, ...]:
        numbers = [each for each in self.deployment.variants_of(application) if self._key(each) not in avoids]
        if request.pinned:
            allowed = [number for number in numbers if self.names[number] == request.pinned]
        else:
            allowed = [number for number in numbers if self.accuracy_for(number, request) >= request.min_accuracy]
        if not allowed:
            raise NoSuchVariant("no variant that is served meets this demand")
        return tuple(sorted(allowed, key=lambda number: -self.deployment.variants[number].accuracy))

    def _key(self, variant: int) -> str:
        return self.served.specs[variant].key

    def enlarge(self, now_ns: int, served: Served) -> None:
        """The same applications on more workers."""
        self.dispatcher.enlarge(now_ns, served.deployment)
        self.served, self.deployment = served, served.deployment
        self.in_force = on_larger_fleet(self.in_force, served.deployment, self.dispatcher.plan)
        self._first_memory = first_residents(served.deployment)

    def first_models(self, worker: int) -> Sequence[ModelSpec]:
        """What the dispatcher takes the worker to hold when it joins; what takes longest first, for on a GPU several
        are made ready beside each other.
        """
        variants = sorted(self._first_memory[worker], key=lambda variant: -self.deployment.variants[variant].load_ns)
        return [self.served.spec(worker, variant) for variant in variants]

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Submitted and outcomes by application, without the queries that moved on."""
        submitted, outcomes = self.dispatcher.counts()
        outcomes[:, Outcome.DROPPED_CANCELLED] -= self.moved
        return submitted - self.moved, outcomes

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return not self.queries


@dataclass(frozen=True)
class GenerationMaker:
    """`correction` is the step with which measured latency corrects the profile."""

    session: Session
    journal: Journal
    correction: float

    def __call__(self, served: Served, in_force: InForce, now_ns: int) -> Generation:
        """With every worker away; each joins when it is ready and free."""
        dispatcher = self.journal.dispatcher(in_force, correction=self.correction, now_ns=now_ns)
        generation = Generation(served, dispatcher, self.session, in_force, self.journal)
        for worker in range(len(served.deployment.workers)):
            dispatcher.worker_left(now_ns, worker)
        dispatcher.decisions()  # loads for workers that are away again; they are asked for anew when those join
        return generation
