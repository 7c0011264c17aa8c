"""Clients that the search left over: nobody is refused whom a worker has room for, however coarse the steps are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.planners.jellyfish.leftover import with_leftovers
from stretto.planners.jellyfish.planner import Jellyfish
from stretto.planners.jellyfish.problem import UNMAPPED, Mapping, Problem, faults
from stretto.planners.jellyfish.search import searched
from tests.planners.jellyfish.problems import is_sound, problem, problems
from tests.planners.jellyfish.test_planner import client, deployed, lane_of, seen


def has_room(of: Problem, mapping: Mapping, worker: int, who: int) -> bool:
    """Whether some model and batch of a worker would serve a client besides those that are there."""
    for model in range(of.models):
        for batch in range(1, of.latency_ns.shape[2]):
            models, batches, worker_of = mapping.models.copy(), mapping.batches.copy(), mapping.worker_of.copy()
            models[worker], batches[worker], worker_of[who] = model, batch, worker
            if not faults(of, replace(mapping, models=models, batches=batches, worker_of=worker_of)):
                return True
    return False


@settings(max_examples=150, deadline=None)
@given(problems(most_clients=8), st.sampled_from([1.0, 20.0, 80.0]))
def test_nobody_is_left_whom_a_worker_has_room_for(fine: Problem, step: float) -> None:
    coarse = replace(fine, step=step)
    found = searched(coarse)
    mapping = with_leftovers(coarse, found)
    assert is_sound(coarse, mapping) and mapping.mapped >= found.mapped
    assert ((mapping.worker_of != UNMAPPED) | (found.worker_of == UNMAPPED)).all(), "nobody loses a place"
    if mapping.mapped == found.mapped:
        assert mapping is found
    for who in np.flatnonzero(mapping.worker_of == UNMAPPED).tolist():
        assert not any(has_room(coarse, mapping, worker, who) for worker in range(coarse.workers))


def test_a_crowd_is_shared_out_and_served_by_the_best_model_that_bears_it() -> None:
    """400 of 2/s in steps of 100 are 40,000/s for the search; each of two workers brings 500 through on the best."""
    crowd = problem([2.0] * 400, [1000.0] * 400, [[[0.5], [1.0], [2.0]]], [0, 0], step=100.0)
    assert searched(crowd).mapped == 40
    mapping = with_leftovers(crowd, searched(crowd))
    assert is_sound(crowd, mapping) and mapping.mapped == 400
    assert mapping.models.tolist() == [2, 2]
    assert np.bincount(mapping.worker_of).tolist() == [200, 200]


@pytest.mark.parametrize("filling", [False, True])
def test_a_crowd_of_slow_clients_is_not_refused_while_workers_idle(filling: bool) -> None:
    """300 of 0.3/s each counted as a whole step, and all but 50 of them were refused."""
    deployment, planner = deployed(2), Jellyfish(filling=filling)
    view = seen(deployment, *(client(slot, 0.3, 40.0) for slot in range(300)))
    plan = planner(view)
    for again in (plan, planner(replace(view, plan=plan))):
        assert all(again.lanes[lane_of(again, slot)].capacity > 0 for slot in range(300))
