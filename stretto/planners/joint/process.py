"""The decision process of a pool of unequal workers: what each kind may do, and at what pace.

The state is the line's of `shared_queue`: n queries wait, and they came at the expected pace. Each kind of worker has a
standing choice for each n: a variant and a batch, or to leave the queries for the other kinds. K workers of a kind that
take d for their choice end one K/d times a second; the kinds that work together end one every 1/Σ K/d, and which kind
it was is a matter of those paces. So nobody needs to know which share of the decisions a kind has: it follows, state by
state, from what the kinds choose. Where every kind waits, a step of slack passes. With one kind this is the line of
`shared_queue`.

Times are in steps of slack, as there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.planners.parts.task import Task
from stretto.planners.shared_queue.options import MAX_QUEUE
from stretto.planners.shared_queue.process import (
    FAST_ENOUGH,
    LEAST_QUEUE,
    MEMORY,
    MOST_ARRIVALS,
    QUEUE_SHARE,
    SIZES,
    SURE,
    in_time,
)

IMPATIENCE = 0.0005  # of accuracy, as in `shared_queue`
TIMES = 40  # that what follows is computed for


class Process(NamedTuple):
    """Actions in rows, those of kind k from `first[k]` to `first[k + 1]`. A tuple, as the compiled loops take it."""

    steps: int  # slack columns 0 … steps
    max_queue: int
    rate: float  # queries per step
    first: NDArray[np.int64]
    variant: NDArray[np.int64]  # a place in its kind's task
    batch: NDArray[np.int64]
    latency: NDArray[np.float64]
    pace: NDArray[np.float64]  # how many such batches all workers of the kind end per step
    accuracy: NDArray[np.float64]
    on_time: NDArray[np.float64]  # [action, column]: the chance that a query of this slack is in time
    running: NDArray[np.float64]  # what the time in its batch costs the queries that it takes
    workers: NDArray[np.float64]  # by kind
    least: NDArray[np.int64]  # by kind: the first column from which it can answer a single query
    holding: float  # what a step of waiting costs a query
    memory: float  # steps for which what is decided counts
    times: NDArray[
        np.float64
    ]  # rising: until a batch ends, at which what follows is computed; between them it is a line


def process_of(
    tasks: Sequence[Task],
    workers: Sequence[float],
    load: float,
    steps: int,
    noise: float = 0.0,
    *,
    margin: float = 0.0,
    impatience: float = IMPATIENCE,
    memory: float = MEMORY,
    queue_load: float | None = None,
) -> Process:
    """One task for each kind, of one application; `workers` of each, which may be fractions. The rest is as for the
    process of `shared_queue`. Arrivals are Poisson.
    """
    slo_ns = tasks[0].slo_ns
    rate = load * slo_ns / 1e9 / steps
    within_slo = (load if queue_load is None else queue_load) * slo_ns / 1e9
    max_queue = min(max(math.ceil(QUEUE_SHARE * within_slo), LEAST_QUEUE), MAX_QUEUE)
    rows, first = [], [0]
    for task, count in zip(tasks, workers, strict=True):
        for m in range(len(task.variants)):
            for b in SIZES:
                if b <= min(task.max_batch, max_queue) and 0 < task.latency_ns[m, b] <= slo_ns:
                    takes = float(task.latency_ns[m, b]) / slo_ns * steps
                    rows.append((m, b, takes, count / takes, float(task.accuracy[m])))
        first.append(len(rows))
    variant, batch, latency, pace, accuracy = (np.array(column) for column in zip(*rows, strict=True))
    if not rate * max(1.0, 1.0 / float(pace.min())) <= MOST_ARRIVALS:
        raise StrettoError("more queries come within one batch than a policy can tell apart; lower the load or the SLO")
    on_time = in_time(np.arange(steps + 1.0)[None, :] * (1.0 - margin), latency[:, None], noise)
    on_time[on_time > SURE] = 1.0
    least = []
    for low, high in pairwise(first):
        possible = (on_time[low:high][batch[low:high] == 1] > FAST_ENOUGH).any(axis=0)
        least.append(int(np.argmax(possible)) if possible.any() else steps)
    quickest = sum(float(pace[low:high].max(initial=0.0)) for low, high in pairwise(first))
    times = np.geomspace(min(1.0 / quickest, 0.5), max(1.0 / float(pace.min()), 1.0) * (1 + 1e-9), TIMES)
    return Process(
        steps, max_queue, rate, np.array(first, np.int64), variant.astype(np.int64), batch.astype(np.int64), latency,
        pace, accuracy, on_time, impatience / steps * batch * latency, np.array(workers, np.float64),
        np.array(least, np.int64), impatience / steps, memory * steps, times,
    )  # fmt: skip
