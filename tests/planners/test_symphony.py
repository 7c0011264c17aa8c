"""Symphony's plan, and the floor of batch-aware pruning against equations 2 and 3."""

from __future__ import annotations

import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.plan import Deferred, Eager, Late, Order, WorkerChoice
from stretto.core.profile import NS_PER_MS, LatencyProfile, Quantile
from stretto.core.view import View
from stretto.core.worker import Worker, workers
from stretto.planners.parts.floors import floor_rates
from stretto.planners.symphony import Symphony

RESNET = LatencyProfile.linear(1.053, 5.072)


def deployment(count: int = 3, worker_count: int = 6) -> Deployment:
    applications = tuple(
        Application(f"app-{number}", 25 * NS_PER_MS, (Variant("only", 0.9, (RESNET,)),)) for number in range(count)
    )
    return Deployment(applications, workers(worker_count))


def test_floor_is_the_smallest_batch_that_keeps_up() -> None:
    rates = floor_rates(RESNET, 25 * NS_PER_MS, 8, Quantile.P95)

    def floor(rate: float) -> int:
        return sum(threshold <= rate for threshold in rates)

    for rate in (100.0, 2000.0, 4000.0, 5000.0, 5500.0):
        needed = next(b for b in range(1, 200) if 8 * b / (RESNET.latency_ns(b) / 1e9) >= rate)
        assert floor(rate) == needed


def test_floor_never_exceeds_the_staggered_batch() -> None:
    assert len(floor_rates(RESNET, 25 * NS_PER_MS, 8, Quantile.P95)) == 16  # table 4
    slow = LatencyProfile.linear(5.09, 18.368)
    assert len(floor_rates(slow, 70 * NS_PER_MS, 8, Quantile.P95)) == 8


def test_floor_of_a_model_slower_than_its_slo_gives_nobody_up() -> None:
    assert floor_rates(LatencyProfile.linear(50, 50), 25 * NS_PER_MS, 8, Quantile.P95) == (0.0,)


def test_plan_follows_the_table_of_the_architecture() -> None:
    served = deployment()
    plan = Symphony()(View(served))
    check_plan(plan, served)
    for lane in plan.lanes:
        assert lane.order is Order.EARLIEST_DEADLINE
        assert lane.release == Deferred(when_gathered=False)
        assert lane.late is Late.DROP_WHEN_INFEASIBLE
        assert lane.worker_choice is WorkerChoice.LOWEST_INDEX
        assert lane.workers == tuple(range(6))
        assert lane.release.floor_rates == ()


def test_twin_is_eager_and_otherwise_the_same() -> None:
    view = View(deployment())
    deferred, eager = Symphony()(view).lanes[0], Symphony(deferred=False)(view).lanes[0]
    assert eager.release == Eager()
    assert (eager.order, eager.late, eager.select) == (deferred.order, deferred.late, deferred.select)


def test_floor_thresholds_follow_each_application_s_share_of_the_work() -> None:
    view = View(deployment(), expected_rates=(100.0, 100.0, 1000.0))
    plan = Symphony(batch_aware=True)(view)
    small, large = plan.lanes[0].release.floor_rates, plan.lanes[2].release.floor_rates
    assert large[1] == pytest.approx(10 * small[1])


def test_sub_clusters_share_no_worker_and_leave_none_out() -> None:
    served = deployment(count=4, worker_count=8)
    plan = Symphony(sub_clusters=2)(View(served, expected_rates=(10.0, 10.0, 10.0, 10.0)))
    check_plan(plan, served)
    crews = {lane.workers for lane in plan.lanes}
    assert len(crews) == 2
    first, second = crews
    assert not set(first) & set(second)
    assert set(first) | set(second) == set(range(8))


def test_lanes_are_served_by_the_workers_that_can_run_the_variant() -> None:
    fast = LatencyProfile.linear(1, 1, kind="fast")
    application = Application("app", 25 * NS_PER_MS, (Variant("only", 0.9, (fast,)),))
    served = Deployment((application,), (Worker("a", "fast"), Worker("b", "slow"), Worker("c", "fast")))
    assert Symphony()(View(served)).lanes[0].workers == (0, 2)
