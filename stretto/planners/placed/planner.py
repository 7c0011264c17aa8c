"""Where a worker holds one variant and takes time to change it: variants are placed, and queues are shared.

A program, re-solved when a load has moved, says how many workers of each kind hold which variant. All workers of an
application are one pool with one queue and a table for each kind, which `joint` solves for just these workers. An
application never loses more than half of its workers at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.plan import Lane, Missing, Plan, by_application
from stretto.core.profile import NS_PER_S
from stretto.core.view import View
from stretto.planners.joint.tables import RUNG, TableMaker, lane_of, rank, step_of_load
from stretto.planners.parts.floors import single_variant_lane
from stretto.planners.parts.rates import rates_of
from stretto.planners.parts.steady import SteadyLoads, Steps
from stretto.planners.parts.task import Task
from stretto.planners.placed.program import NOBODY, Present, assigned, holdings_of, load_ns, solve, tasks_of

WINDOW_S = 1.0  # over which λ is counted
DEMAND_S, DEMAND_RUNG = 4.0, 1.1  # the demand that variants are placed for follows the load within such a time
LEAST_DEMAND = 0.5  # queries/s
SLACK_STEPS = 50


@dataclass(eq=False)
class Placed:
    """Which worker holds what it reads from the plan in force. `headroom`: times the demand that workers are for."""

    headroom: float = 1.4
    noise: float = 0.0
    margin: float = 0.05
    caution: float = 1.0
    prior: float = 3.0
    _maker: TableMaker = field(init=False, repr=False)
    _steady: SteadyLoads = field(init=False, repr=False)
    _deployment: Deployment | None = field(default=None, init=False, repr=False)
    _tasks: list[dict[int, Task]] = field(default_factory=list, init=False, repr=False)
    _goal: tuple[tuple[Steps, Present], NDArray[np.int64]] | None = field(default=None, init=False, repr=False)
    _ready_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), init=False, repr=False)
    _plan: Plan | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._maker = TableMaker(SLACK_STEPS, self.noise, self.margin, self.caution, self.prior)
        self._steady = SteadyLoads(DEMAND_S, DEMAND_RUNG, WINDOW_S)

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        if deployment is not self._deployment:
            self._deployment, self._goal, self._plan = deployment, None, None
            self._maker.clear()
            self._tasks = [tasks_of(deployment, number) for number in range(len(deployment.applications))]
            self._ready_ns = np.zeros(len(deployment.workers), np.int64)
        rates = np.maximum(rates_of(view, 1.0), LEAST_DEMAND)
        steps = self._steady.steps(view.now_ns, rates)
        now = placed_now(view)
        if self._goal is None or self._goal[0] != (steps, view.present):
            demand = np.array([DEMAND_RUNG**step for step in steps])
            holdings = holdings_of(deployment, self._tasks, demand)
            counts = solve(deployment, holdings, demand, self.headroom, view.present, now)
            self._goal = ((steps, view.present), assigned(deployment, holdings, counts, view.present, now))
        after = staged(deployment, now, self._goal[1], self._ready_ns <= view.now_ns)
        for worker in np.flatnonzero(after != now):
            self._ready_ns[worker] = view.now_ns + load_ns(deployment, int(after[worker]))
        return self._planned(deployment, rates, after)

    def _planned(self, deployment: Deployment, rates: NDArray[np.float64], after: NDArray[np.int64]) -> Plan:
        lanes = tuple(self._lane(deployment, n, float(rates[n]), after) for n in range(len(rates)))
        placement = tuple((variant,) if variant != NOBODY else () for variant in after.tolist())
        if self._plan is None or self._plan.lanes != lanes or self._plan.placement != placement:
            window_ns = int(WINDOW_S * NS_PER_S)
            self._plan = by_application(lanes, placement=placement, rate_window_ns=window_ns, planner="placed")
        return self._plan

    def _lane(self, deployment: Deployment, number: int, rate: float, after: NDArray[np.int64]) -> Lane:
        """A table for each kind, of the variant that most of its workers hold; the others are on their way to it. Where
        one kind holds the application there is nothing to choose.
        """
        tasks, crews, held_variants = [], [], []
        numbers = set(deployment.variants_of(number))
        for kind, task in self._tasks[number].items():
            name = deployment.kinds[kind]
            held = [w for w, owner in enumerate(deployment.workers) if owner.kind == name and int(after[w]) in numbers]
            if held:
                variants = after[held].tolist()
                chosen = max(sorted(set(variants)), key=variants.count)
                place = task.numbers_in(deployment, number).index(chosen)
                tasks.append(replace(task.only([place]), workers=variants.count(chosen)))
                held_variants.append(chosen)
                crews.append(tuple(worker for worker in held if after[worker] == chosen))
        if not tasks:  # nobody is left: its queries wait for one, and are dropped in the end
            kind, task = next(iter(self._tasks[number].items()))
            crew = tuple(w for w, owner in enumerate(deployment.workers) if owner.kind == deployment.kinds[kind])
            tasks, crews = [replace(task, workers=len(crew))], [crew]
        if len(held_variants) == 1:
            return replace(single_variant_lane(deployment, held_variants[0], crews[0]), missing=Missing.WAIT)
        order = sorted(range(len(tasks)), key=lambda place: rank(tasks[place]))
        load = RUNG ** step_of_load(rate, WINDOW_S)
        tables = self._maker.tables(
            deployment,
            number,
            load,
            [tasks[place] for place in order],
            tuple(float(len(crews[place])) for place in order),
            (0,) * len(order),
        )
        workers = tuple(worker for place in order for worker in crews[place])
        return lane_of(deployment, number, workers, tables, missing=Missing.WAIT)


def placed_now(view: View) -> NDArray[np.int64]:
    """By worker, the variant that the plan in force gives it, else one that it has in memory, else NOBODY."""
    count = len(view.deployment.workers)
    placed = np.full(count, NOBODY, np.int64)
    placement = None if view.plan is None else view.plan.placement
    for worker in range(count):
        if placement is not None and worker < len(placement) and len(placement[worker]) == 1:
            placed[worker] = placement[worker][0]
        elif view.holds is not None and view.holds[worker].sum() == 1:
            placed[worker] = int(np.argmax(view.holds[worker]))
    return placed


def staged(
    deployment: Deployment, now: NDArray[np.int64], goal: NDArray[np.int64], is_ready: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """The next step from what workers hold to what they should: of each application at most half of those that are
    ready leave at once, and its only one when nobody is on the way to it.
    """
    after = now.copy()
    application_of = np.append(deployment.application_of, NOBODY)  # of NOBODY too
    moving = (goal != now) & (is_ready | (now == NOBODY))
    for application in (NOBODY, *range(len(deployment.applications))):
        crew = application_of[now] == application
        leaving = np.flatnonzero(crew & moving)
        if application == NOBODY:
            after[leaving] = goal[leaving]
            continue
        is_awaited = bool(((application_of[goal] == application) & (~crew | ~is_ready)).any())
        may_leave = max(int((crew & is_ready).sum()) // 2, 0 if is_awaited else 1)
        after[leaving[:may_leave]] = goal[leaving[:may_leave]]
    if (after == now).all() and is_ready.all():  # each waits for another
        return goal.copy()
    return after
