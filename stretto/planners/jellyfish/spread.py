"""Clients of one model over all workers that run it, so that idle workers are used.

Algorithm 1 gives the largest model as many clients as it can serve, on one worker if they fit there, and leaves others
idle. That costs nothing in its objective, but frames then wait for each other that need not. Here an idle worker takes
over the model of the most loaded ones, and clients of workers with the same model are dealt out evenly. Accuracy stays;
batches (5) and capacity (6) only gain.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.planners.jellyfish.problem import UNMAPPED, Mapping, Problem, mapping_of


def spread(problem: Problem, mapping: Mapping) -> Mapping:
    """The same clients on the same models, with the load of each model as even as whole clients allow."""
    models, worker_of, batches = mapping.models.copy(), mapping.worker_of.copy(), mapping.batches.copy()
    for kind in np.unique(problem.kind_of).tolist():
        crew = np.flatnonzero(problem.kind_of == kind)
        _share_models(problem, crew, models, worker_of)
        for model in np.unique(models[crew]).tolist():
            _deal(problem, crew[models[crew] == model], models, worker_of, batches)
    return mapping_of(problem, models, batches, worker_of)


def _share_models(
    problem: Problem, crew: NDArray[np.int64], models: NDArray[np.int64], worker_of: NDArray[np.int64]
) -> None:
    """Each idle worker gets the model whose workers have most to do and more clients than there are of them."""
    idle = [worker for worker in crew.tolist() if not (worker_of == worker).any()]
    for worker in idle:
        models[worker] = UNMAPPED
    for worker in idle:
        loads = {}
        for model in set(models[crew].tolist()) - {UNMAPPED}:
            workers = crew[models[crew] == model]
            askers = np.isin(worker_of, workers)
            if askers.sum() > len(workers):
                latency_ns = float(problem.latency_ns[problem.kind_of[worker], model, 1])
                loads[model] = float(problem.rate[askers].sum()) * latency_ns / len(workers)
        busy = [model for model in models[crew].tolist() if model != UNMAPPED]
        models[worker] = max(loads, key=lambda model: (loads[model], model)) if loads else max(busy, default=0)


def _deal(
    problem: Problem,
    workers: NDArray[np.int64],
    models: NDArray[np.int64],
    worker_of: NDArray[np.int64],
    batches: NDArray[np.int64],
) -> None:
    """Whoever asks most first, to the worker with least to do; nothing changes where that would break capacity."""
    askers = np.flatnonzero(np.isin(worker_of, workers))
    if len(workers) < 2 or not len(askers):
        return
    kind, model = int(problem.kind_of[workers[0]]), int(models[workers[0]])
    steps = dict.fromkeys(workers.tolist(), 0)
    largest = dict.fromkeys(workers.tolist(), 0)
    dealt = worker_of.copy()
    for client in sorted(askers.tolist(), key=lambda each: (-int(problem.steps[each]), each)):
        before = int(worker_of[client])
        worker = min(steps, key=lambda each: (steps[each], each != before, each))
        allowed = int(problem.largest[kind, model, client])
        steps[worker] += int(problem.steps[client])
        largest[worker] = min(largest[worker] or allowed, allowed)
        dealt[client] = worker
    if all(steps[worker] <= problem.capacity[kind, model, largest[worker]] for worker in steps):
        worker_of[:] = dealt
        for worker, batch in largest.items():
            batches[worker] = batch
