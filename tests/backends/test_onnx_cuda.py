"""ONNX models on a GPU: the same ladder and the same answers as on the processor, bytes divided there, memory told.

Needs ONNX Runtime with CUDA and a device of it; elsewhere everything here is skipped.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from stretto.backends.load import load_model
from stretto.backends.model import BatchFailure, TensorSpec
from stretto.backends.onnx import OnnxModel
from stretto.backends.progress import telling
from stretto.backends.rungs import rungs
from stretto.backends.source import ModelSource
from stretto.live.shelf import ModelSpec
from stretto.profiling.memory import measure_memory
from tests.backends.executors import Told, until
from tests.backends.onnx_models import convolutions, save

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(
        "CUDAExecutionProvider" not in onnxruntime.get_available_providers() or not torch.cuda.is_available(),
        reason="there is no ONNX Runtime with CUDA here, or no CUDA device",
    ),
]
SHAPE = (1, 28, 28)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convolutions(tmp_path_factory.mktemp("onnx") / "net.onnx")


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).random((count, *SHAPE), dtype=np.float32)


def expected(file: Path, batch: np.ndarray) -> np.ndarray:
    return np.array(load_model(ModelSource(file=file)).run({"x": batch})["y"])


def test_every_batch_runs_padded_and_gives_what_the_processor_gives(file: Path) -> None:
    model: Any = load_model(ModelSource(file=file, device="cuda:0"))
    told: list[float] = []
    with telling(told.append):
        model.prepare((24,))
    assert len(told) == len(rungs(24)), "how far the ladder is ready is told"
    inside = model._model
    assert isinstance(inside, OnnxModel) and all(
        session.get_providers()[0] == "CUDAExecutionProvider" for session in inside._sessions.values()
    )
    before = torch.cuda.mem_get_info(0)[0]
    for count in (1, 2, 5, 7, 13, 24):
        np.testing.assert_allclose(model.run({"x": rows(count)})["y"], expected(file, rows(count)), atol=5e-3)
    held = model.buffers(9)
    held["x"][...] = rows(9)
    np.testing.assert_allclose(model.run(held)["y"], expected(file, rows(9)), atol=5e-3)
    assert set(inside._sessions) == set(rungs(24)), "no other size is ever met"
    assert torch.cuda.mem_get_info(0)[0] == before, "nothing is taken while queries wait"
    model.unload()


def test_bytes_are_divided_on_the_gpu(file: Path) -> None:
    declared = (TensorSpec("x", "uint8", SHAPE),)
    model = load_model(ModelSource(file=file, device="cuda:0", inputs=declared, divide_by=255.0))
    model.prepare((8,))
    given = np.random.default_rng(1).integers(0, 256, (6, *SHAPE)).astype(np.uint8)
    assert model.buffers(6)["x"].dtype == np.uint8
    want = expected(file, (given / 255).astype(np.float32))
    np.testing.assert_allclose(model.run({"x": given})["y"], want, atol=5e-3)
    model.unload()


def test_a_batch_that_needs_more_than_the_gpu_has_fails_alone(tmp_path: Path) -> None:
    """Each query is spread over as many numbers as it says: a billion of them are 4 GB."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Reshape", ["most", "flat"], ["count"]),
        helper.make_node("Concat", ["one", "count"], ["shape"], axis=0),
        helper.make_node("Expand", ["number", "shape"], ["wide"]),
        helper.make_node("Exp", ["wide"], ["powers"]),
        helper.make_node("ReduceMean", ["powers"], ["mean"], keepdims=1),
        helper.make_node("Cast", ["x"], ["floats"], to=1),
        helper.make_node("Add", ["floats", "mean"], ["y"]),
    ]
    weights = {"flat": np.array([1]), "one": np.array([1000]), "number": np.zeros((1, 1), np.float32)}
    file = save(tmp_path / "m.onnx", nodes, {"x": ("int64", ["n", 1])}, {"y": ("float32", ["n", 1])}, weights)
    model = load_model(ModelSource(file=file, device="cuda:0"))
    assert model.run({"x": np.array([[3]])})["y"].tolist() == [[4.0]]
    with pytest.raises(BatchFailure, match="not enough memory left on the GPU"):
        model.run({"x": np.array([[10**9]])})
    assert model.run({"x": np.array([[5]])})["y"].tolist() == [[6.0]], "the next one is answered"
    model.unload()


def test_memory_is_measured_and_given_back(file: Path) -> None:
    uses = [measure_memory(ModelSource(file=file, device="cuda:0"), 64).loaded_bytes for _ in range(3)]
    assert uses[-1] > 1 << 20
    assert abs(uses[-1] - uses[-2]) <= 4 << 20, "what a model had is given back"


def test_a_worker_process_serves_it(file: Path) -> None:
    from stretto.live.executor import Job
    from stretto.live.processes import ProcessExecutor

    made = ModelSource(file=file, device="cuda:0")
    spec = ModelSpec("net", made, "x", "float32", SHAPE, "y", "float32", (32,), 16)

    async def scenario() -> None:
        told = Told()
        executor = ProcessExecutor(0, asyncio.get_running_loop(), told)  # type: ignore[arg-type]
        executor.start([spec])
        await until(lambda: told.ready is not None or told.lost)
        assert told.ready == {} and not told.lost
        for turn, count in enumerate((1, 5, 16)):
            batch = rows(count)
            executor.run(Job(0, 0, "net", count, (), None, 0, 0, rows=list(batch[:, None])))
            await until(lambda turn=turn: len(told.ended) == turn + 1)
            report = told.ended[-1][1]
            assert not report.failures
            np.testing.assert_allclose(report.answers, expected(file, batch), atol=5e-3)
        await executor.stop()

    asyncio.run(scenario())
