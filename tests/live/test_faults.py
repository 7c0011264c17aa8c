"""Workers that are lost, hang, poison themselves or come late; requests must have their end, and the rest goes on."""

from __future__ import annotations

import pytest

from stretto.core.outcome import Outcome
from stretto.core.plan import Late
from stretto.live import crew
from stretto.live.losses import NO_WORKER_LEFT, POISON
from tests.live.conftest import Staging
from tests.live.scripted import plan_for, serving, variant


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
        return await made.engine.hold(later)

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
