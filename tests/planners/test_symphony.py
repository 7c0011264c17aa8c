"""Symphony's plan, its drop rule, and the floor of batch-aware pruning, against equations 2 and 3."""

from __future__ import annotations

import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Deferred, Delays, Eager, Late, Order, WorkerChoice
from stretto.core.profile import NS_PER_MS, LatencyProfile, Quantile
from stretto.core.view import View
from stretto.core.worker import Worker, workers
from stretto.planners.parts.floors import floor_rates, staggered_rates
from stretto.planners.symphony import Symphony
from stretto.planning.served import served_session
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate

RESNET = LatencyProfile.linear(1.053, 5.072)


def deployment(count: int = 3, worker_count: int = 6) -> Deployment:
    applications = tuple(
        Application(f"app-{number}", 25 * NS_PER_MS, (Variant("only", 0.9, (RESNET,)),)) for number in range(count)
    )
    return Deployment(applications, workers(worker_count))


@pytest.mark.parametrize(
    ("alpha_ms", "beta_ms", "slo_ms", "rates"),
    [
        (1.053, 5.072, 25, (5.0, 40.0, 500.0, 2500.0, 5169.0, 20_000.0)),
        (5.090, 18.368, 70, (5.0, 100.0, 907.0, 5000.0)),
    ],
    ids=["ResNet50", "InceptionResNetV2"],
)
def test_the_target_is_the_staggered_batch(
    alpha_ms: float, beta_ms: float, slo_ms: int, rates: tuple[float, ...]
) -> None:
    """Equation 3 says how many workers, or what part of one, run batches of b at that rate, and equation 2 whether such
    batches are in time on so many.
    """
    profile = LatencyProfile.linear(alpha_ms, beta_ms)
    floors = staggered_rates((profile,), slo_ms * NS_PER_MS, Delays(), Quantile.P95)
    for rate in rates:
        target = 1
        while True:
            latency_s = (alpha_ms * (target + 1) + beta_ms) / 1e3
            workers = rate * latency_s / (target + 1)
            if (1 + 1 / workers) * latency_s > slo_ms / 1e3:
                break
            target += 1
        assert sum(floor <= rate for floor in floors) == target


def test_what_passes_around_a_batch_is_taken_off_the_slo() -> None:
    delays = Delays(control_ns=2 * NS_PER_MS, data_ns=NS_PER_MS // 10)
    slower = LatencyProfile.linear(1.053 + 0.1, 5.072 + 2)
    with_delays = staggered_rates((RESNET,), 25 * NS_PER_MS, delays, Quantile.P95)
    assert with_delays == pytest.approx(staggered_rates((slower,), 25 * NS_PER_MS, Delays(), Quantile.P95))


def test_of_unequal_workers_the_slowest_sets_the_target() -> None:
    slow, slo_ns = LatencyProfile.linear(2.0, 6.0, kind="slow"), 25 * NS_PER_MS
    both = staggered_rates((RESNET, slow), slo_ns, Delays(), Quantile.P95)
    assert both == staggered_rates((slow,), slo_ns, Delays(), Quantile.P95)


@pytest.mark.parametrize("deferred", [True, False])
def test_overload_does_not_make_batches_small(deferred: bool) -> None:
    """Section 5.3: a flat top, because a desirable batch size is kept up. With expiry alone most of it is lost."""
    application = Application("app", 25 * NS_PER_MS, (Variant("only", 0.9, (RESNET,)),))
    served = Deployment((application,), workers(8))
    kept = [
        simulate(served, planner, Load(Poisson(), 10_000.0), seconds=4.0).summary
        for planner in (Symphony(deferred=deferred), Symphony(deferred=deferred, expiry_only=True))
    ]
    assert kept[0].goodput > 5000 > 3000 > kept[1].goodput
    assert kept[0].batch_mean > 12 and kept[1].batch_mean < 6


@pytest.mark.parametrize("name", ["symphony", "symphony_eager"])
@pytest.mark.parametrize("expiry_only", [True, False])
def test_it_is_served_by_its_own_rule_and_no_other(name: str, expiry_only: bool) -> None:
    options = {"expiry_only": expiry_only}
    (lane, *_) = served_session(name, options).first(deployment(), expected_rates=(100.0,) * 3).plan.lanes
    of_the_planner = Symphony(deferred=name == "symphony", expiry_only=expiry_only)(View(deployment()))
    assert lane.release == of_the_planner.lanes[0].release
    assert expiry_only == (sum(floor <= 1e6 for floor in lane.release.floor_rates) == 1)


def test_two_drop_rules_at_once_are_refused() -> None:
    with pytest.raises(StrettoError, match="set one of them"):
        Symphony(expiry_only=True, batch_aware=True)


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
        floors = staggered_rates((RESNET,), 25 * NS_PER_MS, Delays(), Quantile.P95)
        assert lane.release == Deferred(when_gathered=False, floor_rates=floors)
        assert lane.late is Late.DROP_WHEN_INFEASIBLE
        assert lane.worker_choice is WorkerChoice.LOWEST_INDEX
        assert lane.workers == tuple(range(6))


def test_twin_is_eager_and_otherwise_the_same() -> None:
    view = View(deployment())
    deferred, eager = Symphony()(view).lanes[0], Symphony(deferred=False)(view).lanes[0]
    assert eager.release == Eager(floor_rates=deferred.release.floor_rates)
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


def test_an_application_is_taken_to_have_its_own_share_of_the_workers_and_no_more() -> None:
    """Three applications of one model and load, six workers: two for each, times the `room` that is asked for."""
    view = View(deployment(), expected_rates=(100.0, 100.0, 100.0))
    for options, share in (({}, 2.0), ({"room": 1.5}, 3.0)):
        for lane in Symphony(batch_aware=True, **options)(view).lanes:
            assert lane.release == Deferred(
                when_gathered=False,
                floor_rates=pytest.approx(floor_rates(RESNET, 25 * NS_PER_MS, share, Quantile.P95)),
            )
