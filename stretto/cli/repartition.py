"""`stretto repartition`: gives the schedulers of sub-clusters another partition while they serve, once or for ever."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from stretto.cli.options import Json
from stretto.cli.output import print_json
from stretto.cli.partition import MaxClusterRate, MaxMoves, MaxRate, MemoryMb, check_limits
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.client import Client
    from stretto.core.deployment import Deployment
    from stretto.core.partition import Partition

What = Annotated[
    str, typer.Argument(metavar="REPO|PARTITION.json", help="What is served, to measure and compute; or a partition.")
]
Schedulers = Annotated[
    list[str],
    typer.Option("--scheduler", metavar="URL", help="Management address; once for each (sub-)cluster, in any order."),
]
LOOK_S = 0.2
PAUSE_S = 5.0  # after something that went wrong
MAX_S = 86_400.0
OTHER = -1  # of the other level


class Limits(NamedTuple):
    max_rate: float
    max_cluster_rate: float
    max_bytes: float
    max_moves: int | None


def repartition(
    what: What,
    scheduler: Schedulers,
    measure_s: Annotated[
        float, typer.Option(metavar="S", min=0.1, max=MAX_S, help="How long rates are measured.")
    ] = 10.0,
    follow: Annotated[bool, typer.Option("--follow", help="Go on, measuring again, until it is ended.")] = False,
    max_rate: MaxRate = None,
    max_cluster_rate: MaxClusterRate = None,
    worker_memory_mb: MemoryMb = None,
    max_moves: MaxMoves = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compute it, and change nothing.")] = False,
    wait_s: Annotated[
        float, typer.Option(metavar="S", min=0, max=MAX_S, help="At most so long until all of it is in force.")
    ] = 600.0,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The schedulers' management token.")] = None,
    ca_file: Annotated[Path | None, typer.Option(metavar="PEM", help="Authorities, for https addresses.")] = None,
    as_json: Json = False,
) -> None:
    """Move applications between sub-clusters that serve: as a file says, or as measured rates ask for.

    The new scheduler loads a model beside its work, one worker at a time; front ends send queries there once it is
    ready; only then does the old one give it up. Rates are those of --measure-s; models move only where load or memory
    are out of balance, or a limit is broken, and at most --max-moves of them (a tenth). See docs/partitioning.md.

    \b
    Examples:
      stretto repartition parts.json --scheduler http://10.0.0.1:8082 --scheduler http://10.0.0.2:8082
      stretto repartition models/ --scheduler http://10.0.0.1:8082 --scheduler http://10.0.0.2:8082 --follow
    """
    from stretto.cli.inputs import tokens_in
    from stretto.client import Client

    check_limits(max_rate, max_cluster_rate, worker_memory_mb)
    if follow and what.endswith(".json"):
        raise StrettoError("a partition that is given stays; --follow is for one that measured rates ask for")
    tokens = tokens_in(token_file)
    made = [
        Client(url, token=tokens[0] if tokens else None, ca_file=ca_file, timeout_ms=1e3 * max(wait_s, 60.0))
        for url in scheduler
    ]
    max_bytes = math.inf if worker_memory_mb is None else worker_memory_mb * 1e6
    limits = Limits(max_rate or math.inf, max_cluster_rate or math.inf, max_bytes, max_moves)
    while True:
        try:
            states = states_of(made)
            before = in_force(states)
            wanted = _wanted(what, made, states, before, measure_s, limits)
            is_everywhere = all(state["version"] == before.version for state in states)
            if not dry_run and (wanted != before or not is_everywhere):
                give(made, wanted, before)
                wait(made, wanted, wait_s)
            _tell(wanted, before, as_json)
        except StrettoError as error:
            if not follow:
                raise
            typer.echo(f"error: {error}", err=True)
            time.sleep(PAUSE_S)
        if not follow:
            return


def _wanted(
    what: str,
    schedulers: Sequence[Client],
    states: Sequence[dict[str, Any]],
    before: Partition,
    measure_s: float,
    limits: Limits,
) -> Partition:
    """What is to be in force; the very partition that is where nothing should move."""
    if what.endswith(".json"):
        from stretto.config.partition import read_partition

        given = read_partition(Path(what))
        return before if given.homes == before.homes else replace(given, version=before.version + 1)
    from stretto.repository.read import read_repository

    deployment, _ = read_repository(what).deployment(1)
    time.sleep(measure_s)
    counts = asked_between(states, states_of(schedulers))
    names = [application.name for application in deployment.applications]
    if not any(counts[name] for name in names):
        return before  # nothing is known
    return computed(deployment, [counts[name] / measure_s for name in names], states, before, limits)


def computed(
    deployment: Deployment,
    rates: Sequence[float],
    states: Sequence[dict[str, Any]],
    before: Partition,
    limits: Limits,
) -> Partition:
    """What these rates ask for. Schedulers of whole clusters split theirs themselves, by what they measure: then
    applications are moved among clusters alone.
    """
    from stretto.planners.partition.of_deployment import partitioned
    from stretto.planners.partition.worth import usual_moves

    are_clusters, parts = "cluster" in states[0], min(int(state["parts"]) for state in states)
    whole, max_rate, max_cluster_rate = before, limits.max_rate, limits.max_cluster_rate
    if are_clusters:
        whole, max_rate, max_cluster_rate = before.top, min(max_rate, max_cluster_rate / parts), math.inf
    rooms = [float(state["worker_bytes"]) for state in states if state.get("worker_bytes") is not None]
    partition = partitioned(
        deployment,
        rates,
        whole.sub_clusters,
        clusters=whole.clusters,
        max_rate=max_rate,
        max_cluster_rate=max_cluster_rate,
        max_bytes=min([limits.max_bytes, *rooms]),
        previous=whole,
        max_moves=usual_moves(len(rates)) if limits.max_moves is None else limits.max_moves,
        is_steady=True,
        parts=parts,
    ).partition
    if not are_clusters:
        return partition
    return before if partition == whole else before.with_top(partition)


def states_of(schedulers: Sequence[Client]) -> list[dict[str, Any]]:
    """As all of them say, at about the same time. StrettoError where one does not."""
    with ThreadPoolExecutor(len(schedulers)) as pool:
        return list(pool.map(lambda client: client.partition(), schedulers))


def in_force(states: Sequence[dict[str, Any]]) -> Partition:
    """The latest partition among them. StrettoError where they are not all of its parts, each once."""
    from stretto.core.partition import Partition

    try:
        latest = max(states, key=lambda state: int(state["version"]))
        homes = {str(name): int(home) for name, home in latest["applications"].items()}
        partition = Partition(homes, int(latest["sub_clusters"]), int(latest["clusters"]), int(latest["version"]))
        level, count = (
            ("cluster", partition.clusters) if "cluster" in latest else ("sub_cluster", partition.sub_clusters)
        )
        numbers = Counter(int(state.get(level, OTHER)) for state in states if int(state["parts"]) > 0)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StrettoError("a scheduler's answer has another form than this version's; update both") from None
    if numbers[OTHER]:
        raise StrettoError("some of these schedulers have a cluster each, others a sub-cluster; start all alike")
    for number in range(count):
        if numbers[number] != 1:
            raise StrettoError(
                f"of {count} {level.replace('_', '-')}s number {number} was named {numbers[number]} times; name the "
                "management address of each once (--scheduler)"
            )
    return partition


def asked_between(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> Counter[str]:
    """Queries by application, over all schedulers. One that was started anew counts from nothing."""
    counts: Counter[str] = Counter()
    for was, now in zip(before, after, strict=True):
        for name, count in now["submitted"].items():
            earlier = was["submitted"].get(name, 0)
            counts[name] += count - earlier if count >= earlier else count
    return counts


def give(schedulers: Sequence[Client], wanted: Partition, before: Partition) -> None:
    """To all, at once. Where one cannot take it, all go back to what was before, and StrettoError says why."""
    from stretto.core.partition import partition_document

    def given(partition: Partition) -> list[StrettoError]:
        content = partition_document(partition)

        def to(client: Client) -> StrettoError | None:
            try:
                client.partition(content)
            except StrettoError as error:
                return error
            return None

        with ThreadPoolExecutor(len(schedulers)) as pool:
            return [error for error in pool.map(to, schedulers) if error is not None]

    problems = given(wanted)
    if problems:
        given(replace(before, version=wanted.version + 1))
        raise StrettoError(f"{problems[0]}; everything stays as it was")


def wait(schedulers: Sequence[Client], wanted: Partition, wait_s: float) -> None:
    """Until every scheduler serves its share and nothing else."""
    end = time.monotonic() + wait_s
    while True:
        states = states_of(schedulers)
        if all(state["is_settled"] and state["version"] == wanted.version for state in states):
            return
        if time.monotonic() > end:
            break
        time.sleep(LOOK_S)
    unsettled = [text for state in states for text in _unsettled(state)]
    raise StrettoError(f"after {wait_s:g} s the change goes on: {'; '.join(unsettled) or 'a scheduler is not ready'}")


def _unsettled(state: dict[str, Any]) -> list[str]:
    where = f"cluster {state['cluster']}" if "cluster" in state else f"sub-cluster {state['sub_cluster']}"
    waiting = [
        f"{where} keeps {name} until {', '.join(each['waits_for'])} can ask for it elsewhere"
        for name, each in state["serves"].items()
        if each["waits_for"]
    ]
    return waiting + ([f"{where}: {state['problem']}"] if state["problem"] else [])


def _tell(wanted: Partition, before: Partition, as_json: bool) -> None:
    moved = wanted.moved_from(before)
    if as_json:
        print_json({"version": wanted.version, "moved": {name: {"from": a, "to": b} for name, (a, b) in moved.items()}})
    else:
        moves = ", ".join(f"{name} {'' if old is None else old}→{new}" for name, (old, new) in moved.items())
        typer.echo(f"version {wanted.version}, moved: {moves or 'none'}")
