"""Release: when a batch may start. The same two queries start at another moment under each rule."""

from __future__ import annotations

import pytest

from stretto.core.plan import Accumulate, Deferred, Eager, Release
from stretto.dispatch.decisions import Run
from tests.dispatch.driver import Driver
from tests.dispatch.small import deployed, driver, lane, straight, variant


def starts(made: Driver, until: int) -> list[tuple[int, int]]:
    """(start, queries) of the batches that begin up to a moment, the driver called exactly when it is wanted."""
    found: list[tuple[int, int]] = []
    while True:
        found.extend((run.start_ns, len(run.tickets)) for run in made.taken() if isinstance(run, Run))
        wake = made.wake()
        if wake is None or wake > until:
            return found
        made.at(wake).advance()


EXPECTED: list[tuple[Release, list[tuple[int, int]]]] = [
    (Eager(), [(0, 1), (5, 1)]),
    (Accumulate(3, 30), [(30, 2)]),
    (Deferred(when_gathered=False), [(84, 2)]),  # 100 - l(3)
]


@pytest.mark.parametrize(("release", "expected"), EXPECTED)
def test_each_rule_has_its_own_moment(release: Release, expected: list[tuple[int, int]]) -> None:
    made = driver(lane(crew=(0, 1), release=release))
    made.query(100)
    made.at(5).query(100)
    assert starts(made, 1000) == expected


def test_eager_takes_all_that_wait_up_to_its_cap() -> None:
    made = driver(lane(release=Eager(3)))
    for _ in range(6):
        made.query(500)
    made.at(12).finish(0)
    assert made.batches() == [(0, 0, [0]), (0, 0, [1, 2, 3])]


def test_accumulate_starts_when_enough_are_gathered() -> None:
    made = driver(lane(crew=(0, 1), release=Accumulate(3, 1000, 5)))
    for moment in (0, 4, 9):
        made.at(moment).query(5000)
    assert starts(made, 0) == [(9, 3)]


def test_accumulate_starts_when_the_head_has_waited_long_enough() -> None:
    made = driver(lane(release=Accumulate(3, 40)))
    made.at(7).query(5000)
    made.at(20).query(5000)
    assert made.wake() == 47
    made.at(46).advance()
    assert made.taken() == []
    made.at(47).advance()
    assert made.batches() == [(0, 0, [0, 1])]


def test_accumulate_times_the_new_head_after_the_old_one_has_gone() -> None:
    made = driver(lane(release=Accumulate(3, 40)))
    first = made.query(5000)
    made.at(20).query(5001)
    made.at(30).cancel(first)
    assert made.wake() == 60


def test_accumulate_expects_no_more_than_a_batch_may_hold() -> None:
    """The profile ends at two queries, so two are enough although five were asked for."""
    made = driver(lane(release=Accumulate(5, 1000)), on=deployed(variant("v", straight(2, 10, max_batch=2))))
    made.query(5000)
    made.query(5000)
    assert made.batches() == [(0, 0, [0, 1])]


def test_accumulate_never_holds_more_than_its_cap() -> None:
    made = driver(lane(release=Accumulate(2, 10, 2)))
    for _ in range(5):
        made.query(5000)
    made.at(14).finish(0)
    assert [len(numbers) for _, _, numbers in made.batches()] == [2, 2]


def test_a_timeout_that_rings_while_every_worker_is_busy_is_remembered() -> None:
    made = driver(lane(release=Accumulate(2, 10, 2)))
    made.query(5000)
    made.query(5000)
    made.at(3).query(5000)
    made.at(13).advance()
    assert made.wake() is None  # it waits for the worker
    made.at(14).finish(0)
    assert made.batches() == [(0, 0, [0, 1]), (0, 0, [2])]
