"""A crowd: choices lean on what the workers still run, and heads are given up for larger batches behind them.

l(b) = 2·b + 10.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stretto.core.check import check_plan
from stretto.core.errors import PlanError
from stretto.core.outcome import Outcome
from stretto.core.plan import Crowd, Eager, Late, Order, Table, Tables
from tests.dispatch.driver import Driver
from tests.dispatch.small import deployed, driver, lane, planned

PER_NS = 1e9  # of a rate: queries/ns
# One worker, free when it looks, so that all of the crowd waits. At `crowded` a head costs as much as a place brings.
CROWD = Crowd(rate=PER_NS, usual=0.0, lean=0.0, crowded=4.0, width=1.0, heads=2)
AT_ONCE = np.zeros((2, 1), np.int32)  # the one variant, all that fit
RULES = {"late": Late.DROP_WHEN_DISPATCHED, "order": Order.EARLIEST_DEADLINE}


def leaning(crowd: Crowd, table: Table | None = None) -> Tables:
    return Tables((table or Table(100, AT_ONCE, AT_ONCE),), crowd)


def behind_a_busy_worker(
    slacks: tuple[int, ...], crowd: Crowd, release: Eager | None = None
) -> tuple[Driver, list[int]]:
    """The worker is free at 12; queries with these slacks at that moment are waiting."""
    made = driver(lane(**RULES, select=leaning(crowd), release=release or Eager()))
    made.query(1000)
    tickets = [made.submit(0, 12 + slack) for slack in slacks]
    made.taken()
    made.at(12).finish(0)
    return made, tickets


@pytest.mark.parametrize(
    ("slacks", "change", "given_up"),
    [
        ((13, 17, 17, 90), {}, 1),  # three fit without the head, one with it
        ((13, 15, 90, 90), {"crowded": 2.0}, 1),  # two fit without the head: cheap heads are given up for one more each
        ((13, 15, 90, 90), {"crowded": 5.0}, 0),  # and dear ones are not
        ((13, 17, 17, 90), {"crowded": 9.0}, 0),
        ((13, 13, 13, 90, 90, 90, 90), {}, 0),  # three would have to go, which are more than may
        ((13, 13, 13, 90, 90, 90, 90), {"heads": 3}, 3),
        ((90, 90, 90, 90), {"crowded": 0.0}, 0),  # all fit
    ],
)
def test_heads_are_given_up_for_what_the_larger_batch_is_worth(
    slacks: tuple[int, ...], change: dict[str, float], given_up: int
) -> None:
    made, tickets = behind_a_busy_worker(slacks, replace(CROWD, **change))
    dropped = [made.outcome(ticket) is Outcome.DROPPED_OVERLOAD for ticket in tickets]
    assert dropped == [place < given_up for place in range(len(slacks))]
    assert made.batches()[0][2][0] == 1 + given_up


def test_what_a_batch_may_hold_bounds_what_heads_are_given_up_for() -> None:
    made, tickets = behind_a_busy_worker((13, 17, 17, 90), replace(CROWD, crowded=0.0), Eager(1))
    assert made.outcome(tickets[0]) is None and made.batches() == [(0, 0, [1])]


@pytest.mark.parametrize(("usual", "given_up"), [(0.0, True), (2.0, False)])
def test_what_other_workers_run_is_part_of_the_crowd(usual: float, given_up: bool) -> None:
    """The other one is free 4 ns later: 2 queries at a rate of 1 for both. Heads are dear where that is usual."""
    made = driver(lane(crew=(0, 1), **RULES, select=leaning(replace(CROWD, crowded=5.5, usual=usual))))
    made.query(1000)
    made.at(4).query(1000)
    head, *_ = (made.submit(0, 12 + slack) for slack in (13, 17, 17, 90))
    made.taken()
    made.at(12).finish(0)
    assert (made.outcome(head) is Outcome.DROPPED_OVERLOAD) == given_up


@pytest.mark.parametrize(("lean", "started"), [(0.0, True), (0.5, False)])
def test_a_table_is_read_as_if_fewer_waited_behind_workers_with_much_before_them(lean: float, started: bool) -> None:
    variant = np.zeros((4, 2), np.int32)
    variant[:2, 1] = -1  # two are waited for, where there is time
    table = Table(100, variant, np.zeros_like(variant))
    made = driver(lane(crew=(0, 1), select=leaning(replace(CROWD, lean=lean), table), **RULES))
    for _ in range(2):
        made.submit(0, 1000)
    assert made.batches() == [(0, 0, [0, 1])]  # nothing runs yet
    for _ in range(2):
        made.submit(0, 1000)
    assert bool(made.batches()) == started  # 14 ns of the other worker are 7 queries
    made.at(14).finish(0)
    assert bool(made.batches()) != started, "when nothing runs any more, those that waited start"


ONE_AT_A_TIME = Table(100, AT_ONCE, np.ones_like(AT_ONCE))
CHANGES: tuple[dict[str, Any], ...] = (
    {"late": Late.KEEP},
    {"order": Order.FIRST_COME},
    {"select": leaning(replace(CROWD, width=0.0))},
    {"select": leaning(CROWD, ONE_AT_A_TIME)},  # its cells state a batch, which more than heads stand in the way of
)


def test_it_needs_the_earliest_deadline_first_and_a_dropping_rule() -> None:
    deployment = deployed()
    check_plan(planned(lane(**RULES, select=leaning(CROWD))), deployment)
    for change in CHANGES:
        with pytest.raises(PlanError, match="crowd"):
            check_plan(planned(lane(**{**RULES, "select": leaning(CROWD), **change})), deployment)
