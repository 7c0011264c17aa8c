"""Clockwork, Clipper and the fixed-delay batcher: one lane per application, each with the rules that name the system."""

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Accumulate, AdaptiveCap, Eager, Fixed, LaneChoice, Late, Order, RouteRule, Tables
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.published import published_table
from stretto.core.telemetry import Planner, View
from stretto.core.worker import workers
from stretto.planners.clipper import Clipper
from stretto.planners.clockwork import Clockwork
from stretto.planners.fixed_delay import FixedDelay


def model_zoo() -> Deployment:
    rows = published_table("symphony_1080ti")
    applications = tuple(
        Application(row.name, round(row.slo_ms * NS_PER_MS), (Variant("only", 0.7, (row.profile(),)),)) for row in rows
    )
    return Deployment(applications, workers(8))


def two_variants() -> Deployment:
    small = Variant("small", 0.6, (LatencyProfile.linear(1, 5, 64), LatencyProfile.linear(2, 10, 32, "lame")))
    large = Variant("large", 0.8, (LatencyProfile.linear(2, 10, 64),))
    return Deployment((Application("app", 50 * NS_PER_MS, (small, large)),), workers(2) + workers(1, "lame"))


@pytest.mark.parametrize(
    "planner", [Clockwork(), Clockwork(powers_of_two=True), Clipper(), FixedDelay()], ids=lambda planner: repr(planner)
)
@pytest.mark.parametrize("made", [model_zoo(), two_variants()], ids=["zoo", "two kinds"])
def test_plans_fit_their_deployment(planner: Planner, made: Deployment) -> None:
    plan = planner(View(made))
    check_plan(plan, made)
    assert [lane.name for lane in plan.lanes] == [application.name for application in made.applications]
    assert {route.rule for route in plan.routes} == {RouteRule.BY_APPLICATION}


@pytest.mark.parametrize("planner", [Clockwork, Clipper, FixedDelay])
def test_a_named_variant_runs_on_the_workers_that_can(planner: type) -> None:
    made = two_variants()
    default, named = planner()(View(made)).lanes[0], planner(variants={"app": "small"})(View(made)).lanes[0]
    assert (default.select, default.workers) == (Fixed(1), (0, 1))
    assert (named.select, named.workers) == (Fixed(0), (0, 1, 2))


def test_clockwork() -> None:
    plan = Clockwork()(View(two_variants()))
    (lane,) = plan.lanes
    assert plan.lane_choice is LaneChoice.EARLIEST_START
    assert (lane.order, lane.late) == (Order.EARLIEST_DEADLINE, Late.DROP_WHEN_INFEASIBLE)
    assert (lane.release, lane.ahead_ns, lane.may_load) == (Eager(64), 5 * NS_PER_MS, True)


def test_clockwork_as_published_runs_the_largest_power_of_two_that_fits() -> None:
    made = two_variants()
    (lane,) = Clockwork(variants={"app": "small"}, powers_of_two=True)(View(made)).lanes
    assert isinstance(lane.select, Tables)
    assert [table.kind for table in lane.select.tables] == ["default", "lame"]
    for table in lane.select.tables:
        profile = made.profile(0, table.kind)
        assert (table.variant == 0).all()
        for queued, column in np.ndindex(*table.batch.shape):
            room = min(queued, profile.largest_batch_within(column * table.slack_step_ns))
            fitting = [size for size in (1, 2, 4, 8, 16, 32, 64) if size <= room]
            assert table.batch[queued, column] == (fitting[-1] if fitting else 1)
        assert table.batch.max() == (32 if table.kind == "default" else 16)  # 5 + 45 ms, 10 + 2·20 ms


def test_clipper() -> None:
    plan = Clipper()(View(two_variants()))
    (lane,) = plan.lanes
    assert (lane.order, lane.late, lane.release) == (Order.FIRST_COME, Late.KEEP, Eager(64))
    assert lane.adaptive_cap == AdaptiveCap(50 * NS_PER_MS, 1.0, 0.9, 1.0)
    assert plan.lane_choice is LaneChoice.ROUND_ROBIN


def test_fixed_delay_defaults_come_from_the_profile() -> None:
    (lane,) = FixedDelay()(View(two_variants())).lanes
    assert (lane.order, lane.late) == (Order.FIRST_COME, Late.KEEP)
    assert lane.release == Accumulate(7, round(12.5 * NS_PER_MS), 7)  # 10 + 2·7 ms is within 25 ms
    (slower,) = FixedDelay(variants={"app": "small"})(View(two_variants())).lanes
    assert slower.release == Accumulate(7, round(12.5 * NS_PER_MS), 7)  # the lame worker: 10 + 2·7 ms again


@pytest.mark.parametrize(
    ("planner", "release"),
    [
        (FixedDelay(preferred_batch=4), Accumulate(4, 12_500_000, 7)),
        (FixedDelay(preferred_batch=9), Accumulate(9, 12_500_000, 9)),
        (FixedDelay(max_batch=5), Accumulate(5, 12_500_000, 5)),
        (FixedDelay(max_batch=5, preferred_batch=9), Accumulate(5, 12_500_000, 5)),
        (FixedDelay(max_batch=4096), Accumulate(64, 12_500_000, 64)),
        (FixedDelay(delay_ns=0), Accumulate(7, 0, 7)),
        (FixedDelay(delay_share=0.1), Accumulate(7, 5_000_000, 7)),
    ],
)
def test_fixed_delay_can_be_told(planner: FixedDelay, release: Accumulate) -> None:
    plan = planner(View(two_variants()))
    check_plan(plan, two_variants())
    assert plan.lanes[0].release == release


def test_fixed_delay_refuses_a_share_above_the_slo() -> None:
    with pytest.raises(StrettoError, match="between 0 and 1"):
        FixedDelay(delay_share=1.5)(View(two_variants()))
