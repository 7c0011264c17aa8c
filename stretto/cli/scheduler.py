"""`stretto scheduler`: decides for front ends and workers on any machine, until it is told to stop."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.options import need_zeromq
from stretto.cli.roles import Config, KeyFile, LogFormat, LogLevel, of_partition, role_options
from stretto.cli.serve import Port, Repo
from stretto.cli.start_console import StartConsole

if TYPE_CHECKING:
    from stretto.api.serve_options import ServeOptions


def scheduler(
    ctx: typer.Context,
    repository: Repo,
    bind: Annotated[
        str, typer.Option(metavar="tcp://HOST:PORT", help="Where front ends and workers connect.")
    ] = "tcp://127.0.0.1:9300",
    key_file: KeyFile = None,
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, max=1024, help="Places for workers; they join as they come.")
    ] = 1,
    worker: Annotated[
        list[str] | None,
        typer.Option(metavar="DEVICE", help="Unequal places: cpu*2, cuda*8,kind=gpu-nvidia-h200; several times."),
    ] = None,
    threads: Annotated[int, typer.Option(metavar="N", min=1, max=1024, help="That a worker gives a model.")] = 1,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu or cuda.")] = "cpu",
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Machine kind whose profiles decide.")] = None,
    planner: Annotated[
        str | None, typer.Option(metavar="NAME", help="See stretto planners, or MODULE:FUNCTION; else judged.")
    ] = None,
    variant: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this one (or APP/NAME); may be given several times.")
    ] = None,
    partition: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of stretto partition --out: this one serves a sub-cluster.")
    ] = None,
    sub_cluster: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Which of the partition's, from 0 on.")
    ] = None,
    cluster: Annotated[
        int | None, typer.Option(metavar="K", min=0, help="Instead: all sub-clusters of the partition's cluster K.")
    ] = None,
    management_host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where management listens.")] = "127.0.0.1",
    management_port: Port = 8082,
    management_grpc_port: Port = 8083,
    management_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Management needs this bearer token; several: one a line.")
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Keep a second process ready, which takes over when this one is lost.")
    ] = False,
    wait_on: Annotated[int, typer.Option(hidden=True)] = -1,  # of one that --standby keeps
    in_turn: Annotated[bool, typer.Option("--in-turn", hidden=True)] = False,  # of two that others keep alive
    drain_s: Annotated[float, typer.Option(metavar="S", min=0, help="At most so long to finish at the end.")] = 30.0,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
    config: Config = None,
) -> None:
    """The scheduler of a cluster: decide for workers elsewhere.

    It takes no queries itself and never sees a tensor: stretto front-end and stretto worker connect here; see
    docs/cluster.md. Management and metrics of the whole cluster are here. SIGHUP reads tokens and the configuration
    file anew.

    \b
    Examples:
      stretto scheduler zoo:fashion --workers 2
      stretto scheduler /models --bind tcp://10.0.0.1:9300 --key-file key --workers 8
      stretto scheduler /models --partition parts.json --sub-cluster 3 --bind tcp://10.0.0.4:9300 --key-file key
      stretto scheduler /models --partition parts.json --cluster 0 --planner symphony_batch_aware --workers 8
    """
    need_zeromq()
    from stretto.api.logs import set_up_logs
    from stretto.api.roles import made_ready, serve_scheduler
    from stretto.api.run import in_own_loop
    from stretto.cli.inputs import key_in
    from stretto.cli.standby import Keeper, wait_on_pipe
    from stretto.live.cluster.turn import wait_for_turn

    def stated() -> ServeOptions:
        return of_partition(role_options(ctx, config), partition, sub_cluster, cluster)

    if in_turn or wait_on >= 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # whoever waits reads everything when its turn comes
    options, key = stated(), key_in(key_file)
    log = set_up_logs(options.log_format, options.log_level)
    if standby and wait_on < 0:
        raise typer.Exit(Keeper(sys.argv[1:], log.say).run())
    if wait_on >= 0 and not wait_on_pipe(wait_on, lambda: made_ready(options)):
        return
    try:
        if in_turn:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until it serves
            made_ready(options)
            turn = wait_for_turn(bind)
        is_clean = in_own_loop(serve_scheduler(stated(), bind, key, StartConsole(log.say), stated))
        if in_turn:
            turn.close()
    finally:
        log.flush()
    if not is_clean:
        raise typer.Exit(1)
