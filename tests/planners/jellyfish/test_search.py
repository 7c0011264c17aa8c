"""Algorithm 2, the search behind it and the exact program, each against the others and against exhaustive search."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

from stretto.core.profile import NS_PER_MS
from stretto.planners.jellyfish.exact import optimum
from stretto.planners.jellyfish.mapping import map_to
from stretto.planners.jellyfish.problem import Problem, most_value
from stretto.planners.jellyfish.search import searched
from stretto.planners.jellyfish.selection import Cooling, annealed
from tests.planners.jellyfish.problems import exhaustive, is_sound, problem, problems


@settings(max_examples=40, deadline=None)
@given(problems(most_clients=5))
def test_the_program_finds_what_exhaustive_search_does(small: Problem) -> None:
    best, solved = exhaustive(small), optimum(small)
    assert is_sound(small, solved)
    assert (solved.mapped, solved.value) == (best.mapped, pytest.approx(best.value, abs=1e-6))


@settings(max_examples=60, deadline=None)
@given(problems(most_clients=14, most_workers=4, most_models=5))
def test_the_search_is_never_worse_than_annealing_and_never_better_than_the_optimum(some: Problem) -> None:
    by_annealing, by_search = annealed(some, seed=3), searched(some, seed=3)
    assert is_sound(some, by_annealing) and is_sound(some, by_search)
    assert not by_annealing.is_better_than(by_search)
    best = optimum(some, at_least=by_search)
    assert is_sound(some, best)
    assert by_search.mapped <= best.mapped
    if by_search.mapped == best.mapped:
        assert by_search.value <= best.value + 1e-5


@settings(max_examples=60, deadline=None)
@given(problems(most_clients=5, most_workers=3))
def test_nothing_is_worth_more_than_the_bound(small: Problem) -> None:
    best = exhaustive(small)
    assert best.mapped < small.clients or best.value <= most_value(small) * (1 + 1e-9)


def test_the_bound_is_near_where_capacity_decides() -> None:
    """Four clients of 10: both workers bring 25/s through with the small model, 15 with the large one, so that half of
    the queries could be answered by it, of accuracies 0.3 and 0.9.
    """
    even = problem([10] * 4, [1000] * 4, [[[1000 / 25], [1000 / 15]]], [0, 0])
    part = (2 / 40 - 1 / 25) / (1 / 15 - 1 / 25)
    assert most_value(even) == pytest.approx(40 * (0.3 + 0.6 * part), rel=0.02)
    assert most_value(even) >= 40 * (0.3 + 0.6 * part) - 1e-9
    late = problem([10] * 4, [50] * 4, [[[1000 / 25], [1000 / 15]]], [0, 0], queueing=0.0)
    assert most_value(late) == pytest.approx(40 * 0.3, rel=0.02)


def test_two_equal_workers_are_told_apart_only_where_they_must_be() -> None:
    """Three clients of 20 on two workers of 30: as one pool of 60 they would fit, whole they do not."""
    pooled = problem([20, 20, 20], [200] * 3, [[[1000 / 30]]], [0, 0], step=5.0)
    assert optimum(pooled).mapped == searched(pooled).mapped == 2


def test_share_mapped_comes_first() -> None:
    """One client of 25 on the only worker would be worth more than two of 10, but two are more."""
    crowd = problem([25, 10, 10], [200] * 3, [[[40.0]]], [0], step=5.0)
    for found in (optimum(crowd), searched(crowd)):
        assert found.mapped == 2 and found.worker_of.tolist() == [-1, 0, 0]


def test_unequal_workers_get_models_that_suit_them() -> None:
    """The quick worker runs the large model within the budget; the slow one only the small."""
    unequal = problem([10, 10], [70, 70], [[[10.0], [30.0]], [[30.0], [90.0]]], [0, 1])
    for found in (optimum(unequal), searched(unequal), annealed(unequal)):
        assert found.mapped == 2
        assert found.models[found.worker_of].tolist() in ([1, 1], [1, 0], [0, 1])
    assert searched(unequal).value == pytest.approx(optimum(unequal).value)


def test_annealing_starts_from_the_models_before_and_keeps_to_its_seed() -> None:
    some = problem([10, 15, 25, 10], [150, 100, 90, 60], [[[10.0, 13.0], [20.0, 26.0], [30.0, 40.0]]], [0, 0])
    assert np.array_equal(annealed(some, seed=5).worker_of, annealed(some, seed=5).worker_of)
    frozen = Cooling(first=1e-9, last=1.0)  # no step at all
    assert annealed(some, np.array([2, 1]), cooling=frozen).models.tolist() == [2, 1]
    assert annealed(some, cooling=frozen).models.tolist() == [0, 0]


def test_degrading_finds_room_for_all_from_the_largest_models() -> None:
    some = problem([20, 20, 20], [80] * 3, [[[10.0, 12.0], [20.0, 30.0], [38.0, 60.0]]], [0])
    found = annealed(some, np.array([2]))
    assert found.mapped == 3 and found.models[0] < 2


def test_cooling_is_quicker_beyond_the_published_scale() -> None:
    assert Cooling().within(1000) == Cooling()
    quick = Cooling().within(10)
    assert quick.first * quick.factor**10 == pytest.approx(quick.last)


def test_nobody_asks() -> None:
    empty = problem([], [], [[[10.0]]], [0])
    assert annealed(empty).mapped == searched(empty).mapped == optimum(empty).mapped == 0


def published_walk(problem: Problem, start: list[int], seed: int) -> tuple[list[int], bool]:
    """Algorithm 2 as a plain loop over the mapping of algorithm 1; and whether UPGRADE ever met a state that maps fewer
    clients, which it must not move to.
    """
    state = seed
    mask = 2**64 - 1

    def random() -> float:
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return ((z ^ (z >> 31)) >> 11) / 2**53

    def mapped_by(models: list[int]) -> tuple[int, float]:
        found = map_to(problem, np.array(models))
        return found.mapped, found.value

    best, best_worth, met_fewer = list(start), mapped_by(start), False
    for is_upgrade in (False, True):
        models, worth, temperature = list(best), best_worth, 0.0125
        while temperature > 0.0005 and (is_upgrade or worth[0] < problem.clients):
            steps = [int(random() * (3 if is_upgrade else 2)) - 1 for _ in models]
            other = [min(max(model + step, 0), problem.models - 1) for model, step in zip(models, steps, strict=True)]
            new = mapped_by(other)
            better = new[0] > best_worth[0] or (new[0] == best_worth[0] and new[1] > best_worth[1] + 1e-9)
            if better:
                best, best_worth = list(other), new
            accepts = True
            if is_upgrade:
                gain = (new[1] - worth[1]) / problem.rate.sum()
                fewer = new[0] < best_worth[0]
                met_fewer |= fewer
            else:
                gain, fewer = (new[0] - worth[0]) / problem.clients, False
            if gain <= 0 or fewer:
                accepts = (0.0 if fewer else math.exp(gain / temperature)) > random()
            if accepts:
                models, worth = other, new
            temperature *= 0.99
    return best, met_fewer


def test_annealing_is_the_published_walk_and_never_gives_up_a_client_for_accuracy() -> None:
    met = 0
    for seed in range(4):
        random = np.random.default_rng(seed)
        most_ms = random.integers(45, 120, (30, 1))
        latency_ms = np.array([[[0, *((8 + 2 * model) + (3 + model) * b for b in range(4))] for model in range(10)]])
        some = Problem(
            accuracy=0.3 + 0.03 * np.arange(10),
            latency_ns=latency_ms * NS_PER_MS,
            kind_of=np.zeros(4, np.int64),
            rate=random.choice([5.0, 10.0], 30),
            budget_ns=(most_ms - 2 * np.arange(10)) * NS_PER_MS,
        )
        expected, met_fewer = published_walk(some, [0, 0, 0, 0], seed + 1)
        assert annealed(some, seed=seed + 1).models.tolist() == expected
        met += met_fewer
    assert met == 4
