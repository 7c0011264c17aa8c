"""A shelf: a model that is told to go while it is being loaded beside the work is gone when its load has ended, and a
query that a model fails on takes no other's answer.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from stretto.backends.onnx import OnnxModel
from stretto.backends.padded import Padded
from stretto.backends.source import ModelSource
from stretto.live import shelf as shelves
from stretto.live.executor import Job, Loss
from stretto.live.frames import Frame, Kind, spec_as_text
from stretto.live.shelf import ModelSpec, Report, Shelf
from stretto.live.threads import ThreadExecutor
from stretto.live.worker_process import WorkerProcess
from tests.backends.onnx_models import lookup
from tests.live.real import code, of_models

SPEC = of_models(heavy=code("HeavyToLoad")).specs[0]


def test_of_a_shelf() -> None:
    shelf = Shelf()
    assert shelf.load(SPEC)
    shelf.unload(SPEC.key)
    before = shelf.unloads(SPEC.key)
    ended: list[bool] = []
    load = threading.Thread(target=lambda: ended.append(shelf.load(SPEC, before)))
    load.start()
    shelf.unload(SPEC.key)
    load.join()
    assert ended == [False] and shelf.run(SPEC.key, ()).answers is None


def test_of_a_process() -> None:
    """It stayed, with all of its memory."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = WorkerProcess(theirs)
        before = set(threading.enumerate())
        worker._do(Frame(Kind.LOAD, 1, 1, text=spec_as_text(SPEC)))
        (load,) = set(threading.enumerate()) - before
        worker._do(Frame(Kind.UNLOAD, text=SPEC.key.encode()))
        load.join()
        assert worker._shelf._held == {} and worker._specs == {}
        worker._do(Frame(Kind.LOAD, 2, 0, text=spec_as_text(SPEC)))  # and it may come again
        assert list(worker._shelf._held) == list(worker._specs) == [SPEC.key]


class Ear:
    """What an executor tells."""

    def __init__(self) -> None:
        self.is_ready = asyncio.Event()

    def worker_ready(self, worker: int, broken: dict[str, str]) -> None:
        self.is_ready.set()

    def worker_leaving(self, worker: int) -> None: ...

    def worker_lost(self, worker: int, reason: str, loss: Loss = Loss.OWN) -> None: ...

    def job_ended(self, job: Job, report: Report) -> None: ...

    def load_ended(self, worker: int, key: str, problem: str | None, alone: bool) -> None: ...


@pytest.mark.parametrize("comes_again", [False, True])
def test_of_a_thread(comes_again: bool) -> None:
    async def work() -> None:
        loop, ear, told = asyncio.get_running_loop(), Ear(), asyncio.Event()
        executor = ThreadExecutor(0, loop, ear)
        executor.start(())
        await ear.is_ready.wait()
        executor.prepare([SPEC], lambda broken: told.set())
        executor.unload(SPEC.key)
        if comes_again:
            executor.load(SPEC, True)
        await told.wait()
        is_there = asyncio.Event()
        executor._commands.put(lambda: loop.call_soon_threadsafe(is_there.set))  # when all before it was done
        await is_there.wait()
        assert list(executor._shelf._held) == ([SPEC.key] if comes_again else [])
        await executor.stop()

    asyncio.run(asyncio.wait_for(work(), 20))


@pytest.mark.parametrize("culprits", [(5,), (0,), (2, 6)])
def test_of_a_padded_model_whose_queries_fail(
    culprits: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU. Innocent queries were blamed, and got the answers of others."""
    monkeypatch.setattr(shelves, "load_model", lambda source: Padded(OnnxModel(source)))
    source = ModelSource("onnx", lookup(tmp_path / "lookup.onnx", rows=50))
    shelf = Shelf()
    assert shelf.load(ModelSpec("net", source, "number", "int64", (), "row", "float32", (2,), 8))
    numbers = np.arange(1, 9)
    numbers[list(culprits)] = 99
    report = shelf.run("net", [numbers[:3], numbers[3:]])
    assert tuple(sorted(report.failures)) == culprits and report.answers is not None
    rest = np.delete(np.arange(8), culprits)
    np.testing.assert_array_equal(report.answers[rest, 0], 2 * numbers[rest])
    report = shelf.run("net", [np.arange(5)])
    assert not report.failures and report.answers is not None
    assert report.answers[:, 0].tolist() == [0, 2, 4, 6, 8]
