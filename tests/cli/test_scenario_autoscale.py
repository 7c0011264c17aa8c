"""[autoscale] in a scenario: what is read, what is refused and where, and what `stretto simulate` shows of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.cli.run import run_scenario
from stretto.cli.scenario.read import parse_scenario, read_scenario
from stretto.config.fields import ConfigError
from stretto.planning.autoscale_options import AutoscaleOptions, Bounds

EXAMPLE = Path(__file__).parents[2] / "examples" / "autoscaling.toml"
HEAD = """\
seconds = 20
[[application]]
name = "classify"
slo_ms = 60
[[application.variant]]
name = "only"
alpha_ms = 1.0
beta_ms = 5.0
[planner]
name = "symphony_batch_aware"
"""
ONE = HEAD + '[cluster]\nworkers = 4\n[load]\nkind = "poisson"\nrate = 3000\n'
TWO = (
    HEAD
    + '[[cluster.group]]\ncount = 2\nkind = "a"\n[[cluster.group]]\ncount = 2\nkind = "b"\n'
    + '[load]\nkind = "poisson"\nrate = 3000\n'
)


def test_everything_that_it_may_say() -> None:
    text = "[autoscale]\nmin = 2\nmax = 9\ncost = 0.5\nperiod_seconds = 2\nstart_seconds = 1\n"
    text += "room = 0.1\ncalm_periods = 3\naccuracy = 0.5\n"
    found = parse_scenario(ONE + text).autoscale
    assert found is not None and found.accuracy == 0.5 and found.judge_s is None
    judged = parse_scenario(ONE + text + "by = 'judge'\njudge_seconds = 4\n").autoscale
    assert judged is not None and judged.judge_s == 4.0
    kinds = {"default": Bounds(2, 9, 0.5)}
    assert found.options == AutoscaleOptions(kinds, 2.0, 1.0, room=0.1, calm_periods=3)
    both = parse_scenario(
        TWO + "[autoscale.kind.a]\nmax = 5\n[autoscale.kind.b]\nmin = 0\nmax = 3\ncost = 4\n"
    ).autoscale
    assert both is not None and both.options.kinds == {"a": Bounds(1, 5), "b": Bounds(0, 3, 4.0)}
    assert parse_scenario(ONE).autoscale is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ONE + "[autoscale]\nmin = 2\n", "needs max"),
        (ONE + "[autoscale]\nmin = 5\nmax = 2\n", "smaller number first"),
        (ONE + "[autoscale]\nmax = 5\nperiod_second = 3\n", "did you mean period_seconds"),
        (ONE + "[autoscale]\nmax = 5\nroom = 0.9\n", "room of autoscaling is 0.9"),
        (ONE + "[autoscale]\nmax = 5\ncost = 0\n", "cost"),
        (ONE + "[autoscale]\nmax = 5\nby = 'oracle'\n", "signals"),
        (ONE + "[autoscale.kind.gpu]\nmax = 5\n", "no worker is of kind gpu"),
        (TWO + "[autoscale]\nmax = 5\n", "give bounds in [autoscale.kind.NAME]"),
    ],
)
def test_mistakes_have_their_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_scenario(text, "file.toml")
    assert caught.value.line is not None and caught.value.line > 10 and says in caught.value.message


def test_it_does_not_go_with_clients() -> None:
    text = ONE.replace('[load]\nkind = "poisson"\nrate = 3000\n', "").replace(
        "beta_ms = 5.0\n", "beta_ms = 5.0\nframe_bytes = 100\n"
    )
    with pytest.raises(ConfigError, match="does not go with"):
        parse_scenario(text + "[[clients]]\nfps = 5\nmbit_per_s = 5\n[autoscale]\nmax = 5\n")


def test_simulate_shows_workers_over_time(tmp_path: Path) -> None:
    plot = tmp_path / "fleet.png"
    result = CliRunner().invoke(app, ["simulate", str(EXAMPLE), "--seconds", "60", "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    for words in ("the fleet:", "worker hours of default, cost", "queries go unanswered: more workers"):
        assert words in result.stdout
    result = CliRunner().invoke(app, ["simulate", str(EXAMPLE), "--seconds", "60", "--json"])
    fleet = json.loads(result.stdout)["runs"]["symphony_batch_aware"]["fleet"]
    assert len(fleet["periods"]) == 14 and fleet["periods"][-1]["present"]["default"] > 55
    assert fleet["changes"][0] == {"second": 0.0, "kind": "default", "workers": 24}
    assert 0 < fleet["cost"] == pytest.approx(fleet["worker_seconds"]["default"] / 3600 * 0.5)


def test_a_fleet_of_two_kinds_is_shown_by_kind(tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text(TWO + "[autoscale]\nperiod_seconds = 2\n[autoscale.kind.a]\nmax = 5\n[autoscale.kind.b]\nmax = 5\n")
    result = CliRunner().invoke(app, ["simulate", str(file)])
    assert result.exit_code == 0, result.output
    assert "a, wanted" in result.stdout and "b, wanted" in result.stdout


def test_other_commands_take_the_workers_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text(ONE + "[autoscale]\nmax = 500\n")
    result = CliRunner().invoke(app, ["bound", str(file), "--json"])
    assert result.exit_code == 0, result.output
    plain = tmp_path / "plain.toml"
    plain.write_text(ONE)
    other = CliRunner().invoke(app, ["bound", str(plain), "--json"])
    assert json.loads(result.stdout)["scenario"] and result.stdout.replace("one", "plain") == other.stdout


def test_the_judges_fleet_is_followed_in_simulation(tmp_path: Path) -> None:
    """A plan that keeps all workers busy at any load: the signals cannot see that fewer would do, and the judge can."""
    text = EXAMPLE.read_text().replace("symphony_batch_aware", "shared_queue").replace("seconds = 120", "seconds = 32")
    file = tmp_path / "scenario.toml"
    shutil.copy(EXAMPLE.with_name("stepping_load.csv"), tmp_path)
    wanted: dict[str, list[int]] = {}
    for by in ("signals", "judge"):
        file.write_text(text + f"by = '{by}'\njudge_seconds = 4\n")
        result = run_scenario(read_scenario(file))
        assert result.fleet is not None and result.summary.bad_rate < 0.01
        wanted[by] = [advice.wanted["default"] for advice in result.fleet.advice]
    settled = wanted["judge"][-3:]
    assert min(settled) == max(settled) < min(wanted["signals"][-3:]) - 1, wanted
