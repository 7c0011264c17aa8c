"""The tables of one application on some workers of each kind, made on the spot and remembered, by steps of load.

A cell of (queued, age of the head) that tells of a burst has the action for the load that it makes likely, as in
`shared_queue`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from stretto.core.deployment import Deployment
from stretto.core.plan import GIVE_UP, Eager, Lane, Late, Missing, Order, Table, Tables, WorkerChoice
from stretto.planners.joint.filling import filled
from stretto.planners.joint.process import process_of
from stretto.planners.joint.solve import solve_line, tables_of
from stretto.planners.joint.sweeps import GIVES_UP
from stretto.planners.parts.last_used import LastUsed, bytes_of_policies, bytes_of_tables
from stretto.planners.parts.policy import Expectation, Policy
from stretto.planners.parts.steady import Steps
from stretto.planners.parts.task import Task
from stretto.planners.shared_queue.belief import believed

RUNG = 1.08  # loads within this factor share a policy
BURST_STEPS = 8  # loads that a burst may bring are told apart by so many rungs
MOST_BURST = 6.0  # times the load
QUIET = 0.1  # of what can be answered with the most accurate variants: below this all policies are the same
HIGHEST = 1.05  # of what can be answered at most: and above

Parts = tuple[float, ...]  # of each kind of worker
MOST_POLICIES = 2_000
MOST_BYTES = 256 << 20  # of policies, and of tables: those in force must have room, of all applications

Key = tuple[int, int, Hashable]  # application, rung, and which variants on how many workers of each kind


@dataclass(eq=False)
class TableMaker:
    """The options are those of `shared_queue`; `caution` times the load. `fills`: batches are filled (`filling.py`)."""

    slack_steps: int
    noise: float
    margin: float
    caution: float
    prior: float
    fills: bool = False
    solved: int = field(default=0, init=False)  # policies so far
    _policies: LastUsed[Key, tuple[Policy, ...]] = field(
        default_factory=lambda: LastUsed(MOST_POLICIES, bytes_of_policies, MOST_BYTES), init=False, repr=False
    )
    _tables: LastUsed[Key, tuple[Table, ...]] = field(
        default_factory=lambda: LastUsed(MOST_POLICIES, bytes_of_tables, MOST_BYTES), init=False, repr=False
    )

    def clear(self) -> None:
        self._policies.clear()
        self._tables.clear()

    def tables(
        self, deployment: Deployment, number: int, load: float, tasks: list[Task], parts: Parts, slow: Steps
    ) -> tuple[Table, ...]:
        """One for each task, which is a kind of worker; `parts` are the workers of each, and may be fractions."""
        most = HIGHEST * sum(pace(task) * count for task, count in zip(tasks, parts, strict=True))
        quiet = QUIET * sum(best_pace(task) * count for task, count in zip(tasks, parts, strict=True))
        rung = step_of(min(max(load, quiet), most), RUNG)
        crew = (tuple((task.kind, task.variants) for task in tasks), parts, slow)
        key = (number, rung, crew)
        if (known := self._tables.get(key)) is None:
            loads = [rung]
            if self.prior > 0:
                above = (rung // BURST_STEPS + 1) * BURST_STEPS  # the same loads for all, so that they are made once
                while RUNG ** (above - BURST_STEPS) < min(most, MOST_BURST * RUNG**rung):
                    loads.append(above)
                    above += BURST_STEPS
            rising = [self._policies_for((number, step, crew), tasks, parts) for step in loads]
            tables = []
            for place, task in enumerate(tasks):
                policy = believed([policies[place] for policies in rising], task.slo_ns, self.prior)
                tables.append(policy.table(task.numbers_in(deployment, number), task.kind))
            known = self._tables.put(key, tuple(tables))
        return known

    def _policies_for(self, key: Key, tasks: list[Task], parts: Parts) -> tuple[Policy, ...]:
        if (known := self._policies.get(key)) is None:
            known = self._policies.put(key, self._solve(tasks, list(parts), RUNG ** key[1]))
            self.solved += 1
        return known

    def _solve(self, tasks: list[Task], workers: list[float], load: float) -> tuple[Policy, ...]:
        """By kind: the policy for a load, and what the process gains."""
        process = process_of(
            tasks, workers, load * self.caution, self.slack_steps, self.noise, margin=self.margin, queue_load=load
        )
        line = solve_line(process)
        gained = line.gain / process.rate
        slack_ns = np.arange(self.slack_steps + 1) * max(1, tasks[0].slo_ns // self.slack_steps)
        policies = []
        tables = tables_of(process, line)
        if self.fills:
            tables = [filled(process, kind, action) for kind, action in enumerate(tables)]
        for task, action, least in zip(tasks, tables, process.least, strict=True):
            action[0] = action[1]
            lost = action == GIVES_UP  # goes to the fastest, at once, where nobody is in time but for the margin
            could_run = np.arange(self.slack_steps + 1) >= least
            variant = np.where(lost, task.fastest(1), np.where(action < 0, -1, process.variant[action]))
            batch = np.where(action < 0, 1, process.batch[action])
            batch = np.where(lost, np.where(could_run, GIVE_UP, task.max_batch), batch)
            expected = Expectation(gained, 0.0, gained, 0.0)
            policies.append(Policy(load, slack_ns, variant.astype(np.int32), batch.astype(np.int32), expected))
        return tuple(policies)


def lane_of(
    deployment: Deployment,
    number: int,
    workers: tuple[int, ...],
    tables: tuple[Table, ...],
    missing: Missing = Missing.LOAD,
) -> Lane:
    """One queue for the application; its workers in the order in which they are preferred."""
    return Lane(
        deployment.applications[number].name,
        workers,
        tables[0] if len(tables) == 1 else Tables(tables),
        Order.EARLIEST_DEADLINE,
        Eager(),
        Late.DROP_WHEN_INFEASIBLE,
        WorkerChoice.PREFERENCE,
        missing=missing,
    )


def rank(task: Task) -> tuple[float, float]:
    """The kind with the most accurate answers first; of equal ones that which has them soonest."""
    best = max(range(len(task.variants)), key=lambda m: (task.accuracy[m], -task.latency_ns[m, 1]))
    return -float(task.accuracy[best]), float(task.latency_ns[best, 1])


def pace(task: Task) -> float:
    """Queries/s that one worker answers at most."""
    return task.capacity() / task.workers


def best_pace(task: Task) -> float:
    """And with its most accurate variant."""
    return pace(task.only([int(np.argmax(task.accuracy))]))


def step_of(value: float, rung: float) -> int:
    """The nearest power of `rung`."""
    return round(math.log(value, rung))


def step_of_load(rate: float, window_s: float) -> int:
    """The power of RUNG for a measured load: the fewer queries a window counts, the fewer loads are told apart."""
    deviation = 0.5 / math.sqrt(max(rate * window_s, 1.0))
    coarse = 1 << max(0, round(math.log2(math.log1p(deviation) / math.log(RUNG))))
    return coarse * round(step_of(rate, RUNG) / coarse)
