"""Clipper: an adaptive cap per application, first come first served, nothing dropped."""

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.plan import AdaptiveCap, Fixed, LaneChoice, Late, Order, RouteRule
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.clipper import Clipper


def deployment() -> Deployment:
    small = Variant("small", 0.6, (LatencyProfile.linear(1, 5, 64), LatencyProfile.linear(2, 10, 32, "lame")))
    large = Variant("large", 0.8, (LatencyProfile.linear(2, 10, 64),))
    first = Application("first", 50 * NS_PER_MS, (small, large))
    second = Application("second", 90 * NS_PER_MS, (small,))
    return Deployment((first, second), workers(2) + workers(1, "lame"))


def test_each_application_finds_its_batch_size() -> None:
    plan = Clipper()(View(deployment()))
    check_plan(plan, deployment())
    assert [lane.release.adaptive_cap for lane in plan.lanes] == [
        AdaptiveCap(50 * NS_PER_MS, 1.0, 0.9, 1.0),
        AdaptiveCap(90 * NS_PER_MS, 1.0, 0.9, 1.0),
    ]
    assert [lane.workers for lane in plan.lanes] == [(0, 1), (0, 1, 2)]
    assert [lane.select for lane in plan.lanes] == [Fixed(1), Fixed(2)]
    for lane in plan.lanes:
        assert (lane.order, lane.late, lane.release.max_batch) == (Order.FIRST_COME, Late.KEEP, 64)
    assert {route.rule for route in plan.routes} == {RouteRule.BY_APPLICATION}
    assert plan.lane_choice is LaneChoice.ROUND_ROBIN


def test_variant_and_steps_can_be_told() -> None:
    plan = Clipper({"first": "small"}, step=2.0, backoff=0.5)(View(deployment()))
    check_plan(plan, deployment())
    assert plan.lanes[0].select == Fixed(0)
    assert plan.lanes[0].release.adaptive_cap == AdaptiveCap(50 * NS_PER_MS, 2.0, 0.5)
