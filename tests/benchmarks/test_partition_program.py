"""The program that partitions are compared with finds the optimum; the random solver keeps limits."""

import itertools
import math

import numpy as np
import pytest

from benchmarks.partition_program import random_partition, solve_partition
from stretto.planners.partition.problem import Change, PartitionProblem, balance_of, keeps_limits
from stretto.planners.partition.search import partition


def problem(models: int, subclusters: int, seed: int, **limits: float) -> PartitionProblem:
    draw = np.random.default_rng(seed)
    return PartitionProblem(
        rates=draw.exponential(100, models),
        static_bytes=draw.choice([99, 88, 230, 84, 170, 822], models).astype(np.float64),
        dynamic_bytes=draw.choice([2172, 1519, 3386, 2653, 2798, 6200], models).astype(np.float64),
        subclusters=subclusters,
        **limits,
    )


def exhaustive(asked: PartitionProblem, change: Change | None = None) -> float:
    every = itertools.product(range(asked.subclusters), repeat=len(asked.rates))
    return min(balance_of(asked, chosen).objective for chosen in every if keeps_limits(asked, chosen, change))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limit", ["none", "rate", "memory", "change"])
def test_the_optimum_is_that_of_exhaustive_search(seed: int, limit: str) -> None:
    asked, change = problem(6, 3, seed), None
    if limit == "rate":  # memory weighs so much that only the limit keeps rates together
        asked = problem(6, 3, seed, max_rate=0.6 * float(asked.rates.sum()), weight=100.0)
    if limit == "memory":
        asked = problem(6, 3, seed, max_bytes=6200 + 0.5 * float(asked.static_bytes.sum()), weight=0.0)
    if limit == "change":
        costs = np.random.default_rng(3).uniform(0.5, 5, (6, 3))
        change = Change(asked, (0, 0, 0, 1, 1, -1), 9.0, costs)
    found, is_optimal = solve_partition(asked, change)
    assert found is not None and is_optimal
    assert keeps_limits(asked, found, change)
    assert balance_of(asked, found).objective == pytest.approx(exhaustive(asked, change), rel=1e-3)


def test_what_cannot_be_has_no_solution() -> None:
    assert solve_partition(problem(6, 3, 0, max_rate=1.0)) == (None, False)
    assert random_partition(problem(6, 3, 0, max_rate=1.0), 1, tries=100) == (None, 100)


def test_ours_is_far_better_than_the_random_solver() -> None:
    asked = problem(40, 4, 1, max_bytes=6200 + 3500.0)
    drawn, tries = random_partition(asked, 1, tries=20_000)
    assert drawn is not None and tries == 20_000
    assert keeps_limits(asked, drawn)
    assert balance_of(asked, partition(asked)).objective < balance_of(asked, drawn).objective / 4
    assert random_partition(asked, 2, tries=50) == random_partition(asked, 2, tries=50)
    assert not math.isinf(balance_of(asked, drawn).objective)
