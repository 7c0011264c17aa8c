"""`stretto partition`: which sub-cluster serves which application, computed before anything runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli.options import Json
from stretto.cli.output import check_writable, print_json, print_tables
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.core.deployment import Deployment
    from stretto.core.partition import Partition
    from stretto.planners.partition.of_deployment import Partitioned

What = Annotated[
    str, typer.Argument(metavar="SCENARIO.toml|REPO", help="A scenario with its load, or a model repository.")
]
SubClusters = Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Sub-clusters, over all clusters.")]
Clusters = Annotated[
    int, typer.Option(metavar="K", min=1, max=10_000, help="Clusters of N/K sub-clusters each, split first.")
]
Rates = Annotated[
    Path | None, typer.Option(metavar="FILE.json", help='Queries/s, as {"application": 120}; else the scenario\'s.')
]
Workers = Annotated[int, typer.Option(metavar="W", min=1, max=65_536, help="Of a repository: workers to deal out.")]
MaxRate = Annotated[float | None, typer.Option(metavar="RATE", help="Queries/s that one sub-cluster takes.")]
MaxClusterRate = Annotated[float | None, typer.Option(metavar="RATE", help="Queries/s that one cluster takes.")]
MemoryMb = Annotated[
    float | None, typer.Option("--worker-memory-mb", metavar="MB", help="What models may take of a worker.")
]
Previous = Annotated[Path | None, typer.Option(metavar="FILE.json", help="The partition in force, as --out wrote it.")]
MaxMoves = Annotated[int | None, typer.Option(metavar="N", min=0, help="Applications that may change place.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the partition there.")]
SHOWN = 2  # applications by name, in a row of the table


def partition(
    what: What,
    sub_clusters: SubClusters,
    clusters: Clusters = 1,
    rates: Rates = None,
    workers: Workers = 1,
    max_rate: MaxRate = None,
    max_cluster_rate: MaxClusterRate = None,
    worker_memory_mb: MemoryMb = None,
    previous: Previous = None,
    max_moves: MaxMoves = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Split applications into sub-clusters of equal load and memory, within the limits of a dispatcher and a worker.

    Every worker of a sub-cluster holds all its models. With --previous only so many applications move as --max-moves
    allows. Where there is no partition, the model or the limit to blame is named.

    \b
    Examples:
      stretto partition scenario.toml --sub-clusters 4 --out partition.json
      stretto partition models/ --sub-clusters 20 --rates rates.json --worker-memory-mb 16000
      stretto partition scenario.toml --sub-clusters 4 --previous partition.json --max-moves 3
    """
    from stretto.planners.partition.of_deployment import partitioned

    check_writable(out, "--out", (".json",))
    check_limits(max_rate, max_cluster_rate, worker_memory_mb)
    if max_moves is not None and previous is None:
        raise StrettoError("--max-moves counts from the partition in force; name that with --previous")
    deployment, load = _subject(what, workers, rates)
    before = _previous(previous)
    split = partitioned(
        deployment,
        load,
        sub_clusters,
        clusters=clusters,
        max_rate=max_rate or math.inf,
        max_cluster_rate=max_cluster_rate or math.inf,
        max_bytes=math.inf if worker_memory_mb is None else worker_memory_mb * 1e6,
        previous=before,
        max_moves=max_moves,
    )
    if out is not None:
        from stretto.core.partition import partition_text

        try:
            out.write_text(partition_text(split.partition), "utf-8")
        except OSError as error:
            raise StrettoError(f"--out {out} cannot be written ({error.strerror})") from None
    if as_json:
        print_json(_as_json(split, deployment, before))
    else:
        _print(split, deployment, before, out)


def check_limits(max_rate: float | None, max_cluster_rate: float | None, worker_memory_mb: float | None) -> None:
    """StrettoError where one of them is none."""
    for option, value in (
        ("--max-rate", max_rate),
        ("--max-cluster-rate", max_cluster_rate),
        ("--worker-memory-mb", worker_memory_mb),
    ):
        if value is not None and not 0 < value <= 1e12:
            raise StrettoError(f"{option} is {value:g}; it must be above 0")


def _subject(what: str, workers: int, rates: Path | None) -> tuple[Deployment, list[float]]:
    """The deployment, and the rate of each of its applications."""
    if what.endswith(".toml"):
        from stretto.cli.scenario.read import read_scenario

        scenario = read_scenario(Path(what))
        deployment = scenario.deployment
        expected = list(scenario.source.expected_rates(deployment, scenario.seconds))
    else:
        from stretto.repository.read import read_repository

        deployment, warnings = read_repository(what).deployment(workers)
        for warning in warnings:
            typer.echo(f"warning: {warning}", err=True)
        expected = [1.0] * len(deployment.applications)
    if rates is None:
        return deployment, expected
    from stretto.config.partition import read_rates

    given_rates = read_rates(rates)
    names = [application.name for application in deployment.applications]
    for name in given_rates:
        if name not in names:
            raise StrettoError(f"{rates} has a rate for {name[:40]!r}, which {what} does not hold")
    missing = [name for name in names if name not in given_rates]
    if missing:
        raise StrettoError(f"{rates} has no rate for {missing[0]}; each application needs one")
    return deployment, [given_rates[name] for name in names]


def _previous(file: Path | None) -> Partition | None:
    from stretto.config.partition import read_partition

    return None if file is None else read_partition(file)


def _rows(split: Partitioned, deployment: Deployment) -> list[dict[str, Any]]:
    partition = split.partition
    per_cluster = partition.sub_clusters // partition.clusters
    return [
        {
            "sub_cluster": number,
            "cluster": number // per_cluster,
            "applications": list(partition.applications_of(number)),
            "rate": float(split.rates[number]),
            "static_bytes": float(split.static_bytes[number]),
            "dynamic_bytes": float(split.dynamic_bytes[number]),
            "workers": [deployment.workers[worker].name for worker in split.workers[number]] if split.workers else [],
        }
        for number in range(partition.sub_clusters)
    ]


def _as_json(split: Partitioned, deployment: Deployment, before: Partition | None) -> dict[str, Any]:
    moved = {} if before is None else split.partition.moved_from(before)
    return {
        "clusters": split.partition.clusters,
        "sub_clusters": _rows(split, deployment),
        "applications": dict(split.partition.homes),
        "load_imbalance": split.balance.rate_imbalance,
        "memory_imbalance": split.balance.bytes_imbalance,
        "moved": {name: {"from": old, "to": new} for name, (old, new) in moved.items()},
    }


def _print(split: Partitioned, deployment: Deployment, before: Partition | None, out: Path | None) -> None:
    from stretto.planners.partition.blame import as_bytes
    from stretto.report.tables import figures_table, share, whole

    table: dict[str, list[str]] = {}
    for row in _rows(split, deployment):
        names = row["applications"]
        some = ", ".join(names[:SHOWN]) + (f", +{len(names) - SHOWN}" if len(names) > SHOWN else "")
        title = str(row["sub_cluster"])
        if split.partition.clusters > 1:
            title = f"{row['cluster']}/{title}"
        table[title] = [
            str(len(names)),
            whole(row["rate"]),
            as_bytes(row["static_bytes"]),
            as_bytes(row["dynamic_bytes"]),
            str(len(row["workers"])) if split.workers else "–",
            some,
        ]
    columns = ("models", "queries/s", "memory", "to run", "workers", "applications")
    print_tables(figures_table(f"{len(split.partition.homes)} applications", "sub-cluster", columns, table))
    typer.echo(
        f"imbalance (max − min) / mean: load {share(split.balance.rate_imbalance)},"
        f" memory {share(split.balance.bytes_imbalance)}"
    )
    if before is not None:
        moved = split.partition.moved_from(before)
        typer.echo(f"moved: {', '.join(f'{name} {old}→{new}' for name, (old, new) in moved.items()) or 'none'}")
    if out is not None:
        typer.echo(f"wrote {out}")
