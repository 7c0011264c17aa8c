"""The repository for a GPU: the zoo's weights as exported programs, and a ladder that enlarges images itself."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

from stretto.backends.model import TensorSpec  # noqa: E402
from stretto.backends.program import read_program  # noqa: E402
from stretto.backends.rungs import rungs as batch_rungs  # noqa: E402
from stretto.backends.source import ModelSource  # noqa: E402
from stretto.backends.torch import load_torch  # noqa: E402
from stretto.repository.read import read_repository, zoo_folder  # noqa: E402
from training.gpu import build_ladder, sample_of, zoo_programs  # noqa: E402
from training.gpu_ladder import RUNGS, SIZE, Enlarged, Enlarging, GpuRung, Stage, enlarged  # noqa: E402
from training.ladders import LADDERS  # noqa: E402
from training.loop import Recipe  # noqa: E402
from training.networks import Classifier, Scaled, fold, plain, residual  # noqa: E402
from training.program import write_program  # noqa: E402
from training.tasks import Change  # noqa: E402
from training.weights import trained_network  # noqa: E402

SMALL, CLASSES = 32, 10
HELD = 50  # images of validation: the real number would take minutes in bfloat16 on a processor


@pytest.fixture
def greys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A thousand images to learn from; the brighter, the higher the class."""
    monkeypatch.setattr("training.tasks.VALIDATION_IMAGES", HELD)
    random = np.random.default_rng(3)
    arrays = {}
    for split, count in (("train", HELD + 1_000), ("test", 50)):
        labels = np.arange(count) % CLASSES
        images = random.integers(0, 20, (count, 28, 28), dtype=np.uint8) + (25 * labels[:, None, None]).astype(np.uint8)
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    file = tmp_path / "fashion.npz"
    np.savez(file, **arrays)
    return file


@pytest.mark.parametrize(
    ("application", "variant"),
    [("fashion", "cnn_s"), ("activity", "linear"), ("activity_specialists", "rotation"), ("mnist", "mlp")],
)
def test_the_zoo_s_weights_come_back_as_programs(application: str, variant: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    rungs = [rung for rung in LADDERS[application].rungs if rung.name == variant]
    zoo_programs(application, rungs, tmp_path)
    folder = tmp_path / application / "variants" / variant
    shape = json.loads((folder / "metrics.json").read_text())["input_shape"]
    inputs = np.random.default_rng(1).random((5, *shape), np.float32)
    model = zoo_folder() / application / "variants" / variant / "model.onnx"
    expected = onnxruntime.InferenceSession(str(model)).run(None, {"input": inputs})[0]
    answered = read_program(folder / "model.pt2").module(check_guards=False)(torch.from_numpy(inputs)).detach()
    np.testing.assert_allclose(answered.numpy(), expected, atol=1e-5)
    assert tomllib.loads((folder / "variant.toml").read_text()) == {"backend": "torch", "file": "model.pt2"}
    assert read_repository(tmp_path / application).applications[0].variant(variant).is_measured


def test_weights_of_another_network_are_refused() -> None:
    rung = replace(LADDERS["fashion"].rungs[1], network=lambda: residual(1, (16, 32, 64), 1, 10))
    with pytest.raises(SystemExit, match="has no weights"):
        trained_network(rung, zoo_folder() / "fashion" / "variants" / "mlp")


def test_a_ladder_is_trained_through_its_sizes_and_measured_in_each_precision(greys: Path, tmp_path: Path) -> None:
    recipe = Recipe(2, batch=50, rate=0.05, average=0.9)
    rung = GpuRung(
        "tiny",
        lambda: plain(1, (16, 16), (2, 2), CLASSES),
        (Stage(28, recipe), Stage(SMALL, replace(recipe, epochs=1, rate=0.02))),
        Change(),
        ("float32", "bfloat16"),
        is_taught=False,
    )
    folder = tmp_path / "fashion_gpu"
    build_ladder([rung], greys, folder, "cpu", size=SMALL)
    app = tomllib.loads((folder / "app.toml").read_text())
    assert app["input"]["dtype"] == "uint8" and app["input"]["shape"] == [1, 28, 28]
    with np.load(folder / "sample.npz") as sample:
        inputs, labels = sample["inputs"], sample["labels"]
    assert inputs.dtype == np.uint8 and inputs.shape == (50, 1, 28, 28) and set(labels) == set(range(CLASSES))
    for name, precision in (("tiny", "float32"), ("tiny_bfloat16", "bfloat16")):
        variant = folder / "variants" / name
        metrics = json.loads((variant / "metrics.json").read_text())
        assert metrics["accuracy"] > 0.3 and metrics["precision"] == precision and metrics["test_samples"] == 50
        assert np.sum(metrics["confusion"]) == 50 and metrics["input_shape"] == [1, 28, 28]
        assert read_repository(folder).applications[0].variant(name).is_measured
        stated = tomllib.loads((variant / "variant.toml").read_text())
        assert stated.get("precision", "float32") == precision
        with np.load(greys) as data:
            assert sorted(map(bytes, inputs)) == sorted(map(bytes, data["test_images"]))
        answered = served(variant / "model.pt2", precision).run({"input": inputs})["probabilities"]
        right = float((answered.argmax(1) == labels).mean())
        assert right == pytest.approx(metrics["accuracy"], abs=0.001), "the sample is all of this test split"


def served(file: Path, precision: str) -> Any:
    """As a server loads it on the processor."""
    bytes_in, out = TensorSpec("input", "uint8", (1, 28, 28)), TensorSpec("probabilities", "float32", (CLASSES,))
    return load_torch(
        ModelSource("torch", file, precision=precision, divide_by=255, inputs=(bytes_in,), outputs=(out,))
    )


def test_training_sees_changed_images_enlarged_and_labels_softened(greys: Path) -> None:
    teacher = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, CLASSES), torch.nn.Softmax(1))
    task = Enlarged(greys, Change(), "cpu", SMALL, teacher)
    images, targets = task.draw(torch.arange(4))
    assert torch.equal(images, enlarged(task.images[:4].float() / 255, SMALL))
    hard = torch.eye(CLASSES)[task.labels[:4]]
    assert torch.allclose(targets, (hard + teacher(task.images[:4].float() / 255)) / 2)
    assert images.shape == (4, 1, SMALL, SMALL) and task.test[0].dtype == torch.uint8
    assert sample_of(task, 3)["labels"].tolist().count(0) == 3


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_every_rung_is_exported_and_takes_bytes_in_every_batch(rung: GpuRung, tmp_path: Path) -> None:
    """Untrained: what is written answers as the network that training sees, whatever the batch. In float32, for lower
    precisions take minutes on a processor; the tiny ladder above has both.
    """
    torch.manual_seed(1)
    size = SIZE if rung.name == "mlp" else SMALL  # the others take any, and cost by the pixel
    scaled = Scaled(rung.network(), torch.full((1, 1, 1, 1), 3.0)).eval()
    images = torch.randint(0, 256, (8, 1, 28, 28), dtype=torch.uint8)
    file = tmp_path / rung.name / "model.pt2"
    write_program(Enlarging(Classifier(fold(scaled)), size), images.float() / 255, file)
    with torch.no_grad():
        expected = torch.softmax(scaled(enlarged(images[:3].float() / 255, size)), 1).numpy()
    model = served(file, "float32")
    assert model.inputs == (TensorSpec("input", "uint8", (1, 28, 28)),) and model.fixed_batch is None
    for batch in batch_rungs(3):
        answered = model.run({"input": images[:batch].numpy()})["probabilities"]
        np.testing.assert_allclose(answered, expected[:batch], atol=1e-4)


def test_a_ladder_s_variants_are_named_by_precision() -> None:
    names = {name: precision for rung in RUNGS for name, precision in rung.variants().items()}
    assert names == {
        "mlp": "float32",
        "resnet_s": "bfloat16",
        "resnet_s_float32": "float32",
        "resnet_m": "bfloat16",
    }
