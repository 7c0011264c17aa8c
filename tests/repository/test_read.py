"""Sound repositories: what is read, with and without defaults, by path and from the zoo."""

from __future__ import annotations

import ast
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stretto.core.application import Penalty
from stretto.core.errors import StrettoError
from stretto.core.worker import workers
from stretto.repository import read
from stretto.repository.read import inspect_repository, read_repository
from stretto.repository.tensors import OutputKind
from tests.repository.build import KIND, Built, write_model

FULL = """\
name = "rows"
slo_ms = 12.5
penalty = "linear"
description = "a row of four numbers"

[input]
name = "input"
dtype = "float32"
shape = [1, 4]
values = "from 0 to 1"

[output]
name = "probabilities"
dtype = "float32"
kind = "probabilities"
shape = [3]
labels = ["left", "middle", "right"]

[limits]
max_batch = 8
max_body_bytes = 1000
max_elements = 16
min_value = 0
max_value = 1.0

[sample]
file = "few.npz"
divide_by = 2
"""


def test_a_small_repository_needs_little(built: Built) -> None:
    repository = read_repository(built.root)
    (application,) = repository.applications
    assert (application.name, application.slo_ms, application.penalty) == ("rows", 50.0, Penalty.STEP)
    assert application.labels == ("left", "middle", "right") and application.classes == 3
    assert (application.input.name, application.input.dtype, application.input.shape) == ("input", "float32", (1, 4))
    assert application.output.kind is OutputKind.PROBABILITIES and application.output.shape == (3,)
    assert application.limits.max_elements == 4
    assert [variant.name for variant in application.variants] == ["fast", "good"]
    good = application.variant("good")
    assert (good.accuracy, good.accuracy_source, good.backend, good.enabled) == (0.9, "measured", "onnx", True)
    assert good.file == built.variant("good").resolve() / "model.onnx"
    assert good.input_shape == (1, 4) and len(good.profiles) == 1


def test_every_key_of_an_application_is_read(built: Built) -> None:
    built.write_app(FULL)
    (built.app / "labels.txt").unlink()
    np.savez(built.app / "few.npz", inputs=np.full((2, 1, 4), 3, np.uint8), labels=np.array([0, 2]))
    (application,) = read_repository(built.root).applications
    assert (application.slo_ms, application.penalty) == (12.5, Penalty.LINEAR)
    assert application.description == "a row of four numbers" and application.input.values == "from 0 to 1"
    limits = application.limits
    assert (limits.max_batch, limits.max_body_bytes, limits.max_elements) == (8, 1000, 16)
    assert (limits.min_value, limits.max_value) == (0.0, 1.0)
    sample = application.sample()
    assert sample.inputs.dtype == np.float32 and (sample.inputs == 1.5).all()
    assert sample.labels.tolist() == [0, 2] and len(sample) == 2


def test_every_key_of_a_variant_is_read(built: Built) -> None:
    folder = built.variant("good")
    (folder / "variant.toml").write_text(
        'enabled = false\nbackend = "onnx"\nfile = "weights/half.onnx"\naccuracy = 0.5\n'
        'accuracy_source = "literature"\n'
        "input_shape = [1, 2]\nmax_batch = 4\nmemory_mb = 1.5\nload_ms = 7\n"
    )
    (folder / "metrics.json").unlink()
    write_model(folder / "weights" / "half.onnx", (1, 2))
    variant = read_repository(built.root).application("rows").variant("good")
    assert (variant.enabled, variant.accuracy, variant.accuracy_source) == (False, 0.5, "literature")
    assert variant.file is not None and variant.file.name == "half.onnx"
    assert (variant.input_shape, variant.max_batch, variant.memory_bytes, variant.load_ms) == (
        (1, 2),
        4,
        1_500_000,
        7.0,
    )


def test_torch_and_callable_variants(built: Built) -> None:
    for name, text, file in (
        ("exported", 'backend = "torch"\n', "model.pt2"),
        ("weights", 'backend = "torch"\nformat = "safetensors"\ncode = "models.net:make"\n', "model.safetensors"),
        ("function", 'backend = "callable"\ncode = "models.rules:answer"\n', None),
    ):
        built.variant(name).mkdir()
        (built.variant(name) / "variant.toml").write_text(text + 'accuracy = 0.5\naccuracy_source = "measured"\n')
        if file is not None:
            (built.variant(name) / file).write_bytes(b"not looked into")
    application = read_repository(built.root).application("rows")
    exported, weights, function = (application.variant(name) for name in ("exported", "weights", "function"))
    assert (exported.backend, exported.format, exported.code) == ("torch", "exported", None)
    assert (weights.format, weights.code) == ("safetensors", "models.net:make")
    assert (function.file, function.format, function.code) == (None, None, "models.rules:answer")
    assert len(function.model_sha256()) == 64


def test_metrics_give_recall_confusion_and_input_size(built: Built) -> None:
    write_model(built.variant("good") / "model.onnx", (1, 2))
    built.metrics(
        "good",
        accuracy=0.75,
        validation_accuracy=0.8,
        recall=[1.0, 0.5, 0.75],
        confusion=[[4, 0, 0], [1, 2, 1], [0, 1, 3]],
        test_samples=12,
        parameters=6,
        input_shape=[1, 2],
        trained={"epochs": 3},
    )
    repository, problems = inspect_repository(built.root)
    variant = repository.application("rows").variant("good")
    assert problems.found == [] and variant.input_shape == (1, 2)
    assert variant.metrics is not None and variant.metrics.confusion[1] == (1, 2, 1)


def test_figures_that_contradict_one_another_are_doubted(built: Built) -> None:
    confusion = [[4, 0, 0], [1, 2, 1], [0, 1, 3]]
    built.metrics("good", accuracy=0.9, recall=[1.0, 0.9, 0.75], confusion=confusion, test_samples=11)
    _, problems = inspect_repository(built.root)
    words = " / ".join(str(problem) for problem in problems.warnings)
    assert problems.errors == ()
    assert "accuracy is 0.9, but confusion gives 0.75" in words
    assert "test_samples is 11, but confusion counts 12" in words and "recall of class 1 is 0.9" in words


def test_one_application_may_be_named_alone(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each.name for each in read_repository(str(built.app)).applications] == ["rows"]
    monkeypatch.chdir(built.app)
    assert [each.name for each in read_repository(".").applications] == ["rows"]


def test_links_inside_the_repository_are_fine(built: Built) -> None:
    (built.root / "shared").mkdir()
    (built.app / "labels.txt").rename(built.root / "shared" / "names.txt")
    (built.app / "labels.txt").symlink_to("../shared/names.txt")
    built.variant("same").symlink_to("good")
    repository, problems = inspect_repository(built.root)
    assert problems.errors == () and len(repository.application("rows").variants) == 3
    assert [str(problem) for problem in problems.warnings] == [
        f"{built.root}/shared: holds no app.toml, so it is no application and left out"
    ]


def test_hidden_private_and_plain_files_are_no_applications(built: Built) -> None:
    for name in (".git", "__pycache__"):
        (built.root / name).mkdir()
        (built.app / "variants" / name).mkdir()
    (built.root / "README.md").write_text("about")
    (built.app / "variants" / "notes.txt").write_text("about")
    _, problems = inspect_repository(built.root)
    assert problems.found == []


def test_a_ladder_holds_every_variant_that_is_enabled_also_where_a_part_is_served(built: Built) -> None:
    """By accuracy, so that it is the same on every kind of machine; the profiles of both kinds are in another order."""
    built.add("best", 0.95, latency_ms=2.0)
    built.add("off", 0.8)
    (built.variant("off") / "variant.toml").write_text("enabled = false\n")
    built.profile("good", "gpu-fast", 0.1)
    (files,) = read_repository(built.root).applications
    assert files.ladder == ("fast", "good", "best")
    part = replace(files, variants=files.variants[:1])
    repository = replace(read_repository(built.root), applications=(part,))
    assert [variant.name for variant in part.variants] == ["best"]
    deployment, _ = repository.deployment(1, kind=KIND)
    assert deployment.applications[0].ladder == ("fast", "good", "best")
    for kind in (KIND, "gpu-fast"):
        whole, _ = read_repository(built.root).deployment(1, kind=kind)
        assert whole.applications[0].ladder == ("fast", "good", "best")


def test_the_zoo_is_found_by_name(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(built.app, built.root / "columns")
    monkeypatch.setattr(read, "zoo_folder", lambda: built.root)
    assert [each.name for each in read_repository("zoo").applications] == ["columns", "rows"]
    repository = read_repository("zoo:rows")
    assert [each.label for each in repository.applications] == ["zoo:rows"]
    with pytest.raises(StrettoError, match="the zoo has no application 'row'; did you mean rows"):
        read_repository("zoo:row")
    (built.app / "app.toml").write_text("slo_ms = 0\n[input]\nshape = [1, 4]\n[output]\nname = 'probabilities'")
    with pytest.raises(StrettoError, match=r"^zoo:rows/app.toml:1: slo_ms is 0"):
        read_repository("zoo:rows")


def test_an_installation_without_a_zoo_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read.resources, "files", lambda name: tmp_path)
    with pytest.raises(StrettoError, match="has no zoo"):
        read_repository("zoo")


def test_the_repository_imports_core_and_config_only() -> None:
    folder = Path(read.__file__).parent
    for file in [*folder.glob("*.py"), *(folder.parent / "config").glob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                parts = name.split(".")
                assert parts[0] not in ("onnx", "onnxruntime", "torch", "pickle"), file.name
                if parts[0] == "stretto":
                    assert parts[1] in ("core", "config", "repository"), f"{file.name} imports {name}"
                    assert file.parent == folder or parts[1] != "repository"


def test_a_variant_that_no_worker_has_memory_for_is_left_out() -> None:
    repository = read_repository("zoo:fashion")
    whole, told = repository.deployment(1)
    assert not any("no worker has more" in each for each in told)
    kind = whole.kinds[0]
    fleet = (*workers(1, kind, memory_bytes=4_000_000), *workers(1, kind, memory_bytes=22_000_000))
    deployment, told = repository.deployment(tuple(replace(each, name=f"w{n}") for n, each in enumerate(fleet)))
    left = {variant.name for variant in whole.variants} - {variant.name for variant in deployment.variants}
    assert left == {"resnet_l"} and sum("needs 22.3 MB with a batch" in each for each in told) == 1
    with pytest.raises(StrettoError, match="no worker has memory for any variant; the smallest needs 0"):
        repository.deployment(workers(1, kind, memory_bytes=1000))
