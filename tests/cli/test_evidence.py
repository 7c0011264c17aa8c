"""`stretto evidence`, and `stretto profile` where it builds evidence, as a person runs them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.repository.read import read_repository
from tests.evidence.data import clouds, with_metrics, write
from tests.repository.build import APP, Built

pytest.importorskip("faiss", reason="neighbours are searched with Faiss, the extra called evidence")
QUICK = ("--budget-s", "0.2", "--batches", "1", "--no-judge")


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return with_metrics(tmp_path / "models")


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and "Traceback" not in result.stderr
    return str(result.stderr).removeprefix("error: ").strip()


def profiled(built: Built, tmp_path: Path, *more: object) -> Any:
    data = write(tmp_path / "train.npz", clouds(300, spread=2.0))
    result = run("profile", built.app, *QUICK, "--evidence", data, *more)
    assert result.exit_code == 0, result.output
    return result


def test_profile_builds_and_stores_it(built: Built, tmp_path: Path) -> None:
    result = profiled(built, tmp_path)
    assert "evidence for rows: 270 vectors of 4, index flat, k = " in result.stdout and "; written" in result.stdout
    stored = read_repository(built.app).applications[0].stored_evidence
    assert stored is not None and stored.data.name == "train.npz" and stored.data.queries == 300


def test_profile_takes_the_data_that_app_toml_names(built: Built) -> None:
    write(built.app / "train.npz", clouds(200))
    write(built.app / "back.npz", clouds(50, seed=1))
    layer = 'features = "layer"\nvariant = "good"\nlayer = "logits"\n'
    built.write_app(APP + '[evidence]\ndata = "train.npz"\nheld_out = "back.npz"\n' + layer)
    result = run("profile", built.app, *QUICK, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["applications"]["rows"]["evidence"]
    assert (told["vectors"], told["layer"], told["held_out"]["queries"]) == (200, "logits", 50)
    assert run("evidence", built.app, "--data", built.app / "back.npz").exit_code == 0


def test_profile_of_one_variant_or_a_dry_run_leaves_it_alone(built: Built, tmp_path: Path) -> None:
    assert "; not written" in profiled(built, tmp_path, "--dry-run").stdout
    write(built.app / "train.npz", clouds(200))
    built.write_app(APP + '[evidence]\ndata = "train.npz"\n')
    assert "evidence for" not in run("profile", built.app, *QUICK, "--variant", "fast").stdout
    assert not (built.app / "evidence").exists()


def test_the_report(built: Built, tmp_path: Path) -> None:
    profiled(built, tmp_path)
    test = write(tmp_path / "test.npz", clouds(400, seed=3, spread=2.0))
    plot = tmp_path / "errors.png"
    result = run("evidence", built.app, "--data", test, "--plot", plot)
    assert result.exit_code == 0, result.output
    for words in (
        "rows: error of estimated accuracy over 2 variants",
        "profiled",
        "k = 1",
        "k = 5",
        "in force",
        "picked",
    ):
        assert words in result.stdout
    assert "200 queries; " in result.stdout and "ms of processor time a query" in result.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_json_has_the_same_figures_and_keep_writes_k(built: Built, tmp_path: Path) -> None:
    profiled(built, tmp_path)
    test = write(tmp_path / "test.npz", clouds(400, seed=3, spread=2.0))
    path = built.app / "evidence" / "evidence.json"
    path.write_text(path.read_text().replace(f'"k": {json.loads(path.read_text())["k"]},', '"k": 1,', 1))
    result = run("evidence", built.app, "--data", test, "--json", "--keep")
    assert result.exit_code == 0, result.output
    (one,) = json.loads(result.stdout)["applications"]
    assert one["k"] == 1 and one["picked_k"] > 1 and one["queries"] == 200
    # Twenty neighbours know noisy clouds better than one, and one better than none.
    assert one["by_k"]["20"]["error"] < one["by_k"]["1"]["error"] < one["profiled_error"]
    stored = read_repository(built.app).applications[0].stored_evidence
    assert stored is not None and stored.k == one["picked_k"]


def test_a_variant_s_decision_is_reported_too(built: Built, tmp_path: Path) -> None:
    built.write_app(APP + '[evidence]\nmodel = "variant"\nvariant = "good"\n')
    test = write(tmp_path / "test.npz", clouds(60))
    assert run("evidence", built.app, "--data", test).exit_code == 0
    assert "write k = " in refused("evidence", built.app, "--data", test, "--keep")


def test_other_scores(built: Built, tmp_path: Path) -> None:
    profiled(built, tmp_path)
    test = write(tmp_path / "test.npz", clouds(60))
    result = run("evidence", built.app, "--data", test, "--score", "f1", "--json")
    assert json.loads(result.stdout)["applications"][0]["variants"] == ["fast"]
    assert "no variant of rows has quadratic in metrics.json" in refused(
        "evidence", built.app, "--data", test, "--score", "quadratic"
    )
    assert run("profile", built.app, *QUICK, "--data", test).exit_code == 0
    result = run("evidence", built.app, "--data", test, "--score", "quadratic", "--json")
    assert json.loads(result.stdout)["applications"][0]["variants"] == ["fast", "good"]
    quadratic = json.loads((built.variant("fast") / "metrics.json").read_text())["quadratic"]
    assert len(quadratic) == 3 and all(-1 <= value <= 1 for value in quadratic)
    assert "no score 'auc'" in refused("evidence", built.app, "--data", test, "--score", "auc")


def test_what_is_missing_is_said(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "rows: it has no evidence; build it with: stretto profile" in refused("evidence", built.app)
    profiled(built, tmp_path)
    assert "has no sample" in refused("evidence", built.app)
    assert "there is no file none.npz" in refused("evidence", built.app, "--data", tmp_path / "none.npz")
    few = write(tmp_path / "few.npz", clouds(3))
    assert "3 labelled queries tell nothing" in refused("evidence", built.app, "--data", few)
    np.savez(tmp_path / "odd.npz", inputs=np.zeros((9, 1, 5)), labels=np.zeros(9, np.int64))
    assert "inputs are 9×1×5, but 9×1×4 are needed" in refused("evidence", built.app, "--data", tmp_path / "odd.npz")
    assert "the zoo is a part of Stretto" in refused("evidence", "zoo:mnist", "--keep")
    assert "queries of one application" in refused("evidence", "zoo", "--data", few)
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert "pip install 'stretto[evidence]'" in refused("evidence", built.app, "--data", few)
    assert "pip install 'stretto[evidence]'" in refused("profile", built.app, *QUICK, "--evidence", few)


def test_profile_refuses_before_the_first_run(built: Built, tmp_path: Path) -> None:
    few = write(tmp_path / "few.npz", clouds(3))
    assert "one application" in refused("profile", "zoo", "--dry-run", "--evidence", few)
    assert "there is no file" in refused("profile", built.app, "--evidence", tmp_path / "none.npz")
    built.write_app(APP + '[evidence]\nmodel = "variant"\nvariant = "good"\n')
    assert "learns from no data" in refused("profile", built.app, "--evidence", few)
