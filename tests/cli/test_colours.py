"""One colour for one variant: in the pictures of a profile, a plan, a load, frames and a setting, though a server may
serve only some of the application's variants.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import to_hex

from stretto.cli.plan import _picture
from stretto.cli.queries import sample_of
from stretto.cli.setting import read_setting
from stretto.cli.started import started_server
from stretto.cli.subject import read_subject
from stretto.client.load import LoadSpec, run_load
from stretto.client.network import Link
from stretto.client.network.drive import run_frames
from stretto.client.network.spec import FrameLoad
from stretto.core.bandwidth import constant
from stretto.core.plan import Table
from stretto.profiling.session import Request, open_session
from stretto.report.colours import variant_colours
from stretto.report.frames import frames_figure
from stretto.report.load import load_figure
from stretto.report.pareto import pareto_figure
from stretto.report.setting import setting_figure

LADDER = ("px08", "px12", "px16", "px20", "px24")
SERVED = ("px12", "px20")
QUIET = ("--workers", "1", "--log-level", "error", "--planner", "jellyfish")


def titled(figure: Any, title: str) -> Any:
    return next(axes for axes in figure.axes if axes.get_title(loc="left") == title)


def test_a_part_of_the_variants_has_the_colours_of_the_whole(tmp_path: Path) -> None:
    """A server of two variants named no others, and they were drawn as the fastest and the most accurate of all."""
    expected = variant_colours(LADDER)
    events, application = tmp_path / "events.jsonl", "fashion_resolution"
    chosen = [part for name in SERVED for part in ("--variant", name)]
    inputs, labels = sample_of(application)
    with started_server([f"zoo:{application}", *chosen, *QUIET, "--record", str(events)]) as server:
        loaded = LoadSpec(application, inputs, labels, url=server.url, rate=100.0, seconds=0.5, deadline_ms=5_000.0)
        loads = [run_load(replace(loaded, version=name)) for name in SERVED]
        sent = FrameLoad(application, inputs, (Link(constant(1e6)),), url=server.url, seconds=0.5, slo_ms=5_000.0)
        frames = run_frames(sent)
    for name, result in zip(SERVED, loads, strict=True):
        assert result.variants == LADDER and list(result.summary()["variants"]) == [name]
        layers = titled(load_figure(result), "who answered").collections
        assert {layer.get_label(): to_hex(layer.get_facecolor()[0]) for layer in layers} == {name: expected[name]}
    assert frames.variants == LADDER
    drawn = titled(frames_figure({"told": frames}, "frames"), "size sent").collections
    named = {dots.get_label(): to_hex(dots.get_facecolor()[0]) for dots in drawn if len(dots.get_offsets())}
    assert named and named.items() <= {name: expected[name] for name in SERVED}.items()

    measured = read_setting(events)
    assert measured.ladders == {application: LADDER} and len(measured.arrivals[application].requests) > 50
    lines = titled(setting_figure(measured, "setting"), "run times").get_lines()
    ran = {line.get_label().partition(",")[0]: line.get_color() for line in lines if ", n = " in line.get_label()}
    assert ran == {f"{application}/{name}": expected[name] for name in SERVED}

    session = open_session(f"zoo:{application}", Request(), names=("px20",), dry_run=True)
    points = {application: {"px20": (0.9, 2.0)}}
    (dot,) = pareto_figure(points, "t", 1, {application: session.ladder(application)}).axes[0].collections[:1]
    assert to_hex(dot.get_edgecolors()[0]) == expected["px20"]

    deployment = read_subject(f"zoo:{application}", None, None).deployment(1)
    number = [variant.name for variant in deployment.variants].index("px20")
    table = Table(1_000_000, np.full((2, 2), number, np.int32), np.zeros((2, 2), np.int32))
    assert to_hex(np.array(_picture(deployment, table).colour(number)) / 255) == expected["px20"]
