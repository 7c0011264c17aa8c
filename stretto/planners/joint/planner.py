"""Unequal workers online: one lane for each application, with a table for each kind of worker that serves it.

Each application has a part of each kind, as the fluid programme deals them; its process is solved for those parts at
the load as measured. Everything is computed on the spot and remembered, by steps of load and of parts. A plan solves so
many policies and no more: where more loads have moved at once, those that moved least keep their tables until the next.

Kinds that are slower than profiled are taken with the latencies that they show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.plan import Lane, Plan, by_application
from stretto.core.view import View
from stretto.planners.joint.tables import RUNG, Parts, TableMaker, lane_of, rank, step_of, step_of_load
from stretto.planners.parts.floors import single_variant_lane
from stretto.planners.parts.fluid import shares_of_kinds
from stretto.planners.parts.fronts import undominated
from stretto.planners.parts.last_used import LastUsed
from stretto.planners.parts.rates import RATE_WINDOW_NS, rates_of
from stretto.planners.parts.steady import SteadyLoads, Steps
from stretto.planners.parts.task import Task, kinds_for, task_of

PART_RUNG = 1.3  # parts of a kind within this factor share a policy
SHARES_S = 2.0  # parts of the kinds follow the load within such a time
SLOW_RUNG = 1.05
LEAST_SLOW, MOST_SLOW = 0.7, 4.0
MOST_PRESSURE = 1.5
NEARLY_NOTHING = 0.05  # of a worker: a kind of which an application has less does not serve it
MOST_SOLVED = 4  # policies in one plan, once every application has its first
MOST_SHARES = 2_000


@dataclass(frozen=True)
class _Served:
    """What an application is served by: its load, its kinds in the order of preference, and its part of each."""

    rung: int
    tasks: tuple[Task, ...]
    parts: Parts
    slow: Steps


@dataclass(eq=False)
class Joint:
    """A planner that remembers its policies. The options are those of `shared_queue`; `caution` times the load."""

    slack_steps: int = 50
    noise: float = 0.1
    margin: float = 0.1
    caution: float = 1.0
    prior: float = 3.0
    fills: bool = False  # as few workers would: larger batches, and no query alone in one while there is time
    _maker: TableMaker = field(init=False, repr=False)
    _steady: SteadyLoads = field(init=False, repr=False)
    _deployment: Deployment | None = field(default=None, init=False, repr=False)
    _known: dict[int, tuple[_Served, Lane]] = field(default_factory=dict, init=False, repr=False)  # by application
    _plan: Plan | None = field(default=None, init=False, repr=False)
    _shares: LastUsed[tuple[Steps, Steps, Steps], NDArray[np.float64]] = field(
        default_factory=lambda: LastUsed(MOST_SHARES, attrgetter("nbytes")), init=False, repr=False
    )
    _tasks: tuple[tuple[Steps, Steps], list[dict[int, Task]]] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._maker = TableMaker(self.slack_steps, self.noise, self.margin, self.caution, self.prior, self.fills)
        self._steady = SteadyLoads(SHARES_S, PART_RUNG, RATE_WINDOW_NS / 1e9)

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        if deployment is not self._deployment:
            self._deployment, self._tasks = deployment, None
            self._maker.clear()
            self._shares.clear()
            self._plan = None
            self._known.clear()
        measured = np.maximum(rates_of(view, 0.0), 1e-3)
        smooth = self._steady.steps(view.now_ns, measured)
        rungs = [step_of_load(rate, RATE_WINDOW_NS / 1e9) for rate in measured.tolist()]
        kind_of = [deployment.kinds.index(deployment.workers[worker].kind) for worker in view.present]
        counts = tuple(np.bincount(kind_of, minlength=len(deployment.kinds)).tolist())
        slow = tuple(step_of(ratio, SLOW_RUNG) for ratio in _slow_downs(view))
        tasks = self._tasks_for(deployment, counts, slow)
        if (shares := self._shares.get((smooth, counts, slow))) is None:
            steady = [self.caution * PART_RUNG**step for step in smooth]
            shares = self._shares.put((smooth, counts, slow), shares_of_kinds(tasks, steady, counts))
        wanted = [self._served(n, rungs[n], tasks[n], shares[n], slow) for n in range(len(rungs))]
        return self._planned(deployment, wanted)

    def _planned(self, deployment: Deployment, wanted: list[_Served]) -> Plan:
        """The very same plan where nothing has moved."""
        began, changed = self._maker.solved, self._plan is None
        for number in sorted(range(len(wanted)), key=lambda n: -self._moved(n, wanted[n])):
            served, known = wanted[number], self._known.get(number)
            if known is None or (known[0] != served and self._maker.solved - began < MOST_SOLVED):
                lane = self._lane(deployment, number, served)
                changed |= known is None or known[1] != lane
                self._known[number] = (served, lane)
        if changed:
            lanes = tuple(self._known[number][1] for number in range(len(wanted)))
            self._plan = by_application(lanes, rate_window_ns=RATE_WINDOW_NS, planner="joint")
        assert self._plan is not None
        return self._plan

    def _lane(self, deployment: Deployment, number: int, served: _Served) -> Lane:
        load, kinds = RUNG**served.rung, [task.kind for task in served.tasks]
        if len(kinds) == 1 and len(variants := deployment.variants_of(number)) == 1:
            return single_variant_lane(deployment, variants[0], workers_of_kinds(deployment, kinds))
        tables = self._maker.tables(deployment, number, load, list(served.tasks), served.parts, served.slow)
        return lane_of(deployment, number, workers_of_kinds(deployment, kinds), tables)

    def _moved(self, number: int, served: _Served) -> float:
        """How far an application is from what its tables are for, in rungs."""
        if number not in self._known:
            return math.inf
        known = self._known[number][0]
        return abs(known.rung - served.rung) + (known.parts != served.parts or known.slow != served.slow)

    def _tasks_for(self, deployment: Deployment, counts: Steps, slow: Steps) -> list[dict[int, Task]]:
        """By application and kind; remembered, because most plans differ in loads alone."""
        if self._tasks is None or self._tasks[0] != (counts, slow):
            every = [_tasks(deployment, number, counts, slow) for number in range(len(deployment.applications))]
            self._tasks = ((counts, slow), every)
        return self._tasks[1]

    def _served(
        self, number: int, rung: int, tasks: dict[int, Task], shares: NDArray[np.float64], slow: Steps
    ) -> _Served:
        kinds = [kind for kind in tasks if shares[kind] >= NEARLY_NOTHING] or [max(tasks, key=lambda k: shares[k])]
        kinds.sort(key=lambda kind: rank(tasks[kind]))
        parts = tuple(max(float(shares[kind]), NEARLY_NOTHING) for kind in kinds)
        if self._deployment is not None and len(self._deployment.applications) > 1:  # whose parts waver
            parts = tuple(PART_RUNG ** step_of(part, PART_RUNG) for part in parts)
        return _Served(rung, tuple(tasks[kind] for kind in kinds), parts, tuple(slow[kind] for kind in kinds))


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


def workers_of_kinds(deployment: Deployment, kinds: Sequence[str]) -> tuple[int, ...]:
    """The workers of these kinds, in the kinds' order."""
    return tuple(number for kind in kinds for number, worker in enumerate(deployment.workers) if worker.kind == kind)


def _slow_downs(view: View) -> list[float]:
    """By kind: measured over profiled latency, the median over what was measured; else that of all kinds."""
    every = view.latency_ratio[view.is_measured]
    usual = float(np.median(every)) if every.size else 1.0
    ratios = []
    for kind in range(len(view.deployment.kinds)):
        measured = view.latency_ratio[view.is_measured[:, kind], kind]
        ratios.append(float(np.clip(np.median(measured) if measured.size else usual, LEAST_SLOW, MOST_SLOW)))
    return ratios
