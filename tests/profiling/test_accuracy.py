"""Accuracy, recall and confusion against counts made by hand, and bad data told in sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stretto.backends.callable import CallableModel
from stretto.backends.load import load_model
from stretto.backends.model import BackendError, TensorSpec
from stretto.backends.source import ModelSource
from stretto.profiling.accuracy import DataError, checked, evaluate, measured, read_labelled
from stretto.profiling.pareto import pareto_front
from stretto.repository.tensors import OutputKind, OutputTensor
from tests.backends.onnx_models import linear, lookup, weights_of

TAKES = (TensorSpec("x", "float32", (3,)),)
IDENTITY = CallableModel(lambda batch: batch, TAKES)  # the answer is the place of the largest number


def one_hot(*answers: int) -> np.ndarray:
    return np.eye(3, dtype=np.float32)[list(answers)]


def test_counts_made_by_hand() -> None:
    found = evaluate(IDENTITY, checked(one_hot(0, 0, 1, 2, 1, 1), np.array([0, 1, 1, 1, 1, 0])), 3, batch=4)
    assert found.accuracy == pytest.approx(3 / 6)
    assert found.confusion.tolist() == [[1, 1, 0], [1, 2, 1], [0, 0, 0]]
    assert found.recall == (1 / 2, 2 / 4, None)
    assert found.samples == 6


def test_a_real_model_in_batches_with_progress(tmp_path: Path) -> None:
    model = load_model(ModelSource(file=linear(tmp_path / "model.onnx")))
    random = np.random.default_rng(3)
    inputs, labels = random.random((101, 4), dtype=np.float32), random.integers(0, 3, 101)
    fractions: list[float] = []
    found = evaluate(model, checked(inputs, labels), 3, batch=16, progress=fractions.append)
    answers = (inputs @ weights_of()).argmax(axis=1)
    assert found.accuracy == pytest.approx((answers == labels).mean())
    assert int(found.confusion.sum()) == 101 and fractions[-1] == 1 and len(fractions) == 7


def test_a_model_of_a_fixed_batch_is_filled_up(tmp_path: Path) -> None:
    model = load_model(ModelSource(file=linear(tmp_path / "model.onnx", batch=8)))
    inputs = np.random.default_rng(3).random((11, 4), dtype=np.float32)
    labels = (inputs @ weights_of()).argmax(axis=1)
    assert evaluate(model, checked(inputs, labels), 3).accuracy == 1


def test_data_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "test.npz"
    pixels = np.array([[0, 255, 0], [255, 0, 0]], np.uint8)
    np.savez(file, inputs=pixels, inputs_small=pixels[:, :2], labels=np.array([1, 0]))
    data = read_labelled(file, divide_by=255)
    assert data.inputs.dtype == np.float32 and data.inputs.max() == 1
    assert evaluate(IDENTITY, data).accuracy == 1
    assert read_labelled(file, "inputs_small").inputs.shape == (2, 2)
    assert read_labelled(file, "inputs_none").inputs.shape == (2, 3)


@pytest.mark.parametrize(
    ("inputs", "divide_by"),
    [([[0.5, 1]], 1), ([[256, 1]], 1), ([[-1, 1]], 1), ([[np.nan, 1]], 1), ([[255, 0]], 100)],
)
def test_data_that_bytes_cannot_hold_is_refused(tmp_path: Path, inputs: list[list[float]], divide_by: float) -> None:
    """Else fractions would all be measured as 0."""
    file = tmp_path / "test.npz"
    np.savez(file, inputs=np.array(inputs), labels=np.array([1]))
    with pytest.raises(DataError, match=r"test\.npz: inputs hold numbers that are no uint8"):
        read_labelled(file, divide_by=divide_by, dtype="uint8")
    np.savez(file, inputs=np.array([[0.0, 255]]), labels=np.array([1]))
    assert read_labelled(file, dtype="uint8").inputs.tolist() == [[0, 255]]


def test_bad_files_are_sentences(tmp_path: Path) -> None:
    file = tmp_path / "test.npz"
    ones = np.ones((3, 3), np.float32)
    for arrays, words in (
        ({"inputs": ones}, r"test\.npz has no array labels"),
        ({"labels": np.zeros(3, int)}, r"test\.npz has no array inputs"),
        ({"inputs": ones, "labels": np.zeros(2, int)}, r"test\.npz has 3 inputs but 2 labels; give every input its"),
        ({"inputs": ones[:0], "labels": np.zeros(0, int)}, r"test\.npz is empty; give at least one labelled query"),
        ({"inputs": ones, "labels": np.zeros(3)}, "one whole number per query"),
        ({"inputs": ones, "labels": np.zeros((3, 2), int)}, "one whole number per query"),
        ({"inputs": np.array(["a"]), "labels": np.zeros(1, int)}, "they must be numbers"),
        ({"inputs": np.array([{}], dtype=object), "labels": np.zeros(1, int)}, r"test\.npz is no sound \.npz file"),
    ):
        np.savez(file, **arrays)  # type: ignore[arg-type]
        with pytest.raises(DataError, match=words):
            read_labelled(file)
    file.write_bytes(b"PK no archive")
    with pytest.raises(DataError, match=r"test\.npz is no sound \.npz file of numbers; write it again"):
        read_labelled(file)
    with pytest.raises(DataError, match=r"there is no file none\.npz"):
        read_labelled(tmp_path / "none.npz")


def test_labels_and_shapes_that_do_not_fit_the_model(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the data has labels from 0 to 3, but there are 3 classes, from 0"):
        evaluate(IDENTITY, checked(one_hot(0, 1), np.array([0, 3])))
    with pytest.raises(DataError, match="labels from -1 to 0"):
        evaluate(IDENTITY, checked(one_hot(0, 1), np.array([0, -1])))
    with pytest.raises(DataError, match=r"have shape \(batch, 2\), but the model takes \(batch, 3\)"):
        evaluate(IDENTITY, checked(np.ones((2, 2), np.float32), np.array([0, 1])))
    with pytest.raises(BackendError, match="gives 3 numbers per query for 10 classes"):
        evaluate(IDENTITY, checked(one_hot(0, 1), np.array([0, 1])), 10)
    flat = CallableModel(lambda batch: batch[:, 0], TAKES)
    with pytest.raises(BackendError, match="accuracy needs one number per class"):
        evaluate(flat, checked(one_hot(0), np.array([0])))


def test_a_query_that_the_model_fails_on_is_named(tmp_path: Path) -> None:
    model = load_model(ModelSource(file=lookup(tmp_path / "lookup.onnx")))
    with pytest.raises(BackendError, match=r"idx=9 .*\(query 37 of the data\)"):
        evaluate(model, checked(np.array([1] * 37 + [9] + [0] * 9), np.zeros(47, int)))


def test_the_pareto_front_is_what_nothing_beats() -> None:
    points = {"slow": (0.9, 9.0), "beaten": (0.7, 5.0), "fast": (0.6, 1.0), "good": (0.8, 4.0), "twin": (0.8, 4.0)}
    assert pareto_front(points) == ["fast", "good", "slow"]
    for name, (accuracy, latency) in points.items():
        is_beaten = any((a >= accuracy and t <= latency) and (a > accuracy or t < latency) for a, t in points.values())
        assert (name in pareto_front(points)) == (not is_beaten) or name == "twin"
    assert pareto_front({}) == []


def test_the_answer_is_the_output_that_is_named() -> None:
    """The first output of a model was taken for its answer, whatever app.toml says."""

    def two(batch: np.ndarray) -> dict[str, np.ndarray]:
        return {"features": batch[:, ::-1], "scores": batch}

    model = CallableModel(two, TAKES, (TensorSpec("features", "float32", (3,)), TensorSpec("scores", "float32", (3,))))
    data = checked(one_hot(0, 0, 2), np.array([0, 0, 2]))
    assert evaluate(model, data, 3, output="scores").accuracy == 1
    assert evaluate(model, data, 3, output="features").accuracy == 0
    with pytest.raises(BackendError, match="gives features, scores; say which"):
        evaluate(model, data, 3)


VALUES = OutputTensor("output", "float32", (3,), OutputKind.VALUES, tolerance=0.5)


def test_values_are_right_within_the_tolerance_and_never_by_the_largest(tmp_path: Path) -> None:
    """A regression was scored by the place of its largest number."""
    answers = np.array([[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, np.nan], [0, 0, 0.25]], np.float32)
    truth = np.array([[1, 2, 3], [1.5, 1.5, 3], [1, 2, 3.75], [1, 2, 3], [0, 0, 0]])
    np.savez(tmp_path / "test.npz", inputs=answers, labels=truth)
    data = read_labelled(tmp_path / "test.npz", values=VALUES)
    found = measured(IDENTITY, data, VALUES, batch=2)
    assert (found.accuracy, found.samples, found.recall) == (3 / 5, 5, ()) and not found.confusion.size


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (np.zeros(2), "must be the true values of its 2 queries, 3 for each"),
        (np.zeros((3, 3)), "must be the true values of its 2 queries"),
        (np.array(["a"] * 6), "must be the true values of its 2 queries"),
        (np.full((2, 3), np.nan), "must be finite numbers"),
    ],
)
def test_labels_that_are_no_values(tmp_path: Path, labels: np.ndarray, says: str) -> None:
    np.savez(tmp_path / "test.npz", inputs=np.zeros((2, 3), np.float32), labels=labels)
    with pytest.raises(DataError, match=says):
        read_labelled(tmp_path / "test.npz", values=VALUES)
