"""Workers that are short of memory begin with what is planned for them; others as always."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stretto.core.conditions import Conditions
from stretto.core.deployment import Deployment
from stretto.core.plan import Plan
from stretto.core.worker import Worker, workers
from stretto.dispatch.layout import first_residents
from stretto.live.beginning import beginning_as_before, beginning_as_planned, fitting
from stretto.live.generation import Served
from stretto.live.recorder import recording
from stretto.planning.served import served_session
from stretto.planning.session import Session
from stretto.sim.replay import replay
from tests.live.real import code, of_models
from tests.live.scripted import plan_for


def served_with(*crew: Worker) -> Served:
    """Four variants that take one byte each."""
    made = of_models(**{name: code("double") for name in "abcd"})
    (application,) = made.deployment.applications
    variants = tuple(replace(variant, memory_bytes=1) for variant in application.variants)
    return replace(made, deployment=Deployment((replace(application, variants=variants),), crew))


def begun(served: Served, plan: Plan) -> tuple[tuple[int, ...], ...]:
    after, in_force = beginning_as_planned(served, Session(lambda view: plan).first(served.deployment, 0, Conditions()))
    assert in_force.deployment is after.deployment
    return first_residents(after.deployment)


def test_what_fits_together_is_taken_in_order_with_room_to_run_the_hungriest() -> None:
    (one,) = of_models(a=code("double")).deployment.variants
    sizes = [(4, 1), (3, 6), (3, 2), (1, 0)]
    variants = [replace(one, memory_bytes=held, dynamic_memory_bytes=runs) for held, runs in sizes]
    assert fitting(variants, 10) == [0, 2, 3], "the second would need 7 and 6 more to run"
    assert fitting(variants, 13) == [0, 1] and fitting(variants, 100) == [0, 1, 2, 3] and fitting(variants, 4) == [3]


def test_what_is_placed_comes_first_then_what_is_near_then_what_fits() -> None:
    served = served_with(*workers(3, memory_bytes=2))
    plan = replace(plan_for(served), placement=((3,), (2, 1), ()), prefetch=((2,), (), ()))
    assert begun(served, plan) == ((2, 3), (1, 2), (0, 1))


@pytest.mark.parametrize("room", [4, 2**40])
def test_with_room_for_all_everything_is_held(room: int) -> None:
    served = served_with(*workers(2, memory_bytes=room))
    plan = replace(plan_for(served), placement=((3,), (2,)))
    after, _ = beginning_as_planned(served, Session(lambda view: plan).first(served.deployment, 0, Conditions()))
    assert after is served


def test_plans_without_a_placement_and_workers_with_words_of_their_own_are_let_be() -> None:
    served = served_with(Worker("w", memory_bytes=2, resident=("app/a",)))
    assert begun(served, plan_for(served)) == ((0,),)
    assert begun(served, replace(plan_for(served), placement=((3,),))) == ((0,),)


def test_further_workers_change_nothing_for_those_that_are_there() -> None:
    served = served_with(*workers(2, memory_bytes=2))
    plan = replace(plan_for(served), placement=((3,), (2,)))
    after, _ = beginning_as_planned(served, Session(lambda view: plan).first(served.deployment, 0, Conditions()))
    larger = beginning_as_before(served_with(*workers(3, memory_bytes=2)), after.deployment)
    assert larger.deployment.workers[:2] == after.deployment.workers
    assert first_residents(larger.deployment) == ((0, 3), (0, 2), (0, 1))


PLANNER = """
from stretto.core.plan import Eager, Fixed, Lane, Late, by_application

class Plans:
    def __init__(self):
        self.seen = []  # what workers held when they began, in the order in which that was seen

    def __call__(self, view):
        resident = view.deployment.workers[0].resident
        if resident not in self.seen:
            self.seen.append(resident)
        lane = Lane("app", (0,), Fixed(len(self.seen) - 1), release=Eager(), late=Late.DROP_WHEN_INFEASIBLE)
        return by_application((lane,), placement=((3,),))
"""


def test_a_replay_shows_the_planner_the_deployment_that_it_saw_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was shown the one with workers that begin as its own plan has it, which came after."""
    (tmp_path / "remembering_planner.py").write_text(PLANNER)
    monkeypatch.syspath_prepend(str(tmp_path))
    path, name = tmp_path / "events.jsonl", "remembering_planner:Plans"
    served, session = served_with(*workers(1, memory_bytes=2)), served_session(name)
    with recording(path) as into:
        into.began(name, {}, False)
        after, in_force = beginning_as_planned(served, session.first(served.deployment, 0, Conditions()))
        assert after.deployment is not served.deployment
        dispatcher = into.dispatcher(in_force, correction=0.0, now_ns=0)
        telemetry = dispatcher.telemetry(10)
        in_force = session.next(in_force, telemetry)
        assert in_force.plan.lanes[0].select != dispatcher.plan.lanes[0].select
        into.planned(dispatcher, telemetry, in_force.conditions, in_force.plan, None, None)
        dispatcher.adopt(10, in_force.plan)
    result = replay(path)
    assert result.is_identical and result.plans == 3, result.differences
