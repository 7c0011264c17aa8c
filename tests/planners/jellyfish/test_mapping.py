"""Algorithm 1: the paper's own example, and every small problem against all subsets of clients."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings

from stretto.core.errors import StrettoError
from stretto.planners.jellyfish.mapping import map_to
from stretto.planners.jellyfish.problem import Mapping, Problem, faults
from tests.planners.jellyfish.problems import fits, is_sound, problem, problems


def figure_5(**rest: float) -> Problem:
    """Batch 2 takes 1/30 s (60 FPS), batch 3 takes 37.5 ms (80 FPS); c1 to c3 have time for batch 3, c4 and c5 only for
    batch 2.
    """
    return problem([15, 15, 10, 20, 10], [80, 79, 78, 70, 69], [[[20.0, 1000 / 30, 37.5]]], [0], step=5.0, **rest)


def test_the_example_of_figure_5() -> None:
    mapping = map_to(figure_5(), [0])
    assert mapping.mapped == 4 and mapping.batches.tolist() == [2]
    assert figure_5().rate[mapping.worker_of == 0].sum() == 60


def test_without_queueing_more_is_allowed() -> None:
    mapping = map_to(figure_5(queueing=0.0), [0])
    assert mapping.mapped == 5 and mapping.batches.tolist() == [3]


def test_rates_are_rounded_up_to_the_step() -> None:
    """Two clients of 10.1 take three steps of five each; three of 30 FPS are not six steps."""
    crowd = problem([10.1, 10.1, 10.1], [100] * 3, [[[1000 / 30]]], [0], step=5.0)
    assert map_to(crowd, [0]).mapped == 2
    assert map_to(problem([10.0] * 3, [100] * 3, [[[1000 / 30]]], [0], step=5.0), [0]).mapped == 3


def test_the_largest_model_takes_clients_first() -> None:
    both = problem([10, 10], [200, 200], [[[20.0, 22.0], [30.0, 32.0]]], [0, 0])
    mapping = map_to(both, [0, 1])
    assert mapping.worker_of.tolist() == [1, 1] and mapping.batches.tolist() == [0, 2]


def test_a_faster_worker_of_the_same_model_goes_first() -> None:
    unequal = problem([20, 20], [200, 200], [[[40.0, 60.0]], [[10.0, 20.0]]], [0, 1])
    assert map_to(unequal, [0, 0]).worker_of.tolist() == [1, 1]


@settings(max_examples=150, deadline=None)
@given(problems(most_workers=1, most_clients=7))
def test_one_worker_gets_the_greatest_rate_there_is(small: Problem) -> None:
    best = max(
        small.rate[list(clients)].sum()
        for count in range(small.clients + 1)
        for clients in combinations(range(small.clients), count)
        if not clients or fits(small, 0, small.models - 1, list(clients))
    )
    for tight in (False, True):
        mapping = map_to(small, [small.models - 1], tight=tight)
        assert is_sound(small, mapping)
        assert small.rate[mapping.worker_of == 0].sum() == pytest.approx(best)


@settings(max_examples=150, deadline=None)
@given(problems(most_clients=12, most_workers=4, most_models=4))
def test_no_constraint_is_ever_broken(some: Problem) -> None:
    for tight in (False, True):
        models = [(worker * 7) % some.models for worker in range(some.workers)]
        assert is_sound(some, map_to(some, models, tight=tight))


def test_faults_are_told() -> None:
    example = figure_5()
    worker_of = np.zeros(5, np.int64)
    told = faults(example, Mapping(np.zeros(1, np.int64), np.array([3]), worker_of, 5, 0.0))
    assert sum("(5)" in fault for fault in told) == 2
    full = problem([50, 50], [200, 200], [[[20.0, 22.0]]], [0])
    told = faults(full, Mapping(np.zeros(1, np.int64), np.array([2]), np.zeros(2, np.int64), 2, 0.0))
    assert len(told) == 1 and "(6)" in told[0]


def test_models_out_of_order_are_refused() -> None:
    with pytest.raises(StrettoError, match="rising accuracy"):
        Problem(np.array([0.9, 0.1]), np.ones((1, 2, 2), np.int64), np.zeros(1, np.int64), np.ones(1), np.ones((1, 2)))
