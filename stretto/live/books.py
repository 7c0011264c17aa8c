"""Counts over all generations, by application name: submitted = the sum of outcomes + what has not ended."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stretto.core.outcome import OUTCOME_COUNT
from stretto.live.generation import Generation


class Books:
    """Keeps the counts of generations that are gone, and adds those that are not."""

    def __init__(self) -> None:
        self._submitted: dict[str, int] = {}
        self._outcomes: dict[str, NDArray[np.int64]] = {}

    def close(self, generation: Generation) -> None:
        """The generation is idle and will be forgotten."""
        submitted, outcomes = generation.counts()
        for name, number in generation.numbers.items():
            self._submitted[name] = self._submitted.get(name, 0) + int(submitted[number])
            self._outcomes[name] = self._outcomes.get(name, np.zeros(OUTCOME_COUNT, np.int64)) + outcomes[number]

    def totals(self, open_ones: Iterable[Generation]) -> dict[str, tuple[int, NDArray[np.int64]]]:
        """(submitted, outcomes) by application, with the generations that are still open."""
        totals = {name: (count, self._outcomes[name].copy()) for name, count in self._submitted.items()}
        for generation in open_ones:
            submitted, outcomes = generation.counts()
            for name, number in generation.numbers.items():
                before, ended = totals.get(name, (0, np.zeros(OUTCOME_COUNT, np.int64)))
                totals[name] = (before + int(submitted[number]), ended + outcomes[number])
        return totals
