"""The accuracy-latency plane: every variant a point, the Pareto front a line. Needs matplotlib, loaded when asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.core.application import from_fast_to_accurate
from stretto.profiling.pareto import pareto_front
from stretto.report.colours import variant_colours
from stretto.report.plots import INK, MUTED, _figure, legend_below

MAX_PANELS = 4


def pareto_figure(
    applications: Mapping[str, Mapping[str, tuple[float, float]]],
    title: str,
    batch: int = 1,
    ladders: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """(accuracy, p95 in ms) by variant by application; at most four applications, the first ones. `ladders` have all
    variants of each, from fast to accurate, where more are there than points.
    """
    shown = list(applications.items())[:MAX_PANELS]
    with _figure(1.5 + 5.5 * len(shown), 4.6, len(shown), title) as (figure, panels):
        for axes, (name, points) in zip(panels, shown, strict=True):
            draw_front(axes, points, batch, (ladders or {}).get(name))
            axes.set_title(name)
    return figure


def draw_front(
    axes: Any, points: Mapping[str, tuple[float, float]], batch: int, ladder: Sequence[str] | None = None
) -> None:
    """Accuracy against latency on a logarithmic axis, each variant in its colour; hollow where another beats it."""
    front = pareto_front(points)
    named = ladder or from_fast_to_accurate(points)
    colours = dict.fromkeys(points, MUTED) | variant_colours(named)  # one that is not enabled is on no ladder
    axes.plot(
        [points[name][1] for name in front],
        [100 * points[name][0] for name in front],
        color=MUTED,
        linewidth=1.2,
        drawstyle="steps-post",  # between two variants there is nothing to run but the faster one
        label="Pareto front",
    )
    beaten = [name for name in points if name not in front]
    for names, is_hollow in ((front, False), (beaten, True)):
        axes.scatter(
            [points[name][1] for name in names],
            [100 * points[name][0] for name in names],
            facecolors="white" if is_hollow else [colours[name] for name in names],
            edgecolors=[colours[name] for name in names],
            s=36,
            linewidths=1.6,
            zorder=3,
            label="beaten by another" if is_hollow and names else None,
        )
    for name, (accuracy, latency) in points.items():
        axes.annotate(
            name,
            (latency, 100 * accuracy),
            xytext=(6, -12),
            textcoords="offset points",
            fontsize=8.5,
            color=INK if name in front else MUTED,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.margins(x=0.18, y=0.12)
    axes.set(xlabel=f"p95 latency of a batch of {batch}, ms", ylabel="accuracy, %")
    if beaten:
        legend_below(axes, 2)
