"""Bytes for an ONNX model that takes floats are divided inside its graph, wherever that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from stretto.backends.load import load_model
from stretto.backends.model import BackendError, TensorSpec
from stretto.backends.onnx import OnnxModel
from stretto.backends.onnx_bytes import AS_BYTES, taking_bytes
from stretto.backends.source import ModelSource
from tests.backends.onnx_models import convolutions, linear, save

ROWS = np.random.default_rng(1).integers(0, 256, (5, 4)).astype(np.uint8)


def source(file: Path, shape: tuple[int | None, ...] = (4,), **more: Any) -> ModelSource:
    return ModelSource("onnx", file, inputs=(TensorSpec("x", "uint8", shape),), **({"divide_by": 255.0} | more))


def test_bytes_become_numbers_where_the_model_runs(tmp_path: Path) -> None:
    file = linear(tmp_path / "model.onnx")
    model = load_model(source(file))
    assert model.inputs == (TensorSpec("x", "uint8", (4,)),)
    model.prepare((1, 5))
    held = model.buffers(5)
    held["x"][...] = ROWS
    expected = load_model(ModelSource("onnx", file)).run({"x": (ROWS / 255).astype(np.float32)})["y"]
    np.testing.assert_allclose(model.run(held)["y"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.run({"x": ROWS[2:3]})["y"], expected[2:3], rtol=1e-5, atol=1e-6)
    with pytest.raises(BackendError, match="must be uint8, not float32"):
        model.run({"x": ROWS.astype(np.float32)})
    with pytest.raises(BackendError, match="is float32, but uint8 is declared"):
        load_model(source(file, divide_by=None))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_kind_of_float_gets_the_quotient_rounded_once(tmp_path: Path, dtype: str) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    file = save(tmp_path / "m.onnx", nodes, {"x": (dtype, ["n", 4])}, {"y": (dtype, ["n", 4])}, {})
    wide = np.float64 if dtype == "float64" else np.float32
    found = load_model(source(file, divide_by=127.5)).run({"x": ROWS})["y"]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, (ROWS.astype(wide) / wide(127.5)).astype(dtype))


def test_the_graph_stays_sound_and_the_rest_of_it_as_it_was(tmp_path: Path) -> None:
    file = convolutions(tmp_path / "model.onnx")
    before = onnx.load(str(file))
    content = taking_bytes(source(file, (1, 28, 28)))
    assert content is not None
    after = onnx.load_from_string(content)
    onnx.checker.check_model(after, full_check=True)
    [takes] = after.graph.input
    assert takes.name == "x" + AS_BYTES
    assert takes.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert [dim.dim_value for dim in takes.type.tensor_type.shape.dim] == [0, 1, 28, 28]
    assert [node.op_type for node in after.graph.node][:3] == ["Constant", "Cast", "Div"]
    assert list(after.graph.node)[3:] == list(before.graph.node)
    assert list(after.graph.initializer) == list(before.graph.initializer)
    assert list(after.graph.output) == list(before.graph.output)
    assert after.opset_import == before.opset_import


def test_a_model_that_takes_bytes_itself_is_left_as_it_is(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    file = save(tmp_path / "m.onnx", nodes, {"x": ("uint8", ["n", 4])}, {"y": ("uint8", ["n", 4])}, {})
    assert taking_bytes(source(file)) is None
    np.testing.assert_array_equal(load_model(source(file)).run({"x": ROWS})["y"], ROWS)


def test_names_that_the_graph_has_itself_are_no_trouble(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"], name="x")]
    file = save(tmp_path / "m.onnx", nodes, {"x": ("float32", ["n", 4])}, {"y": ("float32", ["n", 4])}, {})
    assert load_model(source(file)).run({"x": ROWS})["y"].max() <= 1.0
    name = f"image{AS_BYTES}"
    nodes = [helper.make_node("Identity", [name], ["y"])]
    own = save(tmp_path / "own.onnx", nodes, {name: ("uint8", ["n", 4])}, {"y": ("uint8", ["n", 4])}, {})
    declared = (TensorSpec(name, "uint8", (4,)),)
    model = load_model(ModelSource("onnx", own, inputs=declared, divide_by=255.0))
    assert model.inputs == declared


def test_the_file_is_not_held_in_memory(tmp_path: Path) -> None:
    model = load_model(source(linear(tmp_path / "model.onnx")))
    assert isinstance(model, OnnxModel)
    [session] = model._sessions.values()
    assert getattr(session, "_model_bytes", None) is None


def test_weights_may_lie_in_a_file_beside_the_model(tmp_path: Path) -> None:
    inside = load_model(source(linear(tmp_path / "a" / "model.onnx"))).run({"x": ROWS})["y"]
    beside = load_model(source(linear(tmp_path / "b" / "model.onnx", external="weights.bin"))).run({"x": ROWS})["y"]
    np.testing.assert_array_equal(beside, inside)
    (tmp_path / "b" / "weights.bin").unlink()
    with pytest.raises(BackendError, match="put that file beside the model"):
        load_model(source(tmp_path / "b" / "model.onnx"))


def test_weights_outside_the_folder_are_refused(tmp_path: Path) -> None:
    file = linear(tmp_path / "inside" / "model.onnx", external="weights.bin")
    (file.parent / "weights.bin").rename(tmp_path / "weights.bin")
    content = file.read_bytes()
    model = onnx.load_from_string(content)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../weights.bin"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(BackendError, match="keeps weights in a file outside its folder"):
        load_model(source(file))


def test_files_that_are_no_models_are_told(tmp_path: Path) -> None:
    whole = linear(tmp_path / "model.onnx").read_bytes()
    for number, content in enumerate([b"", b"no model at all", whole[: len(whole) // 2]]):
        file = tmp_path / f"{number}.onnx"
        file.write_bytes(content)
        with pytest.raises(BackendError, match=rf"^{number}\.onnx .*(no ONNX model|cut)"):
            load_model(source(file))


def test_another_name_than_the_graphs_is_told(tmp_path: Path) -> None:
    file = linear(tmp_path / "model.onnx")
    declared = (TensorSpec("image", "uint8", (4,)),)
    with pytest.raises(BackendError, match="has no input image; it has x"):
        load_model(ModelSource("onnx", file, inputs=declared, divide_by=255.0))
