"""Tables of few workers with their batches filled.

The process takes K workers of a kind for one that is K times as fast: it is asked K times as often, and finds that much
fewer queries. So it settles for small batches, and never lets a single query wait, because all workers would wait with
it. Where they are few, each of them finds more when it is free than the process thinks, and a wait costs the others
nothing. Filled, an action takes as many queries as its variant answers fastest for each, of those that are there and
can be in time; and one query alone waits for company while two would still be in time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.planners.joint.process import Process
from stretto.planners.joint.sweeps import WAITS


def filled(process: Process, kind: int, action: NDArray[np.int64]) -> NDArray[np.int64]:
    """The table of a kind, by queued and slack column, with larger batches; what it gives up stays given up.

    A batch need only fit the largest slack of its column: the dispatcher leaves out who would make it late. A wait must
    do no harm anywhere in it.
    """
    p = process
    of_kind = np.arange(p.first[kind], p.first[kind + 1])
    speed = p.batch * p.pace
    queued = np.arange(action.shape[0])[:, None]
    columns = np.arange(p.steps + 1)
    at_best = p.on_time[:, np.minimum(columns + 1, p.steps)]
    result = action.copy()
    for a in np.unique(action[action >= 0]).tolist():
        larger = of_kind[
            (p.variant[of_kind] == p.variant[a]) & (p.batch[of_kind] > p.batch[a]) & (speed[of_kind] >= speed[a])
        ]
        cells = action == a
        for other in larger[np.argsort(speed[larger], kind="stable")].tolist():
            result[cells & (queued >= p.batch[other]) & (at_best[other] >= 1.0)] = other
        if p.batch[a] == 1:
            pairs = larger[p.batch[larger] == 2]
            result[1, cells[1] & (p.on_time[pairs] >= 1.0).any(axis=0)] = WAITS
    return result
