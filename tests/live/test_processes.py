"""Workers that are processes of their own, with real models, real kills and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stretto.backends.model import TensorSpec
from stretto.core.outcome import Outcome
from stretto.core.plan import Fixed
from stretto.live import crew, processes
from stretto.live.ahead import WorkerAhead
from stretto.live.arena import slot_bytes
from stretto.live.engine import Engine
from stretto.live.executors import executor_factory
from stretto.live.face.memory import FrontMemory
from stretto.live.frames import Frame, Kind
from stretto.live.generation import Served
from stretto.live.lent import lend
from stretto.live.processes import ProcessExecutor
from stretto.live.threads import ThreadExecutor
from tests.live.real import ROOT, asked, code, conserved, of_models, of_zoo, planned, sample, serving, until, within
from tests.live.scripted import plan_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
LIMIT_S = 90


@pytest.fixture(autouse=True)
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def executor_of(engine: Engine, worker: int = 0) -> ProcessExecutor:
    executor = engine.crew.members[worker].executor
    assert isinstance(executor, ProcessExecutor)
    return executor


def process_of(engine: Engine, worker: int = 0) -> int:
    process = executor_of(engine, worker)._process
    assert process is not None
    return process.pid


def ones(value: float = 1.0, rows: int = 1, size: int = 2) -> np.ndarray:
    return np.full((rows, size), value, np.float32)


def descriptors() -> int:
    gc.collect()  # what a test before held in circles
    return len(os.listdir("/proc/self/fd"))


def shared_maps() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:stretto")


def children() -> dict[int, str]:
    """Process → state, of this process's children; Z is one that nobody has waited for."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                found[int(entry)] = fields[0]
    return found


def test_answers_are_those_of_a_thread() -> None:
    served = of_zoo("mnist")
    images = sample("mnist", 4)
    names = [variant.name for variant in served.deployment.variants]
    found: dict[str, list[np.ndarray]] = {}

    async def work() -> None:
        for kind in ("thread", "process"):
            async with serving(served, executor_factory(kind)) as engine:
                assert isinstance(engine.crew.members[0].executor, ThreadExecutor | ProcessExecutor)
                requests = [await asked(engine, images, "mnist", pinned=name) for name in names]
                one = await asked(engine, images[:1], "mnist", pinned=names[0])
                assert all(request.outcome is Outcome.ON_TIME for request in (*requests, one))
                found[kind] = [np.asarray(request.answers) for request in (*requests, one)]

    within(LIMIT_S, work)
    for thread, process in zip(found["thread"], found["process"], strict=True):
        np.testing.assert_allclose(thread, process, rtol=1e-5, atol=1e-6)


def test_a_process_that_was_started_ahead_is_the_first_workers() -> None:
    served = of_models(double=code("double"))
    before = children()
    ahead = WorkerAhead()
    (early,) = children().keys() - before.keys()

    async def work() -> None:
        async with serving(served, ahead.executor) as engine:
            assert process_of(engine) == early
            assert (await asked(engine, ones())).outcome is Outcome.ON_TIME
            os.kill(early, signal.SIGKILL)
            await until(lambda: engine.crew.is_ready(0) and process_of(engine) != early)
            assert (await asked(engine, ones())).outcome is Outcome.ON_TIME

    try:
        within(LIMIT_S, work)
    finally:
        ahead.close()
    assert children().keys() <= before.keys()


def test_a_process_that_nobody_asked_for_is_ended() -> None:
    before, held = children(), descriptors()
    ahead = WorkerAhead()
    ahead.close()
    ahead.close()
    assert children().keys() <= before.keys() and descriptors() <= held  # what a test before left may be gone


def test_killed_while_it_runs() -> None:
    """Five times: the query is tried again or fails with a reason, the process comes back, and nothing leaks."""
    served = of_models(slow=code("slow"))

    async def work() -> None:
        async with serving(served, ProcessExecutor) as engine:
            await asked(engine, ones())
            before = descriptors(), shared_maps(), children()
            for number in range(5):
                old = process_of(engine)
                request = asked(engine, ones(number))
                await until(lambda: engine.crew.is_busy(0))
                os.kill(old, signal.SIGKILL)
                ended = await request
                assert ended.outcome is Outcome.ON_TIME and ended.answers is not None
                assert ended.answers.tolist() == [[3.0 * number] * 2]
                assert process_of(engine) != old
            assert (engine.crew.restarts, conserved(engine)) == (5, True)
            after = descriptors(), shared_maps(), children()
            assert after[0] <= before[0] and after[1] <= before[1]  # fewer, where a test before let go meanwhile
            assert len(after[2]) <= len(before[2])
            assert "Z" not in {state for process, state in after[2].items() if process not in before[2]}

    files, maps, others = descriptors(), shared_maps(), children()
    within(LIMIT_S, work)
    assert descriptors() <= files and shared_maps() <= maps
    assert "Z" not in {state for process, state in children().items() if process not in others}


def test_a_process_that_somebody_killed_is_no_models_fault_though_it_was_told_more_meanwhile() -> None:
    """Regression: what could not be said to a process that was gone already counted as if we had ended it, and the
    model that ran there was set aside after the second kill.
    """
    served = of_models(slow=code("slow"))
    blamed: list[str] = []

    async def work() -> None:
        async with serving(served, ProcessExecutor) as engine:
            engine.on_blamed = lambda key, fault, reason, is_certain: blamed.append(reason)
            await asked(engine, ones())
            old = process_of(engine)
            first = asked(engine, ones())
            await until(lambda: engine.crew.is_busy(0))
            os.kill(old, signal.SIGKILL)
            while children().get(old, "Z") != "Z":  # before this loop has another turn
                time.sleep(0.01)
            second = asked(engine, ones())
            assert {(await first).outcome, (await second).outcome} == {Outcome.ON_TIME}
            assert process_of(engine) != old

    within(LIMIT_S, work)
    assert not blamed


def test_a_query_that_ends_its_process_fails_with_a_reason() -> None:
    served = of_models(crash=code("crash"))

    async def work() -> None:
        async with serving(served, ProcessExecutor) as engine:
            poison = await asked(engine, ones(5000))
            assert poison.outcome is Outcome.FAILED and "lost" in poison.problem
            assert engine.crew.restarts == 2
            fine = await asked(engine, ones(1))
            assert fine.answers is not None and fine.answers.tolist() == [[2.0, 2.0]]

    within(LIMIT_S, work)


def test_batches_do_not_wait_long_for_a_load_beside_them() -> None:
    """Whoever launches kernels gives Python's lock away with each, and waits for it as long as this says."""

    async def work() -> None:
        async with serving(of_models(patience=code("patience")), ProcessExecutor) as engine:
            answered = await asked(engine, ones())
            assert answered.answers is not None and 0 < answered.answers.max() <= 0.0005

    within(LIMIT_S, work)


def test_answers_that_are_not_what_was_declared_fail_alone() -> None:
    """A model that gives fractions where whole numbers are declared takes no worker with it."""
    served = of_models(wrong=replace(code("double"), outputs=(TensorSpec("y", "int64", (2,)),)))

    async def work() -> None:
        async with serving(served, ProcessExecutor) as engine:
            wrong = await asked(engine, ones())
            assert wrong.outcome is Outcome.FAILED and "lost" not in wrong.problem
            assert engine.crew.restarts == 0 and engine.crew.ready_count == 1

    within(LIMIT_S, work)


def test_a_process_that_hangs_is_killed() -> None:
    served = of_models(hang=code("hang"))

    async def work() -> None:
        async with serving(served, ProcessExecutor, hang_s=0.3) as engine:
            stuck = await asked(engine, ones(1))
            assert stuck.outcome is Outcome.FAILED
            assert (await asked(engine, ones(0))).outcome is Outcome.ON_TIME

    within(LIMIT_S, work)


def test_shared_memory_grows_while_batches_run() -> None:
    small = of_models(slow=code("slow"))
    large = of_models(slow=code("slow"), large=code("double", 300_000))
    assert slot_bytes(large.specs) > 2 * slot_bytes(small.specs)
    mapped = shared_maps()  # by other tests

    async def work() -> None:
        async with serving(small, ProcessExecutor) as engine:
            running = asked(engine, ones(1, 3))
            await until(lambda: engine.crew.is_busy(0))
            held = asyncio.ensure_future(engine.succession.hold(large))
            during = asked(engine, ones(2))
            assert await held == {}
            assert (await running).answers.tolist() == [[3.0, 3.0]] * 3
            assert (await during).answers.tolist() == [[6.0, 6.0]]
            engine.succession.replace(large, planned(engine, large, plan_for(large, select=Fixed(0))))
            await until(lambda: len(engine.generations()) == 1)
            rows = np.random.default_rng(1).random((8, 300_000), np.float32)
            sent = [asked(engine, rows[n : n + 1], pinned="large") for n in range(8)]
            for number, request in enumerate(sent):
                answers = (await request).answers
                np.testing.assert_array_equal(answers[0], rows[number] * 2)
            assert executor_of(engine)._old_arenas == [] and shared_maps() == mapped + 1

    within(LIMIT_S, work)


def test_models_that_are_gone_are_forgotten() -> None:
    """What a worker was told to hold used to be remembered for ever."""

    def version(number: int) -> Served:
        made = of_models(double=code("double"))
        return replace(made, specs=(replace(made.specs[0], key=f"app/double@{number}"),))

    async def work() -> None:
        async with serving(version(0), ProcessExecutor) as engine:
            for number in range(1, 6):
                later = version(number)
                assert await engine.succession.hold(later) == {}
                engine.succession.replace(later, planned(engine, later, plan_for(later)))
                assert (await asked(engine, ones())).outcome is Outcome.ON_TIME
            assert list(executor_of(engine)._orders.specs) == ["app/double@5"]

    within(LIMIT_S, work)


def test_a_model_that_cannot_be_loaded() -> None:
    served = of_models(double=code("double"), missing=code("there_is_none"))
    told: dict[str, str] = {}

    async def work() -> None:
        async with serving(served, ProcessExecutor, ready=0) as engine:
            engine.on_broken = lambda broken: bool(told.update(broken))
            await until(lambda: engine.crew.ready_count == 1)
            assert list(told) == ["app/missing@1"]
            lost = await asked(engine, ones(), pinned="missing")
            assert lost.outcome is Outcome.FAILED
            assert (await asked(engine, ones())).outcome is Outcome.ON_TIME

    within(LIMIT_S, work)


def test_what_was_given_is_finished_at_the_end() -> None:
    served = of_models(slow=code("slow"))

    async def work() -> None:
        async with serving(served, ProcessExecutor) as engine:
            request = asked(engine, ones())
            await until(lambda: engine.crew.is_busy(0))
            process = process_of(engine)
        ended = await request
        assert ended.outcome is Outcome.ON_TIME and ended.answers is not None
        assert process not in children()

    within(LIMIT_S, work)


def test_a_process_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where not even a pair of sockets is to be had; the worker used to be gone for good."""
    served = of_models(double=code("double"))
    failing = {"sockets": 1, "process": 1}

    def socketpair() -> tuple[socket.socket, socket.socket]:
        if failing["sockets"]:
            failing["sockets"] -= 1
            raise OSError(24, "Too many open files")
        return socket._socketpair()  # type: ignore[attr-defined]

    real = subprocess.Popen

    def popen(*values: object, **named: object) -> object:
        if failing["process"]:
            failing["process"] -= 1
            raise OSError(12, "Cannot allocate memory")
        return real(*values, **named)  # type: ignore[call-overload]

    async def work() -> None:
        before = descriptors()
        monkeypatch.setattr(socket, "_socketpair", socket.socketpair, raising=False)
        monkeypatch.setattr(processes.socket, "socketpair", socketpair)
        monkeypatch.setattr(processes.subprocess, "Popen", popen)
        engine_served = served
        async with serving(engine_served, ProcessExecutor, ready=0) as engine:
            await until(lambda: engine.crew.restarts == 2)
            await until(lambda: engine.crew.ready_count == 1)
            assert (await asked(engine, ones())).outcome is Outcome.ON_TIME
        assert descriptors() <= before + 1

    within(LIMIT_S, work)


def test_a_worker_process_ends_when_its_server_does() -> None:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-m", "stretto.live.worker_process", str(theirs.fileno())], pass_fds=(theirs.fileno(),)
    )
    theirs.close()
    ours.settimeout(60)
    assert ours.recv(100)  # it is there
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # a group's signals are not for it
        process.send_signal(number)
    assert process.poll() is None
    ours.close()
    assert process.wait(30) == 0


def test_requests_in_memory_that_the_process_sees_are_told_by_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server copies none of their rows. Where one of a batch lies elsewhere, all go the usual way."""
    said: list[tuple[int, int]] = []
    say = ProcessExecutor._say

    def noting(self: ProcessExecutor, frame: Frame) -> None:
        said.append((frame.kind, frame.c))
        say(self, frame)

    monkeypatch.setattr(ProcessExecutor, "_say", noting)

    async def work() -> None:
        memory = lend(FrontMemory.made(4096))
        async with serving(of_models(double=code("double")), ProcessExecutor) as engine:
            lying = memory.array(128, "float32", (3, 2))
            lying[...] = np.arange(6).reshape(3, 2)
            for inputs, kind in ((lying, Kind.RUN_LYING), (lying[1:2], Kind.RUN_LYING), (lying.copy(), Kind.RUN)):
                said.clear()
                request = await asked(engine, inputs)
                assert request.outcome is Outcome.ON_TIME and {kind for kind, _ in said} == {kind}
                np.testing.assert_array_equal(request.answers, 2 * inputs)
            last = lying[2:]
            for third, kind in ((last, Kind.RUN_LYING), (last.copy(), Kind.RUN)):
                said.clear()
                together = [lying[:1], lying[:2], third, lying[1:]]
                requests = await asyncio.gather(*(asked(engine, inputs) for inputs in together))
                assert max(said, key=lambda one: one[1])[0] == kind and any(rows > 2 for _, rows in said)
                for request, inputs in zip(requests, together, strict=True):
                    np.testing.assert_array_equal(request.answers, 2 * inputs)

    within(LIMIT_S, work)
