"""A plan that differs in tables, floors and doors alone is followed without laying its lanes out anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stretto.core.errors import PlanError
from stretto.core.plan import Crowd, Eager, Fixed, Late, Order, Plan, Table, Tables
from stretto.dispatch.adoption import differs_in_tables_alone
from stretto.dispatch.decisions import Decision, Run
from stretto.dispatch.dispatcher import Dispatcher
from tests.dispatch.models import FAST, MODELS, SLOW, cells
from tests.dispatch.small import deployed, lane, planned

CREW = (0, 1)
DEPLOYMENT = deployed(*MODELS, crew=len(CREW))


def drawn_plan(random: np.random.Generator) -> Plan:
    """Cells that wait, give up or run anything; sometimes with a crowd, floors and a narrow door."""
    variant = random.integers(-1, 3, (6, 5)).astype(np.int32)
    variant[:, 0] = FAST
    select: Table | Tables = Table(20, variant, random.integers(-1, 4, variant.shape).astype(np.int32))
    if random.random() < 0.5:
        crowd = Crowd(5e7, random.uniform(0, 4), random.uniform(0, 2), random.uniform(0, 4), random.uniform(0.5, 3), 3)
        select = Tables((Table(20, variant, np.zeros_like(variant)),), crowd if random.random() < 0.7 else None)
    floors = (0.0, 1e7, 4e7) if random.random() < 0.5 else ()
    door = int(random.integers(2, 12))
    chosen = lane(crew=CREW, select=select, capacity=door, release=Eager(8, floor_rates=floors))
    return planned(replace(chosen, late=Late.DROP_WHEN_INFEASIBLE))


@pytest.mark.parametrize("seed", range(8))
def test_following_other_tables_decides_as_adopting_them(seed: int) -> None:
    random = np.random.default_rng(seed)
    first = drawn_plan(random)
    adopting, following = (Dispatcher(DEPLOYMENT, first, correction=0.1) for _ in range(2))
    ends: dict[int, int] = {}
    now_ns = runs = changes = 0
    for number in range(400):
        now_ns += int(random.integers(0, 12))
        what = random.random()
        for each in (adopting, following):
            each.advance(now_ns)  # what is due before a plan comes is not its matter
        over = [worker for worker, end_ns in ends.items() if end_ns <= now_ns]
        if over:
            del ends[over[0]]
            for each in (adopting, following):
                each.finished(now_ns, over[0])
        elif what < 0.15:
            plan = drawn_plan(random)
            assert differs_in_tables_alone(following.plan, plan)
            adopting.adopt(now_ns, plan)
            following.follow(now_ns, plan)
            assert following.plan is plan
            changes += 1
        else:
            deadline_ns = now_ns + int(random.integers(10, 120))
            for each in (adopting, following):
                each.submit(now_ns, 0, deadline_ns, number)
        decided: list[Decision] = list(following.decisions())
        assert decided == list(adopting.decisions())
        assert following.wake_at_ns() == adopting.wake_at_ns()
        for decision in decided:
            if isinstance(decision, Run):
                ends[decision.worker] = decision.expected_ns
                runs += 1
    assert runs > 50 and changes > 20
    np.testing.assert_array_equal(following.counts()[1], adopting.counts()[1])


def test_whatever_else_differs_is_adopted_as_a_whole() -> None:
    before = planned(lane(crew=CREW, select=cells([[FAST]]), late=Late.DROP_WHEN_INFEASIBLE))
    other = replace(before.lanes[0], select=cells([[SLOW]]))
    assert differs_in_tables_alone(before, replace(before, lanes=(other,)))
    for change in (
        {"select": Fixed(SLOW)},
        {"workers": (0,)},
        {"order": Order.FIRST_COME},
        {"release": Eager(3)},
        {"name": "another"},
        {"late": Late.KEEP},
    ):
        assert not differs_in_tables_alone(before, replace(before, lanes=(replace(other, **change),))), change
    assert not differs_in_tables_alone(before, replace(before, lanes=(other,), rate_window_ns=5000))
    assert not differs_in_tables_alone(before, replace(before, lanes=(other, replace(other, name="second"))))


def test_a_table_that_cannot_be_followed_is_refused_and_changes_nothing() -> None:
    before = planned(lane(crew=CREW, select=cells([[FAST]]), late=Late.DROP_WHEN_INFEASIBLE))
    dispatcher = Dispatcher(DEPLOYMENT, before)
    with pytest.raises(PlanError, match="names variant 7"):
        dispatcher.follow(1, replace(before, lanes=(replace(before.lanes[0], select=cells([[7]])),)))
    table = cells([[FAST]])
    with pytest.raises(PlanError, match="a width above 0"):
        crowded = replace(before.lanes[0], select=Tables((table,), Crowd(1.0, 0.0, 1.0, 1.0, 0.0, 1)))
        dispatcher.follow(1, replace(before, lanes=(crowded,)))
    assert dispatcher.plan is before
    dispatcher.submit(2, 0, 100)
    assert [decision.variant for decision in dispatcher.decisions() if isinstance(decision, Run)] == [FAST]
