"""From the models of one plan to those of the next (Jellyfish section IV-D): workers change by as little as possible.

Workers of a kind are alike, so it does not matter which of them gets which of the new models. Old and new ones are
sorted by size and paired one by one, which keeps the distance small; and with the neighbours of its model in memory, a
worker mostly has what it is to run next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.planners.jellyfish.problem import UNMAPPED, Mapping

NOT_KNOWN = -1  # of a worker's model before
FADING = 0.995  # from one plan to the next: half in a minute or so
FORGOTTEN = 0.01


def paired(kind_of: NDArray[np.int64], before: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
    """By worker, whose part of the new choice it takes over. Only workers of a kind change places.

    Workers of which nothing is known come last: they take what is left when the others are paired.
    """
    takes = np.arange(len(kind_of))
    for kind in np.unique(kind_of):
        crew = np.flatnonzero(kind_of == kind)
        known = crew[before[crew] != NOT_KNOWN]
        new = crew[before[crew] == NOT_KNOWN]
        wanted = crew[np.argsort(-after[crew], kind="stable")].tolist()
        left = []
        if len(new):  # without those that no known worker is near to
            costs = [(int(np.abs(before[known] - after[place]).min()) if len(known) else 0, -place) for place in wanted]
            far = sorted(range(len(wanted)), key=lambda number: costs[number], reverse=True)[: len(new)]
            left = [wanted[number] for number in sorted(far)]
            wanted = [place for place in wanted if place not in left]
        order = known[np.argsort(-before[known], kind="stable")].tolist()
        for worker, place in zip([*order, *new.tolist()], [*wanted, *left], strict=True):
            takes[worker] = place
    return takes


def rearranged(mapping: Mapping, takes: NDArray[np.int64]) -> Mapping:
    """The same mapping where worker w has the part of worker takes[w]."""
    worker_for = np.empty_like(takes)
    worker_for[takes] = np.arange(len(takes))
    worker_of = np.where(mapping.worker_of == UNMAPPED, UNMAPPED, worker_for[mapping.worker_of])
    return Mapping(mapping.models[takes], mapping.batches[takes], worker_of, mapping.mapped, mapping.value)


@dataclass
class Followers:
    """Which models followed which on a worker; longer ago counts less.

    Published is to prefetch the nearest models by size. Networks come back to where they were, though, in steps of more
    than one size, so what followed a model before is expected to do so again; distance decides where little is known.
    """

    counts: dict[tuple[int, int], float] = field(default_factory=dict)

    def saw(self, before: int, after: int) -> None:
        """What the worker ran, and runs from now on."""
        self.counts = {pair: FADING * count for pair, count in self.counts.items() if count > FORGOTTEN}
        if before not in (after, NOT_KNOWN):
            self.counts[before, after] = self.counts.get((before, after), 0.0) + 1.0

    def of(self, model: int, models: Sequence[int]) -> list[int]:
        """The other models, the likeliest to follow first; of two that are as likely the smaller one, which saves a
        client whose network got worse.
        """
        likely = {other: self.counts.get((model, other), 0.0) + 0.5 ** abs(other - model) for other in models}
        return sorted((other for other in models if other != model), key=lambda other: (-likely[other], other))
