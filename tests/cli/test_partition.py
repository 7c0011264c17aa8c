"""`stretto partition` as an operator runs it: a table, JSON, a file for the next time, and errors as sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.config.partition import read_partition
from stretto.core.errors import StrettoError

SCENARIO = """
[cluster]
workers = 12
memory_mb = 1000

[[application]]
name = "app"
count = 8
slo_ms = 50
[[application.variant]]
name = "only"
alpha_ms = 1.0
beta_ms = 5.0
memory_mb = 100

[load]
kind = "poisson"
rate = 800
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "scenario.toml"
    file.write_text(SCENARIO)
    return file


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["partition", *(str(argument) for argument in arguments)])


def printed(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    return str(result.stderr).removeprefix("error: ").strip()


def test_a_scenario_is_split_evenly(scenario: Path) -> None:
    data = printed(scenario, "--sub-clusters", 4, "--clusters", 2)
    assert [len(row["applications"]) for row in data["sub_clusters"]] == [2, 2, 2, 2]
    assert [row["rate"] for row in data["sub_clusters"]] == pytest.approx([200.0] * 4)
    assert [row["cluster"] for row in data["sub_clusters"]] == [0, 0, 1, 1]
    assert sorted(name for row in data["sub_clusters"] for name in row["workers"]) == sorted(
        {name for row in data["sub_clusters"] for name in row["workers"]}
    )
    assert sum(len(row["workers"]) for row in data["sub_clusters"]) == 12
    assert data["load_imbalance"] == data["memory_imbalance"] == 0
    shown = run(scenario, "--sub-clusters", 4)
    assert shown.exit_code == 0
    assert "app-0" in shown.stdout and "200 MB" in shown.stdout


def test_the_next_partition_moves_no_more_than_is_allowed(scenario: Path, tmp_path: Path) -> None:
    file, rates = tmp_path / "partition.json", tmp_path / "rates.json"
    first = printed(scenario, "--sub-clusters", 2, "--out", file)
    assert dict(read_partition(file).homes) == first["applications"]
    crowded = [name for name, home in first["applications"].items() if home == 0]
    rates.write_text(json.dumps({f"app-{n}": 100.0 if f"app-{n}" in crowded else 10.0 for n in range(8)}))
    what = (scenario, "--sub-clusters", 2, "--rates", rates, "--previous", file)
    assert printed(*what, "--max-moves", 0)["moved"] == {}
    moved = printed(*what, "--max-moves", 1)["moved"]
    assert list(moved.values()) == [{"from": 0, "to": 1}]
    assert 1 < len(printed(*what)["moved"]) <= 4
    shown = run(*what, "--max-moves", 1, "--out", file)
    assert "moved: app-" in shown.stdout and f"wrote {file}" in shown.stdout.replace("\n", "")
    assert read_partition(file).homes[next(iter(moved))] == 1


def test_the_zoo_without_rates() -> None:
    data = printed("zoo", "--sub-clusters", 2, "--workers", 4)
    assert {row["rate"] for row in data["sub_clusters"]} == {2.0, 3.0}, "one for each of five applications"


def test_what_cannot_be_is_told_in_a_sentence(scenario: Path, tmp_path: Path) -> None:
    assert refused(scenario, "--sub-clusters", 2, "--worker-memory-mb", 50).startswith(
        "model app-0 alone needs 100 MB, a worker has 50 MB"
    )
    assert refused(scenario, "--sub-clusters", 2, "--max-rate", 350).startswith(
        "rates sum to 800 queries/s, 2 sub-clusters take 700 queries/s; take 3 sub-clusters or more"
    )
    assert refused(scenario, "--sub-clusters", 4, "--clusters", 2, "--max-cluster-rate", 300).startswith(
        "rates sum to 800 queries/s, 2 clusters take 600 queries/s"
    )
    assert "the models take 800 MB" in refused(scenario, "--sub-clusters", 2, "--worker-memory-mb", 350)
    assert "not 2 clusters of as many" in refused(scenario, "--sub-clusters", 3, "--clusters", 2)
    assert "--previous" in refused(scenario, "--sub-clusters", 2, "--max-moves", 1)
    assert "must end in .json" in refused(scenario, "--sub-clusters", 2, "--out", tmp_path / "x.txt")
    assert "above 0" in refused(scenario, "--sub-clusters", 2, "--max-rate", 0)
    file, rates = tmp_path / "p.json", tmp_path / "rates.json"
    assert run(scenario, "--sub-clusters", 2, "--out", file).exit_code == 0
    assert "the previous partition has 2 sub-clusters" in refused(scenario, "--sub-clusters", 4, "--previous", file)
    rates.write_text('{"app-0": 1, "nobody": 2}')
    assert "nobody" in refused(scenario, "--sub-clusters", 2, "--rates", rates)
    rates.write_text('{"app-0": 1}')
    assert "no rate for app-1" in refused(scenario, "--sub-clusters", 2, "--rates", rates)
    homes = {f"app-{n}": 0 for n in range(8)}
    file.write_text(json.dumps({"sub_clusters": 2, "applications": homes}))
    rates.write_text(json.dumps({name: 100 for name in homes}))
    what = (scenario, "--sub-clusters", 2, "--rates", rates, "--previous", file)
    assert refused(*what, "--max-moves", 2, "--max-rate", 450).startswith(
        "the limit on change allows 2 moves, 4 are needed"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not valid JSON"),
        ("[]", "one JSON object"),
        ('{"applications": {"a": 0}}', "needs sub_clusters"),
        ('{"sub_clusters": 2}', "needs applications"),
        ('{"sub_clusters": 2, "applications": {"a": 2}}', "from 0 to 1"),
        ('{"sub_clusters": 2, "applications": {"a": 1.5}}', "whole number"),
        ('{"sub_clusters": 2, "applications": {"a b": 1}}', "must start with"),
        ('{"sub_clusters": 2, "applications": {}}', "not 0"),
        ('{"sub_clusters": 3, "clusters": 2, "applications": {"a": 1}}', "not 2 clusters"),
        ('{"sub_clusters": 99999999999, "applications": {"a": 1}}', "from 1 to 10000"),
        ('{"sub_clusters": 2, "applications": {"a": 1}, "more": 1}', "unknown key"),
    ],
)
def test_files_that_are_no_partition(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "partition.json"
    file.write_text(text)
    with pytest.raises(StrettoError, match=reason):
        read_partition(file)
    with pytest.raises(StrettoError, match="no such file"):
        read_partition(tmp_path / "none.json")
