"""A partition as front ends and operators have it: which sub-cluster serves which application. Plain data, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.core.application import check_name
from stretto.core.errors import StrettoError

MAX_SUB_CLUSTERS = 10_000
MAX_APPLICATIONS = 65_536
MAX_VERSION = 2**53


@dataclass(frozen=True)
class Partition:
    """`homes` is the sub-cluster of each application. Sub-clusters are numbered through all clusters, of which each
    has as many. Of two partitions the one with the higher `version` is the later one.
    """

    homes: Mapping[str, int]
    sub_clusters: int
    clusters: int = 1
    version: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.clusters <= self.sub_clusters <= MAX_SUB_CLUSTERS or self.sub_clusters % self.clusters:
            raise StrettoError(f"{self.sub_clusters} sub-clusters are not {self.clusters} clusters of as many each")
        if not 0 <= self.version <= MAX_VERSION:
            raise StrettoError(f"a partition's version is from 0 to {MAX_VERSION}, not {self.version}")
        if not 1 <= len(self.homes) <= MAX_APPLICATIONS:
            raise StrettoError(f"a partition is of 1 to {MAX_APPLICATIONS} applications, not {len(self.homes)}")
        for name, home in self.homes.items():
            check_name("application", name)
            if not 0 <= home < self.sub_clusters:
                raise StrettoError(f"application {name} is in sub-cluster {home}; there are {self.sub_clusters}")

    def sub_cluster_of(self, application: str) -> int:
        """Where its queries go. KeyError: nowhere."""
        return self.homes[application]

    def cluster_of(self, application: str) -> int:
        """The cluster, with a coordinator of its own, that its sub-cluster belongs to. KeyError: none."""
        return self.homes[application] * self.clusters // self.sub_clusters

    def applications_of(self, sub_cluster: int) -> tuple[str, ...]:
        """In the order of the partition."""
        return tuple(name for name, home in self.homes.items() if home == sub_cluster)

    @property
    def top(self) -> Partition:
        """The upper level alone: the cluster of each application."""
        return Partition({name: self.cluster_of(name) for name in self.homes}, self.clusters, 1, self.version)

    def with_top(self, top: Partition) -> Partition:
        """Applications in the clusters of `top`, with its version. Who stays in a cluster stays in its sub-cluster, and
        who comes goes to that with the fewest.
        """
        per_cluster = self.sub_clusters // self.clusters
        homes = {name: self.homes[name] for name in top.homes if name in self.homes}
        homes = {name: home for name, home in homes.items() if home // per_cluster == top.homes[name]}
        sizes = [list(homes.values()).count(number) for number in range(self.sub_clusters)]
        for name in (name for name in top.homes if name not in homes):
            first = top.homes[name] * per_cluster
            homes[name] = min(range(first, first + per_cluster), key=lambda number: sizes[number])
            sizes[homes[name]] += 1
        return Partition({name: homes[name] for name in top.homes}, self.sub_clusters, self.clusters, top.version)

    def moved_from(self, before: Partition) -> dict[str, tuple[int | None, int]]:
        """What is elsewhere than before: from where, None for what is new, and to where."""
        return {
            name: (before.homes.get(name), home) for name, home in self.homes.items() if before.homes.get(name) != home
        }


@dataclass(frozen=True)
class Share:
    """What one scheduler serves of a partition: a sub-cluster, or all those of a cluster, whose coordinator it is. Its
    planner then splits its workers. `file` holds the partition for its next start.
    """

    partition: Partition
    number: int
    file: Path | None = None
    is_cluster: bool = False

    def __post_init__(self) -> None:
        if not self.applications:
            raise StrettoError(
                f"{self.file or 'the partition'}: {self.where} of {self.count} has no applications (from 0 on); give it"
                " one, or end its scheduler"
            )

    @property
    def applications(self) -> tuple[str, ...]:
        whole = self.partition.top if self.is_cluster else self.partition
        return whole.applications_of(self.number)

    @property
    def count(self) -> int:
        """How many schedulers there are."""
        return self.partition.clusters if self.is_cluster else self.partition.sub_clusters

    @property
    def where(self) -> str:
        """In words."""
        return f"{'cluster' if self.is_cluster else 'sub-cluster'} {self.number}"


def partition_document(partition: Partition) -> dict[str, Any]:
    """As it stands in a file, and goes to schedulers."""
    return {
        "version": partition.version,
        "clusters": partition.clusters,
        "sub_clusters": partition.sub_clusters,
        "applications": dict(partition.homes),
    }


def partition_text(partition: Partition) -> str:
    return json.dumps(partition_document(partition), indent=1, ensure_ascii=False) + "\n"
