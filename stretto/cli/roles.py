"""What the commands of a cluster share: options of `stretto serve` that they do not have stand as they do there."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli.serve import serve
from stretto.cli.serve_options import serve_options, with_config
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stretto.api.serve_options import ServeOptions
    from stretto.core.verdict import GivenValue
    from stretto.live.options import ServiceOptions
    from stretto.planners.entry import Entry

Scheduler = Annotated[
    str, typer.Option("--scheduler", metavar="tcp://HOST:PORT", help="Where the scheduler listens (its --bind).")
]
KeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The key that all processes share; needed beyond this machine."),
]
LogFormat = Annotated[str, typer.Option(metavar="FORMAT", help="text or json.")]
LogLevel = Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")]
Config = Annotated[
    Path | None, typer.Option(metavar="FILE.toml", help="Further settings, as for stretto serve --config.")
]


def role_options(ctx: typer.Context, config: Path | None) -> ServeOptions:
    """As the command line and the file say; the former goes first."""

    def is_given(name: str) -> bool:
        source = ctx.get_parameter_source(name)
        return source is not None and source.name != "DEFAULT"

    parameters = inspect.signature(serve).parameters
    values: dict[str, Any] = {name: each.default for name, each in parameters.items() if name != "ctx"}
    return serve_options(*with_config(values | ctx.params, is_given, config))


def of_partition(
    options: ServeOptions, file: Path | None, sub_cluster: int | None = None, cluster: int | None = None
) -> ServeOptions:
    """Of the repository's applications only those of one sub-cluster, or of one cluster, are served, where that is
    asked for.
    """
    numbers = [number for number in (sub_cluster, cluster) if number is not None]
    if file is None and not numbers:
        return options
    if file is None or len(numbers) != 1:
        raise StrettoError(
            "a scheduler's share needs --partition, a file of stretto partition, and either --sub-cluster or --cluster"
        )
    from stretto.config.partition import read_partition
    from stretto.core.partition import Share

    share = Share(read_partition(file), numbers[0], file, is_cluster=cluster is not None)
    service = replace(options.service, share=share)
    parts = share.partition.sub_clusters // share.partition.clusters if share.is_cluster else 1
    if parts > 1:
        service = replace(service, planner_options={"sub_clusters": parts, **_splitting(service)})
    return replace(options, service=service)


def _splitting(service: ServiceOptions) -> Mapping[str, GivenValue]:
    """The options of its planner, which must be one that splits its workers."""
    from stretto.planners.registry import ENTRIES, planner_entry

    if not _can_split(planner_entry(service.planner)):
        able = ", ".join(entry.name for entry in ENTRIES if _can_split(entry))
        raise StrettoError(
            f"a cluster is split into sub-clusters by its planner, and {service.planner} does not: take one of {able} "
            "(--planner)"
        )
    return service.planner_options


def _can_split(entry: Entry) -> bool:
    return any(option.name == "sub_clusters" for option in entry.options)
