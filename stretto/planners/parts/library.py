"""Policies for a range of loads, close enough together that the next higher one may stand in (RAMSIS section 6)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Protocol

from stretto.core.errors import StrettoError
from stretto.planners.parts.policy import Policy
from stretto.planners.parts.task import Task
from stretto.planners.ports import MakePolicy

Solve = Callable[[float], Policy]
Map = Callable[[Solve, Iterable[float]], Iterable[Policy]]  # `map`, or that of an executor of processes
Progress = Callable[[int, int], None]  # policies done, policies known to be needed


class Recipe(Protocol):
    """How policies are computed: options of one planner or another."""

    def described(self) -> dict[str, str]:
        """In words, for the file; equal descriptions give equal policies."""
        ...


LARGEST_GAP = 0.01  # of expected accuracy between neighbours
FIRST_LOADS = 9
CLOSEST = 1 / 256  # of the range of loads; accuracy may fall more steeply than any grid follows


@dataclass(frozen=True, eq=False)
class Library:
    """Policies in order of load. Up to the load `complete_to` the next higher policy is close enough to stand in."""

    task: Task
    options: Recipe
    policies: tuple[Policy, ...] = ()
    complete_to: float = 0.0

    def covering(self, load: float) -> Policy | None:
        """The policy of the lowest load that is at least `load` (RAMSIS section 3.2.2); None where there is none."""
        place = bisect_left(self.policies, load, key=lambda policy: policy.load)
        return self.policies[place] if place < len(self.policies) else None

    def added(self, policy: Policy) -> Library:
        """With one more policy; one of the same load gives way."""
        others = [other for other in self.policies if other.load != policy.load]
        return replace(self, policies=tuple(sorted([*others, policy], key=lambda policy: policy.load)))


def make_library(
    task: Task,
    options: Recipe,
    make: MakePolicy,
    low: float | None = None,
    high: float | None = None,
    *,
    largest_gap: float = LARGEST_GAP,
    run: Map = map,
    progress: Progress | None = None,
) -> Library:
    """Policies from load `low` to `high`, halving until neighbours differ by less than `largest_gap` in accuracy.

    Without bounds: from a fiftieth of what the workers can answer at most, to all of it. `run` may compute the policies
    of one round side by side; what comes out does not depend on it.
    """
    top = task.capacity() if high is None else high
    bottom = min(top, task.capacity()) / 50 if low is None else low
    if not 0 < bottom <= top < float("inf"):
        raise StrettoError(f"policies are for loads that rise from above zero, not from {bottom:g} to {top:g}")
    known: dict[float, Policy] = {}
    wanted = sorted({bottom + (top - bottom) * part / (FIRST_LOADS - 1) for part in range(FIRST_LOADS)})
    while wanted:
        for policy in run(partial(make, task, options), wanted):
            known[policy.load] = policy
            if progress is not None:
                progress(len(known), len(known) + sum(load not in known for load in wanted))
        wanted = _between(known, largest_gap, CLOSEST * (top - bottom))
    policies = tuple(known[load] for load in sorted(known))
    return Library(task, options, policies, complete_to=top)


def _between(known: dict[float, Policy], largest_gap: float, closest: float) -> list[float]:
    """The middle of each pair of neighbours that are too different."""
    loads = sorted(known)
    return [
        (lower + upper) / 2
        for lower, upper in pairwise(loads)
        if upper - lower > closest
        and abs(known[lower].expectation.accuracy - known[upper].expectation.accuracy) >= largest_gap
    ]
