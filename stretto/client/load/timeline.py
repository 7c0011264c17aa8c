"""A load over time: what its requests, taken by when they were due, came to in each slice of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.client.load.result import LoadOutcome, LoadResult

SLICES = 80  # about so many, in steps that a person would choose
REQUESTS = 30  # in a slice, on average; fewer would show chance and not the server
STEPS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0)

Series = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Timeline:
    """One entry per slice, NaN where nothing was due in it; `variant_share[v]` is of the answers."""

    slice_s: float
    middle_s: Series
    offered_rate: Series
    on_time_share: Series
    correct_on_time_share: Series
    variant_share: NDArray[np.float64]
    p50_ms: Series
    p99_ms: Series


def timeline(result: LoadResult, slice_s: float | None = None) -> Timeline:
    """Slices of `slice_s` seconds; without it, of a length that suits the load."""
    seconds = max(result.seconds, 1e-3)
    if slice_s is None:
        shortest_s = max(1 / SLICES, REQUESTS / max(1, len(result))) * seconds
        slice_s = next((step for step in STEPS_S if step >= shortest_s), STEPS_S[-1])
    count = max(1, int(np.ceil(seconds / slice_s - 1e-9)))
    place = np.minimum(result.scheduled_ns / 1e9 // slice_s, count - 1).astype(np.int64)
    due = np.bincount(place, minlength=count).astype(np.float64)
    lengths = np.full(count, slice_s)
    lengths[-1] = seconds - slice_s * (count - 1)
    is_on_time = result.outcome == LoadOutcome.ON_TIME
    is_answer = result.is_answer
    answers = np.bincount(place[is_answer], minlength=count)
    by_variant = np.zeros((len(result.variants), count))
    np.add.at(by_variant, (result.variant[is_answer], place[is_answer]), 1.0)
    percentiles = np.full((2, count), np.nan)
    if is_answer.any():
        order = np.argsort(place[is_answer], kind="stable")
        latency_ms = result.latency_ns[is_answer][order] / 1e6
        for number, part in enumerate(np.split(latency_ms, np.cumsum(answers)[:-1])):
            if len(part):
                percentiles[:, number] = np.percentile(part, (50, 99))
    right = np.bincount(place, weights=result.correct_on_time, minlength=count)
    return Timeline(
        slice_s,
        np.arange(count) * slice_s + lengths / 2,
        due / lengths,
        _share(np.bincount(place[is_on_time], minlength=count), due),
        _share(right, due * result.spec.rows),
        _share(by_variant, answers),
        percentiles[0],
        percentiles[1],
    )


def _share(part: NDArray[np.float64] | NDArray[np.int64], whole: NDArray[np.float64] | NDArray[np.int64]) -> Series:
    share: Series = np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=np.asarray(whole) > 0)
    return share
