"""Joint: what it plans for unequal workers, and how that does."""

import time

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.plan import Tables, WorkerChoice
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.joint.planner import Joint
from stretto.planners.parts.fluid import shares_of_kinds
from stretto.planners.parts.task import task_of
from stretto.sim.arrivals import Load, Weights
from stretto.sim.bounds import fluid_accuracy
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate


def profile(kind: str, *latency_ms: float) -> LatencyProfile:
    row = np.array([0, *(int(ms * 1e6) for ms in latency_ms)])
    return LatencyProfile(np.tile(row, (len(Quantile), 1)), kind)


def edge() -> Deployment:
    light = Variant("light", 0.7769, (profile("light", 9.9),))
    heavy = Variant("heavy", 0.8278, (profile("heavy", 33.3),))
    return Deployment(
        (Application("edge", 300_000_000, (light, heavy)),), workers(2, "light") + workers(2, "heavy"), Quantile.MEAN
    )


def many(count: int) -> Deployment:
    """Applications of three variants on two kinds, one of them three times as fast."""
    applications = []
    for number in range(count):
        variants = []
        for place, (accuracy, ms) in enumerate(((0.6, 8.0), (0.75, 20.0), (0.85, 55.0))):
            row = [ms * (0.6 + 0.4 * size) for size in range(1, 9)]
            kinds = (profile("slow", *row), profile("fast", *(value / 3 for value in row)))
            variants.append(Variant(f"v{place}", accuracy + 0.01 * number, kinds))
        applications.append(Application(f"app{number}", 200_000_000, tuple(variants)))
    return Deployment(tuple(applications), workers(8, "slow") + workers(4, "fast"), Quantile.MEAN)


def test_the_heavy_kind_comes_first_and_the_light_one_may_leave_queries() -> None:
    deployment = edge()
    plan = Joint()(View(deployment, expected_rates=(10.0,)))
    check_plan(plan, deployment)
    (lane,) = plan.lanes
    assert lane.worker_choice == WorkerChoice.PREFERENCE
    assert lane.workers == (2, 3, 0, 1)
    assert isinstance(lane.select, Tables)
    by_kind = {table.kind: table for table in lane.select.tables}
    assert by_kind["light"].variant[1, -1] == -1 and by_kind["light"].variant[1, 3] == 0
    assert by_kind["heavy"].variant[1, -1] == 1


@pytest.mark.parametrize(("rate", "points"), [(10.0, 0.002), (100.0, 0.004), (180.0, 0.004)])
def test_nearly_the_fluid_bound(rate: float, points: float) -> None:
    deployment = edge()
    plan = Joint()(View(deployment, expected_rates=(rate,)))
    summary = simulate(deployment, lambda view: plan, Load(Poisson(), rate), seconds=200.0, seed=3).summary
    assert summary.on_time_rate == 1.0
    assert summary.correct_on_time > fluid_accuracy(deployment, [rate]).correct_share - points


def test_several_applications() -> None:
    deployment = many(3)
    rates = (60.0, 30.0, 10.0)
    plan = Joint()(View(deployment, expected_rates=rates))
    check_plan(plan, deployment)
    assert [lane.name for lane in plan.lanes] == ["app0", "app1", "app2"]
    summary = simulate(
        deployment, lambda view: plan, Load(Poisson(), sum(rates), Weights((6, 3, 1))), seconds=60.0
    ).summary
    assert summary.on_time_rate > 0.995
    assert summary.correct_on_time > fluid_accuracy(deployment, rates).correct_share - 0.03


def test_the_same_load_gives_the_very_same_plan() -> None:
    deployment, planner = many(2), Joint()
    first = planner(View(deployment, rates=np.array([50.0, 20.0])))
    assert planner(View(deployment, rates=np.array([50.1, 20.1]))) is first
    assert planner(View(deployment, rates=np.array([150.0, 20.0]))) is not first


def test_workers_that_are_gone_and_slower_ones() -> None:
    deployment = edge()
    without = Joint()(View(deployment, expected_rates=(10.0,), alive=np.array([True, True, False, False])))
    assert without.lanes[0].workers == (0, 1)
    ratio = np.full((2, 2), 3.0)
    slower = Joint()(View(deployment, rates=np.array([10.0]), latency_ratio=ratio, is_measured=np.ones((2, 2), bool)))
    check_plan(slower, deployment)
    (lane,) = slower.lanes
    assert isinstance(lane.select, Tables)
    assert {table.kind: int((table.variant[1] < 0).sum()) for table in lane.select.tables}["light"] < 40


def test_workers_too_slow_for_any_query_are_planned_as_profiled() -> None:
    """Measured twice as slow, nothing is answered in time; there is a plan all the same, for somebody must serve."""
    heavy = Variant("heavy", 0.8, (profile("slow", 33.0), profile("slower", 36.0)))
    for kinds in (("slow",), ("slow", "slower")):
        crew = tuple(worker for kind in kinds for worker in workers(1, kind))
        deployment = Deployment((Application("edge", 40_000_000, (heavy,)),), crew, Quantile.MEAN)
        shape = (1, len(kinds))
        view = View(
            deployment,
            rates=np.array([10.0]),
            latency_ratio=np.full(shape, 2.0),
            is_measured=np.ones(shape, np.bool_),
        )
        plan = Joint()(view)
        check_plan(plan, deployment)
        assert [lane.workers for lane in plan.lanes] == [(len(kinds) - 1,)], kinds


def test_one_kind_that_is_quick_enough_serves_alone() -> None:
    both = Variant("v", 0.8, (profile("quick", 30.0), profile("lame", 39.0)))
    crew = workers(1, "quick") + workers(1, "lame")
    deployment = Deployment((Application("edge", 40_000_000, (both,)),), crew, Quantile.MEAN)
    ratio = np.array([[1.0, 2.0]])
    plan = Joint()(View(deployment, rates=np.array([10.0]), latency_ratio=ratio, is_measured=np.ones((1, 2), np.bool_)))
    assert [lane.workers for lane in plan.lanes] == [(0,)]


def test_shares_add_up_to_the_workers() -> None:
    deployment = many(3)
    tasks = [{kind: task_of(deployment, n, name) for kind, name in enumerate(deployment.kinds)} for n in range(3)]
    shares = shares_of_kinds(tasks, [60.0, 30.0, 10.0], [8, 4])
    assert shares.sum(axis=0) == pytest.approx([8.0, 4.0])
    assert (shares >= 0).all() and (shares.sum(axis=1) > 0).all()


def test_nine_applications_are_planned_quickly() -> None:
    deployment, planner = many(9), Joint()
    rates = np.full(9, 12.0)
    planner(View(deployment, rates=rates))
    began = time.process_time()
    planner(View(deployment, rates=rates * 1.5, now_ns=10**8))
    assert time.process_time() - began < 2.0  # 0.1 on an idle machine
