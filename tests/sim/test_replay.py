"""Replay: the events of a log into a fresh dispatcher, decisions compared; bad files are named by line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.core import journal
from stretto.core.conditions import Conditions, Demand
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plan import (
    Delays,
    Eager,
    Fixed,
    Late,
    Missing,
    Plan,
    Route,
    RouteRule,
    Table,
    Worklist,
    by_application,
)
from stretto.core.profile import NS_PER_MS
from stretto.core.worker import Worker, workers
from stretto.dispatch.decisions import Run
from stretto.dispatch.dispatcher import Dispatcher
from stretto.live.recorder import Journal, recording
from stretto.planning.served import served_session
from stretto.planning.session import InForce
from stretto.sim import event_log
from stretto.sim import replay as module
from stretto.sim.replay import replay
from tests.dispatch.small import deployed, lane, planned, straight, variant
from tests.planners.parts.tasks import small_deployment

PLANNING = {journal.SESSION, journal.PLANNED, journal.REFUSED, journal.UNDER}


def made(into: Journal, deployment: Deployment, plan: Plan, *, correction: float = 0.0, now_ns: int = 0) -> Dispatcher:
    """A recorded dispatcher of a plan that nobody planned."""
    return into.dispatcher(InForce(deployment, plan, plan, Conditions()), correction=correction, now_ns=now_ns)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A handful of events of every kind, by a recorded dispatcher."""
    path = tmp_path / "events.jsonl"
    plan = by_application((lane(late=Late.DROP_WHEN_INFEASIBLE, crew=(0, 1)),))
    with recording(path) as make:
        dispatcher = made(make, deployed(variant(profile=straight(2, 10)), crew=2), plan, correction=0.1, now_ns=5)
        tickets = [dispatcher.submit(10 + n, 0, 100 + n, -1, n, -1, 0, -1, n == 3) for n in range(6)]
        dispatcher.decisions()
        dispatcher.cancel(17, tickets[-1])
        dispatcher.classified(17, tickets[-2], 1)
        dispatcher.worker_left(18, 1)
        dispatcher.decisions()
        dispatcher.finished(22, 0, True)
        dispatcher.worker_joined(23, 1)
        dispatcher.worker_leaving(23, 1)
        dispatcher.worker_joined(23, 1)
        dispatcher.decisions()
        dispatcher.adopt(24, by_application((lane(release=Eager(1), crew=(0, 1)),)))
        dispatcher.finished(40, 0, False)
        dispatcher.advance(200)
        waiting = dispatcher.submit(201, 0, 900)
        dispatcher.adopt(202, by_application((lane(select=Worklist((), (waiting,)), crew=(0, 1)),)))
        dispatcher.decisions()
        choose(dispatcher)
        grow(dispatcher)
        succeed(make, dispatcher)
        swap(make)
    return path


def choose(dispatcher: Dispatcher) -> None:
    """A plan of one table, followed by one that differs in it alone: all that wait, where it was one at a time."""
    one, all_of_them = (Table(1, np.zeros((1, 1), np.int32), np.full((1, 1), batch, np.int32)) for batch in (1, 0))
    dispatcher.adopt(202, by_application((lane(select=one, crew=(0, 1)),)))
    dispatcher.follow(202, by_application((lane(select=all_of_them, crew=(0, 1)),)))
    for _ in range(6):
        dispatcher.submit(202, 0, 900, more=True)
    dispatcher.advance(202)
    runs = [decision for decision in dispatcher.decisions() if isinstance(decision, Run)]
    assert max(len(run.tickets) for run in runs) > 1
    for run in runs:
        dispatcher.finished(203, run.worker)
    dispatcher.decisions()


def grow(dispatcher: Dispatcher) -> None:
    """A third worker of another kind, a plan of two lanes that has it, and all queries to the second lane."""
    both = replace(variant(), profiles=(straight(2, 10), straight(1, 3, kind="quick")))
    dispatcher.enlarge(203, deployed(both, crew=(*workers(2), Worker("quick-0", "quick"))))
    dispatcher.worker_joined(204, 2)
    lanes = (lane("first", (0, 1)), lane("second", (2,)))
    dispatcher.adopt(205, planned(*lanes, rule=RouteRule.WEIGHTED, weights=(1.0, 0.0)))
    dispatcher.reroute(206, (Route(RouteRule.WEIGHTED, (0, 1), weights=(0.0, 1.0)),))
    dispatcher.submit(207, 0, 900)
    dispatcher.decisions()


def succeed(make: Journal, dispatcher: Dispatcher) -> None:
    """The dispatcher of another deployment, which goes by the latency that the first one measured."""
    dispatcher.reroute(208, (Route(RouteRule.BY_APPLICATION, (0,)),))
    dispatcher.submit(208, 0, 900)
    (run,) = dispatcher.decisions()
    assert isinstance(run, Run)
    dispatcher.finished(248, run.worker)  # 40 ns where 12 were expected
    later = made(make, deployed(variant()), by_application((lane(),)), correction=0.1, now_ns=249)
    later.inherit(250, dispatcher.estimates())
    later.submit(251, 0, 900)
    later.decisions()


def swap(make: Journal) -> None:
    """A worker with room for two variants gets a third beside its work."""
    models = tuple(variant(name, memory=1, load_ns=30) for name in "abc")
    on = deployed(*models, crew=(Worker("w", memory_bytes=2),))
    held = by_application((lane(missing=Missing.STAND_IN),), placement=((0,),), prefetch=((1,),))
    dispatcher = made(make, on, held, correction=0.1, now_ns=300)
    dispatcher.adopt(
        301, by_application((lane(select=Fixed(2), missing=Missing.STAND_IN),), placement=((2,),), prefetch=((0,),))
    )
    dispatcher.submit(302, 0, 900)
    dispatcher.decisions()
    dispatcher.finished(314, 0)
    assert dispatcher.loaded(331, 0, 2)
    dispatcher.submit(332, 0, 900)
    dispatcher.decisions()


def changed(log: Path, kind: str, change: Any) -> Path:
    """The log with the first line of this kind changed."""
    lines = [json.loads(text) for text in log.read_text().splitlines()]
    number = next(n for n, line in enumerate(lines) if line[0] == kind)
    change(lines[number])
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return log


def test_a_log_of_every_kind_of_event_is_replayed(log: Path) -> None:
    kinds = {json.loads(text)[0] for text in log.read_text().splitlines()[1:]}
    assert kinds == set(journal.EVENTS) - PLANNING
    shares: list[float] = []
    result = replay(log, shares.append)
    assert result.is_identical and result.differences == []
    assert (result.dispatchers, result.submitted, result.span_ns) == (3, 18, 327)
    assert result.decisions > 5 and result.events == 46
    assert sum(result.outcomes.values()) <= 14 and result.outcomes["dropped_cancelled"] == 1


def test_what_a_dispatcher_decides_when_it_is_made_is_compared_too(tmp_path: Path) -> None:
    """Regression: a load that the first plan's placement asks for was missed where no event came before it was read."""
    on = deployed(variant(memory=1, load_ns=3), crew=(Worker("w", memory_bytes=1, resident=()),))
    with recording(tmp_path / "events.jsonl") as make:
        dispatcher = made(make, on, by_application((lane(),), placement=((0,),)))
        assert len(dispatcher.decisions()) == 1
        dispatcher.finished(3, 0)
    assert replay(tmp_path / "events.jsonl").is_identical


@pytest.fixture
def planned_log(tmp_path: Path) -> Path:
    """A dispatcher under the session that serves, whose plans follow the load, its delays and a demand."""
    path = tmp_path / "events.jsonl"
    deployment = small_deployment(2)
    with recording(path) as into:
        session = served_session("priced")
        into.began("priced", {}, False)
        in_force = session.first(deployment, 5, Conditions(delays=Delays(control_ns=100)))
        dispatcher = into.dispatcher(in_force, correction=0.1, now_ns=5)
        for number in range(400):
            now_ns = 10 + number * 4 * NS_PER_MS
            dispatcher.submit(now_ns, 0, now_ns + 100 * NS_PER_MS)
            for decision in dispatcher.decisions():
                if isinstance(decision, Run):
                    dispatcher.finished(now_ns, decision.worker, True, 3 * NS_PER_MS)
            conditions = in_force.conditions
            if number == 200:
                conditions = replace(conditions, demands=(Demand(0, (1,)),))
                in_force = session.under(in_force, conditions)
                into.under(now_ns, dispatcher, conditions)
                dispatcher.adopt(now_ns, in_force.plan)
            if number % 25 == 24:
                telemetry = dispatcher.telemetry(now_ns)
                in_force = session.next(in_force, telemetry, conditions)
                into.planned(dispatcher, telemetry, in_force.conditions, in_force.plan, None, None)
                if in_force.plan is not dispatcher.plan:
                    dispatcher.adopt(now_ns, in_force.plan)
    return path


def test_every_plan_is_made_again_and_compared(planned_log: Path) -> None:
    kinds = {json.loads(text)[0] for text in planned_log.read_text().splitlines()[1:]}
    assert kinds >= PLANNING - {journal.REFUSED}  # tests/live/test_replan.py has it
    result = replay(planned_log)
    assert result.is_identical, result.differences
    assert result.plans >= 17


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (journal.SESSION, lambda line: line.__setitem__(2, {"margin": 0.1})),
        (journal.UNDER, lambda line: line[3].__setitem__("demands", [])),
        (journal.PLANNED, lambda line: line[4]["delays"].__setitem__("control_ns", 7)),
    ],
)
def test_a_plan_that_comes_out_differently_is_told(planned_log: Path, kind: str, change: Any) -> None:
    result = replay(changed(planned_log, kind, change))
    assert not result.is_identical and "plan" in result.differences[0]


def swap_tickets(line: list[Any]) -> None:
    line[2][0][3] = [7]


def later(line: list[Any]) -> None:
    line[3][1] += 1000


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (journal.DECIDED, swap_tickets, "decided"),
        (journal.DECIDED, lambda line: line[2].pop(), "decided"),
        (journal.SUBMIT, lambda line: line.__setitem__(4, 9), "ticket"),
        (journal.LEFT, lambda line: line.__setitem__(3, 0), "decided"),
        (journal.CANCEL, lambda line: line.__setitem__(4, int(Outcome.FAILED)), "decided"),
        (journal.REROUTE, lambda line: line[3][0].__setitem__("weights", [1.0, 0.0]), "decided"),
        (journal.INHERIT, lambda line: line[3].__setitem__("variants", ["app/other"]), "decided"),
    ],
)
def test_a_tampered_log_is_different(log: Path, kind: str, change: Any, words: str) -> None:
    result = replay(changed(log, kind, change))
    assert not result.is_identical and result.difference_count >= 1
    assert words in result.differences[0] and "line " in result.differences[0]


def test_differences_are_bounded(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DIFFERENCES", 1)
    lines = [json.loads(text) for text in log.read_text().splitlines()]
    for line in lines:
        if line[0] == journal.SUBMIT:
            line[4] = 1
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = replay(log)
    assert len(result.differences) == 1 and result.difference_count >= 6


def test_a_line_cut_off_at_the_end_is_left_out(log: Path) -> None:
    whole = log.read_bytes()
    for cut in (1, 5, 30):
        log.write_bytes(whole[:-cut])
        assert replay(log).is_identical


def write(path: Path, *lines: Any) -> Path:
    title = journal.title("made up", 1)
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in (title, *lines)))
    return path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ({"a": 1}, "is no event"),
        ([], "is no event"),
        ([1, 2, 3], "is no event"),
        (["sing", 0, 1], "is no event"),
        (["advance", 7, 1], "KeyError"),
        (["advance", 0, "soon"], "TypeError"),
        (["advance", 0, 1.5], "TypeError"),
        (["advance", 0, 10**30], "TypeError"),
        ('["advance", 0, Infinity]', "TypeError"),
        (["advance", [], 1], "TypeError"),
        (["decided", 9, []], "KeyError"),
        (["decided", 0, [], []], ""),
        (["submit", 0, 1, [0, 100], 0], "ValueError"),
        (["submit", 0, 1, [0, 100, -1, -1, -1, 0, -1, 1, False], 0], "TypeError"),
        (["submit", 0, 1, [0, 1.5, -1, -1, -1, 0, -1, False, False], 0], "TypeError"),
        (["submit", 0, 1, [9, 100, -1, -1, -1, 0, -1, False, False], 0], "application number 9 is outside"),
        (["submit", 0, 1], "IndexError"),
        (["cancel", 0, 1, 5, 99], "ValueError"),
        (["finished", 0, 1, 5, True, -1], "worker number 5 is outside"),
        (["finished", 0, 1, 0, 1, -1], "TypeError"),
        (["finished", 0, 1, 0, True, 0.5], "TypeError"),
        (["finished", 0, 1, 0, True], "IndexError"),
        (["joined", 0, 1, "x"], "TypeError"),
        (["left", 0, 1, -1], "worker number -1 is outside"),
        (["adopt", 0, 1, 7], "is no event"),
        (["adopt", 0, 1, {"type": "Plan", "lanes": [], "routes": []}], "TypeError"),
        (["plan", "x", {}], "TypeError"),
        (["reroute", 0, 1], "IndexError"),
        (["reroute", 0, 1, []], "has 0 routes for 1 applications"),
        (["reroute", 0, 1, [7]], "AttributeError"),
        (["enlarge", 0, 1, 7], "AttributeError"),
        (["inherit", 0, 1, {"type": "Plan", "lanes": [], "routes": []}], "AttributeError"),
        (["made", 1, 0, 0.0, 3, 4], "is no event"),
        (["made", 1, 0, "x", 3, 4], "is no event"),
    ],
)
def test_a_bad_line_is_named(log: Path, line: Any, words: str) -> None:
    plan, made = (json.loads(text) for text in log.read_text().splitlines()[1:3])
    path = write(log.with_name("bad.jsonl"), plan, made, line)
    if words:
        with pytest.raises(StrettoError, match=r"^bad\.jsonl:4: ") as told:
            replay(path)
        assert words in str(told.value)
    else:
        replay(path)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"type": "Plan", "lanes": [], "routes": []}, "a plan needs between 1"),
        ({"type": "Spy"}, "no plan or deployment that Stretto wrote"),
    ],
)
def test_a_bad_plan_is_named_where_it_is_used(log: Path, plan: Any, words: str) -> None:
    first, made = (json.loads(text) for text in log.read_text().splitlines()[1:3])
    path = write(log.with_name("bad.jsonl"), first, made, ["plan", 1, plan], ["adopt", 0, 1, 1])
    with pytest.raises(StrettoError, match=rf"^bad\.jsonl:5: .*{words}"):
        replay(path)


def test_files_that_are_no_event_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StrettoError, match="cannot be read"):
        replay(tmp_path / "none")
    with pytest.raises(StrettoError, match="cannot be read"):
        replay(tmp_path)
    for text in ('["stretto events", 99]\n', "[]\n", '{"a": 1}\n'):
        (tmp_path / "other.jsonl").write_text(text)
        with pytest.raises(StrettoError, match="no event log of this version"):
            replay(tmp_path / "other.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    assert replay(tmp_path / "empty.jsonl").events == 0
    monkeypatch.setattr(event_log, "MAX_LINE", 80)
    write(tmp_path / "long.jsonl", ["advance", 0, 1, "x" * 100])
    with pytest.raises(StrettoError, match=r"long\.jsonl:2: is longer"):
        replay(tmp_path / "long.jsonl")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    line=st.lists(
        st.sampled_from(journal.EVENTS)
        | st.integers(-2, 3)
        | st.booleans()
        | st.none()
        | st.floats()
        | st.lists(st.integers(-2, 3) | st.booleans() | st.text(max_size=2), max_size=9),
        min_size=1,
        max_size=6,
    )
)
def test_nonsense_is_a_sentence_or_nothing(log: Path, line: list[Any]) -> None:
    plan, made = (json.loads(text) for text in log.read_text().splitlines()[1:3])
    path = write(log.with_name("nonsense.jsonl"), plan, made, line)
    try:
        replay(path)
    except StrettoError as error:
        assert str(error).startswith("nonsense.jsonl:4: ")
