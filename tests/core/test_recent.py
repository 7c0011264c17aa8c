"""Rate and bandwidth over the last second, against a count by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.profile import NS_PER_MS, NS_PER_S
from stretto.core.recent import (
    FASTEST,
    LEAST_BEYOND_BYTES,
    LEAST_SENDING_NS,
    SLOWEST,
    STEP_NS,
    Recent,
    bandwidth_of,
    plausible,
)


def test_an_even_stream_has_its_rate_from_the_first_quarter_second_on() -> None:
    recent, period_ns = Recent(0), NS_PER_S // 25
    for frame in range(100):
        recent.counted(frame * period_ns)
        if frame * period_ns >= NS_PER_S // 4:
            assert recent.rate(frame * period_ns) == pytest.approx(25, rel=0.05)
    assert recent.rate(99 * period_ns + NS_PER_S // 2) == pytest.approx(12.5, abs=1.5)
    assert recent.rate(99 * period_ns + 2 * NS_PER_S) == 0.0


def test_bandwidth_is_the_harmonic_mean_and_the_last_known_stays() -> None:
    recent = Recent(0)
    assert recent.bytes_per_s(0) is None
    recent.reported(NS_PER_MS, 1e6)
    recent.reported(2 * NS_PER_MS, 4e6)
    assert recent.bytes_per_s(3 * NS_PER_MS) == pytest.approx(1.6e6)  # not 2.5e6
    recent.counted(30 * NS_PER_S)  # it asks on, with frames too small to measure
    assert recent.bytes_per_s(30 * NS_PER_S) == pytest.approx(1.6e6)
    recent.reported(31 * NS_PER_S, 2e6)
    assert recent.bytes_per_s(31 * NS_PER_S) == pytest.approx(2e6)


@pytest.mark.parametrize("said", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_bandwidth_that_is_none_is_passed_over(said: float) -> None:
    recent = Recent(0)
    recent.reported(1, said)
    assert recent.bytes_per_s(1) is None and plausible(said) is None


def test_a_bandwidth_beyond_any_network_is_held_to_bounds() -> None:
    assert plausible(1e-300) == SLOWEST and plausible(1e300) == FASTEST


def test_a_frame_is_measured_by_what_it_has_and_takes_beyond_a_probe() -> None:
    round_trip_ns = 10 * NS_PER_MS
    assert bandwidth_of(100_100, 60 * NS_PER_MS, 100, round_trip_ns) == pytest.approx(2e6)
    assert bandwidth_of(200, 60 * NS_PER_MS, 100, round_trip_ns) is None
    assert bandwidth_of(300, 60 * NS_PER_MS, 900, round_trip_ns) is None  # the probe is the larger one
    quick = bandwidth_of(100_100, 9 * NS_PER_MS, 100, round_trip_ns)
    assert quick == pytest.approx(2e8)  # counts as half a millisecond


@given(st.floats(5e3, 1e6), st.integers(0, 2_000), st.integers(LEAST_BEYOND_BYTES, 5_000), st.integers(0, NS_PER_S))
def test_the_estimate_is_the_rate_whatever_the_probe_and_the_delay(
    rate: float, probe_bytes: int, beyond_bytes: int, delay_ns: int
) -> None:
    def took_ns(size: int) -> int:
        return delay_ns + round(size * NS_PER_S / rate)

    frame_bytes = probe_bytes + beyond_bytes
    estimate = bandwidth_of(frame_bytes, took_ns(frame_bytes), probe_bytes, took_ns(probe_bytes))
    assert estimate == pytest.approx(min(rate, beyond_bytes * NS_PER_S / LEAST_SENDING_NS), rel=1e-3)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 3)), min_size=1, max_size=40), st.integers(0, 1500))
def test_the_window_slides_as_one_that_remembers_every_moment(steps: list[tuple[int, int]], after_ms: int) -> None:
    recent, events, now_ns = Recent(0), [], 0
    for gap_ms, queries in steps:
        now_ns += gap_ms * NS_PER_MS
        recent.counted(now_ns, queries)
        recent.reported(now_ns, 1e6 * queries)
        events.append((now_ns, queries))
    now_ns += after_ms * NS_PER_MS
    long_ago_ns, lately_ns = now_ns - NS_PER_S - STEP_NS, now_ns - NS_PER_S + STEP_NS
    least = sum(queries for at_ns, queries in events if at_ns >= lately_ns)
    most = sum(queries for at_ns, queries in events if at_ns > long_ago_ns)
    young = 1.0 if now_ns - events[0][0] >= NS_PER_S else 4.0
    assert least - 1e-6 <= recent.rate(now_ns) <= most * young + 1e-6
    lately = [queries for at_ns, queries in events if at_ns > long_ago_ns]
    is_fresh = any(at_ns >= lately_ns for at_ns, _ in events)
    bandwidths = [1e6 * queries for queries in (lately if is_fresh else [queries for _, queries in events])]
    assert min(bandwidths) - 1 <= (recent.bytes_per_s(now_ns) or 0) <= max(bandwidths) + 1
