"""`stretto check` as a person runs it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stretto.backends.load import load_model
from stretto.backends.model import BackendError
from stretto.backends.source import ModelSource
from stretto.cli.main import app
from stretto.repository import machine
from stretto.repository.profiles import profile_path
from tests.repository.build import APP, HERE, KIND, Built, build, write_model


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


def test_after_a_profile_its_kind_of_machine_is_looked_at(built: Built) -> None:
    """Where the system shows no GPU, check looked at the processor, and called the GPU's profiles foreign."""
    with_gpu = replace(HERE, accelerator="NVIDIA H200")
    for name in ("fast", "good"):
        path = built.profile(name, with_gpu.kind, 0.5, machine=with_gpu)
        os.utime(path, (2e9, 2e9))
    data = json.loads(run(built.root, "--json").stdout)
    assert (data["kind"], data["warnings"]) == (with_gpu.kind, 0)
    assert {row["profile"] for row in data["applications"][0]["variants"]} == {"ok"}
    os.utime(built.profile("fast"), (3e9, 3e9))
    assert json.loads(run(built.root, "--json").stdout)["kind"] == KIND
    for name in ("fast", "good"):  # from elsewhere, however new
        os.utime(built.profile(name, "gpu-other", 0.5, machine=replace(with_gpu, processor="Other")), (4e9, 4e9))
    assert json.loads(run(built.root, "--json").stdout)["kind"] == KIND


def zipped(path: Path, labels: str) -> None:
    """As skl2onnx exports a classifier by default: a label, and a map from class to probability for each row."""
    onnx = pytest.importorskip("onnx", reason="models for the tests are made with onnx, an extra for development")
    from onnx import TensorProto, helper

    path.unlink()
    write_model(path)
    model = onnx.load(str(path))
    graph = model.graph
    key, element = (
        ("classlabels_int64s", TensorProto.INT64)
        if labels == "numbers"
        else ("classlabels_strings", TensorProto.STRING)
    )
    classes = [0, 1, 2] if labels == "numbers" else ["left", "middle", "right"]
    graph.node.append(helper.make_node("ArgMax", ["probabilities"], ["label"], axis=1, keepdims=0))
    zip_map = helper.make_node("ZipMap", ["probabilities"], ["output_probability"], domain="ai.onnx.ml")
    zip_map.attribute.append(helper.make_attribute(key, classes))
    graph.node.append(zip_map)
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(element, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    )
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"]))
    graph.output.append(helper.make_value_info("output_probability", maps))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    onnx.save(model, str(path))


@pytest.mark.parametrize("labels", ["numbers", "words"])
def test_rows_of_maps_are_refused_with_the_remedy_before_anything_is_run(built: Built, labels: str) -> None:
    """check found nothing wrong; profile and serve refused it, without a word on what mends it."""
    pytest.importorskip("onnxruntime")
    zipped(built.variant("good") / "model.onnx", labels)
    (built.app / "app.toml").write_text(APP.replace('"probabilities"', '"output_probability"'))
    shutil.rmtree(built.variant("fast"))
    result = run(built.root)
    problem = next(line for line in result.stdout.splitlines() if line.startswith("error: "))
    assert result.exit_code == 2 and "good/model.onnx: has output output_probability, which is a seq" in problem
    assert 'options={id(model): {"zipmap": False}}' in problem
    with pytest.raises(BackendError) as caught:
        load_model(ModelSource("onnx", built.variant("good") / "model.onnx"))
    assert problem.partition("; ")[2] == str(caught.value).partition("; ")[2]  # one rule for both


@pytest.mark.parametrize(("element", "shape", "says"), [("STRING", ["batch", 3], "string"), ("FLOAT", [], "no batch")])
def test_what_the_runtime_would_refuse_is_seen(built: Built, element: str, shape: list[Any], says: str) -> None:
    onnx = pytest.importorskip("onnx")
    path = built.variant("good") / "model.onnx"
    model = onnx.load(str(path))
    graph, helper = model.graph, onnx.helper
    graph.node.append(helper.make_node("ReduceSum", ["probabilities"], ["sum"], keepdims=0))
    graph.node.append(helper.make_node("Cast", ["probabilities"], ["words"], to=onnx.TensorProto.STRING))
    name = "words" if element == "STRING" else "sum"
    graph.output.append(helper.make_tensor_value_info(name, getattr(onnx.TensorProto, element), shape))
    onnx.save(model, str(path))
    result = run(built.root)
    assert result.exit_code == 2 and f"has output {name}, which" in result.stdout and says in result.stdout
    with pytest.raises(BackendError, match=f"has output {name}, which"):
        load_model(ModelSource("onnx", path))


def test_all_broken_applications_are_listed(built: Built) -> None:
    for number in range(5):
        broken = built.root / f"broken_{number}"
        shutil.copytree(built.app, broken)
        (broken / "app.toml").write_text("slo_ms = = 50\n")
    result = run(built.root)
    assert result.exit_code == 2 and "rows: SLO 50 ms" in result.stdout
    for number in range(5):
        assert f"broken_{number}/app.toml:1: not valid TOML" in result.stdout
