"""Which size a client sends next, and when it sends nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.client.pacing import Pacer, Size, size_of
from stretto.core.frame_size import PROBE_NS
from stretto.core.profile import NS_PER_MS, NS_PER_S

SIZES: tuple[Size, ...] = ((8, 8), (16, 16), (28, 28))
BYTES = (10_000.0, 20_000.0, 40_000.0)
SLO_NS = 100 * NS_PER_MS


def pacer(bytes_per_s: float | None = 1e6, rate: float = 5.0) -> Pacer:
    """At t = 1 s, with frames for one second before, and a round trip of 10 ms."""
    made = Pacer(0, SLO_NS, SIZES, BYTES)
    made.went(10 * NS_PER_MS)
    for frame in range(int(rate)):
        made.made(round(frame * NS_PER_S / rate))
    if bytes_per_s is not None:
        sent = 100_000
        made.acknowledged(NS_PER_S, sent, 10 * NS_PER_MS + round(sent * NS_PER_S / bytes_per_s))
    return made


def size_at(made: Pacer, left_ns: int = SLO_NS) -> Size | None:
    return made.size_for(NS_PER_S, left_ns)


def test_the_told_size_is_sent_where_the_network_allows_it() -> None:
    made = pacer()
    assert size_at(made) == (28, 28)  # 10 + 40 ms, and a tenth of the SLO for the server
    made.answered(NS_PER_S, 5 * NS_PER_MS, {"input_size": "1,16,16", "mapped": "px16"})
    assert size_at(made) == (16, 16) and made.told == (16, 16)
    made.answered(NS_PER_S, 5 * NS_PER_MS, {"input_size": "1,400,400", "mapped": "large"})
    assert size_at(made) == (28, 28)  # the largest there is


def test_a_slower_network_lets_only_smaller_sizes_through() -> None:
    assert size_at(pacer(400e3)) == (16, 16)
    assert size_at(pacer(150e3)) == (8, 8)


def test_a_frame_that_waited_is_sent_smaller_and_not_at_all_when_hopeless() -> None:
    made = pacer()
    assert size_at(made, 45 * NS_PER_MS) == (16, 16)
    assert size_at(made, 21 * NS_PER_MS) == (8, 8)  # 10 + 10 ms: at the brink, the smallest
    assert size_at(made, 19 * NS_PER_MS) is None


def test_frames_at_this_rate_must_not_need_more_time_than_there_is() -> None:
    """40 ms of sending and 10 of the round trip, for the next frame goes when the one before it is acknowledged: 20
    frames of that a second take all the time that there is. A count may be one too high, and a twentieth is left for
    what waits. Without the round trip 24 would fit.
    """
    assert size_at(pacer(1e6, rate=18)) == (28, 28)
    assert size_at(pacer(1e6, rate=22)) == (16, 16)


def test_a_round_trip_that_takes_all_the_time_makes_no_frame_smaller() -> None:
    """Smaller ones would not be more."""
    far = pacer(100e6, rate=25)
    for _ in range(8):
        far.went(45 * NS_PER_MS)
    far.acknowledged(NS_PER_S, 100_000, 46 * NS_PER_MS)
    assert size_at(far) == (28, 28)


def test_slow_answers_leave_less_to_the_network() -> None:
    made = pacer()
    for _ in range(30):
        made.answered(NS_PER_S, 60 * NS_PER_MS, {})
    assert size_at(made) == (16, 16)


def test_the_first_frame_is_small_for_nothing_is_known_of_the_network() -> None:
    assert size_at(pacer(None)) == (8, 8)


def test_a_first_frame_is_large_enough_to_be_measured() -> None:
    made = Pacer(0, SLO_NS, SIZES, (240.0, 260.0, 440.0), probe_bytes=140)
    assert size_at(made) == (28, 28)
    made.acknowledged(NS_PER_S, 440, 300 * NS_PER_MS)  # 1 kB/s, by the 300 bytes beyond the probe
    assert size_at(made, SLO_NS) is None
    made.acknowledged(NS_PER_S, 440, 100 * NS_PER_MS)
    assert made.size_for(NS_PER_S, 85 * NS_PER_MS) == (8, 8)
    assert made.size_for(3 * NS_PER_S, 85 * NS_PER_MS) == (28, 28)  # nothing was measured for a while


def test_a_frame_is_expected_to_take_what_it_took_though_the_probe_s_bytes_took_time_too() -> None:
    """By a round trip of 20 ms and 1 kB of 10, a frame of 6 kB takes 70: not the probe's 10 ms once more."""
    made = Pacer(0, SLO_NS, SIZES, (2_000.0, 6_000.0, 8_000.0), probe_bytes=1_000)
    made.went(20 * NS_PER_MS)
    made.acknowledged(NS_PER_S, 6_000, 70 * NS_PER_MS)
    assert made.bytes_per_s(NS_PER_S) == pytest.approx(100e3)
    assert size_at(made, 81 * NS_PER_MS) == (16, 16)  # a tenth of the SLO is the server's
    assert size_at(made, 79 * NS_PER_MS) == (8, 8)


def test_bytes_are_learned_from_what_was_sent() -> None:
    made = pacer()
    made.sent((8, 8), 21_000)  # twice the guess, so the others are taken to be twice theirs
    assert size_at(made) == (16, 16)


def test_who_is_refused_sends_one_small_frame_a_plan_period_until_told_otherwise() -> None:
    made = pacer()
    made.refused(NS_PER_S, True, {"input_size": "1,28,28", "mapped": ""})
    sent = [at for at in range(0, 3000, 10) if not made.is_held_back(NS_PER_S + at * NS_PER_MS)]
    assert sent == [PROBE_NS * period // NS_PER_MS for period in (1, 2, 3, 4, 5)]
    assert size_at(made) == (8, 8)
    made.answered(5 * NS_PER_S, NS_PER_MS, {"input_size": "1,28,28", "mapped": ""})
    assert made.is_held
    made.answered(5 * NS_PER_S, NS_PER_MS, {"input_size": "1,28,28", "mapped": "px28"})
    assert not made.is_held_back(5 * NS_PER_S) and size_at(made) == (28, 28)


def test_one_refusal_of_a_client_that_has_a_place_holds_nothing_back() -> None:
    """A lane was full for a moment: holding back for half a second made seven missed frames of one at 15/s."""
    made, word = pacer(), {"input_size": "1,28,28", "mapped": "px28"}
    for _ in range(5):
        made.refused(NS_PER_S, True, word)
        assert not made.is_held_back(NS_PER_S) and size_at(made) == (28, 28)
        made.answered(NS_PER_S, NS_PER_MS, word)
    made.refused(NS_PER_S, True, word)
    made.refused(NS_PER_S, True, word)
    assert made.is_held_back(NS_PER_S)


def test_a_frame_that_came_too_late_says_how_long_an_answer_takes() -> None:
    """Answers alone would say how long it takes where nobody was before: 5 ms here. One had 50 ms left, and that was
    not enough: so more is left for the next ones, until answers have shown that it is not needed.
    """
    made = pacer()
    for _ in range(30):
        made.answered(NS_PER_S, 5 * NS_PER_MS, {})
    assert size_at(made) == (28, 28)
    made.refused(NS_PER_S, False, {}, 50 * NS_PER_MS)
    assert size_at(made) == (16, 16) and not made.is_held
    for _ in range(30):
        made.answered(NS_PER_S, 5 * NS_PER_MS, {})
    assert size_at(made) == (28, 28)


def test_the_first_answer_may_be_off_by_half() -> None:
    """As TCP begins with its first round trip: 18 ms, and four times half of that."""
    made = pacer()
    made.answered(NS_PER_S, 18 * NS_PER_MS, {})
    assert size_at(made, 103 * NS_PER_MS) == (16, 16)  # 10 + 40 + 54 are too long
    assert size_at(made, 105 * NS_PER_MS) == (28, 28)


def test_a_refusal_for_lateness_alone_holds_nothing_back() -> None:
    made = pacer()
    made.refused(NS_PER_S, False, {"input_size": "1,16,16", "mapped": "px16"})
    assert not made.is_held and size_at(made) == (16, 16)


def test_a_bandwidth_is_reported_once() -> None:
    made = pacer()
    said = made.network_parameters(NS_PER_S, 3 * NS_PER_MS)
    assert said["bandwidth"] == pytest.approx(1e6) and said["rtt_ms"] == 10 and said["waited_ms"] == 3
    assert said["slo_ms"] == 100 and said["rate"] == pytest.approx(5, abs=1.3)
    assert "bandwidth" not in made.network_parameters(NS_PER_S, 0)
    assert made.bytes_per_s(NS_PER_S) == pytest.approx(1e6)


@pytest.mark.parametrize("text", [None, 7, "", "28", "a,b", "1,0,28", "-1,5", "1," * 80, "²,5", "5, 5"])
def test_a_size_that_is_none_is_passed_over(text: object) -> None:
    assert size_of(text) is None


@settings(max_examples=100, deadline=None)
@given(st.floats(1e3, 1e10), st.integers(-10, 200), st.floats(1, 200), st.sampled_from([None, *SIZES]))
def test_what_is_chosen_fits_or_is_the_smallest(bandwidth: float, left_ms: int, rate: float, told: Size | None) -> None:
    made = pacer(bandwidth, rate)
    if told is not None:
        made.answered(NS_PER_S, 10 * NS_PER_MS, {"input_size": f"{told[0]},{told[1]}", "mapped": "v"})
    size = size_at(made, left_ms * NS_PER_MS)
    known = made.bytes_per_s(NS_PER_S)
    assert known is not None
    if size is None:
        assert 10 + BYTES[0] / known * 1e3 >= left_ms
    elif size != (8, 8):
        sending_ms = BYTES[SIZES.index(size)] / known * 1e3
        assert 10 + sending_ms + 10 <= left_ms + 1e-3 and sending_ms * made.rate(NS_PER_S) <= 1000.1
        assert told is None or size <= told


def test_a_bandwidth_that_fell_is_known_with_the_next_frame() -> None:
    """The mean over a second knows it only a second later: every frame until then would be late."""
    made = pacer()
    for frame in range(10):
        made.acknowledged(NS_PER_S, 100_000, 110 * NS_PER_MS)
        assert frame < 9 or size_at(made) == (28, 28)
    made.acknowledged(NS_PER_S, 100_000, 410 * NS_PER_MS)  # a quarter of it
    assert made.bytes_per_s(NS_PER_S) > 700_000 and size_at(made) == (16, 16)
    made.acknowledged(NS_PER_S, 100_000, 110 * NS_PER_MS)
    assert size_at(made) == (28, 28)


def test_answers_that_vary_leave_less_to_the_network() -> None:
    steady, varying = pacer(), pacer()
    for number in range(60):
        steady.answered(NS_PER_S, 35 * NS_PER_MS, {})
        varying.answered(NS_PER_S, (5 if number % 2 else 65) * NS_PER_MS, {})
    assert size_at(steady) == (28, 28) and size_at(varying) == (8, 8)


def test_a_network_that_stood_still_is_tried_again() -> None:
    """One frame that was held up for a second used to end all sending: what it measured was never measured anew."""
    made = pacer(9_000)  # the smallest frame would take more than a second
    assert size_at(made) is None
    later_ns = NS_PER_S + round(1.1 * PROBE_NS)
    assert made.size_for(later_ns, SLO_NS) == (8, 8)
    assert made.size_for(later_ns, 5 * NS_PER_MS) is None  # less than a round trip is left
    made.acknowledged(later_ns, 10_000, 20 * NS_PER_MS)
    assert made.size_for(later_ns + 2 * NS_PER_S, SLO_NS) is not None


def test_one_frame_that_was_held_up_is_no_reason_to_send_nothing() -> None:
    made = pacer()
    for _ in range(14):
        made.acknowledged(NS_PER_S, 100_000, 110 * NS_PER_MS)
    made.acknowledged(NS_PER_S, 10_000, 400 * NS_PER_MS)  # a pause of the machine: 25 kB/s
    assert size_at(made) == (8, 8)


def camera(pixel_ns: float, seconds: float, made: Pacer, begin_ns: int = 0) -> list[tuple[Size, int]]:
    """Size and latency of 15 frames a second that take so long to be made ready, and 30 ms to be answered then."""
    fps = 15
    ends: list[tuple[Size, int]] = []
    free_ns = begin_ns
    for frame in range(round(seconds * fps)):
        now_ns = begin_ns + round(frame * NS_PER_S / fps)
        made.made(now_ns)
        start_ns = max(now_ns, free_ns)
        size = made.size_for(start_ns, SLO_NS - (start_ns - now_ns))
        if size is None:
            ends.append(((0, 0), SLO_NS + 1))
            continue
        took_ns = round(pixel_ns * size[0] * size[1])
        free_ns = start_ns + took_ns
        made.prepared(free_ns, size, took_ns)
        ends.append((size, free_ns - now_ns + 30 * NS_PER_MS))
        made.answered(free_ns + 30 * NS_PER_MS, 10 * NS_PER_MS, {"input_size": "1,416,416", "mapped": "large"})
    return ends


CAMERA_SIZES: tuple[Size, ...] = ((128, 128), (224, 224), (320, 320), (416, 416))


def fast_network() -> Pacer:
    made = Pacer(0, SLO_NS, CAMERA_SIZES, [50_000.0] * 4)
    made.went(5 * NS_PER_MS)
    made.acknowledged(0, 50_000, 6 * NS_PER_MS)
    return made


def test_a_camera_that_is_too_slow_for_the_told_size_sends_a_smaller_one() -> None:
    """Once: 60 of 60 frames at 416 px, 44 of them late, for ever."""
    made = fast_network()
    ends = camera(90 * NS_PER_MS / 416**2, 60, made)  # 416 px in 90 ms, 320 in 53
    assert ends[0][0] == (416, 416)
    late = [size for size, latency_ns in ends if latency_ns > SLO_NS]
    assert len(late) / len(ends) <= 0.01
    assert sum(size == (320, 320) for size, _ in ends) / len(ends) > 0.9


def test_a_camera_that_was_busy_comes_back_to_the_large_size() -> None:
    made = fast_network()
    assert camera(90 * NS_PER_MS / 416**2, 5, made)[-1][0] == (320, 320)
    ends = camera(20 * NS_PER_MS / 416**2, 30, made, begin_ns=5 * NS_PER_S)
    assert ends[-1][0] == (416, 416) and all(latency_ns <= SLO_NS for _, latency_ns in ends)


def test_a_camera_cannot_send_more_frames_than_it_can_make_ready() -> None:
    """Each would be in time by itself, and they would wait for each other more and more."""
    made = Pacer(0, 1000 * NS_PER_MS, CAMERA_SIZES, [50_000.0] * 4)
    made.went(10 * NS_PER_MS)
    made.acknowledged(0, 50_000, 11 * NS_PER_MS)
    for frame in range(15):
        made.made(round(frame * NS_PER_S / 15))
    for size, took_ms in zip(CAMERA_SIZES, (10, 30, 50, 100), strict=True):
        made.prepared(NS_PER_S, size, took_ms * NS_PER_MS)
    assert size_at(made, 1000 * NS_PER_MS) == (320, 320)


def test_the_smallest_size_is_tried_however_long_it_took() -> None:
    """A camera of one size that was held up once sends its next frame."""
    made = Pacer(0, SLO_NS, SIZES[:1], BYTES[:1])
    made.went(10 * NS_PER_MS)
    made.acknowledged(NS_PER_S, 10_000, 20 * NS_PER_MS)
    made.prepared(NS_PER_S, SIZES[0], 500 * NS_PER_MS)
    assert size_at(made) == SIZES[0]


def test_times_vary_and_the_size_leaves_room_for_it() -> None:
    made = fast_network()
    for _ in range(20):
        for took_ms in (10, 60):
            made.prepared(NS_PER_S, (416, 416), took_ms * NS_PER_MS)
            made.prepared(NS_PER_S, (320, 320), 35 * NS_PER_MS)  # the same in the mean
    assert size_at(made) == (320, 320)
