"""A policy for one load: solved for the pool, tried on its workers, with a margin of load that is chosen there.

The process is solved for the load itself. Where the trial on K workers finds more late queries than are allowed, it is
solved for a somewhat higher load, and the smallest rise that keeps the promise is found by bisection. Where no rise
keeps it (the load is beyond what the workers can do), the one that answers most queries right and on time is taken.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.core.plan import Eager, Lane, Late, Order, Table, by_application
from stretto.planners.parts.fronts import undominated
from stretto.planners.parts.policy import Expectation, Policy
from stretto.planners.parts.task import Task
from stretto.planners.ports import Seen, Trial, TrialConditions
from stretto.planners.shared_queue.gathering import solve_gathering
from stretto.planners.shared_queue.line import GIVE_UP
from stretto.planners.shared_queue.options import Options
from stretto.planners.shared_queue.process import process_of
from stretto.planners.shared_queue.solve import Solution, solve

MOST_RISE = 0.64  # of load
LEAST_SLOS = 20  # that a trial spans
MOST_QUERIES = 1_000_000
HOPEFUL = 0.97  # of what the workers can answer: beyond, no rise of load keeps the promise
RISE_STEPS = 4  # bisections
ERRORS = 2.0  # standard errors between what was seen and what is promised
NONE_SEEN = 3.0  # of n queries: with 95% confidence fewer than 3/n are late where none was
# Of accuracy: without it a policy may as well wait until the last moment when there is little to do.
IMPATIENCE = 0.0005


def make_policy(task: Task, options: Options, load: float, *, trial: Trial | None) -> Policy:
    """The policy for a load in queries/s over the task's workers. Who asks for a caution has tried it, or will."""
    if options.caution > 0:
        return _solved(task, options, load, options.caution)
    if trial is None:
        raise StrettoError("a policy of the shared queue is chosen by trial, and there is nothing to try it with")
    try_out, deployment, conditions = trial, task.deployment(), _conditions(task, options, load)

    def tried(rise: float) -> Policy:
        policy = _solved(task, options, load, 1.0 + rise)
        plan = by_application((trial_lane(task, policy.table(range(len(task.variants)), task.kind)),))
        return replace(policy, expectation=expectation_of(try_out(deployment, plan, conditions)))

    def keeps(policy: Policy) -> bool:
        return policy.expectation.late <= options.max_late

    policies = [tried(0.0)]
    if not keeps(policies[0]) and load < HOPEFUL * task.capacity():
        low, high = 0.0, MOST_RISE
        policies.append(tried(high))
        for _ in range(RISE_STEPS if keeps(policies[-1]) else 1):
            middle = (low + high) / 2
            policies.append(tried(middle))
            low, high = (low, middle) if keeps(policies[-1]) else (middle, high)
    best = max([policy for policy in policies if keeps(policy)] or policies, key=lambda each: each.expectation.correct)
    expected = best.expectation
    lost = max(0.0, 1.0 - task.capacity() / load)  # whatever is done; a trial may be too short to show it
    if expected.late < lost:
        expected = replace(expected, late=lost, correct=expected.accuracy * (1.0 - lost))
    return replace(best, expectation=expected)


def _solved(task: Task, options: Options, load: float, caution: float) -> Policy:
    """Solved for a load that is taken for `caution` times as much. Expected is what the process gains."""
    considered = undominated(task)
    process = process_of(
        task.only(considered),
        options.law,
        load * caution,
        float(task.workers),
        options.slack_steps,
        noise=options.noise,
        margin=options.margin,
        impatience=IMPATIENCE,
        queue_load=load,
    )
    solution = solve_gathering(process) if options.gathers else solve(process)
    variant, batch = table_of(task.only(considered), solution, process.variant, process.batch)
    variant = np.where(variant < 0, variant, np.asarray(considered)[variant]).astype(np.int32)
    slack_ns = np.arange(options.slack_steps + 1) * max(1, task.slo_ns // options.slack_steps)
    gained = solution.gain / process.rate
    return Policy(load, slack_ns.astype(np.int64), variant, batch, Expectation(gained, 0.0, gained, 0.0))


def expectation_of(seen: Seen) -> Expectation:
    """Bounds: two standard errors to the worse side."""
    accuracy = max(0.0, seen.accuracy - ERRORS * seen.accuracy_error)
    late = min(1.0, seen.late + max(ERRORS * seen.late_error, NONE_SEEN / seen.queries))
    return Expectation(accuracy, late, accuracy * (1.0 - late), 0.0)


def _conditions(task: Task, options: Options, load: float) -> TrialConditions:
    within_slo = load * task.slo_ns / 1e9
    queries = min(max(options.queries, math.ceil(LEAST_SLOS * within_slo)), max(MOST_QUERIES, options.queries))
    return TrialConditions(load, options.law, options.noise, queries, options.seed)


def trial_lane(task: Task, table: Table) -> Lane:
    """The lane that follows a table on all of the task's workers."""
    crew = tuple(range(task.workers))
    return Lane(task.application, crew, table, Order.EARLIEST_DEADLINE, Eager(), Late.DROP_WHEN_INFEASIBLE)


def table_of(
    task: Task, solution: Solution, variants: NDArray[np.int64], batches: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """By queued and slack: the variant's place (-1: wait) and the batch. What is lost goes to the fastest, at once."""
    action = solution.action.copy()
    action[0] = action[1]
    lost = action == GIVE_UP
    variant = np.where(lost, task.fastest(1), variants[action])
    batch = np.where(lost, task.max_batch, np.maximum(batches[action], 1))
    return np.ascontiguousarray(variant, dtype=np.int32), np.ascontiguousarray(batch, dtype=np.int32)
