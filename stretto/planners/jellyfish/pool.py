"""One queue for all workers: what (5) and (6) become where workers stand in for each other (ours).

A frame waits for whichever worker is free next, so with W of them for 1/W of what it would wait for its own, and their
capacity is one sum: no client has to fit on a worker whole. Batches run on the model that keeps up (`stepping`), so
clients may send somewhat larger frames than one model for all of them would bear; those whose networks do not carry
that size send less. Planned anew each time like any mapping: when more clients come than the pool can serve, a smaller
model is taken, or the mapping.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.plan import Lane, Late, Route, RouteRule, Table
from stretto.planners.jellyfish.demand import Demand, Ladder
from stretto.planners.jellyfish.refusing import refusing_lane, targets_by_slot
from stretto.planners.jellyfish.stepping import smallest_that_keep_up, stepping_table, throughputs
from stretto.planners.jellyfish.update import Followers

HARDLY = 1e-3  # queries/s: less than this counts as so many
ALIKE = 0.02  # of its latency, by which a batch may differ from what a table was made with
ABOVE = 3  # by so many sizes frames may be larger than the model that serves everybody


@dataclass(frozen=True)
class Pool:
    """The model that serves everybody, the one whose size clients are told, and equation (1), with a part of the
    queries on the model above.
    """

    model: int
    told: int
    value: float


def accuracy_by_size(deployment: Deployment, ladder: Ladder) -> NDArray[np.float64]:
    """[model, size sent]: a small frame on a large model may be answered worse than by its own."""
    models = [deployment.variants[number] for number in ladder.variants]
    return np.array([[model.accuracy_of(size) for size in models] for model in models])


def best_pool(
    demand: Demand, accuracy: NDArray[np.float64], throughput: NDArray[np.float64], share: float
) -> Pool | None:
    """The one of greatest value whose model uses no more than a `share` of the throughput; None where no pool serves
    all clients, where workers differ, or where each client may have a worker of its own. `accuracy`: of a model for
    frames of each size; `throughput`: of all workers, by model and batch.

    Larger frames are asked for as long as the time that they leave is enough for the pool's model.
    """
    problem = demand.problem
    if problem.clients <= problem.workers or len(set(problem.kind_of.tolist())) > 1:
        return None
    asked = max(float(problem.rate.sum()), HARDLY)
    everyone = np.arange(problem.clients)
    # By the size that clients are told: what each sends, the largest that its network carries.
    sent = [told_size - np.argmax(demand.carried[:, told_size::-1], axis=1) for told_size in range(problem.models)]
    left_ns = np.array([problem.budget_ns[everyone, sizes].min() for sizes in sent])
    value = [float(problem.rate @ accuracy[told_size, sizes]) for told_size, sizes in enumerate(sent)]
    needed_ns = (1.0 + problem.queueing / problem.workers) * problem.latency_ns[problem.kind_of[0], :, 1:]
    if problem.overhead_ns is not None:
        needed_ns = needed_ns + problem.overhead_ns[1:]
    in_time = needed_ns[:, None, :] <= left_ns[None, :, None]
    brought = share * np.where(in_time, throughput[:, None, 1:], 0.0).max(axis=2)  # [model, told size]
    pools = []
    for model in range(problem.models):
        larger = range(model, min(model + ABOVE + 1, problem.models))
        possible = [
            told_size for told_size in larger if asked <= brought[model, told_size] and value[told_size] >= value[model]
        ]
        if model in possible:
            largest = possible[-1]
            part = _part_above(asked, *brought[model : model + 2, largest]) if largest > model else 0.0
            pools.append(
                Pool(model, largest, value[model] + part * max(0.0, value[min(model + 1, largest)] - value[model]))
            )
    return max(pools, key=lambda pool: (round(pool.value / asked, 9), pool.model), default=None)


def _part_above(asked: float, brought: float, brought_above: float) -> float:
    """Of all queries, how many the next model may answer: in the time that the pool's own leaves of the workers'."""
    if brought_above <= 0:
        return 0.0
    return min(1.0, (1 / asked - 1 / brought) / max(1 / brought_above - 1 / brought, 1e-12))


def holds_all(deployment: Deployment, ladder: Ladder, worker: int) -> bool:
    """Whether the worker has memory for all models at once."""
    models = [deployment.variants[number] for number in ladder.variants]
    needed = sum(model.memory_bytes for model in models) + max(model.dynamic_memory_bytes for model in models)
    return needed <= deployment.workers[worker].memory_bytes


@dataclass(frozen=True, eq=False)
class PooledPart:
    """One application's part of a plan, where all its workers are one pool."""

    name: str  # of the application
    ladder: Ladder
    demand: Demand
    told: int  # the variant
    table: Table
    value: float

    def lanes(self, deployment: Deployment, filling: bool) -> list[Lane]:
        """One for all, and where there are clients that no pool serves, the one that refuses them."""
        lanes = [Lane(self.name, self.ladder.workers, self.table, late=Late.DROP_WHEN_INFEASIBLE)]
        if self.demand.hopeless:
            lanes.append(refusing_lane(self.name, self.ladder.workers[0], self.ladder.variants[0]))
        return lanes

    def route(self, first: int) -> Route:
        """By client, so that each is told the size of the largest variant."""
        lanes = (first, first + 1) if self.demand.hopeless else (first,)
        targets = targets_by_slot(self.demand, [0] * len(self.demand.clients), 1)
        return Route(RouteRule.BY_CLIENT, lanes, targets=targets)

    def held(self, place: int, resident: int, followers: Followers) -> tuple[int, tuple[int, ...], bool]:
        """Pools are made only where workers hold all that they can run."""
        return self.told, (), True


@dataclass(frozen=True, eq=False)
class _Made:
    """A table, and what it rests on."""

    variants: tuple[int, ...]
    needed_ns: NDArray[np.int64]
    keeps_up: NDArray[np.int64]
    table: Table

    def is_as_good_for(
        self, variants: tuple[int, ...], needed_ns: NDArray[np.int64], keeps_up: NDArray[np.int64]
    ) -> bool:
        """Latencies as measured waver; what a batch takes just now the dispatcher knows itself."""
        is_like = self.variants == variants and np.array_equal(self.keeps_up, keeps_up)
        return is_like and np.allclose(self.needed_ns, needed_ns, rtol=ALIKE, atol=0)


@dataclass(eq=False)
class Pools:
    """Makes pooled parts of plans. What rests on an application's ladder alone is kept, and so is its table for as long
    as it is as good: another table is another plan.
    """

    _accuracies: dict[int, tuple[Ladder, NDArray[np.float64]]] = field(default_factory=dict)
    _tables: dict[int, _Made] = field(default_factory=dict)

    def part(
        self, deployment: Deployment, application: int, ladder: Ladder, demand: Demand, share: float
    ) -> PooledPart | None:
        """With the best pool, if there is one."""
        problem = demand.problem
        overhead_ns = np.zeros(1, np.int64) if problem.overhead_ns is None else problem.overhead_ns
        throughput = throughputs(ladder.mean_ns[ladder.like_of[0]] + overhead_ns, problem.workers)
        pool = best_pool(demand, self._accuracy(deployment, application, ladder), throughput, share)
        if pool is None:
            return None
        models = slice(pool.told + 1)
        variants, needed_ns = ladder.variants[models], ladder.latency_ns[ladder.like_of[0], models] + overhead_ns
        keeps_up = smallest_that_keep_up(throughput[models], float(problem.rate.sum()))
        made = self._tables.get(application)
        if made is None or not made.is_as_good_for(variants, needed_ns, keeps_up):
            made = _Made(variants, needed_ns, keeps_up, stepping_table(variants, needed_ns, keeps_up))
            self._tables[application] = made
        name = deployment.applications[application].name
        return PooledPart(name, ladder, demand, variants[-1], made.table, pool.value)

    def _accuracy(self, deployment: Deployment, application: int, ladder: Ladder) -> NDArray[np.float64]:
        known = self._accuracies.get(application)
        if known is None or known[0] is not ladder:
            self._accuracies[application] = known = ladder, accuracy_by_size(deployment, ladder)
        return known[1]
