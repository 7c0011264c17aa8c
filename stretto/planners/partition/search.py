"""Finds a partition: greedy placement, then moves and swaps of models, each the best of its kind.

First what breaks a limit is repaired, then rate and static memory are balanced. Work is bounded by counts and not by
the clock, so that the same problem has the same answer on every machine. (The mixed integer program of appendix A stops
by the clock; benchmarks/cluster_partition.py has it as a reference.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.planners.partition.blame import blame
from stretto.planners.partition.problem import (
    NOWHERE,
    ROUNDING,
    Change,
    Floats,
    PartitionProblem,
    loads_of,
)

STEPS_PER_MODEL = 10


class Step(NamedTuple):
    """Model `first` goes to sub-cluster `target`; where there is a `second`, that takes its place."""

    score: float
    first: int
    target: int
    second: int = NOWHERE


def partition(problem: PartitionProblem, change: Change | None = None) -> list[int]:
    """The sub-cluster of each model. StrettoError, with the model or the limit to blame, where none is found."""
    searches = []
    for order in _orders(problem):
        search = _repaired(problem, change, order)
        if search.is_sound:
            search.balance()
            homes: list[int] = search.homes.tolist()
            return homes
        searches.append(search)
    nearest = min(searches, key=_Search.excess)
    raise StrettoError(blame(problem, change, nearest.homes, _least_change(problem, change)))


def _orders(problem: PartitionProblem) -> list[NDArray[np.int64]]:
    """In which models are placed: the largest first; then those first that need most memory to run."""
    by_size = np.argsort(-_sizes(problem).sum(axis=1), kind="stable")
    return [by_size, by_size[np.argsort(-problem.dynamic_bytes[by_size], kind="stable")]]


def _least_change(problem: PartitionProblem, change: Change | None) -> float | None:
    """What a change costs that only repairs, whatever the limit on it; None: that does not help."""
    if change is None or math.isinf(change.max_cost):
        return None
    unbounded = Change(problem, change.current, costs=change.costs)
    searches = (_repaired(problem, unbounded, order) for order in _orders(problem))
    return min((search.spent for search in searches if search.is_sound), default=None)


def _repaired(problem: PartitionProblem, change: Change | None, order: NDArray[np.int64]) -> _Search:
    search = _Search(problem, change)
    search.place(order)
    search.repair()
    return search


def _sizes(problem: PartitionProblem) -> Floats:
    """Each model's rate and memory in units of the averages, weighed as in the objective."""
    rate_unit, bytes_unit = problem.units
    weight = problem.w * bytes_unit / rate_unit
    return np.stack([problem.rates / rate_unit, weight * problem.static_bytes / bytes_unit], axis=1)


class _Search:
    """An assignment on its way, with the loads of its sub-clusters."""

    def __init__(self, problem: PartitionProblem, change: Change | None) -> None:
        self.problem = problem
        models, count = len(problem.rates), problem.subclusters
        self.homes = np.full(models, NOWHERE) if change is None else np.array(change.current, dtype=np.int64)
        self._paid = np.zeros((models, count)) if change is None else change.costs_of_homes()
        self._most_paid = math.inf if change is None else change.max_cost * (1 + ROUNDING)
        self._sizes = _sizes(problem)
        self._all = np.arange(models)
        self._max_rate, self._max_bytes = problem.max_rate * (1 + ROUNDING), problem.max_bytes * (1 + ROUNDING)
        self._count()

    def _count(self) -> None:
        problem, placed = self.problem, self.homes != NOWHERE
        self._rates, self._static, self._dynamic = loads_of(problem, self.homes)
        self._loads = np.zeros((problem.subclusters, 2))
        np.add.at(self._loads, self.homes[placed], self._sizes[placed])
        # The dynamic memory that a model's sub-cluster needs without it: the second largest is left of the largest.
        order = np.lexsort((-problem.dynamic_bytes, self.homes))
        ordered = self.homes[order]
        place = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        second = np.zeros(problem.subclusters)
        is_second = (place == 1) & (ordered != NOWHERE)
        second[ordered[is_second]] = problem.dynamic_bytes[order[is_second]]
        self._rest = self._dynamic[self.homes]
        is_first = order[(place == 0) & (ordered != NOWHERE)]
        self._rest[is_first] = second[self.homes[is_first]]
        self.spent = float(self._paid[self._all[placed], self.homes[placed]].sum())

    @property
    def is_sound(self) -> bool:
        """Every limit is kept."""
        return self.excess() == 0 and self.spent <= self._most_paid

    def excess(self) -> float:
        """By how much limits on rate and memory are broken, in units of the averages."""
        return float(self._over(self._rates, self._static + self._dynamic).sum())

    def _over(self, rates: Floats, memory: Floats) -> Floats:
        rate_unit, bytes_unit = self.problem.units
        over: Floats = np.maximum(rates - self._max_rate, 0) / rate_unit
        return over + np.maximum(memory - self._max_bytes, 0) / bytes_unit

    # -- steps -------------------------------------------------------------------------------------------------------

    def place(self, order: NDArray[np.int64]) -> None:
        """Those that are nowhere, each to the sub-cluster with room that has least of what it would add; where none has
        room, to the one that it breaks the limits of least.
        """
        problem = self.problem
        rates, static, dynamic, loads = self._rates, self._static, self._dynamic, self._loads
        for model in order[self.homes[order] == NOWHERE].tolist():
            largest = np.maximum(dynamic, problem.dynamic_bytes[model])
            memory = static + problem.static_bytes[model] + largest
            over = self._over(rates + problem.rates[model], memory)
            home = int(np.lexsort((loads @ self._sizes[model], over))[0])
            self.homes[model] = home
            rates[home] += problem.rates[model]
            static[home] += problem.static_bytes[model]
            dynamic[home] = largest[home]
            loads[home] += self._sizes[model]
        self._count()

    def repair(self) -> None:
        """Until every limit is kept, or no step helps."""
        for _ in range(STEPS_PER_MODEL * len(self.homes)):
            if self.excess() == 0:
                break
            over = self._over(self._rates, self._static + self._dynamic)
            if not self._take(self._best(np.argsort(-over, kind="stable")[: int((over > 0).sum())], True)):
                break

    def balance(self) -> None:
        """Again and again the step that most lowers Σ_j (difference from the average)², of rate and of memory."""
        for _ in range(STEPS_PER_MODEL * len(self.homes)):
            gaps = ((self._loads - self._loads.mean(axis=0)) ** 2).sum(axis=1)
            if not self._take(self._best(np.argsort(-gaps, kind="stable"), False)):
                break

    def _take(self, step: Step | None) -> bool:
        if step is None:
            return False
        if step.second != NOWHERE:
            self.homes[step.second] = self.homes[step.first]
        self.homes[step.first] = step.target
        self._count()
        return True

    def _best(self, clusters: NDArray[np.int64], repairs: bool) -> Step | None:
        """A single move where one helps; else a swap with the first of these sub-clusters where one does."""
        step = self._best_move(repairs)
        if step.score > ROUNDING:
            return step
        for cluster in clusters.tolist():
            step = self._best_swap(cluster, repairs)
            if step.score > ROUNDING:
                return step
        return None

    def _best_move(self, repairs: bool) -> Step:
        problem, homes = self.problem, self.homes
        memory = (
            self._static + problem.static_bytes[:, None] + np.maximum(self._dynamic, problem.dynamic_bytes[:, None])
        )
        after = self._over(self._rates + problem.rates[:, None], memory) + self._over_without()[:, None]
        # Half of what the sum of squares falls by when model i leaves its home a for j: v·(L_a − v − L_j).
        sizes = self._sizes
        gain = (sizes * (self._loads[homes] - sizes)).sum(axis=1, keepdims=True) - sizes @ self._loads.T
        before = self._over(self._rates, self._static + self._dynamic)
        paid = self.spent + self._paid - self._paid[self._all, homes][:, None]
        score = self._scores(gain, before[homes][:, None] + before, after, paid, repairs)
        score[self._all, homes] = -np.inf
        model, target = np.unravel_index(int(np.argmax(score)), score.shape)
        return Step(float(score[model, target]), int(model), int(target))

    def _best_swap(self, cluster: int, repairs: bool) -> Step:
        """A model of this sub-cluster against one of another."""
        problem, homes = self.problem, self.homes
        mine, others = np.flatnonzero(homes == cluster), np.flatnonzero(homes != cluster)
        if not len(mine) or not len(others):
            return Step(-np.inf, 0, 0)
        there = homes[others]
        given, taken = mine[:, None], others[None, :]
        rates, static, dynamic = problem.rates, problem.static_bytes, problem.dynamic_bytes
        after = self._over(
            self._rates[cluster] - rates[given] + rates[taken],
            self._static[cluster] - static[given] + static[taken] + np.maximum(self._rest[given], dynamic[taken]),
        ) + self._over(
            self._rates[there] + rates[given] - rates[taken],
            self._static[there] + static[given] - static[taken] + np.maximum(dynamic[given], self._rest[taken]),
        )
        gain = np.zeros(after.shape)
        for part in range(2):
            moved = self._sizes[given, part] - self._sizes[taken, part]
            gain += moved * (self._loads[cluster, part] - self._loads[there, part] - moved)
        before = self._over(self._rates, self._static + self._dynamic)
        paid = self.spent + self._paid[given, there] - self._paid[mine, cluster][:, None]
        paid = paid + (self._paid[others, cluster] - self._paid[others, there])
        score = self._scores(gain, before[cluster] + before[there], after, paid, repairs)
        first, second = np.unravel_index(int(np.argmax(score)), score.shape)
        other = int(others[second])
        return Step(float(score[first, second]), int(mine[first]), int(homes[other]), other)

    def _over_without(self) -> Floats:
        """By how much the sub-cluster of each model would break its limits if the model left."""
        problem, homes = self.problem, self.homes
        return self._over(self._rates[homes] - problem.rates, self._static[homes] - problem.static_bytes + self._rest)

    def _scores(self, gain: Floats, before: Floats, after: Floats, paid: Floats, repairs: bool) -> Floats:
        """What a step is worth; −∞ where a limit forbids it."""
        worth = before - after if repairs else np.where(after > before, -np.inf, gain)
        return np.where(paid > self._most_paid, -np.inf, worth)
