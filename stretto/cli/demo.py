"""`stretto demo`: the zoo served for real, one bursty load, and what Stretto gains over each variant served alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli.options import Json
from stretto.cli.output import NO_PLOT, check_plot, plot_of_demo, print_json, print_tables, progress_bar
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.cli.demo_load import BurstyLoad
    from stretto.client.load import LoadResult

APPLICATION = "fashion_resolution"
WARM_UP_S = 0.3
OURS = ""  # the version that leaves the choice to Stretto

What = Annotated[
    str, typer.Argument(metavar="[network]", help="Nothing: a bursty load. network: clients behind changing links.")
]
Seconds = Annotated[
    float | None,
    typer.Option(metavar="S", min=1, max=600, help="Of each run: 2.5, six in turns; network: 20 of three."),
]
DemoPlot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Where the plot goes (.png, .svg or .pdf); else stretto_demo*.png.")
]
SECONDS = 2.5
TURNS = 2  # so that a moment in which the machine is slow is nobody's alone
UNSTEADY = 0.05  # of all images, between two turns of the fastest variant


@dataclass(frozen=True)
class Demo:
    """The load, and the results of all turns by variant, Stretto's own choice under ""."""

    load: BurstyLoad
    turns: dict[str, list[LoadResult]]

    @cached_property
    def results(self) -> dict[str, LoadResult]:
        from stretto.client.load.result import joined

        return {version: joined(turns) for version, turns in self.turns.items()}

    def share(self, version: str) -> float:
        """Of all images, those answered correctly and on time."""
        return _share(self.results[version])

    @property
    def unsteady(self) -> str:
        """What the fastest variant had in each turn, where it should have been the same."""
        version = next(version for version in self.turns if version)
        shares = [_share(each) for each in self.turns[version]]
        if max(shares) - min(shares) <= UNSTEADY:
            return ""
        return f"{version} had {' and '.join(map('{:.1%}'.format, shares))}"

    @property
    def best_single(self) -> str:
        return max((version for version in self.results if version), key=self.share)

    @property
    def gain(self) -> float:
        """Over the best single variant, as a share of all images."""
        return self.share(OURS) - self.share(self.best_single)


def _share(result: LoadResult) -> float:
    return float(result.summary()["correct_on_time_share"] or 0.0)


def demo(what: What = "", seconds: Seconds = None, plot: DemoPlot = None, as_json: Json = False) -> None:
    """Serve the zoo, drive a bursty load, and compare Stretto with each variant served alone.

    Everything is real: a server on loopback, trained models, and a load of image requests over HTTP. `demo network`
    sends frames over four links of changing bandwidth instead, next to fixed sizes.

    \b
    Examples:
      stretto demo
      stretto demo --seconds 20 --plot demo.svg
      stretto demo network
    """
    from stretto.report import plots

    if what == "network":
        from stretto.cli.demo_network import demo_network

        demo_network(seconds, plot, as_json)
        return
    if what:
        raise StrettoError(f"there is no demo {what[:40]!r}; there are stretto demo and stretto demo network")
    seconds = SECONDS if seconds is None else seconds
    plot = plot_of_demo(plot, "stretto_demo.png")
    check_plot(plot)
    typer.echo(
        "starting a server; the first start on a machine compiles its dispatcher, which takes a minute …", err=True
    )
    with progress_bar("driving the load") as progress:
        measured = run_demo(seconds, progress)
    if plot is not None:
        from stretto.report.demo import demo_figure

        plots.save(demo_figure(measured.results), plot)
    if as_json:
        print_json({version or "stretto": result.summary() for version, result in measured.results.items()})
        return
    print_tables(_table(measured))
    best = measured.best_single
    typer.echo(NO_PLOT if plot is None else f"plot: {plot}")
    typer.echo(
        f"Stretto answered {measured.share(OURS):.1%} of all images correctly and on time; the best single variant, "
        f"{best}, {measured.share(best):.1%}: {100 * measured.gain:+.1f} points."
    )
    if measured.unsteady:
        typer.echo(
            f"This machine was busy with something else, or changed its speed: {measured.unsteady} in two turns of the "
            "same load. On a quiet one the figures say more."
        )
    typer.echo(
        "\nNow by hand:\n"
        "  stretto serve zoo                                    a server on 127.0.0.1:8080\n"
        "  stretto infer fashion sample:3 --deadline-ms 50      one image of the sample, in another terminal\n"
        "  curl 127.0.0.1:8080/v2/models/fashion                what it takes and gives\n"
        "  stretto load fashion --rate 200                      a load, with a table at its end"
    )


def run_demo(seconds: float, progress: Any = None, seed: int = 1) -> Demo:
    """One server, then the same load for Stretto and for each variant alone, in turns."""
    from stretto.cli.demo_load import ROWS, bursty_load, carried
    from stretto.cli.queries import sample_of
    from stretto.cli.started import started_server
    from stretto.client.load import LoadSpec, run_load
    from stretto.repository.read import read_repository

    repository = read_repository(f"zoo:{APPLICATION}")
    ladder = repository.application(APPLICATION).ladder
    versions = [OURS, *ladder]
    inputs, labels = sample_of(APPLICATION)
    results: dict[str, list[LoadResult]] = {version: [] for version in versions}
    with started_server(["zoo", "--workers", "1", "--fresh", "--log-level", "error"]) as server:
        ends = [carried(server.url, APPLICATION, inputs, ladder[end]) for end in (0, -1)]
        bursts = bursty_load(*ends)

        def load(version: str, length_s: float, turn: int) -> LoadResult:
            return run_load(
                LoadSpec(
                    APPLICATION,
                    inputs,
                    labels,
                    url=server.url,
                    seconds=length_s,
                    kind=bursts.kind,
                    rows=ROWS,
                    version=version,
                    seed=seed + turn,
                )
            )

        for number, (turn, version) in enumerate(product(range(TURNS), versions)):
            load(version, WARM_UP_S, turn)
            results[version].append(load(version, seconds, turn))
            if progress is not None:
                progress((number + 1) / (TURNS * len(versions)))
    return Demo(bursts, results)


def _table(measured: Demo) -> Any:
    from rich.table import Table

    table = Table(title=f"{APPLICATION}: {measured.load}, one worker")
    columns = ("served by", "correct and on time", "on time", "accuracy of answers", "p99 ms", "refused")
    for name in columns:
        table.add_column(name, justify="left" if name == "served by" else "right")
    for version, result in measured.results.items():
        summary = result.summary()
        table.add_row(
            version or "Stretto, all variants",
            f"{measured.share(version):.1%}",
            f"{summary['on_time_share']:.1%}",
            f"{summary['accuracy'] or 0:.1%}",
            f"{summary['latency_ms']['p99']:.1f}",
            f"{1 - summary['answered_rate'] / summary['offered_rate']:.1%}",
            style="bold" if not version else None,
        )
    return table
