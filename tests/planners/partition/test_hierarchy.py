"""Two levels: clusters keep their coordinators' limit, sub-clusters theirs, and a change its own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.errors import StrettoError
from stretto.planners.partition.hierarchy import hierarchical
from stretto.planners.partition.problem import Change, PartitionProblem, balance_of, keeps_limits, loads_of


def problem(models: int, subclusters: int, seed: int, max_bytes: float = math.inf) -> PartitionProblem:
    draw = np.random.default_rng(seed)
    static, dynamic = draw.choice([99.0, 88, 230, 822], models), draw.choice([2172.0, 1519, 6200], models)
    return PartitionProblem(draw.exponential(100, models), static, dynamic, subclusters, max_bytes=max_bytes)


def by_cluster(asked: PartitionProblem, homes: list[int], clusters: int) -> np.ndarray:
    return loads_of(asked, homes)[0].reshape(clusters, -1).sum(axis=1)


def test_clusters_and_their_sub_clusters_are_balanced() -> None:
    asked = problem(240, 12, 1, max_bytes=6200 + 8000)
    homes = hierarchical(asked, 3)
    assert keeps_limits(asked, homes)
    assert np.ptp(by_cluster(asked, homes, 3)) < 0.01 * asked.rates.sum() / 3
    balance = balance_of(asked, homes)
    assert balance.rate_imbalance < 0.05
    assert balance.bytes_imbalance < 0.2


def test_a_coordinator_s_limit_is_one_on_its_cluster() -> None:
    asked = problem(60, 6, 2)
    total = float(asked.rates.sum())
    homes = hierarchical(asked, 2, max_cluster_rate=0.51 * total)
    assert by_cluster(asked, homes, 2).max() <= 0.51 * total
    with pytest.raises(StrettoError, match=r"rates sum to .*, 2 clusters take"):
        hierarchical(asked, 2, max_cluster_rate=0.49 * total)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), max_moves=st.integers(0, 30), dear=st.booleans())
def test_both_levels_together_change_no_more_than_is_allowed(seed: int, max_moves: int, dear: bool) -> None:
    draw = np.random.default_rng(seed)
    asked = problem(60, 6, seed)
    costs = draw.uniform(0.5, 3, (60, 6)) if dear else None
    change = Change(asked, tuple(draw.integers(0, 6, 60).tolist()), 2.0 * max_moves, costs)
    homes = hierarchical(asked, 2, change)
    assert change.cost(homes) <= 2 * max_moves + 1e-6
    if max_moves == 30 and not dear:
        assert balance_of(asked, homes).objective < 0.5 * balance_of(asked, change.current).objective


def test_models_of_a_lost_sub_cluster_find_a_place_in_either_cluster() -> None:
    asked = problem(60, 6, 4)
    homes = hierarchical(asked, 2)
    current = tuple(-1 if home == 5 else home for home in homes)
    lost = current.count(-1)
    found = hierarchical(asked, 2, Change(asked, current, float(lost)))
    assert all(after == before for after, before in zip(found, current, strict=True) if before != -1)


def test_blame_names_the_cluster_or_the_model() -> None:
    asked = problem(20, 4, 3, max_bytes=6200)
    with pytest.raises(StrettoError, match="alone needs"):
        hierarchical(asked, 2)
    tight = PartitionProblem(np.ones(4), np.full(4, 6.0), np.ones(4), 4, max_bytes=10)
    assert sorted(hierarchical(tight, 2)) == [0, 1, 2, 3]
    uneven = PartitionProblem(np.ones(3), np.array([6.0, 6, 6]), np.ones(3), 2, max_bytes=10)
    with pytest.raises(StrettoError):
        hierarchical(uneven, 2)
    with pytest.raises(StrettoError, match="not 3 clusters"):
        hierarchical(problem(8, 4, 1), 3)
