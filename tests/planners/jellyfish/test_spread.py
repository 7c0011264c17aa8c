"""Clients spread over the workers of a model: as accurate, within (5) and (6), and nobody idle while others share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.profile import NS_PER_MS
from stretto.planners.jellyfish.problem import Problem, faults, mapping_of
from stretto.planners.jellyfish.search import searched
from stretto.planners.jellyfish.spread import spread


def problem(rates: list[float], budgets_ms: list[float], workers: int) -> Problem:
    latency_ms = np.array([[0, 10, 14, 18, 22], [0, 20, 28, 36, 44], [0, 40, 56, 72, 88]], np.float64)
    budget_ns = np.tile(np.array(budgets_ms)[:, None] * NS_PER_MS, (1, 3)).astype(np.int64)
    return Problem(
        accuracy=np.array([0.5, 0.7, 0.9]),
        latency_ns=(latency_ms * NS_PER_MS).astype(np.int64)[None],
        kind_of=np.zeros(workers, np.int64),
        rate=np.array(rates),
        budget_ns=budget_ns,
        step=1.0,
    )


def test_an_idle_worker_takes_half() -> None:
    case = problem([10.0] * 2, [200.0] * 2, 2)
    evened = spread(case, searched(case))
    assert sorted(evened.worker_of.tolist()) == [0, 1]
    assert evened.models.tolist() == [2, 2]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.floats(1, 30), st.floats(10, 250)), min_size=1, max_size=10), st.integers(1, 5))
def test_nothing_is_lost(clients: list[tuple[float, float]], workers: int) -> None:
    case = problem([rate for rate, _ in clients], [budget for _, budget in clients], workers)
    before = searched(case)
    after = spread(case, before)
    assert after.mapped == before.mapped
    assert np.isclose(after.value, before.value)
    assert faults(case, after) == []
    counts = np.bincount(after.worker_of[after.worker_of >= 0], minlength=workers)
    if after.mapped >= workers and len(set(after.models.tolist())) == 1:
        assert counts.min() > 0


def test_an_idle_worker_takes_over_no_model_whose_workers_have_one_client_each() -> None:
    """The lone client of the large model brings more load; but only of the two of the small one can one be taken."""
    case = problem([20.0, 15.0, 15.0], [200.0] * 3, 3)
    models, worker_of = np.array([2, 0, 0]), np.array([0, 1, 1])
    evened = spread(case, mapping_of(case, models, np.array([4, 4, 0]), worker_of))
    assert evened.models.tolist() == [2, 0, 0]
    assert sorted(evened.worker_of.tolist()) == [0, 1, 2]


def test_idle_workers_of_a_kind_that_serves_nobody_hold_a_model_all_the_same() -> None:
    case = problem([10.0], [200.0], 2)
    two_kinds = replace(case, latency_ns=np.repeat(case.latency_ns, 2, axis=0), kind_of=np.array([0, 1]))
    evened = spread(two_kinds, mapping_of(two_kinds, np.array([2, 1]), np.array([1, 0]), np.array([0])))
    assert evened.worker_of.tolist() == [0] and evened.models.tolist() == [2, 0]


def test_an_idle_worker_takes_the_model_whose_workers_have_most_to_do() -> None:
    case = problem([30.0, 30.0, 2.0, 2.0], [200.0] * 4, 3)
    for busy in (0, 1):
        models, worker_of = np.array([busy, 1 - busy, 0]), np.array([0, 0, 1, 1])
        evened = spread(case, mapping_of(case, models, np.array([4, 4, 0]), worker_of))
        assert evened.models.tolist() == [busy, 1 - busy, busy]
    alone = problem([10.0, 10.0], [200.0] * 2, 3)
    evened = spread(alone, mapping_of(alone, np.array([1, 2, 0]), np.array([1, 1, 0]), np.array([0, 1])))
    assert evened.models.tolist() == [1, 2, 2], "nobody has clients to give: it waits with the largest"
