"""Plots can be drawn from any result, are byte-identical for the same one, and leave matplotlib's settings alone."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pytest

from stretto.cli.run import run_scenario
from stretto.cli.scenario.read import parse_scenario
from stretto.core.errors import StrettoError
from stretto.report import plots
from stretto.sim.goodput import GoodputResult, Probe
from stretto.sim.results import Result

TEXT = """
seconds = 1
[cluster]
workers = 1
[[application]]
name = "a"
slo_ms = 20
[[application.variant]]
name = "v"
alpha_ms = 1
beta_ms = 5
[load]
kind = "poisson"
rate = {rate}
"""


def result(rate: float = 500) -> Result:
    return run_scenario(parse_scenario(TEXT.format(rate=rate)))


def test_shares_sum_to_one() -> None:
    shares = plots.outcome_shares(result(900).summary)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["dropped"] > 0


def test_one_run_has_latency_batches_and_outcomes(tmp_path: Path) -> None:
    figure = plots.run_figure(result(), "title")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["latency", "batch sizes", "outcomes"]
    heights = [bar.get_height() for bar in figure.axes[1].patches]
    assert sum(heights) == pytest.approx(100)
    plots.save(figure, tmp_path / "run.png")


def test_runs_with_few_answers_or_none_can_be_drawn(tmp_path: Path) -> None:
    tight = run_scenario(parse_scenario(TEXT.format(rate=500).replace("slo_ms = 20", "slo_ms = 6.1")))
    plots.save(plots.run_figure(tight, "tight"), tmp_path / "tight.png")
    quiet = run_scenario(parse_scenario(TEXT.format(rate=1e-9)))
    assert quiet.summary.submitted == 0
    plots.save(plots.run_figure(quiet, "quiet"), tmp_path / "quiet.png")
    plots.save(plots.comparison_figure({"x": quiet.summary}, "quiet"), tmp_path / "quiet2.png")


def test_comparison_has_a_bar_for_every_planner() -> None:
    summary = result().summary
    figure = plots.comparison_figure({"symphony": summary, "mine": summary}, "title", {"mine": "My planner"})
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["symphony", "My planner"]


def test_rates_and_goodput(tmp_path: Path) -> None:
    curves = {"symphony": [(rate, result(rate).summary) for rate in (200.0, 400.0)]}
    plots.save(plots.rate_figure(curves, 400.0, "t", {}), tmp_path / "rates.png")
    found = GoodputResult(350.0, 400.0, (Probe(350.0, 1, 0.0, 350.0), Probe(400.0, 1, 0.05, 380.0)))
    plots.save(plots.goodput_figure({"symphony": found}, "t", 500.0), tmp_path / "goodput.png")
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("rates.png", "goodput.png"))


@pytest.mark.parametrize("suffix", [".png", ".pdf"])  # matplotlib names clip paths in SVG after memory addresses
def test_the_same_figure_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    files = [tmp_path / f"{name}{suffix}" for name in ("one", "two")]
    for file in files:
        plots.save(plots.run_figure(result(), "title"), file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_style_stays_inside(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    plots.save(plots.run_figure(result(), "title"), tmp_path / "run.png")
    assert dict(matplotlib.rcParams) == before


def test_names_at_line_ends_do_not_touch() -> None:
    summary = result(200).summary
    curves = {f"planner {number}": [(100.0, summary), (200.0, summary)] for number in range(4)}
    figure = plots.rate_figure(curves, 200.0, "t", {})
    heights = sorted(text.xy[1] for text in figure.axes[0].texts)
    assert np.diff(heights).min() > 0.05 * 200


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    figure = plots.run_figure(result(), "title")
    with pytest.raises(StrettoError, match=r"a \.png, \.svg or \.pdf file"):
        plots.save(figure, tmp_path / "run.gif")
    with pytest.raises(StrettoError, match="cannot be written"):
        plots.save(figure, tmp_path / "none" / "run.png")
