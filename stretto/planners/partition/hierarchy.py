"""Partitioning at two levels (section 4.7): first among clusters, each with its own coordinator, then within each.

Sub-clusters are numbered through: cluster k of K has the numbers from k·n/K on. At the top a cluster counts as what its
sub-clusters take together, which is the simpler variant that the paper speaks of.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.planners.partition.blame import fault_of
from stretto.planners.partition.problem import NOWHERE, Change, PartitionProblem
from stretto.planners.partition.search import partition

TOP_SHARE = 0.5  # of the change that is allowed beyond what must be: for balance among clusters


def hierarchical(
    problem: PartitionProblem, clusters: int, change: Change | None = None, *, max_cluster_rate: float = math.inf
) -> list[int]:
    """The sub-cluster of each model, numbered through all clusters. `max_cluster_rate` is what a coordinator takes."""
    if not 1 <= clusters <= problem.subclusters or problem.subclusters % clusters:
        raise StrettoError(f"{problem.subclusters} sub-clusters are not {clusters} clusters of as many each")
    fault = fault_of(problem)
    if fault:
        raise StrettoError(fault)
    per_cluster = problem.subclusters // clusters
    tops = _top(problem, clusters, per_cluster, change, max_cluster_rate)
    homes = np.full(len(problem.rates), NOWHERE)
    left = math.inf if change is None else change.max_cost - _forced(change, tops, per_cluster)
    for cluster in range(clusters):
        members = np.flatnonzero(tops == cluster)
        if not len(members):
            continue
        part = replace(
            problem,
            rates=problem.rates[members],
            static_bytes=problem.static_bytes[members],
            dynamic_bytes=problem.dynamic_bytes[members],
            subclusters=per_cluster,
            names=tuple(problem.name(model) for model in members.tolist()),
        )
        inner = (
            None if change is None else _inner(change, part, members, cluster, per_cluster, left / (clusters - cluster))
        )
        try:
            inner_homes = partition(part, inner)
        except StrettoError as error:
            raise StrettoError(f"cluster {cluster}: {error}" if clusters > 1 else str(error)) from None
        if change is not None and inner is not None:
            left -= max(0.0, inner.cost(inner_homes) - _arrivals(inner))
        homes[members] = cluster * per_cluster + np.array(inner_homes)
    return homes.tolist()


def _top(
    problem: PartitionProblem, clusters: int, per_cluster: int, change: Change | None, max_cluster_rate: float
) -> NDArray[np.int64]:
    """The cluster of each model. Where that is possible, every sub-cluster of a cluster has room for the dynamic memory
    of the cluster's hungriest model, and half of the change that is allowed is left for the balance within clusters.
    """
    whole = replace(problem.of_parts(per_cluster), subclusters=clusters, part="cluster")
    whole = replace(whole, max_rate=min(whole.max_rate, max_cluster_rate))
    optimistic = replace(whole, dynamic_bytes=np.zeros(len(problem.rates)))  # within clusters it is looked at again
    for asked, share in ((whole, TOP_SHARE), (whole, 1.0)):
        with contextlib.suppress(StrettoError):
            return np.array(partition(asked, None if change is None else _above(asked, change, per_cluster, share)))
    return np.array(partition(optimistic, None if change is None else _above(optimistic, change, per_cluster, 1.0)))


def _above(whole: PartitionProblem, change: Change, per_cluster: int, share: float) -> Change:
    """The same change among clusters: a model is loaded in the dearest place of its cluster, as far as is known."""
    current = tuple(home // per_cluster if home != NOWHERE else NOWHERE for home in change.current)
    costs = None if change.costs is None else change.c.reshape(len(current), whole.subclusters, per_cluster).max(axis=2)
    return Change(whole, current, share * change.max_cost, costs)


def _forced(change: Change, tops: NDArray[np.int64], per_cluster: int) -> float:
    """What the top level spends at most: models that change their cluster are unloaded in one and loaded in another."""
    current = np.array(change.current)
    moved = (current == NOWHERE) | (current // per_cluster != tops)
    loads = change.c.max(axis=1)
    unloads = np.where(current == NOWHERE, 0.0, change.c[np.arange(len(current)), current])
    return float((loads + unloads)[moved].sum())


def _inner(
    change: Change, part: PartitionProblem, members: NDArray[np.int64], cluster: int, per_cluster: int, left: float
) -> Change:
    """Within one cluster: what comes in was paid for above, and besides `left` may be spent."""
    first = cluster * per_cluster
    current = np.array(change.current)[members]
    inside = np.where((current != NOWHERE) & (current // per_cluster == cluster), current - first, NOWHERE)
    costs = None if change.costs is None else change.c[members, first : first + per_cluster]
    inner = Change(part, tuple(inside.tolist()), costs=costs)
    return replace(inner, max_cost=max(0.0, left) + _arrivals(inner))


def _arrivals(inner: Change) -> float:
    """The most that loading what comes in may cost."""
    return float(inner.c.max(axis=1)[np.array(inner.current) == NOWHERE].sum())
