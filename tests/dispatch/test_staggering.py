"""Eager lanes that stagger: a batch below the floor waits for one step of a stagger at most.

The oracle is a loop over single ticks of time that reads the rule and nothing of the dispatcher.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Fixed, Lane, Late, Order, Plan, by_application
from stretto.core.profile import LatencyProfile
from stretto.core.worker import workers
from stretto.sim.arrivals import ARRIVAL
from stretto.sim.simulator import simulate

ALPHA, BETA, MAX_BATCH, SLO = 2, 10, 8, 10_000  # l(b) = 2·b + 10 ticks; nobody is ever late


def latency(batch: int) -> int:
    return ALPHA * batch + BETA


def plan_of(count: int, floor: int, staggers: bool = True) -> tuple[Deployment, Plan]:
    """`floor` at any rate."""
    profile = LatencyProfile.linear(ALPHA / 1e6, BETA / 1e6, MAX_BATCH)
    deployment = Deployment((Application("a", SLO, (Variant("v", 0.9, (profile,)),)),), workers(count))
    release = Eager(floor_rates=(0.0,) * floor, staggers=staggers)
    lane = Lane("a", tuple(range(count)), Fixed(0), Order.EARLIEST_DEADLINE, release, Late.DROP_WHEN_INFEASIBLE)
    return deployment, by_application((lane,))


@dataclass
class Naive:
    """All workers and the queue, tick by tick."""

    count: int
    floor: int
    arrivals: list[int]
    started: list[tuple[int, int]] = field(default_factory=list)  # tick, batch

    def run(self) -> list[tuple[int, int]]:
        free_at, waiting, tick = [0] * self.count, [], 0
        arrivals = sorted(self.arrivals)
        while arrivals or waiting:
            if tick in free_at:  # a batch that ends is told before who comes at the same moment
                self.start_at(tick, free_at, waiting)
            while arrivals and arrivals[0] <= tick:
                waiting.append(arrivals.pop(0))
                self.start_at(tick, free_at, waiting)  # each arrival is an event of its own
            self.start_at(tick, free_at, waiting)
            tick += 1
        return self.started

    def start_at(self, tick: int, free_at: list[int], waiting: list[int]) -> None:
        for worker in range(self.count):
            if free_at[worker] <= tick and waiting:
                batch = min(len(waiting), MAX_BATCH)
                may_wait = self.count > 1 and batch < min(self.floor, MAX_BATCH)
                if may_wait and tick < waiting[0] + latency(batch) // self.count:
                    return
                del waiting[:batch]
                free_at[worker] = tick + latency(batch)
                self.started.append((tick, batch))


def served(count: int, floor: int, arrivals: list[int], staggers: bool = True) -> list[tuple[int, int]]:
    deployment, plan = plan_of(count, floor, staggers)
    rows = np.zeros(len(arrivals), ARRIVAL)
    rows["time_ns"] = sorted(arrivals)
    rows["deadline_ns"] = rows["time_ns"] + SLO
    rows["client"] = rows["query_class"] = -1
    queries = simulate(deployment, lambda view: plan, Given(rows), seconds=1e-3, record=True).queries
    assert queries is not None
    batches = np.unique(np.stack([queries["start_ns"], queries["worker"]], axis=1), axis=0, return_counts=True)
    return sorted((int(start), int(size)) for (start, _), size in zip(*batches, strict=True))


@dataclass(frozen=True, eq=False)
class Given:
    rows: np.ndarray  # type: ignore[type-arg]

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        return (1.0,)

    def chunks(self, deployment: Deployment, seconds: float, seed: int):  # type: ignore[no-untyped-def]
        yield self.rows


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 4),
    floor=st.integers(1, MAX_BATCH),
    gaps=st.lists(st.integers(1, 12), min_size=1, max_size=40),
)
def test_batches_start_when_the_rule_says(count: int, floor: int, gaps: list[int]) -> None:
    arrivals = np.cumsum(gaps).tolist()
    assert served(count, floor, arrivals) == sorted(Naive(count, floor, list(arrivals)).run())


@pytest.mark.parametrize("staggers", [True, False])
def test_only_lanes_that_stagger_wait(staggers: bool) -> None:
    assert served(2, 4, [5], staggers) == [(5 + (6 if staggers else 0), 1)]  # l(1)/2 = 6 ticks


def test_a_batch_waits_no_longer_than_one_more_query_could_join() -> None:
    deployment, plan = plan_of(2, 4)
    tight = replace(deployment, applications=(replace(deployment.applications[0], slo_ns=16),))
    rows = np.zeros(1, ARRIVAL)
    rows["time_ns"], rows["deadline_ns"], rows["client"], rows["query_class"] = 5, 5 + 16, -1, -1
    queries = simulate(tight, lambda view: plan, Given(rows), seconds=1e-3, record=True).queries
    assert queries is not None and queries["start_ns"].tolist() == [5 + 16 - latency(2)]
