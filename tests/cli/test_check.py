"""`stretto check` as a person runs it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.repository import machine
from stretto.repository.profiles import profile_path
from tests.repository.build import HERE, KIND, Built, build


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Built:
    monkeypatch.setattr(machine, "this_machine", lambda accelerator=None: replace(HERE, accelerator=accelerator))
    monkeypatch.setattr(machine, "accelerators", lambda: ())
    return build(tmp_path / "models")


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["check", *map(str, arguments)])


def test_a_sound_repository_is_shown(built: Built) -> None:
    result = run(built.root)
    assert result.exit_code == 0 and result.stderr == ""
    for text in ("rows: SLO 50 ms, input 1×4, 3 classes", "l(8) p95 ms", "fast", "90.00%", "6.6", "no problems", KIND):
        assert text in result.stdout


def test_json_holds_the_same(built: Built) -> None:
    result = run(built.root, "--json")
    data = json.loads(result.stdout)
    assert (result.exit_code, data["kind"], data["errors"], data["warnings"]) == (0, KIND, 0, 0)
    fast, good = data["applications"][0]["variants"]
    assert (fast["accuracy"], fast["profile"], fast["memory_bytes"]) == (0.7, "ok", 2_000_000)
    assert good["p95_ms"] == {"1": 6.6, "8": 22.0}


def test_the_state_of_each_profile(built: Built) -> None:
    built.add("stale", profile=None)
    path = profile_path(built.variant("stale"), KIND)
    path.parent.mkdir()
    path.write_text(profile_path(built.variant("good"), KIND).read_text())
    built.add("foreign", profile="cpu-other")
    built.add("bare", profile=None)
    built.add("off", profile=None)
    (built.variant("off") / "variant.toml").write_text("enabled = false\nmax_batch = 2")
    data = json.loads(run(built.root, "--json").stdout)
    states = {row["name"]: row["profile"] for row in data["applications"][0]["variants"]}
    assert states == {"fast": "ok", "good": "ok", "stale": "stale", "foreign": "foreign", "bare": "none", "off": "none"}
    result = run(built.root)
    assert result.exit_code == 0 and "off (off)" in result.stdout
    assert result.stdout.splitlines()[-1] == "3 warnings"
    assert "warning: " in result.stdout and f"run: stretto profile {built.root}" in result.stdout


def test_another_kind_can_be_shown(built: Built) -> None:
    for name in ("fast", "good"):
        built.profile(name, "gpu-large", 0.5)
    data = json.loads(run(built.root, "--kind", "gpu-large", "--json").stdout)
    assert {row["profile"] for row in data["applications"][0]["variants"]} == {"foreign"}
    assert data["applications"][0]["variants"][0]["p95_ms"]["1"] == pytest.approx(0.825)
    result = run(built.root, "--kind", "gpu-larg")
    assert result.exit_code == 2 and "did you mean gpu-large?" in result.stderr


def test_where_an_accuracy_comes_from_is_shown(built: Built) -> None:
    (built.variant("fast") / "metrics.json").unlink()
    (built.variant("good") / "metrics.json").unlink()
    (built.variant("good") / "variant.toml").write_text('accuracy = 0.9\naccuracy_source = "literature"')
    result = run(built.root)
    assert result.exit_code == 0 and "90.00% (literature)" in result.stdout and "1 warning" in result.stdout
    assert json.loads(run(built.root, "--json").stdout)["applications"][0]["variants"][0]["accuracy"] is None


def test_small_batches_leave_a_dash(built: Built) -> None:
    (built.variant("fast") / "variant.toml").write_text("max_batch = 2")
    assert "–" in run(built.root).stdout


def test_all_problems_are_shown_and_the_code_is_2(built: Built) -> None:
    built.write_app((built.app / "app.toml").read_text().replace("slo_ms = 50", "slo_ms = 50\nodd = 1"))
    (built.variant("fast") / "model.onnx").unlink()
    (built.variant("fast") / "variant.toml").write_text("max_batch = 0")
    result = run(built.root)
    assert result.exit_code == 2 and "Traceback" not in result.output
    lines = result.stdout.splitlines()
    assert lines[-1] == "3 errors"
    assert any(line.startswith(f"error: {built.app}/app.toml:2: unknown key") for line in lines)
    assert any(line.startswith(f"error: {built.variant('fast')}/variant.toml:1: max_batch is 0") for line in lines)
    assert "good" in result.stdout  # what is sound is shown beside it
    problems = json.loads(run(built.root, "--json").stdout)["problems"]
    assert {problem["severity"] for problem in problems} == {"error"}
    assert problems[0]["line"] == 2 and problems[0]["file"] == f"{built.app}/app.toml"


def test_nothing_to_check_is_a_sentence(tmp_path: Path) -> None:
    for where in (tmp_path / "none", tmp_path, "zoo:no-such-application"):
        result = run(where)
        assert result.exit_code == 2 and result.stdout == ""
        assert result.stderr.startswith("error: ") and "Traceback" not in result.stderr


def test_help_has_examples() -> None:
    assert "  stretto check zoo" in run("--help").stdout
