"""Small real ONNX models for the tests of backends and profiling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DATA_TYPES = {
    "float16": TensorProto.FLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
}


def save(
    path: Path,
    nodes: list[Any],
    inputs: dict[str, tuple[str, list[Any]]],
    outputs: dict[str, tuple[str, list[Any]]],
    weights: dict[str, np.ndarray],
    external: str | None = None,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, DATA_TYPES[kind], shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, DATA_TYPES[kind], shape) for name, (kind, shape) in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    if external is None:
        onnx.save(model, str(path))
    else:
        onnx.save(model, str(path), save_as_external_data=True, location=external, size_threshold=0)
    return path


def linear(path: Path, size: int = 4, classes: int = 3, batch: Any = "batch", external: str | None = None) -> Path:
    """Logits of a linear classifier whose weights are those of `weights_of`."""
    return save(
        path,
        [helper.make_node("MatMul", ["x", "weights"], ["y"])],
        {"x": ("float32", [batch, size])},
        {"y": ("float32", [batch, classes])},
        {"weights": weights_of(size, classes)},
        external,
    )


def weights_of(size: int = 4, classes: int = 3) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((size, classes)).astype(np.float32)


def lookup(path: Path, rows: int = 5, node: str = "") -> Path:
    """Looks up a row by number, and fails on numbers that it has no row for, in words that name the node."""
    return save(
        path,
        [helper.make_node("Gather", ["table", "number"], ["row"], name=node)],
        {"number": ("int64", ["batch"])},
        {"row": ("float32", ["batch", 2])},
        {"table": np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)},
    )


def halved(path: Path) -> Path:
    """Says that it gives one row a query, and gives two."""
    return save(
        path,
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        {"x": ("float32", ["batch", 4])},
        {"y": ("float32", ["rows", "columns"])},
        {"shape": np.array([-1, 2], dtype=np.int64)},
    )


def convolutions(path: Path, channels: int = 32, layers: int = 3, size: int = 28) -> Path:
    """Enough work to take milliseconds."""
    random = np.random.default_rng(0)
    nodes, weights, last, depth = [], {}, "x", 1
    for number in range(layers):
        weights[f"w{number}"] = random.standard_normal((channels, depth, 3, 3)).astype(np.float32) / (3 * depth)
        nodes.append(helper.make_node("Conv", [last, f"w{number}"], [f"c{number}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"]))
        last, depth = f"r{number}", channels
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["y"]))
    shape = {"x": ("float32", ["batch", 1, size, size])}
    return save(path, nodes, shape, {"y": ("float32", ["batch", channels])}, weights)
