"""What was promised, simulated on other arrivals: each promise once, so that no answer is given that falls short."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any, Generic

from stretto.sim.capacity import Promise, Requirement, Seen
from stretto.sim.results import Summary

SEEDS = (1, 2, 3)
FALLS_SHORT = "simulation falls short"


class Simulations(Generic[Promise]):
    """`run` simulates a promise for so many seconds with a seed. What was seen is the mean of the seeds."""

    def __init__(self, run: Callable[[Promise, float, int], Summary], requirement: Requirement, seconds: float) -> None:
        self._run, self._requirement, self._seconds = run, requirement, seconds
        self._seen: dict[int, tuple[Promise, Seen]] = {}  # by identity; the promise is kept, so that it stays its own

    def confirm(self, promise: Promise) -> bool:
        """Whether the simulation meets the requirement, too."""
        if id(promise) not in self._seen:
            runs = [self._run(promise, self._seconds, seed) for seed in SEEDS]
            seen = Seen(promise.workers, fmean(run.accuracy for run in runs), fmean(run.bad_rate for run in runs))
            self._seen[id(promise)] = promise, seen
        return self._requirement.is_met(self._seen[id(promise)][1])

    def of(self, promise: Promise) -> Seen | None:
        """None where its promise was too little to be simulated."""
        return self._seen[id(promise)][1] if id(promise) in self._seen else None

    def verdict(self, promise: Promise) -> str:
        """In a word or two, for a table."""
        if not self._requirement.is_met(promise):
            return "not enough"
        if id(promise) not in self._seen:
            return "promises enough"
        return "enough" if self.confirm(promise) else FALLS_SHORT

    def told(self, promise: Promise, digits: int = 4) -> str:
        """Of a promise that was simulated."""
        seen = self._seen[id(promise)][1]
        runs = f"{len(SEEDS)} seeds of {self._seconds:g} s"
        return f"accuracy {seen.accuracy:.{digits}f}, not on time {seen.violation:.3%} ({runs})"

    def as_dict(self, promise: Promise) -> dict[str, Any] | None:
        seen = self.of(promise)
        if seen is None:
            return None
        figures = {"accuracy": seen.accuracy, "violation": seen.violation}
        return figures | {"seconds": self._seconds, "seeds": list(SEEDS)}
