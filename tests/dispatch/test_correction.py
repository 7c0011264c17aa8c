"""What finished batches teach: corrected latencies that follow a quantile or the mean, and an adaptive batch cap."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import quantiles
from typing import Any

import pytest

from stretto.core.application import Application
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plan import AdaptiveCap, Deferred, Eager, Late, Plan
from stretto.core.profile import Quantile
from stretto.core.worker import workers
from stretto.dispatch.decisions import Run
from stretto.dispatch.dispatcher import Dispatcher
from tests.dispatch.driver import Driver
from tests.dispatch.small import FAR, deployed, driver, lane, planned, straight, variant

THOUSAND = variant("v", straight(0, 1000))


def measured(quantile: Quantile, times: list[int], correction: float) -> float:
    """The ratio of measured to profiled latency after batches that took so long, where 1000 ns were expected."""
    on = Deployment((Application("app", 10**6, (THOUSAND,)),), workers(1), quantile)
    made = Dispatcher(on, planned(lane()), correction=correction)
    now = 0
    for took in times:
        made.submit(now, 0, FAR)
        now += took
        made.finished(now, 0)
    return float(made.telemetry(now).latency_ratio[0, 0])


def test_the_correction_follows_the_quantile_of_the_deployment() -> None:
    chance = random.Random(3)
    times = [int(1500 + 1000 * chance.random()) for _ in range(6000)]
    cuts = quantiles(times, n=100)
    for quantile, truth in ((Quantile.P50, cuts[49]), (Quantile.P95, cuts[94]), (Quantile.P99, cuts[98])):
        assert measured(quantile, times, 0.02) == pytest.approx(truth / 1000, rel=0.05), quantile
    mean = sum(times[-2000:]) / 2000
    assert measured(Quantile.MEAN, times, 0.01) == pytest.approx(mean / 1000, rel=0.03)


def test_the_mean_and_the_quantile_differ_where_a_few_are_slow() -> None:
    times = ([1000] * 9 + [6000]) * 300
    assert measured(Quantile.MEAN, times, 0.01) == pytest.approx(1.5, rel=0.15)
    assert measured(Quantile.P50, times, 0.02) == pytest.approx(1.0, rel=0.05)
    assert measured(Quantile.P95, times, 0.02) > 4


def test_run_times_that_are_all_alike_stay_where_they_are() -> None:
    """Regression: the ratio fell below them by steps of a thousandth and rose above them by one of a fiftieth."""
    assert measured(Quantile.P95, [1000] * 100, 0.02) == 1.0
    assert measured(Quantile.P95, [1500] * 100, 0.02) == 1.5
    assert measured(Quantile.P95, [700] * 1000, 0.02) == 0.7


def test_without_correction_nothing_is_learnt() -> None:
    assert measured(Quantile.P95, [5000] * 50, 0.0) == 1.0


def test_the_ratio_stays_within_reason() -> None:
    assert measured(Quantile.P95, [10**9] * 500, 0.5) == 16.0
    assert measured(Quantile.P50, [1] * 500, 0.5) == 0.25


def test_corrected_latency_is_what_decisions_rest_on() -> None:
    """Batches take twice what was profiled: expectations double, and what is infeasible is known earlier."""
    made = Driver(deployed(THOUSAND), planned(lane(late=Late.DROP_WHEN_INFEASIBLE)), correction=0.3)
    for _ in range(60):
        made.submit()
        made.at(made.now_ns + 2000).finish(0)
    ratio = float(made.dispatcher.telemetry(made.now_ns).latency_ratio[0, 0])
    assert 1.5 < ratio < 2.5
    made.taken()
    made.submit()
    (run,) = made.taken()
    assert isinstance(run, Run)
    assert run.expected_ns - run.start_ns == pytest.approx(1000 * ratio, rel=0.02)
    assert made.outcome(made.query(1400)) is Outcome.DROPPED_INFEASIBLE


def test_waiting_queries_are_looked_at_afresh_when_the_table_changes() -> None:
    """Regression: timers set with the old latencies rang too late to notice."""
    made = Driver(
        deployed(THOUSAND, crew=2),
        planned(lane(crew=(0, 1), release=Deferred(1, when_gathered=False), late=Late.DROP_WHEN_INFEASIBLE)),
        correction=0.9,
    )
    made.query(10_000)
    made.query(10_000)
    lost = made.query(3000)  # both workers are busy
    assert made.wake() == 2001
    made.at(1900).finish(0)
    assert made.outcome(lost) is Outcome.DROPPED_INFEASIBLE  # 1000 ns grew to about 1850


def test_a_failed_batch_teaches_nothing() -> None:
    made = Driver(deployed(THOUSAND), planned(lane()), correction=0.5)
    made.submit()
    made.at(9000).finish(0, ok=False)
    assert made.dispatcher.telemetry(9000).latency_ratio[0, 0] == 1.0


@pytest.mark.parametrize("step", [-0.1, 1.0, float("nan")])
def test_a_step_that_is_none_is_refused(step: float) -> None:
    with pytest.raises(StrettoError, match="the latency correction is a step between 0 and 1"):
        Dispatcher(deployed(), planned(lane()), correction=step)


def caps(took: list[int], cap: AdaptiveCap, **rules: Any) -> list[int]:
    """Sizes of the batches when there is always more to do and they take so long."""
    made = driver(lane(adaptive_cap=cap, **rules))
    for _ in range(200):
        made.submit()
    for took_ns in took:
        made.at(made.now_ns + took_ns).finish(0)
    return [len(numbers) for _, _, numbers in made.batches()]


def test_a_cap_grows_by_steps_while_full_batches_are_quick_enough() -> None:
    assert caps([10] * 5, AdaptiveCap(target_ns=20, start=2.0)) == [1, 2, 3, 4, 5, 6]


def test_a_cap_shrinks_by_its_share_when_a_batch_is_too_slow() -> None:
    slow = AdaptiveCap(target_ns=20, start=8.0, backoff=0.5)
    assert caps([10, 21, 21, 21, 10, 10], slow) == [1, 8, 4, 2, 1, 2, 3]


def test_a_batch_that_is_not_full_says_nothing_about_the_cap() -> None:
    made = driver(lane(adaptive_cap=AdaptiveCap(target_ns=20, start=3.0)))
    for _ in range(4):
        made.submit()
        made.at(made.now_ns + 10).finish(0)
    for _ in range(6):
        made.submit()
    made.taken()
    made.at(made.now_ns + 10).finish(0)
    assert [len(numbers) for _, _, numbers in made.batches()] == [3]


def test_a_cap_never_passes_the_plan_or_the_profile() -> None:
    assert caps([10] * 6, AdaptiveCap(target_ns=20, step=5.0), release=Eager(4)) == [1, 4, 4, 4, 4, 4, 4]
    assert caps([10] * 4, AdaptiveCap(target_ns=20, step=50.0)) == [1, 8, 8, 8, 8]


def ran(made: Dispatcher, times: list[int], plan: Plan | None = None) -> int:
    """Batches of one that took so long; how long the next is expected to take. The plan is made anew after each."""
    now = made.now_ns
    for took in times:
        made.submit(now, 0, FAR)
        now += took
        made.finished(now, 0)
        if plan is not None:
            made.adopt(now, plan)
    made.decisions()
    made.submit(now, 0, FAR)
    (run,) = made.decisions()
    assert isinstance(run, Run)
    made.finished(run.expected_ns, 0)
    return run.expected_ns - run.start_ns


def test_latencies_that_a_plan_came_with_hold_until_quite_others_are_measured() -> None:
    """A plan is made for them; what wavers by the batch does not fit it."""
    on = Deployment((Application("app", 10**6, (THOUSAND,)),), workers(1), Quantile.P50)
    plain = planned(lane())
    plan = replace(plain, ratios=((1.5,),))
    made = Dispatcher(on, plan, correction=0.02)
    chance = random.Random(5)
    near = [int(1500 * chance.uniform(0.8, 1.25)) for _ in range(500)]
    assert ran(made, near) == 1500
    assert ran(made, near, plan) == 1500  # adopted again and again, as planners do
    assert float(made.telemetry(made.now_ns).latency_ratio[0, 0]) == pytest.approx(1.5, rel=0.1)
    assert ran(made, [3000] * 300, plan) > 2500  # the machine is half as fast now, whatever the plan says
    made.adopt(made.now_ns, replace(plain, ratios=((2.0,),)))
    assert ran(made, []) == 2000
    made.adopt(made.now_ns, plain)
    assert ran(made, near) == pytest.approx(1500, rel=0.1)  # by the batch again


@pytest.mark.parametrize("ratios", [((1.0, 1.0),), (), ((0.1,),), ((17.0,),), ((float("nan"),),)])
def test_latencies_that_nobody_could_reckon_with_are_refused(ratios: tuple[tuple[float, ...], ...]) -> None:
    on = Deployment((Application("app", 10**6, (THOUSAND,)),), workers(1))
    with pytest.raises(StrettoError, match="latencies"):
        Dispatcher(on, replace(planned(lane()), ratios=ratios))
