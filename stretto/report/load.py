"""The plot of a load over time: what was offered, what came correct and on time, who answered, and how long it took."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.client.load.result import LoadResult
from stretto.client.load.timeline import Timeline, timeline
from stretto.report.colours import variant_colours
from stretto.report.plots import DROPPED, GRID, INK, MUTED, ON_TIME, STYLE, legend_beside

MAX_VARIANTS = 8  # that are named
SEVERAL, OTHERS = "several in a request", "others"


def load_figure(result: LoadResult, title: str | None = None) -> Any:
    """Four panels over the same seconds. Needs matplotlib, as check_plot makes sure."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    line = timeline(result)
    with rc_context(STYLE):
        figure = Figure(figsize=(11, 10), layout="constrained")
        FigureCanvasAgg(figure)
        shown = f"{result.spec.application}: {result.spec.kind}" if title is None else title
        figure.suptitle(shown, x=0.005, ha="left", fontsize=13, fontweight="bold")
        rate, good, variants, latency = figure.subplots(4, 1, sharex=True, height_ratios=(1, 1.2, 1.2, 1.2))
        draw_rate(rate, line)
        draw_good(good, line, result.is_labelled)
        draw_variants(variants, line, result.variants)
        draw_latency(latency, line, result.deadline_ns)
        latency.set_xlim(0, max(result.seconds, 1e-3))
        latency.set_xlabel("seconds")
    return figure


def draw_rate(axes: Any, line: Timeline) -> None:
    axes.fill_between(line.middle_s, line.offered_rate, color=MUTED, alpha=0.35, linewidth=0, step="mid")
    axes.step(line.middle_s, line.offered_rate, where="mid", color=INK, linewidth=1.2)
    axes.set_ylim(bottom=0)
    axes.set(title="requests offered", ylabel="per second")


def draw_good(axes: Any, line: Timeline, is_labelled: bool) -> None:
    axes.plot(line.middle_s, 100 * line.on_time_share, color=MUTED, linewidth=1.2, label="on time")
    if is_labelled:
        axes.plot(line.middle_s, 100 * line.correct_on_time_share, color=ON_TIME, linewidth=2, label="correct, on time")
    axes.set_ylim(0, 101)
    axes.set(title="correct and on time" if is_labelled else "on time", ylabel="% of queries")
    legend_beside(axes)


def draw_variants(axes: Any, line: Timeline, names: tuple[str, ...]) -> None:
    """Stacked from the fastest to the most accurate; of many variants the most used by name, all others together."""
    layers = variant_layers(line.variant_share, names)
    colours = variant_colours([name for name in names if "," not in name]) | {SEVERAL: MUTED, OTHERS: GRID}
    if layers:
        axes.stackplot(
            line.middle_s,
            *(100 * share for share in layers.values()),
            labels=[name.replace("$", r"\$").lstrip("_") for name in layers],
            colors=[colours[name] for name in layers],
            linewidth=0,
        )
        legend_beside(axes, is_stacked=True)
    axes.set_ylim(0, 100)
    axes.set(title="who answered", ylabel="% of answers")


def variant_layers(shares: NDArray[np.float64], names: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
    """The share of each variant that answered, in the order of `names`, which is from fast to accurate."""
    by_name = {name: np.nan_to_num(share) for name, share in zip(names, shares, strict=True)}
    several = [share for name, share in by_name.items() if "," in name]  # the rows of one request, answered by more
    layers = {name: share for name, share in by_name.items() if "," not in name and share.any()}
    most_used = sorted(layers, key=lambda name: -layers[name].sum())[: MAX_VARIANTS - 1]
    rest = [share for name, share in layers.items() if name not in most_used]
    layers = {name: share for name, share in layers.items() if name in most_used}
    for name, parts in ((OTHERS, rest), (SEVERAL, several)):
        if parts:
            layers[name] = np.sum(parts, axis=0)
    return layers


def draw_latency(axes: Any, line: Timeline, deadline_ns: int | None) -> None:
    axes.plot(line.middle_s, line.p50_ms, color=ON_TIME, linewidth=1.6, label="p50")
    axes.plot(line.middle_s, line.p99_ms, color=DROPPED, linewidth=1.2, label="p99")
    if deadline_ns is not None:
        axes.axhline(deadline_ns / 1e6, color=INK, linewidth=0.8, linestyle="--", label="deadline")
    axes.set_ylim(bottom=0)
    axes.set(title="latency of answers, from when they were due", ylabel="ms")
    legend_beside(axes)
