"""A planner of the user's own, as MODULE:FUNCTION, in simulate, goodput, compare and serve, and in their files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stretto.cli import compare
from stretto.cli.main import app
from stretto.cli.scenario.read import read_scenario
from stretto.cli.serve_config import read_serve_config
from stretto.config.fields import ConfigError
from tests.live.real import within
from tests.live.test_service import service_of
from tests.repository.build import build

OWN = """
from stretto.core.plan import Deferred, Fixed, Lane, Late, by_application


def my_planner(view):
    workers = tuple(range(len(view.deployment.workers)))
    return by_application(
        tuple(
            Lane(
                application.name,
                workers,
                Fixed(view.deployment.first_variant[number]),
                release=Deferred(when_gathered=False),
                late=Late.DROP_WHEN_INFEASIBLE,
            )
            for number, application in enumerate(view.deployment.applications)
        ),
        planner="mine",
    )


my_planner.replan_s = 0.5


def no_plan(view):
    return "a plan"
"""
SCENARIO = """
seconds = 1
[cluster]
workers = 4
[[application]]
name = "classify"
slo_ms = 50
[[application.variant]]
published = "symphony_1080ti:ResNet50"
[load]
kind = "poisson"
rate = 300
[planner]
name = "own_planner:my_planner"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_planner.py").write_text(OWN)
    (tmp_path / "mine.toml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "own_planner", raising=False)
    return tmp_path


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2 and "Traceback" not in result.output
    return result.stderr


def test_simulate_by_file_and_by_option(folder: Path) -> None:
    assert read_scenario(folder / "mine.toml").session().rhythm.period_s == 0.5
    (run,) = json.loads(output("simulate", "mine.toml", "--json"))["runs"].values()
    assert run["planner"] == "mine" and run["bad_rate"] < 0.01
    both = json.loads(output("simulate", "mine.toml", "--compare", "own_planner:my_planner,symphony", "--json"))["runs"]
    assert set(both) == {"own_planner:my_planner", "symphony"}
    same = ("submitted", "outcomes", "batch_histogram")
    assert all(both["symphony"][what] == both["own_planner:my_planner"][what] for what in same)


def test_one_that_is_made_is_made_once_to_look_at_it_and_once_for_each_session(folder: Path) -> None:
    made = folder / "made.txt"
    factory = f"def factory():\n    open({str(made)!r}, 'a').write('.')\n    return my_planner\n"
    (folder / "own_planner.py").write_text(OWN + factory)
    scenario = read_scenario(folder / "mine.toml").with_planner("own_planner:factory")
    for rate in (10.0, 20.0, 30.0):
        scenario = scenario.at_rate(rate)
    assert made.read_text() == "."
    assert scenario.session().rhythm.period_s == 0.5
    assert made.read_text() == ".."


def test_goodput() -> None:
    what = ("goodput", "--model", "symphony_1080ti:ResNet50", "--slo-ms", "25", "--workers", "2", "--seeds", "1")
    found = json.loads(output(*what, "--seconds", "1", "--planner", "own_planner:my_planner", "--json"))["planners"]
    assert found["own_planner:my_planner"]["goodput"] > 100


def test_compare_has_one_more_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "LOADS", (1.0,))
    found = json.loads(output("compare", "--seconds", "0.2", "--planner", "own_planner:my_planner", "--json"))
    assert "own_planner:my_planner" in found["runs"] and "clockwork_filling" in found["runs"]


def test_serve_by_option_and_by_file(folder: Path) -> None:
    (folder / "serve.toml").write_text('[planner]\nname = "own_planner:my_planner"\nreplan_ms = 200\n')
    said = read_serve_config(folder / "serve.toml")
    assert (said.values["planner"], said.values["replan_ms"]) == ("own_planner:my_planner", 200)
    built = build(folder / "models")

    async def work() -> None:
        async with service_of(built.root, planner="own_planner:my_planner") as service:
            assert service.engine.generation.in_force.plan.planner == "mine" and service.is_ready()

    within(60, work)


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("nowhere_at_all:plan", "error: there is no module 'nowhere_at_all', here or installed, for a planner"),
        ("own_planner:none", "error: module 'own_planner' has no 'none'"),
        ("own_planner:no_plan", "error: planner own_planner:no_plan returned a str and no Plan"),
        ("symfony", "error: there is no planner 'symfony'"),
    ],
)
def test_mistakes_are_a_sentence(reference: str, sentence: str) -> None:
    assert sentence in refused("simulate", "mine.toml", "--planner", reference)
    assert sentence in refused("compare", "--seconds", "0.2", "--planner", reference)
    assert sentence in refused("serve", "zoo:fashion", "--http-port", "0", "--planner", reference)


def test_a_mistake_in_a_file_has_its_line(folder: Path) -> None:
    (folder / "wrong.toml").write_text(SCENARIO.replace("my_planner", "none"))
    with pytest.raises(ConfigError, match=r"wrong\.toml:14: module 'own_planner' has no 'none'"):
        read_scenario(folder / "wrong.toml")
    (folder / "serve.toml").write_text('[planner]\nname = "nowhere_at_all:plan"\n')
    with pytest.raises(ConfigError, match=r"serve\.toml:2: there is no module"):
        read_serve_config(folder / "serve.toml")
