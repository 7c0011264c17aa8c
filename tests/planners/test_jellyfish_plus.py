"""Jellyfish+: the most accurate variant within half the SLO whose average throughput is above the load."""

import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Eager, Fixed, Late, Order, Tables
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.jellyfish_plus import JellyfishPlus, average_throughput
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate
from tests.planners.parts.tasks import image_deployment, needs_measurements, small_deployment


def test_throughput_is_the_average_over_the_batches_within_half_the_slo() -> None:
    """l = 8, 11, 14, 17, 20, 23, 26, 29 ms for the fast one; 15, 20, 25, 30; 25 alone."""
    deployment = small_deployment(3)
    fast = sum(b / (5 + 3 * b) for b in range(1, 9)) / 8 * 1000 * 3
    assert average_throughput(deployment, 0, (0, 1, 2)) == pytest.approx(fast)
    assert average_throughput(deployment, 2, (0, 1, 2)) == pytest.approx(120.0)


@pytest.mark.parametrize(("load", "variant", "cap"), [(119, 2, 1), (121, 1, 4), (400, 0, 8), (1e5, 0, 8)])
def test_the_most_accurate_that_keeps_up(load: float, variant: int, cap: int) -> None:
    deployment = small_deployment(3)
    plan = JellyfishPlus()(View(deployment, expected_rates=(load,)))
    check_plan(plan, deployment)
    (lane,) = plan.lanes
    assert (lane.select, lane.release) == (Fixed(variant), Eager(cap))
    assert (lane.order, lane.late, lane.workers) == (Order.FIRST_COME, Late.KEEP, (0, 1, 2))


def test_each_kind_of_worker_has_its_cap() -> None:
    profiles = (LatencyProfile.linear(3, 5, 8), LatencyProfile.linear(6, 10, 8, "lame"))
    made = Deployment(
        (Application("app", 60 * NS_PER_MS, (Variant("only", 0.6, profiles),)),), workers(2) + workers(1, "lame")
    )
    plan = JellyfishPlus()(View(made, expected_rates=(50.0,)))
    check_plan(plan, made)
    select = plan.lanes[0].select
    assert isinstance(select, Tables)
    assert {table.kind: int(table.batch[0, 0]) for table in select.tables} == {"default": 8, "lame": 3}
    assert simulate(made, JellyfishPlus(), Load(Poisson(), 50.0), seconds=10).summary.bad_rate < 0.01


def test_a_task_without_a_variant_within_half_the_slo_is_refused() -> None:
    with pytest.raises(StrettoError, match="within half its SLO"):
        JellyfishPlus()(View(small_deployment(3, slo_ms=15)))


@needs_measurements
@pytest.mark.parametrize(("load", "accuracy"), [(1200, 0.730), (2000, 0.730), (2800, 0.580)])
def test_the_image_task_reads_as_published(load: float, accuracy: float) -> None:
    found = simulate(image_deployment(), JellyfishPlus(), Load(Poisson(), load), seconds=10).summary
    assert found.accuracy == pytest.approx(accuracy, abs=0.003)
    assert found.bad_rate < 0.01
