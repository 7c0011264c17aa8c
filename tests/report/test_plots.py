"""Plots can be drawn from any result, are byte-identical for the same one, and leave matplotlib's settings alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex

from stretto.cli.run import run_scenario
from stretto.cli.scenario.read import parse_scenario
from stretto.client.load import LoadSpec
from stretto.client.load.result import LoadResult
from stretto.core.errors import StrettoError
from stretto.core.plan import Table
from stretto.report import plots
from stretto.report.capacity import capacity_figure
from stretto.report.demo import demo_figure
from stretto.report.frames import frames_figure
from stretto.report.load import load_figure
from stretto.report.pareto import pareto_figure
from stretto.report.policy import Picture
from stretto.report.setting import setting_figure
from stretto.report.verdicts import verdicts_figure
from stretto.sim.goodput import GoodputResult, Probe
from stretto.sim.results import Result
from tests.client.network.results import made_up
from tests.planners.parts.tasks import small_deployment
from tests.twin.libraries import verdict
from tests.twin.made import whole_setting

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


def test_a_search_is_dots_and_no_line_joins_them() -> None:
    """The line through the runs of a search zigzagged: it tries rates as it needs them, with few seeds or many."""
    probes = tuple(Probe(rate, seed, 0.001 * seed, rate) for rate in (300.0, 400.0, 350.0) for seed in (1, 2))
    figure = plots.goodput_figure({"symphony": GoodputResult(350.0, 400.0, probes)}, "t", 500.0)
    axes = figure.axes[0]
    (dots,) = axes.collections
    assert sorted(map(tuple, dots.get_offsets().tolist())) == sorted(
        (probe.rate, 100 * probe.bad_rate) for probe in probes
    )
    for line in axes.lines:  # the limit, across; the rate that was found, upright
        xs, ys = line.get_data()
        assert len(set(xs)) == 1 or len(set(ys)) == 1


def overlaps(figure: Any) -> list[str]:
    """Titles of axes whose own data area a legend touches."""
    figure.draw_without_rendering()
    found = []
    for axes in figure.axes:
        legend = axes.get_legend()
        if legend is not None and axes.get_window_extent().overlaps(legend.get_window_extent()):
            found.append(axes.get_title(loc="left"))
        for legend in figure.legends:
            if axes.get_window_extent().overlaps(legend.get_window_extent()):
                found.append(axes.get_title(loc="left"))
    return found


def test_legends_are_off_the_data() -> None:
    run = result()
    probes = (Probe(350.0, 1, 0.0, 350.0), Probe(400.0, 1, 0.05, 380.0))
    points = {"a": (0.7, 1.0), "b": (0.9, 4.0), "beaten": (0.6, 5.0)}
    for figure in (
        plots.run_figure(run, "t"),
        plots.comparison_figure({"symphony": run.summary, "mine": run.summary}, "t"),
        plots.goodput_figure({"symphony": GoodputResult(350.0, 400.0, probes)}, "t", 500.0),
        pareto_figure({"rows": points}, "t"),
        capacity_figure([(1, 0.8, 0.5), (2, 0.9, 0.001)], (2, 0.9, 0.002), 0.85, 0.01, "t"),
        load_figure(loaded({"fast": 0.5, "good": 0.5})),
        demo_figure({name: loaded({"fast": 0.5, "good": 0.5}) for name in ("", "fast", "good")}),
        frames_figure({"told": made_up()}, "t"),
        setting_figure(whole_setting(), "t"),
        verdicts_figure(small_deployment(1), [verdict(100.0), verdict(200.0)], "t"),
    ):
        assert not overlaps(figure)


def loaded(answered_by: dict[str, float], names: tuple[str, ...] = ("fast", "middle", "good")) -> LoadResult:
    """A load of 100 requests; `names` are all variants, from fast to accurate."""
    counts = [round(100 * answered_by.get(name, 0.0)) for name in names]
    variant = np.repeat(np.arange(len(names)), counts).astype(np.int16)
    total = len(variant)
    return LoadResult(
        spec=LoadSpec("rows", np.zeros((1, 4), np.float32), rate=100.0, seconds=1.0),
        deadline_ns=50_000_000,
        variants=names,
        is_labelled=False,
        scheduled_ns=np.linspace(0, 0.99e9, total).astype(np.int64),
        latency_ns=np.full(total, 5_000_000),
        lag_ns=np.zeros(total, np.int64),
        outcome=np.zeros(total, np.uint8),
        variant=variant,
        correct=np.full(total, -1, np.int16),
        batch=np.ones(total, np.int32),
        elapsed_ns=1_000_000_000,
        cpu_ns=0,
        connections=1,
        waited=0,
    )


def test_the_number_of_a_short_bar_stands_beside_it() -> None:
    """It was written over the name of the variant, in white."""
    results = {name: loaded({"fast": 1.0}) for name in ("", "wrong")}
    results[""] = replace(results[""], correct=np.ones(100, np.int16), is_labelled=True)
    axes = demo_figure(results).axes[0]
    inside, beside = axes.texts
    assert (inside.get_text(), inside.get_ha()) == ("100.0%", "right")
    assert (beside.get_text(), beside.get_ha()) == ("0.0%", "left") and beside.get_position()[0] > 0


def layers_of(figure: Any) -> dict[str, str]:
    """Names and colours of a load's variants, from the lowest layer up."""
    axes = next(axes for axes in figure.axes if axes.get_title(loc="left") == "who answered")
    return {layer.get_label(): to_hex(layer.get_facecolor()[0]) for layer in axes.collections}


def test_one_variant_has_one_colour_in_every_picture_and_layers_go_from_fast_to_accurate() -> None:
    """The most used variant had the first colour, whichever it was, and stood below."""
    often, seldom = (
        layers_of(load_figure(loaded({"good": 0.9, "fast": 0.1}))),
        layers_of(load_figure(loaded({"good": 0.1, "fast": 0.9}))),
    )
    assert list(often) == list(seldom) == ["fast", "good"] and often == seldom
    points = {"good": (0.9, 4.0), "middle": (0.8, 2.0), "fast": (0.7, 1.0)}
    axes = pareto_figure({"rows": points}, "t").axes[0]
    shown = {
        round(float(x), 6): to_hex(colour)
        for dots in axes.collections
        for (x, _), colour in zip(dots.get_offsets(), dots.get_edgecolors(), strict=True)
    }
    assert shown[1.0] == often["fast"] and shown[4.0] == often["good"]
    ladders = {"rows": ["fast", "middle", "good"]}
    (alone,) = pareto_figure({"rows": {"good": points["good"]}}, "t", 1, ladders).axes[0].collections[:1]
    assert to_hex(alone.get_edgecolors()[0]) == often["good"]  # measured anew alone, it was shown as the fastest
    table = Table(10_000_000, np.array([[0, 2], [0, 2]], np.int32), np.zeros((2, 2), np.int32))
    policy = Picture.of(table, ("good", "middle", "fast"), ("fast", "middle", "good"), [8] * 3, 20_000_000)
    assert to_hex(np.array(policy.colour(2)) / 255) == often["fast"]
