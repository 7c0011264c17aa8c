"""The PyTorch backend on a GPU: graphs, padding, overlap, bytes, precisions, and workers that are processes there.

Needs a CUDA device; elsewhere everything here is skipped.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.backends.load import load_model
from stretto.backends.model import BackendError, Overlapping, TensorSpec
from stretto.backends.progress import telling
from stretto.backends.rungs import rungs
from stretto.backends.source import ModelSource
from stretto.live.shelf import ModelSpec
from stretto.profiling.memory import measure_memory
from tests.backends.executors import Told, until

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
SHAPE = (3, 32, 32)
FLOATS = (TensorSpec("image", "float32", SHAPE),)
BYTES = (TensorSpec("image", "uint8", SHAPE),)


def network() -> Any:
    torch.manual_seed(1)
    nn = torch.nn
    first, second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, padding=1)
    last = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10), nn.Softmax(1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), *last).eval()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "net.pt2"
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(network(), (torch.zeros(2, *SHAPE),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    return path


def source(file: Path, **changes: Any) -> ModelSource:
    given: dict[str, Any] = {"device": "cuda:0", "inputs": FLOATS, "outputs": (TensorSpec("p", "float32", (10,)),)}
    return ModelSource("torch", file, **(given | changes))


def expected(rows: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return np.asarray(network()(torch.from_numpy(rows)).numpy())


def rows(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed + count).random((count, *SHAPE), dtype=np.float32)


def test_every_batch_up_to_the_largest_is_answered_from_graphs(file: Path) -> None:
    model: Any = load_model(source(file))
    model.prepare((24,))
    assert tuple(sorted(model._runner._graphs)) == rungs(24)
    before = torch.cuda.memory_allocated()
    for count in (1, 2, 5, 7, 13, 24):
        np.testing.assert_allclose(model.run({"image": rows(count)})["p"], expected(rows(count)), atol=2e-3)
    held = model.buffers(9)
    held["image"][...] = rows(9)
    np.testing.assert_allclose(model.run(held)["p"], expected(rows(9)), atol=2e-3)
    assert torch.cuda.memory_allocated() == before, "nothing is taken while queries wait"
    np.testing.assert_allclose(model.run({"image": rows(30)})["p"], expected(rows(30)), atol=2e-3)
    assert len(model._runner._graphs) == len(rungs(24)), "nothing is captured outside prepare"
    model.unload()


def test_two_batches_on_their_way_do_not_touch_each_other(file: Path) -> None:
    model = load_model(source(file))
    model.prepare((16,))
    assert isinstance(model, Overlapping) and model.overlaps
    for turn in range(20):
        batches = [rows(3 + turn % 12, turn), rows(16, 100 + turn)]
        parts = [(batch[:2], batch[2:]) if turn % 2 else (batch,) for batch in batches]
        waits = [model.launch(slot, {"image": each}) for slot, each in enumerate(parts)]
        for batch, wait in zip(batches, waits, strict=True):
            np.testing.assert_allclose(wait.answers()["p"], expected(batch), atol=2e-3)
    model.unload()


@pytest.mark.parametrize(("precision", "channels_last"), [("float32", None), ("float32", True), ("bfloat16", None)])
def test_bytes_stay_bytes_until_they_are_there(file: Path, precision: str, channels_last: bool | None) -> None:
    model = load_model(source(file, inputs=BYTES, divide_by=255.0, precision=precision, channels_last=channels_last))
    model.prepare((8,))
    given = np.random.default_rng(1).integers(0, 256, (6, *SHAPE)).astype(np.uint8)
    want = expected((given / 255).astype(np.float32))
    np.testing.assert_allclose(model.run({"image": given})["p"], want, atol=2e-3 if precision == "float32" else 2e-2)
    assert model.buffers(6)["image"].dtype == np.uint8
    model.unload()


def test_unloading_gives_memory_back(file: Path) -> None:
    first = load_model(source(file))
    first.prepare((8,))  # the streams of a device, and what libraries keep for each, stay
    first.unload()
    before = torch.cuda.memory_allocated()
    model = load_model(source(file))
    model.prepare((64,))
    assert model.memory_bytes > 0
    model.unload()
    assert torch.cuda.memory_allocated() - before < 1 << 20


def test_a_model_that_does_not_fit_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "huge_net.py").write_text(
        "import torch\nclass Huge(torch.nn.Module):\n"
        "    def forward(self, x):\n        return x.new_zeros(len(x), 1 << 36).sum(1, keepdim=True)\n"
        "def build():\n    return Huge()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from safetensors.torch import save_file

    save_file({}, tmp_path / "huge.safetensors")
    with pytest.raises(BackendError, match="not enough memory left on the GPU"):
        load_model(source(tmp_path / "huge.safetensors", code="huge_net:build"))


def spec_of(file: Path, **changes: Any) -> ModelSpec:
    made = source(file, **changes)
    return ModelSpec("net", made, "image", made.inputs[0].dtype, SHAPE, "p", "float32", (10,), 16)


def test_a_worker_process_answers_two_batches_given_at_once(file: Path) -> None:
    from stretto.live.executor import Job
    from stretto.live.processes import ProcessExecutor

    async def scenario() -> None:
        told = Told()
        executor = ProcessExecutor(0, asyncio.get_running_loop(), told)  # type: ignore[arg-type]
        executor.start([spec_of(file)])
        await until(lambda: told.ready is not None or told.lost)
        assert told.ready == {} and not told.lost
        for turn in range(10):
            batches = [rows(1 + turn, turn), rows(16, turn)]
            for batch in batches:
                executor.run(Job(0, 0, "net", len(batch), (), None, 0, 0, rows=list(batch[:, None])))
            await until(lambda turn=turn: len(told.ended) == 2 * turn + 2)
            for batch, (_, report) in zip(batches, told.ended[-2:], strict=True):
                assert not report.failures
                np.testing.assert_allclose(report.answers, expected(batch), atol=2e-3)
            first, second = (report for _, report in told.ended[-2:])
            assert first.ended_ns <= second.started_ns + 1_000_000, "the second is counted from when it could begin"
        assert not told.lost
        executor.unload("net")
        await executor.stop()

    asyncio.run(scenario())


def test_a_gpu_that_fails_ends_the_worker_and_not_the_server(tmp_path: Path) -> None:
    """A kernel that trips an assertion on the device leaves no use of it to its process."""
    from stretto.live.executor import Job
    from stretto.live.processes import ProcessExecutor

    class Picky(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(5, 10)

        def forward(self, number: Any) -> Any:
            return self.table(number)

    path = tmp_path / "picky.pt2"
    batch = torch.export.Dim("batch", min=1, max=64)
    torch.export.save(
        torch.export.export(Picky(), (torch.zeros(2, dtype=torch.int64),), dynamic_shapes=({0: batch},)), path
    )
    takes, gives = (TensorSpec("number", "int64", ()),), (TensorSpec("row", "float32", (10,)),)
    made = ModelSource("torch", path, device="cuda:0", inputs=takes, outputs=gives)
    spec = ModelSpec("picky", made, "number", "int64", (), "row", "float32", (10,), 4)

    async def scenario() -> None:
        told = Told()
        executor = ProcessExecutor(0, asyncio.get_running_loop(), told)  # type: ignore[arg-type]
        executor.start([spec])
        await until(lambda: told.ready is not None or told.lost)
        executor.run(Job(0, 0, "picky", 1, (), None, 0, 0, rows=[np.array([3])]))
        await until(lambda: told.ended)
        assert not told.ended[0][1].failures
        executor.run(Job(0, 0, "picky", 1, (), None, 0, 0, rows=[np.array([3_000_000])]))
        await until(lambda: told.lost)
        assert "exit code 76" in told.lost[0], "the model's doing, and not the device's"
        await executor.stop()

    asyncio.run(scenario())


def test_how_far_the_ladder_is_captured_is_told(file: Path) -> None:
    model = load_model(source(file))
    told: list[float] = []
    with telling(told.append):
        model.prepare((16,))
    steps = len(rungs(16))
    assert told == [number / steps for number in range(steps)]
    model.unload()


def test_memory_counts_what_graphs_keep_between_batches(file: Path) -> None:
    """Activations of the first layer alone are 4 MiB for 64 images, in the graphs' pool: nothing is allocated there
    when no batch runs.
    """
    uses = [measure_memory(source(file), 64).loaded_bytes for _ in range(3)]
    assert uses[-1] > 4 << 20
    assert uses[-1] == uses[-2], "what a model had is given back"
    assert measure_memory(source(file), 8).loaded_bytes < uses[-1]
