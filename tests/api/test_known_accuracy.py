"""An accuracy belongs to the model that it was measured on: of another one nobody is told any."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.client import Client
from stretto.core.deployment import Deployment
from stretto.repository.read import read_repository
from tests.api.serving import INFER, PINNED, Running, images, json_body, repository_of

INDEX = "/v2/repository/index"
LOAD = "/v2/repository/models/fashion/load"
UNKNOWN = "its accuracy is not known"
QUICK = ("--budget-s", 0.3, "--batches", "1,4", "--no-judge")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Of two variants of the zoo."""
    root = repository_of(tmp_path / "models", "fashion")
    for folder in (root / "fashion" / "variants").iterdir():
        if folder.name not in ("linear", "mlp"):
            shutil.rmtree(folder)
    return root


@pytest.fixture
def running(models: Path) -> Iterator[Running]:
    profiled = command("profile", models / "fashion", *QUICK)  # so that workers are of the kind that is measured later
    assert profiled.exit_code == 0, profiled.output
    with Running(models, only=(), planner="priced") as server:
        yield server


def negate(file: Path) -> None:
    """The same network with its coefficients negated: what it knows, it gets wrong."""
    onnx = pytest.importorskip("onnx", reason="models for the tests are changed with onnx, an extra for development")
    model = onnx.load(str(file))
    for weights in model.graph.initializer:
        array = onnx.numpy_helper.to_array(weights)
        if array.dtype.kind == "f" and array.size > 1:
            weights.CopyFrom(onnx.numpy_helper.from_array(-array, weights.name))
    part = file.with_name("part")
    onnx.save(model, str(part))
    os.replace(part, file)


def command(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def parameters_of(server: Running, path: str, **wishes: Any) -> dict[str, Any]:
    reply = server.ask("POST", path, json_body(images(), **wishes))
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.content["parameters"]
    return found


def test_the_zoo_knows_how_accurate_its_models_are() -> None:
    for files in read_repository("zoo").applications:
        assert all(variant.is_measured and variant.has_accuracy for variant in files.variants), files.name


def test_a_changed_model_has_no_accuracy_until_it_is_measured(
    models: Path, running: Running, complaints: list[str], tmp_path: Path
) -> None:
    """With negated coefficients, and after a profile without data, the accuracy of the model before was announced."""
    linear = models / "fashion" / "variants" / "linear"
    before = json.loads((linear / "metrics.json").read_text())["accuracy"]
    assert parameters_of(running, PINNED)["expected_accuracy"] == before
    negate(linear / "model.onnx")
    profiled = command("profile", models / "fashion", *QUICK)
    assert profiled.exit_code == 0 and "unknown†" in profiled.stdout and f"{before:.2%}" not in profiled.stdout

    checked = command("check", models)
    assert checked.exit_code == 0 and UNKNOWN in checked.stdout and f"{before:.2%}" not in checked.stdout
    rows = json.loads(command("check", models, "--json").stdout)["applications"][0]["variants"]
    found = {row["name"]: (row["accuracy"], row["accuracy_source"]) for row in rows}
    assert found["linear"] == (None, "unknown") and found["mlp"][1] == "measured"

    assert running.ask("POST", LOAD, b"{}", "management").status == 200
    assert any(UNKNOWN in line and "linear" in line for line in complaints)
    entries = running.ask("POST", INDEX, b"{}", "management").content
    reasons = {entry["version"]: (entry["state"], entry["reason"]) for entry in entries}
    assert reasons["linear"][0] == "READY" and UNKNOWN in reasons["linear"][1]
    assert reasons["mlp"] == ("READY", "")
    config = running.ask("GET", "/v2/models/fashion/config").content["parameters"]["accuracies"]["string_value"]
    assert "linear=unknown" in config and "mlp=0." in config

    for _ in range(3):  # the second is answered by the terms of the first
        answered = parameters_of(running, PINNED)
        assert answered["variant"] == "linear" and "expected_accuracy" not in answered
    with Client(running.url()) as client:
        answer = client.infer("fashion", images(), version="linear", deadline_ms=20_000)
        assert math.isnan(answer.expected_accuracy)
    assert parameters_of(running, INFER, min_accuracy=0.01)["variant"] == "mlp"  # the other promises nothing
    assert parameters_of(running, INFER.replace("/infer", "/versions/mlp/infer"))["expected_accuracy"] > 0.5

    data = tmp_path / "test.npz"
    sample = np.load(models / "fashion" / "sample.npz")
    np.savez(data, inputs=sample["inputs"], labels=sample["labels"])
    measured = command("profile", models / "fashion", *QUICK, "--data", data)
    assert measured.exit_code == 0, measured.output
    assert running.ask("POST", LOAD, b"{}", "management").status == 200
    assert parameters_of(running, PINNED)["expected_accuracy"] < 0.2


def test_what_is_stated_counts_where_nothing_was_measured_on_this_model(models: Path) -> None:
    linear = models / "fashion" / "variants" / "linear"
    (linear / "variant.toml").write_text('accuracy = 0.5\naccuracy_source = "literature"\n')
    variant = read_repository(models).applications[0].variant("linear")
    assert variant.accuracy_source == "measured" and variant.accuracy > 0.8 and variant.stated_accuracy == 0.5
    negate(linear / "model.onnx")
    repository = read_repository(models)
    variant = repository.applications[0].variant("linear")
    assert (variant.accuracy, variant.accuracy_source) == (0.5, "literature")
    assert variant.metrics is not None and not variant.metrics.recall  # that was the other model's
    _, warnings = repository.deployment(1)
    assert any("the accuracy stated in variant.toml counts" in warning for warning in warnings)


def test_plans_keep_the_order_that_was_and_tell_nobody(models: Path) -> None:
    linear, mlp = (models / "fashion" / "variants" / name for name in ("linear", "mlp"))
    figures = {folder.name: json.loads((folder / "metrics.json").read_text())["accuracy"] for folder in (linear, mlp)}
    negate(linear / "model.onnx")
    deployment, _ = read_repository(models).deployment(1)
    assert {variant.name: variant.accuracy for variant in deployment.variants} == figures
    assert {variant.name: variant.has_accuracy for variant in deployment.variants} == {"linear": False, "mlp": True}
    assert next(v for v in deployment.variants if v.name == "linear").recall == ()


def test_no_number_of_workers_is_named_for_an_accuracy_that_nobody_knows(models: Path) -> None:
    app_folder = models / "fashion"
    negate(app_folder / "variants" / "linear" / "model.onnx")
    refused = command("capacity", app_folder, "--load", 100, "--min-accuracy", 0.8)
    assert refused.exit_code == 2 and "the accuracy of fashion/linear is not known" in refused.stderr
    planned = command("plan", app_folder, "--workers", 1, "--load", 100, "--planner", "shared_queue")
    assert planned.exit_code == 0 and UNKNOWN in planned.stderr, planned.output
    assert "not known" in planned.stdout and "0.84" not in planned.stdout


def test_a_simulation_says_nothing_of_accuracies_that_nobody_knows(models: Path) -> None:
    from stretto.planners.registry import planner_entry
    from stretto.report.tables import run_table
    from stretto.sim.arrivals import Load
    from stretto.sim.processes import Poisson
    from stretto.sim.simulator import simulate

    negate(models / "fashion" / "variants" / "linear" / "model.onnx")
    deployment: Deployment = read_repository(models).deployment(1)[0]
    summary = simulate(deployment, planner_entry("priced").make({}), Load(Poisson(), 50), seconds=2, seed=1).summary
    assert not summary.has_accuracy and summary.as_dict()["accuracy"] is None
    figures = [str(cell) for cell in run_table(summary, "one run").columns[0].cells]
    assert not any("accuracy" in figure or "correct" in figure for figure in figures)
