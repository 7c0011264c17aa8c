"""Latency profiles: what was measured is kept, the rest is fitted, and nothing falls as the batch grows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.core.errors import ProfileError
from stretto.core.profile import MAX_BATCH_LIMIT, NS_PER_MS, LatencyProfile, Quantile


def p95_ms(profile: LatencyProfile) -> list[float]:
    return [latency / NS_PER_MS for latency in profile.table_ns[Quantile.P95].tolist()]


def test_a_line_is_the_same_at_every_quantile() -> None:
    profile = LatencyProfile.linear(1.5, 4.0, max_batch=3, kind="a100")
    assert (profile.kind, profile.max_batch) == ("a100", 3)
    for quantile in Quantile:
        assert profile.table_ns[quantile].tolist() == [0, 5_500_000, 7_000_000, 8_500_000]
        assert profile.alpha_ns[quantile] == pytest.approx(1_500_000)
        assert profile.beta_ns[quantile] == pytest.approx(4_000_000)


def test_measured_points_are_kept() -> None:
    profile = LatencyProfile.measured({1: {"p95": 2.0}, 2: {"p95": 2.5}, 4: {"p95": 7.0}})
    assert p95_ms(profile)[1:3] == [2.0, 2.5]
    assert p95_ms(profile)[4] == 7.0


def test_sizes_between_and_beyond_the_points_lie_on_the_fitted_line() -> None:
    profile = LatencyProfile.measured({1: {"p95": 3.0}, 3: {"p95": 5.0}, 5: {"p95": 7.0}}, max_batch=7)
    assert p95_ms(profile) == pytest.approx([0, 3, 4, 5, 6, 7, 8, 9])


def test_one_point_makes_a_flat_profile() -> None:
    assert p95_ms(LatencyProfile.measured({4: {"p95": 3.0}}, max_batch=6)) == [0, 3, 3, 3, 3, 3, 3]


def test_monotone_from_the_right() -> None:
    """A smaller batch is never slower than a larger one that was measured faster: it could be padded to that."""
    profile = LatencyProfile.measured({1: {"p95": 2.0}, 2: {"p95": 6.0}, 3: {"p95": 4.0}, 4: {"p95": 5.0}})
    assert p95_ms(profile) == [0, 2, 4, 4, 5]


def test_a_falling_fit_stays_at_the_fastest_point() -> None:
    profile = LatencyProfile.measured({1: {"p95": 9.0}, 2: {"p95": 5.0}}, max_batch=6)
    assert p95_ms(profile) == [0, 5, 5, 5, 5, 5, 5]


def test_a_missing_quantile_is_the_next_higher_one_else_the_highest() -> None:
    profile = LatencyProfile.measured({1: {"p50": 1.0, "p95": 2.0}})
    assert [profile.latency_ns(1, quantile) // NS_PER_MS for quantile in Quantile] == [1, 1, 2, 2]


def test_points_beyond_the_largest_batch_shape_the_fit_only() -> None:
    profile = LatencyProfile.measured({1: {"mean": 1.0}, 4: {"mean": 4.0}}, max_batch=2)
    assert profile.max_batch == 2
    assert p95_ms(profile) == pytest.approx([0, 1, 2])


def test_the_largest_batch_within_a_budget() -> None:
    profile = LatencyProfile.linear(1.0, 2.0, max_batch=4)
    budgets = {0: 0, 2.9: 0, 3: 1, 3.9: 1, 6: 4, 100: 4}
    for budget_ms, batch in budgets.items():
        assert profile.largest_batch_within(budget_ms * NS_PER_MS) == batch


def test_a_profile_is_read_only() -> None:
    table = np.array([[0, 5]] * 4)
    profile = LatencyProfile(table)
    table[:] = 1
    assert profile.latency_ns(1) == 5
    with pytest.raises(ValueError, match="read-only"):
        profile.table_ns[0, 1] = 3


@given(st.dictionaries(st.integers(1, 40), st.floats(0.001, 1000), min_size=1), st.integers(1, 60))
def test_any_measurement_gives_a_rising_table(points: dict[int, float], largest: int) -> None:
    profile = LatencyProfile.measured({batch: {"p95": value} for batch, value in points.items()}, largest)
    row = profile.table_ns[Quantile.P95]
    assert (np.diff(row) >= 0).all()
    assert row[1] >= round(min(points.values()) * NS_PER_MS)
    for batch, value in points.items():
        if batch <= largest:
            assert row[batch] <= round(value * NS_PER_MS)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LatencyProfile(np.zeros((2, 3))), "needs 4 rows and at least two columns"),
        (lambda: LatencyProfile(np.zeros((4, 1))), "needs 4 rows and at least two columns"),
        (lambda: LatencyProfile(np.ones((4, MAX_BATCH_LIMIT + 2))), "may go up to batch 4096, not 4097"),
        (lambda: LatencyProfile(np.array([[0, 5, 0]] * 4), "t4"), "every latency of kind 't4' must be above zero"),
        (lambda: LatencyProfile(np.array([[0, 5, 4]] * 4)), "falls as the batch grows"),
        (lambda: LatencyProfile.linear(-1.0, 5.0), "must be finite, not negative and not both zero"),
        (lambda: LatencyProfile.linear(1.0, float("nan")), "must be finite"),
        (lambda: LatencyProfile.linear(float("inf"), 1.0), "must be finite"),
        (lambda: LatencyProfile.linear(0.0, 0.0), "not both zero"),
        (lambda: LatencyProfile.linear(1.0, 1.0, max_batch=0), "between 1 and 4096, not 0"),
        (lambda: LatencyProfile.measured({}), "needs at least one batch size"),
        (lambda: LatencyProfile.measured({1: {}}), "needs a mean, p50, p95 or p99"),
        (lambda: LatencyProfile.measured({1: {"p90": 1.0}}), "needs a mean, p50, p95 or p99"),
        (lambda: LatencyProfile.measured({0: {"p95": 1.0}}, max_batch=4), "batch size 0 is not between 1 and 4096"),
        (lambda: LatencyProfile.measured({5000: {"p95": 1.0}}), "between 1 and 4096, not 5000"),
        (lambda: LatencyProfile.measured({2: {"p95": 0.0}}), "p95 latency 0.0 ms of batch 2 is not a time above zero"),
        (lambda: LatencyProfile.measured({2: {"mean": float("nan")}}), "mean latency nan ms of batch 2"),
        (lambda: LatencyProfile.measured({2: {"p99": 1e12}}), "p99 latency"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(make: object, sentence: str) -> None:
    assert callable(make)
    with pytest.raises(ProfileError, match=sentence):
        make()
