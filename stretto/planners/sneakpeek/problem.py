"""What the compiled schedulers read and keep: named tuples of plain arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NO_ANSWER = -1e18  # worth of an answer that cannot be given


class Problem(NamedTuple):
    """Requests stand group by group: group g has those from first[g] to first[g + 1]. V variants in all, K kinds."""

    deadline_ns: NDArray[np.int64]  # by request
    length_ns: NDArray[np.int64]  # of the deadline, from the arrival; above zero
    penalty: NDArray[np.int64]
    accuracy: NDArray[np.float64]  # [request, variant of its application]
    evidence: NDArray[np.float64]  # worth of an answer from evidence now, by request; NO_ANSWER: none
    late_share: NDArray[np.float64]  # of its worth that counts in planning where the answer is late, by request
    first: NDArray[np.int64]  # [groups + 1]
    first_variant: NDArray[np.int64]  # by group
    variants: NDArray[np.int64]  # how many, by group
    latency_ns: NDArray[np.int64]  # [V, K, batch]
    most: NDArray[np.int64]  # [V, K] the largest batch; 0: cannot run
    load_ns: NDArray[np.int64]  # [worker, V] before a variant that the worker did not run last
    first_load_ns: NDArray[np.int64]  # [worker, V] before the worker's first batch
    kind: NDArray[np.int64]  # by worker
    free_ns: NDArray[np.int64]  # by worker


class Sets(NamedTuple):
    """What is known of sets of groups, and of groups, before the search."""

    size: NDArray[np.int64]  # requests, by set
    answered: NDArray[np.float64]  # worth of answering the set from evidence
    same: NDArray[np.int64]  # by group: those of its application
    in_time: NDArray[np.float64]  # [set of one application, variant of it] gain where it ends in time
    soonest_ns: NDArray[np.int64]  # first deadline, by set of one application
    took_ns: NDArray[np.int64]  # [worker, set of one application, variant of it] time of the run; -1: cannot
    table: NDArray[np.float64]  # [worker, loaded or not, group, cell] the most of a group that is next
    later: NDArray[np.float64]  # [worker, group] the most on a worker from this one on, or from evidence
    origin_ns: int  # of the cells
    step_ns: int


class Nodes(NamedTuple):
    """States of the search. A front is a list of nodes linked by `after`, rising in time and in worth."""

    free_ns: NDArray[np.int64]
    worth: NDArray[np.float64]
    parent: NDArray[np.int64]
    batch: NDArray[np.int64]  # the set of groups of the last batch; 0: none yet on this worker
    variant: NDArray[np.int64]
    worker: NDArray[np.int64]
    after: NDArray[np.int64]
    front: NDArray[np.int64]  # [set of groups placed, last variant] the first node
    used: NDArray[np.int64]  # [1]
