"""`stretto load`: send a running server an open-loop load, and measure what a client gets."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli.bandwidth import DelayMs, Scale, StepS, TraceForm
from stretto.cli.infer import CaFile, DeadlineMs, MinAccuracy, RepositoryReference, Token, Url, VariantName
from stretto.cli.options import Json, Plot
from stretto.cli.output import check_plot, check_writable, print_json, print_tables
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stretto.client.load import LoadSpec
    from stretto.client.load.generator import ReportProgress
    from stretto.client.load.result import LoadProgress, LoadResult

LAG_WARNING_MS = 5.0
REDRAW_S = 0.5
OUTCOME_WORDS = {
    "on_time": "answered on time",
    "late": "answered late",
    "expired": "refused, expired",
    "infeasible": "refused, infeasible",
    "overloaded": "refused, overloaded",
    "cancelled": "refused, cancelled",
    "unavailable": "refused, unavailable",
    "failed": "failed",
    "bad_request": "refused, bad request",
    "not_found": "refused, not found",
    "unauthenticated": "refused, unauthenticated",
    "forbidden": "refused, forbidden",
    "bad_answer": "answered with nonsense",
    "broken": "connection broke",
    "no_connection": "no connection",
    "no_answer": "no answer within the grace",
    "not_sent": "not sent, no free connection",
}

CONNECTIONS = 512
CLIENTS, FPS = 4, 15.0

ApplicationName = Annotated[str, typer.Argument(metavar="APP", help="The application to load.")]
Rate = Annotated[
    float | None, typer.Option(metavar="R", help="Mean requests/s; a burst or a trace without it has its own rates.")
]
Seconds = Annotated[float, typer.Option(metavar="S", help="How long requests are sent.")]
Kind = Annotated[
    str,
    typer.Option(
        "--kind",
        "--arrivals",
        metavar="KIND",
        help="poisson, uniform, gamma:SHAPE (below 1: bursty) or burst:LOW:HIGH:PERIOD_S:SHARE of it at HIGH.",
    ),
]
Trace = Annotated[
    Path | None, typer.Option(metavar="FILE.csv", help="Rates over time (second,rate) in place of --kind.")
]
Rows = Annotated[int, typer.Option(metavar="N", help="Queries in each request.")]
Connections = Annotated[int, typer.Option(metavar="N", help="At most so many; they are opened as needed.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Same seed, same requests at the same moments.")]
Data = Annotated[
    Path | None,
    typer.Option(metavar="FILE.npz", help="inputs, and labels to check answers by; else APP's sample."),
]
Log = Annotated[
    Path | None, typer.Option(metavar="FILE.csv", help="Write which queries came when, for stretto train --load.")
]
Network = Annotated[
    str | None,
    typer.Option(metavar="TRACE", help="Send frames over links with this bandwidth; see stretto network."),
]
Clients = Annotated[int, typer.Option(metavar="N", help="With --network: how many, each with a link of its own.")]
Fps = Annotated[float, typer.Option(metavar="F", help="With --network: frames a second that each client makes.")]
Size = Annotated[
    int | None, typer.Option(metavar="PX", help="With --network: send this size, whatever the server tells.")
]
Encoding = Annotated[str, typer.Option(metavar="NAME", help="With --network: raw, jpeg or png.")]


def load(
    application: ApplicationName,
    url: Url = "http://127.0.0.1:8080",
    rate: Rate = None,
    seconds: Seconds = 10.0,
    kind: Kind = "poisson",
    trace: Trace = None,
    rows: Rows = 1,
    deadline_ms: DeadlineMs = None,
    variant: VariantName = "",
    min_accuracy: MinAccuracy = None,
    connections: Connections = CONNECTIONS,
    seed: Seed = 0,
    data: Data = None,
    repository: RepositoryReference = None,
    network: Network = None,
    clients: Clients = CLIENTS,
    fps: Fps = FPS,
    size: Size = None,
    encoding: Encoding = "raw",
    delay_ms: DelayMs = 0.0,
    form: TraceForm = "mbit",
    step_s: StepS = 1.0,
    scale: Scale = 1.0,
    token: Token = None,
    ca_file: CaFile = None,
    log: Log = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Send requests when they are due, however slow the answers, and count which came correct and on time.

    Latency counts from the moment a request was due. Ctrl-C ends the load and shows what was measured.

    With --network, frames are sent instead, by clients that measure their links and send the size that they are told.

    \b
    Examples:
      stretto load fashion --rate 200
      stretto load fashion --kind burst:100:900:10:0.3 --seconds 60 --deadline-ms 50 --plot load.png
      stretto load fashion --trace day.csv --rate 300 --json
      stretto load heart --repository models --rate 50
      stretto load fashion_resolution --network fading --scale 0.4 --plot frames.png
    """
    from stretto.cli.frames import LinkOptions, show_result, watched
    from stretto.cli.queries import labelled_file, sample_of
    from stretto.client.load import LoadSpec, run_load
    from stretto.client.network.drive import run_frames
    from stretto.client.network.spec import FrameLoad

    check_plot(plot)
    check_writable(log, "--log", (".csv",))
    if data is not None and repository is not None:
        raise StrettoError("--data and --repository both say what to send; give one of them")
    inputs, labels = sample_of(application, repository) if data is None else labelled_file(data)
    _check_one_load(
        network is not None,
        of_requests={"rate": rate, "trace": trace, "variant": variant, "min-accuracy": min_accuracy}
        | {
            "kind": kind != "poisson",
            "rows": rows != 1,
            "connections": connections != CONNECTIONS,
            "log": log is not None,
        },
        of_frames={"clients": clients != CLIENTS, "fps": fps != FPS, "size": size, "encoding": encoding != "raw"}
        | {"delay-ms": delay_ms, "form": form != "mbit", "step-s": step_s != 1.0, "scale": scale != 1.0},
    )
    if network is not None:
        options = LinkOptions(network, clients, delay_ms, form, step_s, scale)
        links, names = options.links(seed)
        frames = FrameLoad(
            application,
            inputs,
            links,
            names,
            labels,
            url=url,
            fps=fps,
            seconds=seconds,
            slo_ms=deadline_ms,
            edge=size,
            encoding=encoding,
            seed=seed,
            token=token,
            ca_file=ca_file,
        )
        title = f"{application} over {network}: {clients} clients, {fps:g} frames/s each, {seconds:g} s"
        with watched(title) as report:
            frame_result = run_frames(frames, report)
        show_result(frame_result, title, plot, as_json)
        return
    spec = LoadSpec(
        application,
        inputs,
        labels,
        url=url,
        rate=rate,
        seconds=seconds,
        kind=kind,
        rows=rows,
        deadline_ms=deadline_ms,
        version=variant,
        min_accuracy=min_accuracy,
        connections=connections,
        seed=seed,
        token=token,
        ca_file=ca_file,
    )
    if trace is not None:
        spec = replace(spec, kind=f"trace {trace.name}", times_ns=_trace_times_ns(spec, trace))
    with _progress(f"loading {application}") as progress:
        result = run_load(spec, progress)
    summary = result.summary()
    if log is not None:
        _write_log(log, result)
    if plot is not None and len(result):
        from stretto.report import plots
        from stretto.report.load import load_figure

        plots.save(load_figure(result), plot)
    if as_json:
        print_json(summary)
    else:
        _print(summary)
    for warning in warnings(summary):
        typer.echo(f"warning: {warning}", err=True)


def _check_one_load(is_of_frames: bool, of_requests: dict[str, Any], of_frames: dict[str, Any]) -> None:
    """Refuses what only the other kind of load has."""
    others = of_requests if is_of_frames else of_frames
    given = " and ".join(f"--{name}" for name, value in others.items() if value)
    if given and is_of_frames:
        raise StrettoError(f"{given} belong to a load of requests; leave them out with --network")
    if given:
        raise StrettoError(f"{given} belong to a load of frames; say over which links, with --network")


def _trace_times_ns(spec: LoadSpec, trace: Path) -> NDArray[np.int64]:
    """Poisson arrivals at the rates of a trace, which are scaled where a mean rate is given."""
    import numpy as np

    from stretto.client.load.spec import MAX_REQUESTS
    from stretto.sim.traces import RateTrace

    if spec.kind != "poisson":
        raise StrettoError(f"a trace has Poisson arrivals at its own rates; leave the kind {spec.kind[:40]!r} out")
    rates = RateTrace.read(trace)
    rates = rates if spec.rate is None else rates.at_rate(spec.rate)
    expected, end_ns = rates.mean_rate(spec.seconds) * spec.seconds, round(spec.seconds * 1e9)
    if expected > MAX_REQUESTS:
        raise StrettoError(f"this load is about {expected:,.0f} requests; at most {MAX_REQUESTS:,} are sent in one run")
    blocks = []
    for block in rates.blocks(np.random.SeedSequence(spec.seed), 16_384, end_ns):
        blocks.append(block)
        if block[-1] >= end_ns:
            break
    return np.concatenate(blocks)


def _write_log(file: Path, result: LoadResult) -> None:
    """A log of queries (stretto.sim.query_log): a row for each query of a request, when it was due to be sent."""
    deadline_ns = "" if result.deadline_ns is None else result.deadline_ns
    with open(file, "w", encoding="utf-8", newline="") as written:
        rows = csv.writer(written, lineterminator="\n")
        rows.writerow(("time_ns", "application", "deadline_ns"))
        for time_ns in result.scheduled_ns.tolist():
            rows.writerows([(time_ns, result.spec.application, deadline_ns)] * result.spec.rows)


@contextmanager
def _progress(title: str) -> Iterator[ReportProgress | None]:
    """The house's bar, with the counts behind it; None where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    counts_column = TextColumn("{task.fields[told]}")
    # Drawing takes milliseconds, in which no request leaves: seldom, and never from a thread of its own.
    with Progress(*columns, counts_column, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(title, total=1.0, told="")

        drawn_s = -REDRAW_S

        def show(state: LoadProgress) -> None:
            nonlocal drawn_s
            if state.elapsed_s - drawn_s >= REDRAW_S:
                drawn_s = state.elapsed_s
                bar.update(task, completed=state.fraction, told=_told(state), refresh=True)

        yield show


def _told(state: LoadProgress) -> str:
    on_time = state.on_time / state.ended if state.ended else 1.0
    return f"{state.sent:,} sent, {on_time:.1%} on time, {state.sent - state.ended:,} under way"


def _print(summary: dict[str, Any]) -> None:
    from stretto.cli.infer import shown
    from stretto.report.tables import figures_table, milliseconds, share, whole

    def percentiles(values: dict[str, float]) -> str:
        return " / ".join(milliseconds(values[name]) for name in ("p50", "p95", "p99"))

    def share_or_none(value: float | None) -> str:
        return "–" if value is None else share(value)

    total = max(1, summary["requests"])
    rows = {"requests": [whole(summary["requests"]), ""]}
    for name, count in summary["outcomes"].items():
        if count or name in ("on_time", "late"):
            rows[OUTCOME_WORDS[name]] = [whole(count), share(count / total)]
    rates = (summary[name] for name in ("offered_rate", "sent_rate", "answered_rate"))
    rows |= {
        "correct and on time": ["", share_or_none(summary["correct_on_time_share"])],
        "utility, late answers by their penalty": ["", share_or_none(summary["utility"])],
        "accuracy of answers": ["", share_or_none(summary["accuracy"])],
        "latency p50 / p95 / p99, ms": [percentiles(summary["latency_ms"]), ""],
        "mean batch": ["–" if summary["mean_batch"] is None else f"{summary['mean_batch']:.2f}", ""],
        "offered / sent / answered a second": [" / ".join(map(whole, rates)), ""],
        "generator's lag p50 / p95 / p99, ms": [percentiles(summary["lag_ms"]), ""],
    }
    for name, part in summary["variants"].items():
        rows[f"answered by {shown(name)}"] = ["", share(part)]
    deadline = "" if summary["deadline_ms"] is None else f", deadline {summary['deadline_ms']:g} ms"
    title = (
        f"{summary['application']}: {summary['arrivals']}, {summary['seconds']:.3g} s, seed {summary['seed']}{deadline}"
    )
    print_tables(figures_table(title, "figure", ["value", "share"], rows))


def warnings(summary: dict[str, Any]) -> list[str]:
    """What makes the figures say less than they seem to."""
    messages = []
    if summary["was_interrupted"]:
        messages.append("interrupted: these are the requests that had ended by then")
    if summary["lag_ms"]["p99"] > LAG_WARNING_MS:
        lag = f"requests left late (p99 {summary['lag_ms']['p99']:.1f} ms)"
        waited = summary["waited_for_connection"]
        if waited > 0.01 * summary["requests"]:
            messages.append(
                f"{lag}: {waited:,} had to wait for a connection; raise --connections, if the server bears it"
            )
        else:
            messages.append(f"{lag}: the generator was the bottleneck, not the server; lower the rate or free a core")
    return messages
