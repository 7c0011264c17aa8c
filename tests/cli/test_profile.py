"""`stretto profile` as a person runs it: tables, JSON, files beside the models, and errors as sentences."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from stretto.api.known import start_libraries
from stretto.cli.main import app
from stretto.core.profile import Quantile
from stretto.live import remembered
from stretto.live.fleet import deployed_workers
from stretto.live.generation import served
from stretto.live.options import ServiceOptions
from stretto.live.remembered import Remembered
from stretto.profiling.session import Request, open_session
from stretto.repository.machine import machine_kind
from stretto.repository.profiles import read_profile
from stretto.repository.read import read_repository
from tests.repository.build import KIND, Built, build

QUICK = ("--budget-s", "0.3", "--batches", "1,4", "--no-judge")


@pytest.fixture
def built(tmp_path: Path) -> Built:
    """A repository whose variants were never profiled."""
    made = build(tmp_path / "models")
    for name in ("fast", "good"):
        shutil.rmtree(made.variant(name) / "profiles")
    return made


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["profile", *(str(argument) for argument in arguments)])


def printed(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and "Traceback" not in result.stderr
    return result.stderr.removeprefix("error: ").strip()


def labelled(file: Path, rows: int = 30, shape: tuple[int, ...] = (1, 4), **changes: Any) -> Path:
    random = np.random.default_rng(0)
    arrays = {"inputs": random.random((rows, *shape), dtype=np.float32), "labels": np.arange(rows) % 3}
    np.savez(file, **(arrays | changes))
    return file


def test_profiles_are_written_beside_the_models_and_make_a_deployment(built: Built) -> None:
    result = run(built.app, *QUICK)
    assert result.exit_code == 0, result.output
    for word in (f"rows on {machine_kind()}", "accuracy", "l(1) ms", "l(4) ms", "α ms", "load", "Pareto front: ", "MB"):
        assert word in result.stdout
    assert result.stdout.endswith("wrote 2 profiles\n")
    stored = read_profile(built.variant("good") / "profiles" / f"{machine_kind()}.json")
    assert set(stored.batches) == {1, 4} and stored.backend == "onnx" and stored.threads == 1
    assert stored.load_ms > 0 and stored.memory_bytes + stored.dynamic_memory_bytes > 0
    deployment, _ = read_repository(built.root).deployment(2)
    assert deployment.profile(0).latency_ns(4, Quantile.P95) > 0
    assert deployment.kinds == (machine_kind(),)


def test_what_was_measured_need_not_be_tried_once_more(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that starts with it serves it at once."""
    monkeypatch.setattr(remembered, "user_folder", lambda: built.root.parent / "cache" / "compiled")

    def known() -> dict[str, bool]:
        repository = read_repository(built.root)
        fleet = ServiceOptions(str(built.root), workers=2).fleet()
        deployment, _ = repository.deployment(deployed_workers(fleet, repository))
        files = {each.name: each for each in repository.applications}
        return {spec.key.partition("@")[0]: Remembered().has(spec) for spec in served(deployment, files, fleet).specs}

    assert run(built.app, *QUICK, "--variant", "fast").exit_code == 0
    assert known() == {f"{built.app.name}/fast": True}
    assert run(built.app, *QUICK).exit_code == 0
    assert set(known().values()) == {True} and len(known()) == 2


def test_plans_to_start_with_are_judged_and_written_beside_the_models(built: Built) -> None:
    result = run(built.root, *QUICK[:-1])
    assert result.exit_code == 0, result.output
    assert "start plans for rows: judged at " in result.stdout
    file = built.app / "judged" / f"{machine_kind()}.json"
    repository = read_repository(built.root)
    deployment, _ = repository.deployment(3, Quantile.MEAN)
    (library,) = start_libraries(repository, (machine_kind(),), deployment)
    assert library.name.endswith(f"/rows/judged/{machine_kind()}.json") and library.conditions.startswith("as profiled")
    assert library.judgements_for(deployment)
    file.write_text("{}")
    assert not start_libraries(repository, (machine_kind(),), deployment), "damaged ones are told of, and done without"
    run(built.root, *QUICK[:-1], "--dry-run")
    assert file.read_text() == "{}", "a dry run writes nothing"


def test_json_has_all_of_it_and_dry_runs_write_nothing(built: Built) -> None:
    data = printed(built.root, *QUICK, "--dry-run", "--kind", "my-machine", "--threads", 2)
    assert data["kind"] == "my-machine"
    rows = data["applications"]["rows"]
    assert set(rows["variants"]) == {"fast", "good"} and rows["pareto_front"]
    fast = rows["variants"]["fast"]
    assert fast["accuracy"] == 0.7 and fast["written"] is False
    profile = fast["profile"]
    assert profile["threads"] == 2 and set(profile["batches"]["1"]) == {
        *("mean", "p50", "p95", "p99", "runs", "relative_error")
    }
    assert not list(built.root.rglob("profiles"))


def test_one_variant_another_kind_and_a_plot(built: Built, tmp_path: Path) -> None:
    plot = tmp_path / "front.png"
    result = run(built.app, *QUICK, "--variant", "good", "--kind", "lab", "--plot", plot)
    assert result.exit_code == 0, result.output
    assert plot.read_bytes().startswith(b"\x89PNG") and f"plot: {plot}" in result.stdout
    assert [path.name for path in built.root.rglob("profiles/*.json")] == ["lab.json"]
    assert "good" in result.stdout and "fast" not in result.stdout


def test_the_colours_of_a_plot_go_by_all_variants_as_they_are_written(tmp_path: Path) -> None:
    """What a dry run finds is in no file, so that no other plot knows of it."""
    made = build(tmp_path / "models")
    session = open_session(str(made.root), Request(kind=KIND), names=("good",))
    assert session.ladder("rows") == ("fast", "good")
    made.metrics("good", accuracy=0.6)
    assert session.ladder("rows") == ("good", "fast")
    assert replace(session, is_dry=True).ladder("rows") == ("fast", "good")


def test_batches_stay_within_the_limits_of_the_application(built: Built) -> None:
    built.write_app((built.app / "app.toml").read_text() + "[limits]\nmax_batch = 4\n")
    (built.variant("fast") / "variant.toml").write_text("max_batch = 2\n")
    variants = printed(built.app, "--budget-s", 0.3, "--batches", "1,2,4,8", "--dry-run")["applications"]["rows"][
        "variants"
    ]
    assert set(variants["good"]["profile"]["batches"]) == {"1", "2", "4"}
    assert set(variants["fast"]["profile"]["batches"]) == {"1", "2"}
    assert "rows/fast: batches go up to 2 here" in refused(
        built.app, "--batches", "4", "--dry-run", "--variant", "fast"
    )


def test_labelled_data_gives_accuracy_and_is_kept(built: Built, tmp_path: Path) -> None:
    built.metrics("fast", accuracy=0.7, parameters=12, input_shape=[1, 4], validation_accuracy=0.6)
    data = labelled(tmp_path / "test.npz")
    variants = printed(built.app, *QUICK, "--data", data)["applications"]["rows"]["variants"]
    kept = json.loads((built.variant("fast") / "metrics.json").read_text())
    assert kept["accuracy"] == pytest.approx(variants["fast"]["accuracy"], abs=1e-6)
    assert kept["test_samples"] == 30 and kept["parameters"] == 12 and "validation_accuracy" not in kept
    assert np.sum(kept["confusion"]) == 30 and len(kept["recall"]) == 3
    assert kept["accuracy"] == pytest.approx(np.trace(kept["confusion"]) / 30, abs=1e-6)
    assert read_repository(built.app).applications[0].variant("fast").accuracy == kept["accuracy"]


def test_what_is_measured_goes_before_what_a_person_stated(built: Built, tmp_path: Path) -> None:
    """A profile with data printed 99.17% and left the stated 50% to be served."""
    (built.variant("fast") / "metrics.json").unlink()
    (built.variant("fast") / "variant.toml").write_text('accuracy = 0.5\naccuracy_source = "literature"\n')
    shown = run(built.app, *QUICK, "--dry-run").stdout
    assert "50.00%†" in shown and "† accuracy not measured here: literature" in shown
    found = printed(built.app, *QUICK, "--data", labelled(tmp_path / "test.npz"))["applications"]["rows"]["variants"]
    assert found["fast"]["accuracy"] != 0.5 and found["fast"]["stated_accuracy"] == 0.5
    variant = read_repository(built.app).applications[0].variant("fast")
    assert variant.accuracy == pytest.approx(found["fast"]["accuracy"], abs=1e-6)
    assert (variant.accuracy_source, variant.stated_accuracy) == ("measured", 0.5)
    told = f"fast: 50.00% is stated in variant.toml, and {variant.accuracy:.2%}, which was measured, counts\n"
    shown = run(built.app, *QUICK, "--dry-run").stdout
    assert told in shown and f"{variant.accuracy:.2%} " in shown and "50.00%†" not in shown
    assert told in CliRunner().invoke(app, ["check", str(built.app)]).stdout


def test_the_model_that_was_measured_is_written_down(built: Built, tmp_path: Path) -> None:
    (built.variant("fast") / "metrics.json").write_text('{"accuracy": 0.7}')
    shown = run(built.app, *QUICK).stdout
    assert "unknown†" in shown and "give --data FILE.npz" in shown  # nobody wrote down which model that was
    assert run(built.app, *QUICK, "--data", labelled(tmp_path / "test.npz")).exit_code == 0
    kept = json.loads((built.variant("fast") / "metrics.json").read_text())
    assert kept["model_sha256"] == hashlib.sha256((built.variant("fast") / "model.onnx").read_bytes()).hexdigest()
    assert "unknown" not in run(built.app, *QUICK, "--dry-run").stdout


def test_a_class_that_the_data_lacks_has_no_recall(built: Built, tmp_path: Path) -> None:
    data = labelled(tmp_path / "test.npz", labels=np.zeros(30, int))
    fast = printed(built.app, *QUICK, "--data", data)["applications"]["rows"]["variants"]["fast"]
    assert fast["recall"][1:] == [None, None]
    assert "recall" not in json.loads((built.variant("fast") / "metrics.json").read_text())


def test_out_profiles_a_copy(built: Built, tmp_path: Path) -> None:
    out = tmp_path / "copies"
    assert run(built.root, *QUICK, "--out", out).exit_code == 0
    assert len(list(out.rglob("profiles/*.json"))) == 2 and not list(built.root.rglob("profiles"))
    assert "is there already; profile it as it is: stretto profile" in refused(built.root, *QUICK, "--out", out)


def test_the_zoo_is_not_written_by_accident(built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from stretto.profiling import session
    from stretto.repository import read

    # An installed Stretto whose zoo is the repository of this test.
    package = tmp_path / "site" / "stretto"
    shutil.copytree(built.root, package / "zoo")
    for module in (session, read):
        monkeypatch.setattr(module, "zoo_folder", lambda: package / "zoo")
    assert "profile a copy of it with --out DIR" in refused("zoo:rows", *QUICK)
    assert "this Stretto is installed; give --out DIR" in refused("zoo:rows", *QUICK, "--in-place")
    one = ("zoo:rows", *QUICK, "--variant", "fast")
    assert run(*one, "--dry-run").exit_code == 0
    assert run(*one, "--out", tmp_path / "mine").exit_code == 0
    assert not list(package.rglob("profiles"))
    (package.parent / "pyproject.toml").touch()
    assert run(*one, "--in-place").exit_code == 0
    assert len(list(package.rglob("profiles/*.json"))) == 1


def test_bad_input_is_told_in_sentences(built: Built, tmp_path: Path) -> None:
    app_folder = built.app
    assert "there is no such folder" in refused(tmp_path / "none")
    assert "has no variant 'best'; it has fast, good" in refused(app_folder, "--variant", "best")
    assert "are no whole numbers; write them as 1,2,4,8" in refused(app_folder, "--batches", "1,two")
    assert "name at least one batch size" in refused(app_folder, "--batches", ",")
    assert "batch size 0 is not between" in refused(app_folder, "--batches", "0")
    assert "there is no backend 'tf'" in refused(app_folder, "--backend", "tf")
    assert "has no variant of backend torch" in refused(app_folder, "--backend", "torch")
    assert "there is no device 'tpu'" in refused(app_folder, "--device", "tpu")
    assert "machine kind 'a b'" in refused(app_folder, "--kind", "a b")
    assert "give one of them" in refused(app_folder, "--dry-run", "--out", tmp_path / "x")
    assert "must end in .png" in refused(app_folder, "--plot", tmp_path / "plot.txt")
    assert "there is no file" in refused(app_folder, "--data", tmp_path / "none.npz")


def test_bad_data_names_variant_and_file(built: Built, tmp_path: Path) -> None:
    file = tmp_path / "test.npz"
    for changes, words in (
        ({"labels": np.zeros(7, int)}, "rows/fast: test.npz has 30 inputs but 7 labels"),
        ({"inputs": np.zeros((0, 1, 4)), "labels": np.zeros(0, int)}, "test.npz is empty"),
        (
            {"inputs": np.zeros((30, 9))},
            "the inputs in test.npz have shape (batch, 9), but the model takes (batch, 1, 4)",
        ),
        ({"labels": np.full(30, 3)}, "test.npz has labels from 3 to 3, but there are 3 classes"),
    ):
        labelled(file, **changes)
        assert words in refused(built.app, *QUICK, "--dry-run", "--data", file)


def test_bad_models_name_the_file(built: Built) -> None:
    model = built.variant("good") / "model.onnx"
    content = model.read_bytes()
    for damaged in (content[: len(content) // 2], b"no model", b""):
        model.write_bytes(damaged)
        assert "good/model.onnx" in refused(built.app, *QUICK, "--dry-run")


def test_code_of_the_user_can_be_profiled(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rows.py").write_text(
        "import numpy as np\ndef classify(rows):\n    return np.ones((len(rows), 3), np.float32) / 3\n"
        "def broken(rows):\n    raise RuntimeError('no such row')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    variant = built.variant("mine")
    variant.mkdir()
    text = 'backend = "callable"\ncode = "my_rows:{}"\naccuracy = 0.3\naccuracy_source = "measured"\n'
    (variant / "variant.toml").write_text(text.format("classify"))
    found = printed(built.app, *QUICK, "--backend", "callable")["applications"]["rows"]["variants"]
    assert found["mine"]["profile"]["backend"] == "callable"
    (variant / "variant.toml").write_text(text.format("broken"))
    assert "rows/mine: my_rows:broken failed on a batch of 1: RuntimeError: no such row" in refused(
        built.app, *QUICK, "--variant", "mine"
    )


def test_a_bare_model_gets_its_first_accuracy(built: Built, tmp_path: Path) -> None:
    (built.variant("fast") / "metrics.json").unlink()
    printed(built.app, *QUICK, "--data", labelled(tmp_path / "test.npz"))
    assert read_repository(built.app).applications[0].variant("fast").has_accuracy


def test_accuracy_is_measured_in_batches_that_the_variant_takes(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exported program may be bound to its largest batch, and was run on batches of 32 for its accuracy."""
    (tmp_path / "small_rows.py").write_text(
        "import numpy as np\ndef classify(rows):\n    assert len(rows) <= 4\n"
        "    return np.ones((len(rows), 3), np.float32) / 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    variant = built.variant("small")
    variant.mkdir()
    (variant / "variant.toml").write_text('backend = "callable"\ncode = "small_rows:classify"\nmax_batch = 4\n')
    found = printed(built.app, *QUICK, "--variant", "small", "--data", labelled(tmp_path / "test.npz"))
    assert found["applications"]["rows"]["variants"]["small"]["accuracy"] == pytest.approx(1 / 3)


def test_data_is_judged_by_the_output_that_app_toml_names(built: Built, tmp_path: Path) -> None:
    """A model may give more than its answer: features first, as many exports do, was taken for the scores."""
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [
            helper.make_node("Neg", ["input"], ["negative"]),
            helper.make_node("Flatten", ["negative"], ["features"]),
            helper.make_node("Flatten", ["input"], ["probabilities"]),
        ],
        "two",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 1, 3])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3])
            for name in ("features", "probabilities")
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    built.write_app((built.app / "app.toml").read_text().replace("[1, 4]", "[1, 3]"))
    shutil.rmtree(built.variant("good"))
    (built.variant("fast") / "model.onnx").write_bytes(model.SerializeToString())
    inputs = np.eye(3, dtype=np.float32)[np.arange(30) % 3].reshape(30, 1, 3)
    data = labelled(tmp_path / "test.npz", inputs=inputs)
    variants = printed(built.app, *QUICK, "--data", data)["applications"]["rows"]["variants"]
    assert variants["fast"]["accuracy"] == 1


def test_a_callable_beside_the_model_is_measured(built: Built) -> None:
    """Its module was looked for among what is installed only; memory is measured in a process of its own."""
    shutil.rmtree(built.variant("good"))
    folder = built.variant("fast")
    for file in folder.iterdir():
        file.unlink()
    (folder / "rules_of_rows.py").write_text(
        "import numpy as np\n\n\ndef classify(batch):\n    return batch[:, 0, :3].astype(np.float32)\n"
    )
    (folder / "variant.toml").write_text(
        'backend = "callable"\ncode = "rules_of_rows:classify"\naccuracy = 0.5\naccuracy_source = "measured"\n'
    )
    fast = printed(built.app, *QUICK)["applications"]["rows"]["variants"]["fast"]
    assert fast["written"] and set(fast["profile"]["batches"]) == {"1", "4"}
    assert read_repository(built.app).applications[0].variant("fast").profile_state("x", ("x",)) == "foreign"


def test_values_need_a_tolerance_to_be_right_within(built: Built, tmp_path: Path) -> None:
    """The accuracy of a regression was counted by its largest number."""
    data = labelled(tmp_path / "test.npz", labels=np.zeros((30, 3)))
    text = (built.app / "app.toml").read_text()
    (built.app / "labels.txt").unlink()
    built.write_app(f'{text}shape = [3]\nkind = "values"\n')
    assert "write tolerance = … below [output] of app.toml" in refused(built.app, *QUICK, "--data", data)
    built.write_app(f'{text}shape = [3]\nkind = "values"\ntolerance = 1.0\n')  # probabilities, none above 1
    variants = printed(built.app, *QUICK, "--data", data)["applications"]["rows"]["variants"]
    assert variants["fast"]["accuracy"] == variants["good"]["accuracy"] == 1
    kept = json.loads((built.variant("fast") / "metrics.json").read_text())
    assert kept["tolerance"] == 1 and "recall" not in kept and "confusion" not in kept
    assert read_repository(built.app).applications[0].variant("fast").accuracy == 1
    built.write_app(f'{text}shape = [3]\nkind = "values"\ntolerance = 0.1\n')
    variant = read_repository(built.app).applications[0].variant("fast")
    assert not variant.has_accuracy and variant.unmeasured == "it was measured with another tolerance"


def test_one_broken_application_stops_no_profile(built: Built) -> None:
    for name in ("broken", "bare"):
        shutil.copytree(built.app, built.root / name)
    (built.root / "broken" / "app.toml").write_text("slo_ms = = 50\n")
    shutil.rmtree(built.root / "bare")
    (built.root / "bare").mkdir()
    result = run(built.root, *QUICK)
    assert result.exit_code == 0, result.output
    assert f"error: {built.root}/broken is left out: app.toml:1: not valid TOML" in result.stderr
    assert f"error: {built.root}/bare is left out: app.toml: there is no such file" in result.stderr
    assert all((built.variant(name) / "profiles").is_dir() for name in ("fast", "good"))
    found = printed(built.root, *QUICK, "--dry-run")
    assert set(found["applications"]) == {"rows"} and set(found["left_out"]) == {"broken", "bare"}


def test_one_model_that_cannot_run_stops_no_profile(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad_rows.py").write_text("def broken(rows):\n    raise RuntimeError('no such row')\n")
    monkeypatch.syspath_prepend(tmp_path)
    variant = built.variant("bad")  # the first by name
    variant.mkdir()
    text = 'backend = "callable"\ncode = "bad_rows:broken"\naccuracy = 0.3\naccuracy_source = "measured"\n'
    (variant / "variant.toml").write_text(text)
    result = run(built.root, *QUICK)
    assert result.exit_code == 2 and "wrote 2 profiles" in result.stdout
    assert "error: rows/bad: bad_rows:broken failed on a batch of 1" in result.stderr
    assert all((built.variant(name) / "profiles").is_dir() for name in ("fast", "good"))
