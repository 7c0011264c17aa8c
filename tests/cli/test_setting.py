"""`stretto setting` as a person runs it, on a log, a scenario and a setting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.live.recorder import recording
from stretto.twin.setting_file import save_setting
from tests.live.scripted import Stage, plan_for, serving, variant
from tests.twin.made import whole_setting

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def events(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    served = serving(variant("fast", 0.6), crew=2)
    with recording(path) as journal:
        made = Stage(served, plan_for(served), journal=journal)
        for number in range(120):
            made.request(1 + number % 2, 400.0)
            made.wait(3)
            made.finish_all()
        made.close()
    return path


def test_a_log_becomes_tables_a_picture_and_a_file_that_shows_the_same(events: Path, tmp_path: Path) -> None:
    plot, out = tmp_path / "setting.png", tmp_path / "setting.npz"
    result = CliRunner().invoke(app, ["setting", str(events), "--plot", str(plot), "--out", str(out)])
    assert result.exit_code == 0, result.output
    for words in ("events.jsonl: arrivals", "app/fast on default", "workers present", "2 default", "handoff"):
        assert words in result.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    from_log, from_file = (CliRunner().invoke(app, ["setting", str(file), "--json"]) for file in (events, out))
    assert from_log.stdout == from_file.stdout
    told = json.loads(from_file.stdout)
    assert told["applications"]["app"]["requests"] == 120
    assert told["applications"]["app"]["rows_per_request"] == {"1": 60, "2": 60}
    assert told["present"] == {"default": 2}


def test_a_scenario_and_a_setting_of_everything_are_shown(tmp_path: Path) -> None:
    scenario = CliRunner().invoke(app, ["setting", str(EXAMPLES / "bursty.toml"), "--json"])
    assert scenario.exit_code == 0, scenario.output
    assert json.loads(scenario.stdout)["present"] == {"large": 6, "small": 4}
    whole = tmp_path / "whole.npz"
    save_setting(whole, whole_setting())
    for plot in ("a.png", "a.svg"):
        result = CliRunner().invoke(app, ["setting", str(whole), "--plot", str(tmp_path / plot)])
        assert result.exit_code == 0, result.output
    for words in ("classes of a", "networks of 2 clients", "b/v on cuda:0", "3.5"):
        assert words in result.stdout


def test_what_is_wrong_is_a_sentence_and_nothing_is_lost(events: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(b"PK\x03\x04 and no more")
    before = events.read_bytes()
    out = tmp_path / "kept.npz"
    out.write_bytes(b"before")
    for arguments, words in (
        ([str(tmp_path / "none.jsonl")], "cannot be read"),
        ([str(tmp_path)], "cannot be read"),
        ([str(damaged)], "not a setting, or damaged"),
        ([str(damaged), "--out", str(out)], "not a setting, or damaged"),
        ([str(damaged), "--out", str(damaged)], "is what is read"),
        ([str(events), "--out", str(tmp_path / "setting.jsonl")], "must end in .npz"),
        ([str(events), "--plot", str(tmp_path / "picture.gif")], "must end in .png"),
        ([str(events), "--out", str(tmp_path / "no" / "folder.npz")], "there is no folder"),
        ([str(EXAMPLES / "changing_load.csv")], "is no JSON"),
    ):
        result = CliRunner().invoke(app, ["setting", *arguments])
        assert result.exit_code == 2, (arguments, result.output)
        assert words in result.stderr and "Traceback" not in result.output
    assert events.read_bytes() == before and out.read_bytes() == b"before"
