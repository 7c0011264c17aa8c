"""The planner: from a View to a worklist, through the dispatcher and the simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stretto.core.check import check_plan
from stretto.core.plan import Plan, Worklist
from stretto.core.profile import NS_PER_MS
from stretto.core.view import View, WaitingQuery
from stretto.planners.registry import planner_entry
from stretto.planners.sneakpeek.catalogue import catalogue_of
from stretto.planners.sneakpeek.planner import SneakPeek, grouped, lo_edf, lo_priority, max_acc_edf
from stretto.planners.sneakpeek.window import window_of
from stretto.sim.arrivals import Load, Mix
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate
from tests.planners.sneakpeek.cases import application, deployment, query, variant

FAST = variant("fast", 0.7, 1, 3, load_ms=2, recall=(0.95, 0.45))
GOOD = variant("good", 0.9, 2, 20, load_ms=4, recall=(0.9, 0.9))
SERVED = deployment([application("a", FAST, GOOD, evidence=0.6), application("b", FAST, GOOD)])
ALL = {
    "sneakpeek": SneakPeek,
    "grouped": grouped,
    "lo_priority": lo_priority,
    "lo_edf": lo_edf,
    "max_acc_edf": max_acc_edf,
}


def worklist(plan: Plan) -> Worklist:
    (lane,) = plan.lanes
    assert isinstance(lane.select, Worklist)
    return lane.select


def view(*queries: WaitingQuery) -> View:
    return View(SERVED, 0, waiting=lambda: queries)


def test_all_that_wait_are_in_the_worklist_except_those_with_demands() -> None:
    queries = (query(7, 0, 90, theta=(0.9, 0.1)), query(8, 1, 90), query(9, 0, 90, demand=0))
    for make in ALL.values():
        plan = make()(view(*queries))
        check_plan(plan, SERVED)
        made = worklist(plan)
        assert sorted([t for work in made.works for t in work.tickets] + list(made.answers)) == [7, 8]


def test_while_nothing_waits_the_plan_stays_the_same() -> None:
    planner = SneakPeek()
    assert planner(view()) is planner(view())
    assert worklist(planner(view())) == Worklist()


def test_data_awareness_chooses_the_variant_that_is_good_at_the_class() -> None:
    """For class 0 the fast variant is the better one; profiled, the other is."""
    queries = (query(0, 0, 90, theta=(0.98, 0.02)),)
    assert [work.variant for work in worklist(SneakPeek(short_circuit=False)(view(*queries))).works] == [0]
    assert [work.variant for work in worklist(grouped()(view(*queries))).works] == [1]
    assert [work.variant for work in worklist(grouped(data_aware=True)(view(*queries))).works] == [0]


def test_evidence_of_other_classes_than_those_profiled_is_ignored() -> None:
    of = window_of(catalogue_of(SERVED), 0, [query(0, 0, 90, theta=(0.2, 0.2, 0.6)), query(1, 1, 90, theta=(1.0, 0.0))])
    assert of.accuracy[0].tolist() == [0.7, 0.9] and of.evidence_accuracy[0] == -1
    assert of.accuracy[1].tolist() == [0.95, 0.9] and of.evidence_accuracy[1] == -1  # b has no evidence accuracy


def test_what_is_loaded_free_and_slower_is_read_from_the_view() -> None:
    served = deployment([application("a", FAST, GOOD)], ("gpu", "gpu"))
    view = View(
        served,
        NS_PER_MS,
        alive=np.array([False, True]),
        free_ns=np.array([0, 5 * NS_PER_MS]),
        holds=np.array([[False, False], [True, False]]),
        latency_ratio=np.array([[1.0], [2.0]]),
        is_measured=np.array([[False], [True]]),
        waiting=lambda: (query(0, 0, 90),),
    )
    of = window_of(catalogue_of(served), NS_PER_MS, [query(0, 0, 90)], view)
    assert of.worker.tolist() == [1] and of.free_ns.tolist() == [5 * NS_PER_MS]
    assert of.first_load_ns.tolist() == [[0, 4 * NS_PER_MS]]
    assert of.load_ns.tolist() == [[2 * NS_PER_MS, 4 * NS_PER_MS]]
    assert of.latency_ns[1, 0, 1] == 2 * GOOD.profiles[0].latency_ns(1)
    made = worklist(SneakPeek()(view))
    assert [work.worker for work in made.works] == [1]
    gone = replace(view, alive=np.array([False, False]))
    assert worklist(SneakPeek()(gone)) == Worklist()


def test_a_worker_with_room_for_everything_swaps_nothing() -> None:
    roomy = replace(SERVED, workers=(replace(SERVED.workers[0], memory_bytes=4000, resident=None),))
    of = window_of(catalogue_of(roomy), 0, [query(0, 0, 90)])
    assert not of.load_ns.any() and not of.first_load_ns.any()


@pytest.mark.parametrize("name", ALL)
def test_every_query_of_a_run_ends_and_is_counted(name: str) -> None:
    mix = {"a": Mix(class_shares=(0.5, 0.5)), "b": Mix(class_shares=(0.5, 0.5))}
    served = replace(SERVED, applications=tuple(replace(owner, classes=2) for owner in SERVED.applications))
    random = np.random.default_rng(1)
    theta = random.dirichlet((0.3, 0.3), 4000)
    result = simulate(
        served,
        planner_entry(name).make({}),
        Load(Poisson(), 60.0, mix=mix),
        seconds=20,
        replan_s=0.1,
        record=True,
        evidence=theta,
    )
    summary = result.summary
    assert summary.planner == name
    assert sum(summary.outcomes.values()) == summary.submitted > 1000 and summary.unfinished == 0
    if name != "sneakpeek":
        assert summary.answered_by_evidence == 0


def test_grouping_brings_more_in_time_than_one_after_another() -> None:
    def on_time(name: str) -> float:
        load = Load(Poisson(), 120.0)
        return simulate(SERVED, planner_entry(name).make({}), load, seconds=10, replan_s=0.05).summary.on_time_rate

    assert on_time("grouped") > on_time("lo_edf") > on_time("max_acc_edf")
