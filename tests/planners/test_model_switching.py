"""ModelSwitching: the most accurate variant whose measured p99 holds, and no guess where nothing was measured."""

import math
from dataclasses import replace

import pytest

from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Eager, Fixed, Late, Order, RouteRule
from stretto.core.view import Planner, View
from stretto.core.worker import workers
from stretto.planners.model_switching import ModelSwitching
from stretto.planners.parts.responses import Responses
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.responses import already_measured, measure_responses, measured_responses
from stretto.sim.simulator import simulate
from tests.planners.parts.tasks import image_deployment, needs_measurements, small_deployment

SLO_NS = 60e6


def by_table(deployment: Deployment, planner: Planner, load: float) -> float:
    """Response grows with the load, faster for slower variants."""
    (lane,) = planner(View(deployment)).lanes
    assert isinstance(lane.select, Fixed)
    return SLO_NS * load / (240.0, 120.0, 60.0, 1.0)[lane.select.variant]


def simulated(deployment: Deployment, planner: Planner, load: float) -> float:
    source = Load(Poisson(), load)
    runs = [simulate(deployment, planner, source, seconds=30, seed=seed).summary for seed in (1, 2, 3)]
    return sorted(run.latency_ms["p99"] for run in runs)[1] * 1e6


def chosen(planner: ModelSwitching, deployment: Deployment, load: float) -> int:
    (lane,) = planner(View(deployment, expected_rates=(load,))).lanes
    assert isinstance(lane.select, Fixed)
    return lane.select.variant


def test_the_most_accurate_variant_that_holds_at_the_load() -> None:
    deployment = small_deployment(3)
    planner = ModelSwitching(already_measured(measure_responses(deployment, [50, 60, 100, 120, 200], by_table)))
    assert [chosen(planner, deployment, load) for load in (10, 60, 61, 119, 121, 200)] == [2, 2, 1, 1, 0, 0]
    assert chosen(planner, deployment, 1000) == 0  # beyond what was measured: the fastest
    plan = planner(View(deployment, expected_rates=(60.0,)))
    check_plan(plan, deployment)
    (lane,) = plan.lanes
    assert (lane.order, lane.late, lane.workers) == (Order.FIRST_COME, Late.KEEP, (0, 1, 2))
    assert lane.release == Eager(1)  # 16 + 9·b within 30 ms
    assert plan.routes[0].rule is RouteRule.BY_APPLICATION


def test_hopeless_loads_are_not_measured() -> None:
    asked: list[float] = []

    def measure(deployment: Deployment, planner: Planner, load: float) -> float:
        asked.append(load)
        return 3 * SLO_NS

    found = measure_responses(small_deployment(3), [10, 20, 1e6], measure)["app"]
    assert asked == [10, 10, 10]
    assert all(p99[1:] == (math.inf, math.inf) for p99 in found.p99_ns.values())
    assert set(found.p99_ns) == {"fast", "middle", "slow"}


def test_other_measurements_are_refused() -> None:
    deployment = small_deployment(3)
    with pytest.raises(StrettoError, match="nothing here measures them"):
        ModelSwitching()(View(deployment))
    with pytest.raises(StrettoError, match="no response latencies were measured for application app"):
        ModelSwitching(already_measured({}))(View(deployment))
    measured = measure_responses(deployment, [50], by_table)
    with pytest.raises(StrettoError, match="were measured for another workers"):
        ModelSwitching(already_measured(measured))(View(replace(deployment, workers=workers(4))))
    assert isinstance(measured["app"], Responses)


def test_a_variant_that_takes_longer_than_half_the_slo_may_be_chosen() -> None:
    """The published rule asks for p99 ≤ SLO: one query takes the slow variant 25 ms, and the SLO is 40 ms."""
    deployment = small_deployment(3, slo_ms=40)
    measured = measure_responses(deployment, [5.0], simulated)
    assert measured["app"].p99_ns["slow"][0] <= 40e6
    assert chosen(ModelSwitching(already_measured(measured)), deployment, 5.0) == 2


def test_the_cap_is_that_of_the_most_accurate_variant_that_keeps_up() -> None:
    """Within 30 ms three workers answer 120/s one by one with the slow variant, 400/s with four in the middle one."""
    deployment = small_deployment(3)
    loads = [100.0, 130.0, 390.0, 410.0, 1000.0]
    planner = ModelSwitching(already_measured(measure_responses(deployment, loads, by_table)))
    found = []
    for load in (90.0, 125.0, 300.0, 405.0, 900.0, 5000.0):
        (lane,) = planner(View(deployment, expected_rates=(load,))).lanes
        assert isinstance(lane.release, Eager)
        found.append(lane.release.max_batch)
    assert found == [1, 4, 4, 8, 8, 8]


@needs_measurements
@pytest.mark.parametrize(
    ("count", "load", "name"),
    [
        *((60, 400, "efficientnet_v2_s"), (60, 1200, "mobilenet_v3_large")),
        *((70, 600, "efficientnet_b4"), (70, 1000, "efficientnet_b2")),
        *((80, 800, "efficientnet_b3"), (80, 1400, "efficientnet_b0")),
    ],
)
def test_the_image_task_chooses_as_the_published_policies_do(count: int, load: int, name: str) -> None:
    """The files of policies that come with the published code, for 150 ms."""
    deployment = image_deployment(count)
    measured = measured_responses(deployment, [load], seconds=5)
    number = chosen(ModelSwitching(already_measured(measured)), deployment, load)
    assert deployment.variants[number].name == name
