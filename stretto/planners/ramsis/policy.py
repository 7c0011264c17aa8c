"""The policy of one load: one worker's decision process, put together from states, actions and transitions, and solved;
and what the solution promises (section 5.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.planners.parts.fronts import pareto_front, undominated
from stretto.planners.parts.policy import Expectation, Policy
from stretto.planners.parts.task import Task
from stretto.planners.ramsis.leftover import partial_batches
from stretto.planners.ramsis.options import Options
from stretto.planners.ramsis.solve import DecisionProcess, Solution, entries_of, policy_iteration
from stretto.planners.ramsis.states import Rows, Space, rows_of, space_of
from stretto.planners.ramsis.streams import streams_of
from stretto.planners.ramsis.transitions import Chunk, whole_batches


def make_policy(task: Task, options: Options, load: float) -> Policy:
    """The best policy for a load (queries/s over all workers), to the tolerance of the options."""
    considered = undominated(task) if options.every_batch else pareto_front(task)
    model = model_of(task.only(considered), load, options)
    solution = policy_iteration(model.process, options.tolerance, model.space.after_empty)
    return policy_of(task.only(considered), model, solution, load, considered)


def policy_of(task: Task, model: Model, solution: Solution, load: float, considered: Sequence[int]) -> Policy:
    """A solution in the words of the application; `considered`: places of the task's variants in the whole list."""
    space, rows = model.space, model.rows
    shape = (space.max_queue, space.slacks)
    variant = np.empty((shape[0] + 2, shape[1]), dtype=np.int32)
    batch = np.empty_like(variant)
    places = np.asarray(considered, dtype=np.int32)
    for whole, of_row in ((variant, places[rows.variant]), (batch, rows.batch)):
        chosen = of_row[solution.policy]
        whole[1:-1] = chosen[:-1].reshape(shape)
        whole[0] = whole[1]
        whole[-1] = chosen[-1]
    return Policy(load, space.slack_ns, variant, batch, expectation_of(task, model, solution))


def expectation_of(task: Task, model: Model, solution: Solution) -> Expectation:
    """Section 5.1: sums over the states, weighted by how often they are met and by how many queries their batch takes.

    Slack is rounded down and a batch whose head is late counts as late altogether (it may have members in time, of its
    variant's accuracy), so the sums are bounds where queries are dealt in turn; with the shortest queue the arrivals
    are an approximation. The paper's are per decision, these per query, and so are the median and the 99th percentile:
    the accuracy that so many of the answers reach.
    """
    row = solution.policy
    weight = solution.share * model.rows.batch[row]
    weight /= weight.sum()
    accuracy = task.accuracy[model.rows.variant[row]]
    on_time = model.rows.on_time[row]
    # A dropped head is no answer; it does not count for the accuracy of answers.
    answered = weight * (model.rows.latency_ns[row] > 0)
    share = float(answered.sum())
    best_first = np.argsort(-accuracy)
    reached = np.cumsum(answered[best_first]) / max(share, 1e-300)
    places = np.minimum(np.searchsorted(reached, (0.5, 0.99)), len(reached) - 1)
    median, p99 = accuracy[best_first][places] if share > 0 else (0.0, 0.0)
    return Expectation(
        accuracy=float(answered @ accuracy) / share if share > 0 else 0.0,
        late=float(weight @ ~on_time),
        correct=float((weight * on_time) @ accuracy),
        full=float(solution.share[model.space.full]),
        median=float(median),
        p99=float(p99),
    )


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
        _, places = entries_of(chunk.rows, begin)
        target[places], probability[places] = chunk.target, chunk.probability
    reward, length = _rewards(task, rows, empty, options.per_decision)
    process = DecisionProcess(rows.first(space.size), begin, target, probability, reward, length)
    return Model(space, rows, process, empty)


def _rewards(
    task: Task, rows: Rows, empty: NDArray[np.float64], per_decision: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Section 4.1: Accuracy · SLOSatisfied, for each query of the batch or for the decision as a whole."""
    earned = np.where(rows.on_time, task.accuracy[rows.variant], 0.0)
    if not per_decision:
        return earned * rows.batch, rows.batch.astype(np.float64)
    # Waiting at an empty queue is a decision epoch of its own, with reward zero; it follows with the chance `empty`.
    return earned, 1.0 + empty
