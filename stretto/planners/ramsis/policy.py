"""A policy for one load, with what it promises (section 5.1), and the table that the dispatcher follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.plan import Table
from stretto.planners.ramsis.model import Model, model_of
from stretto.planners.ramsis.options import Options, Pruning
from stretto.planners.ramsis.solve import Solution, policy_iteration
from stretto.planners.ramsis.task import Task, pareto_front, undominated

TABLE_STEPS = 500  # of a table for uneven slacks: the dispatcher's columns are even


@dataclass(frozen=True)
class Expectation:
    """Section 5.1 per query, from the stationary distribution.

    Slack is rounded down and a batch whose head is late counts as late altogether, so these are bounds: `accuracy` of
    the answers on time from below (a late batch may have members in time, of its variant's accuracy), `late` from
    above, `correct`, the share of queries answered right and on time, from below. The paper's are per decision.
    """

    accuracy: float
    late: float
    correct: float
    full: float  # share of decisions that find the queue beyond its longest length

    @property
    def violation(self) -> float:
        """Share of queries without an answer on time: late ones, and dropped ones where heads are dropped."""
        return self.late

    def __str__(self) -> str:
        return f"accuracy ≥ {self.accuracy:.4f}, late ≤ {100 * self.late:.3g}%"


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


def make_policy(task: Task, options: Options, load: float) -> Policy:
    """The best policy for a load (queries/s over all workers), to the tolerance of the options."""
    kept = considered(task, options.pruning)
    model = model_of(task.only(kept), load, options)
    solution = policy_iteration(model.process, options.tolerance, model.space.after_empty)
    return policy_of(task.only(kept), model, solution, load, kept)


def considered(task: Task, pruning: Pruning) -> list[int]:
    """The places of the variants that a policy chooses from."""
    if pruning is Pruning.NONE:
        return list(range(len(task.variants)))
    return pareto_front(task) if pruning is Pruning.ONE_QUERY else undominated(task)


def policy_of(task: Task, model: Model, solution: Solution, load: float, kept: Sequence[int]) -> Policy:
    """A solution in the words of the application; `kept` are the places of the task's variants in the whole list."""
    space, rows = model.space, model.rows
    shape = (space.max_queue, space.slacks)
    variant = np.empty((shape[0] + 2, shape[1]), dtype=np.int32)
    batch = np.empty_like(variant)
    places = np.asarray(kept, dtype=np.int32)
    for whole, of_row in ((variant, places[rows.variant]), (batch, rows.batch)):
        chosen = of_row[solution.policy]
        whole[1:-1] = chosen[:-1].reshape(shape)
        whole[0] = whole[1]
        whole[-1] = chosen[-1]
    return Policy(load, space.slack_ns, variant, batch, expectation_of(task, model, solution))


def expectation_of(task: Task, model: Model, solution: Solution) -> Expectation:
    """Sums over the states, each weighted by how often it is met and by how many queries its batch takes."""
    row = solution.policy
    weight = solution.share * model.rows.batch[row]
    weight /= weight.sum()
    accuracy = task.accuracy[model.rows.variant[row]]
    on_time = model.rows.on_time[row]
    # A dropped head is no answer; it does not count for the accuracy of answers.
    answered = weight * (model.rows.latency_ns[row] > 0)
    share = float(answered.sum())
    return Expectation(
        accuracy=float(answered @ accuracy) / share if share > 0 else 0.0,
        late=float(weight @ ~on_time),
        correct=float((weight * on_time) @ accuracy),
        full=float(solution.share[model.space.full]),
    )
