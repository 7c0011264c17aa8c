"""A worker that is to be replaced, and what may come between: its end, or that of the one that is to follow."""

from __future__ import annotations

from stretto.core.outcome import Outcome
from stretto.live import crew
from tests.live.conftest import Staging
from tests.live.scripted import MS, Stage, serving
from tests.live.test_faults import grown


def retire(made: Stage, worker: int = 0) -> None:
    made.call(made.engine.reports.let_go, worker)


def test_all_of_them_are_killed_at_once_with_those_that_are_to_follow(stage: Staging) -> None:
    made = grown(stage)
    made.call(made.engine.crew.kill)
    assert [executor.killed for executor in made.every] == [True, True]
    made.wait(1e3 * crew.LONGEST_PAUSE_S)
    assert len(made.every) == 2, "nobody is started again"


def test_a_worker_that_is_let_go_while_it_is_paused_is_not_started_again(stage: Staging) -> None:
    made = stage(serving(crew=2))
    made.lose(0)
    assert made.engine.crew.is_paused(0) and len(made.every) == 3 and not made.every[2].started
    retire(made)
    made.wait(1e3 * crew.LONGEST_PAUSE_S)
    assert not any(executor.started for executor in made.every[2:])
    assert made.engine.crew.ready_count == 1
    made.call(made.engine.crew.call_back, 0)
    assert made.engine.crew.ready_count == 2, "it comes back when it is called"


def test_a_worker_that_is_let_go_needs_no_successor(stage: Staging) -> None:
    made = grown(stage)
    old, new = made.every
    request = made.request()
    retire(made)
    assert new.killed and not old.is_gone
    made.call(old.finish)
    assert request.outcome is Outcome.ON_TIME and old.is_gone
    made.wait(20_000)
    assert not any(executor.started for executor in made.every[2:])


def test_a_successor_that_cannot_load_what_the_old_one_serves_with_is_given_up(stage: Staging) -> None:
    """The old one goes on, and another is tried when a while has passed."""
    made = grown(stage)
    old, new = made.every
    request = made.request()
    made.call(new.ready, {"app/v@1": "no memory"})
    assert new.killed and not old.is_gone and old.jobs
    made.call(old.finish)
    assert request.outcome is Outcome.ON_TIME
    made.wait(1e3 * crew.RETRY_S - 1000)
    assert len(made.every) == 2
    made.wait(2000)
    assert len(made.every) == 3 and made.every[2].started


def test_what_a_successor_that_was_given_up_still_says_is_not_heard(stage: Staging) -> None:
    made = grown(stage)
    old, first = made.every
    made.call(first.ready, {"app/v@1": "no memory"})
    made.wait(1e3 * crew.RETRY_S + 1000)
    second = made.every[2]
    made.call(first.ready)
    assert not old.is_gone, "nobody takes over who was given up"
    made.call(first.lose)
    assert not second.killed, "the loss of the first is not that of the second"
    made.call(second.ready)
    assert old.is_gone and made.engine.crew.replaced == 1


def test_a_batch_that_waits_for_a_successor_runs_when_that_is_given_up(stage: Staging) -> None:
    """It was held back for the successor, which is lost before the batch in front has ended."""
    made = stage(serving(), memory_bytes=1000 << 20, handoff_ns=300_000)
    made.starts = False
    made.workers[0].memory = 1100 << 20
    made.wait(300)
    made.workers[0].memory = 1500 << 20
    made.wait(300)
    old, new = made.every
    requests = [made.request(slack_ms=900)]
    made.call(new.ready)
    requests.append(made.request(slack_ms=900))
    made.wait(5)
    assert [job.count for job in old.jobs] == [1] and new.jobs == []
    made.call(new.lose)
    assert [job.count for job in old.jobs] == [1, 1]
    made.call(old.finish)
    made.call(old.finish)
    assert [request.outcome for request in requests] == [Outcome.ON_TIME] * 2


def test_what_is_lost_with_a_worker_starts_elsewhere_at_once(stage: Staging) -> None:
    """And not when the next query comes: also where the batch was one of an earlier generation."""
    made = stage(serving(crew=2))
    lost = made.request(slack_ms=500)
    (worker,) = made.busy()
    now_ns = made.loop.now_ns
    made.lose(worker)
    assert made.busy() == [1 - worker] and made.loop.now_ns - now_ns < MS
    made.finish(1 - worker)
    assert lost.outcome is Outcome.ON_TIME


def test_a_worker_of_an_earlier_generation_that_is_lost_is_missed_by_both(stage: Staging) -> None:
    """The one that serves now has given it nothing yet, and must give it nothing."""
    from tests.live.scripted import plan_for

    made = stage(serving(crew=2))
    first = made.request(slack_ms=500)
    (worker,) = made.busy()
    later = serving(crew=2, version="2")
    made.replace(later, plan_for(later))
    second = made.request(slack_ms=500)
    third = made.request(slack_ms=500)
    made.lose(worker)
    made.finish_all()
    assert [each.outcome for each in (first, second, third)] == [Outcome.ON_TIME] * 3
