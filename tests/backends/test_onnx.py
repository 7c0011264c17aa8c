"""The ONNX backend runs real models in reused memory, and says in a sentence what is wrong with bad ones."""

from __future__ import annotations

import importlib.util
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import helper

from stretto.backends.load import load_model
from stretto.backends.model import BackendError, BatchFailure, DeviceLost, TensorSpec
from stretto.backends.onnx import OnnxModel
from stretto.backends.onnx_session import gpu_providers, load_problem, run_problem
from stretto.backends.source import ModelSource
from tests.backends.onnx_models import convolutions, halved, linear, lookup, save, weights_of


def loaded(file: Path, **rest: object) -> OnnxModel:
    model = load_model(ModelSource(file=file, **rest))  # type: ignore[arg-type]
    assert isinstance(model, OnnxModel)
    return model


def batch_of(size: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(size).random((size, 4), dtype=np.float32)}


@pytest.fixture
def model(tmp_path: Path) -> OnnxModel:
    return loaded(linear(tmp_path / "model.onnx"))


def test_a_batch_gives_what_the_weights_say(model: OnnxModel) -> None:
    assert model.inputs == (TensorSpec("x", "float32", (4,)),)
    assert model.outputs == (TensorSpec("y", "float32", (3,)),)
    assert model.fixed_batch is None
    for size in (1, 7, 3, 32, 7):
        batch = batch_of(size)
        np.testing.assert_allclose(model.run(batch)["y"], batch["x"] @ weights_of(), rtol=1e-5)


def test_a_contiguous_array_is_taken_as_it_is(model: OnnxModel) -> None:
    batch = batch_of(8)
    model.run(batch)
    assert model._by_batch[8].bound["x"] is batch["x"]
    batch["x"][:] = 0  # the next run must see what the array holds then, not what it held
    assert not model.run(batch)["y"].any()


def test_arrays_that_are_not_contiguous_are_copied_each_time(model: OnnxModel) -> None:
    wide = np.random.default_rng(1).random((5, 8), dtype=np.float32)
    view = wide[:, ::2]
    np.testing.assert_allclose(model.run({"x": view})["y"], view @ weights_of(), rtol=1e-5)
    wide[:] = 1
    np.testing.assert_allclose(model.run({"x": view})["y"], view @ weights_of(), rtol=1e-5)


def test_buffers_are_reused_by_all_batch_sizes(model: OnnxModel) -> None:
    large, small = model.buffers(16)["x"], model.buffers(4)["x"]
    assert large.shape == (16, 4) and np.shares_memory(large, small)
    small[:] = 2.0
    first = model.run(model.buffers(4))["y"]
    np.testing.assert_allclose(first, np.full((4, 4), 2.0) @ weights_of(), rtol=1e-5)
    assert np.shares_memory(first, model.run(model.buffers(4))["y"])


def test_growing_leaves_arrays_that_are_still_held_alone(model: OnnxModel) -> None:
    small = model.buffers(2)
    small["x"][:] = 3.0
    model.buffers(64)
    np.testing.assert_allclose(model.run(small)["y"], np.full((2, 4), 3.0) @ weights_of(), rtol=1e-5)


def test_prepare_and_memory(model: OnnxModel, tmp_path: Path) -> None:
    before = model.memory_bytes
    model.prepare((1, 32))
    assert set(model._by_batch) == {1, 32}
    assert model.memory_bytes - before == 32 * (4 + 3) * 4
    assert before >= (tmp_path / "model.onnx").stat().st_size


def test_an_unloaded_model_says_so(model: OnnxModel) -> None:
    model.unload()
    with pytest.raises(BackendError, match=r"model\.onnx was unloaded"):
        model.run(batch_of(1))


def test_other_threads_run_meanwhile(tmp_path: Path) -> None:
    model = loaded(convolutions(tmp_path / "slow.onnx", channels=48))
    batch = {"x": np.ones((48, 1, 28, 28), np.float32)}
    model.run(batch)
    counted, is_running, times = 0, True, []

    def run() -> None:
        nonlocal is_running
        started = time.perf_counter()
        model.run(batch)
        times.append(time.perf_counter() - started)
        is_running = False

    thread = threading.Thread(target=run)
    thread.start()
    while is_running:
        counted += 1
    thread.join(timeout=60)
    # With Python's lock held this thread would stand still from the run's start to its end.
    assert counted > 1000 * times[0]


def test_threads_do_not_spin_when_idle(tmp_path: Path) -> None:
    model = loaded(convolutions(tmp_path / "slow.onnx"), threads=4)
    model.run({"x": np.ones((8, 1, 28, 28), np.float32)})
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.1


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"])]
    given = {"a": ("float32", ["n", 2]), "b": ("float32", ["n", 2])}
    made = {"sum": ("float32", ["n", 2]), "difference": ("float32", ["n", 2])}
    model = loaded(save(tmp_path / "two.onnx", nodes, given, made, {}))
    a, b = np.full((3, 2), 5, np.float32), np.full((3, 2), 2, np.float32)
    outputs = model.run({"b": b, "a": a})
    assert (outputs["sum"] == 7).all() and (outputs["difference"] == 3).all()
    with pytest.raises(BackendError, match=r"two\.onnx needs input b; the batch has a"):
        model.run({"a": a})
    with pytest.raises(BackendError, match="hold 3 and 2 queries"):
        model.run({"a": a, "b": b[:2]})


def test_what_does_not_fit_is_told(model: OnnxModel) -> None:
    for batch, words in (
        ({"x": np.zeros((2, 5), np.float32)}, r"input x of model\.onnx must have shape \(batch, 4\), not \(2, 5\)"),
        ({"x": np.zeros((), np.float32)}, "must have shape"),
        ({"x": np.zeros((2, 4))}, "must be float32, not float64"),
        ({"z": np.zeros((2, 4), np.float32)}, "needs input x; the batch has z"),
        (batch_of(2) | {"z": np.zeros(2)}, "has no input z; it has x"),
        ({"x": np.zeros((0, 4), np.float32)}, "needs at least one query"),
    ):
        with pytest.raises(BackendError, match=words) as caught:
            model.run(batch)
        assert not isinstance(caught.value, BatchFailure)


def test_a_fixed_batch_is_known_and_held(tmp_path: Path) -> None:
    model = loaded(linear(tmp_path / "fixed.onnx", batch=2))
    assert model.fixed_batch == 2
    assert model.run(batch_of(2))["y"].shape == (2, 3)
    with pytest.raises(BackendError, match=r"fixed\.onnx takes batches of exactly 2, not 3; export it with a dynamic"):
        model.run(batch_of(3))


def test_a_failing_batch_says_why_without_paths(tmp_path: Path) -> None:
    model = loaded(lookup(tmp_path / "lookup.onnx"))
    with pytest.raises(BatchFailure, match=r"lookup\.onnx failed on a batch of 2: .*idx=9") as caught:
        model.run({"number": np.array([0, 9])})
    assert "/" not in caught.value.reason and "\n" not in caught.value.reason
    assert model.run({"number": np.array([1])})["row"].tolist() == [[2.0, 3.0]]


def test_a_lost_device_is_no_failure_of_a_batch(tmp_path: Path) -> None:
    """What CUDA says stands in the runtime's message here, as the name of a node."""
    model = loaded(lookup(tmp_path / "lookup.onnx", node="CUDA failure 700: an illegal memory access ; GPU=0"))
    with pytest.raises(BatchFailure, match="idx=9"):
        model.run({"number": np.array([9])})
    model._on_gpu = True
    with pytest.raises(DeviceLost, match=r"under lookup\.onnx: CUDA failure 700: an illegal memory access$"):
        model.run({"number": np.array([9])})


def test_answers_of_the_wrong_size_are_refused(tmp_path: Path) -> None:
    model = loaded(halved(tmp_path / "halved.onnx"))
    with pytest.raises(BatchFailure, match=r"output y of halved\.onnx has shape \(6, 2\) for a batch of 3"):
        model.run(batch_of(3))


def test_files_that_are_no_models(tmp_path: Path) -> None:
    whole = linear(tmp_path / "whole.onnx", size=400).read_bytes()
    for name, content in (
        ("text.onnx", b"no model " * 99),
        ("cut.onnx", whole[: len(whole) // 2]),
        ("empty.onnx", b""),
    ):
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(BackendError, match=rf"{name} is no ONNX model, or is cut off or damaged; copy or export"):
            loaded(file)
    with pytest.raises(BackendError, match=r"there is no file none\.onnx"):
        loaded(tmp_path / "none.onnx")


def test_weights_in_another_file(tmp_path: Path) -> None:
    file = linear(tmp_path / "big.onnx", external="big.weights")
    assert loaded(file).run(batch_of(2))["y"].shape == (2, 3)
    weights = tmp_path / "big.weights"
    weights.write_bytes(weights.read_bytes()[:8])
    with pytest.raises(BackendError, match=r"big\.onnx keeps weights .* too short"):
        loaded(file)
    weights.unlink()
    with pytest.raises(BackendError, match=r"big\.onnx keeps weights in big\.weights, which cannot be read") as caught:
        loaded(file)
    assert str(tmp_path) not in str(caught.value)


def test_a_model_is_held_to_what_is_declared(tmp_path: Path) -> None:
    file = linear(tmp_path / "model.onnx")
    for inputs, outputs, words in (
        ((TensorSpec("input", "float32", (4,)),), (), "has no input input; it has x"),
        ((TensorSpec("x", "int64", (4,)),), (), "is float32, but int64 is declared"),
        ((TensorSpec("x", "float32", (5,)),), (), r"has shape \(batch, 4\), but \(batch, 5\) is declared"),
        ((), (TensorSpec("y", "float32", (10,)),), r"output y of model\.onnx has shape \(batch, 3\)"),
    ):
        with pytest.raises(BackendError, match=words):
            loaded(file, inputs=inputs, outputs=outputs)


def test_what_cannot_be_run_here(tmp_path: Path) -> None:
    file = linear(tmp_path / "model.onnx")
    with pytest.raises(BackendError, match="this ONNX Runtime has no CUDA; install onnxruntime-gpu"):
        loaded(file, device="cuda")
    with pytest.raises(BackendError, match="needs a model file"):
        load_model(ModelSource())


def options_on(device: str, file: Path, **more: Any) -> dict[str, dict[str, Any]]:
    """By provider, of a runtime that has CUDA."""
    runtime = SimpleNamespace(get_available_providers=lambda: ["CUDAExecutionProvider"])
    *providers, last = gpu_providers(ModelSource(file=file, device=device, **more), runtime)
    assert last == "CPUExecutionProvider"
    return dict(providers)


def test_convolutions_are_not_searched_for(tmp_path: Path) -> None:
    options = options_on("cuda:1", linear(tmp_path / "model.onnx"))
    given = options["CUDAExecutionProvider"]
    assert given["device_id"] == 1 and given["cudnn_conv_algo_search"] == "HEURISTIC"


def test_engines_are_kept_by_the_content_of_their_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime would take the engine of another model whose file, graph and tensors have the same names."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "tensorrt" or find_spec(name))
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path / "cache"))

    def folder(file: Path, device: str = "cuda", **more: Any) -> str:
        tensorrt = options_on(device, file, **more)["TensorrtExecutionProvider"]
        assert tensorrt["trt_engine_cache_enable"] is True and Path(tensorrt["trt_engine_cache_path"]).is_dir()
        return str(tensorrt["trt_engine_cache_path"])

    file = linear(tmp_path / "a" / "model.onnx", external="weights")
    first = folder(file)
    assert Path(first).parent == tmp_path / "cache" / "engines"
    assert folder(linear(tmp_path / "b" / "model.onnx", external="weights")) == first, "wherever it lies"
    assert folder(file, "cuda:1") != first, "two GPUs are two processes, which would write at once"
    takes = (TensorSpec("x", "uint8", (4,)),)
    divided = {folder(file, inputs=takes, divide_by=number) for number in (255.0, 127.5)}
    assert len(divided) == 2 and first not in divided, "the division is in the graph"
    weights = tmp_path / "a" / "weights"
    weights.write_bytes(bytes(weights.stat().st_size))
    assert folder(file) != first, "only its weights changed"
    (tmp_path / "cache2").write_text("no folder")
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path / "cache2"))
    assert options_on("cuda", file)["TensorrtExecutionProvider"] == {"device_id": 0}


def test_messages_of_the_runtime_become_sentences() -> None:
    raw = (
        "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Conv node. Status Message: "
        "/onnxruntime_src/onnxruntime/core/conv.cc:66 virtual Status Compute(int) X num_dims does not match W"
    )
    assert run_problem(raw) == "X num_dims does not match W"
    assert run_problem("") == "no reason given"
    newer = "[ONNXRuntimeError] : 1 : FAIL : Unsupported model IR version: 99, max supported IR version: 12"
    assert "newer ONNX Runtime" in load_problem("m.onnx", newer)
    outside = 'External data path validation failed. Error: "../../etc/x" escapes the model directory'
    assert load_problem("m.onnx", outside) == (
        "m.onnx keeps weights in x, outside its own folder; put that file beside the model"
    )
