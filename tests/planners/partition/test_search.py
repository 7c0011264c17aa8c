"""Partitions: limits hold, balance comes near the optimum, change is bounded, and who is to blame is named."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.partition import MAX_SUB_CLUSTERS
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import workers
from stretto.planners.partition.problem import (
    Change,
    PartitionProblem,
    balance_of,
    keeps_limits,
    loads_of,
    partition_problem,
)
from stretto.planners.partition.search import partition

GB = 1e9


def problem(
    models: int,
    subclusters: int,
    seed: int,
    max_rate: float = math.inf,
    max_bytes: float = math.inf,
    weight: float | None = None,
) -> PartitionProblem:
    """Memory sizes as in table 1 of the paper, in MB."""
    draw = np.random.default_rng(seed)
    return PartitionProblem(
        rates=draw.exponential(100, models),
        static_bytes=draw.choice([99, 88, 230, 84, 170, 822], models).astype(np.float64),
        dynamic_bytes=draw.choice([2172, 1519, 3386, 2653, 2798, 6200], models).astype(np.float64),
        subclusters=subclusters,
        max_rate=max_rate,
        max_bytes=max_bytes,
        weight=weight,
    )


def exhaustive(asked: PartitionProblem, change: Change | None = None) -> float | None:
    """The lowest objective that any assignment within the limits has."""
    every = itertools.product(range(asked.subclusters), repeat=len(asked.rates))
    kept = (balance_of(asked, chosen).objective for chosen in every if keeps_limits(asked, chosen, change))
    return min(kept, default=None)


def test_many_models_are_balanced_within_the_limits_and_always_alike() -> None:
    asked = problem(400, 20, 2, max_bytes=6200 + 6000)
    assignment = partition(asked)
    assert keeps_limits(asked, assignment)
    balance = balance_of(asked, assignment)
    assert balance.rate_imbalance < 0.005
    assert balance.bytes_imbalance < 0.03
    assert partition(asked) == assignment


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), tight=st.sampled_from(["no limit", "rate", "memory"]))
def test_small_partitions_come_near_the_optimum(seed: int, tight: str) -> None:
    asked = problem(7, 3, seed)
    if tight == "rate":
        asked = problem(7, 3, seed, max_rate=0.6 * float(asked.rates.sum()))
    if tight == "memory":
        asked = problem(7, 3, seed, max_bytes=6200 + 0.6 * float(asked.static_bytes.sum()))
    best = exhaustive(asked)
    if best is None:
        with pytest.raises(StrettoError):
            partition(asked)
        return
    found = partition(asked)
    assert keeps_limits(asked, found)
    # Squares are what the search goes by, not the largest gap: near the best, in units of the mean rate.
    assert balance_of(asked, found).objective <= best + 0.75 * asked.units[0]


def test_the_largest_dynamic_memory_counts_once_per_sub_cluster() -> None:
    """Two models with much dynamic memory fit only together; balancing alone would keep them apart."""
    asked = PartitionProblem(
        rates=np.array([10.0, 10, 10, 10]),
        static_bytes=np.array([1.0, 1, 8, 8]),
        dynamic_bytes=np.array([10.0, 10, 1, 1]),
        subclusters=2,
        max_bytes=17,
        weight=1.0,
    )
    found = partition(asked)
    assert found[0] == found[1] != found[2] == found[3]


def test_a_swap_helps_where_no_single_move_does() -> None:
    """Both have two models, and the rates that differ must change places."""
    asked = PartitionProblem(np.array([5.0, 1, 4, 2]), np.ones(4), np.zeros(4), 2)
    found = partition(asked, Change(asked, (0, 1, 0, 1), 4.0))
    rates, sizes, _ = loads_of(asked, found)
    assert rates.tolist() == [6, 6]
    assert sizes.tolist() == [2, 2]


@pytest.mark.parametrize("max_moves", [0, 1, 2, 3, 50])
def test_the_cost_of_change_is_bounded_and_well_spent(max_moves: int) -> None:
    current = (0, 0, 0, 0, 1, 1, 2)
    asked = problem(7, 3, 11)
    change = Change(asked, current, 2.0 * max_moves)
    found = partition(asked, change)
    assert change.cost(found) <= 2 * max_moves
    assert sum(a != b for a, b in zip(found, current, strict=True)) <= max_moves
    best, before = exhaustive(asked, change), balance_of(asked, current).objective
    assert best is not None
    after = balance_of(asked, found).objective
    assert after <= before
    assert after - best <= 0.3 * (before - best) + 1e-9  # most of what can be had


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), max_cost=st.floats(0, 20))
def test_no_change_ever_costs_more_than_its_limit(seed: int, max_cost: float) -> None:
    draw = np.random.default_rng(seed)
    asked = problem(20, 4, seed)
    costs = draw.uniform(0.5, 5, (20, 4))
    change = Change(asked, tuple(draw.integers(0, 4, 20).tolist()), max_cost, costs)
    found = partition(asked, change)
    assert change.cost(found) <= max_cost * (1 + 1e-9)
    assert balance_of(asked, found).objective <= balance_of(asked, change.current).objective * 1.5


def test_a_new_model_pays_for_loading_only() -> None:
    asked, current = problem(7, 3, 5), (0, 0, 1, 1, 2, 2, -1)
    with pytest.raises(StrettoError, match=r"the limit on change allows a cost of 0\.5, 1 is needed"):
        partition(asked, Change(asked, current, 0.5))
    found = partition(asked, Change(asked, current, 1))
    assert tuple(found[:6]) == current[:6]


def test_what_a_change_costs() -> None:
    asked = PartitionProblem(np.ones(3), np.ones(3), np.ones(3), 2)
    change = Change(asked, (0, 0, -1), costs=np.array([[1.0, 2], [4, 8], [16, 32]]))
    assert change.cost((0, 0, 0)) == 16  # the third model is new
    assert change.cost((0, 1, 1)) == 4 + 8 + 32  # the second leaves one place for the other


def test_who_is_to_blame() -> None:
    rates, static, dynamic = np.array([10.0, 20, 30]), np.array([5, 1, 1]) * GB, np.array([4.1, 1, 1]) * GB
    names = ("resnet152", "b", "c")

    def blamed(change: Change | None = None, count: int = 2, **limits: float) -> str:
        asked = PartitionProblem(rates, static, dynamic, count, names=names, **limits)
        with pytest.raises(StrettoError) as caught:
            partition(asked, change)
        return str(caught.value)

    assert blamed(max_bytes=8 * GB).startswith("model resnet152 alone needs 9.1 GB, a worker has 8 GB")
    assert blamed(max_rate=29).startswith("model c alone gets 30 queries/s, a sub-cluster takes 29 queries/s")
    assert blamed(max_rate=30, count=1).startswith("rates sum to 60 queries/s, 1 sub-cluster takes 30 queries/s")
    assert blamed(max_bytes=9.2 * GB, count=1).startswith("no partition was found that keeps the limit on memory")
    assert "needs 11.1 GB of 9.2 GB" in blamed(max_bytes=9.2 * GB, count=1)
    crowded = PartitionProblem(np.ones(10), np.full(10, 2 * GB), np.full(10, GB), 2, max_bytes=8 * GB)
    with pytest.raises(StrettoError, match=r"the models take 20 GB, and the workers of 2 sub-clusters hold 14 GB"):
        partition(crowded)
    asked = PartitionProblem(np.full(20, 10.0), np.ones(20), np.ones(20), 2, max_rate=130.0)
    with pytest.raises(StrettoError, match="the limit on change allows 3 moves, 7 are needed"):
        partition(asked, Change(asked, (0,) * 20, 6.0))
    assert sum(partition(asked, Change(asked, (0,) * 20, 14.0))) == 7


@pytest.mark.parametrize(
    "wrong",
    [
        {"rates": np.array([])},
        {"rates": np.array([-1.0, 1])},
        {"static_bytes": np.array([1.0])},
        {"subclusters": 0},
        {"max_rate": 0.0},
        {"max_bytes": math.nan},
        {"names": ("a",)},
    ],
)
def test_senseless_problems_are_refused(wrong: dict[str, object]) -> None:
    right: dict[str, object] = {
        "rates": np.ones(2),
        "static_bytes": np.ones(2),
        "dynamic_bytes": np.ones(2),
        "subclusters": 2,
    }
    with pytest.raises(StrettoError):
        PartitionProblem(**{**right, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"current": (0, 2)},
        {"current": (0,)},
        {"current": (0, 1), "costs": np.ones((2, 3))},
        {"current": (0, 1), "max_cost": -1.0},
    ],
)
def test_senseless_changes_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(StrettoError):
        Change(PartitionProblem(np.ones(2), np.ones(2), np.ones(2), 2), **wrong)  # type: ignore[arg-type]


def test_from_a_view() -> None:
    def application(name: str, memory_bytes: int) -> Application:
        variant = Variant("v", 0.7, (LatencyProfile.linear(1, 4),), memory_bytes, 2 * memory_bytes)
        return Application(name, 16 * NS_PER_MS, (variant,))

    deployment = Deployment((application("a", 10), application("b", 20)), workers(4, memory_bytes=500))
    asked = partition_problem(deployment, (0, 1), 2, np.array([100.0, 300.0]), 1e6)
    np.testing.assert_array_equal(asked.rates, [100, 300])
    np.testing.assert_array_equal(asked.static_bytes, [10, 20])
    np.testing.assert_array_equal(asked.dynamic_bytes, [20, 40])
    assert (asked.max_bytes, asked.max_rate, asked.names) == (500, 1e6, ("a", "b"))


def test_limits_may_be_met_exactly_and_one_model_is_a_partition() -> None:
    """Sums of tenths are not exact in binary: what adds up to the limit is within it, and a little more is not."""
    sizes, rates = np.full(3, 0.1), np.full(3, 0.1)
    full = PartitionProblem(rates, sizes, np.array([0.0, 0.0, 0.2]), 1, max_rate=0.3, max_bytes=0.5)
    assert keeps_limits(full, (0, 0, 0)) and partition(full) == [0, 0, 0]
    for less in ({"max_rate": 0.2999}, {"max_bytes": 0.4999}):
        assert not keeps_limits(replace(full, **less), (0, 0, 0))
    alone = PartitionProblem(np.ones(1), np.ones(1), np.ones(1), 1)
    assert partition(alone) == [0]
    assert replace(alone, subclusters=MAX_SUB_CLUSTERS).subclusters == MAX_SUB_CLUSTERS
    with pytest.raises(StrettoError, match="1 to"):
        replace(alone, subclusters=MAX_SUB_CLUSTERS + 1)
