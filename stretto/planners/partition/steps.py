"""From what workers hold to what they should hold, one worker at a time, so that nobody is without a worker meanwhile.

All tables are by worker and application. A worker that is to hold other models keeps serving its old ones until
every worker that takes them over holds them; where its memory is too small for both, it gives up what others hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Memory:
    """What models take by application, and what workers have."""

    static_bytes: NDArray[np.float64]
    dynamic_bytes: NDArray[np.float64]
    worker_bytes: NDArray[np.float64]

    def fits(self, worker: int, models: Bools) -> bool:
        """Whether the worker can hold these models and run the hungriest."""
        need = float(self.static_bytes[models].sum()) + float(self.dynamic_bytes[models].max(initial=0.0))
        return need <= float(self.worker_bytes[worker])


def awaited(goal: Bools, holds: Bools, alive: Bools) -> Bools:
    """By application: some of its workers that are there do not hold it yet, or none of them is there."""
    there = goal & alive[:, None]
    missing: Bools = np.any(there & ~holds, axis=0) | ~np.any(there, axis=0)
    return missing


def next_placement(
    goal: Bools, placed: Bools, holds: Bools, alive: Bools, memory: Memory, hurried: Bools, at_once: int = 1
) -> Bools:
    """What every worker is to hold next, on the way to the `goal`.

    `placed` is what workers were told to hold, and `holds` what they do hold. Applications that are `hurried` have no
    worker at all: all of their workers load at once. Of the others, `at_once` workers do.
    """
    present = alive[:, None]
    after = placed & (goal | awaited(goal, holds, alive))
    holders = (holds & present).sum(axis=0)
    for worker in np.flatnonzero((goal & hurried & ~after).any(axis=1)).tolist():
        _widen(after, worker, goal[worker] & hurried, goal, holds, holders, memory)
    loading = int((alive & (after & ~holds & ~hurried).any(axis=1)).sum())
    for worker in np.flatnonzero(alive & (goal & ~after).any(axis=1)).tolist():
        if loading >= at_once:
            break
        if _widen(after, worker, goal[worker], goal, holds, holders, memory):
            loading += bool((after[worker] & ~holds[worker]).any())
    for worker in np.flatnonzero(~alive).tolist():  # whoever is away begins with what it should hold
        after[worker] = goal[worker]
    return after


def _widen(
    after: Bools, worker: int, more: Bools, goal: Bools, holds: Bools, holders: NDArray[np.int64], memory: Memory
) -> bool:
    """The worker holds `more` besides. Where that is too much, it gives up what is no longer its own, and what most
    others hold first; what nobody else holds it keeps, and then nothing is changed.
    """
    wanted = after[worker] | more
    others = holders - holds[worker]
    old = np.flatnonzero(wanted & ~goal[worker] & (others > 0))
    old = old[np.argsort(-others[old], kind="stable")]
    for model in (-1, *old.tolist()):
        if model >= 0:
            wanted[model] = False
        if memory.fits(worker, wanted):
            holders -= holds[worker] & after[worker] & ~wanted
            after[worker] = wanted
            return True
    return False
