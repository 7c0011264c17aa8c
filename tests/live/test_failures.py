"""Queries that a model fails on go to another variant while there is time, and whoever fails much is set aside."""

from __future__ import annotations

import pytest

from stretto.core.outcome import Outcome
from stretto.core.plan import Late
from stretto.live.generation import Served
from stretto.live.lookout import SET_ASIDE
from stretto.live.quarantine import Fault
from tests.live.conftest import Staging
from tests.live.scripted import Stage, plan_for, serving, variant

RAISED = "RuntimeError: no"
Blamed = list[tuple[str, Fault, str, bool]]


def pair(crew: int = 1, **more: str) -> Served:
    """The plan uses the first one only."""
    return serving(variant("bad", 0.9), variant("good", 0.8), crew=crew, **more)


def names(made: Stage, worker: int = 0) -> list[str]:
    return [job.key for job in made.workers[worker].jobs]


def fails(made: Stage, times: int = 1, then: str = "app/good@1") -> None:
    """The bad one fails on a batch of one query, which the good one answers."""
    for _ in range(times):
        request = made.request()
        assert names(made) == ["app/bad@1"]
        made.finish(failures={0: RAISED}, answers=False)
        assert names(made) == [then]
        made.finish()
        assert request.outcome is Outcome.ON_TIME


def passes(made: Stage, times: int = 1) -> None:
    for _ in range(times):
        request = made.request()
        made.finish()
        assert (request.outcome, request.variants) == (Outcome.ON_TIME, ["bad"])


def told(made: Stage) -> tuple[Blamed, list[str]]:
    """What the service hears: who is to be set aside, and who is to be tried."""
    blamed: Blamed = []
    doubted: list[str] = []
    made.engine.on_blamed = lambda *what: blamed.append(what)
    made.engine.on_doubted = doubted.append
    return blamed, doubted


def test_another_variant_answers_a_query_that_a_model_failed_on(stage: Staging) -> None:
    """It used to end as failed, beside a healthy variant."""
    made = stage(pair())
    request = made.request()
    made.finish(failures={0: RAISED}, answers=False)
    assert request.outcome is None and names(made) == ["app/good@1"]
    made.finish()
    assert (request.outcome, request.variants, request.problem) == (Outcome.ON_TIME, ["good"], "")
    assert request.accuracy_sum == pytest.approx(0.8)
    assert made.outcomes() == {Outcome.ON_TIME: 1}


def test_only_the_query_at_fault_goes_elsewhere(stage: Staging) -> None:
    made = stage(pair())
    made.request()
    batch = [made.request(), made.request(rows=2)]
    made.finish()
    assert made.workers[0].jobs[0].count == 3
    made.finish(failures={1: RAISED})
    assert batch[0].variants == ["bad"] and batch[1].outcome is None
    made.finish_all()
    assert batch[1].outcome is Outcome.ON_TIME and set(batch[1].variants) == {"bad", "good"}
    assert made.outcomes() == {Outcome.ON_TIME: 4}


def test_a_query_that_two_variants_fail_on_is_poison(stage: Staging) -> None:
    made = stage(serving(variant("bad", 0.9), variant("good", 0.8), variant("third", 0.7)), tells_failures=True)
    blamed, _ = told(made)
    for _ in range(5):
        request = made.request()
        made.finish(failures={0: RAISED}, answers=False)
        made.finish(failures={0: "ValueError: nor can I"}, answers=False)
        assert (request.outcome, request.problem) == (Outcome.FAILED, "ValueError: nor can I")
    assert made.busy() == [] and not blamed  # it was the queries' fault
    assert made.outcomes() == {Outcome.FAILED: 5}


def test_who_demands_a_variant_hears_at_once_that_it_failed(stage: Staging) -> None:
    made = stage(pair(), tells_failures=True)
    request = made.request(pinned="bad")
    made.finish(failures={0: RAISED}, answers=False)
    assert (request.outcome, request.problem) == (Outcome.FAILED, RAISED) and made.busy() == []


def test_who_demands_an_accuracy_gets_it_from_another_variant_too(stage: Staging) -> None:
    served = serving(variant("low", 0.5), variant("good", 0.8), variant("best", 0.9))
    made = stage(served, tells_failures=True)
    request = made.request(min_accuracy=0.75)
    assert names(made) == ["app/best@1"]
    made.finish(failures={0: RAISED}, answers=False)
    assert names(made) == ["app/good@1"]
    made.finish()
    assert request.variants == ["good"]
    alone = made.request(min_accuracy=0.85)
    made.finish(failures={0: RAISED}, answers=False)
    assert (alone.outcome, alone.problem) == (Outcome.FAILED, RAISED)


@pytest.mark.parametrize("late", [Late.DROP_WHEN_INFEASIBLE, Late.KEEP])
def test_a_query_that_cannot_be_tried_again_in_time_failed_with_the_model_s_reason(stage: Staging, late: Late) -> None:
    served = pair()
    made = stage(served, plan_for(served, late), tells_failures=True)
    request = made.request(slack_ms=10)
    made.wait(7)
    made.finish(failures={0: RAISED}, answers=False)
    made.wait(4)  # a lane that keeps what is late tries all the same
    assert (request.outcome, request.problem) == (Outcome.FAILED, RAISED)


def test_a_query_that_waits_for_another_try_ends_at_its_deadline(stage: Staging) -> None:
    made = stage(pair(), tells_failures=True)
    request = made.request(slack_ms=50)
    made.finish(failures={0: RAISED}, answers=False)
    made.wait(51)
    assert (request.outcome, request.problem) == (Outcome.FAILED, RAISED)
    made.finish()
    assert made.outcomes() == {Outcome.FAILED: 1}


def test_a_query_of_an_earlier_generation_is_tried_by_the_one_that_serves(stage: Staging) -> None:
    """And not by the same model again, whatever plan follows."""
    made = stage(pair())
    request = made.request(slack_ms=900)
    made.replace(served := pair(), plan_for(served))
    made.finish(failures={0: RAISED}, answers=False)
    assert names(made) == ["app/good@1"]
    made.finish()
    assert request.variants == ["good"] and made.outcomes() == {Outcome.ON_TIME: 1}


def test_a_query_that_waits_is_not_given_back_by_a_change(stage: Staging) -> None:
    """A mended file is another model, and may have it."""
    made = stage(pair())
    blocking, request = made.request(slack_ms=900), made.request(slack_ms=900)
    made.finish()
    made.finish(failures={0: RAISED}, answers=False)
    made.lose()  # it waits for a worker
    assert blocking.outcome is Outcome.ON_TIME and request.outcome is None
    made.replace(served := pair(), plan_for(served))
    made.wait(150)
    assert names(made) == ["app/good@1"]
    made.lose()
    made.replace(served := pair(version="2"), plan_for(served))
    made.wait(300)
    assert request.outcome is Outcome.FAILED or names(made) == ["app/bad@2"]


def test_a_model_that_fails_three_times_in_a_row_is_blamed(stage: Staging) -> None:
    made = stage(pair())
    blamed, doubted = told(made)
    fails(made, 2)
    passes(made)
    fails(made, 2)
    assert blamed == []
    fails(made)
    made.wait(1000)
    assert doubted == [], "it need not be tried"
    ((key, fault, reason, is_certain),) = blamed
    assert (key, fault, is_certain) == ("app/bad@1", Fault.RAISED, True)
    assert "3 batches in a row" in reason and RAISED in reason


def test_a_batch_counts_once_however_many_of_its_queries_others_answer(stage: Staging) -> None:
    made = stage(pair())
    blamed, _ = told(made)
    for times in range(3):
        assert blamed == []
        request = made.request(rows=3)
        assert made.workers[0].jobs[0].count == 3
        made.finish(failures=dict.fromkeys(range(3), RAISED), answers=False)
        made.finish()
        assert request.outcome is Outcome.ON_TIME and set(request.variants) == {"good"}, times
    assert len(blamed) == 1


def test_batches_that_are_answered_in_part_are_no_row_of_failures(stage: Staging) -> None:
    made = stage(pair())
    blamed, doubted = told(made)
    for _ in range(4):
        request = made.request(rows=2)
        made.finish(failures={0: RAISED})
        made.finish()
        assert request.outcome is Outcome.ON_TIME and set(request.variants) == {"bad", "good"}
    made.wait(200)
    assert (blamed, doubted) == ([], [])


def test_a_model_that_fails_now_and_then_is_blamed_by_its_share(stage: Staging) -> None:
    made = stage(pair())
    blamed, _ = told(made)
    for _ in range(19):
        fails(made)
        passes(made, 2)
    assert blamed == []
    fails(made)
    assert len(blamed) == 1 and "20 of its last" in blamed[0][2]


def test_queries_that_nobody_else_can_try_blame_nobody_but_have_the_model_tried(stage: Staging) -> None:
    """They may be somebody's who sends what no model can answer."""
    made = stage(serving(variant("only")))
    blamed, doubted = told(made)
    for _ in range(50):
        request = made.request()
        made.finish(failures={0: RAISED}, answers=False)
        assert request.outcome is Outcome.FAILED
    assert (blamed, doubted) == ([], [])
    made.wait(101)  # others might have shown by now whose fault it was
    assert (blamed, doubted) == ([], ["app/only@1"])
    made.wait(30_000)
    made.request()
    made.finish(failures={0: RAISED}, answers=False)
    made.wait(101)
    assert (blamed, doubted) == ([], ["app/only@1"] * 2)


@pytest.mark.parametrize("has_answered", [False, True])
def test_one_that_never_answered_is_blamed_after_a_hundred_batches(stage: Staging, has_answered: bool) -> None:
    """One that did is not, whoever sends what it cannot answer."""
    made = stage(serving(variant("only")))
    blamed, _ = told(made)
    if has_answered:
        made.request()
        made.finish()
    for count in range(100):
        assert len(blamed) == 0, count
        made.request()
        made.finish(failures={0: RAISED}, answers=False)
    assert len(blamed) == (0 if has_answered else 1)
    assert has_answered or "100 batches and answered none" in blamed[0][2]


def test_a_batch_that_is_refused_for_its_model_goes_to_another_variant(stage: Staging) -> None:
    """Between the moment when a model is set aside and the plan that does without it."""
    made = stage(pair())
    blamed, doubted = told(made)
    made.engine.crew.lookout.beware(frozenset({"app/bad@1"}), frozenset())
    for _ in range(5):
        request = made.request()
        made.wait(1)
        assert names(made) == ["app/good@1"]
        made.finish()
        assert request.variants == ["good"]
    assert (blamed, doubted) == ([], [])
    made.engine.crew.lookout.beware(frozenset({"app/bad@1", "app/good@1"}), frozenset())
    request = made.request()
    made.wait(1)
    assert (request.outcome, request.problem) == (Outcome.FAILED, SET_ASIDE)
