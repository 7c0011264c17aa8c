"""Single clients moved or swapped between workers, and models made as good as a worker's clients allow; compiled.

Every step keeps constraints (5) and (6), maps no fewer clients, and brings more accuracy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.compiled import compiled
from stretto.planners.jellyfish.mapping import LIKE

MOST_ROUNDS = 20
NOBODY = 2**30  # as a batch: there is no client to bound it


@compiled
def batch_for(largest: Any, worker_of: Any, worker: int, without: int, also: int) -> int:
    """The largest batch that all clients of a worker allow, without one of them and with another; 0: none."""
    batch = NOBODY
    for client in range(len(worker_of)):
        if client == also or (worker_of[client] == worker and client != without):
            batch = min(batch, largest[client])
    return 0 if batch == NOBODY else batch


@compiled
def fits(problem: Any, models: Any, worker_of: Any, loads: Any, worker: int, without: int, also: int) -> Any:
    """Whether a worker can serve `also` in place of `without` (-1: nobody)."""
    kind_of, steps, largest, capacity = problem[1], problem[3], problem[4], problem[5]
    kind, model = kind_of[worker], models[worker]
    if also >= 0 and largest[kind, model, also] == 0:
        return False
    load = loads[worker] + (steps[also] if also >= 0 else 0) - (steps[without] if without >= 0 else 0)
    if load > capacity[kind, model, -1]:
        return False
    batch = batch_for(largest[kind, model], worker_of, worker, without, also)
    return load <= capacity[kind, model, batch]


@compiled
def upgrade(problem: Any, models: Any, worker_of: Any, loads: Any) -> bool:
    """Each worker takes the most accurate model that serves all its clients; returns whether any changed."""
    accuracy, kind_of, largest, capacity = problem[0], problem[1], problem[4], problem[5]
    changed = False
    for worker in range(len(models)):
        if loads[worker] == 0:
            continue
        kind = kind_of[worker]
        for model in range(len(accuracy) - 1, models[worker], -1):
            batch = batch_for(largest[kind, model], worker_of, worker, -1, -1)
            if loads[worker] <= capacity[kind, model, batch] and accuracy[model] > accuracy[models[worker]]:
                models[worker] = model
                changed = True
                break
    return changed


@compiled
def exchange(problem: Any, models: Any, worker_of: Any, loads: Any) -> bool:
    """Clients go where answers are more accurate, alone or in exchange for one of less rate."""
    accuracy, rate, steps = problem[0], problem[2], problem[3]
    changed = False
    for client in range(len(rate)):
        for worker in range(len(models)):
            home = worker_of[client]
            worth = accuracy[models[home]] if home >= 0 else -1.0
            if worker == home or accuracy[models[worker]] <= worth:
                continue
            if fits(problem, models, worker_of, loads, worker, -1, client):
                if home >= 0:
                    loads[home] -= steps[client]
                worker_of[client] = worker
                loads[worker] += steps[client]
                changed = True
                continue
            for other in range(len(rate)):
                if worker_of[other] != worker or rate[other] >= rate[client] - LIKE:
                    continue
                if not fits(problem, models, worker_of, loads, worker, other, client):
                    continue
                if home >= 0 and not fits(problem, models, worker_of, loads, home, client, other):
                    continue
                if home >= 0:
                    loads[home] += steps[other] - steps[client]
                loads[worker] += steps[client] - steps[other]
                worker_of[client], worker_of[other] = worker, home
                changed = True
                break
    return changed


@compiled
def polish(problem: Any, models: Any, worker_of: Any, batches: Any) -> bool:
    """Upgrades and exchanges until there are none; `batches` are renewed. Returns whether anything changed."""
    kind_of, steps, largest = problem[1], problem[3], problem[4]
    loads = np.zeros(len(models), np.int64)
    for client in range(len(worker_of)):
        if worker_of[client] >= 0:
            loads[worker_of[client]] += steps[client]
    changed = False
    for _ in range(MOST_ROUNDS):
        if not (upgrade(problem, models, worker_of, loads) or exchange(problem, models, worker_of, loads)):
            break
        changed = True
    for worker in range(len(models)):
        batches[worker] = batch_for(largest[kind_of[worker], models[worker]], worker_of, worker, -1, -1)
    return changed
