"""The decision process of one worker at one load, put together from states, actions and transitions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.core.errors import StrettoError
from stretto.planners.parts.task import Task
from stretto.planners.ramsis.decision_process import DecisionProcess
from stretto.planners.ramsis.leftover import partial_batches
from stretto.planners.ramsis.options import Objective, Options
from stretto.planners.ramsis.states import Rows, Space, rows_of, space_of
from stretto.planners.ramsis.streams import streams_of
from stretto.planners.ramsis.transitions import Chunk, whole_batches


@dataclass(frozen=True, eq=False)
class Model:
    """`process` has the rows of `rows`, in their order; `empty` is the chance that a row empties the queue."""

    space: Space
    rows: Rows
    process: DecisionProcess
    empty: NDArray[np.float64]


def model_of(task: Task, load: float, options: Options) -> Model:
    """`task` holds the variants to choose from; `load` is that of all workers together (queries/s)."""
    if not (np.isfinite(load) and load > 0):
        raise StrettoError(f"a policy is for a load above zero, not {load}")
    space = space_of(task, options)
    rows = rows_of(task, space, options)
    whole = rows.batch == rows.queued
    chunks: list[Chunk] = []
    for stream, lengths in streams_of(task, load, options):
        fed = np.isin(rows.queued, lengths)
        chunks += whole_batches(stream, space, rows, np.flatnonzero(fed & whole))
        chunks += partial_batches(stream, space, rows, np.flatnonzero(fed & ~whole))
    counts = np.zeros(len(rows.state), dtype=np.int64)
    empty = np.zeros(len(rows.state))
    for chunk in chunks:
        counts[chunk.rows] = chunk.counts
        empty[chunk.rows] = chunk.empty
    begin = np.concatenate([[0], np.cumsum(counts)])
    target = np.empty(begin[-1], dtype=np.int32)
    probability = np.empty(begin[-1])
    for chunk in chunks:
        _place(begin, chunk.rows, chunk.counts, chunk.target, chunk.probability, target, probability)
    reward, length = _rewards(task, rows, empty, options.objective)
    process = DecisionProcess(rows.first(space.size), begin, target, probability, reward, length)
    return Model(space, rows, process, empty)


def _rewards(
    task: Task, rows: Rows, empty: NDArray[np.float64], objective: Objective
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Section 4.1: Accuracy · SLOSatisfied, for each query of the batch or for the decision as a whole."""
    earned = np.where(rows.on_time, task.accuracy[rows.variant], 0.0)
    if objective is Objective.QUERY:
        return earned * rows.batch, rows.batch.astype(np.float64)
    # Waiting at an empty queue is a decision epoch of its own, with reward zero; it follows with the chance `empty`.
    return earned, 1.0 + empty


@compiled
def _place(
    begin: NDArray[np.int64],
    rows: NDArray[np.int64],
    counts: NDArray[np.int64],
    target: NDArray[np.int32],
    probability: NDArray[np.float64],
    all_targets: NDArray[np.int32],
    all_probabilities: NDArray[np.float64],
) -> None:
    """Copy a chunk's entries to where their rows begin."""
    read = 0
    for i in range(len(rows)):
        write = begin[rows[i]]
        for k in range(counts[i]):
            all_targets[write + k] = target[read + k]
            all_probabilities[write + k] = probability[read + k]
        read += counts[i]
