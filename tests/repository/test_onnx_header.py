"""The header reader against the onnx package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stretto.repository.onnx_header import ELEMENT_TYPES, OnnxTensor, read_onnx_header
from tests.repository.build import write_model

onnx = pytest.importorskip("onnx", reason="models for the tests are made with onnx, an extra for development")


def test_element_types_are_those_of_onnx() -> None:
    for number, name in ELEMENT_TYPES.items():
        assert onnx.helper.tensor_dtype_to_np_dtype(number) == np.dtype(name)


def test_inputs_and_outputs_with_free_and_fixed_sizes(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx", (2, 3), classes=5)
    header = read_onnx_header(tmp_path / "model.onnx")
    assert header.inputs == (OnnxTensor("input", "float32", (None, 2, 3)),)
    assert header.outputs == (OnnxTensor("probabilities", "float32", (None, 5)),)
    assert header.external == ()


def test_weights_among_the_inputs_are_no_inputs(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_model(path)
    model = onnx.load(str(path))
    model.graph.input.append(onnx.helper.make_tensor_value_info("weights", onnx.TensorProto.FLOAT, [4, 3]))
    model.ir_version = 3
    onnx.save(model, str(path))
    assert [tensor.name for tensor in read_onnx_header(path).inputs] == ["input"]


def test_what_a_model_does_not_tell(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_model(path)
    model = onnx.load(str(path))
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.Clear()
    onnx.save(model, str(path))
    header = read_onnx_header(path)
    assert header.inputs == (OnnxTensor("input", "float32", None),)
    assert header.outputs == (OnnxTensor("probabilities", None, None),)


def test_weights_in_a_file_of_their_own_and_a_long_name(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_model(path, (1, 4), input_name="x" * 300, external="weights.bin")
    header = read_onnx_header(path)
    assert (header.inputs[0].name, header.external) == ("x" * 300, ("weights.bin",))
