"""Runs of one load that are told as one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

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
