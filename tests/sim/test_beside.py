"""Loads beside the work under virtual time: they take as long as they take, and no time of the worker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Fixed, Lane, Late, Missing, Order, Plan, by_application
from stretto.core.profile import NS_PER_MS, NS_PER_S, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import Worker
from stretto.sim.arrivals import Load
from stretto.sim.processes import Uniform
from stretto.sim.results import Result
from stretto.sim.simulator import Fault, FaultKind, simulate

LOAD_MS = 300.0


def deployed(room: int = 2) -> Deployment:
    """Four variants of 2 to 5 ms that take 300 ms to load, on a worker that holds the first two."""
    models = tuple(
        Variant(
            name,
            0.5 + 0.1 * place,
            (LatencyProfile.linear(1.0, 1.0 + place, 8),),
            memory_bytes=1,
            load_ns=int(LOAD_MS * NS_PER_MS),
        )
        for place, name in enumerate("abcd")
    )
    worker = Worker("w", memory_bytes=room, resident=("app/a", "app/b"))
    return Deployment((Application("app", 50 * NS_PER_MS, models),), (worker,))


@dataclass
class Turning:
    """Another variant with every plan, and its neighbour prefetched or not."""

    order: tuple[int, ...]
    near: dict[int, tuple[int, ...]]
    beside: bool = True
    turn: int = -1

    def __call__(self, view: View) -> Plan:
        self.turn += 1
        chosen = self.order[min(self.turn, len(self.order) - 1)]
        lane = Lane(
            "app",
            (0,),
            Fixed(chosen),
            order=Order.FIRST_COME,
            release=Eager(4),
            late=Late.DROP_WHEN_DISPATCHED,
            missing=Missing.STAND_IN if self.beside else Missing.LOAD,
        )
        prefetch = (self.near.get(chosen, ()),) if self.beside else None
        return by_application((lane,), placement=((chosen,),), prefetch=prefetch)


def run(planner: Turning, **more: object) -> Result:
    return simulate(
        deployed(),
        planner,
        Load(Uniform(), 100.0),
        seconds=4.0,
        replan_s=1.0,
        sample_s=0.5,
        record=True,
        **more,  # type: ignore[arg-type]
    )


def variants_between(result: Result, first_s: float, last_s: float) -> set[int]:
    assert result.queries is not None
    starts = result.queries["start_ns"] / NS_PER_S
    return set(result.queries["variant"][(starts >= first_s) & (starts < last_s)].tolist())


def test_the_variant_before_answers_while_the_next_is_loaded() -> None:
    result = run(Turning((0, 2), {}))
    assert result.summary.on_time_rate == 1.0
    assert variants_between(result, 0.0, 1.0) == {0}
    assert variants_between(result, 1.0, 1.0 + LOAD_MS / 1e3) == {0}
    assert variants_between(result, 1.001 + LOAD_MS / 1e3, 4.0) == {2}


def test_a_prefetched_variant_answers_at_once_and_switches_are_counted() -> None:
    result = run(Turning((0, 1, 2, 1), {0: (1,), 1: (2,), 2: (1,)}))
    assert result.summary.on_time_rate == 1.0
    assert variants_between(result, 1.0, 2.0) == {1}
    assert variants_between(result, 2.0, 3.0) == {2}, "it came during the second before"
    last = result.samples[-1]
    assert (last.switch_hits, last.switch_misses) == (3, 0)
    assert run(Turning((0, 3, 0, 3), {})).samples[-1].switch_misses >= 1


def test_a_placement_that_takes_the_worker_loses_what_comes_meanwhile() -> None:
    result = run(Turning((0, 2), {}, beside=False))
    assert result.summary.on_time_rate < 0.95
    assert result.summary.submitted == sum(result.summary.outcomes.values())


def test_a_worker_that_is_lost_while_it_loads_begins_anew() -> None:
    faults = (Fault(1.1, 0, FaultKind.LEFT), Fault(1.2, 0, FaultKind.JOINED))
    result = run(Turning((0, 2), {}), faults=faults)
    assert sum(result.summary.outcomes.values()) == result.summary.submitted
    assert variants_between(result, 1.2, 1.2 + LOAD_MS / 1e3) <= {-1, 0, 1}
    assert variants_between(result, 1.201 + LOAD_MS / 1e3, 4.0) == {2}


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (run(Turning((0, 2, 1, 3), {2: (3,)})) for _ in range(2))
    assert first.queries is not None and second.queries is not None
    assert np.array_equal(first.queries, second.queries)
