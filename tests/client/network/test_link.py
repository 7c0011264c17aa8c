"""A pipe gives back what it was given, in order, as fast as its trace and no faster, and bounds what waits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.client.network.link import BURST_NS, SEGMENT_BYTES, Link, Pipe
from stretto.core.bandwidth import Bandwidth, constant, in_steps
from stretto.core.errors import StrettoError

MS = 1_000_000
S = 1_000_000_000


def pipe(bandwidth: Bandwidth, delay_ns: int = 0, queue_bytes: int = 1_000_000, burst_ns: int = 0) -> Pipe[str]:
    return Pipe(bandwidth, 0, delay_ns, queue_bytes, burst_ns)


def arrivals(subject: Pipe[str]) -> list[tuple[int, str, bytes | None]]:
    """Everything that is inside, with the moment at which it comes out."""
    out = []
    while (now_ns := subject.wake_at_ns) is not None:
        out += [(now_ns, owner, content) for owner, content in subject.moved(now_ns)]
    return out


def test_a_segment_takes_its_time_and_the_delay() -> None:
    subject = pipe(constant(100_000), delay_ns=7 * MS)
    subject.put(0, "a", b"x" * 1000)
    assert arrivals(subject) == [(17 * MS, "a", b"x" * 1000)]
    subject.put(50 * MS, "a", b"y" * 1000)
    assert arrivals(subject) == [(67 * MS, "a", b"y" * 1000)]


def test_the_rate_follows_the_trace_and_what_waits_for_it() -> None:
    subject = pipe(in_steps([100_000.0, 0.0, 50_000.0]))
    subject.put(0, "a", b"x" * 125_000)
    came = arrivals(subject)
    by_second = [sum(len(content or b"") for at_ns, _, content in came if at_ns <= second * S) for second in (1, 2, 3)]
    assert by_second[0] == pytest.approx(100_000, abs=SEGMENT_BYTES) and by_second[1] == by_second[0]
    assert came[-1][0] == pytest.approx(2.5 * S, abs=2)


def test_connections_share_the_link_in_the_order_in_which_they_came() -> None:
    subject = pipe(constant(100_000))
    subject.put(0, "a", b"a" * 1000)
    subject.put(1 * MS, "b", b"b" * 1000)
    subject.mark(1 * MS, "a")
    subject.put(1 * MS, "b", b"c" * 500)
    assert arrivals(subject) == [
        (10 * MS, "a", b"a" * 1000),
        (20 * MS, "b", b"b" * 1000),
        (20 * MS, "a", None),
        (25 * MS, "b", b"c" * 500),
    ]


def test_idle_time_is_not_saved_beyond_the_burst() -> None:
    subject = pipe(constant(100_000), burst_ns=2 * MS)
    subject.put(10 * S, "a", b"x" * 1000)
    assert arrivals(subject)[0][0] == 10 * S + 8 * MS
    subject.put(20 * S, "a", b"x" * 1000, was_held_up=True)  # the sender was ready; only the timer was late
    assert subject.wake_at_ns is not None and subject.wake_at_ns < 20 * S


def test_credit_does_not_shorten_the_delay() -> None:
    subject = pipe(constant(1e9), delay_ns=5 * MS, burst_ns=BURST_NS)
    subject.put(S, "a", b"x" * 10)
    assert arrivals(subject)[0][0] == S + 5 * MS


def test_no_more_waits_than_the_queue_holds() -> None:
    subject = pipe(constant(100_000), delay_ns=S, queue_bytes=2000)
    subject.put(0, "a", b"x" * 2000)
    assert subject.room == 0 and not subject.is_low
    with pytest.raises(StrettoError, match="room for 0"):
        subject.put(0, "a", b"x")
    assert list(subject.moved(15 * MS)) == []  # the first segment has passed, and travels
    assert subject.room == SEGMENT_BYTES and subject.is_low and subject.underway == 2000


@given(
    rates=st.lists(st.floats(0, 1e6), min_size=1, max_size=5).filter(lambda rates: max(rates) > 1000),
    puts=st.lists(st.tuples(st.integers(0, 300 * MS), st.sampled_from("abc"), st.integers(0, 5000)), max_size=30),
    delay_ns=st.integers(0, 50 * MS),
    burst_ns=st.integers(0, 5 * MS),
)
@settings(max_examples=200, deadline=None)
def test_bytes_are_conserved_ordered_and_never_too_fast(
    rates: list[float], puts: list[tuple[int, str, int]], delay_ns: int, burst_ns: int
) -> None:
    bandwidth = in_steps(rates, 0.1)
    subject: Pipe[str] = Pipe(bandwidth, 0, delay_ns, 200_000, burst_ns)
    sent: dict[str, bytes] = {"a": b"", "b": b"", "c": b""}
    came: list[tuple[int, str, bytes | None]] = []
    now_ns = 0
    for gap_ns, owner, size in puts:
        while subject.wake_at_ns is not None and subject.wake_at_ns <= now_ns + gap_ns:
            at_ns = subject.wake_at_ns
            came += [(at_ns, to, content) for to, content in subject.moved(at_ns)]
        now_ns += gap_ns
        content = bytes([len(came) % 251]) * min(size, subject.room)
        sent[owner] += content
        subject.put(now_ns, owner, content)
    came += arrivals(subject)
    assert {owner: b"".join(part or b"" for _, to, part in came if to == owner) for owner in sent} == sent
    assert [at_ns for at_ns, _, _ in came] == sorted(at_ns for at_ns, _, _ in came)
    assert subject.underway == subject.queued == 0
    # Between any two arrivals no more came than the trace allows, and what was saved: one burst for each idle time.
    for first in range(len(came)):
        total = 0
        for at_ns, _, content in came[first + 1 :]:
            total += len(content or b"")
            start_ns, end_ns = came[first][0] - delay_ns - burst_ns, at_ns - delay_ns
            most = bandwidth.sent_by(end_ns) - bandwidth.sent_by(start_ns)
            assert total <= most * (1 + 1e-9) + max(rates) * (burst_ns + 2) / 1e9 + 2
        if first > 3:
            break


@pytest.mark.parametrize(
    "wrong",
    [{"up_delay_ns": -1}, {"down_delay_ns": 61 * S}, {"queue_bytes": 100}, {"queue_bytes": 2**31}, {"burst_ns": -1}],
)
def test_a_link_bounds_what_it_is_given(wrong: dict[str, int]) -> None:
    with pytest.raises(StrettoError):
        Link(constant(1000), **wrong)  # type: ignore[arg-type]
