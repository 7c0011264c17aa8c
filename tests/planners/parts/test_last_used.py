"""What planners remember is bounded, in number and in bytes, and what is used stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stretto.core.plan import Fixed, Lane, Table, Tables, by_application
from stretto.core.view import View
from stretto.planners.parts.last_used import LastUsed, bytes_of_plan
from stretto.planners.priced import MOST_PLANS, Priced
from tests.planners.parts.tasks import small_deployment


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50))), st.integers(1, 6), st.integers(1, 100))
def test_no_more_is_remembered_than_was_allowed(calls: list[tuple[int, int]], most: int, most_bytes: int) -> None:
    last_used = LastUsed[int, int](most, lambda value: value, most_bytes)
    order: dict[int, int] = {}
    for key, value in calls:
        assert last_used.get(key) == order.get(key)
        order.pop(key, None)
        order[key] = last_used.put(key, value)
        while len(order) > 1 and (len(order) > most or sum(order.values()) > most_bytes):
            del order[next(iter(order))]
        assert len(last_used) == len(order) and last_used.get(key) == value
    last_used.clear()
    assert len(last_used) == 0 and all(last_used.get(key) is None for key in order)


def test_what_is_used_stays_and_what_alone_is_too_large_is_there_until_the_next() -> None:
    last_used = LastUsed[str, int](2, lambda value: value, 10)
    last_used.put("a", 1)
    last_used.put("b", 1)
    assert last_used.get("a") == 1
    last_used.put("c", 1)
    assert last_used.get("b") is None and last_used.get("a") == 1
    last_used.put("large", 11)
    assert len(last_used) == 1 and last_used.get("large") == 11
    last_used.put("large", 2)
    last_used.put("d", 8)
    assert len(last_used) == 2


def test_the_bytes_of_a_plan_are_those_of_its_tables() -> None:
    table = Table(1_000_000, np.zeros((4, 3), np.int32), np.ones((4, 3), np.int32))
    one = 12 * (4 + 4 + 8)
    both = Tables((table, replace(table, kind="gpu")))
    assert table.cells.nbytes == 12 * 8
    sizes = [bytes_of_plan(by_application((Lane("a", (0,), select),))) for select in (table, both, Fixed(0))]
    assert sizes == [one, 2 * one, 0]


def test_a_load_that_is_never_twice_the_same_does_not_fill_the_memory_with_plans() -> None:
    place, planner = small_deployment(), Priced()
    for step in range(MOST_PLANS + 20):
        planner(View(place, expected_rates=(1.1**step,)))
    assert len(planner._plans) <= MOST_PLANS
    last = View(place, expected_rates=(1.1 ** (MOST_PLANS + 19),))
    assert planner(last) is planner(last)
