"""What a client expects a frame to take until it can go, at sizes that it measured and at others."""

from __future__ import annotations

from stretto.core.preparation import KEPT_TIMES, Preparation
from stretto.core.profile import NS_PER_MS

PIXELS = (100, 200, 400)


def test_nothing_is_expected_until_something_was_measured() -> None:
    made = Preparation(PIXELS)
    assert [made.most_ns(0, size) for size in range(3)] == [0, 0, 0]


def test_other_sizes_take_at_least_their_share_and_no_less_than_smaller_ones() -> None:
    """So that not every size must be tried to learn that the camera is too slow for it."""
    made = Preparation(PIXELS)
    made.took(0, 1, 80 * NS_PER_MS)
    assert [made.mean_ns(0, size) / NS_PER_MS for size in range(3)] == [40, 80, 80]
    made.took(0, 0, 60 * NS_PER_MS)
    assert [made.mean_ns(0, size) / NS_PER_MS for size in range(3)] == [60, 80, 80]


def test_a_time_is_kept_in_proportion_to_its_length() -> None:
    made = Preparation(PIXELS)
    made.took(0, 2, 40 * NS_PER_MS)
    made.took(0, 1, 10 * NS_PER_MS)
    until_ns = KEPT_TIMES * 10 * NS_PER_MS
    assert made.mean_ns(until_ns, 1) == 10 * NS_PER_MS
    assert made.mean_ns(until_ns + 1, 1) == 20 * NS_PER_MS  # half of what twice as many pixels took
    assert made.mean_ns(4 * until_ns + 1, 2) == 0
    made.took(4 * until_ns + 1, 2, 6 * NS_PER_MS)
    assert made.mean_ns(4 * until_ns + 1, 2) == 6 * NS_PER_MS  # what was forgotten is no part of the mean


def test_frames_that_take_longer_than_most_are_reckoned_with() -> None:
    made = Preparation(PIXELS)
    for frame in range(40):
        made.took(0, 0, (10 + 20 * (frame % 2)) * NS_PER_MS)
    assert 18 < made.mean_ns(0, 0) / NS_PER_MS < 24
    assert made.most_ns(0, 0) > 30 * NS_PER_MS
