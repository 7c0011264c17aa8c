"""Order inside a lane, and the skip lists that keep it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from stretto.core.plan import Eager, Late, Order
from stretto.dispatch.decisions import Run
from stretto.dispatch.dispatcher import Dispatcher
from tests.dispatch.books import Entry, order_key
from tests.dispatch.driver import Driver
from tests.dispatch.small import FAR, deployed, driver, lane, planned

# (slack, priority) of queries 0 … 4, all of one lane and each with a deadline of its own.
QUERIES = ((500, 0), (300, 2), (400, 2), (300, 1), (900, 0))
EXPECTED = {
    Order.FIRST_COME: [0, 1, 2, 3, 4],
    Order.EARLIEST_DEADLINE: [1, 3, 2, 0, 4],
    Order.PRIORITY: [1, 2, 3, 0, 4],
}


def submitted(order: Order, **rules: Any) -> Driver:
    """A worker that is busy, and the queries waiting."""
    made = driver(lane(order=order, **rules))
    made.query(1000)
    made.taken()
    for slack, priority in QUERIES:
        made.query(slack, priority=priority)
    return made


@pytest.mark.parametrize("order", Order)
def test_each_order_takes_them_another_way(order: Order) -> None:
    made = submitted(order)
    made.at(12).finish(0)
    (batch,) = made.batches()
    assert [number - 1 for number in batch[2]] == EXPECTED[order]


@pytest.mark.parametrize("order", Order)
def test_a_small_batch_holds_the_first(order: Order) -> None:
    made = submitted(order, release=Eager(2))
    found: list[int] = []
    for end in (12, 30, 50):
        made.at(end).finish(0)
        for _, _, numbers in made.batches():
            found.extend(number - 1 for number in numbers)
    assert found == EXPECTED[order]


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("late", [Late.KEEP, Late.DROP_WHEN_INFEASIBLE])
def test_skip_lists_against_sorting(order: Order, late: Late) -> None:
    """Thousands of queries in random order, with withdrawals from anywhere: what is left comes out as `sorted` says."""
    chance = random.Random(11)
    dispatcher = Dispatcher(deployed(), planned(lane(order=order, late=late)))
    dispatcher.submit(0, 0, FAR)  # the worker is busy
    entries: dict[int, Entry] = {}
    for number in range(3000):
        if entries and chance.random() < 0.4:
            gone = chance.choice(list(entries))
            assert dispatcher.cancel(0, gone)
            del entries[gone]
        else:
            entry = Entry(number, 0, FAR + chance.randrange(200), chance.randrange(5))
            entries[dispatcher.submit(0, 0, entry.deadline_ns, priority=entry.priority)] = entry
    expected = sorted(entries, key=lambda ticket: order_key(order, entries[ticket]))
    dispatcher.decisions()
    found: list[int] = []
    for now in range(1, len(expected) + 1):
        dispatcher.finished(now, 0)
        for decision in dispatcher.decisions():
            assert isinstance(decision, Run)
            found.extend(decision.tickets)
    assert found == expected


def test_growth_past_the_first_slots_keeps_everything() -> None:
    dispatcher = driver(lane()).dispatcher
    first, *tickets = [dispatcher.submit(0, 0, FAR - number) for number in range(3000)]
    assert len({first, *tickets}) == 3000
    assert [query.ticket for query in dispatcher.waiting()] == tickets
    assert len(dispatcher.memory["queries"]) == 4096
    dispatcher.decisions()
    dispatcher.finished(12, 0)
    (run,) = dispatcher.decisions()
    assert isinstance(run, Run)
    assert list(run.tickets) == tickets[:-9:-1]  # the last eight have the earliest deadlines


def test_slots_are_used_again() -> None:
    """Memory is bounded by what is waiting and running, not by how many queries ever came."""
    dispatcher = driver(lane()).dispatcher
    seen = set()
    for now in range(5000):
        seen.add(dispatcher.submit(now, 0, FAR))
        dispatcher.finished(now, 0)
    assert len(seen) == 5000
    assert len(dispatcher.memory["queries"]) == 1024
