"""The session: one call of the planner at a time, plans completed, the very same plan where nothing changed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from stretto.core.conditions import Conditions, Demand
from stretto.core.errors import StrettoError
from stretto.core.plan import Delays, Late, Plan, by_application
from stretto.core.view import View
from stretto.dispatch.dispatcher import Dispatcher
from stretto.planning.session import MOST_COMPLETED, InForce, Rhythm, Session
from tests.dispatch.small import deployed, lane, straight, variant

TWO = deployed(variant("a"), variant("b", straight(4, 20)))
PLAN = by_application((lane(late=Late.DROP_WHEN_INFEASIBLE),))


def test_the_plan_stays_the_same_object_while_nothing_changes() -> None:
    session = Session(lambda view: PLAN)
    first = session.first(TWO, 0, Conditions(delays=Delays(control_ns=5)))
    dispatcher = Dispatcher(TWO, first.plan, correction=0.1)
    assert first.made is PLAN and first.plan is not PLAN and first.plan.lanes[0].delays.control_ns == 5
    second = session.next(first, dispatcher.telemetry(10))
    assert second.plan is first.plan
    third = session.next(second, dispatcher.telemetry(20), Conditions(delays=Delays(control_ns=6)))
    assert third.plan is not first.plan and third.plan.lanes[0].delays.control_ns == 6
    assert session.under(third, third.conditions) is third


def test_doors_follow_measured_latencies_and_can_be_left_out() -> None:
    session, bare = Session(lambda view: PLAN), Session(lambda view: PLAN, has_doors=False)
    first, plain = session.first(TWO), bare.first(TWO)
    assert first.plan.lanes[0].capacity < PLAN.lanes[0].capacity and plain.plan is PLAN
    dispatcher = Dispatcher(TWO, first.plan)
    reading = dispatcher.telemetry(1)
    slower = session.next(first, replace(reading, latency_ratio=3.0 * reading.latency_ratio))
    assert slower.plan.lanes[0].capacity < first.plan.lanes[0].capacity
    assert bare.next(plain, replace(reading, latency_ratio=3.0 * reading.latency_ratio)).plan is PLAN


def test_a_demand_gets_its_lane_without_asking_the_planner() -> None:
    calls: list[View] = []

    def planner(view: View) -> Plan:
        calls.append(view)
        return PLAN

    session = Session(planner)
    first = session.first(TWO)
    wider = session.under(first, Conditions((Demand(0, (1,)),)))
    assert len(wider.plan.lanes) == 2 and wider.plan.routes[0].demands == (1,) and len(calls) == 1
    reading = Dispatcher(TWO, wider.plan).telemetry(5)
    assert session.next(wider, reading).plan is wider.plan  # demands stay
    assert calls[-1].plan is PLAN and calls[-1].lane_rates is not None and len(calls[-1].lane_rates) == 1


def test_one_call_at_a_time_whoever_asks() -> None:
    """Replanning and a change of the repository used to call the planner at once: 22 of 120 calls failed."""
    inside = 0
    most = 0

    def planner(view: View) -> Plan:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.002)
        inside -= 1
        return PLAN

    session = Session(planner)
    first = session.first(TWO)
    reading = Dispatcher(TWO, first.plan).telemetry(1)

    def work() -> None:
        for _ in range(10):
            session.next(first, reading)
            session.first(TWO)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_plans_are_completed_on_the_loop_while_the_planner_s_thread_completes_others() -> None:
    """What is remembered was changed by both at once: KeyError and RuntimeError, some in 10,000 calls."""
    session = Session(lambda view: replace(PLAN), has_doors=False)  # a new object each time: the oldest is forgotten
    first = session.first(TWO)
    errors: list[Exception] = []

    def work(complete: Callable[[int], InForce]) -> None:
        try:
            for number in range(6_000):
                complete(number)
        except Exception as error:
            errors.append(error)

    def in_planner_s_thread(number: int) -> InForce:
        return session.first(TWO)

    def on_loop(number: int) -> InForce:
        return session.under(replace(first, made=replace(PLAN)), Conditions(delays=Delays(control_ns=1 + number)))

    works = (in_planner_s_thread, in_planner_s_thread, on_loop, on_loop)
    threads = [threading.Thread(target=work, args=(each,)) for each in works]
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual_s)
    assert errors == [] and len(session._known) == MOST_COMPLETED


def test_a_planner_that_fails_or_returns_something_else() -> None:
    plans: list[object] = [PLAN, "no plan", StrettoError("not today"), PLAN]

    def planner(view: View) -> Plan:
        made = plans.pop(0)
        if isinstance(made, Exception):
            raise made
        return made  # type: ignore[return-value]

    session = Session(planner)
    first = session.first(TWO)
    reading = Dispatcher(TWO, first.plan).telemetry(1)
    with pytest.raises(StrettoError, match="a planner returns a Plan, not a str"):
        session.next(first, reading)
    with pytest.raises(StrettoError, match="not today"):
        session.next(first, reading)
    assert session.next(first, reading).plan is first.plan  # asked again, it goes on where it was


def test_what_is_known_of_another_deployment_comes_along() -> None:
    seen: list[View] = []

    def planner(view: View) -> Plan:
        seen.append(view)
        return PLAN

    view = View(TWO, 7, expected_rates=(40.0,))
    made = Session(planner).first(TWO, 7, view=view)
    assert seen == [view] and made.first_view is view


def test_windows_are_bounded_by_the_shortest_slo() -> None:
    assert Rhythm(0.5).period_for(TWO) == 0.5
    assert Rhythm(0.1, by_windows=True).period_for(TWO) == 0.002  # an SLO of 100 ns
    assert Rhythm().period_for(TWO) == 0.0
    assert Rhythm(0.1, if_swapped=True).period_for(TWO) == 0.1, "its workers hold everything"


def test_a_plan_that_comes_back_is_followed_as_the_same_object_unless_anything_else_changed() -> None:
    """A load that goes up and down has the same few plans again and again."""
    other = replace(PLAN, rate_window_ns=2 * PLAN.rate_window_ns)
    wanted = [PLAN]
    session = Session(lambda view: wanted[0])
    first = session.first(TWO)
    reading = Dispatcher(TWO, first.plan).telemetry(1)

    def then(plan: Plan, before: InForce, slower: float = 1.0, conditions: Conditions | None = None) -> InForce:
        wanted[0] = plan
        return session.next(before, replace(reading, latency_ratio=slower * reading.latency_ratio), conditions)

    between = then(other, first)
    again = then(PLAN, between)
    assert between.plan is not first.plan and again.plan is first.plan
    slow = then(PLAN, between, slower=3.0)
    assert slow.plan.lanes[0].capacity < first.plan.lanes[0].capacity
    late = then(PLAN, between, conditions=Conditions(delays=Delays(control_ns=5)))
    assert late.plan.lanes[0].delays.control_ns == 5
    elsewhere = session.first(deployed(variant("a", straight(4, 20)), variant("b")))
    assert elsewhere.plan.lanes[0].capacity < first.plan.lanes[0].capacity


def test_few_completed_plans_are_remembered() -> None:
    plans = [replace(PLAN, seed=seed) for seed in range(MOST_COMPLETED + 1)]
    numbers = iter([*range(len(plans)), 0, len(plans) - 1])
    session = Session(lambda view: plans[next(numbers)])
    current = session.first(TWO)
    seen = [current.plan]
    reading = Dispatcher(TWO, current.plan).telemetry(1)
    for _ in range(len(plans) + 1):
        current = session.next(current, reading)
        seen.append(current.plan)
    assert seen[-2] is not seen[0] and seen[-1] is seen[-3]
