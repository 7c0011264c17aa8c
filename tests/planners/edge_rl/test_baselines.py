"""The M/D/1 tail against simulation, and what the approaches that edge RL compares itself with do."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.plan import Late, RouteRule, Tables
from stretto.core.profile import LatencyProfile
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.edge_rl.baselines import (
    Heavyweight,
    Infaas,
    Lightweight,
    SingleQueue,
    infaas_shares,
    stationary_shares,
)
from stretto.planners.edge_rl.instances import instances_of
from stretto.planners.edge_rl.waiting import is_late, queue_lengths, waits_longer
from stretto.planners.leave_it import LeaveIt
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate
from stretto.training.settings import instance_deployment

SERVICE_MS, ACCURACY, SLO_MS = (9.9, 33.3), (0.7769, 0.8278), 300.0


def four() -> Deployment:
    return instance_deployment((2, 2), SERVICE_MS, ACCURACY, SLO_MS)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.85])
def test_the_tail_of_waiting_is_that_of_a_simulation(load: float) -> None:
    random = np.random.default_rng(7)
    gaps = random.exponential(1 / load, 2_000_000)
    waits = np.empty(len(gaps))
    wait = 0.0
    for number, gap in enumerate(gaps):  # Lindley
        waits[number] = wait
        wait = max(0.0, wait + 1.0 - gap)
    for services in (0.5, 1.0, 2.5, 8.0):
        seen = float((waits > services).mean())
        assert waits_longer(load, services) == pytest.approx(seen, abs=4e-3, rel=0.1)
    assert queue_lengths(load, 60).sum() == pytest.approx(1, abs=1e-3)
    assert waits_longer(load, 0.0) == pytest.approx(load)  # an arrival finds the server busy


def test_late_at_the_brink() -> None:
    assert (
        is_late(10.0, 400e6, 300e6) == 1.0
        and is_late(40.0, 33.3e6, 300e6) == 1.0
        and is_late(0.0, 33.3e6, 300e6) == 0.0
    )


def test_the_stationary_shares_are_the_largest_that_keep_the_tail() -> None:
    crew = instances_of(four())
    lull, burst = (stationary_shares(crew, rate, 300_000_000, 0.02) for rate in (10.0, 180.0))
    assert lull.tolist() == [0, 0, 0.5, 0.5] and burst.sum() == pytest.approx(1)
    heavy = burst[2] * 180
    assert is_late(heavy, 33.3e6, 300e6) <= 0.02 < is_late(heavy * 1.03, 33.3e6, 300e6)
    assert stationary_shares(crew, 180.0, 300_000_000, 0.02, tenths=True).tolist() == pytest.approx(
        [0.4, 0.4, 0.1, 0.1]
    )
    flooded = stationary_shares(crew, 1000.0, 300_000_000, 0.02)
    assert flooded.sum() == pytest.approx(1) and (flooded > 0).all()


def test_one_model_everywhere() -> None:
    deployment = four()
    light, heavy = Lightweight()(View(deployment)), Heavyweight()(View(deployment))
    assert [lane.workers for lane in light.lanes] == [(0,), (1,)] and [lane.workers for lane in heavy.lanes] == [
        (2,),
        (3,),
    ]
    assert light.routes[0].rule is RouteRule.ROUND_ROBIN and {lane.late for lane in heavy.lanes} == {Late.KEEP}
    assert {lane.late for lane in Heavyweight(early=True)(View(deployment)).lanes} == {Late.DROP_WHEN_INFEASIBLE}
    without = Heavyweight()(View(deployment, alive=np.array([True, True, True, False])))
    assert without.routes[0].lanes == (0,)


def test_both_readings_of_the_single_queue() -> None:
    shares = {}
    for prefer in (False, True):
        run = simulate(four(), SingleQueue(prefer), Load(Poisson(), 10.0), seconds=2000).summary
        shares[prefer] = {each.name: each.share for each in run.applications[0].variants}["heavy"]
        assert run.bad_rate == 0
    crowd = simulate(four(), SingleQueue(), Load(Poisson(), 200.0), seconds=20).summary.applications[0]
    assert {variant.batch_mean for variant in crowd.variants} == {1.0}, "an instance takes one query at a time"
    assert shares[False] == pytest.approx(0.5, abs=0.05) and shares[True] == pytest.approx(0.96, abs=0.01)


def test_infaas_asks_the_model_with_the_fewest_waiting_and_takes_turns() -> None:
    crew = instances_of(four())
    lengths = np.array([[0, 0, 0, 0], [0, 0, 0, 0], [5, 1, 1, 1], [1, 1, 0, 3]])
    shares, chosen = infaas_shares(crew, lengths, np.array([0, 1, 0, 1]))
    assert chosen.tolist() == [1, 0, 1, 0]
    assert shares[0].tolist() == [0, 0, 0.5, 0.5] and shares[1].tolist() == [0.5, 0.5, 0, 0]
    planner = Infaas()
    turns = [planner(View(four())).routes[0].weights for _ in range(2)]
    assert turns[0] != turns[1]


def test_a_light_instance_leaves_queries_until_a_heavy_one_would_be_late() -> None:
    (lane,) = LeaveIt()(View(four())).lanes
    assert isinstance(lane.select, Tables) and lane.workers == (2, 3, 0, 1)
    light = next(table for table in lane.select.tables if table.kind == "light")
    assert light.edges_ns == (66_600_000,)
    assert (light.variant[1:, 0] == 0).all() and (light.variant[:19, 1] == -1).all() and light.variant[-1, 1] == 0
    quiet = simulate(four(), LeaveIt(), Load(Poisson(), 10.0), seconds=500).summary
    busy = simulate(four(), LeaveIt(), Load(Poisson(), 180.0), seconds=500).summary
    assert quiet.correct_on_time == pytest.approx(0.8278, abs=1e-4) and quiet.bad_rate == 0
    assert busy.correct_on_time == pytest.approx(0.794, abs=1e-3) and busy.bad_rate < 1e-4


def test_whoever_shares_workers_keeps_the_shortest_deadline() -> None:
    """Regression: queries with 40 ms waited behind another application's for 33, on every worker that both had."""
    variants = tuple(
        Variant(f"v{ms:.0f}", accuracy, (LatencyProfile.linear(0.0, ms, 1, "cpu"),))
        for ms, accuracy in zip(SERVICE_MS, ACCURACY, strict=True)
    )
    slow, quick = Application("slow", 300_000_000, variants), Application("quick", 40_000_000, variants)
    alone, both = Deployment((slow,), workers(2, "cpu")), Deployment((slow, quick), workers(2, "cpu"))
    assert [instance.accuracy for instance in instances_of(alone)] == [ACCURACY[1]] * 2
    assert [instance.accuracy for instance in instances_of(both)] == [ACCURACY[0]] * 2
    assert [instance.accuracy for instance in instances_of(both, 1)] == [ACCURACY[0]] * 2
