"""Which variant each worker should hold: an integer program over counts of workers, with a price on every change.

An application has at most one variant on a kind of worker, so that all its workers can share one queue. Counts of
workers and flows of queries are as in `proteus`, by (kind, variant).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_S
from stretto.planners.parts.fluid import seconds_per_query
from stretto.planners.parts.fronts import undominated
from stretto.planners.parts.task import Task, kinds_for, task_of

HORIZON_S = 10.0  # for which a placement is expected to serve: a change must bring more in it than it costs
SPARE_WORTH, MOST_SPARE = 0.002, 2.0  # what capacity beyond the headroom is worth, up to so many times the demand
ABSENT = 10.0  # queries/s that it costs to leave an application without a worker
ALONE = 1.0  # worker: a batch must leave time to wait for the one before it, as no one else may be there
GAP, MOST_NODES = 1e-3, 2_000  # of the solver's search; a limit in seconds would differ from machine to machine
NOBODY = -1

Bound = float | NDArray[np.float64] | NDArray[np.int64]
Present = tuple[int, ...]  # the workers that are there


@dataclass(frozen=True)
class Holding:
    """A variant that workers of a kind may hold; each of them answers `throughput` queries/s."""

    kind: int
    application: int
    variant: int
    throughput: float
    accuracy: float
    load_s: float


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
    holdings = []
    for application, by_kind in enumerate(tasks):
        some_wait = any(lets_wait(task).any() for task in by_kind.values())
        for kind, task in by_kind.items():
            numbers = task.numbers_in(deployment, application)
            for place, seconds in enumerate(seconds_per_query(task, float(demand[application]), ALONE)):
                if np.isfinite(seconds) and (not some_wait or lets_wait(task)[place]):
                    load_s = load_ns(deployment, numbers[place]) / NS_PER_S
                    accuracy = float(task.accuracy[place])
                    holdings.append(Holding(kind, application, numbers[place], 1.0 / float(seconds), accuracy, load_s))
    return holdings


def lets_wait(task: Task) -> NDArray[np.bool_]:
    """By variant, whether a query may wait for another one before it and still be answered in time."""
    patient: NDArray[np.bool_] = 2 * task.latency_ns[:, 1] <= task.slo_ns
    return patient


def load_ns(deployment: Deployment, variant: int) -> int:
    return 0 if variant == NOBODY else int(deployment.variants[variant].load_ns)


def solve(
    deployment: Deployment,
    holdings: list[Holding],
    demand: NDArray[np.float64],
    headroom: float,
    present: Present,
    now: NDArray[np.int64],
) -> NDArray[np.int64]:
    """By holding, how many workers should have it: the most accurate answers that the headroom allows.

    `now` is what workers hold. Unknowns by holding: the count, the flow, whether it is used at all, and by how much the
    count is above that of now; by application: what is not answered, spare capacity, and whether it has no worker.
    """
    size, applications, kinds = len(holdings), len(demand), len(deployment.kinds)
    widths = {"count": size, "flow": size, "used": size, "more": size}
    widths |= {"unanswered": applications, "spare": applications, "absent": applications}
    kind_of = [deployment.kinds.index(worker.kind) for worker in deployment.workers]
    workers = np.bincount([kind_of[worker] for worker in present], minlength=kinds)
    held = [(kind_of[worker], int(now[worker])) for worker in present]
    before = np.array([held.count((h.kind, h.variant)) for h in holdings])
    most = np.array([workers[h.kind] for h in holdings], np.float64)
    throughput = np.array([h.throughput for h in holdings])
    accuracy = np.array([h.accuracy for h in holdings])
    asked = demand[[h.application for h in holdings]]
    change = np.array([h.load_s for h in holdings]) * np.minimum(throughput, asked) * accuracy / HORIZON_S

    def summed(groups: list[int], height: int) -> sparse.csr_matrix:
        return sparse.csr_matrix((np.ones(size), (groups, np.arange(size))), (height, size))

    def row(low: Bound, high: Bound, **unknowns: sparse.csr_matrix) -> LinearConstraint:
        height = next(iter(unknowns.values())).shape[0]
        blocks = [unknowns.get(name, sparse.csr_matrix((height, width))) for name, width in widths.items()]
        return LinearConstraint(sparse.hstack(blocks, format="csr"), low, high)

    each, every = sparse.identity(size, format="csr"), sparse.identity(applications, format="csr")
    of_application = summed([h.application for h in holdings], applications)
    of_pair = summed([h.application * kinds + h.kind for h in holdings], applications * kinds)
    capacity = of_application @ sparse.diags(throughput)
    rows = [
        row(-np.inf, workers, count=summed([h.kind for h in holdings], kinds)),
        row(-np.inf, 0.0, count=-sparse.diags(throughput), flow=headroom * each),
        row(-np.inf, 0.0, count=each, used=-sparse.diags(most)),
        row(-np.inf, 1.0, used=of_pair),
        row(-np.inf, before, count=each, more=-each),
        row(demand, demand, flow=of_application, unanswered=every),
        row(0.0, np.inf, count=capacity, flow=-headroom * of_application, spare=-every),
        row(1.0, np.inf, count=of_application, absent=every),
    ]
    none, ones = np.zeros(size), np.ones(applications)
    worth = [none, accuracy, none, -change, 0 * ones, SPARE_WORTH * ones, -ABSENT * ones]
    highest = [most, asked, none + 1.0, most, demand, MOST_SPARE * demand, ones]
    solved = milp(
        -np.concatenate(worth),
        constraints=rows,
        integrality=np.repeat([1, 0, 1, 0, 0, 0, 0], list(widths.values())),
        bounds=Bounds(0.0, np.concatenate(highest)),
        options={"mip_rel_gap": GAP, "node_limit": MOST_NODES},
    )
    if solved.x is None:
        raise StrettoError("no placement of variants on workers was found; the search for one was given up")
    counts: NDArray[np.int64] = np.rint(solved.x[:size]).astype(np.int64)
    return counts


def assigned(
    deployment: Deployment,
    holdings: list[Holding],
    counts: NDArray[np.int64],
    present: Present,
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
