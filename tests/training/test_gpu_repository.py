"""The repository for a GPU: the zoo's weights as exported programs, and a ladder trained on enlarged images."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

from stretto.backends.program import read_program  # noqa: E402
from stretto.repository.read import zoo_folder  # noqa: E402
from training.gpu import build_ladder, sample_of, zoo_programs  # noqa: E402
from training.gpu_ladder import RUNGS, Enlarged, GpuRung, Stage, enlarged  # noqa: E402
from training.ladders import LADDERS  # noqa: E402
from training.loop import Recipe  # noqa: E402
from training.networks import Scaled, fold, plain, residual  # noqa: E402
from training.program import write_program  # noqa: E402
from training.tasks import Change  # noqa: E402
from training.weights import trained_network  # noqa: E402

SIZE, CLASSES = 32, 10
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


@pytest.mark.parametrize(("application", "variant"), [("fashion", "cnn_s"), ("activity", "linear"), ("mnist", "mlp")])
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


def test_weights_of_another_network_are_refused() -> None:
    rung = replace(LADDERS["fashion"].rungs[1], network=lambda: residual(1, (16, 32, 64), 1, 10))
    with pytest.raises(SystemExit, match="has no weights"):
        trained_network(rung, zoo_folder() / "fashion" / "variants" / "mlp")


def test_a_ladder_is_trained_through_its_sizes_and_measured_in_each_precision(greys: Path, tmp_path: Path) -> None:
    recipe = Recipe(2, batch=50, rate=0.05, average=0.9)
    rung = GpuRung(
        "tiny",
        lambda: plain(1, (16, 16), (2, 2), CLASSES),
        (Stage(28, recipe), Stage(SIZE, replace(recipe, epochs=1, rate=0.02))),
        Change(),
        ("float32", "bfloat16"),
        is_taught=False,
    )
    folder = tmp_path / "fashion_gpu"
    build_ladder([rung], greys, folder, "cpu", size=SIZE)
    app = tomllib.loads((folder / "app.toml").read_text())
    assert app["input"]["dtype"] == "uint8" and app["input"]["shape"] == [1, SIZE, SIZE]
    with np.load(folder / "sample.npz") as sample:
        inputs, labels = sample["inputs"], sample["labels"]
    assert inputs.dtype == np.uint8 and inputs.shape == (50, 1, SIZE, SIZE) and set(labels) == set(range(CLASSES))
    for name, precision in (("tiny", "float32"), ("tiny_bfloat16", "bfloat16")):
        variant = folder / "variants" / name
        metrics = json.loads((variant / "metrics.json").read_text())
        assert metrics["accuracy"] > 0.3 and metrics["precision"] == precision and metrics["test_samples"] == 50
        assert np.sum(metrics["confusion"]) == 50 and metrics["input_shape"] == [1, SIZE, SIZE]
        stated = tomllib.loads((variant / "variant.toml").read_text())
        assert stated.get("precision", "float32") == precision
        module = read_program(variant / "model.pt2").module(check_guards=False)
        with torch.no_grad():
            answered = module(torch.from_numpy(inputs).float() / 255)
        right = float((answered.argmax(1).numpy() == labels).mean())
        assert right == pytest.approx(metrics["accuracy"], abs=0.02)  # the sample is all of this test split


def test_training_sees_changed_images_enlarged_and_labels_softened(greys: Path) -> None:
    teacher = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, CLASSES), torch.nn.Softmax(1))
    task = Enlarged(greys, Change(), "cpu", SIZE, teacher)
    images, targets = task.draw(torch.arange(4))
    assert torch.equal(images, enlarged(task.images[:4].float() / 255, SIZE))
    hard = torch.eye(CLASSES)[task.labels[:4]]
    assert torch.allclose(targets, (hard + teacher(task.images[:4].float() / 255)) / 2)
    assert (images * 255 - (images * 255).round()).abs().max() < 1e-4
    assert sample_of(task, 3)["labels"].tolist().count(0) == 3


def test_every_rung_can_be_folded_and_exported_at_full_size(tmp_path: Path) -> None:
    for rung in RUNGS[:2]:
        scaled = Scaled(rung.network(), torch.full((1, 1, 1, 1), 3.0)).eval()
        images = torch.rand(8, 1, 224, 224)
        folded = fold(scaled)
        with torch.no_grad():
            assert torch.allclose(folded(images[:2]), scaled(images[:2]), atol=1e-3)
        if rung.name == "mlp":
            write_program(folded, images, tmp_path / rung.name / "model.pt2")
    names = [name for rung in RUNGS for name in rung.variants()]
    assert names == ["mlp", "resnet_s", "resnet_m", "resnet_l", "resnet_l_bfloat16"]
