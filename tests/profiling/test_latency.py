"""The profiler stops when it knows enough, sees through neighbours, and says when it cannot."""

from __future__ import annotations

import gc
from itertools import pairwise

import numpy as np
import pytest

from stretto.core.errors import ProfileError
from stretto.core.profile import LatencyProfile
from stretto.profiling.latency import BATCHES, check_batches, measure_latency
from tests.profiling.fake_machine import FakeMachine


def p95(latency_ms: float, jitter: float) -> float:
    """Of latency·(1 + jitter·|normal|): 1.96 standard deviations."""
    return latency_ms * (1 + 1.96 * jitter)


def test_a_quiet_machine_is_measured_tightly_and_soon() -> None:
    machine = FakeMachine()
    result = measure_latency(machine.run, clock=machine)
    assert not result.is_noisy and result.note == "" and result.quiet_share == 1
    for batch in BATCHES:
        found = result.batches[batch]
        assert found.p95 == pytest.approx(p95(1 + 0.5 * batch, 0.01), rel=0.01)
        assert found.p50 <= found.p95 <= found.p99
        assert found.relative_error <= 0.02
    assert result.alpha_ms == pytest.approx(0.5, rel=0.03) and result.beta_ms == pytest.approx(1.0, rel=0.1)
    assert result.seconds < 5
    points = {batch: {"mean": one.mean, "p95": one.p95} for batch, one in result.batches.items()}
    assert LatencyProfile.measured(points).max_batch == 32


def test_wide_latencies_take_more_runs() -> None:
    tight = measure_latency((machine := FakeMachine(jitter=0.01)).run, (1,), clock=machine).batches[1]
    wide = measure_latency((machine := FakeMachine(jitter=0.5)).run, (1,), clock=machine, budget_s=120).batches[1]
    assert wide.runs > 2 * tight.runs
    assert wide.relative_error <= 0.02
    assert wide.p95 == pytest.approx(p95(1.5, 0.5), rel=0.03)


def test_batch_sizes_take_turns() -> None:
    machine = FakeMachine(lambda batch: 20.0)
    measure_latency(machine.run, (1, 2, 4), clock=machine)
    measured = machine.runs[machine.runs.index(4) + 10 :]  # behind the warm-up
    changes = sum(one != other for one, other in pairwise(measured))
    assert changes > 0.9 * (len(measured) - 1)


def test_a_drift_touches_all_sizes_alike() -> None:
    machine = FakeMachine(lambda batch: 10.0 * batch, slowdown=lambda now_s: 1 + 0.004 * now_s)
    result = measure_latency(machine.run, (1, 2, 4), clock=machine, budget_s=20, tight=0.0001)
    ratios = [result.batches[batch].p50 / (10 * batch) for batch in (1, 2, 4)]
    assert max(ratios) / min(ratios) < 1.01


def test_the_budget_ends_it() -> None:
    machine = FakeMachine(jitter=2.0)
    result = measure_latency(machine.run, (1, 2), clock=machine, budget_s=2, tight=0.0001)
    assert 2 <= result.seconds < 2.5
    slow = FakeMachine(lambda batch: 5000.0)
    result = measure_latency(slow.run, (1, 2), clock=slow, budget_s=1)
    assert all(one.runs >= 1 for one in result.batches.values()) and result.is_noisy
    assert "give it more time" in result.note


def test_neighbours_that_come_and_go_are_left_out() -> None:
    def busy(now_s: float) -> bool:
        return now_s % 2 < 1

    machine = FakeMachine(
        preempted=lambda now_s: 1.0 if busy(now_s) else 0.0, foreign=lambda now_s: 1.5 if busy(now_s) else 0.0
    )
    result = measure_latency(machine.run, clock=machine)
    assert not result.is_noisy
    assert 0.2 < result.quiet_share < 0.95
    for batch in BATCHES:
        assert result.batches[batch].p95 == pytest.approx(p95(1 + 0.5 * batch, 0.01), rel=0.01)


def test_a_neighbour_on_the_same_core_is_seen_by_the_reference_work() -> None:
    machine = FakeMachine(cores=16, slowdown=lambda now_s: 1.6 if now_s % 0.6 < 0.2 else 1.0)
    result = measure_latency(machine.run, (1, 8), clock=machine)
    assert not result.is_noisy
    assert result.batches[8].p95 == pytest.approx(p95(5.0, 0.01), rel=0.01)


def test_constant_neighbours_are_flagged_and_taken_off() -> None:
    machine = FakeMachine(
        lambda batch: 4.0 * batch, preempted=lambda now_s: 1.5, foreign=lambda now_s: 1.6, jitter=0.01
    )
    result = measure_latency(machine.run, (1, 8), clock=machine, budget_s=10)
    assert result.is_noisy and result.quiet_share == 0
    assert result.note == (
        "other programs used 1.6 of 2 cores and kept this one waiting 60% of the time; "
        "only 0% of the measurement was undisturbed"
    )
    # Its waiting is known, so what is left is close to the truth all the same.
    assert result.batches[8].p95 == pytest.approx(p95(32.0, 0.01), rel=0.02)


def test_a_full_machine_is_flagged_even_where_nobody_was_kept_waiting() -> None:
    machine = FakeMachine(foreign=lambda now_s: 1.0)
    result = measure_latency(machine.run, (1,), clock=machine, budget_s=2)
    assert result.is_noisy and "used 1.0 of 2 cores" in result.note
    roomy = FakeMachine(foreign=lambda now_s: 1.0, cores=8)
    assert not measure_latency(roomy.run, (1,), clock=roomy, budget_s=2).is_noisy


def test_short_runs_that_were_interrupted_are_left_out_not_corrected() -> None:
    hits = iter(range(10**9))
    machine = FakeMachine(
        lambda batch: 0.05, preempted=lambda now_s: 100.0 if next(hits) % 40 == 0 else 0.0, foreign=lambda now_s: 1.0
    )
    result = measure_latency(machine.run, (1,), clock=machine, budget_s=3)
    assert result.is_noisy
    assert result.batches[1].p99 < 0.06


def test_machines_that_are_interrupted_all_the_time_still_give_an_answer() -> None:
    machine = FakeMachine(lambda batch: 0.05, preempted=lambda now_s: 100.0, foreign=lambda now_s: 2.0)
    result = measure_latency(machine.run, (1,), clock=machine, budget_s=1)
    assert result.is_noisy and result.batches[1].p95 > 0


def test_warm_up_is_not_measured() -> None:
    calls = 0

    def latency(batch: int) -> float:
        nonlocal calls
        calls += 1
        return 50.0 if calls < 5 else 2.0

    machine = FakeMachine(latency)
    result = measure_latency(machine.run, (1,), clock=machine)
    assert result.batches[1].p99 < 2.2


def test_the_collector_is_off_meanwhile_and_on_again_after() -> None:
    seen = set()
    machine = FakeMachine()

    def run(batch: int) -> None:
        seen.add(gc.isenabled())
        machine.run(batch)

    measure_latency(run, (1,), clock=machine)
    assert seen == {False} and gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        measure_latency(lambda batch: 1 // 0, (1,), clock=machine)
    assert gc.isenabled()


def test_progress_rises_to_the_end() -> None:
    fractions: list[float] = []
    machine = FakeMachine()
    measure_latency(machine.run, clock=machine, progress=fractions.append)
    assert fractions[-1] == 1 and all(np.diff(fractions) >= 0)


def test_what_makes_no_sense_is_refused() -> None:
    for batches, words in (((), "name at least one"), ((0, 1), "batch size 0 is not between"), ((9999,), "9999")):
        with pytest.raises(ProfileError, match=words):
            check_batches(batches)
    with pytest.raises(ProfileError, match="time budget of 0 s"):
        measure_latency(lambda batch: None, (1,), budget_s=0)
    assert check_batches((8, 1, 8)) == (1, 8)
