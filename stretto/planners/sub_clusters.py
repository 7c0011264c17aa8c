"""Sub-clusters that follow the load (Symphony section 4.7): each epoch the partition is looked at with the rates of the
epoch, and where it is out of balance a few models change their sub-cluster.

Workers then load what they lack beside their work, one at a time. A sub-cluster without a worker left is given up at
once: its models go to the others, and are loaded by all of their workers together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.view import View
from stretto.planners.partition.crews import NO_CREW, crews_of
from stretto.planners.partition.problem import (
    NOWHERE,
    Change,
    keeps_limits,
    partition_problem,
)
from stretto.planners.partition.search import partition
from stretto.planners.partition.steps import Bools, Memory, awaited, next_placement
from stretto.planners.partition.worth import rebalanced, usual_moves
from stretto.planners.parts.sharing import expected_work

EPOCH_S = 120.0
LOOK_S = 0.5  # how often a planner with sub-clusters wants to be asked
NS_PER_S = 1_000_000_000


@dataclass(frozen=True, eq=False)
class Layout:
    """Who serves what. The very same object until something changes."""

    homes: tuple[int, ...]  # sub-cluster by application
    workers: tuple[tuple[int, ...], ...]  # by application
    shares: NDArray[np.float64]  # of these workers, in workers, by application
    placement: tuple[tuple[int, ...], ...]  # variants by worker


@dataclass(eq=False)
class SubClusters:
    """`max_rate`: what the dispatcher of one sub-cluster takes, queries/s. `max_moves`: models that may change their
    sub-cluster in an epoch; None: a tenth of them. `at_once`: workers that load at a time.
    """

    count: int
    epoch_s: float = EPOCH_S
    max_rate: float = math.inf
    max_moves: int | None = None
    at_once: int = 1
    _models: tuple[str, ...] = field(default=(), init=False, repr=False)  # that were planned for last
    _homes: dict[str, int] = field(default_factory=dict, init=False, repr=False)  # by application's name
    _crews: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), init=False, repr=False)
    _came: Bools = field(default_factory=lambda: np.zeros(0, np.bool_), init=False, repr=False)  # workers, at any time
    _was_there: set[int] = field(default_factory=set, init=False, repr=False)  # sub-clusters that had a worker
    _epoch_ns: int = field(default=0, init=False, repr=False)  # when it began
    _seen: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), init=False, repr=False)  # Σ of rates in it
    _looks: int = field(default=0, init=False, repr=False)  # of which that is the sum
    _rates: dict[str, float] = field(default_factory=dict, init=False, repr=False)  # by application: planned for
    _placed: Bools = field(default_factory=lambda: np.zeros((0, 0), np.bool_), init=False, repr=False)
    _hurried: Bools = field(default_factory=lambda: np.zeros(0, np.bool_), init=False, repr=False)
    _layout: Layout | None = field(default=None, init=False, repr=False)

    def layout(self, view: View, chosen: Sequence[int]) -> Layout:
        """Application i is served by variant `chosen[i]`."""
        models = tuple(view.deployment.variant_label(variant) for variant in chosen)
        is_new = models != self._models or len(view.alive) < len(self._crews)
        if is_new:
            self._start(len(chosen), len(view.alive))
        further = len(view.alive) - len(self._crews)
        if further:
            self._crews = np.append(self._crews, np.full(further, NO_CREW))
            self._came = np.append(self._came, np.zeros(further, np.bool_))
            more = np.zeros((len(view.alive) - len(self._placed), len(chosen)), np.bool_)
            self._placed = np.vstack([self._placed, more])
        if view.rates is not None and view.rates.sum() > 0:
            self._seen, self._looks = self._seen + view.rates, self._looks + 1
        if view.holds is not None:
            self._came |= view.alive
        holds = None if is_new or view.holds is None else view.holds[:, list(chosen)]
        if holds is not None:  # by the goal so far, for what moves from here on is in no hurry
            self._hurried &= awaited(self._goal(view.deployment, chosen), holds, view.alive)
        lost = self._lost(view)
        is_over = self._looks > 0 and view.now_ns - self._epoch_ns >= self.epoch_s * NS_PER_S
        if is_new or further or lost or is_over:
            # Who has not come since the start is reckoned with, for an epoch at most.
            self._partition(view, chosen, view.alive if lost or is_over else view.alive | ~self._came)
            self._models = models  # now, because there may be no partition
        goal = self._goal(view.deployment, chosen)
        if holds is None:
            self._placed = goal
        else:
            self._placed = next_placement(
                goal, self._placed, holds, view.alive, _memory(view.deployment, chosen), self._hurried, self.at_once
            )
        return self._laid_out(view.deployment, chosen, goal)

    def _start(self, models: int, workers: int) -> None:
        """Nobody is known to hold anything: all begin at once. Applications and workers keep their sub-cluster."""
        self._seen, self._looks, self._layout = np.zeros(models), 0, None
        if workers < len(self._crews):
            self._crews, self._came = np.full(workers, NO_CREW), np.zeros(workers, np.bool_)
        self._placed = np.zeros((workers, models), np.bool_)
        self._hurried = np.ones(models, np.bool_)
        self._was_there.clear()

    def _lost(self, view: View) -> bool:
        """Whether a sub-cluster with models had a worker, and has none any more."""
        there = set(self._crews[view.alive & (self._crews != NO_CREW)].tolist())
        self._was_there |= there
        return bool(there) and bool((self._was_there - there) & set(self._homes.values()))

    def _usable(self, there: Bools) -> list[int]:
        """Sub-clusters that models may be in: with a worker that is there, or with none yet."""
        crewed = self._crews != NO_CREW
        away = set(self._crews[crewed].tolist()) - set(self._crews[crewed & there].tolist())
        usable = [number for number in range(self.count) if number not in away] or list(range(self.count))
        return usable[: max(1, int(there.sum()))]

    def _partition(self, view: View, chosen: Sequence[int], there: Bools) -> None:
        """Homes and crews anew, as near to those before as the limits and the balance let them be; `there` are the
        workers to reckon with.
        """
        self._epoch_ns = view.now_ns
        names = [application.name for application in view.deployment.applications]
        rates = np.array([self._rates.get(name, 1.0) for name in names])
        if self._looks:
            rates = self._seen / self._looks
        parts = self._usable(there)
        problem = partition_problem(view.deployment, chosen, len(parts), rates, self.max_rate)
        before = [self._homes.get(name, NOWHERE) for name in names]
        current = np.array([parts.index(home) if home in parts else NOWHERE for home in before])
        homeless = current == NOWHERE
        moves = usual_moves(len(names)) if self.max_moves is None else self.max_moves
        change = Change(problem, tuple(current.tolist()), 2.0 * moves + float(homeless.sum()))
        if homeless.all():
            places = partition(problem)
        elif homeless.any() or not keeps_limits(problem, current):
            places = self._changed(change)
        else:
            places = rebalanced(change, lambda: partition(problem, change))
        homes = [parts[place] for place in places]
        self._crews = crews_of(homes, expected_work(view.deployment, chosen, rates), self.count, there, self._crews)
        self._homes = dict(zip(names, homes, strict=True))
        self._hurried |= homeless
        self._was_there &= set(homes)
        self._rates = dict(zip(names, rates.tolist(), strict=True))
        self._seen, self._looks = np.zeros(len(rates)), 0

    def _changed(self, change: Change) -> list[int]:
        """Within the limit on change; at a start, where all is loaded anyway, beyond it if it must be."""
        try:
            return partition(change.problem, change)
        except StrettoError:
            if not self._hurried.all():
                raise
            return partition(change.problem)

    def _goal(self, deployment: Deployment, chosen: Sequence[int]) -> Bools:
        """[worker, application]: who is to hold what, where its kind can run it. Where nobody of a sub-cluster can,
        everybody who can does.
        """
        homes = np.array([self._homes[application.name] for application in deployment.applications])
        kinds = np.array([deployment.kinds.index(worker.kind) for worker in deployment.workers])
        runs = [[deployment.variants[v].profile_on(kind) is not None for v in chosen] for kind in deployment.kinds]
        able = np.array(runs)[kinds]
        goal: Bools = able & (self._crews[:, None] == homes)
        return np.where(goal.any(axis=0), goal, able)

    def _laid_out(self, deployment: Deployment, chosen: Sequence[int], goal: Bools) -> Layout:
        """With the layout before, the very object, where nothing is different."""
        variants = np.array(chosen)
        placement = tuple(tuple(sorted(variants[row].tolist())) for row in self._placed)
        workers = tuple(tuple(np.flatnonzero(column).tolist()) for column in (goal | self._placed).T)
        homes = tuple(self._homes[application.name] for application in deployment.applications)
        before = self._layout
        if before is None or (before.homes, before.workers, before.placement) != (homes, workers, placement):
            work = expected_work(deployment, chosen, self._rates.values())
            whole = np.bincount(homes, weights=work, minlength=self.count)[list(homes)]
            shares = goal.sum(axis=0) * work / np.where(whole > 0, whole, 1.0)
            self._layout = before = Layout(homes, workers, shares, placement)
        return before


def _memory(deployment: Deployment, chosen: Sequence[int]) -> Memory:
    variants = [deployment.variants[variant] for variant in chosen]
    return Memory(
        np.array([variant.memory_bytes for variant in variants], np.float64),
        np.array([variant.dynamic_memory_bytes for variant in variants], np.float64),
        np.array([worker.memory_bytes for worker in deployment.workers], np.float64),
    )
