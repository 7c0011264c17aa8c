"""Delays as they are measured while serving."""

from __future__ import annotations

from stretto.core.plan import Delays
from stretto.live.delays import FEWEST, FIRST_TIMER_NS, LATE_MARGIN, LEAST, MOST, REMEMBERED, STEP, DelayMeter, stepped

MS = 1_000_000


def test_before_anything_was_measured() -> None:
    assert DelayMeter().delays == Delays(control_ns=stepped(1.5 * LEAST.control_ns), timer_ns=FIRST_TIMER_NS)


def test_the_handoff_follows_the_mean_and_is_bounded() -> None:
    meter = DelayMeter()
    for _ in range(300):
        meter.handed_over(2 * MS)
    assert 3 * MS <= meter.delays.control_ns <= 3 * MS * STEP
    for _ in range(300):
        meter.handed_over(1000 * MS)
    assert meter.delays.control_ns == MOST.control_ns
    for _ in range(1000):
        meter.handed_over(-5)
    assert meter.delays.control_ns == LEAST.control_ns


def test_timers_allow_for_the_latest_batches() -> None:
    meter = DelayMeter()
    for number in range(REMEMBERED):
        meter.ended(0, 6 * MS if number % 100 == 0 else -MS)
    assert 6 * MS * LATE_MARGIN <= meter.delays.timer_ns <= 6 * MS * LATE_MARGIN * STEP
    for _ in range(REMEMBERED):
        meter.ended(0, -MS)
    assert meter.delays.timer_ns == LEAST.timer_ns
    few = DelayMeter()
    for _ in range(FEWEST - 1):
        few.ended(0, 20 * MS)
    assert few.delays.timer_ns == FIRST_TIMER_NS


def test_small_changes_change_nothing() -> None:
    assert stepped(1.01 * MS) == stepped(1.04 * MS) and stepped(1) == stepped(40_000)
    assert stepped(2 * MS) >= 2 * MS


def test_the_time_of_evidence_is_that_of_nine_queries_in_ten() -> None:
    meter = DelayMeter()
    for _ in range(31):
        meter.told(2_000_000)
    assert meter.delays.evidence_ns == 0, "too few to tell"
    for number in range(200):
        meter.told(40_000_000 if number % 20 == 0 else 2_000_000)
    assert 2_000_000 <= meter.delays.evidence_ns <= 2_500_000
    for _ in range(600):
        meter.told(10**12)
    assert meter.delays.evidence_ns == 100_000_000, "bounded"
