"""The compiled dispatcher under the simulator gives the same decisions as the slow reference, on random small traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import Deferred, Eager, Fixed, Lane, Late, Plan, WorkerChoice, by_application
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.telemetry import View
from stretto.core.worker import workers
from stretto.sim.arrivals import ARRIVAL
from stretto.sim.simulator import simulate
from tests.sim.reference import Batch, Dropped, Model, Reference, Request

REASONS = {
    Outcome.DROPPED_INFEASIBLE: "infeasible",
    Outcome.DROPPED_EXPIRED: "expired",
    Outcome.DROPPED_OVERLOAD: "overload",
}


@dataclass(frozen=True)
class Scene:
    """Models, workers and the requests that come."""

    models: tuple[Model, ...]
    workers: int
    requests: tuple[Request, ...]
    window: int = 10**9

    def __repr__(self) -> str:
        came = [(one.model, one.arrival, one.deadline) for one in self.requests]
        return f"scene({list(self.models)}, {self.workers}, {came}, window={self.window})"


def scene(models: list[Model], worker_count: int, came: list[tuple[int, int, int]], window: int = 10**9) -> Scene:
    """Requests as (model, arrival, deadline)."""
    requests = [Request(number, *one) for number, one in enumerate(sorted(came, key=lambda one: one[1]))]
    return Scene(tuple(models), worker_count, tuple(requests), window)


@dataclass(frozen=True)
class Handmade:
    """A source that gives these requests, in one chunk."""

    requests: tuple[Request, ...]

    def chunks(self, deployment: Deployment, seconds: float, seed: int) -> Iterator[NDArray[np.void]]:
        chunk = np.zeros(len(self.requests), dtype=ARRIVAL)
        chunk["time_ns"] = [one.arrival for one in self.requests]
        chunk["deadline_ns"] = [one.deadline for one in self.requests]
        chunk["application"] = [one.model for one in self.requests]
        chunk["client"] = chunk["query_class"] = -1
        yield chunk

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        return (1.0,) * len(deployment.applications)


def deployment_of(scene: Scene) -> Deployment:
    applications = []
    for number, model in enumerate(scene.models):
        profile = LatencyProfile(np.tile(np.array([0, *model.latency]), (len(Quantile), 1)))
        applications.append(Application(f"a{number}", 10**6, (Variant("only", 1.0, (profile,)),)))
    return Deployment(tuple(applications), workers(scene.workers))


def plan_of(scene: Scene) -> Plan:
    lanes = tuple(
        Lane(
            name=f"a{number}",
            workers=tuple(range(scene.workers)),
            select=Fixed(number),
            release=Deferred(min(4096, model.max_batch), model.gathered)
            if model.deferred
            else Eager(min(4096, model.max_batch)),
            late=Late.DROP_WHEN_INFEASIBLE,
            floor_rates=model.floors,
            worker_choice=WorkerChoice.LOWEST_INDEX,
            control_ns=model.control,
            data_ns=model.data,
        )
        for number, model in enumerate(scene.models)
    )
    return by_application(lanes, rate_window_ns=scene.window)


def with_fitted_beta(scene: Scene) -> Scene:
    """β of condition (a) is the intercept of the profile's fitted line."""
    deployment = deployment_of(scene)
    models = [
        replace(model, beta=float(deployment.profile(number).beta_ns[deployment.quantile]))
        for number, model in enumerate(scene.models)
    ]
    return replace(scene, models=tuple(models))


def referred(scene: Scene) -> tuple[list[Batch], list[Dropped]]:
    reference = Reference(scene.models, scene.workers, scene.requests, scene.window)
    reference.run()
    return sorted(reference.batches), sorted(reference.drops)


def simulated(scene: Scene) -> tuple[list[Batch], list[Dropped]]:
    plan = plan_of(scene)

    def planner(view: View) -> Plan:
        return plan

    result = simulate(deployment_of(scene), planner, Handmade(scene.requests), seconds=1.0, record=True)
    assert result.queries is not None
    return decisions_of(result.queries)


def decisions_of(queries: NDArray[Any]) -> tuple[list[Batch], list[Dropped]]:
    batches, drops = [], []
    for start, worker in sorted({(int(row["start_ns"]), int(row["worker"])) for row in queries if row["worker"] >= 0}):
        members = np.flatnonzero((queries["start_ns"] == start) & (queries["worker"] == worker))
        rows = queries[members]
        assert len(set(rows["end_ns"].tolist())) == 1 and (rows["batch"] == len(members)).all()
        assert len(set(rows["application"].tolist())) == 1 and (rows["outcome"] == Outcome.ON_TIME).all()
        # A batch is the earliest deadlines first.
        order = np.lexsort((members, rows["deadline_ns"]))
        batches.append(
            Batch(
                start, worker, int(rows["application"][0]), int(rows["end_ns"][0]), tuple(members[order].tolist())
            )
        )
    for number, row in enumerate(queries):
        if row["worker"] < 0:
            drops.append(Dropped(number, int(row["end_ns"]), REASONS[Outcome(int(row["outcome"]))]))
    return sorted(batches), drops


def assert_same(scene: Scene) -> None:
    batches, drops = referred(scene)
    own_batches, own_drops = simulated(scene)
    assert own_batches == batches
    assert own_drops == drops
