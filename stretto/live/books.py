"""Counts over all generations, by application name: submitted = the sum of outcomes + what has not ended. And for how
long workers were busy, by their names: numbers are those of one generation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from stretto.core.outcome import OUTCOME_COUNT, Outcome
from stretto.live.generation import Generation


class Books:
    """Keeps the counts of generations that are gone, and adds those that are not."""

    def __init__(self) -> None:
        self._closed: dict[str, tuple[int, NDArray[np.int64]]] = {}
        self.switch_hits = self.switch_misses = 0  # of generations that are gone
        self._busy_ns: Counter[str] = Counter()  # of workers, in generations that are gone

    def close(self, generation: Generation) -> None:
        """The generation is idle and will be forgotten."""
        self._closed = self.totals((generation,))
        self._busy_ns = self.busy_ns((generation,))
        hits, misses = generation.dispatcher.switches
        self.switch_hits, self.switch_misses = self.switch_hits + hits, self.switch_misses + misses

    def add_closed(self, counts: Mapping[str, Mapping[Outcome, int]]) -> None:
        """Queries that ended elsewhere, by application and outcome; they were submitted, too."""
        for name, by_outcome in counts.items():
            submitted, ended = self._closed.get(name, (0, np.zeros(OUTCOME_COUNT, np.int64)))
            ended = ended.copy()
            for outcome, count in by_outcome.items():
                submitted += count
                ended[outcome] += count
            self._closed[name] = submitted, ended

    def correct(self, name: str, counted: Outcome, heard: Outcome, count: int) -> None:
        """Queries of an application that were counted so ended otherwise for those who asked."""
        submitted, ended = self._closed.get(name, (0, np.zeros(OUTCOME_COUNT, np.int64)))
        ended = ended.copy()
        ended[counted] -= count
        ended[heard] += count
        self._closed[name] = submitted, ended

    def totals(self, open_ones: Iterable[Generation]) -> dict[str, tuple[int, NDArray[np.int64]]]:
        """(submitted, outcomes) by application, with the generations that are still open."""
        totals = dict(self._closed)
        for generation in open_ones:
            submitted, outcomes = generation.counts()
            for name, number in generation.numbers.items():
                before, ended = totals.get(name, (0, np.zeros(OUTCOME_COUNT, np.int64)))
                totals[name] = (before + int(submitted[number]), ended + outcomes[number])
        return totals

    def busy_ns(self, open_ones: Iterable[Generation]) -> Counter[str]:
        """By worker, with the generations that are still open."""
        totals = self._busy_ns.copy()
        for generation in open_ones:
            names = (worker.name for worker in generation.deployment.workers)
            totals.update(dict(zip(names, generation.dispatcher.busy_ns().tolist(), strict=True)))
        return totals
