"""How much of each kind of worker an application should have: the fluid programme, for planners.

Variables are queries/s of an application on a variant and a kind; what is right counts, and no kind may be used beyond
its workers. A batch is the best of those that can form: queries of the same application have to come while its head can
still wait. Queues and chance are not in it, so what is left of a kind is dealt out as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.planners.parts.task import Task

SOONER = (
    0.01  # of accuracy: what an answer at once is worth more than one at the end of the SLO, where all else is equal
)
GIVEN_ALL = 0.1  # of the least work that an application could have on a kind: who has no part in the mix may still help


def shares_of_kinds(
    tasks: Sequence[Mapping[int, Task]], rates: Sequence[float], workers: Sequence[float]
) -> NDArray[np.float64]:
    """[application, kind] in workers; `tasks` by application and kind, `workers` by kind."""
    from scipy.optimize import linprog  # here, because a server that plans otherwise need not load it

    owner, used, seconds, worth = [], [], [], []
    least = np.zeros((len(rates), len(workers)))
    for application, by_kind in enumerate(tasks):
        for kind, task in by_kind.items():
            times = seconds_per_query(task, rates[application], workers[kind])
            for m in np.flatnonzero(np.isfinite(times)):
                owner.append(application)
                used.append(kind)
                seconds.append(float(times[m]))
                worth.append(float(task.accuracy[m]) - SOONER * float(task.latency_ns[m, 1]) / task.slo_ns)
            if np.isfinite(times).any():
                least[application, kind] = rates[application] * times.min()
    of_kind = np.equal.outer(np.arange(len(workers)), used) * np.array(seconds)
    of_application = np.equal.outer(np.arange(len(rates)), owner).astype(np.float64)
    solved = linprog(
        -np.array(worth),
        A_ub=np.vstack([of_kind, of_application]),
        b_ub=np.concatenate([np.asarray(workers, np.float64), np.asarray(rates, np.float64)]),
        method="highs",
    )
    shares = np.zeros((len(rates), len(workers)))
    np.add.at(shares, (owner, used), np.clip(solved.x, 0.0, None) * np.array(seconds))
    weight = shares + GIVEN_ALL * least
    spare = np.maximum(np.asarray(workers) - shares.sum(axis=0), 0.0)
    dealt: NDArray[np.float64] = shares + spare * weight / np.maximum(weight.sum(axis=0), 1e-12)
    return dealt


def seconds_per_query(task: Task, rate: float, workers: float) -> NDArray[np.float64]:
    """Worker time by variant, in its best batch; infinite where no batch is in time."""
    sizes = np.arange(1, task.max_batch + 1)
    latency = task.latency_ns[:, 1:]
    forms = sizes <= 1.0 + rate * np.maximum(task.slo_ns - latency, 0) / 1e9
    fits = (latency > 0) & (latency <= task.slo_ns * workers / (workers + 1.0))
    fits[:, 0] |= (latency[:, 0] > 0) & (latency[:, 0] <= task.slo_ns)
    best: NDArray[np.float64] = np.where(fits & forms, latency / sizes, np.inf).min(axis=1) / 1e9
    return best
