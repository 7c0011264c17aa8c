"""Queries that demand certain variants, groups that come together, and withdrawals for another reason."""

from __future__ import annotations

import pytest

from stretto.core.check import check_plan
from stretto.core.errors import PlanError
from stretto.core.outcome import Outcome
from stretto.core.plan import Accumulate, Eager, Fixed, Late, MostAccurate, Plan, Route, RouteRule, Work, Worklist
from stretto.core.worker import Worker
from stretto.dispatch.dispatcher import Dispatcher
from tests.dispatch.driver import Driver
from tests.dispatch.models import FAST, MIDDLE, MODELS, SLOW
from tests.dispatch.small import FAR, GATHER, deployed, driver, lane, variant

ON = deployed(*MODELS)
COMMON, ONLY_SLOW, GOOD = (
    lane("common", select=Fixed(FAST), release=GATHER),
    lane("slow", select=Fixed(SLOW), release=GATHER),
    lane("good", select=MostAccurate((SLOW, MIDDLE)), release=GATHER),
)


def demanding(*lanes: object, rule: RouteRule = RouteRule.BY_APPLICATION, common: int = 1) -> Plan:
    """The first lanes by the rule, the others by demand."""
    numbers = tuple(range(common))
    return Plan(tuple(lanes), (Route(rule, numbers, demands=tuple(range(common, len(lanes)))),))  # type: ignore[arg-type]


def test_a_demand_goes_to_its_lane_and_to_no_other() -> None:
    made = Driver(ON, demanding(COMMON, ONLY_SLOW, GOOD))
    joined = [made.lane_number(made.submit(demand=demand)) for demand in (-1, 0, 1, 0, -1, 1)]
    assert joined == [0, 1, 2, 1, 0, 2]


@pytest.mark.parametrize("demand", [2, 7, -5, 2**40])
def test_a_demand_that_the_plan_does_not_know_goes_the_common_way(demand: int) -> None:
    made = Driver(ON, demanding(COMMON, ONLY_SLOW, GOOD))
    assert made.lane_number(made.submit(demand=demand)) == 0


@pytest.mark.parametrize("rule", [RouteRule.ROUND_ROBIN, RouteRule.SHORTEST, RouteRule.BY_CLIENT])
def test_a_demand_goes_before_every_rule_and_takes_no_turn(rule: RouteRule) -> None:
    pair = (COMMON, lane("second", select=Fixed(FAST), release=GATHER))
    targets = {"targets": (0, 1)} if rule is RouteRule.BY_CLIENT else {}
    made = Driver(ON, Plan((*pair, ONLY_SLOW), (Route(rule, (0, 1), demands=(2,), **targets),)))
    seen = [
        made.lane_number(made.submit(client=number % 2, demand=demand))
        for number, demand in enumerate((-1, 0, -1, 0, 0, -1))
    ]
    plain = [lane_number for lane_number in seen if lane_number != 2]
    assert [number for number, lane_number in enumerate(seen) if lane_number == 2] == [1, 3, 4]
    assert plain == ([0, 0, 1] if rule is RouteRule.BY_CLIENT else [0, 1, 0])


def test_a_demanding_query_runs_only_what_it_demands() -> None:
    lanes = [lane("common", select=Fixed(FAST)), lane("slow", select=Fixed(SLOW), late=Late.DROP_WHEN_INFEASIBLE)]
    made = Driver(ON, demanding(*lanes))
    made.query(1000, demand=0)
    assert made.batches() == [(0, SLOW, [0])]
    hurried = made.query(50, demand=0)  # slow takes 60 alone, fast would do
    assert made.outcome(hurried) is Outcome.DROPPED_INFEASIBLE
    made.finish(0)
    made.query(50)
    assert made.batches() == [(0, FAST, [2])]


def test_a_new_plan_moves_demands_by_their_number() -> None:
    made = Driver(ON, demanding(COMMON, ONLY_SLOW, GOOD))
    tickets = [made.submit(demand=demand) for demand in (-1, 0, 1)]
    made.adopt(demanding(COMMON, GOOD, ONLY_SLOW))
    assert [made.lane_number(ticket) for ticket in tickets] == [0, 1, 2]
    made.adopt(demanding(COMMON, ONLY_SLOW))
    assert [made.lane_number(ticket) for ticket in tickets] == [0, 1, 0]
    assert [query.demand for query in made.dispatcher.waiting()] == [-1, 0, 1]


def test_a_demand_waits_for_its_own_workers_to_come_back() -> None:
    """The common lane's queries find another lane when theirs has lost its last worker; a demand may not."""
    on = deployed(*MODELS, crew=2)
    lanes = [lane(name, (number,), select=Fixed(FAST)) for number, name in enumerate(("one", "two"))]
    plan = Plan((*lanes, lane("slow", (0,), select=Fixed(SLOW))), (Route(RouteRule.ROUND_ROBIN, (0, 1), demands=(2,)),))
    made = Driver(on, plan)
    demanding_ticket = made.submit(demand=0)
    made.leave(0)
    assert made.lengths() == [0, 0, 1]
    plain = made.submit()
    assert made.batches()[-1] == (1, FAST, [1])
    made.finish(1)
    assert made.outcome(plain) is Outcome.ON_TIME and made.lane_number(demanding_ticket) == 2
    made.join(0)
    assert made.batches() == [(0, SLOW, [0])]


@pytest.mark.parametrize("demands", [(9,), (-1,), (1, 3)])
def test_a_demand_for_a_lane_that_is_not_there_is_refused(demands: tuple[int, ...]) -> None:
    with pytest.raises(PlanError):
        check_plan(Plan((COMMON, ONLY_SLOW), (Route(RouteRule.BY_APPLICATION, (0,), demands=demands),)), ON)


def test_a_group_joins_one_batch() -> None:
    made = driver(lane())
    made.submit_together(5)
    assert made.batches() == [(0, 0, [0, 1, 2, 3, 4])]
    apart = driver(lane())
    for _ in range(5):
        apart.submit()
    assert apart.batches() == [(0, 0, [0])]


def test_a_group_larger_than_a_batch() -> None:
    made = driver(lane(crew=(0, 1), release=Eager(3)))
    made.submit_together(7)
    assert made.batches() == [(0, 0, [0, 1, 2]), (1, 0, [3, 4, 5])]
    assert made.lengths() == [1]


def test_a_group_at_a_narrow_door_is_let_in_whole_where_nobody_waits_and_it_fits_into_a_batch() -> None:
    made = driver(lane(capacity=2, release=Accumulate(5, FAR, 5), late=Late.DROP_WHEN_INFEASIBLE))
    assert [made.outcome(ticket) for ticket in made.submit_together(4)] == [None] * 4
    made.at(made.now_ns + 1)
    assert {made.outcome(ticket) for ticket in made.submit_together(1)} == {Outcome.DROPPED_OVERLOAD}


def test_a_group_that_fits_into_no_batch_is_divided_by_the_door() -> None:
    made = driver(lane(capacity=2, release=Accumulate(3, FAR, 3), late=Late.DROP_WHEN_INFEASIBLE))
    tickets = made.submit_together(4)
    assert [made.outcome(ticket) for ticket in tickets] == [None, None, None, Outcome.DROPPED_OVERLOAD]


def test_a_group_behind_others_is_divided_by_the_door() -> None:
    made = driver(lane(capacity=3, release=Accumulate(8, FAR, 8), late=Late.DROP_WHEN_INFEASIBLE))
    made.query(FAR)
    made.at(made.now_ns + 1)
    tickets = made.submit_together(4)
    assert [made.outcome(ticket) for ticket in tickets] == [None, None, *[Outcome.DROPPED_OVERLOAD] * 2]


def test_a_group_that_is_too_late() -> None:
    made = driver(lane(late=Late.DROP_WHEN_INFEASIBLE))
    tickets = made.submit_together(3, 0, 5)
    assert {made.outcome(ticket) for ticket in tickets} == {Outcome.DROPPED_INFEASIBLE}


def test_a_demand_that_a_lost_worker_ran_in_a_window_s_batch_returns_to_its_own_lane() -> None:
    """Regression: it waited in the window's lane, where others could take it."""
    made = Driver(deployed(*MODELS, crew=2), demanding(COMMON, ONLY_SLOW))
    ticket = made.submit(demand=0)
    window = lane("window", (0, 1), select=Worklist((Work(0, SLOW, (ticket,)),)))
    lanes = (COMMON, ONLY_SLOW, window)
    made.adopt(Plan(lanes, (Route(RouteRule.ROUND_ROBIN, (0, 2), demands=(1,)),)))
    made.leave(0)
    assert made.lane_number(ticket) == 1


def test_timers_that_are_due_ring_after_the_group() -> None:
    """Ten gather, or the head has waited 20: the group that comes at that moment goes along."""
    made = driver(lane(release=Accumulate(10, 20)))
    made.submit()
    made.at(20).submit_together(3)
    assert made.batches() == [(0, 0, [0, 1, 2, 3])]


def test_a_group_that_never_ends_is_served_by_the_next_event() -> None:
    dispatcher = Dispatcher(deployed(), demanding(lane()))
    dispatcher.submit(0, 0, FAR, more=True)
    assert dispatcher.decisions() == ()
    dispatcher.advance(1)
    assert len(dispatcher.decisions()) == 1


def test_a_query_that_its_model_cannot_answer_fails_while_its_batch_goes_on() -> None:
    made = driver(lane())
    one, bad, other = made.submit_together(3)
    assert made.cancel(bad, Outcome.FAILED) is True
    assert made.cancel(bad, Outcome.FAILED) is False
    made.at(16).finish(0)
    assert [made.outcome(ticket) for ticket in (one, bad, other)] == [Outcome.ON_TIME, Outcome.FAILED, Outcome.ON_TIME]
    waiting = driver(lane(release=GATHER))
    ticket = waiting.submit()
    assert waiting.cancel(ticket, Outcome.FAILED) and waiting.outcome(ticket) is Outcome.FAILED


def test_what_a_worker_holds() -> None:
    a, b, c = (variant(name, memory=4, load_ns=5) for name in "abc")
    crew = (Worker("w0", memory_bytes=9), Worker("w1", memory_bytes=5, resident=("app/c",)), Worker("w2"))
    made = driver(lane(crew=(1,), select=Fixed(1)), on=deployed(a, b, c, crew=crew))
    assert [made.dispatcher.resident(worker) for worker in range(3)] == [(0, 1), (2,), (0, 1, 2)]
    made.submit()
    assert made.dispatcher.resident(1) == (1,)
    made.finish(0) if made.crew[0].jobs else made.finish(1)
    made.leave(1)
    made.join(1)
    assert made.dispatcher.resident(1) == (2,)
