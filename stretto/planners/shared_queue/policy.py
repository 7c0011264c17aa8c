"""A policy for one load: solved for the pool, tried on its workers, with a margin of load that is chosen there.

The process is solved for the load itself. Where the trial on K workers finds more late queries than are allowed, it is
solved for a somewhat higher load, and the smallest rise that keeps the promise is found by bisection. Where no rise
keeps it (the load is beyond what the workers can do), the one that answers most queries right and on time is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Eager, Lane, Late, Order, Table, by_application
from stretto.planners.parts.fronts import undominated
from stretto.planners.parts.policy import Expectation, Policy
from stretto.planners.parts.task import Task
from stretto.planners.ports import Seen, Trial, TrialConditions
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


@dataclass(frozen=True, eq=False)
class _Candidate:
    """The table for a rise of load, in places of the tried task's variants, and what it did."""

    rise: float
    solution: Solution
    variant: NDArray[np.int32]
    batch: NDArray[np.int32]
    seen: Seen

    def keeps(self, max_late: float) -> bool:
        """Whether as few are late as may be, surely."""
        return expectation_of(self.seen).late <= max_late


def make_policy(task: Task, options: Options, load: float, *, trial: Trial | None) -> Policy:
    """The policy for a load in queries/s over the task's workers."""
    if options.caution > 0:
        return _solved(task, options, load)
    if trial is None:
        raise StrettoError("a policy of the shared queue is chosen by trial, and there is nothing to try it with")
    considered = undominated(task)
    attempt = _Attempt(task.only(considered), options, load, trial)
    first = attempt.at(0.0)
    candidates = [first]
    if not first.keeps(options.max_late) and load < HOPEFUL * task.capacity():
        low, high = 0.0, MOST_RISE
        candidates.append(attempt.at(high))
        for _ in range(RISE_STEPS if candidates[-1].keeps(options.max_late) else 1):
            middle = attempt.at((low + high) / 2)
            candidates.append(middle)
            low, high = (low, middle.rise) if middle.keeps(options.max_late) else (middle.rise, high)
    kept = [candidate for candidate in candidates if candidate.keeps(options.max_late)]
    best = max(kept or candidates, key=lambda candidate: candidate.seen.correct)
    slack_ns = (np.arange(options.slack_steps + 1) * _step_ns(task, options)).astype(np.int64)
    expected = expectation_of(best.seen)
    lost = max(0.0, 1.0 - task.capacity() / load)  # whatever is done; a trial may be too short to show it
    if expected.late < lost:
        expected = replace(expected, late=lost, correct=expected.accuracy * (1.0 - lost))
    places = np.asarray(considered, np.int32)
    variant = np.where(best.variant < 0, best.variant, places[best.variant]).astype(np.int32)
    return Policy(load, slack_ns, variant, best.batch, expected)


def _solved(task: Task, options: Options, load: float) -> Policy:
    """Without a trial: who asks for a caution has tried it, or will. Expected is what the process gains."""
    considered = undominated(task)
    solution, variant, batch = _table(task.only(considered), options, load, options.caution)
    places = np.asarray(considered, np.int32)
    slack_ns = (np.arange(options.slack_steps + 1) * _step_ns(task, options)).astype(np.int64)
    gained = solution.gain / (load * options.caution * task.slo_ns / 1e9 / options.slack_steps)
    expected = Expectation(gained, 0.0, gained, 0.0)
    return Policy(load, slack_ns, np.where(variant < 0, variant, places[variant]).astype(np.int32), batch, expected)


def _step_ns(task: Task, options: Options) -> int:
    return max(1, task.slo_ns // options.slack_steps)


def _table(
    task: Task, options: Options, load: float, caution: float
) -> tuple[Solution, NDArray[np.int32], NDArray[np.int32]]:
    """Solved for a load that is taken for `caution` times as much."""
    process = process_of(
        task,
        options.law,
        load * caution,
        float(task.workers),
        options.slack_steps,
        noise=options.noise,
        margin=options.margin,
        impatience=IMPATIENCE,
        queue_load=load,
    )
    solution = solve(process)
    return solution, *table_of(task, solution, process.variant, process.batch)


def expectation_of(seen: Seen) -> Expectation:
    """Bounds: two standard errors to the worse side."""
    accuracy = max(0.0, seen.accuracy - ERRORS * seen.accuracy_error)
    late = min(1.0, seen.late + max(ERRORS * seen.late_error, NONE_SEEN / seen.queries))
    return Expectation(accuracy, late, accuracy * (1.0 - late), 0.0)


@dataclass(frozen=True, eq=False)
class _Attempt:
    """Solves for a load that is risen somewhat, and tries what comes out at the load itself."""

    task: Task  # with the variants to choose from
    options: Options
    load: float
    trial: Trial

    @cached_property
    def deployment(self) -> Deployment:
        return self.task.deployment()

    @property
    def conditions(self) -> TrialConditions:
        options, within_slo = self.options, self.load * self.task.slo_ns / 1e9
        queries = min(max(options.queries, math.ceil(LEAST_SLOS * within_slo)), max(MOST_QUERIES, options.queries))
        return TrialConditions(self.load, options.law, options.noise, queries, options.seed)

    def at(self, rise: float) -> _Candidate:
        solution, variant, batch = _table(self.task, self.options, self.load, 1.0 + rise)
        table = Table(_step_ns(self.task, self.options), variant, batch)
        plan = by_application((trial_lane(self.task, table),))
        return _Candidate(rise, solution, variant, batch, self.trial(self.deployment, plan, self.conditions))


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
