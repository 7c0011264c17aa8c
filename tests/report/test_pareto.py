"""The plot of accuracy against latency."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.report import plots
from stretto.report.pareto import pareto_figure

POINTS = {"fast": (0.7, 0.1), "beaten": (0.6, 1.0), "good": (0.9, 2.0)}


def test_the_front_is_a_line_and_the_rest_is_hollow(tmp_path: Path) -> None:
    figure = pareto_figure({"rows": POINTS}, "title")
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "rows"
    (line,) = axes.get_lines()
    assert list(line.get_xdata()) == [0.1, 2.0] and list(line.get_ydata()) == pytest.approx([70, 90])
    filled, hollow = axes.collections
    assert len(filled.get_offsets()) == 2 and len(hollow.get_offsets()) == 1
    assert {text.get_text() for text in axes.texts} == set(POINTS)
    plots.save(figure, tmp_path / "front.png")


def test_one_variant_and_many_applications(tmp_path: Path) -> None:
    plots.save(pareto_figure({"one": {"only": (1.0, 0.5)}}, "title"), tmp_path / "one.svg")
    figure = pareto_figure({f"app {number}": POINTS for number in range(6)}, "title")
    assert len(figure.axes) == 4
