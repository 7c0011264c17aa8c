"""Runs of one load that are told as one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stretto.client.load.result import LoadOutcome, LoadResult, joined
from stretto.client.load.timeline import timeline
from tests.report.test_plots import loaded


def answered(right: int) -> LoadResult:
    """100 requests, so many of them with the right answer."""
    correct = (np.arange(100) < right).astype(np.int16)
    return replace(loaded({"fast": 1.0}), correct=correct, is_labelled=True)


def test_two_runs_are_one_that_is_as_long_as_both() -> None:
    first, second = answered(90), answered(50)
    second.outcome[:10], second.variant[:10] = LoadOutcome.EXPIRED, -1
    whole = joined([first, second])
    assert len(whole) == 200 and whole.seconds == 2.0 and whole.elapsed_ns == 2_000_000_000
    assert (np.diff(whole.scheduled_ns) >= 0).all() and whole.scheduled_ns[100] == 1_000_000_000
    assert whole.summary()["correct_on_time_share"] == (90 + 40) / 200
    assert whole.summary()["offered_rate"] == first.summary()["offered_rate"]
    assert (whole.variant == -1).sum() == 10 and timeline(whole).middle_s[-1] > 1.5


def test_variants_are_told_apart_by_their_names() -> None:
    whole = joined([loaded({"fast": 1.0}, ("fast", "good")), loaded({"good": 1.0}, ("good", "fast", "new"))])
    assert whole.variants == ("fast", "good", "new")
    assert whole.summary()["variants"] == {"fast": 0.5, "good": 0.5}


def test_utility_is_what_late_answers_keep_under_each_penalty() -> None:
    """By hand: lateness x in lengths of the deadline; sigmoid keeps 1 − 1 / (1 + (x / (1 − x))⁻³)."""
    one = replace(answered(100), deadline_ns=100, penalty="step")
    one.latency_ns[:] = 50
    one.latency_ns[:4] = 120, 150, 180, 250
    one.outcome[:] = LoadOutcome.ON_TIME
    one.outcome[:4] = LoadOutcome.LATE
    one.correct[3:5] = 1, 0
    one.outcome[5], one.correct[5] = LoadOutcome.EXPIRED, -1
    on_time = 100 - 4 - 2
    assert one.utility == pytest.approx(on_time / 100)
    assert replace(one, penalty="linear").utility == pytest.approx((on_time + 0.8 + 0.5 + 0.2) / 100)
    kept = [1 - 1 / (1 + (x / (1 - x)) ** -3) for x in (0.2, 0.5, 0.8)]
    assert replace(one, penalty="sigmoid").utility == pytest.approx((on_time + sum(kept)) / 100)
    assert replace(one, is_labelled=False).utility is None
    assert one.summary()["utility"] == one.utility == one.summary()["correct_on_time_share"]
