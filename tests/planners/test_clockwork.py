"""Clockwork: the rules that name it, on every worker that can serve; and as published, with powers of two."""

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Fixed, LaneChoice, Late, Order, RouteRule, Tables
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.published import published_table
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.clockwork import Clockwork


def model_zoo() -> Deployment:
    applications = tuple(
        Application(row.name, round(row.slo_ms * NS_PER_MS), (Variant("only", 0.7, (row.profile(),)),))
        for row in published_table("symphony_1080ti")
    )
    return Deployment(applications, workers(8))


def two_variants() -> Deployment:
    small = Variant("small", 0.6, (LatencyProfile.linear(1, 5, 64), LatencyProfile.linear(2, 10, 32, "lame")))
    large = Variant("large", 0.8, (LatencyProfile.linear(2, 10, 64),))
    return Deployment((Application("app", 50 * NS_PER_MS, (small, large)),), workers(2) + workers(1, "lame"))


@pytest.mark.parametrize("planner", [Clockwork(), Clockwork(powers_of_two=True)], ids=["any size", "powers of two"])
@pytest.mark.parametrize("made", [model_zoo(), two_variants()], ids=["zoo", "two kinds"])
def test_one_lane_per_application(planner: Clockwork, made: Deployment) -> None:
    plan = planner(View(made))
    check_plan(plan, made)
    assert [lane.name for lane in plan.lanes] == [application.name for application in made.applications]
    assert {route.rule for route in plan.routes} == {RouteRule.BY_APPLICATION}
    assert plan.lane_choice is LaneChoice.EARLIEST_START
    for lane in plan.lanes:
        assert (lane.order, lane.late) == (Order.EARLIEST_DEADLINE, Late.DROP_WHEN_INFEASIBLE)
        assert (lane.delays.ahead_ns, lane.may_load) == (5 * NS_PER_MS, True)


def test_the_most_accurate_variant_unless_one_is_named() -> None:
    default = Clockwork()(View(two_variants())).lanes[0]
    named = Clockwork({"app": "small"}, ahead_ns=7)(View(two_variants())).lanes[0]
    assert (default.select, default.workers, default.release) == (Fixed(1), (0, 1), Eager(64))
    assert (named.select, named.workers, named.delays.ahead_ns) == (Fixed(0), (0, 1, 2), 7)


def test_powers_of_two_are_the_largest_that_is_queued_and_fits() -> None:
    made = two_variants()
    (lane,) = Clockwork({"app": "small"}, powers_of_two=True)(View(made)).lanes
    assert isinstance(lane.select, Tables)
    assert [table.kind for table in lane.select.tables] == ["default", "lame"]
    for table in lane.select.tables:
        profile = made.profile(0, table.kind)
        assert (table.variant == 0).all()
        for queued, column in np.ndindex(*table.batch.shape):
            room = min(queued, profile.largest_batch_within(column * table.slack_step_ns))
            fitting = [size for size in (1, 2, 4, 8, 16, 32, 64) if size <= room]
            assert table.batch[queued, column] == (fitting[-1] if fitting else 1)
        assert table.batch.max() == (32 if table.kind == "default" else 16)  # 45 and 20 queries fit 50 ms
