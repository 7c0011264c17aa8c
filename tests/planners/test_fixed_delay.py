"""The fixed-delay batcher: defaults that follow from profile and SLO, each of which can be told."""

import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Accumulate, Fixed, LaneChoice, Late, Order, RouteRule
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.fixed_delay import FixedDelay


def deployment(slo_ms: int = 50) -> Deployment:
    small = Variant("small", 0.6, (LatencyProfile.linear(1, 5, 64), LatencyProfile.linear(3, 8, 32, "lame")))
    large = Variant("large", 0.8, (LatencyProfile.linear(2, 10, 64),))
    return Deployment((Application("app", slo_ms * NS_PER_MS, (small, large)),), workers(2) + workers(1, "lame"))


def test_defaults_come_from_the_profile() -> None:
    plan = FixedDelay()(View(deployment()))
    check_plan(plan, deployment())
    (lane,) = plan.lanes
    assert (lane.select, lane.workers, lane.order, lane.late) == (Fixed(1), (0, 1), Order.FIRST_COME, Late.KEEP)
    assert lane.release == Accumulate(7, 12_500_000, 7)  # 10 + 2·7 ms is within 25 ms
    assert plan.routes[0].rule is RouteRule.BY_APPLICATION
    assert plan.lane_choice is LaneChoice.ROUND_ROBIN


def test_the_batch_suits_the_slowest_kind_that_may_run_it() -> None:
    (lane,) = FixedDelay({"app": "small"})(View(deployment())).lanes
    assert lane.workers == (0, 1, 2)
    assert lane.release.max_batch == 5  # 8 + 3·5 ms on the lame worker


def test_a_tight_slo_leaves_batches_of_one() -> None:
    (lane,) = FixedDelay({"app": "large"})(View(deployment(slo_ms=13))).lanes
    assert lane.release == Accumulate(1, 3_250_000, 1)


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
def test_everything_can_be_told(planner: FixedDelay, release: Accumulate) -> None:
    plan = planner(View(deployment()))
    check_plan(plan, deployment())
    assert plan.lanes[0].release == release


def test_a_delay_beyond_the_slo_is_refused() -> None:
    with pytest.raises(StrettoError, match="between 0 and 1"):
        FixedDelay(delay_share=1.5)(View(deployment()))
