"""The partition of a deployment, by application's name: what an operator computes, and front ends route by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.partition import Partition
from stretto.planners.partition.hierarchy import hierarchical
from stretto.planners.partition.problem import (
    NOWHERE,
    ROUNDING,
    Balance,
    Change,
    PartitionProblem,
    balance_of,
    keeps_limits,
    loads_of,
    partition_problem,
)
from stretto.planners.partition.worth import rebalanced
from stretto.planners.parts.choose import choose_variants
from stretto.planners.parts.sharing import expected_work, workers_of_groups


@dataclass(frozen=True, eq=False)
class Partitioned:
    """A partition with its figures by sub-cluster."""

    partition: Partition
    balance: Balance
    rates: NDArray[np.float64]  # queries/s
    static_bytes: NDArray[np.float64]
    dynamic_bytes: NDArray[np.float64]  # of the hungriest model
    workers: tuple[tuple[int, ...], ...]  # in proportion to the work; none where there are too few


def partitioned(
    deployment: Deployment,
    rates: Sequence[float],
    sub_clusters: int,
    *,
    clusters: int = 1,
    max_rate: float = math.inf,
    max_cluster_rate: float = math.inf,
    max_bytes: float = math.inf,
    previous: Partition | None = None,
    max_moves: int | None = None,
    variants: Mapping[str, str] | None = None,
    is_steady: bool = False,
    parts: int = 1,
) -> Partitioned:
    """`max_bytes` lowers what the smallest worker has. `max_moves` applications of the `previous` partition may change
    their sub-cluster; whoever is new there has to be loaded anyway. Where `is_steady`, that one stays as it is as long
    as it keeps the limits and another would not be clearly better. Each sub-cluster is split again, into `parts`, by
    whoever serves it.
    """
    chosen = choose_variants(deployment, variants)
    limits = max_rate, max_bytes
    problem = partition_problem(deployment, chosen, sub_clusters, np.array(rates, np.float64), *limits).of_parts(parts)
    change = None if previous is None else _change(problem, previous, clusters, max_moves)

    def find() -> list[int]:
        return hierarchical(problem, clusters, change, max_cluster_rate=max_cluster_rate)

    if is_steady and change is not None and _may_stay(change, clusters, max_cluster_rate):
        homes = rebalanced(change, find)
    else:
        homes = find()
    crews: tuple[tuple[int, ...], ...] = ()
    if len(set(homes)) <= len(deployment.workers):
        work = expected_work(deployment, chosen, problem.rates)
        crews = workers_of_groups(homes, work, sub_clusters, range(len(deployment.workers)))
    by_name = dict(zip(problem.names, homes, strict=True))
    partition = Partition(by_name, sub_clusters, clusters, 1 if previous is None else previous.version + 1)
    if previous is not None and previous.homes == by_name:
        partition = previous
    return Partitioned(partition, balance_of(problem, homes), *loads_of(problem, homes), crews)


def _may_stay(change: Change, clusters: int, max_cluster_rate: float) -> bool:
    """Every model has a place, and no limit is broken."""
    if NOWHERE in change.current or not keeps_limits(change.problem, change.current):
        return False
    rates, _, _ = loads_of(change.problem, change.current)
    return bool(rates.reshape(clusters, -1).sum(axis=1).max() <= max_cluster_rate * (1 + ROUNDING))


def _change(problem: PartitionProblem, previous: Partition, clusters: int, max_moves: int | None) -> Change:
    if (previous.sub_clusters, previous.clusters) != (problem.subclusters, clusters):
        raise StrettoError(
            f"the previous partition has {previous.sub_clusters} sub-clusters in {previous.clusters} clusters, the new"
            f" one {problem.subclusters} in {clusters}; make it without the previous one, or ask for as many"
        )
    current = tuple(previous.homes.get(name, NOWHERE) for name in problem.names)
    if max_moves is None:
        return Change(problem, current)
    return Change(problem, current, 2.0 * max_moves + current.count(NOWHERE))
