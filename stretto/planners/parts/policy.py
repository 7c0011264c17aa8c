"""A policy for one load, with what it promises, and the table that the dispatcher follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.plan import Table

TABLE_STEPS = 500  # of a table for uneven slacks: the dispatcher's columns are even


@dataclass(frozen=True)
class Expectation:
    """Per query, in the long run, and bounds: `accuracy` of the answers on time from below, `late` from above, and
    `correct`, the share of queries answered right and on time, from below.

    RAMSIS bounds them where queries are dealt in turn. Where they go to the shortest queue its arrivals are an
    approximation (appendix I), and so is what it expects; the other planners' figures are approximations too.
    """

    accuracy: float
    late: float
    correct: float
    full: float  # share of decisions that find the queue beyond its longest length, where that is known
    median: float = 0.0  # half of the answers have at least this accuracy; 0 where that is not known
    p99: float = 0.0  # and 99 of 100 have at least this one

    @property
    def violation(self) -> float:
        """Share of queries without an answer on time: late ones, and dropped ones where heads are dropped."""
        return self.late


@dataclass(frozen=True, eq=False)
class Policy:
    """`variant[n, j]` (a place in the task's list; -1: wait) takes `batch[n, j]` queries when n wait and slack is T_j.

    Row 0 is not asked for; the last row is the full queue.
    """

    load: float
    slack_ns: NDArray[np.int64]
    variant: NDArray[np.int32]
    batch: NDArray[np.int32]
    expectation: Expectation

    def table(self, numbers: Sequence[int], kind: str | None = None) -> Table:
        """For a lane; `numbers` are the deployment's numbers of the task's variants."""
        step = int(self.slack_ns[1])
        variant, batch = self.variant, self.batch
        if (np.abs(self.slack_ns - step * np.arange(len(self.slack_ns))) > len(self.slack_ns)).any():
            step = max(1, int(self.slack_ns[-1]) // TABLE_STEPS)
            columns = np.searchsorted(self.slack_ns, step * np.arange(TABLE_STEPS + 1), side="right") - 1
            variant, batch = variant[:, columns], batch[:, columns]
        named = np.asarray(numbers, dtype=np.int32)
        of_deployment = np.where(variant < 0, variant, named[variant])
        return Table(step, np.ascontiguousarray(of_deployment), np.ascontiguousarray(batch), kind)


@dataclass(frozen=True, eq=False)
class Stored:
    """A library as a file holds it: what it is for, in words, and its policies."""

    file: str
    described: dict[str, str]
    variants: tuple[str, ...]
    complete_to: float
    policies: tuple[Policy, ...]
