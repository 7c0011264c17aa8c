"""Old and new models paired by size, and neighbours by distance."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stretto.planners.jellyfish.problem import Mapping
from stretto.planners.jellyfish.update import NOT_KNOWN, Followers, paired, rearranged


def after_pairing(kinds: list[int], before: list[int], after: list[int]) -> list[int]:
    takes = paired(np.array(kinds), np.array(before), np.array(after))
    assert sorted(takes.tolist()) == list(range(len(kinds)))
    return np.array(after)[takes].tolist()


def test_sorted_and_paired() -> None:
    assert after_pairing([0, 0, 0], [2, 9, 5], [6, 1, 9]) == [1, 9, 6]


def test_only_workers_of_a_kind_change_places() -> None:
    assert after_pairing([0, 1, 0, 1], [1, 7, 8, 2], [8, 2, 1, 7]) == [1, 7, 8, 2]


def test_a_worker_that_is_new_takes_what_nobody_is_near_to() -> None:
    assert after_pairing([0, 0, 0], [NOT_KNOWN, 4, 9], [9, 0, 5]) == [0, 5, 9]
    assert sorted(after_pairing([0, 0], [NOT_KNOWN, NOT_KNOWN], [3, 1])) == [1, 3]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5))
def test_no_other_pairing_changes_less(models: list[tuple[int, int]]) -> None:
    before, after = ([pair[side] for pair in models] for side in (0, 1))
    changed = after_pairing([0] * len(models), before, after)
    least = min(sum(abs(a - b) for a, b in zip(before, order, strict=True)) for order in permutations(after))
    assert sum(abs(a - b) for a, b in zip(before, changed, strict=True)) == least


def test_clients_go_with_the_part_that_their_worker_gave_away() -> None:
    mapping = Mapping(np.array([3, 7]), np.array([2, 1]), np.array([0, 1, -1, 0]), 3, 1.0)
    turned = rearranged(mapping, np.array([1, 0]))
    assert turned.models.tolist() == [7, 3] and turned.batches.tolist() == [1, 2]
    assert turned.worker_of.tolist() == [1, 0, -1, 1]


def test_neighbours_by_distance_smaller_first() -> None:
    nothing = Followers()
    assert nothing.of(5, range(16))[:4] == [4, 6, 3, 7]
    assert nothing.of(0, range(16))[:2] == [1, 2]
    assert nothing.of(15, [3, 15, 14]) == [14, 3]


def test_what_followed_before_comes_first_and_fades() -> None:
    followers = Followers()
    for before, after in ((5, 9), (2, 2), (NOT_KNOWN, 5)):
        followers.saw(before, after)
    assert followers.of(5, range(16))[:3] == [9, 4, 6]
    assert followers.of(2, range(16))[:2] == [1, 3], "it stayed where it was"
    for _ in range(2000):
        followers.saw(4, 4)
    assert followers.of(5, range(16))[:2] == [4, 6] and not followers.counts
