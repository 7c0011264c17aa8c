"""States and actions of one worker's decision process (sections 4.2 and 4.3).

A state is (n, T_j): n queued queries, the earliest deadline T_j away, rounded down to the grid of slacks. One more
state stands for a queue beyond the longest length, with slack zero (section 4.2.3). The empty queue is no state here:
its only action leads to (1, SLO) for certain (equation 1), so whatever leads to it leads there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.planners.parts.task import Task
from stretto.planners.ramsis.options import Options


@dataclass(frozen=True, eq=False)
class Space:
    """`slack_ns` rises from 0 to the SLO. State (n, j) has number (n − 1)·J + j; the full queue comes last."""

    slack_ns: NDArray[np.int64]
    max_queue: int

    @property
    def slacks(self) -> int:
        return len(self.slack_ns)

    @property
    def full(self) -> int:
        return self.max_queue * self.slacks

    @property
    def size(self) -> int:
        return self.full + 1

    @property
    def after_empty(self) -> int:
        """(1, SLO)."""
        return self.slacks - 1


def space_of(task: Task, options: Options) -> Space:
    """The grid of section 4.2.2 (fixed length) or 4.2.1 (every latency within the SLO)."""
    if options.slack_steps:
        step = max(1, task.slo_ns // options.slack_steps)
        # Where the SLO is no multiple of the steps, the last one is longer by less than a nanosecond per step.
        grid = step * np.arange(min(options.slack_steps, task.slo_ns // step) + 1, dtype=np.int64)
        grid[-1] = task.slo_ns
    else:
        latency = task.latency_ns[task.latency_ns <= task.slo_ns]
        grid = np.unique(np.concatenate(([0, task.slo_ns], latency)))
    return Space(grid, options.max_queue)


@dataclass(frozen=True, eq=False)
class Rows:
    """One row per state and action, sorted by state: `variant` takes `batch` queries for `latency_ns`.

    `on_time`: the head's deadline is met, so every query's is. A row with latency 0 drops the head.
    """

    state: NDArray[np.int64]
    queued: NDArray[np.int64]
    slack: NDArray[np.int64]  # index into the grid
    variant: NDArray[np.int64]
    batch: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    on_time: NDArray[np.bool_]

    def first(self, states: int) -> NDArray[np.int64]:
        """Where each state's rows begin, and the end."""
        return np.searchsorted(self.state, np.arange(states + 1))


def rows_of(task: Task, space: Space, options: Options) -> Rows:
    """The valid actions of every state (section 4.3)."""
    gathered: list[NDArray[np.int64]] = []
    for queued in range(1, space.max_queue + 1):
        gathered.extend(_feasible(task, space, options, queued))
        gathered.append(_unavoidable(task, space, options, queued))
    table = np.concatenate(gathered)
    # The full queue acts as (N, 0) does: nothing can be met at slack zero.
    last = table[(table[:, 0] == space.max_queue) & (table[:, 1] == 0)].copy()
    state = (table[:, 0] - 1) * space.slacks + table[:, 1]
    table = np.concatenate([table, last])
    state = np.concatenate([state, np.full(len(last), space.full)])
    order = np.lexsort((table[:, 2], -table[:, 3], state))
    queued, slack, variant, batch, latency, on_time = table[order].T
    return Rows(state[order], queued, slack, variant, batch, latency, on_time.astype(np.bool_))


def _feasible(task: Task, space: Space, options: Options, queued: int) -> list[NDArray[np.int64]]:
    """Rows that meet the head's deadline: (n, j, variant, batch, latency, 1)."""
    blocks = []
    whole = not options.variable and not options.drop
    most = min(queued, task.max_batch)  # of a queue longer than any batch the rest stays
    for variant, latency in enumerate(task.latency_ns):
        sizes = [most] if whole else range(1, most + 1)
        starts = {b: int(np.searchsorted(space.slack_ns, latency[b])) for b in sizes if latency[b] > 0}
        for batch, start in starts.items():
            # Where a batch is cut to what fits, the next larger one takes over as soon as it fits too.
            cut = not options.variable and batch + 1 in starts
            stop = starts[batch + 1] if cut else space.slacks
            blocks.append(_block(queued, np.arange(start, max(start, stop)), variant, batch, int(latency[batch]), 1))
    return blocks


def _unavoidable(task: Task, space: Space, options: Options, queued: int) -> NDArray[np.int64]:
    """Rows of the states in which no action meets the head's deadline (section 4.3.1)."""
    batch = 1 if options.drop else min(queued, task.max_batch)
    latency = 0 if options.drop else int(task.latency_ns[task.fastest(batch), batch])
    smallest = 1 if options.variable else batch
    least = int(task.latency_ns[task.fastest(smallest), smallest])
    late = np.arange(np.searchsorted(space.slack_ns, least))
    return _block(queued, late, task.fastest(batch), batch, latency, 0)


def _block(
    queued: int, slack: NDArray[np.int64], variant: int, batch: int, latency: int, on_time: int
) -> NDArray[np.int64]:
    block = np.empty((len(slack), 6), dtype=np.int64)
    block[:] = (queued, 0, variant, batch, latency, on_time)
    block[:, 1] = slack
    return block
