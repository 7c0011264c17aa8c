"""Histograms: exact below 64 ns, within 0.8% above, and nothing is lost at either end."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stretto.sim.tally import BUCKETS, STEPS, bucket_middles_ns, bucket_of, mean_ns, percentile_ns

LARGEST = 2**61 - 1
MIDDLES = bucket_middles_ns()


def histogram_of(values: np.ndarray) -> np.ndarray:
    return np.bincount([bucket_of(value) for value in values.tolist()], minlength=BUCKETS)


@settings(deadline=None)
@given(st.integers(0, LARGEST))
@example(STEPS)
@example(STEPS - 1)
@example(2**40 - 1)
@example(2**40)
@example(LARGEST)
def test_the_middle_of_a_bucket_is_close_to_every_value_in_it(value: int) -> None:
    middle = MIDDLES[bucket_of(value)]
    if value < STEPS:
        assert middle == value
    else:
        assert abs(middle - value) <= 0.008 * value


@settings(deadline=None)
@given(st.integers(0, LARGEST - 1))
def test_buckets_follow_the_order_of_values(value: int) -> None:
    assert 0 <= bucket_of(value + 1) - bucket_of(value) <= 1


def test_values_beyond_the_ends_are_kept_in_the_last_buckets() -> None:
    assert bucket_of(-5) == 0
    assert bucket_of(LARGEST) == BUCKETS - 1
    assert bucket_of(2**62) == BUCKETS - 1


def test_percentiles_and_mean_are_within_a_bucket_of_the_truth() -> None:
    values = np.random.default_rng(7).lognormal(math.log(2e7), 1.2, 20_000).astype(np.int64)
    histogram = histogram_of(values)
    for share in (0.01, 0.5, 0.95, 0.99, 0.999, 1.0):
        truth = np.quantile(values, share, method="inverted_cdf")
        assert abs(percentile_ns(histogram, share) - truth) <= 0.008 * truth
    assert abs(mean_ns(histogram) - values.mean()) <= 0.008 * values.mean()


def test_small_values_are_exact() -> None:
    histogram = histogram_of(np.array([3, 3, 10, 40]))
    assert percentile_ns(histogram, 0.5) == 3
    assert percentile_ns(histogram, 0.75) == 10
    assert percentile_ns(histogram, 0.99) == 40
    assert mean_ns(histogram) == 14


def test_an_empty_histogram_reads_zero() -> None:
    empty = np.zeros(BUCKETS, dtype=np.int64)
    assert percentile_ns(empty, 0.99) == 0
    assert mean_ns(empty) == 0
