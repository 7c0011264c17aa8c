"""Batch-aware pruning: heads are given up where they stand in the way of a batch that is worth the worker's time.

l(b) = 2·b + 10. floor_rates[b-1] is the rate from which a batch below b is not worth it.
"""

from __future__ import annotations

from typing import Any

import pytest

from stretto.core.outcome import Outcome
from stretto.core.plan import Eager, Late, Order, Table
from tests.dispatch.driver import Driver
from tests.dispatch.models import FAST, MODELS, SLOW, cells
from tests.dispatch.small import deployed, driver, lane

GIVEN_UP = Outcome.DROPPED_OVERLOAD


def behind_a_busy_worker(slacks: tuple[int, ...], floors: tuple[float, ...], **rules: Any) -> tuple[Driver, list[int]]:
    """The worker is free at 12; queries with these slacks at that moment are waiting."""
    made = driver(lane(**({"late": Late.DROP_WHEN_DISPATCHED, "floor_rates": floors} | rules)))
    made.query(1000)
    tickets = [made.submit(0, 12 + slack) for slack in slacks]
    made.taken()
    made.at(12).finish(0)
    return made, tickets


ALWAYS = (0.0,) * 3  # a batch of three at any rate


@pytest.mark.parametrize(
    ("floors", "started", "given_up"),
    [
        ((), [0], []),
        ((0.0,), [0], []),
        ((0.0, 0.0), [1, 2, 3], [0]),  # two are asked for; without the head, three fit
        (ALWAYS, [1, 2, 3], [0]),
        ((0.0, 1e30), [0], []),  # a rate that is not reached asks for nothing
        ((0.0,) * 8, [1, 2, 3], [0]),  # never more than are there
    ],
)
def test_heads_are_given_up_for_a_batch_of_the_floor(
    floors: tuple[float, ...], started: list[int], given_up: list[int]
) -> None:
    made, tickets = behind_a_busy_worker((13, 17, 17, 90), floors)
    assert [number - 1 for _, _, numbers in made.batches() for number in numbers] == started
    assert [place for place, ticket in enumerate(tickets) if made.outcome(ticket) is GIVEN_UP] == given_up


@pytest.mark.parametrize(
    ("slacks", "started", "given_up"),
    [
        ((13, 14), [0], []),  # the second would go alone, too
        ((13, 15, 15), [1, 2], [0]),  # three are asked for, and two can be had without the first
        ((13, 15, 90, 90), [1, 2], [0]),  # neither four nor three can be had, so the second may stay
        ((14, 14, 15, 15), [0, 1], []),  # two with the first, and two without the first two
    ],
)
def test_heads_are_given_up_only_for_a_larger_batch(
    slacks: tuple[int, ...], started: list[int], given_up: list[int]
) -> None:
    """Regression: all heads went that stood before a batch of the floor, though no batch of the floor was to be had."""
    made, tickets = behind_a_busy_worker(slacks, (0.0,) * 8)
    assert [number - 1 for _, _, numbers in made.batches() for number in numbers] == started
    assert [place for place, ticket in enumerate(tickets) if made.outcome(ticket) is GIVEN_UP] == given_up


def test_nobody_is_given_up_where_all_that_wait_fit() -> None:
    made, _ = behind_a_busy_worker((14, 90), (0.0,) * 8)
    assert made.batches() == [(0, 0, [1, 2])]


def test_the_floor_never_asks_for_more_than_a_batch_may_hold() -> None:
    made, tickets = behind_a_busy_worker((13, 90, 90, 90), (0.0,) * 8, release=Eager(1))
    assert made.batches() == [(0, 0, [1])]
    assert made.outcome(tickets[0]) is None


@pytest.mark.parametrize(("gap", "started"), [(20, "tight"), (5, "loose")])
def test_the_floor_follows_the_rate_of_the_lane(gap: int, started: str) -> None:
    """One query each 20 ns is 0.5e8 a second, one each 5 ns is 2e8: from 1.5e8 on, a batch of two is wanted."""
    made = driver(lane(late=Late.DROP_WHEN_DISPATCHED, floor_rates=(0.0, 1.5e8)))
    for number in range(20):
        made.at(number * gap)
        made.cancel(made.submit()) if number else made.submit()
    made.taken()
    tight = made.submit(0, made.now_ns + 14)  # time for two now, and for one when the worker is free
    loose = made.submit(0, made.now_ns + 900)
    other = made.submit(0, made.now_ns + 900)
    made.at(made.now_ns + 1).finish(0)
    (batch,) = made.batches()
    assert batch[2] == [made.book[ticket].number for ticket in ((tight,) if started == "tight" else (loose, other))]


@pytest.mark.parametrize("order", [Order.FIRST_COME, Order.PRIORITY])
def test_whoever_stands_in_the_way_is_given_up_not_whoever_is_first(order: Order) -> None:
    """Regression: without an order by deadline, heads with time to spare were dropped for a tight one behind them."""
    made, tickets = behind_a_busy_worker((90, 90, 15, 90), (0.0,) * 4, order=order)
    assert made.batches() == [(0, 0, [1, 2, 4])]
    assert [made.outcome(ticket) is GIVEN_UP for ticket in tickets] == [False, False, True, False]


def test_a_head_that_never_had_time_for_such_a_batch_is_served() -> None:
    """It asks for a quick answer, and did not grow old here."""
    made = driver(lane(late=Late.DROP_WHEN_DISPATCHED, floor_rates=ALWAYS))
    made.query(1000)
    made.at(11)
    quick, others = made.submit(0, 11 + 13), [made.submit(0, 500) for _ in range(3)]
    made.taken()
    made.at(12).finish(0)
    assert made.batches() == [(0, 0, [1])]
    assert [made.outcome(ticket) for ticket in (quick, *others)] == [None] * 4


def test_nobody_is_given_up_for_a_batch_that_the_busy_worker_could_not_begin_in_time() -> None:
    """It is told at 10, and free at 12: two would end at 26, when the head's deadline is past, and the second alone
    would be answered as well as the head.
    """
    made = driver(lane(late=Late.DROP_WHEN_DISPATCHED, floor_rates=(0.0,) * 8, ahead_ns=2))
    made.query(1000)
    head, _ = made.submit(0, 25), made.submit(0, 26)
    made.taken()
    made.at(10).advance()
    assert made.batches() == [(0, 0, [1])]
    assert made.outcome(head) is None


def in_two_variants(batch: int) -> Table:
    """Runs FAST below a slack of 60 and SLOW from there on, in batches of at most `batch` (0: all that fit)."""
    return cells([[FAST, FAST, FAST, SLOW]] * 3, batch)


@pytest.mark.parametrize(
    ("slack", "batch", "given_up", "started"),
    [
        (13, 0, [0], (FAST, [1, 2])),  # an old head, and time for one alone: two are worth more
        (14, 0, [], (FAST, [0, 1])),
        (70, 1, [], (SLOW, [0])),  # the table's own choice, which nobody forces on it
    ],
)
def test_a_table_gives_up_heads_that_force_a_small_batch_and_no_others(
    slack: int, batch: int, given_up: list[int], started: tuple[int, list[int]]
) -> None:
    rules = {"late": Late.DROP_WHEN_DISPATCHED, "floor_rates": (0.0, 0.0)}
    made = driver(lane(select=in_two_variants(batch), **rules), on=deployed(*MODELS))
    made.query(1000)
    first = made.batches()
    assert len(first) == 1
    tickets = [made.submit(0, 60 + slack + place) for place in range(3)]
    made.taken()
    made.at(60).finish(0)
    assert [place for place, ticket in enumerate(tickets) if made.outcome(ticket) is GIVEN_UP] == given_up
    (run,) = [batch for batch in made.batches() if batch not in first]
    assert (run[1], [number - 1 for number in run[2]]) == started


def test_a_lone_query_is_served_whatever_the_floor() -> None:
    made = driver(lane(late=Late.DROP_WHEN_INFEASIBLE, floor_rates=(0.0,) * 8))
    made.query(12)
    assert made.batches() == [(0, 0, [0])]
