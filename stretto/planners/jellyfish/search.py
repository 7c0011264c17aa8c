"""A better search than annealing alone, compiled: two workers at a time are given the best models and clients.

Whatever two workers serve, with all clients that have no place, is mapped anew for every pair of models; the best pair
stays, and this goes on until no pair of workers gains. In between, single clients move or change places, and a worker
takes the best model that all its clients allow. It starts from the annealed state and never takes a worse state for a
better one, so that it is at least as good as annealing on every instance. Where there are no more than two workers,
every pair of models is all the states that annealing could visit, so it starts from the models before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.planners.jellyfish.mapping import LIKE, arrays_of, map_clients, room_for
from stretto.planners.jellyfish.polish import polish
from stretto.planners.jellyfish.problem import Mapping, Problem, mapping_of
from stretto.planners.jellyfish.selection import Cooling, annealed, is_better
from stretto.planners.jellyfish.split import split_pair

# Clients mapped in all tries. A limit in seconds would give different plans on different machines.
LEAST_EFFORT, EFFORT_EACH, MOST_EFFORT = 60_000, 180, 500_000  # the second for each pair of a worker and a client
NONE = Cooling(first=0.0005)  # no annealing: clients mapped to the models that there are


@compiled
def pool_of(problem: Any, pair: Any, models: Any, worker_of: Any, pool: Any) -> Any:
    """Marks the clients of two workers and those without a place; returns how many there are, how many of them are
    mapped, their rate, and what they are worth now.
    """
    accuracy, rate = problem[0], problem[2]
    pooled, mapped, total, value = 0, 0, 0.0, 0.0
    for client in range(len(rate)):
        worker = worker_of[client]
        pool[client] = worker == pair[0] or worker == pair[1] or worker < 0
        if pool[client]:
            pooled += 1
            total += rate[client]
            if worker >= 0:
                mapped += 1
                value += accuracy[models[worker]] * rate[client]
    return pooled, mapped, total, value


@compiled
def most_of_pair(problem: Any, pair: Any, first: int, second: int, pool: Any) -> float:
    """No mapping of the pool to these models is worth more: everybody on the better one that its budget allows. Below
    zero where somebody is allowed on neither.
    """
    accuracy, kind_of, rate, largest = problem[0], problem[1], problem[2], problem[4]
    better, other = (pair[0], pair[1]) if first >= second else (pair[1], pair[0])
    high, low = max(first, second), min(first, second)
    value = 0.0
    for client in range(len(rate)):
        if not pool[client]:
            continue
        if largest[kind_of[better], high, client] > 0:
            value += accuracy[high] * rate[client]
        elif largest[kind_of[other], low, client] > 0:
            value += accuracy[low] * rate[client]
        else:
            return -1.0
    return value


@compiled
def best_pair(
    problem: Any, by_count: Any, pair: Any, models: Any, worker_of: Any, batches: Any, pool: Any, room: Any, work: Any
) -> Any:
    """The best models and clients for two workers, in place; returns whether they are better than before, and the
    effort. Each pair of models is mapped by rate, with either choice among equals, and by count where some are left.
    """
    accuracy, kind_of, rate = problem[0], problem[1], problem[2]
    first_worker, second_worker = pair[0], pair[1]
    other_worker_of, other_batches, other_models, is_free = room
    pooled, mapped, _, value = pool_of(problem, pair, models, worker_of, pool)
    crew = pair if first_worker != second_worker else pair[:1]  # a worker may be all there is
    best_first, best_second, best_way = models[first_worker], models[second_worker], -1
    is_alike = kind_of[first_worker] == kind_of[second_worker]
    effort = 0
    for first in range(len(accuracy) - 1, -1, -1):
        for second in range((first if is_alike else len(accuracy) - 1), -1, -1):
            if mapped == pooled and most_of_pair(problem, pair, first, second, pool) <= value + LIKE / 2:
                continue
            other_models[first_worker], other_models[second_worker] = first, second
            for way in range(3):
                if way == 2 and mapped == pooled:
                    continue
                is_free[:] = pool
                new_mapped, new_value = map_clients(
                    problem,
                    crew,
                    other_models,
                    rate if way < 2 else by_count,
                    way > 0,
                    is_free,
                    other_worker_of,
                    other_batches,
                    work,
                )
                effort += pooled
                if is_better(new_mapped, new_value, mapped, value):
                    mapped, value = new_mapped, new_value
                    best_first, best_second, best_way = first, second, way
    if best_way >= 0:
        models[first_worker], models[second_worker] = best_first, best_second
        is_free[:] = pool
        worth = rate if best_way < 2 else by_count
        map_clients(problem, crew, models, worth, best_way > 0, is_free, worker_of, batches, work)
    return best_way >= 0, effort


@compiled
def improve(problem: Any, models: Any, worker_of: Any, batches: Any, most_effort: int, room: Any, work: Any) -> int:
    """All pairs of workers in turn, until none gains or the effort is spent; returns what was spent."""
    workers, rate = len(models), problem[2]
    by_count = rate + rate.sum()  # one client more is worth more than any rate
    pool = np.zeros(len(rate), np.bool_)
    pair = np.zeros(2, np.int64)
    effort = 0
    pairs = max(workers * (workers - 1) // 2, 1)
    for is_exact in (False, True):
        quiet = 0  # pairs in a row without a gain
        polish(problem, models, worker_of, batches)
        while quiet < pairs and effort < most_effort:
            for first_worker in range(workers):
                for second_worker in range(first_worker + 1 if workers > 1 else first_worker, workers):
                    if quiet >= pairs or effort >= most_effort:
                        break
                    pair[0], pair[1] = first_worker, second_worker
                    if is_exact:
                        pooled, mapped, total, value = pool_of(problem, pair, models, worker_of, pool)
                        has_gained, spent = False, 1
                        if mapped == pooled and first_worker != second_worker:
                            has_gained, spent = split_pair(problem, pair, models, worker_of, pool, total, value, work)
                    else:
                        has_gained, spent = best_pair(
                            problem, by_count, pair, models, worker_of, batches, pool, room, work
                        )
                    effort += spent
                    quiet = 0 if has_gained else quiet + 1
            if polish(problem, models, worker_of, batches):
                quiet = 0
    return effort


def searched(
    problem: Problem,
    previous: NDArray[np.int64] | None = None,
    *,
    seed: int = 1,
    cooling: Cooling | None = None,
    most_effort: int | None = None,
) -> Mapping:
    """The best that was found from the annealed state, or from the one before where annealing cannot find a better."""
    start = annealed(problem, previous, seed=seed, cooling=NONE if problem.workers <= 2 else cooling)
    if problem.clients == 0:
        return start
    models, worker_of, batches = start.models.copy(), start.worker_of.copy(), start.batches.copy()
    room = (
        np.zeros_like(worker_of),
        np.zeros_like(batches),
        np.zeros_like(models),
        np.zeros(problem.clients, np.bool_),
    )
    limit = min(max(LEAST_EFFORT, EFFORT_EACH * problem.workers * problem.clients), MOST_EFFORT)
    if most_effort is not None:
        limit = most_effort
    improve(arrays_of(problem), models, worker_of, batches, limit, room, room_for(problem))
    return mapping_of(problem, models, batches, worker_of)
