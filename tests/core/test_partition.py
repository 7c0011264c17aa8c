"""A partition as data: homes, clusters, and what moved."""

from __future__ import annotations

import pytest

from stretto.core.errors import StrettoError
from stretto.core.partition import Partition, Share


def test_homes_and_clusters() -> None:
    partition = Partition({"a": 0, "b": 5, "c": 3}, 6, 2)
    assert partition.sub_cluster_of("b") == 5
    assert [partition.cluster_of(name) for name in "abc"] == [0, 1, 1]
    assert partition.applications_of(3) == ("c",)
    with pytest.raises(KeyError):
        partition.sub_cluster_of("d")


def test_what_moved() -> None:
    before, after = Partition({"a": 0, "b": 1}, 2), Partition({"a": 1, "b": 1, "c": 0}, 2)
    assert after.moved_from(before) == {"a": (0, 1), "c": (None, 0)}


@pytest.mark.parametrize(
    ("homes", "sub_clusters", "clusters"), [({}, 2, 1), ({"a": 2}, 2, 1), ({"a": 0}, 3, 2), ({"a b": 0}, 2, 1)]
)
def test_senseless_partitions_are_refused(homes: dict[str, int], sub_clusters: int, clusters: int) -> None:
    with pytest.raises(StrettoError):
        Partition(homes, sub_clusters, clusters)


def test_the_upper_level_and_back() -> None:
    whole = Partition({"a": 0, "b": 1, "c": 2, "d": 2, "e": 5}, 6, 2, 4)
    assert whole.top == Partition({"a": 0, "b": 0, "c": 0, "d": 0, "e": 1}, 2, 1, 4)
    assert whole.with_top(whole.top) == whole
    after = whole.with_top(Partition({"a": 0, "b": 1, "c": 0, "d": 1, "e": 1, "new": 0}, 2, 1, 5))
    assert after == Partition({"a": 0, "b": 3, "c": 2, "d": 4, "e": 5, "new": 1}, 6, 2, 5), "who stays stays"
    assert set(Share(whole, 0, is_cluster=True).applications) == {"a", "b", "c", "d"}
