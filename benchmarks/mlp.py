"""The MLP that servers are compared on: the file, a model repository of it, and requests for it as bytes.

64 → 1536 × 3 → 10, as in ../shared/peers. Its weights are random: it is there for its time, which batches shorten much.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving import ROOT, on_core

NAME = "mlp"
WIDTHS = (64, 1536, 1536, 1536, 10)
APPLICATION = """slo_ms = 50
[input]
name = "x"
shape = [64]
[output]
name = "y"
kind = "logits"
shape = [10]
[limits]
max_batch = 32
"""
VARIANT = 'accuracy = 0.9\naccuracy_source = "literature"\n'  # the figure plays no part
JSON = ["Content-Type: application/json"]


def write_mlp(path: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for layer, (narrow, wide) in enumerate(pairwise(WIDTHS)):
        weight = (rng.standard_normal((narrow, wide)) / np.sqrt(narrow)).astype(np.float32)
        weights += [numpy_helper.from_array(weight, f"w{layer}")]
        weights += [numpy_helper.from_array(np.zeros(wide, np.float32), f"b{layer}")]
        is_last = layer == len(WIDTHS) - 2
        nodes.append(helper.make_node("Gemm", [value, f"w{layer}", f"b{layer}"], ["y" if is_last else f"g{layer}"]))
        if not is_last:
            value = f"r{layer}"
            nodes.append(helper.make_node("Relu", [f"g{layer}"], [value]))
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", width])]
        for name, width in (("x", WIDTHS[0]), ("y", WIDTHS[-1]))
    ]
    graph = helper.make_graph(nodes, NAME, *ends, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@contextlib.contextmanager
def mlp_repository(model: Path) -> Iterator[Path]:
    """Profiled on the core that it is served on."""
    with tempfile.TemporaryDirectory() as folder:
        variant = Path(folder) / NAME / "variants" / NAME
        variant.mkdir(parents=True)
        (Path(folder) / NAME / "app.toml").write_text(APPLICATION)
        (variant / "variant.toml").write_text(VARIANT)
        shutil.copy(model, variant / "model.onnx")
        command = [*on_core(0), sys.executable, "-m", "stretto", "profile", folder]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        yield Path(folder)


def _values() -> list[float]:
    return [round(float(value), 4) for value in np.random.default_rng(1).random(WIDTHS[0])]


def plain_body() -> tuple[bytes, list[str]]:
    """As the bare server takes it, and the headers that go with it."""
    return json.dumps({"x": _values()}).encode(), JSON


def mlp_body(is_binary: bool) -> tuple[bytes, list[str]]:
    """By the Open Inference Protocol, and the headers that go with it."""
    tensor: dict[str, Any] = {"name": "x", "shape": [1, WIDTHS[0]], "datatype": "FP32"}
    if not is_binary:
        return json.dumps({"inputs": [tensor | {"data": _values()}]}).encode(), JSON
    raw = np.array([_values()], "<f4").tobytes()
    tensor["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + raw, [f"Inference-Header-Content-Length: {len(head)}", "Content-Type: application/octet-stream"]
