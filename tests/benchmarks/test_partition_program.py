"""Partitioning: the limits hold, the optimum is that of exhaustive search, and random assignments are worse."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from benchmarks.partition_program import Change, Partition, evaluate, keeps_limits, random_partition, solve_partition
from stretto.core.errors import StrettoError
from stretto.planners.partition import PartitionProblem


def problem(
    models: int,
    subclusters: int,
    seed: int,
    max_rate: float = math.inf,
    max_bytes: float = math.inf,
    weight: float | None = None,
) -> PartitionProblem:
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


def exhaustive(asked: PartitionProblem, change: Change | None = None) -> Partition | None:
    every = itertools.product(range(asked.subclusters), repeat=len(asked.rates))
    kept = (evaluate(asked, chosen, change) for chosen in every if keeps_limits(asked, chosen, change))
    return min(kept, key=lambda partition: partition.objective, default=None)


def test_figures_of_an_assignment() -> None:
    asked = PartitionProblem(
        rates=np.array([10.0, 20, 30]),
        static_bytes=np.array([4.0, 2, 2]),
        dynamic_bytes=np.array([5.0, 9, 1]),
        subclusters=2,
        weight=3.0,
    )
    change = Change(asked, (0, 0, -1), costs=np.array([[1.0, 2], [4, 8], [16, 32]]))
    found = evaluate(asked, (0, 1, 1), change)
    assert (found.rate_gap, found.bytes_gap, found.objective) == (20, 0, 20)
    assert found.cost == 4 + 8 + 32  # the second model leaves one place for the other, the third is new
    assert found.rate_imbalance == pytest.approx(40 / 30)
    assert found.bytes_imbalance == 0


def test_each_limit_is_a_limit() -> None:
    rates, static, dynamic = np.array([10.0, 20]), np.array([4.0, 2]), np.array([5.0, 9])

    def together(
        current: tuple[int, ...] | None = None,
        max_rate: float = math.inf,
        max_bytes: float = math.inf,
        max_cost: float = math.inf,
    ) -> bool:
        asked = PartitionProblem(rates, static, dynamic, 2, max_rate, max_bytes)
        return keeps_limits(asked, (0, 0), None if current is None else Change(asked, current, max_cost))

    assert together(max_rate=30, max_bytes=15)
    assert not together(max_rate=29.9)
    assert not together(max_bytes=14.9)  # 4 + 2 + max(5, 9)
    assert together((0, 1), max_cost=2)
    assert not together((0, 1), max_cost=1.9)
    assert together(max_cost=0)  # the first start changes nothing


def least_peaks(asked: PartitionProblem) -> tuple[float, float]:
    """The lowest highest rate, and the lowest highest memory, that any assignment has."""
    peaks = []
    for chosen in itertools.product(range(asked.subclusters), repeat=len(asked.rates)):
        homes = np.array(chosen)
        groups = [homes == cluster for cluster in range(asked.subclusters)]
        rate = max(asked.rates[group].sum() for group in groups)
        memory = max(asked.static_bytes[g].sum() + asked.dynamic_bytes[g].max(initial=0) for g in groups)
        peaks.append((rate, memory))
    rates, memories = zip(*peaks, strict=True)
    return float(min(rates)), float(min(memories))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("limit", ["none", "rate", "memory"])
def test_the_optimum_is_that_of_exhaustive_search(seed: int, limit: str) -> None:
    asked = problem(6, 3, seed)
    peak_rate, peak_bytes = least_peaks(asked)
    if limit == "rate":  # memory weighs so much that only the limit keeps rates together
        asked = problem(6, 3, seed, max_rate=1.05 * peak_rate, weight=100.0)
    if limit == "memory":
        asked = problem(6, 3, seed, max_bytes=1.02 * peak_bytes, weight=0.0)
    best, found = exhaustive(asked), solve_partition(asked)
    assert best is not None
    assert keeps_limits(asked, found.assignment)
    assert found.is_optimal
    assert found.objective == pytest.approx(best.objective, rel=1e-3)


def test_limits_that_no_partition_keeps_are_named() -> None:
    peak_rate, peak_bytes = least_peaks(problem(6, 3, 0))
    for asked in (problem(6, 3, 0, max_rate=0.99 * peak_rate), problem(6, 3, 0, max_bytes=0.99 * peak_bytes)):
        assert exhaustive(asked) is None
        with pytest.raises(StrettoError, match="no partition keeps within the limits on rate, memory"):
            solve_partition(asked)


def test_the_largest_dynamic_memory_counts_once_per_subcluster() -> None:
    """Two models with much dynamic memory fit only together; balancing alone would keep them apart."""
    asked = PartitionProblem(
        rates=np.array([10.0, 10, 10, 10]),
        static_bytes=np.array([1.0, 1, 8, 8]),
        dynamic_bytes=np.array([10.0, 10, 1, 1]),
        subclusters=2,
        max_bytes=17,
        weight=1.0,
    )
    found = solve_partition(asked)
    assert found.assignment[0] == found.assignment[1] != found.assignment[2] == found.assignment[3]
    loose = PartitionProblem(asked.rates, asked.static_bytes, asked.dynamic_bytes, 2, max_bytes=100, weight=1.0)
    assert solve_partition(loose).objective == pytest.approx(0)


@pytest.mark.parametrize("max_cost", [0, 2, 4, 6, 100])
def test_the_cost_of_change_is_bounded_and_well_spent(max_cost: float) -> None:
    current = (0, 0, 0, 0, 1, 1, 2)
    asked = problem(7, 3, 11)
    change = Change(asked, current, max_cost)
    best, found = exhaustive(asked, change), solve_partition(asked, change)
    assert best is not None
    assert found.cost <= max_cost
    assert sum(a != b for a, b in zip(found.assignment, current, strict=True)) <= max_cost / 2
    assert found.objective == pytest.approx(best.objective, rel=1e-3)


def test_a_new_model_pays_for_loading_only() -> None:
    asked, current = problem(7, 3, 5), (0, 0, 1, 1, 2, 2, -1)
    with pytest.raises(StrettoError, match="no partition"):
        solve_partition(asked, Change(asked, current, 0.5))
    found = solve_partition(asked, Change(asked, current, 1))
    assert found.assignment[:6] == current[:6]
    assert found.cost == 1


def test_costs_differ_by_model_and_subcluster() -> None:
    cost = np.random.default_rng(3).uniform(0.5, 5, (6, 2))
    asked = problem(6, 2, 3)
    change = Change(asked, (0, 0, 0, 0, 1, 1), 7, cost)
    best, found = exhaustive(asked, change), solve_partition(asked, change)
    assert best is not None
    assert found.cost <= 7
    assert found.objective == pytest.approx(best.objective, rel=1e-3)


def test_better_than_the_random_baseline() -> None:
    asked = problem(40, 4, 1, max_bytes=6200 + 3500)
    drawn, found = random_partition(asked, 2000, seed=1), solve_partition(asked, time_limit_s=1.0)
    assert drawn is not None
    assert keeps_limits(asked, drawn.assignment)
    assert keeps_limits(asked, found.assignment)
    assert found.objective < drawn.objective / 4
    assert random_partition(asked, 50, seed=2) == random_partition(asked, 50, np.random.default_rng(2))
    assert random_partition(problem(4, 2, 1, max_rate=1), 10, seed=1) is None


def test_without_time_for_the_solver_the_greedy_assignment_stands() -> None:
    asked = problem(400, 20, 2, max_bytes=6200 + 6000)
    found = solve_partition(asked, time_limit_s=1e-3)
    assert keeps_limits(asked, found.assignment)
    assert not found.is_optimal
    assert found.rate_imbalance < 0.05
    assert found.bytes_imbalance < 0.05


@pytest.mark.parametrize(
    "wrong", [{"current": (0, 2)}, {"current": (0,)}, {"current": (0, 1), "costs": np.ones((2, 3))}]
)
def test_senseless_changes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(StrettoError):
        Change(PartitionProblem(np.ones(2), np.ones(2), np.ones(2), 2), **wrong)
