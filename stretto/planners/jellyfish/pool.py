"""One queue and one model for all workers: what (5) and (6) become where workers stand in for each other (ours).

A frame waits for whichever worker is free next, so with W of them for 1/W of what it would wait for its own, and their
capacity is one sum: no client has to fit on a worker whole. The price is one model for everybody, and clients whose
networks do not carry its size send less. Planned anew each time like any mapping: when more clients come than the pool
can serve, a smaller model is taken, or the mapping.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.plan import Lane, Route, RouteRule
from stretto.core.profile import NS_PER_S
from stretto.planners.jellyfish.demand import Demand, Ladder
from stretto.planners.jellyfish.update import Followers
from stretto.planners.parts.floors import single_variant_lane


@dataclass(frozen=True)
class Pool:
    """The model, the largest batch that every client leaves time for, and equation (1) of what clients will send."""

    model: int
    batch: int
    value: float


def accuracy_by_size(deployment: Deployment, ladder: Ladder) -> NDArray[np.float64]:
    """[model, size sent]: a small frame on a large model may be answered worse than by its own."""
    models = [deployment.variants[number] for number in ladder.variants]
    return np.array([[model.accuracy_of(size) for size in models] for model in models])


def best_pool(demand: Demand, accuracy: NDArray[np.float64], share: float) -> Pool | None:
    """The one of greatest value that uses no more than a `share` of what its batches bring through; None where no pool
    serves all clients, where workers differ, or where each client may have a worker of its own. `accuracy`: of a model
    for frames of each size.
    """
    problem = demand.problem
    if problem.clients <= problem.workers or len(set(problem.kind_of.tolist())) > 1:
        return None
    asked = float(problem.rate.sum())
    everyone = np.arange(problem.clients)
    pools = []
    for model in range(problem.models):
        latency_ns = problem.latency_ns[problem.kind_of[0], model]
        needed_ns = (1.0 + problem.queueing / problem.workers) * latency_ns[1:]
        if problem.overhead_ns is not None:
            needed_ns = needed_ns + problem.overhead_ns[1:]
        sent = model - np.argmax(demand.carried[:, model::-1], axis=1)  # the largest size up to the model's
        batch = int((needed_ns <= problem.budget_ns[everyone, sent].min()).sum())
        if not batch:
            continue
        throughput = (np.arange(1, batch + 1) * NS_PER_S / latency_ns[1 : batch + 1]).max() * problem.workers
        if asked <= share * throughput:
            pools.append(Pool(model, batch, float(problem.rate @ accuracy[model, sent])))
    return max(pools, key=lambda pool: pool.value, default=None)


@dataclass(frozen=True, eq=False)
class PooledPart:
    """One application's part of a plan, where all its workers are one pool."""

    ladder: Ladder
    demand: Demand
    variant: int

    def lanes(self, deployment: Deployment, filling: bool) -> list[Lane]:
        return [single_variant_lane(deployment, self.variant, self.ladder.workers)]

    def route(self, first: int) -> Route:
        """By client, so that each is told the variant's size."""
        targets = (0,) * (1 + max((client.slot for client in self.demand.clients), default=0))
        return Route(RouteRule.BY_CLIENT, (first,), targets=targets)

    def held(self, place: int, resident: int, followers: Followers) -> tuple[int, tuple[int, ...], bool]:
        """Pools are made only where workers hold all that they can run."""
        return self.variant, (), True
