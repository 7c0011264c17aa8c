"""Lanes for demands: whatever the plan, each demand in use has a lane of its own that runs nothing else. And one worker
for applications on trial.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan, selected_variants
from stretto.core.conditions import Demand
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import (
    Accumulate,
    Deferred,
    Delays,
    Eager,
    Fixed,
    Lane,
    Late,
    MostAccurate,
    Order,
    Plan,
    Route,
    RouteRule,
    Worklist,
    by_application,
)
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import Worker, workers
from stretto.planners.registry import ENTRIES
from stretto.planning.completion import DOOR_SHARE, with_demands, with_doors, with_trials
from tests.dispatch.driver import Driver


def variant(name: str, accuracy: float, *kinds: str) -> Variant:
    return Variant(name, accuracy, tuple(LatencyProfile.linear(1, 2, 8, kind) for kind in kinds or ("default",)))


FAST, GOOD, BEST = variant("fast", 0.6), variant("good", 0.8), variant("best", 0.9)
TWO = Deployment(
    (Application("a", 50 * NS_PER_MS, (FAST, GOOD, BEST)), Application("b", 50 * NS_PER_MS, (FAST, GOOD))), workers(2)
)


def test_no_demand_changes_nothing() -> None:
    plan = by_application((Lane("a", (0,), Fixed(0)), Lane("b", (1,), Fixed(3))))
    assert with_demands(plan, TWO, ()) == plan


def test_demands_are_numbered_by_application_in_their_order() -> None:
    plan = by_application((Lane("a", (0,), Fixed(0)), Lane("b", (1,), Fixed(3))))
    demands = [Demand(0, (2,)), Demand(1, (4,)), Demand(0, (2, 1)), Demand(1, (3,))]
    made = with_demands(plan, TWO, demands)
    check_plan(made, TWO)
    assert made.lanes[:2] == plan.lanes
    assert [route.demands for route in made.routes] == [(2, 4), (3, 5)]
    assert [lane.name for lane in made.lanes[2:]] == ["a by best", "b by good", "a by best+good", "b by fast"]
    assert [lane.select for lane in made.lanes[2:]] == [Fixed(2), Fixed(4), MostAccurate((2, 1)), Fixed(3)]
    assert [lane.workers for lane in made.lanes[2:]] == [(0,), (1,), (0,), (1,)]
    assert [selected_variants(lane) for lane in made.lanes[2:]] == [demand.variants for demand in demands]


@pytest.mark.parametrize(
    ("release", "becomes"),
    [(Eager(1), Eager()), (Deferred(5, False), Deferred(when_gathered=False)), (Accumulate(4, 9, 6), Eager())],
)
def test_they_follow_the_common_lane_where_that_makes_sense_and_make_batches_of_their_own(
    release: object, becomes: object
) -> None:
    lane = Lane("a", (0,), Fixed(0), Order.FIRST_COME, release, Late.REFUSE, capacity=7, delays=Delays(3, 2))  # type: ignore[arg-type]
    made = with_demands(by_application((lane, Lane("b", (1,), Fixed(3)))), TWO, [Demand(0, (1,))]).lanes[2]
    assert made.release == becomes
    assert (made.order, made.late) == (Order.EARLIEST_DEADLINE, Late.DROP_WHEN_INFEASIBLE)
    assert (made.capacity, made.delays) == (7, Delays(3, 2))


def test_they_are_served_by_all_the_application_s_workers_that_can() -> None:
    kinds = (Worker("w0", "x"), Worker("w1", "y"), Worker("w2", "x"))
    both, only = variant("both", 0.5, "x", "y"), variant("only", 0.9, "y")
    deployment = Deployment((Application("a", 50 * NS_PER_MS, (both, only)),), kinds)
    routed = Plan((Lane("l0", (0,), Fixed(0)), Lane("l1", (1,), Fixed(0))), (Route(RouteRule.ROUND_ROBIN, (0, 1)),))
    made = with_demands(routed, deployment, [Demand(0, (0,)), Demand(0, (1,))])
    check_plan(made, deployment)
    assert [lane.workers for lane in made.lanes[2:]] == [(0, 1), (1,)]
    narrow = Plan((Lane("l0", (0,), Fixed(0)),), (Route(RouteRule.BY_APPLICATION, (0,)),))
    made = with_demands(narrow, deployment, [Demand(0, (1,))])
    assert made.lanes[1].workers == (1,)  # none of the common lane's can


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_planner_s_plan_can_be_joined_by_demands(entry: object) -> None:
    planner = entry.make({})  # type: ignore[attr-defined]
    try:
        plan = planner(View(TWO, expected_rates=(20.0, 20.0)))
    except StrettoError as error:
        pytest.skip(f"it makes no plan for this deployment: {error}")
    made = with_demands(plan, TWO, [Demand(0, (2,)), Demand(1, (4, 3)), Demand(0, (2, 1))])
    check_plan(made, TWO)
    check_plan(with_trials(made, TWO, (1,), 1), TWO)
    driver = Driver(TWO, made)
    ticket = driver.submit(0, 40 * NS_PER_MS)
    if isinstance(plan.lanes[0].select, Worklist):  # queries wait for the end of their window
        view = View(TWO, driver.now_ns, driver.dispatcher.telemetry(driver.now_ns), waiting=driver.dispatcher.waiting)
        driver.adopt(with_demands(planner(view), TWO, [Demand(0, (2,)), Demand(1, (4, 3)), Demand(0, (2, 1))]))
    driver.drain()
    assert driver.outcome(ticket) is not None


def test_a_query_s_demand_outlives_its_plan() -> None:
    plan = by_application((Lane("a", (0,), Fixed(0)), Lane("b", (1,), Fixed(3))))
    demands = [Demand(0, (2,)), Demand(0, (1,))]
    driver = Driver(TWO, with_demands(plan, TWO, demands))
    driver.submit(0, 10**9)
    waiting = driver.submit(0, 10**9, demand=1)
    other = by_application((Lane("a", (0, 1), Fixed(0), release=Eager(1)), Lane("b", (1,), Fixed(3))))
    driver.adopt(with_demands(other, TWO, [*demands, Demand(0, (2, 1))]))
    driver.drain()
    assert [variant for _, variant, numbers in driver.batches() if 1 in numbers] == [1]
    assert driver.outcome(waiting) is not None


def test_applications_on_trial_have_one_worker_and_others_keep_theirs() -> None:
    lanes = (Lane("a", (0, 1), Fixed(0)), Lane("b0", (0,), Fixed(3)), Lane("b1", (1,), Fixed(4)))
    routes = (Route(RouteRule.BY_APPLICATION, (0,)), Route(RouteRule.ROUND_ROBIN, (1, 2)))
    made = with_trials(with_demands(Plan(lanes, routes), TWO, [Demand(1, (3,))]), TWO, (1,), 1)
    check_plan(made, TWO)
    assert [lane.workers for lane in made.lanes] == [(0, 1), (1,), (1,), (1,)]
    assert with_trials(Plan(lanes, routes), TWO, (), 1) == Plan(lanes, routes)
    apart = by_application((Lane("a", (1,), Fixed(0)), Lane("b", (0,), Fixed(3))))  # it has one worker already
    assert with_trials(apart, TWO, (1,), 1) == apart


def test_a_lane_that_the_trial_worker_could_not_serve_as_planned_stays() -> None:
    worklist = by_application((Lane("a", (0,), Fixed(0)), Lane("b", (0, 1), Worklist())))
    placed = by_application((Lane("a", (0,), Fixed(0)), Lane("b", (0, 1), Fixed(3))), placement=((0, 3), (0,)))
    shared = Plan((Lane("both", (0, 1), MostAccurate((2, 4))),), (Route(RouteRule.BY_APPLICATION, (0,)),) * 2)
    for plan in (worklist, placed, shared):
        assert with_trials(plan, TWO, (1,), 1) == plan
    unequal = replace(TWO, workers=(Worker("one"), Worker("two", memory_bytes=1 << 30)))
    plan = by_application((Lane("a", (0,), Fixed(0)), Lane("b", (0, 1), Fixed(3))))
    assert with_trials(plan, unequal, (1,), 1) == plan


def door_of(workers: dict[str, int], latencies_ms: dict[str, float], slo_ms: float = 100.0) -> int:
    """What so many workers of each kind answer within their share of the SLO, one query at a time."""
    return int(sum(count * DOOR_SHARE * slo_ms / latencies_ms[kind] for kind, count in workers.items()))


@pytest.mark.parametrize(("measured", "slow_ms"), [(None, 20.0), ((1.0, 1.0), 20.0), ((1.0, 2.0), 40.0)])
def test_a_door_holds_what_each_kind_of_worker_can_answer_at_its_own_pace(
    measured: tuple[float, float] | None, slow_ms: float
) -> None:
    """Four variants on two kinds: the second kind's measured latency counts for its own workers. Not measured is as
    profiled.
    """
    profiles = (LatencyProfile.linear(1, 3, 1, "quick"), LatencyProfile.linear(5, 15, 1, "slow"))
    models = tuple(Variant(name, 0.5, profiles) for name in "abcd")
    crew = (*workers(2, "quick"), *workers(3, "slow"))
    deployment = Deployment((Application("app", 100 * NS_PER_MS, models),), crew)
    plan = by_application((Lane("app", (0, 1, 2, 3, 4), Fixed(3), late=Late.DROP_WHEN_INFEASIBLE),))
    ratios = None if measured is None else np.tile(np.array(measured), (4, 1))
    (lane,) = with_doors(plan, deployment, ratios).lanes
    assert lane.capacity == door_of({"quick": 2, "slow": 3}, {"quick": 4.0, "slow": slow_ms})
