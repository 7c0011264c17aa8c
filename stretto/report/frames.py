"""Frames over a network as a picture: each client's bandwidth, the size it sent, who answered and how soon; and beside
that the same clients sending one fixed size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stretto.client.network.result import FrameResult
from stretto.report.colours import variant_colours
from stretto.report.plots import DROPPED, INK, LATE, MUTED, ON_TIME, STYLE, legend_of_all

MAX_CLIENTS = 4  # that are drawn one by one
POINTS = 400  # of a trace


def frames_figure(results: Mapping[str, FrameResult], title: str) -> Any:
    """`results` by what was sent, the first in detail; with more than one, shares side by side below.

    Needs matplotlib, as check_plot makes sure.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    first = next(iter(results.values()))
    columns = min(MAX_CLIENTS, len(first.names))
    has_others = len(results) > 1
    heights = (1, 1, 1, 0.34 * len(results) + 0.25) if has_others else (1, 1, 1)
    with rc_context(STYLE):
        figure = Figure(figsize=(max(7.0, 4.1 * columns), 2.45 * sum(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.005, ha="left", fontsize=13, fontweight="bold")
        grid = figure.add_gridspec(len(heights), 2 * columns, height_ratios=heights)
        rows: list[list[Any]] = [[], [], []]
        for number in range(columns):
            for row, axes in enumerate(rows):
                share = axes[0] if axes else None
                place = grid[row, 2 * number : 2 * number + 2]
                axes.append(figure.add_subplot(place, sharey=share, sharex=rows[0][number] if row else None))
            draw_bandwidth(rows[0][number], first, number)
            draw_sizes(rows[1][number], first, number)
            draw_latency(rows[2][number], first, number)
            for axes in rows:
                axes[number].tick_params(labelleft=number == 0)
                axes[number].tick_params(labelbottom=axes is rows[2])
        for axes, label in zip(rows, ("kbit/s", "pixels", "ms"), strict=True):
            axes[0].set_ylabel(label)
        rows[0][0].set_ylim(0, 1.25 * max(max(link.up.rates) for link in first.links[:columns]) * 8e-3)
        rows[1][0].set_ylim(0, 1.12 * max(28, int(first.edge.max(initial=0))))
        rows[2][0].set_ylim(0, 2 * first.slo_ns / 1e6)
        legend_of_all(figure, (axes for row in rows for axes in row))
        if has_others:
            draw_shares(figure.add_subplot(grid[3, :columns]), results)
            draw_misses(figure.add_subplot(grid[3, columns:]), results)
    return figure


def draw_bandwidth(axes: Any, result: FrameResult, number: int) -> None:
    """What the link had, and what the client measured."""
    up, of_client = result.links[number].up, result.client == number
    seconds = np.linspace(0, result.seconds, POINTS)
    given = [up.rate_at(round(second * 1e9)) * 8e-3 for second in seconds]
    axes.fill_between(seconds, given, color=MUTED, alpha=0.3, linewidth=0, label="the link's bandwidth")
    measured = of_client & np.isfinite(result.bandwidth)
    axes.plot(
        result.made_ns[measured] / 1e9,
        result.bandwidth[measured] * 8e-3,
        color=INK,
        linewidth=1.0,
        label="as the client measures it",
    )
    axes.set_xlim(0, max(result.seconds, 1e-3))
    axes.set(title=f"{result.names[number]}: bandwidth")


def draw_sizes(axes: Any, result: FrameResult, number: int) -> None:
    """The height of each frame, in the colour of the variant that answered it."""
    sent = (result.client == number) & (result.edge > 0)
    axes.step(result.made_ns[sent] / 1e9, result.edge[sent], where="post", color=MUTED, linewidth=0.8)
    for place, (name, colour) in enumerate(variant_colours(result.variants).items()):
        answered = sent & (result.variant == place)
        label = name if (result.variant == place).any() else None
        axes.scatter(result.made_ns[answered] / 1e9, result.edge[answered], s=11, color=colour, zorder=3, label=label)
    axes.set(title="size sent")


def draw_latency(axes: Any, result: FrameResult, number: int) -> None:
    """Answers on time, and misses: where there is no answer, at the top."""
    of_client = result.client == number
    slo_ms = result.slo_ns / 1e6
    made_s, latency_ms = result.made_ns / 1e9, result.latency_ns / 1e6
    good, late = of_client & result.is_on_time, of_client & result.is_answer & ~result.is_on_time
    none = of_client & ~result.is_answer
    axes.scatter(made_s[good], latency_ms[good], s=7, color=ON_TIME, label="on time")
    axes.scatter(made_s[late], np.minimum(latency_ms[late], 1.93 * slo_ms), s=16, color=LATE, label="late")
    top_ms = np.full(int(none.sum()), 1.93 * slo_ms)
    axes.scatter(made_s[none], top_ms, s=16, color=DROPPED, marker="x", label="no answer")
    axes.axhline(slo_ms, color=INK, linewidth=0.8, linestyle="--", label="SLO")
    missed = 1 - good.sum() / max(1, of_client.sum())
    axes.set(title=f"latency; {missed:.1%} missed", xlabel="seconds")


def draw_shares(axes: Any, results: Mapping[str, FrameResult]) -> None:
    """Correct and on time, of all frames."""
    shares = {name: 100 * float(result.is_correct_on_time.mean()) for name, result in results.items()}
    _bars(axes, shares, "correct and on time, % of all frames", "{:.1f}%")
    axes.set_xlim(0, 100)


def draw_misses(axes: Any, results: Mapping[str, FrameResult]) -> None:
    shares = {name: 100 * float(1 - result.is_on_time.mean()) for name, result in results.items()}
    _bars(axes, shares, "missed, % of all frames", "{:.1f}%", DROPPED)
    axes.set_xlim(0, max(5.0, 1.18 * max(shares.values())))
    axes.tick_params(labelleft=False)


def _bars(axes: Any, values: Mapping[str, float], title: str, form: str, colour: str | None = None) -> None:
    places = list(range(len(values) - 1, -1, -1))
    for place, (number, (_, value)) in zip(places, enumerate(values.items()), strict=True):
        is_first = number == 0
        axes.barh(place, value, color=colour or (ON_TIME if is_first else MUTED), height=0.62)
        axes.text(value, place, " " + form.format(value), va="center", fontweight="bold" if is_first else "normal")
    axes.set_yticks(places, list(values))
    axes.grid(visible=False, axis="y")
    axes.set(title=title)
