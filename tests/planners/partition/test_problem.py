"""A partition's equations (Symphony, section 5) worked out by hand for few models."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.errors import StrettoError
from stretto.planners.partition.problem import Change, PartitionProblem, balance_of, keeps_limits


def three(**more: float) -> PartitionProblem:
    """Rates of 10, 20 and 60 queries/s; 1, 2 and 3 bytes; 5, 7 and 0 bytes while they run."""
    columns = (np.array(values) for values in ((10.0, 20.0, 60.0), (1.0, 2.0, 3.0), (5.0, 7.0, 0.0)))
    return PartitionProblem(*columns, 2, **more)


def test_balance_is_the_largest_distance_from_the_mean() -> None:
    """Rates of 30 and 60, sizes of 3 and 3; then 70 and 20, 4 and 2."""
    even = balance_of(three(), (0, 0, 1))
    assert (even.rate_gap, even.bytes_gap, even.objective) == (15.0, 0.0, 15.0)
    assert (even.rate_imbalance, even.bytes_imbalance) == pytest.approx((30 / 45, 0.0))
    uneven = balance_of(three(), (0, 1, 0))
    assert (uneven.rate_gap, uneven.bytes_gap) == (25.0, 1.0)
    assert uneven.objective == pytest.approx(25 + 90 / 6), "a byte costs what its mean share of the rate is"
    assert balance_of(three(weight=2.0), (0, 1, 0)).objective == 27.0
    assert uneven.bytes_imbalance == pytest.approx(2 / 3)
    nothing = PartitionProblem(np.zeros(2), np.zeros(2), np.zeros(2), 2)
    assert balance_of(nothing, (0, 1)).rate_imbalance == balance_of(nothing, (0, 1)).bytes_imbalance == 0.0
    assert nothing.units == (1.0, 1.0) and three().units == (45.0, 3.0) and nothing.w == 0.0


def test_the_hungriest_model_counts_once_in_each_sub_cluster() -> None:
    """3 + 7 bytes and 3 + 0 for (0, 0, 1); 3 and 4 + 5 for (1, 0, 1)."""
    assert keeps_limits(three(max_bytes=10.0), (0, 0, 1)) and not keeps_limits(three(max_bytes=9.9), (0, 0, 1))
    assert keeps_limits(three(max_bytes=9.0), (1, 0, 1)) and not keeps_limits(three(max_bytes=8.9), (1, 0, 1))
    assert keeps_limits(three(max_bytes=10.0), (0, 0, -1)), "one that has no place takes none"


def test_clusters_take_what_all_their_parts_take() -> None:
    parts = three(max_rate=30.0, max_bytes=9.0).of_parts(3)
    assert (parts.max_rate, parts.max_bytes, parts.part) == (90.0, 27.0, "cluster")
    assert parts.dynamic_bytes.tolist() == [15.0, 21.0, 0.0] and parts.static_bytes.tolist() == [1.0, 2.0, 3.0]
    assert three().of_parts(1).part == "sub-cluster"


def test_a_move_pays_for_unloading_and_loading() -> None:
    """The first model is nowhere yet, the second stays, the third goes from the second sub-cluster to the first."""
    costs = np.array([[1.0, 2.0], [4.0, 8.0], [16.0, 0.0]])
    change = Change(three(), (-1, 0, 1), costs=costs)
    assert [change.cost((home, 0, 1)) for home in (0, 1)] == [1.0, 2.0]
    assert change.cost((0, 0, 0)) == 1 + 16 + 0 and change.cost((0, 1, 1)) == 1 + 4 + 8
    by_count = Change(three(), (-1, 0, 1))
    assert [by_count.cost(homes) for homes in ((0, 0, 1), (1, 1, 1), (0, 1, 0))] == [1.0, 3.0, 5.0]
    for most, fits in ((3.0, True), (2.9, False)):
        assert keeps_limits(three(), (1, 1, 1), Change(three(), (-1, 0, 1), max_cost=most)) == fits
    tenth = Change(three(), (-1, -1, -1), max_cost=0.3, costs=np.full((3, 2), 0.1))
    assert keeps_limits(three(), (0, 0, 0), tenth), "three tenths are no more than 0.3, whatever binary makes of it"


@pytest.mark.parametrize("current", [(0, 0), (0, 0, 2), (0, 0, -2)])
def test_an_assignment_that_cannot_be_is_refused(current: tuple[int, ...]) -> None:
    with pytest.raises(StrettoError, match="below 2, or -1"):
        Change(three(), current)


@pytest.mark.parametrize("costs", [np.full((3, 2), -0.1), np.zeros((2, 2)), np.full((3, 2), np.nan)])
def test_costs_that_cannot_be_are_refused(costs: np.ndarray) -> None:
    with pytest.raises(StrettoError, match="none negative"):
        Change(three(), (0, 0, 0), costs=costs)
