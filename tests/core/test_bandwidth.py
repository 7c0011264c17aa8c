"""Bandwidth traces: readers, rates, and the time of a frame against a plain step-by-step integration."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.bandwidth import PACKET_BYTES, Bandwidth, TraceForm, bandwidth_from, constant, in_steps
from stretto.core.errors import StrettoError

SECOND = 1_000_000_000
MS = 1_000_000


def walked(bandwidth: Bandwidth, start_ns: int, size: float) -> float:
    """The time to send, by walking from step to step."""
    place_ns, left = (start_ns + bandwidth.offset_ns) % bandwidth.period_ns, size
    spent = 0.0
    ends = (*bandwidth.starts_ns[1:], bandwidth.period_ns)
    while True:
        for start, end, rate in zip(bandwidth.starts_ns, ends, bandwidth.rates, strict=True):
            if end <= place_ns:
                continue
            room = rate * (end - place_ns) / SECOND
            if rate > 0 and left <= room * (1 + 1e-12):
                return spent + left * SECOND / rate
            left -= room
            spent += end - place_ns
            place_ns = end
            del start
        place_ns = 0


def test_mbit_steps_and_comments() -> None:
    trace = bandwidth_from("# mine\n20\n\n15 # a dip\n10\n", step_s=20)
    assert trace.rates == (2_500_000.0, 1_875_000.0, 1_250_000.0)
    assert trace.period_ns == 60 * SECOND
    assert trace.rate_at(0) == trace.rate_at(60 * SECOND) == trace.rate_at(20 * SECOND - 1) == 2_500_000.0
    assert trace.rate_at(20 * SECOND) == 1_875_000.0
    assert trace.mean == pytest.approx(1_875_000.0)
    assert trace.shifted(20 * SECOND).rate_at(0) == 1_875_000.0
    assert trace.scaled(0.5).rates[0] == 1_250_000.0


def test_a_frame_over_a_change_of_rate() -> None:
    trace = in_steps([1000.0, 500.0])
    assert trace.time_to_send(0, 500) == SECOND // 2
    assert trace.time_to_send(SECOND // 2, 750) == SECOND
    assert trace.time_to_send(0, 1500) == 2 * SECOND
    assert trace.time_to_send(0, 2000) == 2.5 * SECOND
    assert trace.mean_over(SECOND // 2, 3 * SECOND // 2) == pytest.approx(750.0)


def test_a_frame_waits_where_nothing_passes() -> None:
    trace = in_steps([0.0, 1000.0, 0.0])
    assert trace.time_to_send(0, 1000) == 2 * SECOND
    assert trace.time_to_send(0, 1001) == 4 * SECOND + MS
    assert trace.time_to_send(2 * SECOND, 1000) == 3 * SECOND


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any),
    st.integers(0, 10 * SECOND),
    st.integers(1, 200_000),
    st.integers(0, 5 * SECOND),
)
def test_time_to_send_is_the_walk(rates: list[int], start_ns: int, size: int, offset_ns: int) -> None:
    trace = in_steps([rate * 10_000.0 for rate in rates]).shifted(offset_ns)
    took_ns = trace.time_to_send(start_ns, size)
    assert took_ns == pytest.approx(walked(trace, start_ns, size), abs=3)
    assert trace.sent_by(start_ns + took_ns) - trace.sent_by(start_ns) == pytest.approx(size, rel=1e-6, abs=0.01)


def test_mahimahi_lets_a_packet_through_a_line() -> None:
    trace = bandwidth_from("1\n1\n3\n10\n", TraceForm.MAHIMAHI)
    assert trace.period_ns == 10 * MS
    assert trace.mean == pytest.approx(4 * PACKET_BYTES * 100)
    assert trace.time_to_send(0, 2 * PACKET_BYTES) == MS
    assert trace.time_to_send(0, 3 * PACKET_BYTES) == 3 * MS
    assert trace.time_to_send(0, 4 * PACKET_BYTES) == 10 * MS
    assert trace.time_to_send(0, 8 * PACKET_BYTES) == 20 * MS


@pytest.mark.parametrize(
    ("text", "form", "reason"),
    [
        ("", TraceForm.MBIT, "at least one number"),
        ("5\nfast\n", TraceForm.MBIT, "line 2"),
        ("5\nnan\n", TraceForm.MBIT, "line 2"),
        ("-1\n", TraceForm.MBIT, "line 1"),
        ("0\n0\n", TraceForm.MBIT, "above zero"),
        ("5\n4\n", TraceForm.MAHIMAHI, "line 2"),
        ("1.5\n", TraceForm.MAHIMAHI, "line 1"),
        ("0\n", TraceForm.MAHIMAHI, "first millisecond"),
    ],
)
def test_bad_text_says_where(text: str, form: TraceForm, reason: str) -> None:
    with pytest.raises(StrettoError, match=reason):
        bandwidth_from(text, form)


def test_a_constant_network() -> None:
    assert constant(1e6).time_to_send(123, 2.5e6) == 2.5 * SECOND
