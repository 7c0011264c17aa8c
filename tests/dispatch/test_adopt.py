"""A new plan while queries wait and run: nothing is lost, and what was learnt is kept."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from stretto.core.application import Application
from stretto.core.deployment import Deployment
from stretto.core.errors import PlanError
from stretto.core.outcome import Outcome
from stretto.core.plan import (
    AdaptiveCap,
    Deferred,
    Eager,
    Fixed,
    Late,
    Order,
    Plan,
    Route,
    RouteRule,
    Table,
    Work,
    Worklist,
    by_application,
)
from stretto.core.worker import workers
from stretto.dispatch.decisions import Run
from stretto.dispatch.dispatcher import Dispatcher
from tests.dispatch import promises
from tests.dispatch.books import Stage
from tests.dispatch.driver import Driver
from tests.dispatch.models import MODELS, cells
from tests.dispatch.small import FAR, GATHER, deployed, driver, lane, planned, variant


def test_waiting_queries_move_and_running_ones_run_on() -> None:
    made = driver(lane("old"))
    tickets = [made.query(slack) for slack in (500, 400, 300)]
    made.taken()
    made.adopt(planned(lane("new", order=Order.FIRST_COME)))
    assert (made.taken(), made.lengths()) == ([], [2])
    made.at(12).finish(0)
    assert made.outcome(tickets[0]) is Outcome.ON_TIME
    assert made.batches() == [(0, 0, [1, 2])]  # first come now; it would have been 2, 1


def test_queries_go_the_way_of_the_new_routes_oldest_first() -> None:
    made = driver(lane(release=GATHER))
    for number in range(6):
        made.query(500 - number)
    lanes = tuple(lane(f"lane-{number}", release=GATHER) for number in range(3))
    made.adopt(planned(*lanes, rule=RouteRule.ROUND_ROBIN))
    waiting = made.dispatcher.waiting()
    assert [made.lane_number(query.ticket) for query in waiting] == [0, 1, 2, 0, 1, 2]


def test_a_plan_that_could_start_now_starts_now() -> None:
    made = driver(lane(release=GATHER))
    made.query(500)
    made.query(500)
    made.at(7).adopt(planned(lane(release=Eager())))
    assert made.batches() == [(0, 0, [0, 1])]


def test_a_plan_that_defers_takes_the_start_back() -> None:
    made = driver(lane(release=Deferred(when_gathered=False)))
    made.query(100)
    assert made.wake() == 86
    made.adopt(planned(lane(release=GATHER)))
    assert made.wake() == FAR


def test_infeasible_queries_are_dropped_when_the_new_lane_drops_them() -> None:
    made = driver(lane(release=GATHER))
    lost, kept = made.query(20), made.query(500)
    made.at(9).adopt(planned(lane(release=GATHER, late=Late.DROP_WHEN_INFEASIBLE)))
    assert made.outcome(lost) is Outcome.DROPPED_INFEASIBLE
    assert made.book[kept].stage is Stage.WAITING


def test_queries_that_were_admitted_stay_although_the_new_lane_is_smaller() -> None:
    made = driver(lane(release=GATHER))
    for _ in range(4):
        made.query(500)
    made.adopt(planned(lane(release=GATHER, capacity=2)))
    assert made.lengths() == [4]
    assert made.outcome(made.query(500)) is Outcome.DROPPED_OVERLOAD


def test_a_lane_of_the_same_name_keeps_its_rate_wherever_it_stands() -> None:
    made = driver(lane("a"), on=deployed(crew=2), rate_window_ns=8000)
    for number in range(50):
        made.at(20 * number).query(5000)
    before = made.dispatcher.telemetry(made.now_ns).lane_rates[0]
    lanes = (lane("b", (0, 1)), lane("a", (1,)))
    made.adopt(planned(*lanes, rule=RouteRule.ROUND_ROBIN, rate_window_ns=8000))
    reading = made.dispatcher.telemetry(made.now_ns)
    assert reading.lane_names == ("b", "a")
    assert reading.lane_rates.tolist() == [0.0, before]
    assert before == pytest.approx(1e9 / 20, rel=0.03)
    # And the lane decides with it: βλ is 0.5 here, but would be 0 for a lane that knows nothing.
    assert made.dispatcher.memory["meters"][2]["rate"] * 1e9 == pytest.approx(before, rel=0.15)


def test_a_rate_counted_over_another_window_is_forgotten() -> None:
    made = driver(lane(), rate_window_ns=8000)
    for number in range(50):
        made.at(20 * number).query(5000)
    made.adopt(planned(lane(), rate_window_ns=16_000))
    assert made.dispatcher.telemetry(made.now_ns).lane_rates[0] == 0.0


def test_a_lane_of_the_same_name_keeps_its_adaptive_cap() -> None:
    cap = AdaptiveCap(target_ns=100, start=2.0)
    made = driver(lane(adaptive_cap=cap))
    for _ in range(3):
        made.query(FAR)
    made.at(12).finish(0)
    made.at(26).finish(0)  # two at once, quick enough: three from now on
    made.adopt(planned(lane(adaptive_cap=cap)))
    for _ in range(5):
        made.query(FAR)
    made.at(40).finish(0)
    assert [len(numbers) for _, _, numbers in made.batches()] == [1, 2, 1, 3]


def test_a_lane_that_had_no_adaptive_cap_begins_with_the_plan_s() -> None:
    made = driver(lane())
    made.query(FAR)
    made.adopt(planned(lane(adaptive_cap=AdaptiveCap(target_ns=100, start=3.0))))
    for _ in range(5):
        made.query(FAR)
    made.at(12).finish(0)
    assert [len(numbers) for _, _, numbers in made.batches()] == [1, 3]


def test_what_a_lane_learned_goes_to_the_lane_of_its_name_and_to_no_other() -> None:
    """By name, not by place: one of two lanes has another name in the new plan, and they stand the other way round."""
    cap = AdaptiveCap(target_ns=100, start=2.0)
    made = driver(lane("a", (0,), adaptive_cap=cap), lane("b", (1,), adaptive_cap=cap), rule=RouteRule.ROUND_ROBIN)
    for _ in range(6):
        made.query(FAR)
    for worker in (0, 1):
        made.at(12).finish(worker)
    made.at(26).finish(0)  # two at once, quick enough: three from now on in the first lane alone
    made.leave(0)
    made.leave(1)
    made.adopt(planned(lane("new", (1,), adaptive_cap=cap), lane("a", (0,), adaptive_cap=cap), rule=RouteRule.SHORTEST))
    assert made.dispatcher.memory["lanes"]["cap"].tolist() == [2.0, 3.0]


def test_a_lost_workers_queries_find_a_lane_of_the_new_plan() -> None:
    made = driver(lane("old", (0,)), on=deployed(crew=2))
    made.query(500)
    made.taken()
    made.adopt(planned(lane("new", (1,))))
    made.at(5).leave(0)
    assert made.batches() == [(1, 0, [0])]


def test_a_bad_plan_changes_nothing() -> None:
    made = driver(lane("good"))
    made.query(500)
    with pytest.raises(PlanError, match="has no worker"):
        made.dispatcher.adopt(0, planned(lane("bad", ())))
    assert made.dispatcher.plan.lanes[0].name == "good"
    promises.hold(made)
    with pytest.raises(PlanError, match="has no worker"):
        Dispatcher(deployed(), planned(lane("bad", ())))


def test_a_worklist_that_mixes_up_applications_is_refused() -> None:
    """Regression: a query was answered by another application's variant."""
    two = Deployment((Application("cat", 100, (variant(),)), Application("dog", 100, (variant(),))), workers(1))
    plan = by_application((lane("cat", release=GATHER), lane("dog", select=Fixed(1), release=GATHER)))
    made = Driver(two, plan)
    ticket = made.submit(0, 500)
    window = lane("window", select=Worklist((Work(0, 1, (ticket,)),)))
    routes = (Route(RouteRule.BY_APPLICATION, (0,)),) * 2
    with pytest.raises(PlanError, match="lane window puts a query of cat into a batch of dog/v"):
        made.dispatcher.adopt(0, Plan((window,), routes))
    made.cancel(ticket)
    made.adopt(Plan((window,), routes))  # it has gone, and the number says nothing any more
    assert made.batches() == []


def test_tables_are_read_where_the_planner_made_them() -> None:
    """Nothing of the size of a table is copied or looked through, so a large one is adopted as fast as a small one."""
    table, other = cells([[0, 0], [0, 0]]), cells([[0, -1], [0, -1]])
    made = Dispatcher(deployed(), planned(lane(select=table)))
    assert made.memory["tables"]["cells_at"].tolist() == [table.cells.ctypes.data]
    made.adopt(0, planned(lane(select=other)))
    assert made.memory["tables"]["cells_at"].tolist() == [other.cells.ctypes.data]
    assert not other.cells.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        other.cells["variant"] = 0


def test_a_table_lives_as_long_as_its_plan_is_followed() -> None:
    """The dispatcher holds the cells, so that a planner may forget its plan."""
    made = Dispatcher(deployed(*MODELS), planned(lane(select=cells([[0] * 400] * 300))))
    made.adopt(0, planned(lane(select=cells([[2] * 400] * 300))))
    made.plan = planned(lane())  # nobody else refers to the table now
    gc.collect()
    rubbish = [np.full((300, 400), 9, dtype=np.int64) for _ in range(40)]
    made.submit(0, 0, FAR)
    (run,) = made.decisions()
    assert isinstance(run, Run) and run.variant == 2 and len(rubbish) == 40


def test_what_is_written_into_an_array_later_does_not_reach_the_table() -> None:
    variant_numbers = np.zeros((2, 1), dtype=np.int32)
    table = Table(10, variant_numbers, np.zeros_like(variant_numbers))
    variant_numbers[:] = 1
    made = driver(lane(select=table), on=deployed(*MODELS))
    made.query(500)
    assert made.batches() == [(0, 0, [0])]


def test_age_is_told_whether_nearly_all_or_hardly_any_of_a_span_of_queries_wait() -> None:
    made = driver(lane("all"))
    made.leave(0)  # so that all of them wait
    tickets = [made.query(5000 - number) for number in range(60)]
    assert [query.ticket for query in made.dispatcher.waiting()] == tickets
    for ticket in tickets[1:-1]:
        made.cancel(ticket)
    assert [query.ticket for query in made.dispatcher.waiting()] == [tickets[0], tickets[-1]]
    made.cancel(tickets[0])
    made.cancel(tickets[-1])
    assert made.dispatcher.waiting() == ()


@pytest.mark.parametrize("rule", [RouteRule.SHORTEST, RouteRule.ROUND_ROBIN])
def test_queries_dealt_anew_go_by_age_whatever_order_they_stood_in(rule: RouteRule) -> None:
    """The lane had them by deadline, the youngest first; the routes see the oldest first."""
    made = driver(lane("all", release=GATHER))
    tickets = [made.query(500 - number) for number in range(6)]
    lanes = tuple(lane(f"lane-{number}", release=GATHER) for number in range(3))
    made.adopt(planned(*lanes, rule=rule))
    assert [made.lane_number(ticket) for ticket in tickets] == [0, 1, 2, 0, 1, 2]
    assert made.lengths() == [2, 2, 2]


def test_of_two_works_that_name_a_query_the_last_has_it() -> None:
    made = driver(lane("all", (0, 1), release=GATHER))
    tickets = [made.query(500) for _ in range(3)]
    works = (Work(0, 0, (tickets[0], tickets[1])), Work(1, 0, (tickets[1], tickets[2], 2**40, -7)))
    made.adopt(planned(lane("window", (0, 1), select=Worklist(works))))
    assert made.batches() == [(0, 0, [0]), (1, 0, [1, 2])]


def test_a_query_that_a_worklist_named_is_free_for_the_next() -> None:
    made = driver(lane("all", release=GATHER), on=deployed(crew=2))
    first, second = made.query(500), made.query(500)
    made.leave(1)
    made.adopt(planned(lane("window", (0, 1), select=Worklist((Work(1, 0, (first, second)),)))))
    made.adopt(planned(lane("window", (0, 1), select=Worklist((Work(0, 0, (second,)),)))))
    assert made.batches() == [(0, 0, [1])]
    made.at(12).finish(0)
    assert made.book[first].stage is Stage.WAITING


def test_adopting_again_and_again_loses_nothing() -> None:
    made = driver(lane("a", release=Eager(1)))
    plans = [planned(lane(name, release=Eager(1), order=order)) for name in "ab" for order in Order]
    for number in range(40):
        made.at(3 * number).query(10_000 - 7 * number, priority=number % 3)
        made.adopt(plans[number % len(plans)])
    made.drain()
    assert made.outcomes[0, Outcome.ON_TIME] == 40
