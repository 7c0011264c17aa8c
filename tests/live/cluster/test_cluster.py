"""Scheduler, workers and front ends that are not one process: the same answers, one outcome for each query, and every
part may be lost and come back.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from stretto.core.outcome import Outcome
from stretto.live import crew
from stretto.live.cluster.messages import Order
from stretto.live.executor import Job
from stretto.live.face import front as face_front
from stretto.live.face.link import Link
from stretto.live.face.messages import Kind
from stretto.live.requests import Request
from stretto.repository.machine import accelerators
from tests.live.bad_repository import add
from tests.live.cluster.joined import (
    Scheduler,
    children_of,
    free_endpoint,
    front_end,
    load,
    scheduler,
    worker_processes,
)
from tests.live.real import conserved, until, within
from tests.live.test_service import ROWS, service_of
from tests.repository.build import APP, KIND, Built, build

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
KEY = b"a key of some length"
ENDED_WELL = {Outcome.ON_TIME, Outcome.LATE}


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return build(tmp_path / "models")


@pytest.fixture(autouse=True)
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "LONGEST_PAUSE_S", 0.1)


def counted(there: Scheduler) -> tuple[int, Counter[Outcome]]:
    engine = there.service.engine
    submitted, outcomes = engine.books.totals(engine.generations())["rows"]
    return submitted, Counter({Outcome(number): int(count) for number, count in enumerate(outcomes) if count})


@pytest.mark.parametrize("key", [None, KEY])
def test_answers_are_those_of_one_process(built: Built, tmp_path: Path, key: bytes | None) -> None:
    key_file = tmp_path / "key"
    key_file.write_bytes(KEY.replace(b" ", b"-") if key else b"")
    key = key and KEY.replace(b" ", b"-")

    async def work() -> None:
        endpoint = free_endpoint()
        given = ("--key-file", str(key_file)) if key else ()
        with worker_processes(endpoint, 1, *given):
            async with scheduler(built.root, endpoint, key=key) as there, front_end(built.root, endpoint, key) as front:
                await front.ready()
                rng = np.random.default_rng(1)
                inputs = [rng.random((1 + n % 4, *ROWS.shape[1:]), np.float32) for n in range(12)]
                async with service_of(built.root) as alone:
                    for rows in inputs:
                        request = await front.ask(rows, pinned="good")
                        assert request.outcome is Outcome.ON_TIME and request.variants == ["good"]
                        direct = Request("rows", rows, 10**10, lambda ended: None, pinned="good")
                        alone.engine.submit(direct)
                        await until(lambda direct=direct: direct.outcome is not None)
                        np.testing.assert_array_equal(request.answers, direct.answers)
                        assert request.accuracy_sum == direct.accuracy_sum and request.run_ns > 0
                together = [await each for each in [front.ask(rows) for rows in inputs * 5]]
                assert any(each.batch > 1 for each in together if each.outcome in ENDED_WELL)
                assert conserved(there.service.engine) and there.service.engine.waiting == 0

    within(60, work)


def test_two_front_ends_and_two_workers(built: Built) -> None:
    async def work() -> None:
        endpoint = free_endpoint()
        with worker_processes(endpoint, 2) as processes:
            async with (
                scheduler(built.root, endpoint, workers=2) as there,
                front_end(built.root, endpoint) as one,
                front_end(built.root, endpoint) as two,
            ):
                await one.ready(2)
                await two.ready(2)
                ended = await asyncio.gather(load(one, ROWS, 1.0), load(two, 2 * ROWS, 1.0))
                assert {process.pid for process in processes} == there.pids()
                first, second = (await one.ask(ROWS)).answers, (await one.ask(2 * ROWS)).answers
                for requests, answers in zip(ended, (first, second), strict=True):
                    assert len(requests) > 50
                    for request in requests:
                        if request.outcome in ENDED_WELL and request.variants == ["good"]:
                            np.testing.assert_allclose(request.answers, answers, rtol=1e-5)
                submitted, outcomes = counted(there)
                assert submitted == sum(map(len, ended)) + 2 == sum(outcomes.values())
                assert outcomes[Outcome.ON_TIME] > 0.9 * submitted

    within(60, work)


@pytest.mark.parametrize("whom", ["worker", "its process"])
def test_a_worker_is_killed_under_load(built: Built, whom: str) -> None:
    """Its queries are tried again on the other; the plan shrinks, and grows when it is back."""

    async def work() -> None:
        endpoint = free_endpoint()
        with worker_processes(endpoint, 2) as processes:
            async with scheduler(built.root, endpoint, workers=2) as there, front_end(built.root, endpoint) as front:
                await front.ready(2)
                loading = asyncio.create_task(load(front, ROWS, 2.5, 0.002, slack_ms=2000.0))
                await asyncio.sleep(0.5)
                (child,) = children_of(processes[0].pid)
                os.kill(processes[0].pid if whom == "worker" else child, signal.SIGKILL)
                await until(lambda: front.service.engine.directory.workers == 1)
                if whom == "worker":
                    with worker_processes(endpoint):
                        await front.ready(2)
                        ended = await loading
                else:
                    await front.ready(2)
                    assert there.pids() == {process.pid for process in processes}
                    ended = await loading
                assert {request.outcome for request in ended} <= ENDED_WELL
                submitted, outcomes = counted(there)
                assert submitted == len(ended) == sum(outcomes.values()) and conserved(there.service.engine)

    within(60, work)


def test_a_worker_that_is_told_to_end_finishes_what_it_has(tmp_path: Path) -> None:
    """It is given nothing more, nothing is tried twice for it, and the next one has its place."""
    add(tmp_path / "models", "slowly", "slow", slo_ms=20_000.0)
    rows = np.ones((1, 1, 4), np.float32)

    async def work() -> None:
        endpoint = free_endpoint()
        with worker_processes(endpoint) as (process,):
            async with (
                scheduler(tmp_path / "models", endpoint) as there,
                front_end(tmp_path / "models", endpoint) as front,
            ):
                await front.ready()
                engine, lost = there.service.engine, list[Job]()
                left = engine.losses.left
                engine.losses.left = lambda worker, jobs: (lost.extend(jobs), left(worker, jobs))  # type: ignore
                first = front.ask(rows, "slowly", slack_ms=20_000.0)
                await until(lambda: engine.crew.is_busy(0))
                process.send_signal(signal.SIGTERM)
                await until(lambda: engine.crew.ready_count == 0)
                assert first.request.outcome is None and engine.crew.is_busy(0)  # it is leaving, and still at it
                later = front.ask(rows, "slowly", slack_ms=20_000.0)
                assert (await first).outcome is Outcome.ON_TIME
                await until(lambda: process.poll() is not None)
                assert process.returncode == 0 and later.request.outcome is None
                with worker_processes(endpoint):
                    assert (await later).outcome is Outcome.ON_TIME
                assert not lost and engine.crew.restarts == 0 and conserved(engine)

    within(60, work)


def test_a_worker_goes_on_at_sighup_and_ends_at_once_without_a_scheduler(built: Built) -> None:
    async def work() -> None:
        endpoint = free_endpoint()
        with worker_processes(endpoint) as (process,):
            async with scheduler(built.root, endpoint), front_end(built.root, endpoint) as front:
                await front.ready()
                process.send_signal(signal.SIGHUP)  # it has nothing to read anew
                for _ in range(20):
                    assert (await front.ask(ROWS, slack_ms=5_000.0)).outcome is Outcome.ON_TIME
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            await until(lambda: process.poll() is not None)
            assert process.returncode == 0

    within(60, work)


@pytest.mark.skipif(bool(accelerators()), reason="there is a GPU here, which would be used")
def test_a_worker_with_a_gpu_has_the_place_of_one_and_says_what_its_machine_lacks(built: Built) -> None:
    """Whichever GPU of its machine that is; models are tried there, because the scheduler has none."""

    async def work() -> None:
        endpoint = free_endpoint()
        places = {"workers": 0, "worker": (f"cuda*2,kind={KIND}",)}
        with worker_processes(endpoint, 1, "--device", "cuda:1") as (process,):
            async with scheduler(built.root, endpoint, **places) as there:
                entries = there.service.offer.quarantine.entries
                await until(lambda: len(entries) == 2)
                assert all("has no CUDA" in entry.reason for entry in entries.values())
                (worker,) = there.roster.workers.values()
                assert worker.hello.device == "cuda:1" and not worker.is_free and process.poll() is None

    within(60, work)


def test_workers_that_are_lost_leave_no_descriptor_behind(built: Built) -> None:
    """Of scheduler and front end, which are this process; `priced` has nothing made in another one."""

    async def work() -> None:
        endpoint = free_endpoint()
        async with scheduler(built.root, endpoint, planner="priced") as there, front_end(built.root, endpoint) as front:
            held: list[int] = []
            for _ in range(3):
                with worker_processes(endpoint) as (process,):
                    await front.ready()
                    assert (await front.ask(ROWS)).outcome in ENDED_WELL
                    process.kill()
                    await until(lambda: not there.roster.workers and front.service.engine.directory.workers == 0)
                    await until(lambda: not front.service.engine._store._workers)  # type: ignore[attr-defined]
                held.append(len(os.listdir("/proc/self/fd")))
            assert held[-1] <= held[0]

    within(90, work)


def test_a_silent_worker_is_lost_and_comes_back(built: Built) -> None:
    async def work() -> None:
        endpoint = free_endpoint()
        with worker_processes(endpoint) as (process,):
            async with scheduler(built.root, endpoint) as there, front_end(built.root, endpoint) as front:
                await front.ready()
                (child,) = children_of(process.pid)
                began = asyncio.get_running_loop().time()
                process.send_signal(signal.SIGSTOP)
                await until(lambda: there.service.engine.crew.ready_count == 0)
                assert asyncio.get_running_loop().time() - began < 3  # a second, on a machine with nothing else to do
                process.send_signal(signal.SIGCONT)
                await front.ready()
                assert (await front.ask(ROWS)).outcome is Outcome.ON_TIME
                assert children_of(process.pid) == [child]  # with the models that it had

    within(60, work)


def test_a_scheduler_goes_and_the_next_finds_everything_as_it_was(built: Built) -> None:
    async def work() -> None:
        endpoint = free_endpoint()
        with worker_processes(endpoint, 2) as processes:
            async with front_end(built.root, endpoint) as front:
                async with scheduler(built.root, endpoint, workers=2) as there:
                    await front.ready(2)
                    children = [children_of(process.pid) for process in processes]
                    loading = asyncio.create_task(load(front, ROWS, 1.0, 0.0))
                    await asyncio.sleep(0.5)
                    await until(lambda: there.service.engine.waiting > 0 or loading.done())
                ended = await loading
                others = [each for each in ended if each.refusal == "unavailable"]
                assert len(others) > 0 and {each.outcome for each in others} == {Outcome.FAILED}
                assert all(each.answers is not None for each in ended if each.outcome in ENDED_WELL)
                assert not front.service.is_ready() and front.service.files == {}
                with pytest.raises(KeyError):
                    front.ask(ROWS)
                async with scheduler(built.root, endpoint, workers=2) as there:
                    await front.ready(2)
                    await until(lambda: counted(there)[0] > 0)
                    told = counted(there)[0]  # what ended without a scheduler, and nothing else
                    assert len(others) <= told <= len(ended)
                    assert (await front.ask(ROWS)).outcome is Outcome.ON_TIME
                    assert [worker.hello.holds for worker in there.roster.workers.values()] == [
                        frozenset(spec.key for spec in there.service.engine.generation.served.specs)
                    ] * 2
                    assert children == [children_of(process.pid) for process in processes]
                    assert counted(there)[0] == told + 1 and conserved(there.service.engine)

    within(90, work)


def test_a_link_that_was_lost_alone_counts_nothing_twice(built: Built) -> None:
    """The same scheduler: it cancels what the front end ends as unavailable."""

    async def work() -> None:
        endpoint = free_endpoint()
        with worker_processes(endpoint):
            async with scheduler(built.root, endpoint) as there, front_end(built.root, endpoint) as front:
                await front.ready()
                waiting = [front.ask(ROWS) for _ in range(100)]
                await until(lambda: there.service.engine.waiting > 0)
                (link,) = [each.link for each in there.scheduling.desk.fronts.values()]
                link.close()
                unsent = [each.request.outcome for each in waiting]
                assert unsent.count(None) > 0
                ended = [await each for each in waiting]
                await front.ready()
                assert (await front.ask(ROWS)).outcome is Outcome.ON_TIME
                submitted, outcomes = counted(there)
                assert submitted == len(ended) + 1 == sum(outcomes.values())
                assert conserved(there.service.engine)

    within(60, work)


@pytest.mark.parametrize("has_answer", [False, True])
def test_what_clients_heard_counts_where_the_word_of_the_end_was_lost(built: Built, has_answer: bool) -> None:
    """The scheduler counts an answer, and the link breaks before the front end hears of it. Whether its client had the
    answer depends on whether the worker's came.
    """

    async def work() -> None:
        endpoint = free_endpoint()
        with worker_processes(endpoint):
            async with scheduler(built.root, endpoint) as there, front_end(built.root, endpoint) as front:
                await front.ready()
                store, desk = front.service.engine._store, there.scheduling.desk
                answered = store._answered  # type: ignore[attr-defined]
                if not has_answer:
                    store._answered = lambda *given: None  # type: ignore[attr-defined]
                (link,) = [each.link for each in desk.fronts.values()]
                send = link.send
                link.send = lambda kind, payload=b"": kind == Kind.ENDED or send(kind, payload)  # type: ignore
                asked = front.ask(ROWS)
                await until(lambda: counted(there) == (1, {Outcome.ON_TIME: 1}))
                await until(lambda: not has_answer or not any(each.left for each in store._kept.values()))  # type: ignore
                link.close()
                request = await asked
                assert (request.outcome is Outcome.ON_TIME) == has_answer == (request.refusal != "unavailable")
                assert request.outcome is not None
                await until(lambda: counted(there) == (1, {request.outcome: 1}))
                store._answered = answered  # type: ignore[attr-defined]
                await front.ready()
                assert (await front.ask(ROWS)).outcome is Outcome.ON_TIME
                assert counted(there)[0] == 2 and conserved(there.service.engine)

    within(60, work)


def test_an_answer_that_came_without_the_scheduler_is_no_cancelled_query(built: Built) -> None:
    """The worker's word does not reach the scheduler, which takes the query back with the front end's link."""

    async def work() -> None:
        endpoint = free_endpoint()
        with worker_processes(endpoint):
            async with scheduler(built.root, endpoint) as there, front_end(built.root, endpoint) as front:
                await front.ready()
                (worker,) = there.roster.workers.values()
                assert worker.executor is not None
                heard, kept = worker.executor.heard, list[bytes]()

                def hold_back(kind: int, payload: memoryview) -> None:
                    kept.append(bytes(payload)) if kind == Order.ENDED else heard(kind, payload)

                worker.executor.heard = hold_back  # type: ignore[method-assign]
                asked = front.ask(ROWS)
                await until(lambda: bool(kept))
                (link,) = [each.link for each in there.scheduling.desk.fronts.values()]
                link.close()
                assert counted(there) == (1, {Outcome.DROPPED_CANCELLED: 1})
                assert (await asked).outcome is Outcome.ON_TIME
                await until(lambda: counted(there) == (1, {Outcome.ON_TIME: 1}))
                worker.executor.heard = heard  # type: ignore[method-assign]
                heard(Order.ENDED, memoryview(kept[0]))
                await front.ready()
                assert (await front.ask(ROWS)).outcome is Outcome.ON_TIME
                assert conserved(there.service.engine)

    within(60, work)


def test_a_front_end_that_is_gone_has_its_queries_cancelled(built: Built) -> None:
    async def work() -> None:
        endpoint = free_endpoint()
        with worker_processes(endpoint):
            async with scheduler(built.root, endpoint) as there, front_end(built.root, endpoint) as other:
                async with front_end(built.root, endpoint) as front:
                    await front.ready()
                    for _ in range(100):
                        front.ask(ROWS)
                    await until(lambda: there.service.engine.waiting > 0)
                await until(lambda: there.service.engine.waiting == 0 and len(there.scheduling.desk.fronts) == 1)
                assert counted(there)[1][Outcome.DROPPED_CANCELLED] > 0
                await other.ready()
                assert (await other.ask(ROWS)).outcome is Outcome.ON_TIME
                assert conserved(there.service.engine)

    within(60, work)


def test_tensors_that_do_not_come_fail_their_rows_alone(built: Built) -> None:
    """One front end sends nothing where it should; the batch goes on without it."""

    async def work() -> None:
        endpoint = free_endpoint()
        with worker_processes(endpoint):
            async with (
                scheduler(built.root, endpoint) as there,
                front_end(built.root, endpoint) as good,
                front_end(built.root, endpoint) as bad,
            ):
                await good.ready()
                await bad.ready()
                bad.service.engine._store._send = lambda *given: None  # type: ignore[attr-defined]
                one, two = bad.ask(ROWS, slack_ms=1500.0), good.ask(ROWS, slack_ms=20_000.0)
                assert (await two).outcome in ENDED_WELL
                request = await one
                assert request.outcome is Outcome.FAILED and "tensors" in request.problem
                assert conserved(there.service.engine)

    within(60, work)


def test_answers_that_are_lost_on_their_way_are_counted_as_failed(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(face_front, "ANSWERS_S", 0.1)

    async def work() -> None:
        endpoint = free_endpoint()
        with worker_processes(endpoint):
            async with scheduler(built.root, endpoint) as there, front_end(built.root, endpoint) as front:
                await front.ready()
                store = front.service.engine._store
                answered, store._answered = store._answered, lambda *given: None  # type: ignore[attr-defined]
                request = await front.ask(ROWS)
                assert request.outcome is Outcome.FAILED and "lost" in request.problem
                store._answered = answered  # type: ignore[attr-defined]
                await until(lambda: counted(there)[1] == {Outcome.FAILED: 1})
                assert (await front.ask(ROWS)).outcome is Outcome.ON_TIME
                assert counted(there) == (2, {Outcome.FAILED: 1, Outcome.ON_TIME: 1})

    within(60, work)


def test_large_tensors(tmp_path: Path) -> None:
    size = 400_000
    built = Built(tmp_path / "models")
    built.write_app(APP.replace("shape = [1, 4]", f"shape = [1, {size}]"))
    (built.app / "labels.txt").write_text("left\nmiddle\nright\n")
    built.add("good", 0.9, latency_ms=4.0, shape=(1, size))

    async def work() -> None:
        endpoint = free_endpoint()
        with worker_processes(endpoint):
            async with scheduler(built.root, endpoint) as there, front_end(built.root, endpoint) as front:
                await front.ready()
                rng = np.random.default_rng(1)
                inputs = [rng.random((1 + n % 3, 1, size), np.float32) for n in range(6)]
                ended = [await each for each in [front.ask(rows, pinned="good") for rows in inputs]]
                for rows, request in zip(inputs, ended, strict=True):
                    assert request.outcome in ENDED_WELL
                    again = await front.ask(rows, pinned="good")
                    np.testing.assert_allclose(request.answers, again.answers, rtol=1e-4, atol=1e-6)
                assert conserved(there.service.engine)

    within(60, work)


def test_a_worker_that_has_the_repository_elsewhere(built: Built, tmp_path: Path) -> None:
    """It loads its own files, and nothing of the scheduler's machine."""
    copy = tmp_path / "elsewhere"
    shutil.copytree(built.root, copy)

    async def work() -> None:
        endpoint = free_endpoint()
        async with scheduler(built.root, endpoint, reload_s=0.0) as there, front_end(copy, endpoint) as front:
            for model in built.root.rglob("*.onnx"):
                model.unlink()
            with worker_processes(endpoint, 1, "--repository", str(copy)):
                await front.ready()
                assert (await front.ask(ROWS)).outcome is Outcome.ON_TIME
                assert conserved(there.service.engine)

    within(60, work)


def test_workers_take_places_that_they_fit_and_others_stand_by(built: Built) -> None:
    async def work() -> None:
        endpoint = free_endpoint()
        async with scheduler(built.root, endpoint) as there, front_end(built.root, endpoint) as front:
            with worker_processes(endpoint, 1, "--threads", "3") as (other,):
                await until(lambda: there.pids() == {other.pid})
                assert there.service.engine.crew.ready_count == 0
                with worker_processes(endpoint, 2) as (first, second):
                    await front.ready()
                    await until(lambda: there.pids() == {other.pid, first.pid, second.pid})
                    (serving,) = [each for each in there.roster.workers.values() if each.executor is not None]
                    pid = int(serving.hello.name.split("/")[1])
                    assert pid != other.pid
                    os.kill(pid, signal.SIGTERM)  # the one that stands by follows
                    await until(lambda: pid not in there.pids())
                    await front.ready()
                    assert (await front.ask(ROWS)).outcome is Outcome.ON_TIME

    within(60, work)


def test_models_change_and_go_while_workers_serve(built: Built) -> None:
    async def work() -> None:
        endpoint = free_endpoint()
        with worker_processes(endpoint):
            async with scheduler(built.root, endpoint) as there, front_end(built.root, endpoint) as front:
                await front.ready()
                more = built.root / "more"
                shutil.copytree(built.root / "rows", more)
                (more / "app.toml").write_text(APP)
                await until(lambda: front.service.is_ready("more") if "more" in front.service.files else False)
                assert (await front.ask(ROWS, "more")).outcome is Outcome.ON_TIME
                await there.service.changes.unload("more")
                await until(lambda: "more" not in front.service.files)
                assert (await front.ask(ROWS)).outcome is Outcome.ON_TIME

    within(60, work)


class SlowLink:
    """As over a network that takes five milliseconds."""

    transit_ns = 0

    def __init__(self, link: Link):
        self._link = link

    def send(self, kind: int, payload: bytes = b"") -> None:
        asyncio.get_running_loop().call_later(0.005, self._link.send, kind, payload)

    def close(self) -> None:
        self._link.close()


def test_plans_reckon_with_the_way_to_a_worker(built: Built) -> None:
    async def work() -> None:
        endpoint = free_endpoint()
        with worker_processes(endpoint):
            async with scheduler(built.root, endpoint) as there, front_end(built.root, endpoint) as front:
                await front.ready()
                (worker,) = there.roster.workers.values()
                worker.link = SlowLink(worker.link)
                for _ in range(80):
                    await front.ask(ROWS)
                engine = there.service.engine
                await until(lambda: engine.generation.in_force.conditions.delays.control_ns >= 5_000_000)

    within(60, work)
