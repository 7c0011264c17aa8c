"""The demo, for real but short: a server, six loads, a table, a picture, and what to type next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


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


def test_another_demo_is_refused_with_a_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stretto", "demo", "films"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2 and "there is no demo 'films'" in done.stderr
