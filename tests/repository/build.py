"""Builds small repositories, with real ONNX models, for the tests of the repository and of `stretto check`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.repository.machine import Machine
from stretto.repository.profiles import MeasuredBatch, StoredProfile, file_sha256, profile_path, write_profile

HERE = Machine("Test Core 9", 4, "Linux x86_64")
KIND = "cpu-x86-64-test-core-9-4c"
CLASSES = 3
SHAPE = (1, 4)

APP = """\
slo_ms = 50
penalty = "step"
description = "three kinds of a row of four"

[input]
shape = [1, 4]

[output]
name = "probabilities"
"""


def write_model(
    path: Path,
    shape: tuple[int, ...] = SHAPE,
    *,
    batch: int | str = "batch",
    classes: int = CLASSES,
    input_name: str = "input",
    output_name: str = "probabilities",
    external: str | None = None,
    seed: int = 0,
) -> None:
    """A real classifier: flatten, multiply, softmax."""
    onnx = pytest.importorskip("onnx", reason="models for the tests are made with onnx, an extra for development")
    from onnx import TensorProto, helper, numpy_helper

    size = int(np.prod(shape))
    weights = np.random.default_rng(seed).standard_normal((size, classes)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", [input_name], ["flat"]),
            helper.make_node("MatMul", ["flat", "weights"], ["logits"]),
            helper.make_node("Softmax", ["logits"], [output_name]),
        ],
        "classifier",
        [helper.make_tensor_value_info(input_name, TensorProto.FLOAT, [batch, *shape])],
        [helper.make_tensor_value_info(output_name, TensorProto.FLOAT, [batch, classes])],
        [numpy_helper.from_array(weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    path.parent.mkdir(parents=True, exist_ok=True)
    if external is None:
        onnx.save(model, str(path))
    else:
        onnx.save(model, str(path), save_as_external_data=True, location=external, size_threshold=0)


def measured(latency_ms: float) -> MeasuredBatch:
    return MeasuredBatch(latency_ms, latency_ms * 0.98, latency_ms * 1.1, latency_ms * 1.2, 200, 0.01)


def stored(model_sha256: str, kind: str = KIND, latency_ms: float = 1.0, **changes: Any) -> StoredProfile:
    batches = {batch: measured(latency_ms * (1 + 0.5 * batch)) for batch in (1, 2, 4, 8, 16)}
    values: dict[str, Any] = {
        "machine": HERE,
        "backend": "onnx",
        "threads": 1,
        "batches": batches,
        "alpha_ms": latency_ms * 0.5,
        "beta_ms": latency_ms,
        "memory_bytes": 2_000_000,
        "dynamic_memory_bytes": 1000,
        "load_ms": 3.0,
    }
    return StoredProfile(kind=kind, model_sha256=model_sha256, **(values | changes))


@dataclass
class Built:
    """A repository under construction: one application, `rows`, with variants that tests then spoil."""

    root: Path

    @property
    def app(self) -> Path:
        return self.root / "rows"

    def variant(self, name: str) -> Path:
        return self.app / "variants" / name

    def write_app(self, text: str = APP) -> None:
        self.app.mkdir(parents=True, exist_ok=True)
        (self.app / "app.toml").write_text(text)

    def add(
        self, name: str, accuracy: float = 0.8, profile: str | None = KIND, latency_ms: float = 1.0, **model: Any
    ) -> Path:
        """A variant with a model, its accuracy and, unless told otherwise, a profile of this machine."""
        folder = self.variant(name)
        write_model(folder / "model.onnx", **model)
        self.metrics(name, accuracy=accuracy)
        if profile is not None:
            self.profile(name, profile, latency_ms)
        return folder

    def metrics(self, name: str, **content: Any) -> None:
        """Measured on the model that is there, unless told otherwise."""
        content = {"model_sha256": file_sha256(self.variant(name) / "model.onnx")} | content
        (self.variant(name) / "metrics.json").write_text(json.dumps(content, indent=1))

    def profile(self, name: str, kind: str = KIND, latency_ms: float = 1.0, **changes: Any) -> Path:
        path = profile_path(self.variant(name), kind)
        write_profile(path, stored(file_sha256(self.variant(name) / "model.onnx"), kind, latency_ms, **changes))
        return path


def build(root: Path) -> Built:
    """A sound repository of one application with two variants."""
    built = Built(root)
    built.write_app()
    (built.app / "labels.txt").write_text("left\nmiddle\nright\n")
    built.add("fast", 0.7, latency_ms=1.0)
    built.add("good", 0.9, latency_ms=4.0, seed=1)
    return built
