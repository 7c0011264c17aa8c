"""Projections, and the layers of a variant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stretto.core.errors import StrettoError
from stretto.evidence import features
from stretto.evidence.features import Features, fit_projection, flat, source_of
from stretto.repository.read import read_repository
from tests.repository.build import build


def lopsided(rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Most of the spread in few directions."""
    random = np.random.default_rng(seed)
    few = random.standard_normal((rows, 3)) * [9.0, 5.0, 2.0]
    return (few @ random.standard_normal((3, width)) + 0.01 * random.standard_normal((rows, width)) + 7).astype(
        np.float32
    )


def test_components_are_those_of_a_singular_value_decomposition() -> None:
    rows = lopsided(400, 12)
    found = fit_projection(rows, 3)
    centred = rows - rows.mean(axis=0)
    _, _, by_values = np.linalg.svd(centred, full_matrices=False)
    for ours, theirs in zip(found.components, by_values[:3], strict=True):
        assert abs(float(ours @ theirs)) == pytest.approx(1, abs=2e-3)
    np.testing.assert_allclose(found.components @ found.components.T, np.eye(3), atol=3e-3)
    back = found(rows) @ found.components + found.mean
    assert np.abs(back - rows).max() < 0.3


def test_wide_inputs_give_the_same_components(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = lopsided(300, 40, seed=1)
    narrow = fit_projection(rows, 3)
    monkeypatch.setattr(features, "WIDE", 10)
    wide = fit_projection(rows, 3)
    np.testing.assert_allclose(wide.components, narrow.components, atol=3e-3)


def test_a_projection_has_no_more_dimensions_than_there_are() -> None:
    assert fit_projection(lopsided(50, 4), 32).components.shape == (4, 4)
    assert fit_projection(lopsided(3, 40), 32).components.shape == (2, 40)


def test_many_queries_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = lopsided(50, 8)
    projected = Features(flat, fit_projection(rows, 2))
    whole = projected(rows)
    monkeypatch.setattr(features, "AT_ONCE", 7)
    np.testing.assert_allclose(projected(rows), whole, rtol=1e-5, atol=1e-4)


def test_a_layer_is_what_the_model_computes_on_its_way(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="the weights are read with onnx, an extra for development")
    built = build(tmp_path / "models")
    (application,) = read_repository(built.app).applications
    inputs = np.random.default_rng(0).standard_normal((5, 1, 4)).astype(np.float32)
    weights = onnx.numpy_helper.to_array(onnx.load(str(built.variant("good") / "model.onnx")).graph.initializer[0])
    logits = source_of(application, "good", "logits")(inputs)
    np.testing.assert_allclose(logits, inputs.reshape(5, 4) @ weights, rtol=1e-5)
    answers = source_of(application, "good", "probabilities")(inputs)  # an output that the model has anyway
    np.testing.assert_allclose(answers.sum(axis=1), 1, rtol=1e-5)
    with pytest.raises(StrettoError, match="has no tensor 'nowhere'"):
        source_of(application, "good", "nowhere")
    with pytest.raises(StrettoError, match="no variant 'best'; it has fast, good"):
        source_of(application, "best", "logits")


def test_a_layer_of_a_variant_of_another_input_size_is_refused(tmp_path: Path) -> None:
    built = build(tmp_path / "models")
    built.add("wide", shape=(1, 8))
    built.metrics("wide", accuracy=0.5, input_shape=[1, 8])
    (application,) = read_repository(built.app).applications
    with pytest.raises(StrettoError, match="another input size"):
        source_of(application, "wide", "logits")


def test_a_layer_of_a_model_that_keeps_its_weights_beside_it(tmp_path: Path) -> None:
    built = build(tmp_path / "models")
    built.add("apart", external="weights.bin")
    built.add("whole")
    (application,) = read_repository(built.app).applications
    inputs = np.random.default_rng(0).standard_normal((3, 1, 4)).astype(np.float32)
    apart, whole = (source_of(application, name, "logits")(inputs) for name in ("apart", "whole"))
    np.testing.assert_allclose(apart, whole, rtol=1e-6)


def test_bytes_are_divided_before_a_layer_of_floats() -> None:
    files = read_repository("zoo:mnist").applications[0]
    takes = replace(files.input, dtype="uint8", divide_by=255.0)
    pixels = np.random.default_rng(1).integers(0, 256, (3, *takes.shape), np.uint8)
    expected = source_of(files, "mlp", files.output.name)((pixels / 255).astype(np.float32))
    found = source_of(replace(files, input=takes), "mlp", files.output.name)(pixels)
    np.testing.assert_allclose(found, expected, atol=1e-6)
