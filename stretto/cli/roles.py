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
    from stretto.api.serve_options import ServeOptions

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


def of_sub_cluster(options: ServeOptions, file: Path | None, number: int | None) -> ServeOptions:
    """Of the repository's applications only those of one sub-cluster are served, where that is asked for."""
    if file is None and number is None:
        return options
    if file is None or number is None:
        raise StrettoError("a sub-cluster needs both --partition, a file of stretto partition, and --sub-cluster")
    from stretto.config.partition import read_partition
    from stretto.core.partition import Share

    return replace(options, service=replace(options.service, share=Share(read_partition(file), number, file)))
