"""Unequal workers online: one lane for each application, with a table for each kind of worker that serves it.

Each application has a part of each kind, as the fluid programme deals them; its process is solved for those parts at
the load as measured. A cell of (queued, age of the head) that tells of a burst has the action for the load that it
makes likely, as in `shared_queue`. Everything is computed on the spot and remembered, by steps of load and of parts.

Kinds that are slower than profiled are taken with the latencies that they show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Lane, Late, Order, Plan, Table, Tables, WorkerChoice, by_application
from stretto.core.view import View
from stretto.planners.joint.process import process_of
from stretto.planners.joint.solve import solve_line, tables_of
from stretto.planners.joint.sweeps import GIVES_UP
from stretto.planners.parts.fluid import shares_of_kinds
from stretto.planners.parts.fronts import undominated
from stretto.planners.parts.policy import Expectation, Policy
from stretto.planners.parts.rates import RATE_WINDOW_NS, pressure_of, rates_of
from stretto.planners.parts.task import Task, kinds_for, task_of
from stretto.planners.shared_queue.belief import believed

RUNG = 1.08  # loads within this factor share a policy
PART_RUNG = 1.3  # and parts of a kind within this one
BURST_STEPS = 8  # loads that a burst may bring are told apart by so many rungs
MOST_BURST = 6.0  # times the load
SHARES_S = 2.0  # parts of the kinds follow the load within such a time
SURELY = 4.0  # deviations of what is counted in a window: a load that has changed by more is followed at once
SLOW_RUNG = 1.05
LEAST_SLOW, MOST_SLOW = 0.7, 4.0
MOST_PRESSURE = 1.5
QUIET = 0.1  # of what can be answered with the most accurate variants: below this all policies are the same
HIGHEST = 1.05  # of what can be answered at most: and above
NEARLY_NOTHING = 0.05  # of a worker: a kind of which an application has less does not serve it
MOST_KEPT = 2_000

Steps = tuple[int, ...]
Parts = tuple[float, ...]  # of each kind of worker


@dataclass(eq=False)
class Joint:
    """A planner that remembers its policies. The options are those of `shared_queue`; `caution` times the load."""

    slack_steps: int = 50
    noise: float = 0.1
    margin: float = 0.1
    caution: float = 1.0
    prior: float = 3.0
    _deployment: Deployment | None = field(default=None, init=False, repr=False)
    _policies: dict[tuple[int, int, Parts, Steps], tuple[Policy, ...]] = field(
        default_factory=dict, init=False, repr=False
    )
    _tables: dict[tuple[int, int, Parts, Steps], tuple[Table, ...]] = field(
        default_factory=dict, init=False, repr=False
    )
    _plans: dict[tuple[Steps, Steps, Steps, Steps], Plan] = field(default_factory=dict, init=False, repr=False)
    _shares: dict[tuple[Steps, Steps, Steps], NDArray[np.float64]] = field(default_factory=dict, init=False, repr=False)
    _tasks: tuple[tuple[Steps, Steps], list[dict[int, Task]]] | None = field(default=None, init=False, repr=False)
    _pressure: float = field(default=1.0, init=False, repr=False)
    _smooth: NDArray[np.float64] | None = field(default=None, init=False, repr=False)
    _smooth_ns: int = field(default=0, init=False, repr=False)
    _steps: Steps = field(default=(), init=False, repr=False)

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        if deployment is not self._deployment or len(self._policies) + len(self._plans) > MOST_KEPT:
            self._deployment, self._tasks = deployment, None
            for remembered in (self._policies, self._tables, self._plans, self._shares):
                remembered.clear()
        self._pressure = min(pressure_of(view, self._pressure), MOST_PRESSURE)
        measured = np.maximum(rates_of(view, 0.0), 1e-3)
        smooth = self._steady_steps(self._smoothed(view.now_ns, measured))
        rates = tuple(_step_of_load(rate) for rate in measured.tolist())
        kind_of = [deployment.kinds.index(deployment.workers[worker].kind) for worker in view.present]
        counts = tuple(np.bincount(kind_of, minlength=len(deployment.kinds)).tolist())
        slow = tuple(_step(ratio * self._pressure, SLOW_RUNG) for ratio in _slow_downs(view))
        key = (rates, smooth, counts, slow)
        if key not in self._plans:
            self._plans[key] = self._plan(deployment, *key)
        return self._plans[key]

    def _smoothed(self, now_ns: int, measured: NDArray[np.float64]) -> NDArray[np.float64]:
        """The loads that the kinds are shared out by: a moving average, but a clear change counts at once."""
        if self._smooth is None or len(self._smooth) != len(measured):
            self._smooth = measured.copy()
        window_s = RATE_WINDOW_NS / 1e9
        part = 1.0 - math.exp(-max(now_ns - self._smooth_ns, 0) / 1e9 / SHARES_S)
        moved = self._smooth + part * (measured - self._smooth)
        is_clear = np.abs(measured - self._smooth) * window_s > SURELY * np.sqrt(self._smooth * window_s + 1.0)
        self._smooth, self._smooth_ns = np.where(is_clear, measured, moved), now_ns
        return self._smooth

    def _steady_steps(self, smooth: NDArray[np.float64]) -> Steps:
        """The steps of smoothed loads; one that has moved by less than a whole step stays."""
        places = np.log(smooth) / math.log(PART_RUNG)
        before = np.array(self._steps) if len(self._steps) == len(places) else np.full(len(places), np.inf)
        moved = np.abs(places - before) >= 1.0
        self._steps = tuple(int(step) for step in np.where(moved, np.rint(places), before))
        return self._steps

    def _plan(self, deployment: Deployment, rates: Steps, smooth: Steps, counts: Steps, slow: Steps) -> Plan:
        tasks = self._tasks_for(deployment, counts, slow)
        if (smooth, counts, slow) not in self._shares:
            steady = [self.caution * PART_RUNG**step for step in smooth]
            self._shares[smooth, counts, slow] = shares_of_kinds(tasks, steady, counts)
        shares = self._shares[smooth, counts, slow]
        lanes = tuple(
            self._lane(deployment, number, RUNG ** rates[number], tasks[number], shares[number], slow)
            for number in range(len(rates))
        )
        return by_application(lanes, rate_window_ns=RATE_WINDOW_NS, planner="joint")

    def _tasks_for(self, deployment: Deployment, counts: Steps, slow: Steps) -> list[dict[int, Task]]:
        """By application and kind; remembered, because most plans differ in loads alone."""
        if self._tasks is None or self._tasks[0] != (counts, slow):
            every = [_tasks(deployment, number, counts, slow) for number in range(len(deployment.applications))]
            self._tasks = ((counts, slow), every)
        return self._tasks[1]

    def _lane(
        self,
        deployment: Deployment,
        number: int,
        load: float,
        tasks: dict[int, Task],
        shares: NDArray[np.float64],
        slow: Steps,
    ) -> Lane:
        kinds = [kind for kind in tasks if shares[kind] >= NEARLY_NOTHING] or [max(tasks, key=lambda k: shares[k])]
        kinds.sort(key=lambda kind: _rank(tasks[kind]))
        parts = tuple(max(float(shares[kind]), NEARLY_NOTHING) for kind in kinds)
        if len(deployment.applications) > 1:  # whose parts waver; one alone has all workers, to the last
            parts = tuple(PART_RUNG ** _step(part, PART_RUNG) for part in parts)
        served = [tasks[kind] for kind in kinds]
        tables = self._tables_for(deployment, number, load, served, parts, tuple(slow[kind] for kind in kinds))
        return Lane(
            deployment.applications[number].name,
            tuple(
                worker for task in served for worker, owner in enumerate(deployment.workers) if owner.kind == task.kind
            ),
            tables[0] if len(tables) == 1 else Tables(tables),
            Order.EARLIEST_DEADLINE,
            Eager(),
            Late.DROP_WHEN_INFEASIBLE,
            WorkerChoice.PREFERENCE,
        )

    def _tables_for(
        self, deployment: Deployment, number: int, load: float, tasks: list[Task], parts: Parts, slow: Steps
    ) -> tuple[Table, ...]:
        names = tuple(deployment.kinds.index(task.kind) for task in tasks)
        most = HIGHEST * sum(_pace(task) * count for task, count in zip(tasks, parts, strict=True))
        quiet = QUIET * sum(_best_pace(task) * count for task, count in zip(tasks, parts, strict=True))
        rung = _step(min(max(load, quiet), most), RUNG)
        key = (number, rung, (*names, *parts), slow)
        if key not in self._tables:
            loads = [rung]
            if self.prior > 0:
                above = (rung // BURST_STEPS + 1) * BURST_STEPS  # the same loads for all, so that they are made once
                while RUNG ** (above - BURST_STEPS) < min(most, MOST_BURST * RUNG**rung):
                    loads.append(above)
                    above += BURST_STEPS
            rising = [self._policies_for(number, step, tasks, names, parts, slow) for step in loads]
            tables = []
            for place, task in enumerate(tasks):
                policy = believed([policies[place] for policies in rising], task.slo_ns, self.prior)
                tables.append(policy.table(task.numbers_in(deployment, number), task.kind))
            self._tables[key] = tuple(tables)
        return self._tables[key]

    def _policies_for(
        self, number: int, rung: int, tasks: list[Task], names: Steps, parts: Parts, slow: Steps
    ) -> tuple[Policy, ...]:
        key = (number, rung, (*names, *parts), slow)
        if key not in self._policies:
            self._policies[key] = self._solved(tasks, list(parts), RUNG**rung)
        return self._policies[key]

    def _solved(self, tasks: list[Task], workers: list[float], load: float) -> tuple[Policy, ...]:
        """By kind: the policy for a load, and what the process gains."""
        process = process_of(
            tasks, workers, load * self.caution, self.slack_steps, self.noise, margin=self.margin, queue_load=load
        )
        line = solve_line(process)
        gained = line.gain / process.rate
        slack_ns = np.arange(self.slack_steps + 1) * max(1, tasks[0].slo_ns // self.slack_steps)
        policies = []
        for task, action in zip(tasks, tables_of(process, line), strict=True):
            action[0] = action[1]
            lost = action == GIVES_UP  # goes to the fastest, at once
            variant = np.where(lost, task.fastest(1), np.where(action < 0, -1, process.variant[action]))
            batch = np.where(lost, task.max_batch, np.where(action < 0, 1, process.batch[action]))
            expected = Expectation(gained, 0.0, gained, 0.0)
            policies.append(Policy(load, slack_ns, variant.astype(np.int32), batch.astype(np.int32), expected))
        return tuple(policies)


def _tasks(deployment: Deployment, number: int, counts: Steps, slow: Steps) -> dict[int, Task]:
    """By kind that is there and can answer within the SLO; all that can, where none is there."""
    able: dict[int, Task] = {}
    slo_ns = deployment.applications[number].slo_ns
    for name in kinds_for(deployment, number):
        kind = deployment.kinds.index(name)
        task = task_of(deployment, number, name)
        latency = np.rint(task.latency_ns * SLOW_RUNG ** slow[kind]).astype(np.int64)
        if (latency[:, 1] <= slo_ns).any():
            slower = replace(task, latency_ns=latency)
            able[kind] = slower.only(undominated(slower))
        elif not able and name == kinds_for(deployment, number)[-1]:
            able[kind] = task
    return {kind: task for kind, task in able.items() if counts[kind] > 0} or able


def _rank(task: Task) -> tuple[float, float]:
    """The kind with the most accurate answers first; of equal ones that which has them soonest."""
    best = max(range(len(task.variants)), key=lambda m: (task.accuracy[m], -task.latency_ns[m, 1]))
    return -float(task.accuracy[best]), float(task.latency_ns[best, 1])


def _pace(task: Task) -> float:
    """Queries/s that one worker answers at most."""
    return task.capacity() / task.workers


def _best_pace(task: Task) -> float:
    """And with its most accurate variant."""
    return _pace(task.only([int(np.argmax(task.accuracy))]))


def _slow_downs(view: View) -> list[float]:
    """By kind: measured over profiled latency, the median over what was measured; else that of all kinds."""
    every = view.latency_ratio[view.is_measured]
    usual = float(np.median(every)) if every.size else 1.0
    ratios = []
    for kind in range(len(view.deployment.kinds)):
        measured = view.latency_ratio[view.is_measured[:, kind], kind]
        ratios.append(float(np.clip(np.median(measured) if measured.size else usual, LEAST_SLOW, MOST_SLOW)))
    return ratios


def _step(value: float, rung: float) -> int:
    """The nearest power of `rung`."""
    return round(math.log(value, rung))


def _step_of_load(rate: float) -> int:
    """The power of RUNG for a measured load: the fewer queries a window counts, the fewer loads are told apart."""
    deviation = 0.5 / math.sqrt(max(rate * RATE_WINDOW_NS / 1e9, 1.0))
    coarse = 1 << max(0, round(math.log2(math.log1p(deviation) / math.log(RUNG))))
    return coarse * round(_step(rate, RUNG) / coarse)
