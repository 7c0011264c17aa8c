"""The engine: requests in, answers or reasons out. Workers are scripted and time is the test's own."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.outcome import Outcome
from stretto.core.plan import Accumulate, Fixed, Lane, Late, MostAccurate, Plan, Route, RouteRule
from stretto.core.profile import LatencyProfile
from stretto.live.engine import NO_WORKER_LEFT, STOPPED
from stretto.live.generation import MAX_DEMANDS
from stretto.live.requests import NoSuchVariant, Query, Request, rows_of
from stretto.live.shelf import NO_ANSWER
from stretto.planning.completion import DOOR_SHARE, RATIO_STEP, SMALLEST_DOOR, with_doors
from stretto.twin.live import LiveTwin
from tests.live.conftest import Staging
from tests.live.scripted import MS, plan_for, serving, serving_apps, variant

FAST, GOOD, BEST = variant("fast", 0.6, 1, 4), variant("good", 0.8, 2, 18), variant("best", 0.9, 4, 46)


def test_one_query_is_answered(stage: Staging) -> None:
    made = stage(serving())
    request = made.request(fill=3.0, slack_ms=40)
    assert (request.outcome, made.engine.waiting) == (None, 1)
    made.wait(4)
    made.finish()
    assert request.outcome is Outcome.ON_TIME and request.answers is not None
    np.testing.assert_array_equal(request.answers, [[6.0]])
    assert (request.variants, request.batch, request.accuracy_sum) == (["v"], 1, 0.5)
    assert (request.ended_ns - request.arrival_ns, request.run_ns, request.queue_ns) == (4 * MS, 4 * MS, 0)
    assert (request.problem, made.engine.waiting, made.outcomes()) == ("", 0, {Outcome.ON_TIME: 1})


def test_neither_worker_nor_client_waits_while_the_twin_is_told(
    stage: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, twin = stage(serving()), LiveTwin(0)
    told: list[tuple[str, int]] = []
    monkeypatch.setattr(twin, "arrived_many", lambda *said: told.append(("came", len(made.workers[0].jobs))))
    monkeypatch.setattr(twin, "ended", lambda overrun_ns: told.append(("ended", len(made.ended))))
    made.engine.twin = twin
    made.call(made.engine.submit, made.made_request(), gathers=True)
    assert told == [("came", 1)], "its batch is with the worker by then"
    made.finish()
    assert told == [("came", 1), ("ended", 1)], "it is answered by then"


def test_the_rows_of_a_request_run_together_and_come_back_in_order(stage: Staging) -> None:
    made = stage(serving())
    request = made.request(rows=5)
    assert [job.count for job in made.workers[0].jobs] == [5]
    (job,) = made.workers[0].jobs
    assert len(job.parts) == 1 and job.parts[0] is request.inputs  # nothing is copied on the way
    made.finish()
    assert request.answers is not None
    np.testing.assert_array_equal(request.answers, request.inputs.sum(axis=1, keepdims=True))
    assert (request.batch, made.outcomes()) == (5, {Outcome.ON_TIME: 5})


def test_rows_beyond_the_largest_batch_follow_in_the_next(stage: Staging) -> None:
    made = stage(serving())
    request = made.request(rows=11)
    made.finish()
    assert request.outcome is None and made.engine.waiting == 3
    made.finish()
    assert request.answers is not None
    np.testing.assert_array_equal(request.answers, request.inputs.sum(axis=1, keepdims=True))
    assert request.batch == 8


def test_rows_of_one_request_may_be_answered_by_several_variants(stage: Staging) -> None:
    served = serving(FAST, BEST)
    made = stage(served, plan_for(served, select=MostAccurate((1, 0))))
    request = made.request(rows=9, slack_ms=100)
    first = made.workers[0].jobs[0]
    assert (first.variant, first.count) == (1, 8)
    made.wait(80)
    made.finish()
    assert made.workers[0].jobs[0].variant == 0
    made.finish()
    assert request.variants == ["best", "fast"] and request.answers is not None
    assert request.accuracy_sum == pytest.approx(8 * 0.9 + 0.6)
    factors = request.answers[:, 0] / request.inputs.sum(axis=1).clip(min=1e-9)
    np.testing.assert_allclose(factors[1:], [2.0] * 7 + [1.0])


def test_neighbouring_rows_of_one_request_are_one_part() -> None:
    def rows(request: Request, *numbers: int) -> list[Query]:
        return [request.queries[number] for number in numbers]

    one, two = (Request("app", np.arange(8.0).reshape(4, 2), 1, lambda request: None) for _ in range(2))
    parts = rows_of(rows(one, 0, 1) + rows(two, 0) + rows(one, 3) + rows(two, 1, 2) + rows(one, 2))
    assert [len(part) for part in parts] == [2, 1, 1, 2, 1]
    expected = np.concatenate([one.inputs[:2], two.inputs[:1], one.inputs[3:], two.inputs[1:3], one.inputs[2:3]])
    np.testing.assert_array_equal(np.concatenate(parts), expected)
    assert rows_of(list(one.queries))[0] is one.inputs


def test_what_comes_in_one_turn_of_the_loop_shares_a_batch(stage: Staging) -> None:
    """A free worker used to be given the first of them alone, and the others waited for it."""
    made = stage(serving())
    ended: list[Request] = []
    requests = [Request("app", np.ones((1, 2), np.float32), 100_000_000, ended.append) for _ in range(3)]

    def come() -> None:
        for request in requests:
            made.engine.submit(request, gathers=True)
        assert not made.workers[0].jobs

    made.call(come)
    made.wait(0)
    assert [job.count for job in made.workers[0].jobs] == [3]
    made.finish()
    assert ended == requests and {request.outcome for request in requests} == {Outcome.ON_TIME}


def test_who_leaves_in_the_turn_in_which_it_came_is_cancelled_alone(stage: Staging) -> None:
    """It has not entered the dispatcher yet."""
    made = stage(serving())
    requests = [made.made_request() for _ in range(3)]

    def come() -> None:
        for request in requests:
            made.engine.submit(request, gathers=True)
        assert made.engine.waiting == 3
        made.engine.cancel(requests[1])

    made.call(come)
    made.wait(0)
    assert requests[1].outcome is Outcome.DROPPED_CANCELLED
    made.finish_all()
    assert made.outcomes() == {Outcome.ON_TIME: 2, Outcome.DROPPED_CANCELLED: 1}


def test_what_came_in_the_last_turn_has_an_end_too(stage: Staging) -> None:
    made = stage(serving())
    request = made.made_request()

    def come() -> None:
        made.engine.submit(request, gathers=True)
        made.engine.end_all()

    made.call(come)
    assert request.outcome is Outcome.FAILED and request.problem == STOPPED and made.engine.waiting == 0


def test_an_answer_after_the_deadline_is_late(stage: Staging) -> None:
    made = stage(serving())
    request = made.request(slack_ms=10)
    made.wait(11)
    made.finish()
    assert request.outcome is Outcome.LATE and request.answers is not None


def test_a_waiting_request_is_cancelled(stage: Staging) -> None:
    made = stage(serving())
    running, waiting = made.request(), made.request(rows=2)
    made.cancel(waiting)
    assert waiting.outcome is Outcome.DROPPED_CANCELLED and made.engine.waiting == 1
    made.cancel(waiting)
    made.finish()
    made.cancel(running)
    assert running.outcome is Outcome.ON_TIME
    assert made.outcomes() == {Outcome.ON_TIME: 1, Outcome.DROPPED_CANCELLED: 2}


def test_a_running_request_is_cancelled_and_its_worker_goes_on(stage: Staging) -> None:
    made = stage(serving())
    gone, other = made.request(rows=2), made.request()
    made.cancel(gone)
    assert gone.outcome is Outcome.DROPPED_CANCELLED and made.busy() == [0]
    made.finish()
    assert other.outcome is None and made.workers[0].jobs[0].count == 1
    made.finish()
    assert other.outcome is Outcome.ON_TIME and gone.answers is None


def test_reasons_at_the_end_of_slack(stage: Staging) -> None:
    """Infeasible while the deadline has not passed, expired when it has."""
    made = stage(serving())
    made.request(slack_ms=100)
    hopeless, waiting = made.request(slack_ms=2), made.request(slack_ms=20)
    assert hopeless.outcome is Outcome.DROPPED_INFEASIBLE and waiting.outcome is None
    made.wait(17)
    assert waiting.outcome is Outcome.DROPPED_INFEASIBLE
    assert waiting.ended_ns - waiting.arrival_ns <= 17 * MS
    made.finish()
    expired = made.request(slack_ms=-1)
    assert expired.outcome is Outcome.DROPPED_EXPIRED


def test_a_request_ends_with_its_first_row_that_has_no_answer(stage: Staging) -> None:
    served = serving()
    lane = Lane("app", (0,), Fixed(0), late=Late.DROP_WHEN_INFEASIBLE, capacity=6)
    made = stage(served, Plan((lane,), (Route(RouteRule.BY_APPLICATION, (0,)),)))
    made.request()
    request = made.request(rows=9)  # one more than fit into a batch
    assert request.outcome is Outcome.DROPPED_OVERLOAD
    assert made.engine.waiting == 1
    assert made.outcomes() == {Outcome.DROPPED_OVERLOAD: 9}


def test_the_door_refuses_what_could_not_be_answered_within_the_slo(stage: Staging) -> None:
    """Latency b + 4 ms, at most 8: batches of 8 bring 66 queries through in 100 ms; a share may wait or run."""
    served = serving()
    door = with_doors(plan_for(served), served.deployment).lanes[0].capacity
    assert door == int(DOOR_SHARE * 8 * 100 / 12)
    made = stage(served)
    taken = [made.request(slack_ms=100) for _ in range(door)]
    assert all(request.outcome is None for request in taken)
    assert made.request().outcome is Outcome.DROPPED_OVERLOAD
    while made.busy():
        made.wait(11.9)
        made.finish()
    assert {request.outcome for request in taken} == {Outcome.ON_TIME}


def test_how_wide_doors_are() -> None:
    served = serving()
    kept = with_doors(plan_for(served, Late.KEEP), served.deployment)
    assert kept.lanes[0].capacity == 65_536  # who keeps the late has no door
    narrow = with_doors(plan_for(served, capacity=3), served.deployment)
    assert narrow.lanes[0].capacity == 3  # a planner's own door is not opened further
    slow = serving(variant("v", alpha_ms=1, beta_ms=500))
    assert with_doors(plan_for(slow), slow.deployment).lanes[0].capacity == SMALLEST_DOOR
    pair = serving(crew=2)
    one, two = (with_doors(plan_for(each), each.deployment).lanes[0].capacity for each in (served, pair))
    assert two in (2 * one, 2 * one + 1)
    slowed = with_doors(plan_for(served), served.deployment, np.array([[1.95]])).lanes[0].capacity
    assert slowed == int(DOOR_SHARE * 100 / (RATIO_STEP**7 * 12) * 8)  # as measured, not as profiled


def test_a_request_that_fits_one_batch_fits_through_the_door(stage: Staging) -> None:
    """Eight rows in 56 of 100 ms: the door used to take six of them, and so none."""
    made = stage(serving(variant("slow", 0.95, 2, 40)))
    request = made.request(rows=8, slack_ms=100)
    assert request.outcome is None
    made.wait(56)
    made.finish()
    assert (request.outcome, request.batch) == (Outcome.ON_TIME, 8)


def test_a_query_that_the_model_fails_on_fails_alone(stage: Staging) -> None:
    made = stage(serving(), tells_failures=True)
    made.request()
    one, bad, other = made.request(), made.request(rows=2), made.request()
    made.finish()
    assert made.workers[0].jobs[0].count == 4
    made.finish(failures={1: "no such row"})
    assert (one.outcome, other.outcome) == (Outcome.ON_TIME, Outcome.ON_TIME)
    assert (bad.outcome, bad.problem) == (Outcome.FAILED, "no such row")
    assert made.outcomes()[Outcome.FAILED] == 1 and made.engine.waiting == 0


@pytest.mark.parametrize("failures", [{}, {0: "first"}, {0: "first", 1: "second"}])
def test_a_batch_without_answers_fails_whole(stage: Staging, failures: dict[int, str]) -> None:
    """Also where the worker names no query, or not every one: none may be forgotten."""
    made = stage(serving(), tells_failures=True)
    made.request()
    pair = [made.request(), made.request()]
    made.finish()
    made.finish(failures=failures, answers=False)
    assert [request.outcome for request in pair] == [Outcome.FAILED] * 2
    assert [request.problem for request in pair] == [failures.get(place, NO_ANSWER) for place in range(2)]
    assert made.outcomes() == {Outcome.ON_TIME: 1, Outcome.FAILED: 2}


def test_an_unknown_application_and_one_of_several(stage: Staging) -> None:
    made = stage(serving_apps({"a": (FAST,), "b": (GOOD, BEST)}, crew=2))
    with pytest.raises(KeyError):
        made.request(application="c")
    a, b = made.request(application="a"), made.request(application="b")
    made.finish_all()
    assert (a.variants, b.variants) == (["fast"], ["good"])
    assert made.outcomes("a") == made.outcomes("b") == {Outcome.ON_TIME: 1}


def test_demands_are_kept(stage: Staging) -> None:
    made = stage(serving(FAST, GOOD, BEST, crew=3))
    wishes = [{}, {"pinned": "best"}, {"min_accuracy": 0.7}, {"min_accuracy": 0.6}, {"min_accuracy": 0.85}]
    requests = [made.request(slack_ms=400, **wish) for wish in wishes]
    made.finish_all()
    assert [request.variants for request in requests] == [["fast"], ["best"], ["best"], ["fast"], ["best"]]
    hurried = made.request(slack_ms=40, min_accuracy=0.7)
    made.finish_all()
    assert hurried.variants == ["good"]  # of those that are accurate enough, the one that fits
    tight = made.request(slack_ms=10, min_accuracy=0.7)
    assert tight.outcome is Outcome.DROPPED_INFEASIBLE  # and no other instead


def test_a_demand_that_nobody_meets(stage: Staging) -> None:
    made = stage(serving(FAST, GOOD))
    for wish in ({"pinned": "best"}, {"min_accuracy": 0.81}, {"pinned": "FAST"}):
        with pytest.raises(NoSuchVariant, match="no variant that is served meets this demand"):
            made.request(**wish)
    assert made.engine.generation.dispatcher.plan.routes[0].demands == ()
    assert made.engine.waiting == 0


def test_the_number_of_different_demands_is_bounded(stage: Staging) -> None:
    many = [variant(f"v{number}", number / 100) for number in range(MAX_DEMANDS + 2)]
    made = stage(serving(*many))
    for number in range(MAX_DEMANDS):
        made.request(pinned=f"v{number}", slack_ms=0.5)
    with pytest.raises(NoSuchVariant, match="too many different demands"):
        made.request(pinned=f"v{MAX_DEMANDS}")
    assert made.request(pinned="v0", slack_ms=0.5).outcome is Outcome.DROPPED_INFEASIBLE
    assert len(made.engine.generation.dispatcher.plan.lanes) == 1 + MAX_DEMANDS


def test_a_demand_that_no_worker_has_memory_for_harms_no_other(stage: Staging) -> None:
    """It used to stay in the list of demands, so that every later plan was refused."""
    large = variant("large", 0.95, memory_bytes=100)
    made = stage(serving(FAST, large, GOOD, memory_bytes=50))
    with pytest.raises(NoSuchVariant, match="no worker can serve"):
        made.request(pinned="large")
    pinned = made.request(pinned="good")
    plan = plan_for(made.engine.generation.served, release=Accumulate(1, 0))
    made.adopt(plan)
    made.finish_all()
    assert pinned.variants == ["good"] and made.engine.generation.in_force.made is plan


def test_demands_survive_a_new_plan(stage: Staging) -> None:
    served = serving(FAST, GOOD)
    made = stage(served)
    made.request()
    pinned = made.request(pinned="good", slack_ms=400)
    made.adopt(plan_for(served, capacity=9))
    made.finish_all()
    assert pinned.variants == ["good"]
    before = made.engine.generation.dispatcher.plan
    made.call(made.engine.adopt, made.engine.generation)  # nothing changes
    assert made.engine.generation.dispatcher.plan is before


def test_what_is_open_when_the_engine_stops_has_an_end_too(stage: Staging) -> None:
    made = stage(serving())
    running, waiting = made.request(), made.request(rows=3)
    made.loop.run_until_complete(made.engine.stop())
    made.check()
    assert (running.outcome, waiting.outcome) == (Outcome.FAILED, Outcome.FAILED)
    assert running.problem == waiting.problem == STOPPED
    assert made.engine.crew.ready_count == 0


def test_nothing_runs_before_a_worker_is_there(stage: Staging) -> None:
    made = stage(serving(), starts=False)
    patient, hurried = made.request(slack_ms=100), made.request(slack_ms=20)
    assert (made.engine.crew.ready_count, made.busy()) == (0, [])
    made.wait(30)
    assert hurried.outcome is Outcome.DROPPED_INFEASIBLE and patient.outcome is None
    made.call(made.workers[0].ready)
    made.finish_all()
    assert patient.outcome is Outcome.ON_TIME


def test_a_placement_that_workers_load_by_and_by(stage: Staging) -> None:
    served = serving(variant("a", memory_bytes=40), variant("b", memory_bytes=40), memory_bytes=50)
    plan = plan_for(served, select=Fixed(1))
    placed = Plan(plan.lanes, plan.routes, placement=((1,),))
    made = stage(served, placed)
    (worker,) = made.workers.values()
    assert (worker.held, worker.alone) == ({"app/b@1"}, ["app/b@1"])
    request = made.request(slack_ms=400)
    assert request.outcome is None and made.busy() == []
    made.call(worker.loaded)
    made.finish()
    assert request.variants == ["b"]


def test_what_was_measured_is_in_the_meters(stage: Staging) -> None:
    made = stage(serving())
    made.request()
    for _ in range(3):
        made.request()
    made.wait(2)
    made.finish()
    made.wait(3)
    made.finish(failures={1: "no"})
    meter = made.engine.meters.variants["app", "v"]
    assert (meter.batches, meter.queries, meter.failed, dict(meter.by_size)) == (2, 3, 1, {1: 1, 3: 1})
    assert (meter.busy_ns, meter.run_ns, meter.failed_ns) == (5 * MS, 2 * MS + 2 * 3 * MS, 3 * MS)
    assert [sum(histogram.counts) for histogram in made.engine.meters.stages["app"]] == [3] * 4
    assert sum(made.engine.meters.batch_sizes["app"].counts) == 2


def test_profiles_are_corrected_by_what_was_measured(stage: Staging) -> None:
    profile = LatencyProfile.linear(0, 10, 1)
    made = stage(serving(variant("v", 0.5, 0, 10)), correction=0.2)
    assert profile.latency_ns(1) == 10 * MS
    for _ in range(30):
        made.request(slack_ms=500)
        made.wait(20)
        made.finish()
    ratio = float(made.engine.generation.dispatcher.telemetry(made.loop.now_ns).latency_ratio[0, 0])
    assert 1.5 < ratio < 2.5


def test_a_query_whose_worker_is_lost_too_late_is_told_why(stage: Staging) -> None:
    served = serving()
    made = stage(served, plan_for(served, Late.KEEP))
    request = made.request(slack_ms=10)
    made.wait(8)
    made.lose()
    assert (request.outcome, request.problem) == (Outcome.FAILED, NO_WORKER_LEFT)
