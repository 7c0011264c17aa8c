"""Timers that ring late, by no more than the lane's `timer_ns`: what a timer is to start is still in time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.outcome import Outcome
from stretto.core.plan import Accumulate, Deferred, Eager, Lane, Late, Order, Table
from tests.dispatch.driver import Driver
from tests.dispatch.models import MODELS, cells
from tests.dispatch.small import FAR, GATHER, PROFILE, deployed, driver, lane, planned

TIMER_NS = 9
DROPPING = (Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE)


def waiting_table(step_ns: int, columns: int) -> Table:
    """Waits while the slack has `columns` steps or more; then everything goes."""
    variant = np.tile(np.where(np.arange(columns + 1) < columns, 0, -1), (2, 1)).astype(np.int32)
    return Table(step_ns, variant, np.zeros_like(variant))


@st.composite
def timed_lanes(draw: st.DrawFn, workers: int) -> Lane:
    """A lane whose batches a timer starts, by one rule or another, and which drops what cannot make it."""
    control_ns, data_ns = draw(st.integers(0, 4)), draw(st.integers(0, 2))
    rules: dict[str, Any] = {"control_ns": control_ns, "data_ns": data_ns, "late": draw(st.sampled_from(DROPPING))}
    rule = draw(st.sampled_from(["deferred", "accumulate", "table"]))
    if rule == "deferred":
        rules["release"] = Deferred(when_gathered=False)
        rules["late"] = draw(st.sampled_from([*DROPPING, Late.KEEP]))
        rules["order"] = draw(st.sampled_from([Order.EARLIEST_DEADLINE, Order.FIRST_COME]))
    elif rule == "accumulate":
        rules["release"] = Accumulate(draw(st.integers(2, 8)), draw(st.integers(0, 60)))
    else:
        step_ns = draw(st.integers(2, 20))
        alone_ns = PROFILE.latency_ns(1) + control_ns + data_ns  # a table that waits longer loses by itself
        rules["select"] = waiting_table(step_ns, -(-(alone_ns + 1) // step_ns) + draw(st.integers(0, 2)))
        rules["release"] = Eager()
    return lane(crew=tuple(range(workers)), **rules)


def on_time(made: Driver, arrivals: list[tuple[int, int]], lateness: list[int]) -> set[int]:
    """The queries answered in time where batches end as expected and timers ring so late, in turn."""
    left = list(arrivals)
    rings: dict[int, int] = {}
    tickets: list[int] = []
    for _ in range(1000):
        ends = [(crew.jobs[0].expected_ns, number) for number, crew in enumerate(made.crew) if crew.jobs]
        wake = made.wake()
        if wake is not None and wake not in rings:
            rings[wake] = wake + lateness[len(rings) % len(lateness)]
        moments = [min(ends)[0] if ends else FAR, left[0][0] if left else FAR, FAR if wake is None else rings[wake]]
        if min(moments) == FAR:
            break
        made.at(max(made.now_ns, min(moments)))
        if moments[0] == min(moments):
            made.finish(min(ends)[1])
        elif moments[1] == min(moments):
            tickets.append(made.query(left.pop(0)[1]))
        else:
            made.advance()
    return {number for number, ticket in enumerate(tickets) if made.outcome(ticket) is Outcome.ON_TIME}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_late_timers_lose_no_query_that_exact_ones_would_have_answered(data: st.DataObject) -> None:
    pauses = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=6))
    arrivals = [(sum(pauses[: place + 1]), data.draw(st.integers(5, 90))) for place in range(len(pauses))]
    exact = data.draw(timed_lanes(len(arrivals)))
    allowing = replace(exact, delays=replace(exact.delays, timer_ns=TIMER_NS))
    lateness = data.draw(st.lists(st.integers(0, TIMER_NS), min_size=1, max_size=5))
    answered = on_time(driver(exact), arrivals, [0])
    assert answered <= on_time(driver(allowing), arrivals, lateness)


def test_a_deferred_batch_is_told_so_much_earlier() -> None:
    made = driver(lane(release=Deferred(when_gathered=False), late=Late.DROP_WHEN_INFEASIBLE, timer_ns=TIMER_NS))
    ticket = made.query(100)
    assert made.wake() == 100 - PROFILE.latency_ns(2) - TIMER_NS
    made.at(100 - PROFILE.latency_ns(2)).advance()
    made.drain()
    assert made.outcome(ticket) is Outcome.ON_TIME


def test_a_cell_that_waits_ends_so_much_earlier() -> None:
    """Columns of 20 ns: it waits from 20 ns of slack on, and at 19 ns there are 7 left beside the 12 of a batch."""
    made = driver(lane(select=cells([[0, -1], [0, -1]]), late=Late.DROP_WHEN_INFEASIBLE, timer_ns=TIMER_NS))
    ticket = made.query(60)
    assert made.wake() == 60 - 20 + 1 - TIMER_NS
    made.at(60 - 20 + 1).advance()
    assert made.batches() == [(0, 0, [0])]
    made.drain()
    assert made.outcome(ticket) is Outcome.ON_TIME


def test_a_cell_that_does_not_wait_goes_by_the_slack_there_is() -> None:
    """The allowance is for timers alone: what starts now is chosen by the slack of now."""
    on = deployed(*MODELS)
    made = driver(lane(select=cells([[0, 0, 1], [0, 0, 1]]), timer_ns=TIMER_NS), on=on)
    made.query(41)  # 41 - 9 would be in the column of the fast one
    assert made.batches() == [(0, 1, [0])]


def test_a_column_that_a_late_timer_would_step_over_is_not_missed() -> None:
    """Steps of 2 ns, of which only that from 14 to 15 ns of slack starts the batch before it is hopeless."""
    row = [0, -1, -1, -1, -1, -1, -1, 0, -1, -1, -1]
    made = driver(lane(select=cells([row, row], step=2), late=Late.DROP_WHEN_INFEASIBLE, timer_ns=TIMER_NS))
    ticket = made.query(60)
    while made.book[ticket].outcome is None and not made.crew[0].jobs:
        wake = made.wake()
        assert wake is not None
        made.at(wake + TIMER_NS).advance()
    made.drain()
    assert made.outcome(ticket) is Outcome.ON_TIME


@pytest.mark.parametrize(("slack", "wake"), [(500, 30), (50, 50 - 12 - TIMER_NS), (40, 40 - 12 - TIMER_NS)])
def test_a_timeout_ends_before_a_late_timer_could_lose_the_batch(slack: int, wake: int) -> None:
    made = driver(lane(release=Accumulate(4, 30), late=Late.DROP_WHEN_INFEASIBLE, timer_ns=TIMER_NS))
    made.query(slack)
    assert made.wake() == wake


def test_a_timeout_does_not_hurry_for_a_head_that_is_late_anyway() -> None:
    made = driver(lane(release=Accumulate(4, 30), timer_ns=TIMER_NS))
    made.query(5)
    assert made.wake() == 30


def test_a_busy_worker_is_not_given_its_next_batch_earlier_for_a_late_timer() -> None:
    """What is given ahead can neither grow nor be dropped; a worker that is free asks by itself."""
    made = driver(lane(release=Eager(1), control_ns=5, timer_ns=4))
    made.query(500)  # runs from 5 to 17
    made.query(500)
    made.taken()
    assert made.wake() == 17 - 5


def test_nothing_changes_where_timers_are_exact() -> None:
    table = lane("table", select=cells([[0, -1], [0, -1]]))
    gather = lane("gather", (1,), release=Accumulate(4, 30))
    made = driver(table, on=deployed(crew=2))
    made.query(60)
    assert made.wake() == 41
    made.adopt(planned(gather))
    assert made.wake() == 30
    made.adopt(planned(lane(release=GATHER)))
    assert made.wake() == FAR
