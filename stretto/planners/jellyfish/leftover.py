"""Clients that the search left over, placed by their true rates; compiled.

The search counts rates in whole steps, rounded up, and steps are coarse where there are many clients: a crowd of slow
ones counts as many times what it asks. So whoever has no place is looked at again with rates as they are. Each goes to
the worker where (1) gains most, on the most accurate model that serves it and all who are there within (5) and (6).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.compiled import compiled
from stretto.planners.jellyfish.mapping import LIKE
from stretto.planners.jellyfish.problem import UNMAPPED, Mapping, Problem, mapping_of

NONE = -1  # of the models
ANY = 2**30  # as a batch: there is no client to bound it


@compiled
def best_model(throughput: Any, bounds: Any, load: float) -> int:
    """The most accurate model that brings `load` through in batches within `bounds`, by model."""
    for model in range(len(bounds) - 1, -1, -1):
        batch = min(bounds[model], throughput.shape[1] - 1)
        if batch > 0 and load <= throughput[model, batch] * (1.0 + LIKE):
            return model
    return NONE


@compiled
def place(accuracy: Any, kind_of: Any, rate: Any, largest: Any, throughput: Any, left: Any, worker_of: Any) -> Any:
    """A worker for each client in `left` that any has room for, into `worker_of`; returns each worker's model and
    batch, NONE and 0 where it has nobody.
    """
    workers, models = len(kind_of), len(accuracy)
    bounds = np.full((workers, models), ANY, np.int64)  # the batch that all clients of a worker allow
    loads, values, chosen = np.zeros(workers), np.zeros(workers), np.full(workers, NONE, np.int64)
    for client in range(len(worker_of)):
        worker = worker_of[client]
        if worker >= 0:
            loads[worker] += rate[client]
            bounds[worker] = np.minimum(bounds[worker], largest[kind_of[worker], :, client])
    for worker in range(workers):
        if bounds[worker, 0] < ANY:
            chosen[worker] = best_model(throughput[kind_of[worker]], bounds[worker], loads[worker])
            values[worker] = accuracy[chosen[worker]] * loads[worker]
    for client in left:
        home, home_model, most = -1, NONE, 0.0
        for worker in range(workers):
            kind, load = kind_of[worker], loads[worker] + rate[client]
            model = best_model(throughput[kind], np.minimum(bounds[worker], largest[kind, :, client]), load)
            if model == NONE:
                continue
            gain = accuracy[model] * load - values[worker]
            if home < 0 or gain > most + LIKE or (gain > most - LIKE and loads[worker] < loads[home]):
                home, home_model, most = worker, model, gain
        if home >= 0:
            worker_of[client] = home
            loads[home] += rate[client]
            bounds[home] = np.minimum(bounds[home], largest[kind_of[home], :, client])
            chosen[home], values[home] = home_model, accuracy[home_model] * loads[home]
    batches = np.zeros(workers, np.int64)
    for worker in range(workers):
        if chosen[worker] != NONE:
            batches[worker] = bounds[worker, chosen[worker]]
    return chosen, batches


def with_leftovers(problem: Problem, mapping: Mapping) -> Mapping:
    """The mapping with everybody in it for whom a worker has room; the very same where that is nobody. Who asks least
    comes first: so most find a place. Looked at also where all are mapped, so that it is compiled with the first plan
    and not when a crowd comes.
    """
    left = np.flatnonzero(mapping.worker_of == UNMAPPED)
    left = left[np.argsort(problem.rate[left], kind="stable")]
    worker_of = mapping.worker_of.copy()
    chosen, batches = place(
        problem.accuracy, problem.kind_of, problem.rate, problem.largest, problem.throughput, left, worker_of
    )
    if (worker_of[left] == UNMAPPED).all():
        return mapping
    return mapping_of(problem, np.where(chosen == NONE, mapping.models, chosen), batches, worker_of)


def rescued(problem: Problem, mapping: Mapping) -> Mapping:
    """Clients without a place on the most accurate worker with room that answers them in time if they need not wait."""
    worker_of = mapping.worker_of.copy()
    room = problem.capacity[problem.kind_of, mapping.models, mapping.batches].copy()
    for client, worker in enumerate(worker_of.tolist()):
        if worker != UNMAPPED:
            room[worker] -= problem.steps[client]
    for client in np.flatnonzero(worker_of == UNMAPPED).tolist():
        for worker in np.argsort(-mapping.models, kind="stable").tolist():
            model, batch = mapping.models[worker], mapping.batches[worker]
            latency_ns = problem.latency_ns[problem.kind_of[worker], model, batch]
            if problem.steps[client] <= room[worker] and latency_ns <= problem.budget_ns[client, model]:
                worker_of[client] = worker
                room[worker] -= problem.steps[client]
                break
    return mapping_of(problem, mapping.models, mapping.batches, worker_of)
