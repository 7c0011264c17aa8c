"""`stretto demo network`: four clients behind four links, sending what they are told, next to fixed sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from stretto.cli.bandwidth import BUILT_IN, read_bandwidth
from stretto.cli.frames import watched
from stretto.cli.output import NO_PLOT, check_plot, plot_of_demo, print_json, print_tables

if TYPE_CHECKING:
    from stretto.cli.started import Started
    from stretto.client.network.result import FrameResult
    from stretto.client.network.spec import ReportFrames

APPLICATION = "fashion_resolution"
SERVED = (f"zoo:{APPLICATION}", "--planner", "jellyfish", "--workers", "2", "--log-level", "error")
SECONDS = 20.0
FPS = 10.0
SLO_MS = 100.0
DELAY_MS = 2.0
SCALE = 0.4  # of the traces, so that the largest frames just pass where a link is good, and the smallest everywhere
WARM_UP_S = 2.0
OURS = "sizes as told"

Watch = Callable[[str], Any]  # a context that gives a ReportFrames, or None


@dataclass(frozen=True)
class NetworkDemo:
    """What was measured, by what the clients sent: what they were told first, then each fixed size."""

    results: dict[str, FrameResult]

    def share(self, name: str) -> float:
        """Of all frames, those answered correctly and on time."""
        return float(self.results[name].is_correct_on_time.mean())

    def missed(self, name: str) -> float:
        return float(1 - self.results[name].is_on_time.mean())

    @property
    def best_fixed(self) -> str:
        return max((name for name in self.results if name != OURS), key=self.share)


def demo_network(seconds: float | None, plot: Path | None, as_json: bool) -> None:
    """The demo as a command."""
    from stretto.report import plots
    from stretto.report.frames import frames_figure

    plot = plot_of_demo(plot, "stretto_demo_network.png")
    check_plot(plot)
    typer.echo(
        "starting a server; the first start on a machine compiles its dispatcher, which takes a minute …", err=True
    )
    measured = run_network_demo(SECONDS if seconds is None else seconds, watched)
    title = f"Four clients behind four links, {FPS:g} frames/s each: {APPLICATION}, planned by Jellyfish"
    if plot is not None:
        plots.save(frames_figure(measured.results, title), plot)
    if as_json:
        print_json({name: result.summary() for name, result in measured.results.items()})
        return
    print_tables(_clients(measured.results[OURS]), _table(measured))
    best = measured.best_fixed
    typer.echo(NO_PLOT if plot is None else f"plot: {plot}")
    typer.echo(
        f"Sending what they were told, clients had {measured.share(OURS):.1%} of all frames answered correctly and on "
        f"time, and missed {measured.missed(OURS):.1%}; {best}, the better of the fixed ones: "
        f"{measured.share(best):.1%} and {measured.missed(best):.1%}. That is "
        f"{100 * (measured.share(OURS) - measured.share(best)):+.1f} points."
    )
    typer.echo(
        "\nNow by hand:\n"
        f"  stretto serve zoo:{APPLICATION} --planner jellyfish          a server on 127.0.0.1:8080\n"
        f"  stretto load {APPLICATION} --network fading --scale {SCALE:g}     frame clients, in another terminal\n"
        "  stretto network fading --to 127.0.0.1:8080 --port 8090        any client of yours behind that link"
    )


def run_network_demo(seconds: float, watch: Watch, seed: int = 1) -> NetworkDemo:
    """The same clients behind the same links three times: sending what they are told to a server of all variants; and
    sending one size to a server of the variant of that size, the smallest and the largest.
    """
    from stretto.cli.started import started_server

    smallest, largest = fixed_sizes()
    results: dict[str, FrameResult] = {}
    for name, edge, variants in (
        (OURS, None, ()),
        (f"always {smallest[0]} px", smallest[0], ("--variant", smallest[1])),
        (f"always {largest[0]} px", largest[0], ("--variant", largest[1])),
    ):
        with started_server([*SERVED, *variants]) as server:
            run_once(server, WARM_UP_S, edge, None, seed)
            with watch(f"{APPLICATION}, {name}") as report:
                results[name] = run_once(server, seconds, edge, report, seed)
    return NetworkDemo(results)


def run_once(server: Started, seconds: float, edge: int | None, report: ReportFrames | None, seed: int) -> FrameResult:
    """Four clients behind the four traces of the package; `edge` None: they send what they are told."""
    from stretto.cli.queries import sample_of
    from stretto.client.network import Link
    from stretto.client.network.drive import run_frames
    from stretto.client.network.spec import FrameLoad

    inputs, labels = sample_of(APPLICATION)
    delay_ns = round(DELAY_MS * 1e6)
    links = tuple(Link(read_bandwidth(name, scale=SCALE), None, delay_ns, delay_ns) for name in BUILT_IN)
    load = FrameLoad(
        APPLICATION,
        inputs,
        links,
        BUILT_IN,
        labels,
        url=server.url,
        fps=FPS,
        seconds=seconds,
        slo_ms=SLO_MS,
        edge=edge,
        seed=seed,
    )
    return run_frames(load, report)


def fixed_sizes() -> tuple[tuple[int, str], tuple[int, str]]:
    """Height and variant of the smallest and the largest image that a variant takes."""
    from stretto.repository.read import read_repository

    variants = read_repository(f"zoo:{APPLICATION}").application(APPLICATION).variants
    by_size = sorted((variant.input_shape[-1], variant.name) for variant in variants)
    return by_size[0], by_size[-1]


def _clients(result: FrameResult) -> Any:
    from stretto.cli.frames import clients_table

    return clients_table(result.summary())


def _table(measured: NetworkDemo) -> Any:
    from stretto.report.tables import figures_table, milliseconds, share

    rows = {}
    for name, result in measured.results.items():
        summary = result.summary()
        rows[name] = [
            share(measured.share(name)),
            share(measured.missed(name)),
            "–" if summary["accuracy"] is None else share(summary["accuracy"]),
            "–" if summary["mean_edge"] is None else f"{summary['mean_edge']:.1f}",
            milliseconds(summary["latency_ms"]["p99"]),
            f"{summary['sent_bytes'] / 1e3:,.0f}",
        ]
    title = f"{APPLICATION}: four links, {FPS:g} frames/s each, SLO {SLO_MS:g} ms from frame to answer"
    columns = ["correct, on time", "missed", "accuracy of answers", "mean px", "p99 ms", "kB sent"]
    return figures_table(title, "clients send", columns, rows)
