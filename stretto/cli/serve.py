"""`stretto serve`: a repository over the Open Inference Protocol v2, until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli.serve_options import serve_options, with_config
from stretto.cli.start_console import StartConsole
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.api.serve_options import ServeOptions
    from stretto.cli.serve_config import ServeConfig

ENGINES = ("local", "ray")

Repo = Annotated[str, typer.Argument(metavar="REPO", help="A folder, zoo or zoo:APP; see docs/repository.md.")]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Where inference listens.")]
Port = Annotated[int, typer.Option(metavar="PORT", min=-1, max=65535, help="0 takes a free one, -1 leaves it out.")]
Workers = Annotated[int, typer.Option(metavar="N", min=0, max=1024, help="0: one for each core but one.")]


def serve(
    ctx: typer.Context,
    repository: Repo,
    host: Host = "127.0.0.1",
    http_port: Port = 8080,
    grpc_port: Port = 8081,
    management_host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where management listens.")] = "127.0.0.1",
    management_port: Port = 8082,
    management_grpc_port: Port = 8083,
    front_ends: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=64, help="Processes that parse and answer, on the same ports; 1: none."),
    ] = 1,
    workers: Workers = 0,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DEVICE", help="Unequal workers: cuda:0, cpu*2,threads=4, cpu,variant=NAME; several times."
        ),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Workers are each a thread or a process; else as the device asks."),
    ] = None,
    threads: Annotated[int, typer.Option(metavar="N", min=1, max=1024, help="That a worker gives a model.")] = 1,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu or cuda.")] = "cpu",
    autoscale: Annotated[
        list[str] | None,
        typer.Option(metavar="MIN:MAX", help="As many workers as the load needs; KIND=MIN:MAX[@COST] for each kind."),
    ] = None,
    autoscale_actuator: Annotated[
        str | None, typer.Option(metavar="WHO", help="advice (nobody acts), local (workers here) or webhook.")
    ] = None,
    autoscale_webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="Is told the number of workers wanted, as JSON.")
    ] = None,
    autoscale_by: Annotated[
        str | None, typer.Option(metavar="WHAT", help="signals (default), or judge: the cheapest fleet that it finds.")
    ] = None,
    autoscale_period_s: Annotated[
        float, typer.Option(metavar="S", min=0.1, max=86_400, help="How often the number is looked at.")
    ] = 10.0,
    autoscale_accuracy: Annotated[
        float | None, typer.Option(metavar="A", help="And for answers so accurate (a fraction), not only on time.")
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="WHERE", help="local: this machine; ray: a Ray cluster, see docs/ray.md.")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Of the Ray cluster's head; else that of this machine.")
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Of this service in the Ray cluster.")] = "stretto",
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key that processes on Ray share; else a new one.")
    ] = None,
    planner: Annotated[
        str | None, typer.Option(metavar="NAME", help="See stretto planners, or MODULE:FUNCTION; else judged.")
    ] = None,
    replan_ms: Annotated[
        float | None,
        typer.Option(metavar="MS", min=2, max=3_600_000, help="How often to plan; else as the planner is made for."),
    ] = None,
    data_aware: Annotated[
        bool, typer.Option("--data-aware", help="Choose by evidence of each query's class (extra: evidence).")
    ] = False,
    policies: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Policies of stretto plan --out, for a planner that follows them; missing ones are made.",
        ),
    ] = None,
    plans: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judged plans of stretto tune --out (planner judged).")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Neither read nor keep what runs learn of plans (planner judged).")
    ] = False,
    no_judging: Annotated[
        bool, typer.Option("--no-judging", help="Follow plans that are known, and judge none here (planner judged).")
    ] = False,
    variant: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this one (or APP/NAME); may be given several times.")
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Machine kind whose profiles decide.")] = None,
    worker_memory_mb: Annotated[
        float | None, typer.Option(metavar="MB", min=1, help="Models are loaded and unloaded to fit.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Inference needs this bearer token; several: one a line.")
    ] = None,
    management_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Management needs this bearer token; several: one a line.")
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
    shared_memory: Annotated[
        bool,
        typer.Option("--shared-memory", help="Clients of this machine may share memory instead of sending tensors."),
    ] = False,
    client_requests: Annotated[
        float, typer.Option(metavar="N", min=0, max=1e9, help="Requests a second that one client may send; 0: any.")
    ] = 0.0,
    client_worker_ms: Annotated[
        float, typer.Option(metavar="MS", min=0, max=1e9, help="Worker time a second that one client may use; 0: any.")
    ] = 0.0,
    limit_by: Annotated[
        str, typer.Option(metavar="WHAT", help="A client is a client_id (client) or a token.")
    ] = "client",
    reload_s: Annotated[float, typer.Option(metavar="S", min=0, help="Look for changes so often; 0: never.")] = 2.0,
    hang_s: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="A batch that takes longer, and 20 times what it should, hangs.")
    ] = 10.0,
    drain_grace: Annotated[
        float, typer.Option(metavar="S", min=0, help="After SIGTERM: not ready, but queries are taken so long.")
    ] = 0.0,
    load_s: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="A model that takes longer to load hangs, and is left out.")
    ] = 60.0,
    worker_rss_mb: Annotated[
        float | None,
        typer.Option(metavar="MB", min=0, help="A worker process that holds more is replaced; 0: never."),
    ] = None,
    ready_all: Annotated[
        bool, typer.Option("--ready-all", help="Ready only while every application is; else what can be served.")
    ] = False,
    tell_failures: Annotated[
        bool, typer.Option("--tell-failures", help="Clients hear what a model raised, not only that it failed.")
    ] = False,
    drain_s: Annotated[float, typer.Option(metavar="S", min=0, help="At most so long to finish at the end.")] = 30.0,
    record: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every event, for stretto replay.")] = None,
    record_overwrite: Annotated[bool, typer.Option("--record-overwrite", help="Replace an earlier recording.")] = False,
    record_file_mb: Annotated[
        float, typer.Option(metavar="MB", min=0.001, help="Then the recording goes on in a further file.")
    ] = 256.0,
    record_total_mb: Annotated[float, typer.Option(metavar="MB", min=0.001, help="Then recording stops.")] = 10_000.0,
    traces: Annotated[bool, typer.Option("--traces", help="OpenTelemetry spans (extra: telemetry).")] = False,
    log_format: Annotated[str, typer.Option(metavar="FORMAT", help="text or json.")] = "text",
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    config: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="All of this, and more, from a file.")
    ] = None,
) -> None:
    """Serve a model repository over HTTP and gRPC, and keep its deadlines.

    Clients call applications, never models; see docs/serving.md. Ctrl-C or SIGTERM finishes what waits, then ends.
    SIGHUP reads tokens, certificates and the configuration file anew.

    \b
    Examples:
      stretto serve zoo:fashion
      stretto serve models --workers 4 --executor process --host 0.0.0.0
      stretto serve models --worker cuda:0 --worker cpu*2
      stretto serve zoo:fashion --planner edge_rl --worker cpu*2,variant=cnn_s --worker cpu,variant=resnet_l
      stretto serve models --front-ends 4 --executor process
      stretto serve models --executor process --autoscale 1:8
      stretto serve models --engine ray --worker cuda*4 --worker cpu*8
      stretto serve zoo --http-port 0 --record events.jsonl
      stretto serve models --config serve.toml
    """
    from stretto.api.logs import set_up_logs
    from stretto.api.run import run

    def is_given(name: str) -> bool:
        source = ctx.get_parameter_source(name)
        return source is not None and source.name != "DEFAULT"

    def stated() -> tuple[dict[str, Any], ServeConfig]:
        return with_config(dict(ctx.params), is_given, config)

    values, said = stated()
    if engine not in ENGINES:
        raise StrettoError(f"there is no engine {engine[:40]!r}; there are {', '.join(ENGINES)}")
    for option in ("address", "name", "key_file"):
        if engine == "local" and is_given(option):
            raise StrettoError(f"--{option.replace('_', '-')} is for --engine ray")
    options = serve_options(values, said)
    log = set_up_logs(values["log_format"], values["log_level"])
    try:
        if engine == "ray":
            from stretto.cli.serve_ray import serve_on_ray

            def reread() -> tuple[dict[str, Any], ServeOptions]:
                now, said = stated()
                return now, serve_options(now, said)

            is_clean = serve_on_ray(values, options, StartConsole(log.say), reread)
        else:
            is_clean = run(options, StartConsole(log.say), lambda: serve_options(*stated()))
    finally:
        log.flush()
    if not is_clean:
        raise typer.Exit(1)
