"""Late: what becomes of a query that can no longer make it. Each rule ends the same three queries another way."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.core.outcome import Outcome
from stretto.core.plan import Eager, Fixed, Late, MostAccurate, Order
from stretto.core.worker import Worker
from stretto.dispatch.decisions import Drop
from tests.dispatch.driver import Driver
from tests.dispatch.small import PROFILE, deployed, driver, lane, on_kinds, straight, variant

ON_TIME, LATE = Outcome.ON_TIME, Outcome.LATE
INFEASIBLE, EXPIRED = Outcome.DROPPED_INFEASIBLE, Outcome.DROPPED_EXPIRED


def ended(late: Late) -> list[Outcome | None]:
    """The worker is busy until 12 and then late by 18; queries with deadlines 20, 24 and 60 come at 0 behind it."""
    made = driver(lane(late=late))
    made.query(100)
    tickets = [made.submit(0, deadline) for deadline in (20, 24, 60)]
    for moment in (5, 10, 15, 20):
        made.at(moment).advance()
    made.at(30).finish(0)
    if made.crew[0].jobs:
        made.at(made.crew[0].jobs[0].expected_ns).finish(0)
    return [made.outcome(ticket) for ticket in tickets]


EXPECTED: dict[Late, list[Outcome | None]] = {
    Late.KEEP: [LATE, LATE, ON_TIME],
    Late.DROP_WHEN_DISPATCHED: [EXPIRED, EXPIRED, ON_TIME],  # noticed when the worker looks, at 30
    Late.DROP_WHEN_INFEASIBLE: [INFEASIBLE, INFEASIBLE, ON_TIME],  # at 9 and 13, by timer
    Late.REFUSE: [INFEASIBLE, LATE, ON_TIME],  # 12 + 12 is past 20, but not past 24; then it is kept
}


@pytest.mark.parametrize("late", Late)
def test_each_rule_has_its_own_ends(late: Late) -> None:
    assert ended(late) == EXPECTED[late]


def test_a_deadline_that_is_just_met_is_met() -> None:
    for late in Late:
        made = driver(lane(late=late))
        ticket = made.query(12)
        made.at(12).finish(0)
        assert made.outcome(ticket) is ON_TIME, late


def test_infeasible_at_the_door() -> None:
    for late, outcome in (
        (Late.KEEP, LATE),
        (Late.DROP_WHEN_DISPATCHED, INFEASIBLE),
        (Late.DROP_WHEN_INFEASIBLE, INFEASIBLE),
        (Late.REFUSE, INFEASIBLE),
    ):
        made = driver(lane(late=late))
        ticket = made.query(11)
        if made.crew[0].jobs:
            made.at(12).finish(0)
        assert made.outcome(ticket) is outcome, late


def test_the_reason_says_whether_the_deadline_had_passed() -> None:
    for slack, reason in ((-1, EXPIRED), (0, INFEASIBLE), (11, INFEASIBLE)):
        made = driver(lane(late=Late.DROP_WHEN_INFEASIBLE))
        assert made.outcome(made.query(slack)) is reason, slack


def test_the_infeasible_timer_sees_a_query_anywhere_in_the_lane() -> None:
    """First come does not put the pressing query in front, but its timer rings all the same."""
    made = driver(lane(order=Order.FIRST_COME, late=Late.DROP_WHEN_INFEASIBLE))
    for slack in (100, 500, 40, 500):
        made.query(slack)
    assert made.wake() == 40 - PROFILE.latency_ns(1) + 1
    made.taken()
    made.at(29).advance()
    assert [decision.reason for decision in made.taken() if isinstance(decision, Drop)] == [INFEASIBLE]
    assert made.lengths() == [2]


def test_refusal_counts_what_waits_before() -> None:
    """One worker busy until 12, batches of 2 (14 ns): the third in line starts at 26 and ends at 38."""
    made = driver(lane(late=Late.REFUSE, release=Eager(2)))
    made.query(500)
    made.query(500)
    made.query(500)
    assert made.outcome(made.query(37)) is INFEASIBLE
    assert made.outcome(made.query(38)) is None
    assert made.lengths() == [3]


def test_refusal_spreads_what_waits_before_over_the_workers() -> None:
    made = driver(lane(crew=(0, 1), late=Late.REFUSE, release=Eager(2)))
    for _ in range(4):
        made.query(500)
    assert made.outcome(made.query(30)) is INFEASIBLE  # 12, half a batch of 14 before it, and 12
    assert made.outcome(made.query(31)) is None


def test_refusal_with_no_worker_left() -> None:
    made = driver(lane(late=Late.REFUSE))
    made.leave(0)
    assert made.outcome(made.query(10_000)) is INFEASIBLE


def two_kinds(**rules: Any) -> Driver:
    """Worker 0 is slow (40 ns), worker 1 is quick (10 ns); both are idle."""
    both = on_kinds("v", straight(0, 40, kind="slow"), straight(0, 10, kind="quick"))
    crew = (Worker("s", "slow"), Worker("q", "quick"))
    return driver(lane(crew=(0, 1), release=Eager(1), **rules), on=deployed(both, crew=crew))


@pytest.mark.parametrize("late", [Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE])
def test_a_query_goes_to_the_idle_worker_that_can_still_make_it(late: Late) -> None:
    """Regression: the slow worker had been idle as long, was asked first, and the query was given up."""
    made = two_kinds(late=late)
    made.query(20)
    assert made.batches() == [(1, 0, [0])]


@pytest.mark.parametrize("late", [Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE])
def test_a_query_waits_for_the_worker_that_can_still_make_it(late: Late) -> None:
    made = two_kinds(late=late)
    made.query(10)
    waits = made.query(25)  # too tight for the slow worker, but the quick one is free in ten
    assert made.batches() == [(1, 0, [0])]
    made.at(10).finish(1)
    assert made.batches() == [(1, 0, [1])]
    made.at(20).finish(1)
    assert made.outcome(waits) is ON_TIME


def test_a_head_that_no_worker_can_answer_does_not_hold_up_the_rest() -> None:
    """Regression: with two kinds of worker the head blocked the lane until its own timer rang."""
    made = two_kinds(late=Late.DROP_WHEN_INFEASIBLE)
    made.query(10)
    lost = made.query(19)  # the quick one would end it at 20
    kept = made.query(60)
    assert made.outcome(lost) is INFEASIBLE
    assert made.batches() == [(1, 0, [0]), (0, 0, [2])]
    assert made.outcome(kept) is None


def test_infeasible_means_on_the_fastest_variant() -> None:
    models = (variant("fast", straight(2, 10)), variant("slow", straight(20, 40)))
    made = driver(lane(select=MostAccurate((1, 0)), late=Late.DROP_WHEN_INFEASIBLE), on=deployed(*models))
    assert made.outcome(made.query(11)) is INFEASIBLE
    made.query(12)
    assert made.batches() == [(0, 0, [1])]
    alone = driver(lane(select=Fixed(1), late=Late.DROP_WHEN_INFEASIBLE), on=deployed(*models))
    assert alone.outcome(alone.query(59)) is INFEASIBLE
