"""What a judging may take: processor time of this process, looked at before each candidate that is tried.

A trial that has begun is ended, and so is a plan: by so much more may be taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import process_time

from stretto.core.verdict import Candidate

LEAST_SEEDS = 2  # below, nobody knows how far apart two trials are


@dataclass(frozen=True)
class Budget:
    seconds: float = math.inf
    _began: float = field(default_factory=process_time)

    @property
    def used_s(self) -> float:
        return process_time() - self._began

    @property
    def is_spent(self) -> bool:
        return self.used_s >= self.seconds

    def values(self, candidates: Sequence[Candidate], value: Callable[[Candidate], float]) -> dict[Candidate, float]:
        """Of each, until it is spent: then nobody is tried any more, once somebody is able."""
        values: dict[Candidate, float] = {}
        for candidate in dict.fromkeys(candidates):
            if self.is_spent and any(each > -math.inf for each in values.values()):
                break
            values[candidate] = value(candidate)
        return values

    def first(self, candidates: list[Candidate], most: int) -> list[Candidate]:
        """So many of them, or the best one alone where it is spent."""
        return candidates[: 1 if self.is_spent else most]

    def seeds(self, first: int, usual: int) -> range:
        return range(first, first + (LEAST_SEEDS if self.is_spent else usual))
