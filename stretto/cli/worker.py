"""`stretto worker`: runs batches for a scheduler on any machine, until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stretto.cli.options import need_zeromq
from stretto.cli.roles import KeyFile, LogFormat, LogLevel, Scheduler


def worker(
    scheduler: Scheduler = "tcp://127.0.0.1:9300",
    key_file: KeyFile = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu, or a GPU: cuda:0.")] = "cpu",
    threads: Annotated[int, typer.Option(metavar="N", min=1, max=1024, help="That it gives a model.")] = 1,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="Machine kind whose profiles hold; else this machine's.")
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="In messages; else host, process and device.")] = "",
    memory_mb: Annotated[
        float, typer.Option(metavar="MB", min=0, help="The process with the models is ended beyond; 0: never.")
    ] = 0.0,
    repository: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Where this machine has the repository, if not where the scheduler has it."),
    ] = None,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """A worker of a cluster: run what its scheduler decides.

    It loads what the scheduler says and keeps it while that is gone. See docs/cluster.md.

    \b
    Examples:
      stretto worker
      stretto worker --scheduler tcp://10.0.0.1:9300 --key-file key --device cuda:0
    """
    need_zeromq()
    from stretto.api.logs import set_up_logs
    from stretto.cli.inputs import key_in
    from stretto.core.errors import StrettoError
    from stretto.live.cluster.worker import work

    if repository is not None and not repository.is_dir():
        raise StrettoError(f"{repository}: there is no such folder")
    log = set_up_logs(log_format, log_level)
    try:
        work(
            scheduler,
            key_in(key_file),
            device=device,
            threads=threads,
            kind=kind,
            name=name,
            memory_bytes=round(memory_mb * 1e6),
            repository=None if repository is None else str(repository),
        )
    finally:
        log.flush()
