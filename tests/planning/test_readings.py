"""Telemetry becomes a View: one λ, who is there, what was measured, what ended since the last look."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stretto.core.outcome import Outcome
from stretto.core.plan import Delays, Late, Plan, Route, RouteRule
from stretto.core.profile import Quantile
from stretto.core.view import View
from stretto.dispatch.dispatcher import Dispatcher
from stretto.planning.readings import view_after_change, view_of
from tests.dispatch.small import FAR, GATHER, deployed, lane, planned

WINDOW = 8_000_000  # eight buckets of a millisecond


def counting(**rules: object) -> Dispatcher:
    return Dispatcher(deployed(), planned(lane(release=GATHER, **rules), rate_window_ns=WINDOW), correction=0.1)


def test_before_anything_was_measured() -> None:
    unknown = View(deployed(), 5)
    assert unknown.rates is None and unknown.now_ns == 5 and unknown.alive.all()
    assert not unknown.is_measured.any() and (unknown.latency_ratio == 1).all() and unknown.waiting() == ()
    stated = View(deployed(), expected_rates=(30.0,))
    assert stated.rates is not None and stated.rates.tolist() == [30.0]


def test_measured_rates_count_once_a_window_has_passed() -> None:
    """Before, what the owner states is better than a few gaps; where he states nothing, the gaps are all there is."""
    made = counting()
    for number in range(200):
        made.submit(number * 100_000, 0, FAR)
    late = made.telemetry(20_000_000)
    assert not counting().telemetry(1).is_rated.any() and late.is_rated.all()
    assert float(view_of(made.deployment, late).rates[0]) == pytest.approx(10_000, rel=0.02)  # type: ignore[index]
    fresh = counting()
    fresh.submit(0, 0, FAR)
    fresh.submit(1_000_000, 0, FAR)
    early = fresh.telemetry(4_000_000)
    assert view_of(made.deployment, early, expected_rates=(7.0,)).rates.tolist() == [7.0]  # type: ignore[union-attr]
    # Regression: who stated no load was planned for as if none came, until a whole window was over.
    assert view_of(made.deployment, early, expected_rates=(0.0,)).rates.tolist() == early.rates.tolist()  # type: ignore[union-attr]
    assert early.rates[0] > 0
    assert float(view_of(made.deployment, early).rates[0]) == pytest.approx(250.0)  # type: ignore[index]


def test_queries_with_a_demand_are_not_the_application_s_load() -> None:
    lanes = (lane("a", release=GATHER), lane("b", release=GATHER))
    plan = Plan(lanes, (Route(RouteRule.BY_APPLICATION, (0,), demands=(1,)),), rate_window_ns=WINDOW)
    made = Dispatcher(deployed(), plan)
    for number in range(100):
        made.submit(number * 100_000, 0, FAR, demand=0 if number % 4 else -1)
    reading = made.telemetry(10_000_000)
    assert reading.rates[0] == pytest.approx(2_500, rel=0.1)
    assert reading.lane_rates.sum() == pytest.approx(10_000, rel=0.1)


def test_rates_survive_a_plan_with_other_lanes() -> None:
    made = counting()
    for number in range(100):
        made.submit(number * 100_000, 0, FAR)
    before = made.telemetry(10_000_000).rates
    made.adopt(10_000_000, planned(lane("another", release=GATHER), rate_window_ns=WINDOW))
    after = made.telemetry(10_000_000)
    assert after.rates.tolist() == before.tolist() and after.lane_rates.tolist() == [0.0]


def test_outcomes_since_the_last_look_and_idle_time() -> None:
    made = Dispatcher(deployed(), planned(lane(late=Late.DROP_WHEN_INFEASIBLE)), correction=0.1)
    readings = [made.telemetry(0)]
    first = view_of(made.deployment, readings[0])
    assert first.ended.sum() == 0 and first.idle_share is None
    made.submit(0, 0, 100)
    made.finished(50, 0, True, 25)
    made.submit(60, 0, 61)
    readings.append(made.telemetry(100))
    second = view_of(made.deployment, readings[1], readings[0])
    assert second.ended[0, Outcome.ON_TIME] == 1 and second.ended.sum() == 2
    assert second.bad_rate == 0.5 and second.idle_share == pytest.approx(0.5)
    assert view_of(made.deployment, made.telemetry(110), readings[1]).ended.sum() == 0
    again = view_of(made.deployment, readings[1], readings[0])  # a second reader takes nothing from the first
    assert (again.ended == second.ended).all()


def test_a_latency_was_measured_though_it_is_just_as_profiled() -> None:
    """A ratio of exactly one used to count as not measured."""
    means = replace(deployed(), quantile=Quantile.MEAN)
    made = Dispatcher(means, planned(lane()), correction=0.1)
    assert not made.telemetry(0).is_measured.any()
    made.submit(0, 0, FAR)
    made.finished(12, 0, True, 12)
    view = view_of(made.deployment, made.telemetry(20))
    assert view.latency_ratio.tolist() == [[1.0]] and view.is_measured.tolist() == [[True]]


def test_lane_rates_are_those_of_the_planner_s_own_lanes() -> None:
    plan = planned(lane(release=GATHER), rate_window_ns=WINDOW)
    made = Dispatcher(deployed(), plan)
    view = view_of(made.deployment, made.telemetry(1), plan=plan, delays=Delays(3))
    assert view.plan is plan and view.lane_rates is not None and len(view.lane_rates) == 1
    assert view.delays == Delays(3) and np.array_equal(view.present, (0,))


def test_nobody_writes_into_what_others_read() -> None:
    """A planner that changed its view in place changed what the journal, the clients and the next look had of it."""
    made = counting()
    reading = made.telemetry(1)
    view = view_of(made.deployment, reading)
    for array in (reading.outcomes, reading.rates, view.alive, view.latency_ratio, view.is_measured):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert made.telemetry(2).worker_alive.all()


def test_load_and_workers_do_not_change_because_what_is_served_did() -> None:
    made = counting()
    for number in range(200):
        made.submit(number * 100_000, 0, FAR)
    reading = made.telemetry(20_000_000)
    known = made.deployment.applications[0]
    changed = replace(made.deployment, applications=(replace(known, name="new"), known))
    view = view_after_change(changed, made.deployment, reading, Delays(3))
    assert view.rates is not None and view.rates.tolist() == [0.0, reading.rates[0]] and reading.rates[0] > 0
    assert view.deployment is changed and view.now_ns == reading.now_ns and view.delays == Delays(3)
    assert view.alive is reading.worker_alive and not view.is_measured.any()
