"""One model as a whole, on the machine that runs the tests: what comes out is plausible, whatever its load."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from stretto.backends.load import load_model
from stretto.backends.model import BackendError, TensorSpec
from stretto.backends.resident import peak_bytes, reset_peak, resident_bytes
from stretto.backends.source import ModelSource
from stretto.core.errors import ProfileError
from stretto.profiling import memory
from stretto.profiling.clock import SystemClock
from stretto.profiling.memory import in_this_process, measure_memory
from stretto.profiling.variant import latency_of, measure_model
from tests.backends.onnx_models import convolutions, linear


def test_a_real_model_is_measured(tmp_path: Path) -> None:
    file = convolutions(tmp_path / "model.onnx", channels=16, layers=2)
    samples = {"x": np.random.default_rng(0).random((5, 1, 28, 28), dtype=np.float32)}
    measured = measure_model(ModelSource(file=file), samples, (1, 4), budget_s=1.0)
    one, four = measured.latency.batches[1], measured.latency.batches[4]
    assert 0 < one.p50 < four.p50 and one.runs > 0
    assert measured.latency.alpha_ms > 0 and measured.load_ms > 0
    assert measured.memory.dynamic_bytes > 4 * 16 * 28 * 28 * 4  # at least the activations of one layer


def test_samples_are_what_the_model_runs_on(tmp_path: Path) -> None:
    model = load_model(ModelSource(file=linear(tmp_path / "model.onnx")))
    samples = {"x": np.arange(12, dtype=np.float32).reshape(3, 4)}
    latency_of(model, samples, (1, 8), budget_s=0.2)
    np.testing.assert_array_equal(model.buffers(8)["x"], samples["x"][np.arange(8) % 3])
    for wrong in (np.zeros((2, 5), np.float32), np.zeros((0, 4), np.float32)):
        with pytest.raises(ProfileError, match=r"do not have shape \(batch, 4\)"):
            latency_of(model, {"x": wrong}, (1,), budget_s=0.2)


def test_a_fixed_batch_is_the_only_one_measured(tmp_path: Path) -> None:
    source = ModelSource(file=linear(tmp_path / "model.onnx", batch=4))
    assert set(measure_model(source, None, (1, 4, 8), budget_s=0.2).latency.batches) == {4}
    with pytest.raises(BackendError, match="takes batches of exactly 4; measure that size"):
        measure_model(source, None, (1, 2), budget_s=0.2)


def test_memory_grows_with_the_model_and_with_the_batch(tmp_path: Path) -> None:
    small = measure_memory(ModelSource(file=linear(tmp_path / "small.onnx")), 1)
    large_file = linear(tmp_path / "large.onnx", size=4000, classes=1000)  # 16 MB of weights
    large = measure_memory(ModelSource(file=large_file), 1)
    assert large.loaded_bytes > 12e6 > small.loaded_bytes
    images = ModelSource(file=convolutions(tmp_path / "model.onnx"))
    assert measure_memory(images, 32).dynamic_bytes > 4 * measure_memory(images, 2).dynamic_bytes


def test_code_that_only_this_process_knows_is_measured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    module = ModuleType("only_here")
    module.double = lambda batch: 2 * batch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "only_here", module)
    source = ModelSource("callable", code="only_here:double", inputs=(TensorSpec("x", "float32", (1000,)),))
    assert measure_memory(source, 64).dynamic_bytes >= 0
    assert in_this_process(source, 64).loaded_bytes >= 0


def callable_in(folder: Path, body: str) -> ModelSource:
    (folder / "written.py").write_text(f"import os, signal\n\n\ndef run(batch):\n    {body}\n")
    shape = (TensorSpec("x", "float32", (4,)),)
    return ModelSource("callable", code="written:run", inputs=shape, outputs=shape, folder=folder)


def test_a_model_that_never_answers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "TIMEOUT_S", 4.0)
    with pytest.raises(ProfileError, match="did not load and answer within 4 s"):
        measure_model(callable_in(tmp_path, "while True: pass"), None, (1,), budget_s=0.2)


def test_a_model_that_ends_its_process_does_not_end_this_one(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"ended the process that loaded and ran it \(SIGSEGV\)"):
        measure_model(callable_in(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)"), None, (1,), budget_s=0.2)


def test_the_process_knows_its_memory() -> None:
    if not resident_bytes():
        pytest.skip("this system does not tell")
    before = resident_bytes()
    could_reset = reset_peak()
    held = np.ones(8_000_000)
    grown = resident_bytes() - before
    del held
    assert grown > 50e6
    if could_reset:
        assert peak_bytes() >= before + 50e6


def test_the_system_clock_counts_this_process() -> None:
    clock = SystemClock()
    before = clock.read()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    after = clock.read()
    assert after.cpu_ns - before.cpu_ns >= 40_000_000
    assert after.wall_ns - before.wall_ns >= 40_000_000
    assert after.waiting_ns >= before.waiting_ns and after.busy_ns >= before.busy_ns
    assert clock.cores >= 1 and clock.reference_ns() > 0 and clock.waiting_ns() >= 0
