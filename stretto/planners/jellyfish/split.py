"""The clients of two workers split between them in the best way there is, compiled; for clients that all have a place.

For two models and two batch sizes, a client may be served by one of the workers only, or by both. Those that both may
serve are a subset sum: as much of their rate as possible goes to the more accurate model, and the other worker must be
able to take the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.compiled import compiled
from stretto.planners.jellyfish.mapping import LIKE


@compiled
def split(
    steps: Any,
    rate: Any,
    members: Any,
    allows: Any,
    batches: Any,
    capacities: Any,
    sums: Any,
    takes: Any,
    is_first: Any,
) -> float:
    """The greatest rate that the first of two workers can have while the second takes all others; `is_first` says of
    each member whether it goes there. Negative where the two cannot take all. `allows[side, client]` is the largest
    batch that a client allows on either side.
    """
    held_first, held_second, shared, sure = 0, 0, 0, 0.0
    for number in range(len(members)):
        client = members[number]
        on_first, on_second = allows[0, client] >= batches[0], allows[1, client] >= batches[1]
        if on_first and on_second:
            shared += steps[client]
        elif on_first:
            held_first += steps[client]
            sure += rate[client]
        elif on_second:
            held_second += steps[client]
        else:
            return -1.0
    room_first, room_second = capacities[0] - held_first, capacities[1] - held_second
    if room_first < 0 or room_second < 0 or shared > room_first + room_second:
        return -1.0
    room = min(room_first, shared)
    sums[: room + 1] = -1.0
    sums[0] = 0.0
    for number in range(len(members)):
        client = members[number]
        if allows[0, client] < batches[0] or allows[1, client] < batches[1]:
            continue
        takes[number, : room + 1] = False
        weight = steps[client]
        for column in range(room, weight - 1, -1):
            before = sums[column - weight]
            if before >= 0.0 and before + rate[client] > sums[column] + LIKE:
                sums[column] = before + rate[client]
                takes[number, column] = True
    best, at = -1.0, -1
    for column in range(max(0, shared - room_second), room + 1):
        if sums[column] > best:
            best, at = sums[column], column
    if at < 0:
        return -1.0
    for number in range(len(members) - 1, -1, -1):
        client = members[number]
        is_first[number] = allows[0, client] >= batches[0]
        if is_first[number] and allows[1, client] >= batches[1]:
            is_first[number] = takes[number, at]
            if takes[number, at]:
                at -= steps[client]
    return sure + best


@compiled
def split_pair(
    problem: Any, pair: Any, models: Any, worker_of: Any, pool: Any, total: float, value: float, work: Any
) -> Any:
    """The best models, batches and split for two workers whose clients (`pool`, of rate `total`) are worth `value` now,
    in place; returns whether that is better than before, and the effort. Batches are left to be renewed.
    """
    accuracy, kind_of, rate, steps, largest, capacity, _ = problem
    sums, takes = work[1], work[2]
    members = np.flatnonzero(pool)
    is_first = np.zeros(len(members), np.bool_)
    best_first = np.zeros(len(members), np.bool_)
    allows = np.zeros((2, len(rate)), np.int64)
    batches, capacities = np.zeros(2, np.int64), np.zeros(2, np.int64)
    dense = (rate[members] / steps[members]).max() if len(members) else 0.0  # the most rate that a step stands for
    effort, has_gained = 1, False
    best_models = np.zeros(2, np.int64)
    best_workers = pair.copy()
    is_alike = kind_of[pair[0]] == kind_of[pair[1]]
    for side in range(1 if is_alike else 2):
        first, second = pair[side], pair[1 - side]  # the first has the more accurate model
        for better in range(len(accuracy) - 1, -1, -1):
            if accuracy[better] * total <= value + LIKE:
                break
            allows[0] = largest[kind_of[first], better]
            most_first = allows[0][members].max()
            for worse in range(better, -1, -1):
                allows[1] = largest[kind_of[second], worse]
                most_second = allows[1][members].max()
                for batch in range(1, most_first + 1):
                    batches[0], capacities[0] = batch, capacity[kind_of[first], better, batch]
                    if capacities[0] == capacity[kind_of[first], better, batch - 1]:
                        continue
                    there = min(total, dense * capacities[0])
                    if accuracy[better] * there + accuracy[worse] * (total - there) <= value + LIKE:
                        continue
                    for other in range(1, most_second + 1):
                        batches[1], capacities[1] = other, capacity[kind_of[second], worse, other]
                        if capacities[1] == capacity[kind_of[second], worse, other - 1]:
                            continue
                        effort += len(members)
                        served = split(steps, rate, members, allows, batches, capacities, sums, takes, is_first)
                        worth = accuracy[better] * served + accuracy[worse] * (total - served)
                        if served >= 0.0 and worth > value + LIKE:
                            value, has_gained = worth, True
                            best_models[0], best_models[1] = better, worse
                            best_workers[0], best_workers[1] = first, second
                            best_first[:] = is_first
    if has_gained:
        models[best_workers[0]], models[best_workers[1]] = best_models[0], best_models[1]
        for number in range(len(members)):
            worker_of[members[number]] = best_workers[0] if best_first[number] else best_workers[1]
    return has_gained, effort
