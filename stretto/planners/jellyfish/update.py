"""From the models of one plan to those of the next (Jellyfish section IV-D): workers change by as little as possible.

Workers of a kind are alike, so it does not matter which of them gets which of the new models. Old and new ones are
sorted by size and paired one by one, which keeps the distance small; and with the neighbours of its model in memory, a
worker mostly has what it is to run next.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.planners.jellyfish.problem import UNMAPPED, Mapping

NOT_KNOWN = -1  # of a worker's model before


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


def neighbours(model: int, models: Sequence[int]) -> list[int]:
    """The other models by distance, nearest first; of two at the same distance the smaller one, which saves a client
    whose network got worse.
    """
    return sorted((other for other in models if other != model), key=lambda other: (abs(other - model), other))
