"""A new deployment under way: what waits moves over, what runs ends where it began, and no worker is asked for a model
that it does not hold.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from stretto.core.outcome import Outcome
from stretto.core.plan import Fixed, Late, Plan
from stretto.dispatch.layout import first_residents
from tests.live.conftest import Staging
from tests.live.scripted import MS, Stage, plan_for, serving, serving_apps, variant

FAST, GOOD = variant("fast", 0.6), variant("good", 0.8)


def loaded(made: Stage) -> list[set[str]]:
    return [executor.held for _, executor in sorted(made.workers.items())]


def test_waiting_queries_move_and_running_ones_end_where_they_began(stage: Staging) -> None:
    made = stage(serving(FAST, crew=2))
    running = [made.request(slack_ms=300), made.request(slack_ms=300)]
    waiting = [made.request(rows=2, slack_ms=300) for _ in range(5)]
    later = serving(GOOD, crew=2, version="2")
    made.replace(later, plan_for(later))
    assert len(made.engine.generations()) == 2
    old, new = made.engine.generations()
    assert (len(old.queries), len(new.queries)) == (2, 10)
    assert made.busy() == [0, 1] and all(request.outcome is None for request in (*running, *waiting))
    made.finish(0)
    assert running[0].variants == ["fast"]
    assert made.workers[0].jobs[0].key == "app/good@2"  # it joins after its old batch
    made.finish(1)
    assert [len(each.queries) for each in made.engine.generations()] == [10]
    made.finish_all()
    assert {tuple(request.variants) for request in waiting} == {("good",)}
    assert made.outcomes() == {Outcome.ON_TIME: 12}
    for request in waiting:
        assert request.answers is not None
        np.testing.assert_array_equal(request.answers, request.inputs.sum(axis=1, keepdims=True))
    assert loaded(made) == [{"app/good@2"}, {"app/good@2"}]


def test_a_generation_goes_with_its_last_query(stage: Staging) -> None:
    """Its queries knew it, so that its tables were there until Python looked for cycles, ten minutes later."""
    made = stage(serving(FAST))
    request = made.request()
    first = weakref.ref(made.engine.generation)
    gc.disable()
    try:
        later = serving(GOOD, version="2")
        made.replace(later, plan_for(later))
        assert first() is not None and len(made.engine.generations()) == 2
        made.finish_all()
        del request
        assert first() is None
    finally:
        gc.enable()


def test_busy_time_of_a_worker_goes_on_in_the_next_generation(stage: Staging) -> None:
    """It began at zero again. By name: numbers are those of one generation."""
    made = stage(serving(variant("v"), crew=2))
    books, generations = made.engine.books, made.engine.generations

    def busy_ms() -> dict[str, float]:
        return {name[-1]: busy_ns / MS for name, busy_ns in books.busy_ns(generations()).items()}

    made.request()
    made.wait(5)
    made.finish(0)
    assert busy_ms() == {"0": 5, "1": 0}
    made.request(slack_ms=900)
    made.wait(7)
    assert made.busy() == [1]
    later = serving(variant("v"), crew=2, version="2")
    names = later.deployment.workers
    renumbered = replace(later, deployment=replace(later.deployment, workers=names[::-1]))
    made.replace(renumbered, plan_for(renumbered))
    assert busy_ms() == {"0": 5, "1": 0}  # what runs is counted when it ends
    made.finish(1)
    assert busy_ms() == {"0": 5, "1": 7} and len(generations()) == 1
    made.request()
    made.wait(2)
    assert made.busy() == [0]  # which has the other name by now
    made.finish(0)
    assert busy_ms() == {"0": 5, "1": 9}


def test_a_free_worker_joins_at_once(stage: Staging) -> None:
    made = stage(serving(FAST, crew=2))
    made.request()
    later = serving(GOOD, crew=2)
    made.replace(later, plan_for(later))
    request = made.request()
    assert made.busy() == [0, 1]
    made.finish(1)
    assert request.variants == ["good"]


def test_a_worker_lost_with_a_batch_of_the_old_generation(stage: Staging) -> None:
    """Its queries used to start once more in the old one, on a worker that serves the new one by then."""
    made = stage(serving(FAST, crew=3))
    first = made.request(rows=3, slack_ms=400)
    second = made.request(slack_ms=400)
    later = serving(GOOD, crew=3, version="2")
    made.replace(later, plan_for(later))
    third = made.request(slack_ms=400)
    made.lose(0)
    assert first.outcome is None
    made.finish_all()
    assert (first.variants, second.variants, third.variants) == (["good"], ["fast"], ["good"])
    assert [len(each.queries) for each in made.engine.generations()] == [0]
    assert made.outcomes() == {Outcome.ON_TIME: 5}


def test_a_cancelled_batch_of_the_old_generation_frees_its_worker(stage: Staging) -> None:
    made = stage(serving(FAST))
    gone = made.request()
    later = serving(GOOD)
    made.replace(later, plan_for(later))
    made.cancel(gone)
    request = made.request()
    assert request.outcome is None
    made.finish()
    assert len(made.engine.generations()) == 1
    made.finish()
    assert request.variants == ["good"]


def test_several_changes_while_one_batch_runs(stage: Staging) -> None:
    made = stage(serving(FAST))
    running, waiting = made.request(slack_ms=400), made.request(slack_ms=400)
    for version in "234":
        later = serving(GOOD, version=version)
        made.replace(later, plan_for(later))
    assert len(made.engine.generations()) == 2
    made.finish_all()
    assert (running.variants, waiting.variants) == (["fast"], ["good"])
    assert made.outcomes() == {Outcome.ON_TIME: 2}


def test_queries_of_an_application_that_is_gone(stage: Staging, caplog: pytest.LogCaptureFixture) -> None:
    made = stage(serving_apps({"a": (FAST,), "b": (FAST,)}))
    running = made.request(application="a")
    going, staying = made.request(application="b"), made.request(application="a")
    later = serving_apps({"a": (FAST,)})
    made.replace(later, plan_for(later))
    assert (going.outcome, going.problem) == (Outcome.FAILED, "the application is no longer served")
    assert "b failed on 1 queries: the application is no longer served" in caplog.messages
    made.finish_all()
    assert (running.outcome, staying.outcome) == (Outcome.ON_TIME, Outcome.ON_TIME)
    assert made.outcomes("b") == {Outcome.FAILED: 1}


def test_demands_move_too_and_end_where_nobody_meets_them(stage: Staging) -> None:
    made = stage(serving(FAST, GOOD))
    made.request(slack_ms=400)
    pinned, exacting, lost = (
        made.request(pinned="good", slack_ms=400),
        made.request(min_accuracy=0.7, slack_ms=400),
        made.request(pinned="fast", slack_ms=400),
    )
    later = serving(GOOD, variant("best", 0.9), variant("poor", 0.4), version="2")
    made.replace(later, plan_for(later))
    assert (lost.outcome, lost.problem) == (Outcome.FAILED, "no variant that is served meets this demand")
    made.finish_all()
    assert (pinned.variants, exacting.variants) == (["good"], ["best"])


def test_a_worker_that_starts_during_a_change_loads_what_is_served_now(stage: Staging) -> None:
    """It used to join with the models it had been started with, and failed every batch."""
    made = stage(serving(FAST, crew=2), starts=False)
    later = serving(GOOD, crew=2, version="2")
    made.replace(later, plan_for(later))
    request = made.request()
    made.call(made.workers[0].ready)
    assert made.prepared == [(0, ["app/good@2"])]
    assert made.workers[0].held == {"app/good@2"} and made.busy() == [0]
    made.finish()
    assert request.variants == ["good"]


def test_a_worker_lost_while_it_catches_up(stage: Staging) -> None:
    made = stage(serving(FAST), starts=False)
    later = serving(GOOD, version="2")
    made.replace(later, plan_for(later))
    made.prepares = False
    made.call(made.workers[0].ready)
    assert made.engine.crew.ready_count == 0
    made.lose()
    made.prepares, made.starts = True, True
    request = made.request(slack_ms=900)
    made.wait(150)
    made.finish()
    assert request.variants == ["good"]


def test_workers_with_little_memory_hold_what_the_new_dispatcher_takes_them_to_hold(stage: Staging) -> None:
    """What the old generation had put out of memory is loaded again before the new one asks for it."""
    a, b, c = (variant(name, memory_bytes=40, load_ns=1000) for name in "abc")
    served = serving(a, b, memory_bytes=50)
    made = stage(served, plan_for(served, select=Fixed(1)))
    assert loaded(made) == [{"app/a@1"}]
    made.request(slack_ms=400)
    made.finish_all()
    assert loaded(made) == [{"app/b@1"}]
    later = serving(a, b, c, memory_bytes=50)
    assert first_residents(later.deployment) == ((0,),)
    made.replace(later, plan_for(later, select=Fixed(0)))
    assert loaded(made) == [{"app/a@1"}]
    request = made.request(slack_ms=400)
    made.finish_all()
    assert request.variants == ["a"]


def test_a_worker_with_little_memory_starts_again_with_its_first_memory(stage: Staging) -> None:
    """It used to start with what the lost one held last, and was taken to hold what every worker holds at first."""
    a, b = (variant(name, memory_bytes=40, load_ns=1000) for name in "ab")
    served = serving(a, b, memory_bytes=50)
    made = stage(served, plan_for(served, select=Fixed(1)))
    made.request(slack_ms=400)
    made.finish_all()
    made.adopt(plan_for(served, select=Fixed(0)))
    made.lose()
    request = made.request(slack_ms=900)
    made.wait(150)
    made.finish_all()
    assert request.variants == ["a"] and loaded(made) == [{"app/a@1"}]


def test_a_load_that_the_old_generation_asked_for_ends_no_batch_of_the_new_one(stage: Staging) -> None:
    a, b = (variant(name, memory_bytes=10, load_ns=20_000_000) for name in "ab")
    served = serving(a, b, memory_bytes=15)
    plan = plan_for(served)
    made = stage(served, Plan(plan.lanes, plan.routes, placement=((1,),)))
    worker = made.workers[0]
    assert worker.alone == ["app/b@1"]
    later = serving(a, b, memory_bytes=100, version="2")
    made.replace(later, plan_for(later))
    request = made.request(slack_ms=300)
    assert made.busy() == [0]
    made.call(worker.loaded)
    reading = made.engine.generation.dispatcher.telemetry(made.loop.now_ns)
    assert (reading.running, request.outcome) == (1, None)
    made.finish()
    assert request.outcome is Outcome.ON_TIME


@pytest.mark.parametrize("late", [Late.DROP_WHEN_INFEASIBLE, Late.KEEP])
def test_changes_under_load_lose_nothing(stage: Staging, late: Late) -> None:
    served = serving(FAST, crew=2)
    made = stage(served, plan_for(served, late), handoff_ns=300_000)
    for version in range(12):
        for _ in range(6):
            made.request(rows=1 + version % 3, slack_ms=900)
        made.wait(3)
        made.finish(made.busy()[version % len(made.busy())])
        later = serving(FAST, GOOD, crew=2, version=str(version % 3))
        made.replace(later, plan_for(later, late, select=Fixed(version % 2)))
    made.finish_all()
    assert {request.outcome for request in made.requests} == {Outcome.ON_TIME}
    assert [len(each.queries) for each in made.engine.generations()] == [0]


def test_rates_by_application_come_from_the_common_lanes(stage: Staging) -> None:
    made = stage(serving_apps({"a": (FAST,), "b": (FAST, GOOD)}))
    for _ in range(50):
        made.request(application="a", slack_ms=0.5)
        made.request(application="b", pinned="good", slack_ms=0.5)
        made.wait(20)
    rates = made.engine.generation.dispatcher.telemetry(made.loop.now_ns).rates
    assert rates[0] == pytest.approx(50, rel=0.2) and rates[1] == 0.0


def test_queries_that_came_in_the_turn_of_a_change(stage: Staging) -> None:
    """They wait for the end of the turn beside free workers. When the first of them left the old dispatcher, that began
    a batch of the others; moving those too ended the change half way, with a KeyError.
    """
    made = stage(serving(FAST, crew=2))
    later = serving(GOOD, crew=2, version="2")
    assert made.loop.run_until_complete(made.engine.succession.hold(later)) == {}
    requests = [made.made_request(slack_ms=300) for _ in range(5)]

    def change() -> None:
        for request in requests:
            made.engine.submit(request, gathers=True)
        made.engine.succession.replace(later, made.planned(later, plan_for(later)))

    made.call(change)
    made.finish_all()
    assert made.outcomes() == {Outcome.ON_TIME: 5}
    assert loaded(made) == [{"app/good@2"}, {"app/good@2"}]


def test_a_query_that_becomes_late_in_the_very_moment_of_a_change(stage: Staging) -> None:
    """Its end is counted once, in the generation that dropped it."""
    made = stage(serving(FAST))
    running = made.request(slack_ms=300)
    waiting = [made.request(slack_ms=slack_ms) for slack_ms in (50, 50, 300)]
    made.loop.now_ns += 100_000_000  # no timer has rung yet
    later = serving(GOOD, version="2")
    made.call(made.engine.succession.replace, later, made.planned(later, plan_for(later)))
    assert [request.outcome for request in waiting[:2]] == [Outcome.DROPPED_EXPIRED, Outcome.DROPPED_EXPIRED]
    made.finish_all()
    assert running.outcome is Outcome.ON_TIME and waiting[2].outcome is Outcome.ON_TIME
