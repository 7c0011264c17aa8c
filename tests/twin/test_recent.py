"""What a driver tells, in bounded memory, and the setting that is read from it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stretto.core.client import Client, Network
from stretto.core.errors import StrettoError
from stretto.core.plan import Delays, Fixed, Lane, by_application
from stretto.core.profile import NS_PER_MS, NS_PER_S, Quantile
from stretto.dispatch.decisions import Run
from stretto.dispatch.dispatcher import Dispatcher
from stretto.twin.measure import setting_from_telemetry
from stretto.twin.recent import TOGETHER, Recent, Ring, profiled_latencies_ns
from tests.twin.made import deployment, poisson

ON = deployment("a", "b")
THERE = {"default": 2}


def test_a_ring_keeps_the_last_in_order() -> None:
    ring = Ring(4, 2)
    for number in range(11):
        assert ring.count == number
        ring.add(number, -number)
        kept = list(range(max(0, number - 3), number + 1))
        assert ring.rows().tolist() == [[each, -each] for each in kept]
        assert ring.has_forgotten == (number >= 4)


def test_many_are_added_as_one_by_one() -> None:
    one, many, number = Ring(7, 2), Ring(7, 2), 0
    for count in (0, 1, 5, 3, 7, 2, 20, 1):
        rows = np.array([(number + each, -each) for each in range(count)], np.int64).reshape(-1, 2)
        number += count
        for row in rows.tolist():
            one.add(*row)
        many.add_many(rows)
        assert many.count == one.count and many.rows().tolist() == one.rows().tolist()


def test_requests_that_came_together_are_remembered_as_those_that_came_one_by_one() -> None:
    one, many = Recent(0), Recent(0)
    slacks_ns, priorities = np.array([3, 70, -5]) * NS_PER_MS, np.array([0, 2, 1])
    for now_ns in (NS_PER_S, 2 * NS_PER_S):
        many.arrived_many(now_ns, "a", slacks_ns, priorities)
        for slack_ns, priority in zip(slacks_ns.tolist(), priorities.tolist(), strict=True):
            one.arrived(now_ns, "a", 1, slack_ns, priority=priority)
    expected, found = (each.setting(3 * NS_PER_S, ON, present=THERE).arrivals["a"] for each in (one, many))
    assert len(found.requests) == 6 and found.requests.tolist() == expected.requests.tolist()
    assert found.rate == expected.rate and found.slack_ns() == expected.slack_ns()


def test_many_turns_are_written_together_and_in_order() -> None:
    """More of them than are written at once, with requests of another kind between, in a ring that forgets."""
    one, many = (Recent(0, requests=300) for _ in range(2))
    for turn in range(2 * TOGETHER + 5):
        now_ns = NS_PER_S + turn * NS_PER_MS
        slacks_ns = np.arange(1 + turn % 4) * NS_PER_MS
        many.arrived_many(now_ns, "a", slacks_ns, slacks_ns * 0)
        for slack_ns in slacks_ns.tolist():
            one.arrived(now_ns, "a", 1, slack_ns)
        if turn % 50 == 7:
            for each in (one, many):
                each.arrived(now_ns, "a", 3, NS_PER_MS, client=2, priority=1)
    expected, found = (each.setting(2 * NS_PER_S, ON, present=THERE).arrivals["a"] for each in (one, many))
    assert len(found.requests) > 200 and found.requests.tolist() == expected.requests.tolist()


def test_rate_rows_slack_and_classes_are_those_that_came() -> None:
    recent = Recent(5 * NS_PER_S)
    times_ns = poisson(100, 20, 1) + 5 * NS_PER_S
    for place, now_ns in enumerate(times_ns.tolist()):
        recent.arrived(now_ns, "a", 1 + 2 * (place % 2), 30 * NS_PER_MS, client=7, priority=place % 3)
        if place % 4 == 0:
            recent.classified("a", place // 4 % 2)
    setting = recent.setting(25 * NS_PER_S, ON, present=THERE)
    stretch = setting.arrivals["a"]
    assert stretch.rate == pytest.approx(2 * len(times_ns) / 20, rel=0.01)
    assert stretch.span_ns == 20 * NS_PER_S and stretch.requests["offset_ns"][0] == times_ns[0] - 5 * NS_PER_S
    assert stretch.slack_ns() == (30 * NS_PER_MS,) * 3
    assert set(stretch.requests["client"]) == {7} and set(stretch.requests["priority"]) == {0, 1, 2}
    assert stretch.class_shares == pytest.approx((1 / 16, 1 / 16), rel=0.02)  # a class for one query in eight
    assert setting.arrivals["b"].rate == 0.0 and setting.present == THERE


def test_memory_is_bounded_and_a_full_ring_begins_at_its_oldest_request() -> None:
    recent = Recent(0, requests=100, runs=50)
    for number in range(1000):
        recent.arrived(number * NS_PER_MS, "a", 1, NS_PER_MS)
        recent.ran("a/v", "default", 1, 1_000 + number, 1_000)
    setting = recent.setting(1000 * NS_PER_MS, ON, present=THERE)
    stretch = setting.arrivals["a"]
    assert len(stretch.requests) == 99 and stretch.span_ns == 100 * NS_PER_MS  # the oldest marks the start only
    assert stretch.rate == pytest.approx(990.0)
    assert setting.residuals["a/v", "default"].runs == 50
    assert setting.residuals["a/v", "default"].pooled[0] == pytest.approx(1.95)
    with pytest.raises(StrettoError, match="can be remembered"):
        Recent(0, requests=0)


def test_a_stretch_goes_back_no_further_than_it_may() -> None:
    recent = Recent(0, longest_ns=10 * NS_PER_S)
    for second in range(100):
        recent.arrived(second * NS_PER_S, "a", 1, NS_PER_MS)
    stretch = recent.setting(100 * NS_PER_S, ON, present=THERE).arrivals["a"]
    assert stretch.span_ns == 10 * NS_PER_S and len(stretch.requests) == 10


def test_runs_are_kept_by_variant_kind_and_bucket_and_forgotten_with_their_variant() -> None:
    recent = Recent(0)
    for batch, ratio in ((1, 1.5), (2, 1.1), (3, 1.2), (16, 1.0)):
        profiled_ns, _ = profiled_latencies_ns(ON, 0, "default", batch)
        assert profiled_ns == round((1 + 0.1 * batch) * NS_PER_MS)
        recent.ran("a/v", "default", batch, round(ratio * profiled_ns), profiled_ns)
    recent.ran("a/v", "default", 1, -1, 1000)  # not measured
    recent.ran("a/v", "default", 17, 1000, *profiled_latencies_ns(ON, 0, "default", 17))  # not profiled
    recent.ran("gone/v", "default", 1, 1000, 1000)
    residuals = recent.setting(NS_PER_S, ON, present=THERE).residuals
    assert list(residuals) == [("a/v", "default")]
    told = {bucket: sample.round(3).tolist() for bucket, sample in residuals["a/v", "default"].by_bucket.items()}
    assert told == {0: [1.5], 1: [1.1, 1.2], 4: [1.0]}
    recent.serves(deployment("b"))
    assert not recent.setting(NS_PER_S, ON, present=THERE).residuals


def test_residuals_are_to_the_row_that_runs_follow() -> None:
    """The p95 is 1.1 times the mean for a batch of one and 1.6 times for four."""
    for followed, row in ((1, None), (0, Quantile.MEAN)):
        recent = Recent(0)
        for number in range(200):
            batch = 1 if number % 2 else 4
            latencies = (1_100_000, 1_000_000) if batch == 1 else (3_200_000, 2_000_000)
            noise = 1 + 0.2 * math.sin(number)
            recent.ran("a/v", "default", batch, round(latencies[1 - followed] * noise), *latencies)
        setting = recent.setting(NS_PER_S, ON, present=THERE)
        assert setting.row is row
        buckets = setting.residuals["a/v", "default"].by_bucket
        assert [buckets[bucket].mean() for bucket in (0, 2)] == pytest.approx([1.0, 1.0], abs=0.01)


def test_variants_that_ran_in_one_size_each_tell_the_row_together() -> None:
    """Regression: each alone fits either row, and the one that decisions rest on was taken. Where runs are too few to
    tell, it is the row that they are nearer to.
    """
    noise = np.random.default_rng(4).lognormal(-0.005, 0.1, 2_000)
    for runs, followed, row in ((2_000, 0, Quantile.MEAN), (2_000, 1, None), (40, 0, Quantile.MEAN)):
        recent = Recent(0)
        for number in range(runs):
            name, batch, latencies = (("a/v", 1, (1_250_000, 1_000_000)), ("a/w", 4, (2_200_000, 2_000_000)))[
                number % 2
            ]
            recent.ran(name, "default", batch, round(latencies[1 - followed] * noise[number]), *latencies)
        assert recent.setting(NS_PER_S, ON, present=THERE).row is row


def test_telemetry_fills_in_what_was_not_heard() -> None:
    plan = by_application((Lane("a", (0, 1), Fixed(0)), Lane("b", (0, 1), Fixed(1))))
    dispatcher = Dispatcher(ON, plan, correction=0.1)
    before = dispatcher.telemetry(0)
    for number in range(400):
        now_ns = number * 10 * NS_PER_MS
        dispatcher.submit(now_ns, 0, now_ns + 50 * NS_PER_MS)
        (run,) = dispatcher.decisions()
        assert isinstance(run, Run)
        dispatcher.finished(now_ns + 3 * NS_PER_MS, run.worker, True, 3 * NS_PER_MS)
    dispatcher.worker_left(4 * NS_PER_S, 1)
    recent = Recent(0)
    recent.arrived(NS_PER_S, "b", 2, NS_PER_MS)
    clients = (Client(4, "x", 0, Network(bytes_per_s=1e6)), Client(5, "y", 0))
    setting = setting_from_telemetry(
        ON,
        dispatcher.telemetry(4 * NS_PER_S),
        recent,
        before=before,
        delays=Delays(control_ns=5),
        clients=clients,
    )
    assert setting.arrivals["a"].rate == pytest.approx(100.0)
    assert not len(setting.arrivals["a"].requests) and math.isnan(setting.arrivals["a"].dispersion[0])
    assert setting.arrivals["b"].rate == pytest.approx(0.5) and len(setting.arrivals["b"].requests) == 1
    assert setting.present == {"default": 1} and setting.delays.control_ns == 5
    assert setting.networks == {4: (8.0,)}
    assert list(setting.residuals) == [("a/v", "default")]
    assert np.median(setting.residuals["a/v", "default"].pooled) > 1.2  # 3 ms where 1.1 was profiled
