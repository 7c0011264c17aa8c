"""Which workers make up each sub-cluster: as many as its work asks for, and mostly those that were in it before.

A worker that changes its sub-cluster loads all of the other's models, so that only few change at a time, and only where
some workers would else have clearly more to do than others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.planners.parts.sharing import workers_of_groups

NO_CREW = -1
UNEVEN = 1.25  # times the mean work of a worker: from there on a sub-cluster is given more
MOST_MOVED = 0.1  # of all workers, at a time


def crews_of(
    homes: Sequence[int], work: NDArray[np.float64], count: int, alive: NDArray[np.bool_], before: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The sub-cluster of each worker; `before` likewise, NO_CREW for one that is new. Workers that are away keep their
    place, and count for nothing.
    """
    if (before == NO_CREW).all():
        return _dealt(homes, work, count, len(alive))
    is_held = np.bincount(homes, minlength=count) > 0
    loads = np.bincount(homes, weights=work, minlength=count).astype(np.float64)
    crews = before.copy()
    is_idle = alive & (crews != NO_CREW)
    crews[is_idle & ~is_held[crews]] = NO_CREW  # their sub-cluster has no models any more
    sizes = np.bincount(crews[alive & (crews != NO_CREW)], minlength=count)
    for worker in np.flatnonzero(crews == NO_CREW).tolist():
        crews[worker] = int(np.argmax(_work_each(loads, sizes, is_held)))
        sizes[crews[worker]] += bool(alive[worker])
    moved = 0
    while moved < len(crews):
        each = _work_each(loads, sizes, is_held)
        needy = int(np.argmax(each))
        # Who gives a worker away has at least two, and has less to do afterwards than the needy has now.
        after = np.where(sizes >= 2, loads / np.maximum(sizes - 1, 1), np.inf)
        giver = int(np.argmin(after))
        is_uneven = each[needy] > UNEVEN * loads.sum() / max(int(sizes.sum()), 1) and moved < MOST_MOVED * len(crews)
        if giver == needy or after[giver] >= each[needy] or not (is_uneven or math.isinf(each[needy])):
            break
        crews[np.flatnonzero((crews == giver) & alive)[-1]] = needy
        sizes[giver] -= 1
        sizes[needy] += 1
        moved += 1
    return crews


def _work_each(loads: NDArray[np.float64], sizes: NDArray[np.int64], is_held: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The work of each worker of a sub-cluster; infinite where there are models and nobody for them."""
    each = np.where(sizes > 0, loads / np.maximum(sizes, 1), np.inf)
    return np.where(is_held, each, -1.0)


def _dealt(homes: Sequence[int], work: NDArray[np.float64], count: int, workers: int) -> NDArray[np.int64]:
    """From the start: of every kind of worker a share."""
    crews = np.full(workers, NO_CREW)
    for number, crew in enumerate(workers_of_groups(homes, work, count, range(workers))):
        crews[list(crew)] = number
    return crews
