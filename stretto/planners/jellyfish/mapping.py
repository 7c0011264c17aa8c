"""Clients to models (Jellyfish algorithm 1), compiled: the largest model first takes the most rate that it can serve.

For one model this is a knapsack whose capacity depends on who is in it: the client with the least time left bounds the
batch size, and that bounds the throughput. Clients come in the order of falling budgets, one row of the table each, and
a row reaches as far as the largest batch that its client allows brings through.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.compiled import compiled
from stretto.planners.jellyfish.problem import Mapping, Problem

LIKE = 1e-9  # rates that differ by less are equal
ROOM = 16  # columns that are always there


@compiled
def best_clients(
    order: Any, largest: Any, capacity: Any, steps: Any, worth: Any, is_free: Any, tight: bool, sums: Any, takes: Any,
    chosen: Any,
) -> int:  # fmt: skip
    """FindOptimalClients: the free clients worth most together that one worker can serve, into `chosen`; returns how
    many. `order` are all clients by falling budget, `largest` the batch that each allows. Published is worth by rate.

    Among equal sums the paper takes any. `tight` takes those with the least time left, which others find hard to place.
    """
    rows = 0
    best_row, best_column, best = -1, 0, 0.0
    width = 0
    for place in range(len(order)):
        client = order[place]
        if not is_free[client]:
            continue
        batch = largest[client]
        if batch == 0:
            break  # those behind have less time still
        reach = capacity[batch]
        if rows == 0:
            width = reach
            for column in range(width + 1):
                sums[column] = 0.0
        weight, value = steps[client], worth[client]
        for column in range(min(weight, reach + 1)):
            takes[rows, column] = False
        for column in range(reach, weight - 1, -1):
            with_it = value + sums[column - weight]
            gain = with_it - sums[column]
            taken = gain > LIKE or (tight and gain > -LIKE)
            takes[rows, column] = taken
            if taken:
                sums[column] = with_it
                if with_it > best + LIKE or (tight and with_it > best - LIKE):
                    best_row, best_column, best = rows, column, with_it
        chosen[rows] = client  # as the name of the row, until it is traced back
        rows += 1
    count = 0
    column = best_column
    for row in range(best_row, -1, -1):
        if takes[row, column]:
            client = chosen[row]
            column -= steps[client]
            count += 1  # gathered from the far end, as the first part still names the rows
            chosen[len(chosen) - count] = client
    for place in range(count):
        chosen[place] = chosen[len(chosen) - count + place]
    return count


@compiled
def by_accuracy(crew: Any, models: Any, kind_of: Any, capacity: Any, ranking: Any) -> None:
    """The workers of `crew` by falling accuracy of their models, of equal ones those that bring most through first."""
    for number in range(len(crew)):
        worker = crew[number]
        place = number
        while place > 0:
            other = ranking[place - 1]
            ahead = models[worker] > models[other]
            if models[worker] == models[other]:
                ahead = capacity[kind_of[worker], models[worker], -1] > capacity[kind_of[other], models[other], -1]
            if not ahead:
                break
            ranking[place] = other
            place -= 1
        ranking[place] = worker


@compiled
def map_clients(
    problem: Any, crew: Any, models: Any, worth: Any, tight: bool, is_free: Any, worker_of: Any, batches: Any, work: Any
) -> Any:
    """MapClients: a worker of `crew` for every client in `is_free`, into `worker_of` (those left over get -1), and each
    worker's batch into `batches`; returns how many are mapped and their part of equation (1). `is_free` is used up.
    """
    accuracy, kind_of, rate, steps, largest, capacity, order = problem
    ranking, sums, takes, chosen = work
    by_accuracy(crew, models, kind_of, capacity, ranking)
    left = 0
    for client in range(len(rate)):
        if is_free[client]:
            worker_of[client] = -1
            left += 1
    mapped, value = 0, 0.0
    for place in range(len(crew)):
        worker = ranking[place]
        batches[worker] = 0
        if left == 0:
            continue
        kind, model = kind_of[worker], models[worker]
        count = best_clients(
            order[model], largest[kind, model], capacity[kind, model], steps, worth, is_free, tight, sums, takes, chosen
        )
        batch = 0
        for number in range(count):
            client = chosen[number]
            is_free[client] = False
            worker_of[client] = worker
            value += accuracy[model] * rate[client]
            if batch == 0 or largest[kind, model, client] < batch:
                batch = largest[kind, model, client]
        batches[worker] = batch
        mapped += count
        left -= count
    return mapped, value


def arrays_of(problem: Problem) -> tuple[Any, ...]:
    """As compiled code takes a problem."""
    return (
        problem.accuracy,
        problem.kind_of,
        problem.rate,
        problem.steps,
        problem.largest,
        problem.capacity,
        problem.order,
    )


def room_for(problem: Problem) -> tuple[Any, ...]:
    """Memory that `map_clients` works in."""
    widest = max(int(problem.capacity.max()), ROOM) + 1
    return (
        np.zeros(problem.workers, np.int64),
        np.zeros(widest, np.float64),
        np.zeros((max(problem.clients, 1), widest), np.bool_),
        np.zeros(2 * max(problem.clients, 1), np.int64),
    )


def map_to(problem: Problem, models: Any, *, tight: bool = False) -> Mapping:
    """Algorithm 1 for given models by worker."""
    chosen = np.asarray(models, np.int64).copy()
    worker_of = np.full(problem.clients, -1, np.int64)
    batches = np.zeros(problem.workers, np.int64)
    is_free = np.ones(problem.clients, np.bool_)
    crew = np.arange(problem.workers)
    mapped, value = map_clients(
        arrays_of(problem), crew, chosen, problem.rate, tight, is_free, worker_of, batches, room_for(problem)
    )
    return Mapping(chosen, batches, worker_of, int(mapped), float(value))
