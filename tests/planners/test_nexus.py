"""Nexus: the packed shares as worker lanes and weighted routes."""

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Eager, Fixed, LaneChoice, Late, Order, RouteRule
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.published import published_table
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.nexus import Nexus
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate

GIB = 2**30


def model_zoo(count: int, memory_bytes: int = 11 * GIB) -> Deployment:
    rows = published_table("symphony_1080ti")
    applications = tuple(
        Application(
            row.name, round(row.slo_ms * NS_PER_MS), (Variant("only", 0.7, (row.profile(),), GIB // 4, 3 * GIB),)
        )
        for row in rows
    )
    return Deployment(applications, workers(count, memory_bytes=memory_bytes))


def resnet(count: int, applications: int = 1, slo_ms: int = 25) -> Deployment:
    variant = Variant("only", 0.7, (LatencyProfile.linear(1.053, 5.072),))
    made = tuple(Application(f"app-{number}", slo_ms * NS_PER_MS, (variant,)) for number in range(applications))
    return Deployment(made, workers(count))


@pytest.mark.parametrize("count", [4, 16, 64, 150])
def test_plans_fit_their_deployment(count: int) -> None:
    made = model_zoo(count)
    rates = tuple(float(rate) for rate in np.random.default_rng(count).exponential(100, len(made.applications)))
    for view in (View(made), View(made, expected_rates=rates)):
        plan = Nexus()(view)
        check_plan(plan, made)
        assert {worker for lane in plan.lanes for worker in lane.workers} == set(range(count))
        assert plan.lane_choice is LaneChoice.ROUND_ROBIN
        assert plan.placement is not None
        held = [set() for _ in range(count)]  # type: list[set[int]]
        for lane in plan.lanes:
            assert isinstance(lane.select, Fixed)
            held[lane.workers[0]].add(lane.select.variant)
        assert [set(variants) for variants in plan.placement] == held


def test_a_lane_is_one_worker_at_the_planned_batch() -> None:
    plan = Nexus()(View(resnet(8)))
    assert [lane.workers for lane in plan.lanes] == [(worker,) for worker in range(8)]
    for lane in plan.lanes:
        assert (lane.order, lane.late) == (Order.FIRST_COME, Late.DROP_WHEN_DISPATCHED)
        assert lane.release == Eager(7, floor_rates=(0.0,) * 7)  # Symphony table 4, no coordination
    assert (plan.routes[0].rule, plan.routes[0].lanes) == (RouteRule.DEALT, tuple(range(8)))


def test_unequal_shares_are_weighted_and_a_single_lane_needs_no_choice() -> None:
    made = resnet(5, applications=2, slo_ms=60)
    plan = Nexus()(View(made, expected_rates=(35.0, 10.0)))
    for number, route in enumerate(plan.routes):
        assert all(plan.lanes[lane].name.startswith(f"app-{number}@") for lane in route.lanes)
        if route.rule is RouteRule.DEALT:
            assert sum(route.weights) == pytest.approx(1)
            assert max(route.weights) - min(route.weights) > 1e-6
    assert RouteRule.DEALT in {route.rule for route in plan.routes}
    single = Nexus()(View(resnet(3, applications=3)))
    assert {route.rule for route in single.routes} == {RouteRule.BY_APPLICATION}


def test_filling_takes_what_gathered_and_keeps_the_window() -> None:
    """Section 2.2 of Symphony: "batches of currently accumulated requests"; heads go for a batch as planned."""
    (lane, *_) = Nexus(filling=True)(View(resnet(8))).lanes
    assert lane.release == Eager(floor_rates=(0.0,) * 7)


def test_front_ends_are_the_routes_affair() -> None:
    made = resnet(8)
    one, eight = Nexus()(View(made)), Nexus(front_ends=8)(View(made))
    assert eight.lanes == one.lanes and eight.routes[0].front_ends == 8 and one.routes[0].front_ends == 1


def test_distributed_dispatch_costs_goodput() -> None:
    """Section 3.3 and figure 1: the same nodes answer fewer queries in time where several front ends deal."""
    bad = [
        simulate(resnet(8), Nexus(front_ends=count), Load(Poisson(), 4200.0), seconds=5.0).summary.bad_rate
        for count in (1, 25)
    ]
    assert bad[0] < 0.01 < 0.02 < bad[1]


def test_workers_go_where_the_load_is() -> None:
    plan = Nexus()(View(resnet(12, applications=2), expected_rates=(300.0, 100.0)))
    assert [len(route.lanes) for route in plan.routes] == [9, 3]


def test_an_application_without_arrivals_keeps_a_lane() -> None:
    made = resnet(6, applications=3)
    plan = Nexus()(View(made, expected_rates=(100.0, 0.0, 100.0)))
    check_plan(plan, made)
    assert len(plan.routes[1].lanes) >= 1


def test_dead_workers_get_no_lane() -> None:
    made = resnet(4)
    alive = np.array([True, False, True, True])
    plan = Nexus()(View(made, alive=alive))
    assert [lane.workers for lane in plan.lanes] == [(0,), (2,), (3,)]
    gone = Nexus()(View(made, alive=np.zeros(4, np.bool_)))
    assert len(gone.lanes) == 4


def test_unequal_workers_are_planned_for_the_slowest() -> None:
    quick, lame = LatencyProfile.linear(1, 4, 64, "quick"), LatencyProfile.linear(2, 8, 32, "lame")
    made = Deployment(
        (Application("app", 40 * NS_PER_MS, (Variant("v", 0.7, (quick, lame)),)),),
        workers(2, "quick") + workers(2, "lame"),
    )
    plan = Nexus()(View(made))
    check_plan(plan, made)
    assert {lane.release.max_batch for lane in plan.lanes} == {6}  # 2·(2·6 + 8) ms


def test_no_worker_for_everything_is_refused() -> None:
    one, other = (
        Application(kind, 40 * NS_PER_MS, (Variant("v", 0.7, (LatencyProfile.linear(1, 4, 64, kind),)),))
        for kind in ("x", "y")
    )
    with pytest.raises(StrettoError, match="no worker can run every"):
        Nexus()(View(Deployment((one, other), workers(1, "x") + workers(1, "y"))))


def test_same_view_same_plan() -> None:
    made = model_zoo(16)
    assert Nexus()(View(made)) == Nexus()(View(made))
