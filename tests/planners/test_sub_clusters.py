"""Sub-clusters follow the load within the limit on change, one worker at a time, and nobody is dropped meanwhile."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Plan
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import Worker, workers
from stretto.planners.sub_clusters import SubClusters
from stretto.planners.symphony import Symphony
from stretto.planning.served import served_session
from stretto.sim.arrivals import Client, Clients
from stretto.sim.simulator import Fault, FaultKind, Simulation
from stretto.sim.traces import RateTrace

RESNET = LatencyProfile.linear(1.053, 5.072)
S = 1_000_000_000


def deployment(models: int = 8, worker_count: int = 4, room: int = 6) -> Deployment:
    """Every model takes a tenth, and needs as much to run; it is loaded in 50 ms. A worker has room for `room`."""
    applications = tuple(
        Application(f"app-{n}", 50 * NS_PER_MS, (Variant("only", 0.9, (RESNET,), 10, 10, 50 * NS_PER_MS),))
        for n in range(models)
    )
    return Deployment(applications, workers(worker_count, memory_bytes=10 * (room + 1)))


def view(served: Deployment, rates: list[float], second: float = 0.0, plan: Plan | None = None) -> View:
    """As a server has it that holds what the plan wants."""
    holds = None
    if plan is not None and plan.placement is not None:
        holds = np.array([[v in placed for v in range(len(served.variants))] for placed in plan.placement])
    return View(served, int(second * S), rates=np.array(rates), holds=holds, plan=plan)


def homes(plan: Plan) -> list[tuple[int, ...]]:
    return [lane.workers for lane in plan.lanes]


def test_the_same_until_an_epoch_shows_another_load() -> None:
    served = deployment()
    planner = Symphony(sub_clusters=2, epoch_s=60, max_moves=1)
    plan = planner(view(served, [10.0] * 8))
    check_plan(plan, served)
    assert planner(view(served, [10.0] * 8, 30, plan)) is plan
    assert planner(view(served, [10.5] * 8, 70, plan)) is plan  # balanced as it is
    lopsided = [50.0 if crew == homes(plan)[0] else 10.0 for crew in homes(plan)]
    assert planner(view(served, lopsided, 80, plan)) is plan  # the epoch is not over
    after = planner(view(served, lopsided, 131, plan))
    assert after is not plan
    moved = [n for n in range(8) if set(homes(after)[n]) != set(homes(plan)[n])]
    assert len(moved) == 1
    assert lopsided[moved[0]] == 50


def test_rates_are_those_of_the_whole_epoch() -> None:
    """One look at the wrong moment is not the load."""
    served = deployment()
    planner = Symphony(sub_clusters=2, epoch_s=60)
    plan = planner(view(served, [10.0] * 8))
    for second in range(1, 60):
        assert planner(view(served, [10.0] * 8, second, plan)) is plan
    burst = [30.0 if crew == homes(plan)[0] else 10.0 for crew in homes(plan)]
    assert planner(view(served, burst, 61, plan)) is plan


def test_nothing_moves_for_next_to_nothing() -> None:
    """One application has most of the load, and no partition is balanced; small changes of the others are let be."""
    served = deployment()
    planner = Symphony(sub_clusters=2, epoch_s=60, max_moves=8)
    plan = planner(view(served, [1000.0, 10, 10, 10, 10, 10, 10, 10]))
    assert planner(view(served, [1000.0, 11, 9, 12, 8, 10, 11, 9], 61, plan)) is plan


def test_nothing_moves_where_nothing_comes() -> None:
    served = deployment()
    planner = Symphony(sub_clusters=2, epoch_s=60)
    plan = planner(View(served, expected_rates=(40.0, 30.0, 20.0, 10.0, 1.0, 1.0, 1.0, 1.0)))
    assert planner(view(served, [0.0] * 8, 100, plan)) is plan


def test_equal_views_give_equal_plans() -> None:
    served = deployment()
    plans = []
    for _ in range(2):
        planner = Symphony(sub_clusters=2, epoch_s=1)
        plan = planner(view(served, [1.0, 2, 3, 4, 5, 6, 7, 8]))
        plans.append([plan, planner(view(served, [9.0, 2, 3, 4, 5, 6, 7, 80], 2, plan))])
    assert plans[0] == plans[1]


def test_a_sub_cluster_that_is_lost_is_taken_over_at_once() -> None:
    served = deployment(worker_count=6, room=9)
    planner = Symphony(sub_clusters=3, epoch_s=3600, max_moves=0)
    plan = planner(view(served, [10.0] * 8))
    lost = set(homes(plan)[0])
    alive = np.array([worker not in lost for worker in range(6)])
    planner(view(served, [10.0] * 8, 1, plan))
    after = planner(replace(view(served, [10.0] * 8, 2, plan), alive=alive))
    check_plan(after, served)
    for number in range(8):
        assert any(alive[worker] for worker in homes(after)[number])
        if set(homes(plan)[number]) != lost:
            assert set(homes(plan)[number]) <= set(homes(after)[number])
    assert after.placement is not None and plan.placement is not None
    loading = [w for w in range(6) if alive[w] and set(after.placement[w]) - set(plan.placement[w])]
    assert len(loading) == 4  # all that are left, at once


def test_workers_that_have_not_come_yet_are_waited_for() -> None:
    served = deployment()
    planner = Symphony(sub_clusters=2)
    plan = planner(view(served, [10.0] * 8))
    one_is_there = np.array([True, False, False, False])
    assert planner(replace(view(served, [10.0] * 8, 1, plan), alive=one_is_there)) is plan


def test_models_that_change_while_workers_come_do_not_end_in_one_sub_cluster() -> None:
    """A model was set aside at the start, when one of four workers was there: all moved to that one's sub-cluster."""
    planner = Symphony(sub_clusters=2, epoch_s=60)
    served, fewer = (deployment(models, room=9) for models in (8, 7))
    plan = planner(view(served, [10.0] * 8))
    one_is_there = np.array([True, False, False, False])
    planner(replace(view(served, [10.0] * 8, 1, plan), alive=one_is_there))
    after = planner(View(fewer, 2 * S, rates=np.array([10.0] * 7), alive=one_is_there))
    assert len({frozenset(crew) for crew in homes(after)}) == 2, "who has not come yet is waited for"
    assert planner(replace(view(fewer, [10.0] * 7, 30, after), alive=one_is_there)) is after
    without = planner(replace(view(fewer, [10.0] * 7, 70, after), alive=one_is_there))
    assert all(0 in crew for crew in homes(without)), "for an epoch"


def test_what_moves_right_after_the_start_is_in_no_hurry() -> None:
    """Workers came late, and when they are first seen the epoch is over: still one of them loads at a time."""
    served = deployment()
    planner = Symphony(sub_clusters=2, epoch_s=1, max_moves=1)
    plan = planner(view(served, [10.0] * 8))
    lopsided = [50.0 if crew == homes(plan)[0] else 10.0 for crew in homes(plan)]
    nobody = np.zeros(4, np.bool_)
    assert planner(replace(view(served, [0.0] * 8, 1, plan), alive=nobody)) is plan
    after = planner(view(served, lopsided, 10, plan))
    assert after.placement is not None and plan.placement is not None
    assert sum(set(now) > set(then) for now, then in zip(after.placement, plan.placement, strict=True)) == 1


def test_further_workers_join_and_other_models_begin_anew() -> None:
    served = deployment()
    planner = Symphony(sub_clusters=2)
    plan = planner(view(served, [10.0] * 8))
    larger = deployment(worker_count=6)
    holds = np.zeros((6, 8), np.bool_)
    for worker, placed in enumerate(plan.placement or ()):
        holds[worker, list(placed)] = True
    after = planner(View(larger, S, rates=np.full(8, 10.0), holds=holds))
    check_plan(after, larger)
    assert {worker for crew in homes(after) for worker in crew} == set(range(6))
    for crew, before in zip(homes(after), homes(plan), strict=True):
        assert set(before) <= set(crew)


def test_other_applications_leave_the_ones_that_stay_where_they_are() -> None:
    """A change of the repository, in a quiet moment: what was known of the load is not forgotten."""
    rates = [80.0, 70, 60, 50, 40, 30, 20, 10]
    planner = Symphony(sub_clusters=2)
    before = planner(view(deployment(), rates))
    larger = deployment(models=9)
    after = planner(view(larger, [0.0] * 9, 10))
    check_plan(after, larger)
    assert homes(after)[:8] == homes(before)
    fewer = deployment(models=5)
    assert homes(planner(view(fewer, rates[:5], 20))) == homes(before)[:5]


def test_at_a_start_more_may_change_than_later() -> None:
    """Models that grew do not fit where they were."""
    served = deployment(models=8, room=4)
    planner = Symphony(sub_clusters=2, max_moves=0)
    crews = homes(planner(view(served, [10.0] * 8)))
    together = [number for number in range(8) if crews[number] == crews[0]][:2]
    grown = Deployment(
        tuple(
            replace(application, variants=(replace(application.variants[0], name="v2", memory_bytes=size),))
            for application, size in zip(
                served.applications, (30 if n in together else 10 for n in range(8)), strict=True
            )
        ),
        workers(4, memory_bytes=70),
    )
    check_plan(planner(view(grown, [10.0] * 8, 10)), grown)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(StrettoError, match=r"rates sum to 80 queries/s, 2 sub-clusters take 60 queries/s"):
        Symphony(sub_clusters=2, max_rate=30.0)(view(deployment(), [10.0] * 8))
    planner = Symphony(sub_clusters=2, max_rate=30.0)
    for _ in range(2):  # asked again, it says the same
        with pytest.raises(StrettoError, match="alone gets 40 queries/s"):
            planner(view(deployment(), [40.0] + [1.0] * 7))
    with pytest.raises(StrettoError, match="model app-0 alone needs 20 bytes, a worker has 10 bytes"):
        Symphony(sub_clusters=2)(view(deployment(room=0), [10.0] * 8))


def test_lanes_go_to_workers_that_can_run_their_variant() -> None:
    fast, slow = LatencyProfile.linear(1, 1, kind="fast"), LatencyProfile.linear(1, 2, kind="slow")
    applications = (
        Application("both", 25 * NS_PER_MS, (Variant("only", 0.9, (fast, slow), 1),)),
        Application("fast", 25 * NS_PER_MS, (Variant("only", 0.9, (fast,), 1),)),
    )
    served = Deployment(applications, tuple(Worker(f"w{n}", "slow" if n % 2 else "fast") for n in range(6)))
    plan = Symphony(sub_clusters=2)(View(served, expected_rates=(10.0, 10.0)))
    check_plan(plan, served)
    assert all(worker % 2 == 0 for worker in plan.lanes[1].workers)


def test_a_served_session_asks_only_where_there_are_sub_clusters() -> None:
    assert served_session("symphony").rhythm.period_s == 0
    assert served_session("symphony", {"sub_clusters": 2}).rhythm.period_s == 0.5
    session = served_session("symphony_batch_aware", {"sub_clusters": 2, "epoch_s": 30, "max_rate": 1e5})
    assert isinstance(session.planner, Symphony)
    assert (session.planner.epoch_s, session.planner.max_rate) == (30, 1e5)


def simulated(swapped_s: float, seconds: float) -> tuple[Simulation, list[int], Plan]:
    """From a moment on all applications of one sub-cluster are busy; (run, loads at a time, first plan)."""
    served = deployment()
    busy, quiet = 100.0, 20.0
    planner = served_session("symphony_eager", {"sub_clusters": 2, "epoch_s": 2.0, "max_moves": 2})
    first = Symphony(sub_clusters=2)(View(served, expected_rates=(busy,) * 2 + (quiet,) * 6))
    lopsided = [busy if crew == first.lanes[0].workers else quiet for crew in homes(first)]
    traces = [
        RateTrace(np.array([0.0, swapped_s, 100.0]), np.array([busy if n < 2 else quiet, lopsided[n], 1.0]), "hold")
        for n in range(8)
    ]
    source = Clients(tuple(Client(f"app-{n}", trace) for n, trace in enumerate(traces)))
    rates = (busy,) * 2 + (quiet,) * 6
    run = Simulation(served, planner, source, seconds=seconds, seed=3, expected_rates=rates, warmup_s=1.0)
    begun, loading = run.in_force.plan, []
    for step in range(1, int(seconds * 20) + 1):
        run.run_to(int(step * 0.05 * S))
        if step % 2 == 0:
            run.replan()
        if step > 20:
            loading.append(int((run.dispatcher.memory["workers"]["arriving"] >= 0).sum()))
    return run, loading, begun


def test_a_change_of_load_moves_models_without_a_drop() -> None:
    run, loading, begun = simulated(4.0, 16.0)
    assert begun.placement is not None and run.in_force.plan.placement is not None
    assert homes(begun) != homes(run.in_force.plan)
    assert max(loading) == 1
    outcomes = run.result().summary.outcomes
    assert outcomes["on_time"] > 5000
    assert sum(outcomes.values()) == outcomes["on_time"]
    # In the end each worker holds its own models, and serves nobody else's.
    for number, lane in enumerate(run.in_force.plan.lanes):
        for worker in range(4):
            assert (number in run.in_force.plan.placement[worker]) == (worker in lane.workers)
    assert len({lane.workers for lane in run.in_force.plan.lanes}) == 2


def test_after_the_loss_of_a_sub_cluster_all_are_served_again() -> None:
    served = deployment(room=9)
    planner = Symphony(deferred=False, sub_clusters=2, epoch_s=math.inf)
    rates = (60.0,) * 8
    source = Clients(tuple(Client(f"app-{n}", RateTrace(np.array([0.0]), np.array([60.0]), "hold")) for n in range(8)))
    run = Simulation(served, planner, source, seconds=6.0, seed=3, expected_rates=rates)
    gone = run.in_force.plan.lanes[0].workers
    for step in range(1, 61):
        run.run_to(int(step * 0.1 * S))
        if step == 20:
            for worker in gone:
                run.apply(Fault(2.0, worker, FaultKind.LEFT))
        if step == 30:
            before = run.dispatcher.counts()[1].copy()
        run.replan()
    ended = run.dispatcher.counts()[1] - before
    assert ended[:, 0].sum() > 1000
    assert ended[:, 1:].sum() == 0


def test_options_of_sub_clusters_are_bounded() -> None:
    assert SubClusters(2).max_moves is None
    for wrong in ({"sub_clusters": 2, "max_moves": 3.5}, {"sub_clusters": 2, "unheard_of": 1}):
        with pytest.raises(StrettoError):
            served_session("nexus", wrong)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), room=st.integers(4, 9), at_once=st.integers(1, 2))
def test_whatever_comes_and_goes_plans_can_be_followed_and_arrive(seed: int, room: int, at_once: int) -> None:
    """Workers leave and come back, rates change, and every plan is one that the dispatcher takes."""
    draw = np.random.default_rng(seed)
    served = deployment(models=8, worker_count=6, room=room)
    planner = Symphony(sub_clusters=3, epoch_s=0.5, max_moves=2, at_once=at_once)
    rates = draw.exponential(1.0, (8, 8)) + 0.05
    traces = [RateTrace(np.arange(8.0), 30 * rates[n], "hold") for n in range(8)]
    source = Clients(tuple(Client(f"app-{n}", trace) for n, trace in enumerate(traces)))
    run = Simulation(served, planner, source, seconds=8.0, seed=seed, expected_rates=rates.mean(axis=1).tolist())
    away: set[int] = set()
    for step in range(1, 81):
        run.run_to(int(step * 0.1 * S))
        dice = draw.random()
        if dice < 0.15 and len(away) < 4 and step < 50:
            worker = int(draw.choice([w for w in range(6) if w not in away]))
            run.apply(Fault(step * 0.1, worker, FaultKind.LEFT))
            away.add(worker)
        elif away and (dice < 0.3 or step >= 50):
            worker = away.pop()
            run.apply(Fault(step * 0.1, worker, FaultKind.JOINED))
        with contextlib.suppress(StrettoError):  # what is left may be too small; then the plan in force stays
            run.replan()
    lanes, memory = run.in_force.plan.lanes, run.dispatcher
    for number, lane in enumerate(lanes):  # everybody is back since three seconds
        assert any(number in memory.resident(worker) for worker in lane.workers), f"nobody holds application {number}"
