"""A shelf: a model that is told to go while it is being loaded beside the work is gone when its load has ended, and a
query that a model fails on takes no other's answer.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stretto.backends.onnx import OnnxModel
from stretto.backends.padded import Padded
from stretto.backends.source import ModelSource
from stretto.live import shelf as shelves
from stretto.live.executor import Job, Loss
from stretto.live.frames import Frame, Kind, spec_as_text
from stretto.live.shelf import NOT_A_NUMBER, ModelSpec, Report, Shelf, report_of
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


def reported(output: np.ndarray, rows: int, count: int, **changes: object) -> Report:
    """Of a model whose application declares two numbers for each query."""
    return report_of(replace(of_models(m=code("double")).specs[0], **changes), output, rows, count)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 3), (1, 2), (4, 2), (3, 2, 1), ()])
def test_an_answer_of_another_shape_is_none(shape: tuple[int, ...]) -> None:
    """One of them could be spread over all queries, another cut down to them."""
    report = reported(np.zeros(shape, np.float32), 3, 3)
    assert report.answers is None and sorted(report.failures) == [0, 1, 2] and "shape" in report.failures[0]


def test_of_a_batch_that_was_filled_up_only_its_queries_are_answered() -> None:
    report = reported(np.arange(8, dtype=np.float32).reshape(4, 2), 4, 3)
    assert report.answers is not None and report.answers.tolist() == [[0, 1], [2, 3], [4, 5]] and not report.failures


def test_an_answer_of_another_type_is_one_where_nothing_is_lost_but_precision() -> None:
    assert reported(np.zeros((3, 2), np.float64), 3, 3).answers is not None
    assert reported(np.zeros((3, 2), np.int64), 3, 3).answers is not None
    for wrong in (np.zeros((3, 2), complex), np.full((3, 2), "a")):
        report = reported(wrong, 3, 3)
        assert report.answers is None and "declares float32" in report.failures[2]


def test_nan_is_no_answer_where_the_largest_number_is_looked_for() -> None:
    answers = np.arange(6, dtype=np.float32).reshape(3, 2)
    answers[1, 1] = np.nan
    report = reported(answers, 3, 3, has_classes=True)
    assert report.failures == {1: NOT_A_NUMBER} and report.answers is not None
    assert report.answers[[0, 2]].tolist() == [[0, 1], [4, 5]]
    assert reported(answers, 3, 3).failures == {}, "of values NaN may be one"
    assert reported(answers[1:2], 1, 1, has_classes=True).answers is None
    infinite = np.full((3, 2), np.inf, np.float32)
    assert reported(infinite, 3, 3, has_classes=True).failures == {}


def test_nan_beside_a_query_at_fault_is_found_too() -> None:
    """Whoever is left out moves the places of those behind it."""
    shelf = Shelf()
    spec = replace(of_models(m=code("fussy")).specs[0], has_classes=True)
    assert shelf.load(spec)
    rows = np.array([[1, 1], [-1, 1], [np.nan, 1], [4, 9]], np.float32)
    report = shelf.run(spec.key, [rows])
    assert set(report.failures) == {1, 2} and report.failures[2] == NOT_A_NUMBER and "negative" in report.failures[1]
    assert report.answers is not None and report.answers[[0, 3]].tolist() == [[1, 1], [2, 3]]


def runs_of(at_fault: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Report, int]:
    """Of a batch of 16 with so many queries that the model fails on, and how often it ran."""
    shelf, runs = Shelf(), 0
    spec = replace(of_models(m=code("fussy")).specs[0], max_batch=16)
    assert shelf.load(spec)
    model = shelf._held[spec.key].model
    real = model.run

    def counted(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        nonlocal runs
        runs += 1
        return real(inputs)

    monkeypatch.setattr(model, "run", counted)
    rows = np.ones((16, 2), np.float32)
    rows[:at_fault] = -1
    return shelf.run(spec.key, [rows]), runs


def test_a_few_queries_at_fault_are_found_and_the_others_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    report, _ = runs_of(3, monkeypatch)
    assert set(report.failures) == {0, 1, 2} and report.answers is not None
    assert (report.answers[3:] == 1).all()


def test_a_model_that_fails_on_everything_is_not_run_a_hundred_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another variant could have answered in that time."""
    report, runs = runs_of(16, monkeypatch)
    assert set(report.failures) == set(range(16)) and report.answers is None
    assert runs <= 4 + 3 * 8, runs
