"""The cheapest fleet of several kinds of workers whose promise is kept, and confirmed where it can be checked.

A promise is dear to look at (the judge takes seconds), the fluid bound costs nothing. So the search goes by rays: the
numbers of all kinds but the cheapest are fixed, and the fewest of the cheapest are looked for. Rays come in the order
of what the bound says they cost at least. Once one is known, a ray is asked about as many above its bound as others
were, and about the largest fleet that would still be cheaper; most end there. More workers of any kind never make a
promise worse: what failed rules out everything below it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic

from stretto.core.errors import StrettoError
from stretto.sim.bounds import FluidFleet
from stretto.sim.capacity import Promise, Requirement

MOST_RAYS = 5_000
MOST_TRIALS = 200
FEW_RAYS = 40  # all of these are looked at
HALF = 0.5  # of the way from the bound to a real fleet, as known, that a ray is believed to come nearer
USUAL = 1.5  # workers over the bound, at most, that are guessed at first
MAX_KINDS = 6
MAX_COST = 1e9

Counts = tuple[int, ...]  # by kind, in the order of the costs


@dataclass(frozen=True)
class Trial(Generic[Promise]):
    """One fleet that was looked at."""

    counts: Counts
    cost: float
    promise: Promise
    is_enough: bool


@dataclass(frozen=True, eq=False)
class Cheapest(Generic[Promise]):
    """The answer, and every fleet that was tried, the cheapest first."""

    kinds: tuple[str, ...]
    best: Trial[Promise]
    tried: tuple[Trial[Promise], ...]
    least_cost: float  # by the fluid bound: no fleet is cheaper

    def fleet(self, trial: Trial[Promise] | None = None) -> dict[str, int]:
        return dict(zip(self.kinds, (trial or self.best).counts, strict=True))


def check_costs(costs: Mapping[str, float]) -> None:
    if not 1 <= len(costs) <= MAX_KINDS:
        raise StrettoError(f"a fleet is looked for among 1 to {MAX_KINDS} kinds of workers, not {len(costs)}")
    for kind, cost in costs.items():
        if not 0 < cost <= MAX_COST:
            raise StrettoError(
                f"a worker of kind {kind} costs {cost:g} an hour; it must be above 0, at most {MAX_COST:g}"
            )


def cheapest_fleet(
    promise: Callable[[dict[str, int]], Promise],
    bound: Callable[[Mapping[str, int]], FluidFleet | None],
    requirement: Requirement,
    costs: Mapping[str, float],
    *,
    most: int,
    confirms: Callable[[Promise], bool] = lambda promise: True,
    progress: Callable[[int], None] | None = None,
) -> Cheapest[Promise]:
    """At most `most` workers in all. `bound` is the cheapest fleet of the fluid bound with the numbers of some kinds
    fixed, or None where there is none with so many workers. `confirms` is asked once about each promise that meets the
    requirement. StrettoError where no fleet is enough.
    """
    check_costs(costs)
    search = _Search(promise, bound, requirement, costs, most, confirms, progress)
    free = bound({})
    if free is None:
        raise StrettoError(
            f"{most} workers of kind {', '.join(costs)} are not enough for {requirement.load:g} queries/s, whatever the"
            " mix: not even the fluid bound has so many answers; ask for less, or allow more workers"
        )
    best = search.run(free)
    tried = tuple(sorted(search.trials.values(), key=lambda trial: (trial.cost, trial.counts)))
    return Cheapest(tuple(costs), best, tried, free.cost)


class _Search(Generic[Promise]):
    def __init__(
        self,
        promise: Callable[[dict[str, int]], Promise],
        bound: Callable[[Mapping[str, int]], FluidFleet | None],
        requirement: Requirement,
        costs: Mapping[str, float],
        most: int,
        confirms: Callable[[Promise], bool],
        progress: Callable[[int], None] | None,
    ) -> None:
        self._promise, self._bound, self._requirement = promise, bound, requirement
        self._confirms = confirms
        self._costs, self._most, self._progress = costs, most, progress
        self.filler = min(costs, key=lambda kind: costs[kind])
        self.others = [kind for kind in costs if kind != self.filler]
        self.trials: dict[Counts, Trial[Promise]] = {}
        self.best: Trial[Promise] | None = None
        self._nearness = math.inf  # cost of a fleet that is enough over its bound, the smallest seen

    def run(self, free: FluidFleet) -> Trial[Promise]:
        # The first ray: the bound's own mix, rounded up. It gives a price that the others must beat.
        self._ray({kind: math.ceil(free.workers[kind] - 1e-9) for kind in self.others})
        rays = self._rays()
        for least_cost, held in rays:
            factor = self._factor() if len(rays) > FEW_RAYS else 1.0
            if self.best is not None and least_cost * factor >= self.best.cost - 1e-12:
                continue
            self._ray(held)
        if self.best is None:
            last = max(self.trials.values(), key=lambda trial: sum(trial.counts)).promise
            raise StrettoError(
                f"{self._most} workers are not enough for {self._requirement.load:g} queries/s with accuracy "
                f"{self._requirement.min_accuracy:g} and at most {self._requirement.max_violation:.3%} not on time: "
                f"the largest fleet tried promises {last.accuracy:.4f} and {last.violation:.3%}"
                f"{', and a simulation of it falls short of that' if self._requirement.is_met(last) else ''}; ask for "
                "less, or allow more workers"
            )
        return self.best

    def _factor(self) -> float:
        """A ray cannot be expected to come nearer to its bound than half as far as the nearest one did."""
        return 1 + HALF * (self._nearness - 1) if math.isfinite(self._nearness) else 1.0

    def _rays(self) -> list[tuple[float, dict[str, int]]]:
        """By what the bound says that they cost, the cheapest first."""
        limit = math.inf if self.best is None else self.best.cost
        ranges = [range(min(self._most, math.floor(min(limit / self._costs[kind], 1e6))) + 1) for kind in self.others]
        if math.prod(len(each) for each in ranges) > MOST_RAYS:
            raise StrettoError(
                f"there are more than {MOST_RAYS} mixes of {', '.join(self._costs)} to look at; name fewer kinds, or "
                "allow fewer workers (--max-workers)"
            )
        rays = []
        for numbers in itertools.product(*ranges):
            held = dict(zip(self.others, numbers, strict=True))
            spent = sum(self._costs[kind] * count for kind, count in held.items())
            fleet = None if spent >= limit else self._bound(held)
            if fleet is not None:
                count = math.ceil(fleet.workers[self.filler] - 1e-9)
                rays.append((spent + self._costs[self.filler] * count, held))
        return sorted(rays, key=lambda ray: ray[0])

    def _ray(self, held: dict[str, int]) -> None:
        """The fewest of the cheapest kind beside these, where that would be cheaper than what is known."""
        fleet = self._bound(held)
        room = self._most - sum(held.values())
        if fleet is None or room < 0:
            return
        low = max(0, math.ceil(fleet.workers[self.filler] - 1e-9))
        low = max(low, 1 - sum(held.values()))
        spent = sum(self._costs[kind] * count for kind, count in held.items())
        price = self._costs[self.filler]
        high = room
        if self.best is not None:
            high = min(high, math.ceil((self.best.cost - spent) / price - 1e-9) - 1)
        if low > high:
            return
        least_cost = max(fleet.cost, 1e-12)
        if self.best is not None:
            guess = min(high, max(low, math.ceil(low * min(self._nearness, USUAL))))
            if self._holds(held, guess):
                enough = guess
            elif guess < high and self._holds(held, high):
                low, enough = guess + 1, high
            else:
                return
        else:
            step, enough = 1, low
            while not self._holds(held, enough):
                if enough == high:
                    return
                low, enough, step = enough + 1, min(enough + step, high), 2 * step
        while low < enough:
            middle = (low + enough) // 2
            if self._holds(held, middle):
                enough = middle
            else:
                low = middle + 1
        self.best = self.trials[self._counts(held, enough)]
        self._nearness = min(self._nearness, self.best.cost / least_cost)

    def _counts(self, held: Mapping[str, int], count: int) -> Counts:
        return tuple(held.get(kind, count) for kind in self._costs)

    def _holds(self, held: Mapping[str, int], count: int) -> bool:
        counts = self._counts(held, count)
        if counts in self.trials:
            return self.trials[counts].is_enough
        for other in self.trials.values():
            pairs = list(zip(counts, other.counts, strict=True))
            if not other.is_enough and all(here <= there for here, there in pairs):
                return False
        if len(self.trials) >= MOST_TRIALS:
            raise StrettoError(
                f"after {MOST_TRIALS} fleets the cheapest is not found; name fewer kinds, or allow fewer workers"
            )
        fleet = dict(zip(self._costs, counts, strict=True))
        promise = self._promise(fleet)
        cost = sum(self._costs[kind] * number for kind, number in fleet.items())
        is_enough = self._requirement.is_met(promise) and self._confirms(promise)
        self.trials[counts] = Trial(counts, cost, promise, is_enough)
        if self._progress is not None:
            self._progress(len(self.trials))
        return self.trials[counts].is_enough
