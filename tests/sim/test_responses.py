"""Response latencies by simulation: what a run of that variant alone shows, on a grid that reaches far enough."""

import math
from itertools import pairwise

import pytest

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Fixed, by_application
from stretto.core.view import View
from stretto.planners.model_switching import ModelSwitching, caps_at
from stretto.planners.parts.central import central_lane
from stretto.planners.ports import Ports
from stretto.planners.registry import planner_entry
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.responses import LOAD_STEP, already_measured, largest_throughput, load_grid, measured_responses
from stretto.sim.service import Lognormal
from stretto.sim.simulator import simulate
from tests.planners.parts.tasks import small_deployment
from tests.planners.ramsis.test_planner import two_applications


def p99_ns(deployment: Deployment, variant: int, load: float, seed: int) -> float:
    """A central queue with one variant, by hand."""
    every = tuple(range(len(deployment.workers)))
    plan = by_application((central_lane(deployment, 0, every, variant, caps(deployment, load)),))
    run = simulate(deployment, lambda view: plan, Load(Poisson(), load), seconds=20, seed=seed)
    return run.summary.latency_ms["p99"] * 1e6


def caps(deployment: Deployment, load: float) -> dict[str, int]:
    return caps_at(deployment, 0, tuple(range(len(deployment.workers))), load)


def test_it_measures_what_a_run_of_the_variant_shows() -> None:
    deployment = small_deployment(3)
    found = measured_responses(deployment, [40.0, 100.0], seconds=20, seeds=(1, 2, 3))["app"]
    assert found.loads == (40.0, 100.0)
    for variant, name in enumerate(("fast", "middle", "slow")):
        for place, load in enumerate(found.loads):
            if load < largest_throughput(deployment, variant, caps(deployment, load)):
                three = sorted(p99_ns(deployment, variant, load, seed) for seed in (1, 2, 3))
                assert found.p99_ns[name][place] == three[1]


def test_what_comes_out_is_what_the_planner_takes() -> None:
    deployment = small_deployment(3)
    heard: list[float] = []
    responses = measured_responses(deployment, progress=heard.append)
    assert heard == sorted(heard) and heard[-1] == 1.0
    planner = planner_entry("model_switching").make({}, ports=Ports(responses=already_measured(responses)))
    assert isinstance(planner, ModelSwitching)
    chosen = []
    for load in (1.0, 60.0, 150.0, 400.0, 10_000.0):
        (lane,) = planner(View(deployment, expected_rates=(load,))).lanes
        assert isinstance(lane.select, Fixed)
        chosen.append(lane.select.variant)
    assert chosen[0] == 2 and chosen[-1] == 0 and chosen == sorted(chosen, reverse=True)


def test_the_choice_keeps_p99_within_the_slo_and_a_better_one_would_not() -> None:
    deployment = small_deployment(3)
    responses = measured_responses(deployment, [50.0, 100.0, 150.0, 200.0], seconds=20)["app"]
    for place, load in enumerate(responses.loads):
        able = [name for name, p99 in responses.p99_ns.items() if p99[place] <= 60e6]
        for variant, name in enumerate(("fast", "middle", "slow")):
            assert (name in able) == (p99_ns(deployment, variant, load, 1) <= 60e6)


def test_the_grid_reaches_the_fastest_variant_of_every_application() -> None:
    deployment = two_applications()
    grid = load_grid(deployment, (60.0, 20.0))
    assert all(high / low == pytest.approx(LOAD_STEP) for low, high in pairwise(grid))
    alone = load_grid(small_deployment(3))
    assert alone[-1] == pytest.approx(largest_throughput(small_deployment(3), 0, {"default": 8}))
    assert alone[0] <= 0.02 * alone[-1] * LOAD_STEP
    assert load_grid(small_deployment(6))[-1] == pytest.approx(2 * alone[-1])


def test_workers_are_shared_out_as_when_it_plans() -> None:
    deployment, rates = two_applications(), (1.0, 100.0)
    responses = measured_responses(deployment, [5.0], rates=rates, seconds=2)
    plan = ModelSwitching(already_measured(responses))(View(deployment, expected_rates=rates))
    assert {worker for lane in plan.lanes for worker in lane.workers} == {0, 1, 2, 3}
    with pytest.raises(StrettoError, match="were measured for another workers"):
        ModelSwitching(already_measured(responses))(View(deployment, expected_rates=(1000.0, 1.0)))


def test_noise_is_part_of_what_is_measured() -> None:
    plain, noisy = (
        measured_responses(small_deployment(3), [40.0], seconds=20, service=service)["app"].p99_ns["slow"][0]
        for service in (None, Lognormal(0.5))
    )
    assert plain < noisy < math.inf


def test_at_least_one_seed() -> None:
    with pytest.raises(StrettoError, match="at least one seed"):
        measured_responses(small_deployment(1), [1.0], seeds=())
