"""A policy for one load: solved for the pool, tried on its workers, with a margin of load that is chosen there.

The process is solved for the load itself. Where the trial on K workers finds more late queries than are allowed, it is
solved for a somewhat higher load, and the smallest rise that keeps the promise is found by bisection. Where no rise
keeps it (the load is beyond what the workers can do), the one that answers most queries right and on time is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stretto.planners.ramsis.policy import Policy
from stretto.planners.ramsis.task import Task, undominated
from stretto.planners.shared_queue.evaluate import Seen, Trial, evaluate, trial_of
from stretto.planners.shared_queue.line import LOST
from stretto.planners.shared_queue.options import Options
from stretto.planners.shared_queue.process import process_of
from stretto.planners.shared_queue.solve import Solution, solve

MOST_MARGIN = 0.32  # of load
LEAST_SLOS = 20  # that a trial spans
MOST_QUERIES = 1_000_000
HOPEFUL = 0.97  # of what the workers can answer: beyond, no rise of load keeps the promise
MARGIN_STEPS = 3  # bisections
IMPATIENCE = (
    0.0005  # of accuracy: without it a policy may as well wait until the last moment when there is little to do
)


@dataclass(frozen=True, eq=False)
class _Tried:
    """A table for a margin, and what it did."""

    margin: float
    solution: Solution
    variant: NDArray[np.int32]
    batch: NDArray[np.int32]
    seen: Seen

    def keeps(self, options: Options) -> bool:
        """Whether as few are late as may be, surely."""
        return self.seen.expectation().late <= options.max_late


def make_policy(task: Task, options: Options, load: float, workers: float | None = None) -> Policy:
    """The policy for a load in queries/s. `workers`: the part of the pool that is this application's, if not all."""
    kept = undominated(task)
    part = float(task.workers if workers is None else workers)
    own = replace(task.only(kept), workers=max(1, round(part)))
    within_slo = load * task.slo_ns / 1e9
    queries = min(max(options.queries, math.ceil(LEAST_SLOS * within_slo)), max(MOST_QUERIES, options.queries))
    trial = trial_of(options.law, load, queries, options.noise, options.seed)

    def tried(margin: float, near: Solution | None = None) -> _Tried:
        return _try(own, kept, options, load, margin, part, trial, near)

    best = first = tried(0.0)
    hopeful = load < HOPEFUL * own.capacity()
    if not first.keeps(options) and hopeful:
        low, high = 0.0, MOST_MARGIN
        found = [first, tried(high, first.solution)]
        for _ in range(MARGIN_STEPS if found[-1].keeps(options) else 1):
            middle = tried((low + high) / 2, found[-1].solution)
            found.append(middle)
            if middle.keeps(options):
                high = middle.margin
            else:
                low = middle.margin
        kept_promise = [one for one in found if one.keeps(options)]
        best = max(kept_promise or found, key=lambda one: one.seen.correct)
    slack_ns = (np.arange(options.slack_steps + 1) * _step_ns(task, options)).astype(np.int64)
    expected = best.seen.expectation()
    lost = max(0.0, 1.0 - own.capacity() / load)  # whatever is done; a trial may be too short to show it
    if expected.late < lost:
        expected = replace(expected, late=lost, correct=expected.accuracy * (1.0 - lost))
    return Policy(load, slack_ns, best.variant, best.batch, expected)


def _step_ns(task: Task, options: Options) -> int:
    return max(1, task.slo_ns // options.slack_steps)


def _try(
    own: Task,
    kept: list[int],
    options: Options,
    load: float,
    margin: float,
    workers: float,
    trial: Trial,
    near: Solution | None,
) -> _Tried:
    raised, steps = load * (1.0 + margin), options.slack_steps
    process = process_of(
        own,
        options.law,
        raised,
        workers,
        steps,
        noise=options.noise,
        margin=options.margin,
        impatience=IMPATIENCE,
        queue_load=load,
    )
    solution = solve(process, options.tolerance, near)
    variant, batch = table_of(own, solution, process.variant, process.batch)
    seen = evaluate(own, variant, batch, _step_ns(own, options), trial)
    places = np.asarray(kept, np.int32)
    named = np.where(variant < 0, variant, places[variant]).astype(np.int32)
    return _Tried(margin, solution, named, batch, seen)


def table_of(
    task: Task, solution: Solution, variants: NDArray[np.int64], batches: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """By queued and slack: the variant's place (-1: wait) and the batch. What is lost goes to the fastest, at once."""
    action = solution.action.copy()
    action[0] = action[1]
    lost = action == LOST
    variant = np.where(lost, task.fastest(1), variants[action])
    batch = np.where(lost, task.max_batch, np.maximum(batches[action], 1))
    return np.ascontiguousarray(variant, dtype=np.int32), np.ascontiguousarray(batch, dtype=np.int32)
