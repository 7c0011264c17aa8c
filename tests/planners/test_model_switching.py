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
from stretto.sim.responses import already_measured, measure_responses
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


@needs_measurements
def test_the_image_task_reads_as_published() -> None:
    """60 workers, 150 ms: mobilenet at 1200, 2000 and 2800 queries/s."""
    deployment = image_deployment()
    planner = ModelSwitching(already_measured(measure_responses(deployment, [1200, 2000, 2800], simulated)))
    for load in (1200, 2000, 2800):
        assert deployment.variants[chosen(planner, deployment, load)].name == "mobilenet_v3_large"
