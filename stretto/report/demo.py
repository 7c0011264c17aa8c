"""The picture of the demo: each variant alone beside Stretto, and who answered while the load came in bursts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.client.load.result import LoadResult
from stretto.client.load.timeline import timeline
from stretto.report.load import draw_latency, draw_rate, draw_variants
from stretto.report.plots import DROPPED, INK, LATE, MUTED, ON_TIME, STYLE

NARROW = 15  # % of a bar: its number does not fit into less


def demo_figure(results: Mapping[str, LoadResult]) -> Any:
    """`results` by variant, Stretto's own choice under ""; needs matplotlib, as check_plot makes sure."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ours = results[""]
    line = timeline(ours)
    with rc_context(STYLE):
        figure = Figure(figsize=(12, 6), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(
            "The same bursty load, answered by Stretto and by each variant alone",
            x=0.005,
            ha="left",
            fontsize=13,
            fontweight="bold",
        )
        grid = figure.add_gridspec(3, 2, width_ratios=(1, 1.15), height_ratios=(0.8, 1.1, 1))
        draw_shares(figure.add_subplot(grid[:, 0]), results)
        rate = figure.add_subplot(grid[0, 1])
        draw_rate(rate, line)
        variants = figure.add_subplot(grid[1, 1], sharex=rate)
        draw_variants(variants, line, ours.variants)
        variants.set_title("Stretto: who answered")
        latency = figure.add_subplot(grid[2, 1], sharex=rate)
        draw_latency(latency, line, ours.deadline_ns)
        latency.set_xlim(0, max(ours.seconds, 1e-3))
        latency.set_xlabel("seconds")
    return figure


def draw_shares(axes: Any, results: Mapping[str, LoadResult]) -> None:
    """Stacked: correct and on time, wrong but on time, and neither."""
    names = [name or "Stretto" for name in results]
    places = range(len(names) - 1, -1, -1)
    for place, (name, result) in zip(places, results.items(), strict=True):
        summary = result.summary()
        right = 100 * (summary["correct_on_time_share"] or 0.0)
        on_time = 100 * (summary["on_time_share"] or 0.0)
        axes.barh(place, right, color=ON_TIME if not name else MUTED, height=0.62)
        axes.barh(place, on_time - right, left=right, color=LATE, height=0.62)
        axes.barh(place, 100 - on_time, left=on_time, color=DROPPED, alpha=0.55, height=0.62)
        weight = "bold" if not name else "normal"
        is_inside = right > NARROW
        at, side, ink = (right - 1, "right", "white") if is_inside else (right + 1, "left", INK)
        axes.text(at, place, f"{right:.1f}%", ha=side, va="center", color=ink, fontweight=weight)
    axes.set_yticks(list(places), names)
    axes.set_xlim(0, 100)
    axes.grid(visible=False, axis="y")
    axes.set(title="correct and on time, % of all images")
    parts = (("correct, on time", MUTED, 1.0), ("wrong, on time", LATE, 1.0), ("late or refused", DROPPED, 0.55))
    handles = [axes.barh(0, 0, color=colour, alpha=alpha, label=label) for label, colour, alpha in parts]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=3)
