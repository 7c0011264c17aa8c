"""Frames over a network, drawn to a file and to a terminal."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from stretto.client.network import Link
from stretto.client.network.spec import ClientNow, FramesNow
from stretto.core.bandwidth import constant
from stretto.report import plots
from stretto.report.frames import frames_figure
from stretto.report.network_view import View, chart, latency_bar
from tests.client.network.results import made_up


def test_a_figure_for_one_run_and_for_several(tmp_path: Path) -> None:
    alone, several = tmp_path / "alone.svg", tmp_path / "several.svg"
    plots.save(frames_figure({"told": made_up()}, "one"), alone)
    plots.save(frames_figure({"told": made_up(), "always 8 px": made_up("8", missed=1)}, "two"), several)
    again = tmp_path / "again.svg"
    plots.save(frames_figure({"told": made_up()}, "one"), again)
    assert alone.read_bytes() == again.read_bytes()
    assert several.stat().st_size > alone.stat().st_size > 20_000


def test_the_legend_is_whole() -> None:
    """With two clients it was wider than the figure."""
    figure = frames_figure({"told": made_up()}, "one")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 and box.x1 <= whole.x1


def test_every_link_is_within_the_axes_that_clients_share() -> None:
    """Once: the top was that of the first client's link."""
    slow, fast = Link(constant(50_000.0)), Link(constant(500_000.0))
    figure = frames_figure({"told": replace(made_up(), links=(slow, fast))}, "two links")
    assert figure.axes[0].get_ylim() == figure.axes[3].get_ylim()
    assert figure.axes[3].get_ylim()[1] >= 500_000 * 8e-3


def now(latency_ms: float, bandwidth: float = 50_000.0) -> FramesNow:
    client = ClientNow("walking", 60_000.0, bandwidth, 16, "px16", latency_ms, 40, 2, 36)
    return FramesNow(3.2, 20.0, 100.0, (client,))


def test_a_row_says_where_a_client_stands() -> None:
    view = View()
    for latency_ms in (40.0, 60.0):
        table = view.table(now(latency_ms), "cameras")
    console = Console(width=160, record=True)
    console.print(table)
    text = console.export_text()
    for part in ("cameras · 3 of 20 s", "walking", "480", "400", "16", "px16", "60", "5.0%", "90.0%", "SLO 100 ms"):
        assert part in text


def test_what_is_not_known_yet_is_a_dash() -> None:
    console = Console(width=160, record=True)
    console.print(View().table(now(math.nan, math.nan), "cameras"))
    assert "–" in console.export_text()


def test_charts_are_against_the_largest_and_bars_against_the_slo() -> None:
    assert chart(deque([1.0, 4.0, 8.0], maxlen=5)).rstrip() == "▁▄█" and chart(deque([0.0])) == ""
    assert str(latency_bar(50.0, 100.0)).startswith("███···│······")
    assert str(latency_bar(400.0, 100.0)).startswith("██████│██████")
