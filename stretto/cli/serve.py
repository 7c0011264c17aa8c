"""`stretto serve`: a repository over the Open Inference Protocol v2, until it is told to stop."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.api.run import ServeOptions
    from stretto.api.server import Listeners
    from stretto.cli.serve_config import ServeConfig
    from stretto.live.scaling_options import ScalingOptions
    from stretto.live.service import Service

ENGINES = ("local", "ray")
TELL_AFTER_S = 4.0  # of compiling
SLOW_STEPS = {  # and what is said of them where there is no bar
    "compiling": "compiling the dispatcher, which the first start on a machine needs; see stretto warm",
    "loading models": "loading models; on a GPU every batch size is made ready before the first query",
}
SIZES = {  # options in megabytes, and the limits that they set
    "max_body_mb": ("body_bytes", "inflated_bytes"),
    "max_message_mb": ("message_bytes",),
    "in_flight_mb": ("memory_bytes",),
}

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
        typer.Option(metavar="DEVICE", help="Unequal workers: cuda:0, cpu*2, cpu*2,threads=4; several times."),
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


def with_config(
    values: dict[str, Any], is_given: Callable[[str], bool], config: Path | None
) -> tuple[dict[str, Any], ServeConfig]:
    """The values of the options, and what only the file can say; the command line goes first."""
    from stretto.cli.serve_config import read_serve_config

    said = read_serve_config(config)
    values |= {name: value for name, value in said.values.items() if not is_given(name)}
    if values["planner"] != said.values.get("planner"):
        said = replace(said, planner_options={})  # they were written for another one
    given = {limit for option, limits in SIZES.items() if is_given(option) for limit in limits}
    said = replace(said, limits={name: value for name, value in said.limits.items() if name not in given})
    return values, said


def serve_options(values: dict[str, Any], said: ServeConfig) -> ServeOptions:
    """From the values of the options, by name, and what only the file can say."""
    from stretto.api.limits import Limits
    from stretto.api.rates import RateLimits
    from stretto.api.run import ServeOptions
    from stretto.api.server import Listen
    from stretto.cli.inputs import tokens_in
    from stretto.core.worker import UNLIMITED_MEMORY
    from stretto.live.options import ServiceOptions
    from stretto.live.recording import RecordOptions
    from stretto.planners.registry import DEFAULT_PLANNER

    memory_mb = values["worker_memory_mb"]
    service = ServiceOptions(
        values["repository"],
        planner_options=said.planner_options,
        only=tuple(values["variant"] or ()),
        worker=tuple(values["worker"] or ()),
        replan_s=None if values["replan_ms"] is None else values["replan_ms"] / 1000,
        policies=values["policies"],
        plans=values["plans"],
        is_fresh=values["fresh"],
        data_aware=values["data_aware"],
        worker_memory_bytes=UNLIMITED_MEMORY if memory_mb is None else round(memory_mb * 1e6),
        planner=values["planner"] or DEFAULT_PLANNER,
        **{name: values[name] for name in ("workers", "executor", "threads", "device", "kind")},
        worker_rss_bytes=None if values["worker_rss_mb"] is None else round(values["worker_rss_mb"] * 1e6),
        tells_failures=values["tell_failures"],
        **{name: values[name] for name in ("hang_s", "load_s", "reload_s", "ready_all")},
        autoscale=_autoscale(values, said),
    )
    sizes = {limit: round(values[option] * 1e6) for option, limits in SIZES.items() for limit in limits}
    ports = ("http_port", "grpc_port", "management_port", "management_grpc_port")
    listen = Listen(
        host=values["host"],
        management_host=values["management_host"],
        tokens=tokens_in(values["token_file"]),
        management_tokens=tokens_in(values["management_token_file"]),
        tls_certificate=_text(values["tls_certificate"]),
        tls_key=_text(values["tls_key"]),
        limits=Limits(**(sizes | said.limits)),
        shared_memory=values["shared_memory"],
        rates=RateLimits(values["client_requests"], values["client_worker_ms"], values["limit_by"]),
        **{name: _port(values[name]) for name in ports},
    )
    record_options = RecordOptions(
        overwrite=values["record_overwrite"],
        part_bytes=round(values["record_file_mb"] * 1e6),
        total_bytes=round(values["record_total_mb"] * 1e6),
    )
    return ServeOptions(
        service,
        listen,
        drain_s=values["drain_s"],
        drain_grace_s=values["drain_grace"],
        traces=values["traces"],
        record=values["record"],
        record_options=record_options,
        log_level=values["log_level"],
        log_format=values["log_format"],
        front_ends=values["front_ends"],
    )


def _autoscale(values: dict[str, Any], said: ServeConfig) -> ScalingOptions | None:
    from stretto.cli.inputs import tokens_in
    from stretto.live.scaling_options import BY, JUDGE, LOCAL, SIGNALS, WEBHOOK, ScalingOptions, read_bounds
    from stretto.planning.autoscale import AutoscaleOptions

    if not values["autoscale"]:
        for name in ("autoscale_actuator", "autoscale_by", "autoscale_webhook", "autoscale_accuracy"):
            if values[name] is not None:
                raise StrettoError(f"--{name.replace('_', '-')} is for a fleet that is scaled; give --autoscale 1:8")
        return None
    by = values["autoscale_by"] or SIGNALS
    if by not in BY:
        raise StrettoError(f"a fleet is not scaled by {by[:40]!r}; there are {', '.join(BY)}")
    webhook, tokens = values["autoscale_webhook"] or "", tokens_in(said.autoscale_token_file)
    return ScalingOptions(
        tuple(read_bounds(text) for text in values["autoscale"]),
        values["autoscale_actuator"] or (WEBHOOK if webhook else LOCAL),
        webhook,
        tokens[0] if tokens else "",
        values["autoscale_accuracy"],
        AutoscaleOptions(period_s=values["autoscale_period_s"], **said.autoscale),
        by == JUDGE,
    )


def _text(path: Path | None) -> str | None:
    """A file that is read later, but missed now."""
    if path is not None and not path.is_file():
        raise StrettoError(f"{path}: there is no such file")
    return None if path is None else str(path)


def _port(number: int) -> int | None:
    return None if number < 0 else number


class StartConsole:
    """On standard error, like all that is not a result: where it listens, how far the start is, and that it serves."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._bar: Any = None
        self._task: Any = None
        self._told: set[str] = set()
        self._began_s = time.monotonic()

    def listening(self, listeners: Listeners) -> None:
        """The addresses are real also where ports were left open."""
        for name, (host, port) in listeners.addresses.items():
            self.listens(name, host, port, listeners.listen.tls_certificate is not None)
        from stretto.core.address import is_loopback

        if not is_loopback(listeners.listen.host) and not listeners.listen.tokens:
            self._say("warning: other machines can call this server without a token; see --token-file")

    def listens(self, name: str, host: str, port: int, is_secure: bool) -> None:
        scheme = "tcp://" if name == "cluster" else "" if "grpc" in name else "https://" if is_secure else "http://"
        self._say(f"  {name:<16} {scheme}{host}:{port}")

    def progress(self, step: str, share: float) -> None:
        """A bar on a terminal; elsewhere one line, where there is something to wait for."""
        if sys.stderr is not None and sys.stderr.isatty():
            self._show(step, share)
        elif step in SLOW_STEPS and step not in self._told and time.monotonic() - self._began_s > TELL_AFTER_S:
            self._told.add(step)
            self._say(SLOW_STEPS[step])

    def serving(self, service: Service, listeners: Listeners) -> None:
        for warning in service.offer.warnings:
            self._say(f"warning: {warning}")
        names = ", ".join(service.files)
        fronts = len(listeners.plane.fronts())
        behind = f" behind {fronts} front ends" if fronts else ""
        self._say(f"serving {names} with {service.options.worker_count} worker(s){behind}")

    def started(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _show(self, step: str, share: float) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), console=Console(stderr=True), transient=True
            )
            self._task = self._bar.add_task(step, total=1.0)
            self._bar.start()
        self._bar.update(self._task, description=step, completed=share)
