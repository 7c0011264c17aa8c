"""What the server writes down is what the simulator's dispatcher decides again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stretto.core import journal
from stretto.core.client import Clients
from stretto.core.errors import PlanError, StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plan import Accumulate, Deferred, Fixed, MostAccurate, Plan, Route, RouteRule
from stretto.core.view import View, WaitingQuery
from stretto.dispatch.dispatcher import Dispatcher
from stretto.live.recorder import Journal, recording
from stretto.live.replan import Replanner
from stretto.planners.priced import Priced
from stretto.sim.replay import replay
from tests.live.conftest import Staging
from tests.live.real import asked, of_zoo, planned, sample, until, within
from tests.live.real import serving as really_serving
from tests.live.scripted import Stage, plan_for, serving, variant

FAST, GOOD = variant("fast", 0.6), variant("good", 0.8, 2, 10)


def kinds_in(path: Path) -> set[str]:
    return {json.loads(text)[0] for text in path.read_text().splitlines()[1:]}


@pytest.mark.parametrize("handoff_ns", [0, 300_000])
def test_a_life_with_faults_plans_and_generations_is_replayed(tmp_path: Path, handoff_ns: int) -> None:
    path = tmp_path / "events.jsonl"
    random = np.random.default_rng(7)
    served = serving(FAST, GOOD, crew=3)
    with recording(path) as make:
        made = Stage(served, plan_for(served), journal=make, correction=0.05, handoff_ns=handoff_ns)
        for step in range(240):
            dice = random.random()
            if dice < 0.55:
                wish = {"pinned": "good"} if dice < 0.05 else {"min_accuracy": 0.7} if dice < 0.1 else {}
                made.request(int(random.integers(1, 4)), float(random.choice([4, 20, 60, 400])), **wish)
            elif dice < 0.65 and made.requests:
                made.cancel(made.requests[int(random.integers(len(made.requests)))])
            elif dice < 0.9 and made.busy():
                how = {0: "no"} if dice < 0.7 else {}
                made.finish(int(random.choice(made.busy())), failures=how, answers=dice > 0.68)
            elif dice < 0.93 and made.busy():
                made.lose(made.busy()[0])
            else:
                made.wait(float(random.choice([0.4, 3, 150])))
            if step % 15 == 7 and made.requests:
                for query in made.requests[-1].queries:
                    query.theta = (0.2, 0.8)
                made.call(made.engine.classified, made.requests[-1:])
            if step % 40 == 20:
                release = [Accumulate(2, 3_000_000), Deferred()][step // 40 % 2]
                plan = plan_for(served, select=MostAccurate((1, 0)), release=release)
                made.adopt(plan)
            if step % 60 == 59:
                served = serving(FAST, GOOD, crew=3, version=str(step))
                made.replace(served, plan_for(served, select=Fixed(step // 60 % 2)))
        made.finish_all()
        made.close()
        totals = made.engine.books.totals(made.engine.generations())["app"]
    # tests/sim/test_replay.py has these
    unused = {journal.SESSION, journal.PLANNED, journal.REROUTE, journal.ENLARGE, journal.LOADED, journal.LEAVING}
    unused |= {journal.CHOOSE, journal.REFUSED}
    assert kinds_in(path) == set(journal.EVENTS) - unused
    result = replay(path)
    assert result.is_identical, result.differences
    assert result.dispatchers == 5 and result.decisions > 150
    submitted, outcomes = totals
    moved = result.submitted - submitted  # a query that moves is submitted again, and cancelled where it was
    assert moved > 0
    assert result.outcomes["dropped_cancelled"] - moved == outcomes[Outcome.DROPPED_CANCELLED]
    for outcome in (Outcome.ON_TIME, Outcome.LATE, Outcome.FAILED, Outcome.DROPPED_INFEASIBLE):
        assert result.outcomes[outcome.name.lower()] == outcomes[outcome]
    text = path.read_text().replace('["left",', '["joined",')  # no worker is ever lost
    path.write_text(text)
    assert not replay(path).is_identical


def test_real_workers_real_models_and_a_real_planner(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    served = of_zoo("mnist", 2)
    images = sample("mnist", 16)

    async def work(journal: Journal) -> None:
        async with really_serving(served, journal=journal, correction=0.02) as engine:
            engine.session.planner = Priced()
            replanner = Replanner(engine, 0.1, Clients())
            for number in range(30):
                sent = [asked(engine, images[n : n + 1], "mnist", 40 + 20 * n) for n in range(number % 7)]
                if number % 5 == 0:
                    await replanner.replan()
                if sent:
                    engine.cancel(sent[0].request)
                    await sent[-1]
            engine.succession.replace(served, planned(engine, served, plan_for(served)))
            await until(lambda: engine.waiting == 0)

    with recording(path) as make:
        within(60, lambda: work(make))
    result = replay(path)
    assert result.is_identical, result.differences
    assert result.dispatchers == 2 and result.submitted == sum(n % 7 for n in range(30))


def test_a_plan_that_was_refused_is_not_in_the_log(stage: Staging, tmp_path: Path) -> None:
    """It used to be written before it was refused, and the replay stopped there."""
    path = tmp_path / "events.jsonl"
    with recording(path) as make:
        made = stage(serving(FAST), journal=make)
        generation = made.engine.generation
        before = generation.in_force
        bad = Plan(before.plan.lanes, (Route(RouteRule.BY_APPLICATION, (9,)),))
        with pytest.raises(PlanError):
            made.engine.adopt(generation, replace(before, plan=bad))
        assert generation.in_force is before
        made.request()
        made.finish_all()
    assert replay(path).is_identical


def test_without_a_file_nothing_is_written(stage: Staging, tmp_path: Path) -> None:
    with recording(None) as journal:
        made = stage(serving(FAST), journal=journal)
        assert type(made.engine.generation.dispatcher) is Dispatcher
    with pytest.raises(StrettoError, match="cannot be written"), recording(tmp_path / "no" / "such"):
        pass


def replanner_of(made: Stage, planner: Callable[[View], Plan]) -> Replanner:
    made.engine.session.planner = planner
    return Replanner(made.engine, 1.0, Clients())


def test_a_planner_that_fails_leaves_the_plan_in_force(stage: Staging, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it raises: planning goes on, and it is told of once."""
    made = stage(serving(FAST))
    before = made.engine.generation.in_force
    for error in (StrettoError("no plan today"), ZeroDivisionError("planner")):

        def fail(view: View, error: Exception = error) -> Plan:
            raise error

        replanner = replanner_of(made, fail)
        caplog.clear()
        for _ in range(3):
            made.loop.run_until_complete(replanner.replan())
        assert len(caplog.records) == 1
        assert made.engine.generation.in_force is before
    assert made.engine.meters.plans_failed == 6


def test_a_planner_sees_what_was_measured_and_who_waits(stage: Staging) -> None:
    made = stage(serving(FAST))
    seen: list[tuple[View, tuple[WaitingQuery, ...]]] = []

    def plan(view: View) -> Plan:
        seen.append((view, view.waiting()))
        return made.engine.generation.in_force.made

    replanner = replanner_of(made, plan)
    for _ in range(4):
        made.request(slack_ms=400)
    made.loop.run_until_complete(replanner.replan())
    made.finish()
    made.loop.run_until_complete(replanner.replan())
    (first, waiting), (second, _) = seen
    assert len(waiting) == 3 and first.ended.sum() == 0 and first.idle_share is None
    assert second.ended[0, Outcome.ON_TIME] == 1 and second.idle_share is not None
    later = serving(GOOD)
    made.replace(later, plan_for(later))
    made.engine.session.planner = plan
    made.loop.run_until_complete(replanner.replan())
    assert seen[-1][0].ended.sum() == 0  # counts of another deployment say nothing
