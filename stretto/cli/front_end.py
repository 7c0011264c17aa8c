"""`stretto front-end`: takes queries for a scheduler on any machine, until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.options import need_zeromq
from stretto.cli.roles import Config, KeyFile, LogFormat, LogLevel, Scheduler, role_options
from stretto.cli.serve import Host, Port, Repo
from stretto.cli.start_console import StartConsole

if TYPE_CHECKING:
    from stretto.api.serve_options import ServeOptions


def front_end(
    ctx: typer.Context,
    repository: Repo,
    scheduler: Scheduler = "tcp://127.0.0.1:9300",
    key_file: KeyFile = None,
    host: Host = "127.0.0.1",
    http_port: Port = 8080,
    grpc_port: Port = 8081,
    share_ports: Annotated[
        bool, typer.Option("--share-ports", help="Other front ends of this machine, that say so too, have the same.")
    ] = False,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Inference needs this bearer token; several: one a line.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(metavar="PEM", help="With --tls-key: serve over TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="PEM")] = None,
    max_body_mb: Annotated[float, typer.Option(metavar="MB", min=0.001, max=2000, help="Of one HTTP body.")] = 64.0,
    max_message_mb: Annotated[
        float, typer.Option(metavar="MB", min=0.001, max=2000, help="Of one gRPC message.")
    ] = 4.0,
    in_flight_mb: Annotated[
        float,
        typer.Option(metavar="MB", min=1, max=1e6, help="Of all bodies, messages and waiting tensors together."),
    ] = 512.0,
    drain_grace: Annotated[
        float, typer.Option(metavar="S", min=0, help="After SIGTERM: not ready, but queries are taken so long.")
    ] = 0.0,
    drain_s: Annotated[float, typer.Option(metavar="S", min=0, help="At most so long to finish at the end.")] = 30.0,
    traces: Annotated[bool, typer.Option("--traces", help="OpenTelemetry spans (extra: telemetry).")] = False,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
    config: Config = None,
) -> None:
    """A front end of a cluster: take queries for its scheduler.

    It holds the tensors of its queries, sends them to the workers that the scheduler names, and gets answers straight
    back. While there is no scheduler, clients are told to try again. SIGHUP reads tokens, certificates and the
    configuration file anew. See docs/cluster.md.

    \b
    Examples:
      stretto front-end zoo:fashion
      stretto front-end /models --scheduler tcp://10.0.0.1:9300 --key-file key --host 0.0.0.0
      stretto front-end /models --scheduler tcp://10.0.0.1:9300,tcp://10.0.0.2:9300    sub-clusters
    """
    need_zeromq()
    from stretto.api.logs import set_up_logs
    from stretto.api.roles import serve_front_end
    from stretto.api.run import in_own_loop
    from stretto.cli.inputs import key_in

    def stated() -> ServeOptions:
        return role_options(ctx, config)

    options, key = stated(), key_in(key_file)
    log = set_up_logs(options.log_format, options.log_level)
    try:
        console = StartConsole(log.say)
        serving = serve_front_end(options, scheduler, key, console, stated, shares_ports=share_ports)
        is_clean = in_own_loop(serving)
    finally:
        log.flush()
    if not is_clean:
        raise typer.Exit(1)
