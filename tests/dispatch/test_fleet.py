"""A fleet that grows while queries wait and run: nothing is lost, and whoever has not come changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.estimates import Estimates
from stretto.core.plan import AdaptiveCap, Deferred, Eager, Late, MostAccurate, Plan, RouteRule
from stretto.core.profile import Quantile
from stretto.core.worker import Worker, workers
from stretto.dispatch.dispatcher import Dispatcher
from stretto.dispatch.layout import first_residents
from tests.dispatch.driver import Driver
from tests.dispatch.models import cells
from tests.dispatch.small import FAR, GATHER, deployed, driver, lane, on_kinds, planned, straight, variant

QUICK = straight(1, 3, 20, "quick")  # a kind that no worker has at first, with larger batches
BOTH = tuple(on_kinds(name, straight(2, beta), QUICK) for name, beta in (("a", 10), ("b", 30)))


def grown(before: Deployment, *further: Worker) -> Deployment:
    return Deployment(before.applications, before.workers + further, before.quantile)


def mixed_plan(**more: Any) -> Plan:
    lanes = (
        lane("table", (0, 1), select=cells([[0, 0, -1], [0, 1, -1]]), late=Late.DROP_WHEN_INFEASIBLE),
        lane("later", (1, 2), select=MostAccurate((1, 0)), release=Deferred(4), late=Late.DROP_WHEN_DISPATCHED),
        lane("capped", (2,), release=Eager(6), adaptive_cap=AdaptiveCap(30), control_ns=3),
    )
    return planned(*lanes, rule=RouteRule.ROUND_ROBIN, rate_window_ns=8000, **more)


def life(*, enlarge_at: int | None, correction: float, further: tuple[Worker, ...]) -> tuple[list[Any], Estimates]:
    """What a dispatcher decides over a while of fixed events, with or without a larger fleet on the way."""
    on = deployed(*BOTH, crew=3)
    made = Dispatcher(on, mixed_plan(placement=((0,), (0, 1), (1,))), correction=correction)
    decided: list[Any] = []
    for step in range(300):
        now = 5 * step
        made.advance(now)
        if step == enlarge_at:
            made.enlarge(now, grown(on, *further))
        made.submit(now, 0, now + 20 + 37 * step % 90, step)
        if step % 3 == 0:
            made.finished(now, step // 3 % 3, True, 9 + step % 40)
        if step == 150:
            made.worker_left(now, 1)
        if step == 170:
            made.worker_joined(now, 1)
        decided.extend(made.decisions())
        decided.append(made.wake_at_ns())
    submitted, outcomes = made.counts()
    decided += [submitted.tolist(), outcomes.tolist(), made.waiting_count, made.running]
    return decided, made.estimates()


@pytest.mark.parametrize("enlarge_at", [0, 7, 151, 200])
@pytest.mark.parametrize("correction", [0.0, 0.2])
@pytest.mark.parametrize(
    "further",
    [
        (Worker("more"),),
        (Worker("q", "quick"),),
        tuple(Worker(f"w{n}", ("default", "quick")[n % 2]) for n in range(130)),
    ],
)
def test_workers_that_have_not_come_change_no_decision(
    enlarge_at: int, correction: float, further: tuple[Worker, ...]
) -> None:
    """Queues, batches in flight, rates, caps, corrected latencies and counters are those of before."""
    plain, learned = life(enlarge_at=None, correction=correction, further=())
    larger, also = life(enlarge_at=enlarge_at, correction=correction, further=further)
    assert larger == plain
    for name in ("counting", "rates", "arrivals", "caps"):
        assert np.array_equal(getattr(also, name), getattr(learned, name)), name
    for name in ("ratio", "written", "runs"):
        assert np.array_equal(getattr(also, name)[:, :1], getattr(learned, name)), name


def test_a_new_worker_serves_once_it_has_come_and_a_plan_knows_it() -> None:
    made = driver(lane(crew=(0,), release=Eager(1)), on=deployed(*BOTH))
    for _ in range(4):
        made.query(FAR)
    made.enlarge(Worker("q", "quick"))
    assert made.dispatcher.telemetry(0).worker_alive.tolist() == [True, False]
    made.taken()
    made.join(1)
    assert made.batches() == []  # the plan in force does not list it
    made.adopt(planned(lane(crew=(0, 1), release=Eager(1))))
    assert made.batches() == [(1, 0, [1])]
    assert made.crew[1].jobs[0].expected_ns == QUICK.latency_ns(1)
    made.drain()
    made.replay()


def test_a_plan_before_the_worker_comes_lets_it_serve_when_it_does() -> None:
    made = driver(lane(crew=(0,), release=Eager(1)))
    made.enlarge(Worker("next"))
    made.adopt(planned(lane(crew=(0, 1), release=Eager(1))))
    made.query(FAR)
    made.query(FAR)
    assert made.batches() == [(0, 0, [0])]
    made.join(1)
    assert made.batches() == [(1, 0, [1])]


def test_every_one_of_many_new_workers_can_be_decided_for_at_once() -> None:
    """The buffer of decisions must hold what all workers can be given by one event."""
    count = 1500
    made = Dispatcher(
        deployed(variant(memory=1, load_ns=3), crew=(Worker("w", memory_bytes=1, resident=()),)), planned(lane())
    )
    further = tuple(Worker(f"w{number}", memory_bytes=1, resident=()) for number in range(count))
    made.enlarge(0, grown(made.deployment, *further))
    everyone = tuple(range(count + 1))
    made.adopt(0, planned(lane(crew=everyone, release=GATHER)))
    for worker in everyone[1:]:
        made.worker_joined(0, worker)
    made.decisions()
    made.adopt(1, replace(planned(lane(crew=everyone, release=GATHER)), placement=((0,),) * (count + 1)))
    loads = made.decisions()
    assert sorted(load.worker for load in loads) == list(everyone)  # type: ignore[union-attr]


def test_latencies_that_were_measured_under_a_plan_stay_when_the_next_one_comes() -> None:
    """The plan's own were laid out once more, as if it had just come with them."""
    ratios = ((1.2,),)
    made = Dispatcher(deployed(variant()), replace(planned(lane(release=Eager(1))), ratios=ratios), correction=0.5)
    now_ns = 0
    for number in range(30):
        made.submit(now_ns, 0, now_ns + FAR, number)
        made.decisions()
        now_ns += 40
        made.finished(now_ns, 0)
    measured = float(made.latency_ratio()[0, 0])
    assert measured > 1.3
    made.enlarge(now_ns, grown(made.deployment, Worker("next")))
    made.adopt(now_ns, replace(planned(lane(crew=(0, 1), release=Eager(1))), ratios=ratios))
    assert made.latency_ratio()[0, 0] == measured


def test_the_plan_in_force_still_fits_the_larger_fleet() -> None:
    made = driver(lane(), placement=((0,),))
    made.enlarge(Worker("next"))
    assert made.dispatcher.plan.placement == ((0,), ())
    made.adopt(made.dispatcher.plan)
    made.reroute(*made.dispatcher.plan.routes)


def test_new_workers_begin_with_their_first_memory_when_they_join() -> None:
    on = deployed(variant("a", memory=4), variant("b", memory=4))
    made = driver(lane(), on=on)
    made.enlarge(Worker("small", memory_bytes=5), Worker("named", memory_bytes=9, resident=("app/b",)))
    assert [made.dispatcher.resident(worker) for worker in range(3)] == [(0, 1), (0,), (1,)]
    assert first_residents(made.deployment) == ((0, 1), (0,), (1,))
    made.join(2)
    assert made.dispatcher.resident(2) == (1,)


BASE = deployed(*BOTH, crew=2)


def with_variants(*variants: Variant) -> Deployment:
    return Deployment((Application("app", 100, variants),), workers(3))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Deployment(BASE.applications, workers(1)), "must list the workers that are there first"),
        (Deployment(BASE.applications, workers(3)[::-1]), "must list the workers that are there first"),
        (Deployment(BASE.applications, (Worker("x"), *workers(2))), "must list the workers that are there first"),
        (Deployment(BASE.applications, workers(3, memory_bytes=9)), "unchanged and in their order"),
        (Deployment(BASE.applications, workers(3), Quantile.P99), "same quantile"),
        (Deployment((*BASE.applications, Application("b", 1, BOTH)), workers(3)), "the same applications"),
        (with_variants(BOTH[0]), "the same variants of application app"),
        (with_variants(*BOTH[::-1]), "the same variants of application app"),
        (with_variants(BOTH[0], replace(BOTH[1], load_ns=5)), "variant app/b has other properties"),
        (with_variants(on_kinds("a", straight(2, 11)), BOTH[1]), "variant app/a has other properties"),
        (with_variants(on_kinds("a", QUICK), BOTH[1]), "variant app/a has other properties"),
    ],
)
def test_anything_but_further_workers_is_refused(other: Deployment, words: str) -> None:
    made = Driver(BASE, planned(lane(crew=(0, 1))))
    with pytest.raises(StrettoError, match=words):
        made.dispatcher.enlarge(3, other)
    assert made.dispatcher.deployment is BASE and made.dispatcher.now_ns == 0
    made.query(FAR)
    assert made.batches() == [(0, 0, [0])]


def test_the_same_fleet_is_no_change() -> None:
    made = driver(lane())
    made.enlarge()
    made.query(FAR)
    assert made.batches() == [(0, 0, [0])]
