"""Workers of sub-clusters: by work at the start, and few of them change later."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.errors import StrettoError
from stretto.planners.partition.crews import MOST_MOVED, NO_CREW, crews_of
from stretto.planners.parts.sharing import workers_of_groups

ALL = np.ones(12, np.bool_)
NEW = np.full(12, NO_CREW)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_workers_are_split_by_work(data: st.DataObject) -> None:
    subclusters = data.draw(st.integers(1, 6))
    assignment = data.draw(st.lists(st.integers(0, subclusters - 1), min_size=1, max_size=20))
    work = [data.draw(st.floats(0, 50)) for _ in assignment]
    count = data.draw(st.integers(subclusters, 40))
    parts = workers_of_groups(assignment, work, subclusters, range(100, 100 + count))
    assert sorted(worker for part in parts for worker in part) == list(range(100, 100 + count))
    loads = np.bincount(assignment, weights=work, minlength=subclusters)
    for number, part in enumerate(parts):
        assert bool(part) == (number in assignment)
        # Nobody would gain by a worker from somebody with a lower load even after giving it away.
        for other in range(subclusters):
            if len(parts[other]) > 1 and part:
                assert loads[number] / len(part) <= loads[other] / (len(parts[other]) - 1) + 1e-9


def test_each_sub_cluster_gets_its_share_of_every_kind() -> None:
    parts = workers_of_groups([0, 1], [2.0, 1.0], 2, range(12))
    assert [len([w for w in part if w < 6]) for part in parts] == [4, 2]
    assert [len(part) for part in parts] == [8, 4]
    with pytest.raises(StrettoError, match="only 1 workers"):
        workers_of_groups([0, 1], [2.0, 1.0], 2, [0])


def test_small_differences_move_nobody_and_large_ones_few() -> None:
    homes, before = [0, 1], crews_of([0, 1], np.array([1.0, 1.0]), 2, ALL, NEW)
    assert np.bincount(before).tolist() == [6, 6]
    assert (crews_of(homes, np.array([1.2, 1.0]), 2, ALL, before) == before).all()
    moved = crews_of(homes, np.array([5.0, 1.0]), 2, ALL, before)
    assert 1 <= (moved != before).sum() <= MOST_MOVED * 12 + 1
    assert np.bincount(moved)[0] > 6


def test_a_new_worker_goes_where_most_work_is() -> None:
    before = np.append(crews_of([0, 1], np.array([1.0, 3.0]), 2, ALL[:8], NEW[:8]), NO_CREW)
    after = crews_of([0, 1], np.array([3.0, 3.0]), 2, ALL[:9], before)
    assert after[8] == 0


def test_models_are_never_without_a_worker_that_is_there() -> None:
    before = np.array([0] * 6 + [1] * 6)
    alive = np.array([True] * 6 + [False] * 6)
    after = crews_of([0, 1], np.array([1.0, 1.0]), 2, alive, before)
    assert ((after == 1) & alive).any()
    assert (after[6:] == 1).all()  # whoever is away keeps its place


def test_workers_of_a_sub_cluster_without_models_join_the_others() -> None:
    before = np.array([0] * 6 + [1] * 6)
    assert (crews_of([0, 0], np.array([1.0, 1.0]), 2, ALL, before) == 0).all()


def test_nobody_gives_away_its_last_worker() -> None:
    after = crews_of([0, 1], np.array([1e6, 1e-6]), 2, ALL[:3], np.array([0, 0, 1]))
    assert after.tolist() == [0, 0, 1]
