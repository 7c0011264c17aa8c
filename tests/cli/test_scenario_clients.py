"""[[clients]] of scenarios: what is read, what is refused with its line, and the example that a reader can run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.cli.scenario.read import Scenario, parse_scenario, read_scenario
from stretto.config.fields import ConfigError
from stretto.core.errors import StrettoError
from stretto.sim.network.clients import Adaptation

EXAMPLE = Path(__file__).parents[2] / "examples" / "jellyfish" / "four_clients.toml"
GOOD = """\
seconds = 3
[cluster]
workers = 2
[[application]]
name = "see"
slo_ms = 100
[[application.variant]]
name = "small"
accuracy = 0.5
input_size = [64, 64, 3]
frame_bytes = 5000
alpha_ms = 1
beta_ms = 5
[[application.variant]]
name = "large"
accuracy = 0.9
input_size = [256, 256, 3]
frame_bytes = 80000
alpha_ms = 4
beta_ms = 20
[[clients]]
count = 2
fps = 20
mbit_per_s = 30
delay_ms = 2
[planner]
name = "jellyfish"
"""


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def test_clients_are_read() -> None:
    scenario = parse_scenario(
        changed("mbit_per_s = 30", "mbit_per_s = 30\nslo_ms = 80\njoin_step_seconds = 1\njitter = 0.5")
    )
    one, two = scenario.clients
    assert (one.fps, one.slo_ns, one.delay_ns, one.back_ns) == (20.0, 80_000_000, 2_000_000, 2_000_000)
    assert one.bandwidth.mean == 30 * 125_000
    assert (one.joins_s, two.joins_s) == (0.0, 1.0)
    assert scenario.source.expected_rates(scenario.deployment, 10.0) == pytest.approx((40.0,))
    with pytest.raises(StrettoError, match="rates that they have"):
        scenario.at_rate(10.0)


def test_traces_lie_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "up.txt").write_text("8\n4\n")
    (tmp_path / "packets").write_text("1\n2\n4\n")
    text = changed("mbit_per_s = 30", 'network = "up.txt"\nstep_seconds = 5\nscale = 0.5\noffset_seconds = 5')
    one, two = parse_scenario(text, folder=tmp_path).clients
    assert one.bandwidth.rates == (500_000.0, 250_000.0)
    assert one.bandwidth.rate_at(0) == 250_000.0
    assert one.bandwidth.offset_ns != two.bandwidth.offset_ns
    packets = changed("mbit_per_s = 30", 'network = "packets"\nform = "mahimahi"')
    assert parse_scenario(packets, folder=tmp_path).clients[0].bandwidth.period_ns == 4_000_000


def test_how_clients_choose() -> None:
    text = changed("delay_ms = 2", 'delay_ms = 2\nadaptation = "slo"\nlargest = "large"\ncompute_share = 0.75')
    sending = parse_scenario(text).clients[0].sending
    assert (sending.adaptation, sending.largest, sending.compute_share) == (Adaptation.SLO, "large", 0.75)


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("mbit_per_s = 30", "mbit_per_s = 0", 24, "above 0"),
        ("mbit_per_s = 30", "", 21, "give either network"),
        ("mbit_per_s = 30", 'network = "none.txt"', 24, "no file none.txt"),
        ("mbit_per_s = 30", 'network = "bad.txt"', 24, "line 2 of the trace"),
        ("fps = 20", "fps = -1", 23, "fps"),
        ("delay_ms = 2", "delay = 2", 25, "did you mean delay_ms"),
        ("delay_ms = 2", 'adaptation = "fixed"', 25, "must name the variant"),
        ("delay_ms = 2", 'largest = "huge"', 25, "there are small, large"),
        ("delay_ms = 2", "joins_seconds = 2\nleaves_seconds = 1", 26, "leaves after"),
        ("fps = 20", 'fps = 20\napplication = "hear"', 24, "no application"),
        ("[planner]", '[load]\nkind = "poisson"\nrate = 5\n[planner]', 26, "keep one"),
    ],
)
def test_mistakes_have_their_line(old: str, new: str, line: int, reason: str, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text("5\nfast\n")
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_scenario(changed(old, new), "file.toml", tmp_path)
    assert caught.value.line == line


def test_without_sizes_nothing_can_be_sent() -> None:
    text = GOOD.replace("frame_bytes = 5000\n", "").replace("frame_bytes = 80000\n", "")
    with pytest.raises(ConfigError, match="frame_bytes"):
        parse_scenario(text)


def test_simulate_shows_clients(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.toml", tmp_path / "frames.npz"
    file.write_text(GOOD)
    shown = CliRunner().invoke(app, ["simulate", str(file), "--json", "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    summary = json.loads(shown.output)["runs"]["jellyfish"]
    assert summary["frames"] == sum(summary["outcomes"].values()) > 100
    assert len(summary["clients"]) == 2 and summary["miss_rate"] < 0.05
    with np.load(out) as frames:
        assert len(frames["made_ns"]) == summary["frames"]
    several = CliRunner().invoke(app, ["simulate", str(file), "--compare", "jellyfish,clockwork_filling"])
    assert several.exit_code == 0 and "clockwork" in several.output


def test_the_example_runs_without_anything_else() -> None:
    scenario: Scenario = read_scenario(EXAMPLE)
    assert len(scenario.clients) == 4 and scenario.planner.name == "jellyfish"
