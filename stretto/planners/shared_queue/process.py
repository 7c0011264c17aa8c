"""The semi-Markov decision process of a pool: states, actions, and what an action leads to.

K workers are taken as one server that is K times as fast: a batch of latency l blocks it for l/K, while its deadline
sees l itself. The queue is first come first served, so it holds exactly those who came since its head did: with n
waiting and a head of age a, the others' ages are spread evenly over (0, a) (for Poisson arrivals: independent uniform
ones, so the state (n, a) is Markov and the next head has age a·(n−b)/n on average). An action takes b queries on a
variant, or waits one step of slack. A head that no variant can answer in time is dropped. A query's time may have a
small price.

Values are kept at the grid's slacks and interpolated between them. Times are in steps of slack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.planners.parts.laws import Law, largest_count, probabilities
from stretto.planners.parts.task import Task
from stretto.planners.shared_queue.options import MAX_QUEUE

LEAST_QUEUE = 48
QUEUE_SHARE = 0.6  # of what comes within an SLO: a longer queue has heads that are nearly lost
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256)
FAST_ENOUGH = 1e-3  # a chance of being in time below this is none
SURE = 0.9999  # and one above this is certainty
UNLIKELY = 1e-7
MOST_ARRIVALS = 1e7
MOST_TOGETHER = 100_000  # chances that are reckoned at once
MEMORY = 1000.0  # SLOs
COUNT_STEP = 0.5  # of a standard deviation
WAIT = -1


@dataclass(frozen=True, eq=False)
class Process:
    """Actions in rows: variant (WAIT first), batch, latency, time that it blocks the pool, and chances of arrivals."""

    steps: int  # slack columns 0 … steps
    max_queue: int
    rate: float  # queries per step
    variant: NDArray[np.int64]
    batch: NDArray[np.int64]
    latency: NDArray[np.float64]
    blocks: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    on_time: NDArray[np.float64]  # [action, column]: the chance that a query of this slack is in time
    joining: NDArray[np.int64]  # [action, place]: how many may come meanwhile, -1 behind the last
    chance: NDArray[np.float64]  # [action, place]: and with what chance
    lasting: NDArray[np.float64]  # by action: what of the queue's worth counts after it
    running: NDArray[np.float64]  # by action: what the time in its batch costs the queries that it takes
    holding: float  # what a step of waiting costs a query
    least: int  # the first column from which a single query can be answered

    @property
    def actions(self) -> tuple[object, ...]:
        """As the compiled loops take them."""
        fields = (self.batch, self.blocks, self.accuracy, self.on_time, self.joining, self.chance)
        return (*fields, self.lasting, self.running, self.holding)


def process_of(
    task: Task,
    law: Law,
    load: float,
    workers: float,
    steps: int,
    noise: float = 0.0,
    *,
    margin: float = 0.0,
    impatience: float = 0.0,
    memory: float = MEMORY,
    queue_load: float | None = None,
) -> Process:
    """`workers` may be a fraction of the pool. `queue_load`: the longest queue told apart is that for this load.

    `margin` is a share of the slack that no batch may use. `impatience` is what an answer at the end of the SLO is
    worth less than one at once: of actions that are as good otherwise, the quicker one is taken. What is decided counts
    for `memory` SLOs, then the queue is as if it were new: a load does not last for ever, and where a policy lets a
    long queue grow without end its values would be without end too.
    """
    step_s = task.slo_ns / 1e9 / steps
    rate = load * step_s
    within_slo = (load if queue_load is None else queue_load) * task.slo_ns / 1e9
    max_queue = min(max(math.ceil(QUEUE_SHARE * within_slo), LEAST_QUEUE), MAX_QUEUE)
    rows = [(WAIT, 0, 1.0, 1.0, 0.0)]
    for m in range(len(task.variants)):
        for b in SIZES:
            if b <= min(task.max_batch, max_queue) and 0 < task.latency_ns[m, b] <= task.slo_ns:
                takes = float(task.latency_ns[m, b]) / task.slo_ns * steps
                rows.append((m, b, takes, takes / workers, float(task.accuracy[m])))
    variant, batch, latency, blocks, accuracy = (np.array(column) for column in zip(*rows, strict=True))
    joining, chance = arrivals_of(law, rate * blocks)
    on_time = in_time(np.arange(steps + 1.0)[None, :] * (1.0 - margin), latency[:, None], noise)
    on_time[0] = 0.0
    on_time[on_time > SURE] = 1.0
    possible = (on_time[batch == 1] > FAST_ENOUGH).any(axis=0)
    least = int(np.argmax(possible)) if possible.any() else steps
    return Process(
        steps, max_queue, rate, variant.astype(np.int64), batch.astype(np.int64), latency, blocks, accuracy,
        on_time, joining, chance, np.exp(-blocks / (memory * steps)),
        impatience / steps * batch * latency, impatience / steps, least,
    )  # fmt: skip


def arrivals_of(law: Law, means: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Counts and their chances, by action. Large counts are told apart in steps of a fraction of their deviation; a
    count between two steps is shared out between them, so that the mean is exact.
    """
    if not means.max() <= MOST_ARRIVALS:
        raise StrettoError("more queries come within one batch than a policy can tell apart; lower the load or the SLO")
    rows = []
    largest = [largest_count(law, mean) for mean in means.tolist()]
    together = max(1, MOST_TOGETHER // max(largest))
    for number, (mean, most) in enumerate(zip(means.tolist(), largest, strict=True)):
        if number % together == 0:
            probable = probabilities(law, max(largest) + 1, means[number : number + together])
        counts, chance = np.arange(most + 1), probable[number % together, : most + 1]
        stride = max(1, int(COUNT_STEP * math.sqrt(mean * law.dispersion)))
        if stride > 1:
            grid = counts // stride * stride
            part = (counts - grid) / stride
            summed = np.bincount(grid, chance * (1.0 - part), len(counts) + stride + 1)
            summed += np.bincount(grid + stride, chance * part, len(counts) + stride + 1)
            chance = summed.astype(np.float64, copy=False)
        likely = np.flatnonzero(chance > UNLIKELY)
        rows.append((likely, chance[likely] / chance[likely].sum()))
    longest = max(len(row_counts) for row_counts, _ in rows)
    joining = np.full((len(rows), longest), -1, np.int64)
    chances = np.zeros((len(rows), longest))
    for row, (likely, shares) in enumerate(rows):
        joining[row, : len(likely)] = likely
        chances[row, : len(likely)] = shares
    return joining, chances


def in_time(slack: NDArray[np.float64], latency: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """The chance that a batch of this mean latency ends within the slack."""
    if noise <= 0:
        return (latency <= slack).astype(np.float64)
    from scipy.special import ndtr

    sigma = math.sqrt(math.log1p(noise * noise))
    with np.errstate(divide="ignore"):
        chance: NDArray[np.float64] = ndtr((np.log(slack / latency) + 0.5 * sigma * sigma) / sigma)
    return chance
