"""Workers that are lost, hang, poison themselves or come late; requests must have their end, and the rest goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.core.outcome import Outcome
from stretto.core.plan import Late
from stretto.live import crew
from stretto.live.executor import Loading, Loss
from stretto.live.generation import Served
from stretto.live.lookout import AT_RISK, NEW, PROVEN, SET_ASIDE
from stretto.live.losses import NO_WORKER_ANSWERS, NO_WORKER_LEFT, POISON
from stretto.live.quarantine import Fault
from stretto.live.recorder import Journal
from stretto.live.recording import Recording, RecordOptions
from stretto.sim.replay import replay
from tests.live.conftest import Staging
from tests.live.scripted import Stage, plan_for, serving, serving_apps, variant


def test_a_lost_worker_s_queries_are_tried_again(stage: Staging) -> None:
    made = stage(serving(crew=2))
    first, second = made.request(rows=2), made.request()
    assert made.busy() == [0, 1]
    made.lose(0)
    assert first.outcome is None and made.engine.crew.ready_count == 1
    made.finish(1)
    assert second.outcome is Outcome.ON_TIME and made.workers[1].jobs[0].count == 2
    made.finish(1)
    assert first.outcome is Outcome.ON_TIME and first.answers is not None
    assert made.outcomes() == {Outcome.ON_TIME: 3}


def test_a_query_waits_for_its_only_worker_to_come_back(stage: Staging) -> None:
    made = stage(serving())
    request = made.request(slack_ms=400)
    made.lose()
    assert made.busy() == [] and made.engine.waiting == 1
    made.wait(1e3 * crew.FIRST_PAUSE_S + 2)
    assert made.busy() == [0]
    made.finish()
    assert request.outcome is Outcome.ON_TIME


@pytest.mark.parametrize("late", [Late.DROP_WHEN_INFEASIBLE, Late.KEEP])
def test_a_query_that_cannot_be_tried_again_in_time_failed(stage: Staging, late: Late) -> None:
    """It used to end as infeasible, as though it had come too late."""
    served = serving(crew=2)
    made = stage(served, plan_for(served, late))
    request = made.request(slack_ms=10)
    made.wait(7)
    made.lose(0)
    assert (request.outcome, request.problem) == (Outcome.FAILED, NO_WORKER_LEFT) and made.busy() == []


@pytest.mark.parametrize("is_lost_first", [False, True])
def test_a_query_that_moves_after_its_worker_was_lost_failed_too(
    stage: Staging, tmp_path: Path, is_lost_first: bool
) -> None:
    """The dispatcher that it moves to knew nothing of the loss, and used to end it as infeasible; a replay too."""
    served, later = serving(crew=2), serving(crew=2, version="2")
    recorded = Recording(tmp_path / "events.jsonl", RecordOptions())
    made = stage(served, journal=Journal(recorded))
    busy = [made.request(rows=8, slack_ms=1000) for _ in range(2)]
    assert made.busy() == [0, 1]
    lost = made.request(slack_ms=45)
    made.finish(0)
    assert made.busy() == [0, 1] and lost.outcome is None
    if is_lost_first:  # it waits in its own generation for a worker, and moves from there
        made.starts = False
        made.lose(0)
        made.replace(later, plan_for(later))
    else:  # it runs on in the earlier generation, and moves when its worker is lost there
        made.replace(later, plan_for(later))
        made.starts = False
        made.lose(0)
    assert lost.outcome is None
    made.wait(50)
    assert (lost.outcome, lost.problem) == (Outcome.FAILED, NO_WORKER_LEFT)
    made.finish(1)
    assert [request.outcome for request in busy] == [Outcome.ON_TIME] * 2
    assert made.outcomes() == {Outcome.ON_TIME: 16, Outcome.FAILED: 1}
    recorded.close()
    replayed = replay(tmp_path / "events.jsonl")
    assert replayed.is_identical and (replayed.outcomes["failed"], replayed.outcomes["dropped_infeasible"]) == (1, 0)


def test_a_cancelled_query_is_not_tried_again(stage: Staging) -> None:
    made = stage(serving(crew=2))
    request = made.request()
    made.cancel(request)
    made.lose(0)
    assert made.busy() == [] and made.outcomes() == {Outcome.DROPPED_CANCELLED: 1}


def test_a_poison_query_takes_two_workers_and_no_third(stage: Staging) -> None:
    """It used to be handed to a third worker in the moment before it was given up."""
    made = stage(serving(crew=3))
    poison = made.request(slack_ms=400)
    (worker,) = made.busy()
    made.lose(worker)
    (worker,) = made.busy()
    innocent = made.request(slack_ms=400)
    made.lose(worker)
    assert (poison.outcome, poison.problem) == (Outcome.FAILED, POISON)
    made.finish_all()
    assert innocent.outcome is Outcome.ON_TIME
    assert made.outcomes() == {Outcome.ON_TIME: 1, Outcome.FAILED: 1}
    assert made.engine.crew.restarts == 2


def test_poison_behind_which_a_batch_was_handed_ahead(stage: Staging) -> None:
    """With batches given ahead: what the dying worker held second is tried elsewhere, not lost."""
    made = stage(serving(), handoff_ns=300_000)
    first = made.request(slack_ms=900)
    second = made.request(slack_ms=900)
    made.wait(5)
    assert [job.count for job in made.workers[0].jobs] == [1, 1]
    made.lose()
    made.wait(130)
    assert [job.count for job in made.workers[0].jobs] == [2]
    made.finish()
    assert (first.outcome, second.outcome) == (Outcome.ON_TIME, Outcome.ON_TIME)


def test_who_was_only_next_in_line_is_not_the_poison(stage: Staging) -> None:
    """A batch handed ahead used to share the blame for the one that ran."""
    made = stage(serving(), handoff_ns=300_000)
    poison, innocent = made.request(slack_ms=2000), made.request(slack_ms=2000)
    made.wait(5)
    assert [job.count for job in made.workers[0].jobs] == [1, 1]
    made.lose()
    made.wait(130)
    made.lose()  # both were in one batch now
    assert (poison.outcome, innocent.outcome) == (Outcome.FAILED, None)
    made.wait(250)
    made.finish()
    assert innocent.outcome is Outcome.ON_TIME


def test_pauses_grow_and_begin_anew_after_a_healthy_life(stage: Staging) -> None:
    made = stage(serving())

    def pause_s() -> float:
        """Lose the worker; how long until the next one is started."""
        made.lose()
        fresh, began_ns = made.workers[0], made.loop.now_ns
        while not fresh.started:
            made.wait(10)
        return (made.loop.now_ns - began_ns) / 1e9

    pauses = [pause_s() for _ in range(9)]
    expected = [min(crew.FIRST_PAUSE_S * 2**n, crew.LONGEST_PAUSE_S) for n in range(9)]
    assert pauses == pytest.approx(expected, abs=0.011)
    made.wait(1e3 * crew.HEALTHY_S + 100)
    assert pause_s() == pytest.approx(crew.FIRST_PAUSE_S, abs=0.011)
    assert pause_s() == pytest.approx(2 * crew.FIRST_PAUSE_S, abs=0.011)
    assert made.engine.crew.restarts == 11


def test_a_worker_that_never_gets_ready_is_no_healthy_one(stage: Staging) -> None:
    """It may take long to fail; the pause grows all the same."""
    made = stage(serving(), starts=False)
    for pause_s in (0.1, 0.2, 0.4):
        made.wait(1e3 * crew.HEALTHY_S + 100)
        made.lose()
        fresh = made.workers[0]
        made.wait(1e3 * pause_s - 10)
        assert not fresh.started
        made.wait(20)
        assert fresh.started


def test_a_worker_that_hangs_is_ended(stage: Staging) -> None:
    made = stage(serving(crew=2), hang_s=2.0)
    request = made.request(slack_ms=9000)
    (hanging,) = made.busy()
    made.wait(1900)
    assert not made.workers[hanging].killed
    old = made.workers[hanging]
    made.wait(500)
    assert old.killed and made.busy() == [1 - hanging]
    made.finish_all()
    assert request.outcome is Outcome.ON_TIME


def test_a_batch_that_may_take_long_does_not_hang(stage: Staging) -> None:
    """Patience is 20 times what was expected, where that is more."""
    made = stage(serving(variant("v", beta_ms=1000), slo_ms=60_000), hang_s=2.0)
    made.request(slack_ms=60_000)
    made.wait(15_000)
    assert not made.workers[0].killed
    made.wait(6_000)
    assert made.every[0].killed


def test_the_second_batch_of_a_worker_has_patience_of_its_own(stage: Staging) -> None:
    made = stage(serving(), hang_s=2.0, handoff_ns=300_000)
    made.request(slack_ms=20_000)
    made.request(slack_ms=20_000)
    for _ in range(300):
        made.wait(5)
    assert len(made.workers[0].jobs) == 2
    made.finish()
    made.wait(1500)
    assert not made.workers[0].killed
    made.wait(1000)
    assert made.every[0].killed


def test_what_a_lost_worker_still_says_is_not_heard(stage: Staging) -> None:
    made = stage(serving(crew=2))
    request = made.request()
    old = made.workers[0]
    (job,) = old.jobs
    made.lose(0)
    old.jobs = [job]
    made.call(old.finish)
    assert request.outcome is None and made.busy() == [1]
    made.finish(1)
    assert made.outcomes() == {Outcome.ON_TIME: 1}


def test_a_worker_lost_while_it_loads_new_models_holds_nobody_up(stage: Staging) -> None:
    """A change of the repository used to wait two minutes for it."""
    made = stage(serving(crew=2))
    made.prepares = False
    later = serving(variant("new"), crew=2)
    began_ns = made.loop.now_ns

    async def hold() -> dict[str, str]:
        made.loop.call_soon(made.workers[0].lose)
        made.loop.call_soon(made.workers[1].lose)
        return await made.engine.succession.hold(later)

    assert made.loop.run_until_complete(hold()) == {}
    assert made.loop.now_ns == began_ns
    made.prepares = True


def test_variants_that_cannot_be_loaded_are_told_of(stage: Staging) -> None:
    made = stage(serving(variant("a"), variant("b")), starts=False)
    told: list[dict[str, str]] = []

    def hear(broken: dict[str, str]) -> bool:
        told.append(broken)
        return len(told) == 1

    made.engine.on_broken = hear
    made.request()
    made.call(made.workers[0].ready, {"app/b@1": "no such file"})
    assert told == [{"app/b@1": "no such file"}] and made.busy() == []  # a generation without it is on its way
    only = serving(variant("a"))
    made.replace(only, plan_for(only))
    assert made.busy() == [0]


def test_workers_are_lost_while_the_engine_stops(stage: Staging) -> None:
    made = stage(serving(crew=2))
    request = made.request()

    async def stop() -> None:
        stopping = made.loop.create_task(made.engine.stop())
        made.workers[0].lose()
        await stopping

    made.loop.run_until_complete(stop())
    assert request.outcome is Outcome.FAILED


def test_a_client_hears_at_its_deadline_that_its_worker_hangs(stage: Staging) -> None:
    """It used to hear so when the worker was given up, here a minute later."""
    made = stage(serving(crew=2), hang_s=60.0)
    stuck = made.request(slack_ms=1000)
    made.wait(990)
    assert stuck.outcome is None
    made.wait(300)
    assert (stuck.outcome, stuck.problem) == (Outcome.FAILED, NO_WORKER_ANSWERS)
    assert stuck.ended_ns - stuck.deadline_ns < 260_000_000 and made.outcomes() == {Outcome.FAILED: 1}
    (worker,) = made.busy()
    made.finish(worker)  # what comes after all is nobody's any more
    assert made.outcomes() == {Outcome.FAILED: 1}


def test_a_lost_query_that_nobody_can_try_again_fails_at_its_deadline(stage: Staging) -> None:
    served = serving()
    made = stage(served, plan_for(served, Late.KEEP))
    request = made.request(slack_ms=500)
    made.starts = False
    made.lose()
    made.wait(490)
    assert request.outcome is None
    made.wait(20)
    assert (request.outcome, request.problem) == (Outcome.FAILED, NO_WORKER_LEFT)


def test_a_slow_batch_is_no_hanging_one(stage: Staging) -> None:
    """It is answered late, as before: 20 times what was expected have not passed."""
    served = serving(variant("v", beta_ms=100), slo_ms=200)
    made = stage(served, plan_for(served, Late.KEEP))
    request = made.request(slack_ms=200)
    made.wait(1500)
    assert request.outcome is None
    made.finish()
    assert request.outcome is Outcome.LATE


def test_a_batch_of_a_model_that_is_set_aside_ends_without_being_run(stage: Staging) -> None:
    """In its turn: what runs before it on the same worker ends first."""
    served = serving_apps({"a": (variant("v"),), "b": (variant("v"),)})
    made = stage(served, handoff_ns=300_000)
    first = made.request(application="a", slack_ms=900)
    second = made.request(application="b", slack_ms=900)
    made.wait(5)
    assert [job.key for job in made.workers[0].jobs] == ["a/v@1", "b/v@1"]  # given ahead, before it was known
    made.engine.crew.lookout.beware(frozenset({"b/v@1"}), frozenset())
    third = made.request(application="b", slack_ms=900)
    made.finish()
    made.finish()
    assert (first.outcome, second.outcome) == (Outcome.ON_TIME, Outcome.ON_TIME)
    made.wait(1)
    assert (third.outcome, third.problem) == (Outcome.FAILED, SET_ASIDE) and made.busy() == []


def test_a_suspect_leaves_the_last_worker_to_others(stage: Staging) -> None:
    served = serving_apps({"bad": (variant("v"),), "good": (variant("v"),)}, crew=2)
    made = stage(served)
    blamed: list[tuple[str, Fault, bool]] = []
    made.engine.on_blamed = lambda key, fault, reason, is_certain: blamed.append((key, fault, is_certain))
    lost = made.request(application="bad", slack_ms=900)
    (worker,) = made.busy()
    made.engine.crew.lookout.beware(frozenset(), frozenset({"bad/v@1"}))
    made.lose(worker)
    assert blamed == [("bad/v@1", Fault.CRASHED, False)]
    made.wait(1)
    assert (lost.outcome, lost.problem) == (Outcome.FAILED, AT_RISK)
    good = made.request(application="good", slack_ms=900)
    assert made.busy() == [1 - worker]
    made.finish_all()
    assert good.outcome is Outcome.ON_TIME
    made.wait(200)
    again = made.request(application="bad", slack_ms=900)
    made.finish_all()
    assert again.outcome is Outcome.ON_TIME  # both are there again


def test_a_process_that_somebody_else_killed_is_no_model_s_fault(stage: Staging) -> None:
    made = stage(serving(crew=2))
    blamed: list[str] = []
    made.engine.on_blamed = lambda key, *rest: blamed.append(key)
    request = made.request(slack_ms=900)
    made.call(made.workers[made.busy()[0]].lose, "signal 9", Loss.KILLED)
    assert blamed == []
    made.finish_all()
    assert request.outcome is Outcome.ON_TIME


def test_a_device_that_fails_is_no_model_s_fault_however_large_its_worker_was(stage: Staging) -> None:
    made = stage(serving(crew=2), memory_bytes=1000 * MIB)
    blamed: list[str] = []
    made.engine.on_blamed = lambda key, *rest: blamed.append(key)
    request = made.request(slack_ms=900)
    (worker,) = made.busy()
    made.workers[worker].memory = 900 * MIB
    made.wait(300)
    made.call(made.workers[worker].lose, "exit code 75", Loss.DEVICE)
    assert blamed == []
    made.finish_all()
    assert request.outcome is Outcome.ON_TIME


@pytest.mark.parametrize("key", ["app/a@1", "app/b@1"])
def test_a_load_that_one_worker_crashes_at_is_not_blamed_where_another_serves_with_the_model(
    stage: Staging, key: str
) -> None:
    """It used to be taken from all workers at once. One that nobody has loaded is, still."""
    made = stage(serving(variant("a"), crew=2))
    blamed: list[tuple[str, Fault, bool]] = []
    made.engine.on_blamed = lambda key, fault, reason, is_certain: blamed.append((key, fault, is_certain))
    made.workers[0].at_load = [Loading(1, key, False)]
    made.lose(0)
    assert blamed == ([] if key == "app/a@1" else [(key, Fault.LOAD_CRASHED, True)])


def test_a_load_that_one_worker_fails_at_ends_that_worker_alone(stage: Staging) -> None:
    """It is started again, after a pause that grows, until it can load all."""
    made = stage(serving(variant("a"), crew=2))
    told: list[dict[str, str]] = []
    made.engine.on_broken = lambda broken: bool(told.append(broken))
    made.starts = False
    made.lose(0)
    for pause_s in (0.2, 0.4, 0.8):
        made.wait(1e3 * pause_s + 2)
        made.call(made.workers[0].ready, {"app/a@1": "no such device"})
        assert made.engine.crew.ready_count == 1 and not made.workers[0].started
        request = made.request(slack_ms=900)
        assert made.busy() == [1]
        made.finish(1)
        assert request.outcome is Outcome.ON_TIME
    made.wait(2000)
    made.call(made.workers[0].ready)
    assert made.engine.crew.ready_count == 2 and told == []


def test_a_load_that_hangs_at_start_is_blamed_and_the_worker_ended(stage: Staging) -> None:
    made = stage(serving(variant("a"), variant("b")), starts=False, load_s=5.0)
    blamed: list[tuple[str, Fault, bool]] = []
    made.engine.on_blamed = lambda key, fault, reason, is_certain: blamed.append((key, fault, is_certain))
    made.workers[0].at_load = [Loading(1, "app/a@1", False)]
    made.wait(3000)
    made.workers[0].at_load = [Loading(2, "app/b@1", False)]  # the first took long, and is there
    made.wait(4000)
    assert not made.workers[0].killed
    made.wait(2000)
    assert made.every[0].killed and blamed == [("app/b@1", Fault.LOAD_HUNG, True)]


# -- workers that are replaced ----------------------------------------------------------------------------------------

MIB = 1 << 20


def grown(stage: Staging, served: Served | None = None) -> Stage:
    """A worker that holds more than it may, beside the one that is to follow it."""
    made = stage(served or serving(), memory_bytes=1000 * MIB)
    made.starts = False
    made.workers[0].memory = 100 * MIB
    made.wait(300)
    made.workers[0].memory = 1100 * MIB
    made.wait(300)
    assert len(made.every) == 2 and made.every[1].started and not made.every[0].is_gone
    return made


def test_a_worker_with_too_much_memory_goes_when_its_successor_is_there(stage: Staging) -> None:
    made = grown(stage)
    old, new = made.every
    first = made.request()
    assert len(old.jobs) == 1
    made.call(new.ready)
    assert not old.is_gone and new.jobs == []
    second = made.request()
    made.call(old.finish)
    assert first.outcome is Outcome.ON_TIME and old.is_gone and len(new.jobs) == 1
    made.call(new.finish)
    assert second.outcome is Outcome.ON_TIME
    assert (made.engine.crew.replaced, made.engine.crew.restarts) == (1, 0)


def test_what_is_handed_ahead_goes_to_the_successor(stage: Staging) -> None:
    made = stage(serving(), memory_bytes=1000 * MIB, handoff_ns=300_000)
    made.starts = False
    made.workers[0].memory = 1100 * MIB
    made.wait(300)
    made.workers[0].memory = 1500 * MIB
    made.wait(300)
    old, new = made.every
    first = made.request(slack_ms=900)
    made.call(new.ready)
    second = made.request(slack_ms=900)
    made.wait(5)
    assert [job.count for job in old.jobs] == [1] and new.jobs == []
    made.call(old.finish)
    assert first.outcome is Outcome.ON_TIME and len(new.jobs) == 1
    made.call(new.finish)
    assert second.outcome is Outcome.ON_TIME


def test_a_worker_that_is_lost_before_it_is_replaced(stage: Staging) -> None:
    made = grown(stage)
    old, new = made.every
    request = made.request(slack_ms=900)
    made.call(old.lose)
    assert request.outcome is None and len(made.every) == 2
    made.call(new.ready)
    assert len(new.jobs) == 1
    made.call(new.finish)
    assert request.outcome is Outcome.ON_TIME and made.engine.crew.restarts == 1


def test_a_successor_that_cannot_start_is_tried_again_later(stage: Staging) -> None:
    made = grown(stage)
    old, new = made.every
    made.call(new.lose)
    made.request()
    made.call(old.finish)
    made.wait(5000)
    assert len(made.every) == 2
    made.wait(6000)
    assert len(made.every) == 3 and made.every[2].started


def test_a_successor_holds_what_was_loaded_meanwhile(stage: Staging) -> None:
    made = grown(stage)
    old, new = made.every
    later = serving(variant("new"), version="2")
    made.replace(later, plan_for(later))
    made.call(new.ready)
    assert old.is_gone and new.held == {"app/new@2"}
    request = made.request()
    made.call(new.finish)
    assert request.variants == ["new"]


def test_one_that_grows_far_beyond_is_ended_and_its_model_blamed(stage: Staging) -> None:
    made = stage(serving(crew=2), memory_bytes=1000 * MIB)
    blamed: list[tuple[str, Fault]] = []
    made.engine.on_blamed = lambda key, fault, reason, is_certain: blamed.append((key, fault))
    for executor in made.workers.values():
        executor.memory = 100 * MIB
    made.wait(300)
    made.request(slack_ms=9000)
    old = made.workers[made.busy()[0]]
    old.memory = 2000 * MIB
    made.wait(300)
    assert old.killed and blamed == [("app/v@1", Fault.MEMORY)]
    made.finish_all()


def test_a_model_that_answered_little_leaves_the_last_worker_to_one_that_answered_much(stage: Staging) -> None:
    """One of an application that is not on trial, for another model of it has answered much."""
    variants = variant("v"), variant("w")
    made = stage(serving_apps({"good": (variant("v"),), "new": variants}, crew=2))

    def answers(application: str, batches: int, **wish: str) -> None:
        for _ in range(batches):
            made.request(application=application, slack_ms=900, **wish)
            made.finish_all()

    answers("good", PROVEN)
    answers("new", PROVEN, pinned="v")
    answers("new", 2, pinned="w")  # as one that takes its worker down with the third query
    made.call(made.workers[0].lose, "signal 9", Loss.KILLED)
    refused = made.request(application="new", slack_ms=900, pinned="w")
    made.wait(1)
    assert (refused.outcome, refused.problem) == (Outcome.FAILED, NEW)
    good = made.request(application="good", slack_ms=900)
    made.finish_all()
    made.wait(200)
    taken = made.request(application="new", slack_ms=900, pinned="w")
    made.finish_all()
    answers("new", PROVEN, pinned="w")
    assert (good.outcome, taken.outcome) == (Outcome.ON_TIME, Outcome.ON_TIME)
    made.call(made.workers[0].lose, "signal 9", Loss.KILLED)
    taken = made.request(application="new", slack_ms=900, pinned="w")  # it is proven by now
    made.finish_all()
    assert taken.outcome is Outcome.ON_TIME


def beside_a_proven_one(stage: Staging, *new: str, crew: int) -> Stage:
    """`good` has answered much; these were added a moment ago."""
    made = stage(serving_apps({"good": (variant("v"),), "other": (variant("v"),)}, crew=crew))
    for _ in range(PROVEN):
        made.request(application="good", slack_ms=900)
        made.finish_all()
    served = serving_apps({name: (variant("v"),) for name in ("good", *new)}, crew=crew)
    made.replace(served, plan_for(served))
    return made


def jobs_of(made: Stage) -> dict[int, str]:
    return {worker: made.workers[worker].jobs[0].key.partition("/")[0] for worker in made.busy()}


def test_a_model_that_answered_little_runs_on_one_worker_while_others_need_the_rest(stage: Staging) -> None:
    """One that hangs when it runs used to have every worker before any of them was overdue."""
    made = beside_a_proven_one(stage, "new", crew=2)
    news = [made.request(application="new", slack_ms=900, rows=8) for _ in range(3)]
    assert list(jobs_of(made).values()) == ["new"]  # the rest waits
    good = made.request(application="good", slack_ms=900)
    assert sorted(jobs_of(made).values()) == ["good", "new"]
    made.finish_all()
    assert {each.outcome for each in (good, *news)} == {Outcome.ON_TIME}
    for _ in range(PROVEN):
        made.request(application="new", slack_ms=900)
        made.finish_all()
    for _ in range(2):
        made.request(application="new", slack_ms=900, rows=8)
    assert list(jobs_of(made).values()) == ["new", "new"]
    made.finish_all()


def test_an_application_on_trial_waits_for_its_worker_to_come_back(stage: Staging) -> None:
    """It used to be refused the last worker, and its queries failed."""
    made = beside_a_proven_one(stage, "new", crew=2)
    made.request(application="new", slack_ms=900)
    (worker,) = made.busy()
    made.finish(worker)
    made.call(made.workers[worker].lose, "signal 9", Loss.KILLED)
    new = made.request(application="new", slack_ms=900)
    good = made.request(application="good", slack_ms=900)
    assert jobs_of(made) == {1 - worker: "good"}
    made.wait(200)
    assert jobs_of(made) == {1 - worker: "good", worker: "new"}
    made.finish_all()
    assert (good.outcome, new.outcome) == (Outcome.ON_TIME, Outcome.ON_TIME)


def test_a_model_that_hangs_keeps_no_other_that_answered_little_waiting(stage: Staging) -> None:
    made = beside_a_proven_one(stage, "new", "newer", crew=3)
    made.request(application="new", slack_ms=2000)
    (hanging,) = made.busy()
    newer = made.request(application="newer", slack_ms=900)
    assert made.busy() == [hanging]  # it waits for the worker that both have
    made.wait(300)
    made.call(made.engine.adopt, made.engine.generation)  # as every quarter of a second
    assert sorted(jobs_of(made).values()) == ["new", "newer"]
    refused = made.request(application="new", slack_ms=900)
    good = made.request(application="good", slack_ms=900)
    for worker in set(made.busy()) - {hanging}:
        made.finish(worker)
    assert {newer.outcome, good.outcome} == {Outcome.ON_TIME}
    made.wait(1)
    assert (refused.outcome, refused.problem) == (Outcome.FAILED, AT_RISK)
    made.finish_all()


def test_of_two_workers_the_one_for_trials_is_not_held_for_long(stage: Staging) -> None:
    """The other one is not for those who answered little, so they would wait as long as the hang limit."""
    made = beside_a_proven_one(stage, "new", "newer", crew=2)
    made.request(application="new", slack_ms=9000)
    (hanging,) = made.busy()
    newer = made.request(application="newer", slack_ms=9000)
    made.wait(800)
    assert not made.every[hanging].killed
    made.wait(800)
    assert made.every[hanging].killed
    made.wait(200)
    made.finish_all()
    assert newer.outcome is Outcome.ON_TIME


def test_models_that_answered_little_have_all_workers_where_nobody_answered_more(stage: Staging) -> None:
    """As at the first start; and where there is no other application."""
    for served in (serving_apps({"a": (variant("v"),), "b": (variant("v"),)}, crew=2), serving(crew=2)):
        made = stage(served)
        name = served.deployment.applications[0].name
        for _ in range(2):
            made.request(application=name, slack_ms=900, rows=8)
        assert made.busy() == [0, 1]
        made.finish_all()


def test_at_start_the_first_worker_is_for_everybody(stage: Staging) -> None:
    made = stage(serving_apps({"a": (variant("v"),), "b": (variant("v"),)}, crew=2), starts=False)
    made.call(made.workers[0].ready)
    request = made.request(application="b", slack_ms=900)
    made.finish_all()
    assert request.outcome is Outcome.ON_TIME


def test_workers_are_not_ended_because_the_whole_machine_stood_still(stage: Staging) -> None:
    made = stage(serving(), hang_s=2.0)
    made.request(slack_ms=60_000)
    made.wait(300)
    made.loop.now_ns += 30_000_000_000
    made.wait(300)
    assert not made.workers[0].killed
    made.wait(3000)
    assert made.every[0].killed


@pytest.mark.parametrize("memory", [1100, 2000])  # it is replaced, or ended
def test_memory_is_blamed_on_the_model_that_took_it_and_not_on_the_one_that_runs(stage: Staging, memory: int) -> None:
    """Whoever ran when it was noticed used to be taken for the culprit."""
    made = stage(serving_apps({"good": (variant("v"),), "leak": (variant("v"),)}, crew=2), memory_bytes=1000 * MIB)
    blamed: list[tuple[str, Fault]] = []
    made.engine.on_blamed = lambda key, fault, reason, is_certain: blamed.append((key, fault))
    made.workers[0].memory = 100 * MIB
    made.wait(300)
    made.request(application="good", slack_ms=9000)
    assert made.busy() == [0]
    made.workers[0].grown = {"leak/v@1": (memory - 150) * MIB, "good/v@1": 50 * MIB}
    made.workers[0].memory = memory * MIB
    made.wait(300)
    assert blamed == [("leak/v@1", Fault.MEMORY)]


def test_a_load_that_hangs_beside_the_work_is_blamed_and_the_worker_replaced(stage: Staging) -> None:
    """Its batches go on meanwhile. The model used to go live, after two minutes, without being loaded."""
    made = stage(serving(), load_s=5.0)
    blamed: list[tuple[str, Fault, bool]] = []
    made.engine.on_blamed = lambda key, fault, reason, is_certain: blamed.append((key, fault, is_certain))
    made.prepares = False
    later = serving(variant("v"), variant("new"))
    holding = made.loop.create_task(made.engine.succession.hold(later))
    made.wait(1)
    made.workers[0].at_load = [Loading(1, "app/new@1", True)]
    old = made.workers[0]
    made.request(slack_ms=900)
    made.finish_all()
    made.wait(6000)
    assert set(blamed) == {("app/new@1", Fault.LOAD_HUNG, True)}
    assert old.is_gone and made.engine.crew.replaced == 1 and made.workers[0].held == {"app/v@1"}
    request = made.request(slack_ms=900)
    made.finish_all()
    assert request.outcome is Outcome.ON_TIME and holding.done() and made.engine.crew.restarts == 0
