"""Where a worker holds one variant and takes time to change it: variants are placed, and queues are shared (ours).

An integer program, re-solved when a load has moved, says how many workers of each kind hold which variant. An
application has at most one variant on a kind of worker: so all its workers are one pool with one queue and a table for
each kind, which `joint` solves for just these workers. A change has its price, the queries that the worker could answer
while it loads, and an application never loses more than half of its workers at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Lane, Plan, by_application
from stretto.core.profile import NS_PER_S
from stretto.core.view import View
from stretto.planners.joint.tables import RUNG, TableMaker, lane_of, rank, step_of_load
from stretto.planners.parts.fluid import seconds_per_query
from stretto.planners.parts.fronts import undominated
from stretto.planners.parts.rates import rates_of
from stretto.planners.parts.steady import SteadyLoads, Steps
from stretto.planners.parts.task import Task, kinds_for, task_of

WINDOW_S = 1.0  # over which λ is counted
DEMAND_S, DEMAND_RUNG = 4.0, 1.1  # the demand that variants are placed for follows the load within such a time
LEAST_DEMAND = 0.5  # queries/s
HORIZON_S = 10.0  # for which a placement is expected to serve: a change must bring more in it than it costs
SPARE_WORTH, MOST_SPARE = 0.002, 2.0  # what capacity beyond the headroom is worth, up to so many times the demand
ABSENT = 10.0  # queries/s that it costs to leave an application without a worker
ALONE = 1.0  # worker: a batch must leave time to wait for the one before it, as no one else may be there
GAP, MOST_NODES = 1e-3, 2_000  # of the solver's search; a limit in seconds would differ from machine to machine
SLACK_STEPS = 50
NOBODY = -1


@dataclass(frozen=True)
class Holding:
    """A variant that workers of a kind may hold; each of them answers `throughput` queries/s."""

    kind: int
    application: int
    variant: int
    place: int  # of the variant in its kind's task
    throughput: float
    accuracy: float
    load_s: float


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
    _goal: tuple[tuple[Steps, tuple[int, ...]], NDArray[np.int64]] | None = field(default=None, init=False, repr=False)
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
            self._ready_ns[worker] = view.now_ns + _load_ns(deployment, int(after[worker]))
        return self._planned(deployment, rates, after)

    def _planned(self, deployment: Deployment, rates: NDArray[np.float64], after: NDArray[np.int64]) -> Plan:
        lanes = tuple(self._lane(deployment, n, float(rates[n]), after) for n in range(len(rates)))
        placement = tuple((variant,) if variant != NOBODY else () for variant in after.tolist())
        if self._plan is None or self._plan.lanes != lanes or self._plan.placement != placement:
            window_ns = int(WINDOW_S * NS_PER_S)
            self._plan = by_application(lanes, placement=placement, rate_window_ns=window_ns, planner="placed")
        return self._plan

    def _lane(self, deployment: Deployment, number: int, rate: float, after: NDArray[np.int64]) -> Lane:
        """A table for each kind, of the variant that most of its workers hold; the others are on their way to it."""
        tasks, crews = [], []
        own = set(deployment.variants_of(number))
        for kind, task in self._tasks[number].items():
            name = deployment.kinds[kind]
            held = [w for w, owner in enumerate(deployment.workers) if owner.kind == name and int(after[w]) in own]
            if held:
                variants = after[held].tolist()
                chosen = max(sorted(set(variants)), key=variants.count)
                place = task.numbers_in(deployment, number).index(chosen)
                tasks.append(replace(task.only([place]), workers=variants.count(chosen)))
                crews.append(tuple(worker for worker in held if after[worker] == chosen))
        if not tasks:  # nobody is left: its queries wait for one, and are dropped in the end
            kind, task = next(iter(self._tasks[number].items()))
            crew = tuple(w for w, owner in enumerate(deployment.workers) if owner.kind == deployment.kinds[kind])
            tasks, crews = [replace(task, workers=len(crew))], [crew]
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
        return lane_of(deployment, number, workers, tables, may_load=False)


def tasks_of(deployment: Deployment, number: int) -> dict[int, Task]:
    """By kind of worker that can answer within the SLO: the variants that no other beats there."""
    tasks = {}
    for name in kinds_for(deployment, number):
        task = task_of(deployment, number, name, 1)
        if (task.latency_ns[:, 1] <= task.slo_ns).any():
            tasks[deployment.kinds.index(name)] = task.only(undominated(task))
    return tasks


def holdings_of(deployment: Deployment, tasks: list[dict[int, Task]], demand: NDArray[np.float64]) -> list[Holding]:
    """What workers of each kind may hold, with the throughput of batches that can form at the demand."""
    found = []
    for application, by_kind in enumerate(tasks):
        some_wait = any(lets_wait(task).any() for task in by_kind.values())
        for kind, task in by_kind.items():
            numbers = task.numbers_in(deployment, application)
            for place, seconds in enumerate(seconds_per_query(task, float(demand[application]), ALONE)):
                if np.isfinite(seconds) and (not some_wait or lets_wait(task)[place]):
                    variant = numbers[place]
                    load_s = _load_ns(deployment, variant) / NS_PER_S
                    accuracy = float(task.accuracy[place])
                    found.append(Holding(kind, application, variant, place, 1.0 / float(seconds), accuracy, load_s))
    return found


def lets_wait(task: Task) -> NDArray[np.bool_]:
    """By variant, whether a query may wait for another one before it and still be answered in time."""
    patient: NDArray[np.bool_] = 2 * task.latency_ns[:, 1] <= task.slo_ns
    return patient


def _load_ns(deployment: Deployment, variant: int) -> int:
    return 0 if variant == NOBODY else int(deployment.variants[variant].load_ns)


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


def solve(
    deployment: Deployment,
    holdings: list[Holding],
    demand: NDArray[np.float64],
    headroom: float,
    present: tuple[int, ...],
    now: NDArray[np.int64],
) -> NDArray[np.int64]:
    """By holding, how many workers should have it: the most accurate answers that the headroom allows.

    Unknowns: counts, flows, whether a holding is used at all, and counts beyond those of now; then by application what
    is not answered, spare capacity, and whether it has no worker.
    """
    size, applications = len(holdings), len(demand)
    kind_of = [deployment.kinds.index(deployment.workers[worker].kind) for worker in present]
    workers = np.bincount(kind_of, minlength=len(deployment.kinds))
    most = np.array([workers[h.kind] for h in holdings])
    throughput = np.array([h.throughput for h in holdings])
    accuracy = np.array([h.accuracy for h in holdings])
    held = [(deployment.kinds[h.kind], h.variant) for h in holdings]
    present_now = [(deployment.workers[w].kind, int(now[w])) for w in present]
    before = np.array([present_now.count(holding) for holding in held])
    change = np.array([h.load_s * min(h.throughput, demand[h.application]) * h.accuracy for h in holdings]) / HORIZON_S

    one, each = sparse.identity(size, format="csr"), np.arange(size)
    of_kind = sparse.csr_matrix((np.ones(size), ([h.kind for h in holdings], each)), (len(workers), size))
    of_application = sparse.csr_matrix((np.ones(size), ([h.application for h in holdings], each)), (applications, size))
    pair = [h.application * len(workers) + h.kind for h in holdings]
    of_pair = sparse.csr_matrix((np.ones(size), (pair, each)), (applications * len(workers), size))
    by_application = sparse.identity(applications, format="csr")

    def row(
        low: float | NDArray[np.float64], high: float | NDArray[np.float64], **blocks: sparse.csr_matrix
    ) -> LinearConstraint:
        height = next(iter(blocks.values())).shape[0]
        widths = {"count": size, "flow": size, "used": size, "more": size}
        widths |= {"unanswered": applications, "spare": applications, "absent": applications}
        parts = [blocks.get(name, sparse.csr_matrix((height, width))) for name, width in widths.items()]
        return LinearConstraint(sparse.hstack(parts, format="csr"), low, high)

    capacity = of_application @ sparse.diags(throughput)
    rows = [
        row(-np.inf, workers, count=of_kind),
        row(-np.inf, 0.0, count=-sparse.diags(throughput), flow=headroom * one),
        row(-np.inf, 0.0, count=one, used=-sparse.diags(most.astype(np.float64))),
        row(-np.inf, 1.0, used=of_pair),
        row(-np.inf, before, count=one, more=-one),
        row(demand, demand, flow=of_application, unanswered=by_application),
        row(0.0, np.inf, count=capacity, flow=-headroom * of_application, spare=-by_application),
        row(1.0, np.inf, count=of_application, absent=by_application),
    ]
    worth = np.concatenate(
        [np.zeros(size), accuracy, np.zeros(size), -change]
        + [np.zeros(applications), np.full(applications, SPARE_WORTH), np.full(applications, -ABSENT)]
    )
    whole = np.repeat([1, 0, 1, 0, 0, 0, 0], [size, size, size, size, applications, applications, applications])
    highest = np.concatenate(
        [
            most,
            demand[[h.application for h in holdings]],
            np.ones(size),
            most,
            demand,
            MOST_SPARE * demand,
            np.ones(applications),
        ]
    )
    solved = milp(
        -worth,
        constraints=rows,
        integrality=whole,
        bounds=Bounds(0.0, highest),
        options={"mip_rel_gap": GAP, "node_limit": MOST_NODES},
    )
    if solved.x is None:
        raise StrettoError("no placement of variants on workers was found")
    return np.rint(solved.x[:size]).astype(np.int64)


def assigned(
    deployment: Deployment,
    holdings: list[Holding],
    counts: NDArray[np.int64],
    present: tuple[int, ...],
    now: NDArray[np.int64],
) -> NDArray[np.int64]:
    """By worker, the variant that it should hold. As many as possible keep theirs; who is not needed keeps it too."""
    goal = now.copy()
    for kind, name in enumerate(deployment.kinds):
        crew = [worker for worker in present if deployment.workers[worker].kind == name]
        wanted = [h.variant for h, n in zip(holdings, counts, strict=True) if h.kind == kind for _ in range(n)]
        free = []
        for worker in crew:
            if now[worker] in wanted:
                wanted.remove(int(now[worker]))
            else:
                free.append(worker)
        for worker, variant in zip(free, wanted, strict=False):
            goal[worker] = variant
    return goal


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
