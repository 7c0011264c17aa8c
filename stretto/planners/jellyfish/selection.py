"""Which models (Jellyfish algorithm 2), compiled: simulated annealing over the models of all workers, in two modes.

DEGRADE makes models smaller until every client finds a place; UPGRADE then looks for more accuracy. A state is judged
by the share of clients mapped, then by accuracy per request, where clients without a place count zero. UPGRADE never
moves to a state that maps fewer clients than the best one does. Constants are those of the published code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.planners.jellyfish.mapping import LIKE, arrays_of, map_clients, room_for
from stretto.planners.jellyfish.problem import Mapping, Problem

DEGRADE, UPGRADE = 0, 1
MOST_CELLS = 32_000_000  # of the tables of sums in one mode: beyond the published scale, cooling is quicker


@dataclass(frozen=True)
class Cooling:
    """Temperatures, and the factor from one step to the next."""

    first: float = 0.0125
    last: float = 0.0005
    factor: float = 0.99

    def within(self, steps: int) -> Cooling:
        """The same, or quicker where that would be more steps."""
        needed = math.log(self.last / self.first) / math.log(self.factor)
        return self if needed <= steps else replace(self, factor=(self.last / self.first) ** (1.0 / max(steps, 1)))


@compiled
def next_random(state: Any) -> Any:
    """Uniform in [0, 1): splitmix64."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled
def is_better(mapped: int, value: float, than_mapped: int, than_value: float) -> bool:
    """More clients (O1), else more accuracy (O2)."""
    return mapped > than_mapped or (mapped == than_mapped and value > than_value + LIKE)


@compiled
def anneal(
    problem: Any, models: Any, cooling: Any, random: Any, worker_of: Any, batches: Any, is_free: Any, work: Any
) -> Any:
    """`models` becomes the best that was found; returns how many clients it maps, its value, and how often it mapped.

    The printed acceptance, exp(-diff/T) where diff is negative for the worse, would accept everything; the sign of its
    difference is turned here, as annealing has it.
    """
    most = len(problem[0]) - 1
    rate = problem[2]
    clients, workers = len(rate), len(models)
    total = max(rate.sum(), LIKE)
    crew = np.arange(workers)
    first, last, factor = cooling
    is_free[:] = True
    best_mapped, best_value = map_clients(problem, crew, models, rate, False, is_free, worker_of, batches, work)
    tries = 1
    state, other = models.copy(), models.copy()
    for mode in (DEGRADE, UPGRADE):
        state[:] = models
        mapped, value = best_mapped, best_value
        temperature = first
        while temperature > last and not (mode == DEGRADE and mapped == clients):
            for worker in range(workers):
                move = int(next_random(random) * (2 + mode)) - 1
                other[worker] = min(max(state[worker] + move, 0), most)
            is_free[:] = True
            new_mapped, new_value = map_clients(problem, crew, other, rate, False, is_free, worker_of, batches, work)
            tries += 1
            if is_better(new_mapped, new_value, best_mapped, best_value):
                best_mapped, best_value = new_mapped, new_value
                models[:] = other
            gain = (new_mapped - mapped) / clients if mode == DEGRADE else (new_value - value) / total
            if mode == UPGRADE and new_mapped < best_mapped:  # O1 is not given up for O2, not even on the way
                gain = -math.inf
            if gain > 0 or math.exp(gain / temperature) > next_random(random):
                state[:] = other
                mapped, value = new_mapped, new_value
            temperature *= factor
    is_free[:] = True
    best_mapped, best_value = map_clients(problem, crew, models, rate, False, is_free, worker_of, batches, work)
    return best_mapped, best_value, tries


def annealed(
    problem: Problem, previous: NDArray[np.int64] | None = None, *, seed: int = 1, cooling: Cooling | None = None
) -> Mapping:
    """Algorithm 2 from the models of the plan before; without one, from the smallest on every worker."""
    models = np.zeros(problem.workers, np.int64) if previous is None else np.asarray(previous, np.int64).copy()
    worker_of, batches = np.full(problem.clients, -1, np.int64), np.zeros(problem.workers, np.int64)
    if problem.clients == 0:
        return Mapping(models, batches, worker_of, 0, 0.0)
    cells = problem.workers * problem.clients * (int(problem.capacity.max()) + 1)
    chosen = cooling or Cooling().within(MOST_CELLS // cells)
    mapped, value, _ = anneal(
        arrays_of(problem),
        models,
        (chosen.first, chosen.last, chosen.factor),
        np.array([seed], np.uint64),
        worker_of,
        batches,
        np.ones(problem.clients, np.bool_),
        room_for(problem),
    )
    return Mapping(models, batches, worker_of, int(mapped), float(value))
