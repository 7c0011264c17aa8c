"""The policy of one load: RAMSIS's decision process solved, and what the solution promises (section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.planners.parts.fronts import pareto_front, undominated
from stretto.planners.parts.policy import Expectation, Policy
from stretto.planners.parts.task import Task
from stretto.planners.ramsis.model import Model, model_of
from stretto.planners.ramsis.options import Options, Pruning
from stretto.planners.ramsis.solve import Solution, policy_iteration


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
    """Section 5.1: sums over the states, weighted by how often they are met and by how many queries their batch takes.

    Slack is rounded down and a batch whose head is late counts as late altogether (it may have members in time, of its
    variant's accuracy), so the sums are bounds. The paper's are per decision, these per query.
    """
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
