"""What a table does on K real workers: one run of queries through the very rules that the dispatcher follows.

The process that a policy is solved for takes the pool as one fast server. Here it is K workers, each busy for the whole
latency, with noise where it is asked for. What comes out is the policy's expectation, with its sampling error, and what
its safety margin is chosen by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.planners.ramsis.laws import Law
from stretto.planners.ramsis.policy import Expectation
from stretto.planners.ramsis.task import Task

BLOCKS = 20
WARM_UP = 0.05  # of the queries
ERRORS = 2.0  # standard errors between what was seen and what is promised
NONE_SEEN = 3.0  # of n queries: with 95% confidence fewer than 3/n are late where none was


@dataclass(frozen=True, eq=False)
class Trial:
    """Arrivals and noise, drawn once, so that policies are compared on the same ones."""

    arrivals_ns: NDArray[np.int64]
    noise: NDArray[np.float64]  # a factor of latency per batch


def trial_of(law: Law, load: float, queries: int, noise: float, seed: int) -> Trial:
    """Gaps of the law's dispersion (gamma ones; exponential for Poisson) and lognormal noise of mean one."""
    random = np.random.default_rng([seed, 0x5A12ED])
    shape = 1.0 / law.dispersion
    gaps = random.gamma(shape, 1.0 / (shape * load), queries)
    factor = np.ones(queries)
    if noise > 0:
        sigma = math.sqrt(math.log1p(noise * noise))
        factor = random.lognormal(-0.5 * sigma * sigma, sigma, queries)
    return Trial(np.cumsum(gaps * 1e9).astype(np.int64), factor)


@dataclass(frozen=True)
class Seen:
    """Means over all queries but the first ones, with standard errors from blocks of them."""

    accuracy: float  # per answer on time
    late: float
    accuracy_error: float
    late_error: float
    queries: int

    @property
    def correct(self) -> float:
        return self.accuracy * (1.0 - self.late)

    def expectation(self) -> Expectation:
        """Bounds: two standard errors to the worse side."""
        accuracy = max(0.0, self.accuracy - ERRORS * self.accuracy_error)
        late = min(1.0, self.late + max(ERRORS * self.late_error, NONE_SEEN / self.queries))
        return Expectation(accuracy, late, accuracy * (1.0 - late), 0.0)


def evaluate(task: Task, variant: NDArray[np.int32], batch: NDArray[np.int32], step_ns: int, trial: Trial) -> Seen:
    """`variant[n, j]` is a place in the task's list or -1 (wait), as in a policy."""
    fastest = task.fastest(1)
    counted, right = run(
        trial.arrivals_ns,
        trial.noise,
        task.slo_ns,
        task.workers,
        step_ns,
        variant,
        batch,
        np.ascontiguousarray(task.latency_ns),
        task.accuracy,
        fastest,
        BLOCKS,
        int(WARM_UP * len(trial.arrivals_ns)),
    )
    queries, on_time = counted[:, 0], counted[:, 1]
    total = int(queries.sum())
    late = (queries - on_time) / np.maximum(queries, 1)
    accuracy = right / np.maximum(on_time, 1)
    root = math.sqrt(BLOCKS)
    return Seen(
        float(right.sum() / max(int(on_time.sum()), 1)),
        float(1.0 - on_time.sum() / max(total, 1)),
        float(accuracy.std(ddof=1)) / root,
        float(late.std(ddof=1)) / root,
        total,
    )


@compiled
def sift_down(heap: Any, size: Any) -> None:
    """The first of the heap was replaced."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            return
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[place] <= heap[child]:
            return
        heap[place], heap[child] = heap[child], heap[place]
        place = child


@compiled
def run(
    arrivals: Any,
    noise: Any,
    slo: Any,
    workers: Any,
    step: Any,
    variant: Any,
    batch: Any,
    latency: Any,
    accuracy: Any,
    fastest: Any,
    blocks: Any,
    first: Any,
) -> Any:
    """Queries and those on time, and the sum of accuracy, by block of queries from `first` on."""
    total = len(arrivals)
    counted = np.zeros((blocks, 2), np.int64)
    right = np.zeros(blocks)
    rows, columns = variant.shape
    never = np.int64(2**62)
    heap = np.full(workers, never, np.int64)  # ends of running batches; `never` stands for an idle worker
    busy = 0
    head = 0
    tail = 0
    batches = 0
    now = np.int64(0)
    wake = never
    while head < total:
        coming = arrivals[tail] if tail < total else never
        ending = heap[0] if busy > 0 else never
        now = min(coming, ending, wake)
        if now >= never:
            break
        wake = never
        while busy > 0 and heap[0] <= now:
            busy -= 1
            heap[0] = heap[busy]
            heap[busy] = never
            sift_down(heap, busy)
        while tail < total and arrivals[tail] <= now:
            tail += 1
        while head < tail and busy < workers:
            slack = arrivals[head] + slo - now
            if slack < latency[fastest, 1]:
                if head >= first:
                    counted[(head - first) * blocks // (total - first), 0] += 1
                head += 1
                continue
            queued = tail - head
            row = min(queued, rows - 1)
            column = min(slack // step, columns - 1)
            chosen = variant[row, column]
            if chosen < 0:
                # when the cell changes, or when the head is lost, whichever is first
                wake = arrivals[head] + slo - max(column * step, latency[fastest, 1]) + 1
                break
            size = min(queued, batch[row, column])
            while size > 0 and (latency[chosen, size] <= 0 or latency[chosen, size] > slack):
                size -= 1
            if size == 0:  # the table is coarser than time: save the head if a faster variant can
                chosen = fastest
                size = min(queued, latency.shape[1] - 1)
                while size > 1 and (latency[chosen, size] <= 0 or latency[chosen, size] > slack):
                    size -= 1
            end = now + np.int64(latency[chosen, size] * noise[batches])
            batches += 1
            for query in range(head, head + size):
                if query >= first:
                    block = (query - first) * blocks // (total - first)
                    counted[block, 0] += 1
                    if end <= arrivals[query] + slo:
                        counted[block, 1] += 1
                        right[block] += accuracy[chosen]
            head += size
            place = busy
            heap[place] = end
            busy += 1
            while place > 0 and heap[(place - 1) // 2] > heap[place]:
                parent = (place - 1) // 2
                heap[place], heap[parent] = heap[parent], heap[place]
                place = parent
    return counted, right
