"""The demo, for real but short: a server, six loads in turns, a table, a picture, and what to type next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from stretto.cli import demo
from stretto.cli.demo import UNSTEADY, Demo
from stretto.cli.demo_load import bursty_load
from stretto.cli.main import app
from tests.client.load.test_result import answered


def test_the_demo_shows_what_was_gained(tmp_path: Path) -> None:
    plot = tmp_path / "demo.png"
    done = subprocess.run(
        [sys.executable, "-m", "stretto", "demo", "--seconds", "1", "--plot", str(plot)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert plot.stat().st_size > 20_000
    for name in ("Stretto, all variants", "px08", "px24"):
        assert name in done.stdout
    assert "points." in done.stdout and "stretto infer fashion sample" in done.stdout


def test_the_demo_of_a_network_shows_links_and_fixed_sizes(tmp_path: Path) -> None:
    plot = tmp_path / "network.png"
    done = subprocess.run(
        [sys.executable, "-m", "stretto", "demo", "network", "--seconds", "2", "--plot", str(plot)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert plot.stat().st_size > 20_000
    for name in ("steady", "steps", "fading", "outages", "sizes as told", "always 8 px", "always 24 px"):
        assert name in done.stdout
    assert "points." in done.stdout and "stretto network fading" in done.stdout


def test_the_demo_has_its_table_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel brings none; the demo once refused to begin, for a plot that nobody had asked for."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    measured = Demo(bursty_load(3000, 600), {"": [answered(93)], "fast": [answered(89)]})
    monkeypatch.setattr(demo, "run_demo", lambda seconds, progress: measured)
    done = CliRunner().invoke(app, ["demo"])
    assert done.exit_code == 0, done.output
    assert "Stretto, all variants" in done.stdout and "points." in done.stdout
    assert "no plot: matplotlib is not installed" in done.stdout
    refused = CliRunner().invoke(app, ["demo", "--plot", str(tmp_path / "asked.png")])
    assert refused.exit_code == 2 and "plots need matplotlib" in refused.stderr


def test_another_demo_is_refused_with_a_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stretto", "demo", "films"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2 and "there is no demo 'films'" in done.stderr


def test_a_machine_that_was_slow_in_one_turn_is_told() -> None:
    quiet = {"": [answered(93), answered(93)], "fast": [answered(89), answered(89)]}
    measured = Demo(bursty_load(3000, 600), quiet)
    assert not measured.unsteady and measured.best_single == "fast" and np.isclose(measured.gain, 0.04)
    slow = Demo(measured.load, quiet | {"fast": [answered(89), answered(89 - round(200 * UNSTEADY))]})
    assert slow.unsteady == "fast had 89.0% and 79.0%"
