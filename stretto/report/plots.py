"""Plots to files: outcomes by planner, goodput against rate, latency, batch sizes. Needs matplotlib, loaded when asked.

A planner keeps its colour in every plot. Nothing is ever shown on a screen, so no display is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.core.errors import StrettoError
from stretto.report.tables import OUTCOME_WORDS
from stretto.sim.tally import bucket_middles_ns

if TYPE_CHECKING:
    from stretto.sim.goodput import GoodputResult
    from stretto.sim.results import Result, Summary

LEGEND_INCHES = 2.0  # that the longest entry of a legend takes
INK, MUTED, GRID = "#1f2933", "#7b8794", "#e4e7eb"
ON_TIME, LATE, DROPPED = "#2a9d8f", "#e9c46a", "#e76f51"
PLANNER_COLOURS = {
    "symphony_batch_aware": "#0b6e4f",
    "symphony": "#2a9d8f",
    "symphony_eager": "#8ab17d",
    "clockwork": "#e76f51",
    "clockwork_filling": "#f4a261",
    "nexus": "#6d597a",
    "clipper": "#c98d2b",
    "fixed_delay": "#457b9d",
}
OTHER_COLOURS = ("#577590", "#b56576", "#90a955", "#355070", "#bc6c25")
STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "svg.hashsalt": "stretto",
}


@contextmanager
def _figure(width: float, height: float, columns: int, title: str, **rest: Any) -> Iterator[tuple[Any, list[Any]]]:
    """A figure without a window behind it; what is drawn inside the `with` is in the house style."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise StrettoError("plots need matplotlib; install it with: pip install 'stretto[plot]'") from None
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.005, ha="left", fontsize=13, fontweight="bold")
        yield figure, list(figure.subplots(1, columns, squeeze=False, **rest)[0])


@contextmanager
def grid_figure(
    width: float, height: float, rows: int, columns: int, title: str, **rest: Any
) -> Iterator[tuple[Any, list[list[Any]]]]:
    """The same with several rows, whose axes share their times."""
    with _figure(width, height, 1, title) as (figure, axes):
        axes[0].remove()
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey="row", **rest)
        yield figure, [list(row) for row in grid]


def save(figure: Any, file: Path) -> None:
    """Writes .png, .svg or .pdf, by the name's ending; the same figure gives the same bytes."""
    suffix = file.suffix.lower()
    if suffix not in (".png", ".svg", ".pdf"):
        raise StrettoError(f"a plot is a .png, .svg or .pdf file, not {file.name}")
    metadata = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
    from matplotlib import rc_context

    try:
        with rc_context(STYLE):  # an .svg file takes the salt of its names from here
            figure.savefig(file, dpi=150, facecolor="white", metadata=metadata)
    except OSError as error:
        raise StrettoError(f"the plot {file} cannot be written ({error.strerror})") from None


def legend_beside(axes: Any, is_stacked: bool = False) -> None:
    """A legend right of the axes, where it hides nothing; of a stack, with the uppermost layer first."""
    handles, labels = axes.get_legend_handles_labels()
    if is_stacked:
        handles, labels = handles[::-1], labels[::-1]
    axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)


def legend_below(axes: Any, columns: int = 3) -> None:
    """A legend under the axes and their label, where it hides nothing."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, borderaxespad=0.0)


def legend_of_all(figure: Any, panels: Iterable[Any]) -> None:
    """One legend for all these axes, under the figure, as wide as that allows."""
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = max(2, int(figure.get_figwidth() / LEGEND_INCHES))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(columns, len(handles)))


def colour_of(planner: str, place: int) -> str:
    """The planner's own colour, else the next free one."""
    return PLANNER_COLOURS.get(planner, OTHER_COLOURS[place % len(OTHER_COLOURS)])


def outcome_shares(summary: Any) -> dict[str, float]:
    """On time, late, dropped or failed, as shares of what was submitted and has ended."""
    total = max(1, sum(summary.outcomes.values()))
    on_time, late = summary.outcomes["on_time"], summary.outcomes["late"]
    return {"on time": on_time / total, "late": late / total, "dropped": 1 - (on_time + late) / total}


def run_figure(result: Result, title: str) -> Any:
    """One run: how long answers took, how large batches were, how queries ended."""
    summary = result.summary
    with _figure(13, 4.0, 3, f"{title} · {summary.planner}", width_ratios=(1.2, 1, 1)) as (figure, axes):
        draw_latency(axes[0], result)
        draw_batches(axes[1], summary.batch_histogram, ON_TIME)
        draw_outcomes(axes[2], summary)
    return figure


def comparison_figure(summaries: Mapping[str, Summary], title: str, words: Mapping[str, str] | None = None) -> Any:
    """Planners side by side on one load: how queries ended, mean batch, how busy the workers were."""
    height = 2.2 + 0.45 * len(summaries)
    with _figure(12, height, 3, title, sharey=True, width_ratios=(2.2, 1, 1)) as (figure, axes):
        draw_shares(axes[0], summaries, words)
        draw_bars(axes[1], {name: summary.batch_mean for name, summary in summaries.items()}, "mean batch", "{:.1f}")
        busy = {name: 100 * summary.worker_use for name, summary in summaries.items()}
        draw_bars(axes[2], busy, "workers busy, %", "{:.0f}")
        axes[2].set_xlim(0, 100)
    return figure


def goodput_figure(searches: Mapping[str, GoodputResult], title: str, limit: float) -> Any:
    """A goodput search: the bad rate of the worst application at each rate tried, and the rates found."""
    with _figure(12, 4.2, 2, title, width_ratios=(1.4, 1)) as (figure, (bad, best)):
        draw_bad_rates(bad, searches)
        draw_bars(
            best, {name: search.rate for name, search in searches.items()}, "goodput, queries/s", "{:,.0f}", labels=True
        )
        best.axvline(limit, color=INK, linewidth=0.8, linestyle="--")
        best.set_xlim(right=1.15 * max(limit, *(search.rate for search in searches.values())))
        best.annotate(
            "bound", (limit, 1), xycoords=("data", "axes fraction"), xytext=(4, 0), textcoords="offset points"
        )
    return figure


def draw_bad_rates(axes: Any, searches: Mapping[str, GoodputResult]) -> None:
    """A dot for every run of a search, the line of 1% that it looked for, and the rate that it found.

    The dots are not joined: a search tries rates where it needs them, with as many seeds as settle them, and what lies
    between two of them it does not know.
    """
    for place, (name, search) in enumerate(searches.items()):
        colour = colour_of(name, place)
        rates, shares = [probe.rate for probe in search.probes], [100 * probe.bad_rate for probe in search.probes]
        axes.scatter(rates, shares, color=colour, s=16, alpha=0.6, linewidths=0, label=name)
        if search.rate > 0:
            axes.axvline(search.rate, color=colour, linewidth=1.2, alpha=0.8)
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle="--")
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_ylim(bottom=0)
    axes.set_yticks([0, 0.1, 1, 10, 100], ["0", "0.1", "1", "10", "100"])
    axes.set(title="bad rate of the worst application", xlabel="queries/s offered", ylabel="%")
    legend_below(axes, min(4, len(searches)))


def bound_figure(bounds: Mapping[str, float], title: str) -> Any:
    """What each way of running could answer, side by side."""
    with _figure(7.5, 1.2 + 0.5 * len(bounds), 1, title) as (figure, (axes,)):
        draw_bars(axes, bounds, "queries/s, at most", "{:,.0f}", labels=True)
    return figure


def rate_figure(
    curves: Mapping[str, Sequence[tuple[float, Summary]]],
    rate: float,
    title: str,
    words: Mapping[str, str],
) -> Any:
    """Goodput against the offered rate, beside how queries ended at `rate`, which is one of them."""
    summaries = {name: dict(points)[rate] for name, points in curves.items()}
    with _figure(13, 5.2, 2, title, width_ratios=(1.25, 1)) as (figure, (left, right)):
        draw_curves(left, curves, words)
        draw_shares(right, summaries, words)
        right.set_title(f"how queries ended at {rate:,.0f} queries/s")
    return figure


def draw_curves(axes: Any, curves: Mapping[str, Sequence[tuple[float, Summary]]], words: Mapping[str, str]) -> None:
    """On-time answers a second against queries a second; the diagonal is every query answered in time."""
    top = max(rate for points in curves.values() for rate, _ in points)
    axes.plot([0, top], [0, top], color=MUTED, linewidth=0.8, linestyle=":")
    ends: list[tuple[float, str, str]] = []
    for place, (name, points) in enumerate(curves.items()):
        rates, goodputs = [rate for rate, _ in points], [summary.goodput for _, summary in points]
        colour = colour_of(name, place)
        axes.plot(rates, goodputs, color=colour, linewidth=2.2 if place == 0 else 1.6, marker="o", markersize=3)
        ends.append((goodputs[-1], words.get(name, name), colour))
    lowest = min(rate for points in curves.values() for rate, _ in points)
    axes.set_xlim(lowest * 0.97, top * 1.01)
    axes.set_ylim(0, top * 1.02)
    axes.set(title="goodput against load", xlabel="queries/s offered", ylabel="answers on time, per second")
    # Names at the ends of the lines, moved apart where they would touch.
    gap, place_at = 0.055 * top, -np.inf
    for height, name, colour in sorted(ends):
        place_at = max(height, place_at + gap)
        axes.annotate(
            name,
            (1.0, place_at),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            annotation_clip=False,
        )


def draw_shares(axes: Any, summaries: Mapping[str, Summary], words: Mapping[str, str] | None = None) -> None:
    """One stacked bar a planner: on time, late, dropped."""
    names = list(summaries)
    shares = [outcome_shares(summary) for summary in summaries.values()]
    left = np.zeros(len(names))
    for end, colour in (("on time", ON_TIME), ("late", LATE), ("dropped", DROPPED)):
        widths = np.array([100 * share[end] for share in shares])
        axes.barh(np.arange(len(names)), widths, left=left, color=colour, height=0.66, label=end)
        left += widths
    for place, share in enumerate(shares):
        axes.text(2, place, f"{share['on time']:.1%}", va="center", color="white", fontweight="bold", fontsize=9)
    axes.set_yticks(np.arange(len(names)), [(words or {}).get(name, name) for name in names])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 100)
    axes.set(title="how queries ended", xlabel="% of queries")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14 if len(names) > 4 else -0.22), ncols=3)


def draw_bars(axes: Any, values: Mapping[str, float], title: str, number: str, labels: bool = False) -> None:
    """One bar a planner, with its number at the end."""
    places = np.arange(len(values))
    colours = [colour_of(name, place) for place, name in enumerate(values)]
    axes.barh(places, list(values.values()), color=colours, height=0.66)
    highest = max(values.values(), default=0.0)
    for place, value in enumerate(values.values()):
        is_inside = value > 0.5 * highest
        axes.annotate(
            number.format(value),
            (value, place),
            xytext=(-5 if is_inside else 4, 0),
            textcoords="offset points",
            ha="right" if is_inside else "left",
            va="center",
            color="white" if is_inside else INK,
            fontsize=9,
            fontweight="bold" if is_inside else "normal",
        )
    axes.set_xlim(0, 1.1 * highest or 1.0)
    axes.set_title(title)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    if labels:
        axes.set_yticks(places, list(values))
        axes.invert_yaxis()


def draw_latency(axes: Any, result: Result) -> None:
    """Share of answers within each time, with the SLOs where they are few."""
    times_ms = bucket_middles_ns() / 1e6
    last = 0.0
    for histogram, name, colour in (
        (result.latency_histogram, "arrival to answer", ON_TIME),
        (result.queueing_histogram, "arrival to start", MUTED),
    ):
        counts = np.asarray(histogram).sum(axis=0)
        if not counts.any():
            continue
        within = np.cumsum(counts) / counts.sum()
        used = slice(max(0, int(np.flatnonzero(counts)[0]) - 1), int(np.flatnonzero(counts)[-1]) + 2)
        axes.plot(times_ms[used], 100 * within[used], color=colour, linewidth=2, label=name)
        last = max(last, float(times_ms[int(np.searchsorted(within, 0.999))]))
    slos = sorted({application.slo_ms for application in result.summary.applications})
    for slo in slos if len(slos) <= 3 else ():
        axes.axvline(slo, color=DROPPED, linewidth=1, linestyle="--", label="SLO" if slo == slos[0] else None)
    axes.set_xlim(0, 1.1 * max(last, slos[-1] if len(slos) <= 3 else 0.0) or 1.0)
    axes.set_ylim(0, 101)
    axes.set(title="latency", xlabel="ms", ylabel="% of answers within")
    legend_below(axes)


def draw_batches(axes: Any, histogram: Sequence[int], colour: str) -> None:
    """Share of queries that ran in batches of each size."""
    queries = np.arange(len(histogram)) * np.asarray(histogram, dtype=np.float64)
    total = queries.sum()
    axes.bar(np.arange(1, len(queries)), 100 * queries[1:] / max(total, 1.0), color=colour, width=0.85)
    axes.grid(visible=False, axis="x")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(title="batch sizes", xlabel="queries in the batch", ylabel="% of queries")


def draw_outcomes(axes: Any, summary: Summary) -> None:
    """One bar for each way in which queries ended."""
    ends = {name: count for name, count in summary.outcomes.items() if count}
    places = np.arange(len(ends))
    colours = [ON_TIME if name == "on_time" else LATE if name == "late" else DROPPED for name in ends]
    total = max(1, sum(ends.values()))
    axes.barh(places, [100 * count / total for count in ends.values()], color=colours, height=0.6)
    for place, count in enumerate(ends.values()):
        share = 100 * count / total
        inside = share > 70
        axes.annotate(
            f"{share:.2f}%",
            (share, place),
            xytext=(-4 if inside else 4, 0),
            textcoords="offset points",
            ha="right" if inside else "left",
            va="center",
            color="white" if inside else INK,
        )
    axes.set_yticks(places, [OUTCOME_WORDS.get(name, name) for name in ends])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 100)
    axes.set_ylim(max(3.5, len(ends) - 0.5), -0.5)  # bars of one thickness, however few
    axes.set(title="outcomes", xlabel="% of queries")
