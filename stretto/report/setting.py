"""A setting for people: tables of what was measured, and pictures of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from stretto.core.profile import NS_PER_MS, NS_PER_S
from stretto.report.colours import variant_colours
from stretto.report.plots import INK, MUTED, STYLE, legend_below
from stretto.report.tables import figures_table, milliseconds, share, whole
from stretto.twin.setting import Setting
from stretto.twin.stretch import SLACK_QUANTILES, WINDOWS_NS, ArrivalStretch, dispersion

RESIDUAL_QUANTILES = (0.5, 0.95, 0.99)
APPLICATION_COLOURS = ("#2a9d8f", "#e9c46a", "#457b9d", "#e76f51", "#6d597a", "#8ab17d", "#b56576", "#355070")
MOST_LINES = len(APPLICATION_COLOURS)
DASHES = ("-", "--", ":", "-.")
MOST_BINS = 1200  # of a picture over time
BIN_NS = 100 * NS_PER_MS
PICTURE_WINDOWS_NS = tuple(step * 10**power for power in range(6, 10) for step in (1, 2, 5))  # 1 ms … 5 s
WIDE = 4.0  # ratios that differ so much are drawn on a logarithmic axis
MOST_SHOWN_CLASSES = 12
NONE = "–"


def setting_tables(setting: Setting, title: str) -> list[Table]:
    """Arrivals, run times, and what surrounds them."""
    columns = ("queries/s", "requests", "seconds", "rows/request", "slack ms")
    arrivals = {name: _arrival_cells(stretch) for name, stretch in setting.arrivals.items()}
    windows = [f"in {_span(window)}" for window in WINDOWS_NS]
    spread = {name: _dispersion_cells(stretch) for name, stretch in setting.arrivals.items()}
    tables = [
        figures_table(f"{title}: arrivals", "application", columns, arrivals),
        figures_table("burstiness, variance / mean of counts", "application", windows, spread),
    ]
    if setting.residuals:
        runs = {
            f"{label} on {kind}": [
                whole(residuals.runs),
                *(f"{ratio:.3f}" for ratio in np.quantile(residuals.pooled, RESIDUAL_QUANTILES)),
            ]
            for (label, kind), residuals in setting.residuals.items()
        }
        tables.append(figures_table("run time over the profile's", "variant", ("sample", "p50", "p95", "p99"), runs))
    around = {figure: [value] for figure, value in _surroundings(setting).items()}
    tables.append(figures_table("around them", "figure", ("value",), around))
    return tables


def setting_as_dict(setting: Setting) -> dict[str, Any]:
    """The figures of the tables, for JSON."""
    return {
        "applications": {
            name: {
                "queries_per_s": stretch.rate,
                "requests": len(stretch.requests),
                "seconds": stretch.span_ns / NS_PER_S,
                "rows_per_request": stretch.rows_histogram(),
                "dispersion": dict(zip(map(_span, WINDOWS_NS), stretch.dispersion, strict=True)),
                "slack_ms": {
                    f"p{round(100 * quantile)}": value / NS_PER_MS
                    for quantile, value in zip(SLACK_QUANTILES, stretch.slack_ns(), strict=False)
                },
                "class_shares": list(stretch.class_shares),
            }
            for name, stretch in setting.arrivals.items()
        },
        "residuals": [
            {
                "variant": label,
                "kind": kind,
                "runs": residuals.runs,
                **_percentiles(residuals.pooled, 1.0),
                "by_batch": {
                    str(1 << bucket): {"runs": len(sample), **_percentiles(sample, 1.0)}
                    for bucket, sample in residuals.by_bucket.items()
                },
            }
            for (label, kind), residuals in setting.residuals.items()
        ],
        "delays_ms": {
            "control": setting.delays.control_ns / NS_PER_MS,
            "data": setting.delays.data_ns / NS_PER_MS,
            "timer": setting.delays.timer_ns / NS_PER_MS,
            "handoff": _percentiles(setting.handoff_ns, NS_PER_MS),
            "overrun": _percentiles(setting.overrun_ns, NS_PER_MS),
        },
        "present": dict(setting.present),
        "networks_mbit_per_s": {str(client): list(rates) for client, rates in setting.networks.items()},
    }


def _percentiles(sample: NDArray[Any], unit: float) -> dict[str, float]:
    if not len(sample):
        return {}
    names = (f"p{round(100 * quantile)}" for quantile in RESIDUAL_QUANTILES)
    return dict(zip(names, (np.quantile(sample, RESIDUAL_QUANTILES) / unit).tolist(), strict=True))


def _arrival_cells(stretch: ArrivalStretch) -> list[str]:
    slack = stretch.slack_ns()
    low, middle, high = (value / NS_PER_MS for value in slack) if slack else (math.nan,) * 3
    slack_text = (
        NONE if not slack else milliseconds(middle) if low == high else f"{milliseconds(low)}…{milliseconds(high)}"
    )
    return [
        f"{stretch.rate:,.1f}",
        whole(len(stretch.requests)),
        f"{stretch.span_ns / NS_PER_S:,.1f}" if stretch.span_ns else NONE,
        f"{stretch.mean_rows():.2f}" if len(stretch.requests) else NONE,
        slack_text,
    ]


def _dispersion_cells(stretch: ArrivalStretch) -> list[str]:
    return [f"{value:.2f}" if math.isfinite(value) else NONE for value in stretch.dispersion]


def _surroundings(setting: Setting) -> dict[str, str]:
    delays = setting.delays
    rows = {"workers present": ", ".join(f"{count} {kind}" for kind, count in setting.present.items()) or NONE}
    for name, times in (("handoff", setting.handoff_ns), ("batch ended later than expected", setting.overrun_ns)):
        if len(times):
            cells = " / ".join(milliseconds(value) for value in _percentiles(times, NS_PER_MS).values())
            rows[f"{name} p50 / p95 / p99, ms"] = cells
    rows["plans reckon with control / data / timer, ms"] = " / ".join(
        milliseconds(value / NS_PER_MS) for value in (delays.control_ns, delays.data_ns, delays.timer_ns)
    )
    for name, stretch in setting.arrivals.items():
        shares = stretch.class_shares
        if shares:
            largest = sorted(enumerate(shares), key=lambda pair: -pair[1])[:MOST_SHOWN_CLASSES]
            shown_shares = ", ".join(f"{number}: {share(value)}" for number, value in largest if value)
            rows[f"classes of {name}"] = shown_shares + (", …" if len(shares) > MOST_SHOWN_CLASSES else "")
    if setting.networks:
        rates = [rate for samples in setting.networks.values() for rate in samples]
        rows[f"networks of {len(setting.networks)} clients, Mbit/s"] = f"{min(rates):.3g} … {max(rates):.3g}"
    return rows


def setting_figure(setting: Setting, title: str) -> Any:
    """Four panels: arrivals over time, burstiness, run times, rows per request. Needs matplotlib (check_plot)."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    busiest = sorted(setting.arrivals.items(), key=lambda pair: -pair[1].rate)[:MOST_LINES]
    stretches = {name: stretch for name, stretch in busiest if len(stretch.requests)}
    with rc_context(STYLE):
        figure = Figure(figsize=(13, 8.4), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.005, ha="left", fontsize=13, fontweight="bold")
        (over_time, burstiness), (run_times, rows) = figure.subplots(2, 2, width_ratios=(1.6, 1))
        draw_arrivals(over_time, stretches)
        draw_dispersion(burstiness, stretches)
        draw_residuals(run_times, setting)
        draw_rows(rows, stretches)
        for axes, is_empty in ((over_time, not stretches), (burstiness, not stretches), (rows, not stretches)):
            if is_empty:
                _say(axes, "no request was recorded")
        if not setting.residuals:
            _say(run_times, "no batch ran")
    return figure


def draw_arrivals(axes: Any, stretches: Mapping[str, ArrivalStretch]) -> None:
    """Queries in each 100 ms (or longer, where the stretch is long), up to now."""
    longest_ns = max((stretch.span_ns for stretch in stretches.values()), default=BIN_NS)
    bin_ns = BIN_NS
    while longest_ns / bin_ns > MOST_BINS:
        bin_ns *= 2 if str(bin_ns)[0] in "15" else 5
        bin_ns = int(float(f"{bin_ns:.0e}"))
    for place, (name, stretch) in enumerate(stretches.items()):
        counts = stretch.counts(bin_ns)
        edges_s = (np.arange(len(counts) + 1) * bin_ns - stretch.span_ns) / NS_PER_S
        colour = APPLICATION_COLOURS[place]
        axes.stairs(counts, edges_s, color=colour, fill=True, alpha=0.18)
        label = f"{_safe(name)}, {stretch.rate:,.3g}/s"
        axes.stairs(counts, edges_s, baseline=None, color=colour, linewidth=1.1, label=label)
    axes.set_xlim(-longest_ns / NS_PER_S, 0)
    axes.set_ylim(bottom=0)
    axes.set(title=f"arrivals per {_span(bin_ns)}", xlabel="seconds before the end of the stretch", ylabel="queries")
    if stretches:
        legend_below(axes, 4)


def draw_dispersion(axes: Any, stretches: Mapping[str, ArrivalStretch]) -> None:
    """Variance over mean of counts, by window; independent arrivals stand at 1."""
    axes.axhline(1.0, color=MUTED, linewidth=1, linestyle="--")
    axes.annotate(
        "independent (Poisson)", (1.0, 1.0), xycoords=("axes fraction", "data"), xytext=(-4, -4),
        textcoords="offset points", ha="right", va="top", color=MUTED, fontsize=9,
    )  # fmt: skip
    seen = [1.0]
    for place, (_, stretch) in enumerate(stretches.items()):
        offsets, rows = stretch.requests["offset_ns"], stretch.requests["rows"]
        values = [dispersion(offsets, rows, stretch.span_ns, window) for window in PICTURE_WINDOWS_NS]
        windows_ms = np.array(PICTURE_WINDOWS_NS) / NS_PER_MS
        axes.plot(windows_ms, values, color=APPLICATION_COLOURS[place], linewidth=1.8, marker="o", markersize=3.5)
        seen += [value for value in values if math.isfinite(value) and value > 0]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(min(0.5, 0.8 * min(seen)), max(2.0, 1.6 * max(seen)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(title="burstiness: variance / mean of counts", xlabel="window, ms", ylabel="dispersion")


def draw_residuals(axes: Any, setting: Setting) -> None:
    """The share of runs within each multiple of the profile's latency; the most used variants, each application from
    fast to accurate. Where there are several applications or kinds of worker, each pair has a dash of its own.
    """
    most_used = sorted(setting.residuals.items(), key=lambda pair: -pair[1].runs)[:MOST_LINES]
    ladders = {name: setting.ladder(name) for name in sorted({label.split("/")[0] for (label, _), _ in most_used})}
    colours = {
        f"{application}/{name}": colour
        for application, ladder in ladders.items()
        for name, colour in variant_colours(ladder).items()
    }
    order = list(colours)
    used = sorted(most_used, key=lambda pair: (order.index(pair[0][0]), pair[0][1]))
    highest, lowest = 1.1, 0.9
    kinds = {kind for (_, kind), _ in used}
    dashes = sorted({(label.split("/")[0], kind) for (label, kind), _ in used})
    for (label, kind), residuals in used:
        ratios = residuals.pooled
        upto = 100 * np.arange(1, len(ratios) + 1) / len(ratios)
        name = label if len(kinds) == 1 else f"{label} on {kind}"
        dash = DASHES[dashes.index((label.split("/")[0], kind)) % len(DASHES)]
        axes.step(
            np.concatenate([ratios[:1], ratios]), np.concatenate([[0.0], upto]), where="post",
            color=colours[label], linestyle=dash, linewidth=1.8,
            label=f"{_safe(name)}, n = {residuals.runs:,}",
        )  # fmt: skip
        highest = max(highest, float(np.quantile(ratios, 0.995)))
        lowest = min(lowest, float(ratios[0]))
    axes.axvline(1.0, color=INK, linewidth=0.8, linestyle="--")
    if highest > WIDE * lowest:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlim(0.9 * lowest, 1.1 * highest)
    else:
        axes.set_xlim(max(0.0, lowest - 0.08 * (highest - lowest)), highest + 0.05 * (highest - lowest))
    axes.set_ylim(0, 101)
    axes.set(title="run times", xlabel="run time over the profile's", ylabel="% of runs within")
    if used:
        legend_below(axes, 2)


def draw_rows(axes: Any, stretches: Mapping[str, ArrivalStretch]) -> None:
    """How many rows requests have, side by side for each application."""
    sizes = sorted({size for stretch in stretches.values() for size in stretch.rows_histogram()})
    width = 0.8 / max(1, len(stretches))
    for place, stretch in enumerate(stretches.values()):
        counts = stretch.rows_histogram()
        heights = [100 * counts.get(size, 0) / len(stretch.requests) for size in sizes]
        left = np.arange(len(sizes)) + (place - (len(stretches) - 1) / 2) * width
        axes.bar(left, heights, width=width, color=APPLICATION_COLOURS[place])
    every = max(1, math.ceil(len(sizes) / 12))
    axes.set_xticks(np.arange(len(sizes))[::every], [str(size) for size in sizes[::every]])
    axes.set_xlim(-max(0.8, 2.5 - len(sizes) / 2), len(sizes) - 1 + max(0.8, 2.5 - len(sizes) / 2))
    axes.grid(visible=False, axis="x")
    axes.set_ylim(bottom=0)
    axes.set(title="rows per request", xlabel="rows", ylabel="% of requests")


def _say(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)


def _span(window_ns: int) -> str:
    return f"{window_ns / NS_PER_S:g} s" if window_ns >= NS_PER_S else f"{window_ns / NS_PER_MS:g} ms"


def _safe(name: str) -> str:
    return name.replace("$", r"\$").lstrip("_")
