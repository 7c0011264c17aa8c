"""ModelSwitching in `stretto simulate`: its response latencies are measured first, once, and then it is a planner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.cli.run import responses_of, run_scenario
from stretto.cli.scenario.read import parse_scenario
from stretto.core.errors import StrettoError

TEXT = """
seconds = 5
[cluster]
workers = 3
[[application]]
name = "app"
slo_ms = 60
[[application.variant]]
name = "fast"
accuracy = 0.6
alpha_ms = 3
beta_ms = 5
max_batch = 8
[[application.variant]]
name = "slow"
accuracy = 0.9
alpha_ms = 9
beta_ms = 16
max_batch = 8
[load]
kind = "poisson"
rate = 40
[planner]
name = "model_switching"
"""


def test_it_runs_and_chooses_by_what_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(TEXT)
    result = CliRunner().invoke(app, ["simulate", str(file), "--compare", "model_switching,jellyfish_plus", "--json"])
    assert result.exit_code == 0, result.output
    runs = json.loads(result.stdout)["runs"]
    assert runs["model_switching"]["accuracy"] == pytest.approx(0.9)
    busy = parse_scenario(TEXT).at_rate(300)
    assert run_scenario(busy).summary.accuracy < 0.65


def test_one_measurement_serves_every_rate() -> None:
    scenario = parse_scenario(TEXT)
    first = responses_of(scenario, scenario.deployment, (40.0,))
    assert responses_of(scenario.at_rate(80), scenario.deployment, (80.0,)) is first
    other = parse_scenario(TEXT)
    assert responses_of(other, other.deployment, (40.0,)) is not first


def test_a_planner_that_was_not_measured_for_says_who_can() -> None:
    from stretto.core.view import View
    from stretto.planners.registry import planner_entry

    with pytest.raises(StrettoError, match="nothing here measures them; take another planner"):
        planner_entry("model_switching").make({})(View(parse_scenario(TEXT).deployment))
