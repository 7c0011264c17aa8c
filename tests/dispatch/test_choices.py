"""Which worker takes a lane's batch, and which of its lanes a worker takes next."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.core.plan import Deferred, Eager, Fixed, LaneChoice, Late, Plan, Route, RouteRule, WorkerChoice
from tests.dispatch.driver import Driver
from tests.dispatch.small import deployed, driver, lane, straight, variant

# Worker 0 has been idle since 30, worker 1 since 20, worker 2 since 10; the lane prefers 1.
EXPECTED = {WorkerChoice.EARLIEST_FREE: 2, WorkerChoice.LOWEST_INDEX: 0, WorkerChoice.PREFERENCE: 1}


@pytest.mark.parametrize("choice", WorkerChoice)
def test_each_choice_of_worker_takes_another_one(choice: WorkerChoice) -> None:
    made = driver(lane(crew=(1, 2, 0), worker_choice=choice, release=Eager(1)))
    for _ in range(3):
        made.query(500)
    for moment, worker in ((10, 2), (20, 1), (30, 0)):
        made.at(moment).finish(worker)
    made.taken()
    made.at(40).query(500)
    assert [worker for worker, _, _ in made.batches()] == [EXPECTED[choice]]


def test_of_workers_idle_as_long_the_lowest_number_goes_first() -> None:
    made = driver(lane(crew=(2, 1, 0), release=Eager(1)))
    for _ in range(3):
        made.query(500)
    assert [worker for worker, _, _ in made.batches()] == [0, 1, 2]


def test_more_workers_than_a_word_has_bits() -> None:
    """The idle workers are bits of 64 to a word; a lane may be served by the last of them only."""
    crew = (150, 70, 131)
    made = driver(lane(crew=crew, worker_choice=WorkerChoice.LOWEST_INDEX, release=Eager(1)), on=deployed(crew=200))
    for _ in range(3):
        made.query(500)
    assert [worker for worker, _, _ in made.batches()] == [70, 131, 150]


def two_lanes(choice: LaneChoice, *, workers: int = 1, **rules: Any) -> Driver:
    """Lanes 0 and 1 on the same workers, reached by client number."""
    crew = tuple(range(workers))
    lanes = tuple(lane(f"lane-{number}", crew, release=Eager(1), **rules) for number in range(2))
    route = Route(RouteRule.BY_CLIENT, (0, 1), targets=(0, 1))
    return Driver(deployed(crew=workers), Plan(lanes, (route,), lane_choice=choice))


@pytest.mark.parametrize(
    ("choice", "lanes"), [(LaneChoice.EARLIEST_START, [1, 1, 0, 0]), (LaneChoice.ROUND_ROBIN, [1, 0, 1, 0])]
)
def test_each_choice_of_lane_takes_another_one(choice: LaneChoice, lanes: list[int]) -> None:
    made = two_lanes(choice)
    made.query(5000)  # lane 0 has had its turn
    for client, slack in ((0, 900), (0, 950), (1, 300), (1, 350)):
        made.query(slack, client=client)
    made.taken()
    found = []
    for turn in range(4):
        made.at(12 * (turn + 1)).finish(0)
        (batch,) = made.batches()
        found.append(0 if batch[2][0] in (1, 2) else 1)
    assert found == lanes


def test_earliest_start_counts_how_long_the_batch_takes() -> None:
    """The lane with the later deadline may have to start first: 60 − l is earlier than 50 − l′."""
    on = deployed(variant("quick", straight(0, 5)), variant("slow", straight(0, 30)))
    lanes = (lane("quick", select=Fixed(0), release=Eager(1)), lane("slow", select=Fixed(1), release=Eager(1)))
    made = Driver(on, Plan(lanes, (Route(RouteRule.BY_CLIENT, (0, 1), targets=(0, 1)),)))
    made.query(5000, client=0)
    made.submit(0, 50, client=0)
    made.submit(0, 60, client=1)
    made.taken()
    made.at(5).finish(0)
    assert made.batches() == [(0, 1, [2])]


def test_a_worker_passes_by_a_lane_that_has_nothing_for_it() -> None:
    """The most urgent lane gives up its head and is empty then; the next one is served at once."""
    made = two_lanes(LaneChoice.EARLIEST_START, late=Late.DROP_WHEN_DISPATCHED)
    made.query(5000)
    made.submit(0, 20, client=0)
    made.submit(0, 900, client=1)
    made.taken()
    made.at(12).finish(0)
    assert made.batches() == [(0, 0, [2])]


def test_lanes_that_are_due_at_one_moment_ring_in_their_order() -> None:
    """Regression: of equal timers any might ring first, so that the free worker went to any of the lanes."""
    lanes = tuple(lane(name, release=Deferred(when_gathered=False)) for name in "abc")
    made = Driver(deployed(), Plan(lanes, (Route(RouteRule.BY_CLIENT, (0, 1, 2), targets=(0, 1, 2)),)))
    for client in (2, 1, 0):
        made.query(100, client=client)
    made.at(86).advance()
    assert made.batches() == [(0, 0, [2])]
