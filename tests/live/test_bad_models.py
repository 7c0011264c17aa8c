"""Models that really crash, exit, hang and fill memory, beside one that is sound: only they may notice."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.live import quarantine, repairs
from stretto.live.executors import executor_factory
from stretto.live.losses import NO_WORKER_ANSWERS
from stretto.live.offer import NothingToServe
from stretto.live.options import ServiceOptions
from stretto.live.quarantine import Fault, label_of
from stretto.live.requests import Request
from stretto.live.service import Service
from stretto.repository.read import read_repository
from stretto.sim.ports import simulator_ports
from tests.live.bad_repository import add
from tests.live.real import ROOT, Awaited, asked, conserved, until, within
from tests.repository.build import KIND

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
LIMIT_S = 60
MIB = 1 << 20
FIRST_GRACE_S = repairs.FIRST_GRACE_S  # of a server; tests are given more
BAD_LOADS = {
    "crash": ("CrashAtLoad", Fault.LOAD_CRASHED),
    "exit": ("ExitAtLoad", Fault.LOAD_CRASHED),
    "fill": ("FillAtLoad", Fault.MEMORY),
}


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@asynccontextmanager
async def service_of(root: Path, executor: str = "process", **options: Any) -> AsyncIterator[Service]:
    usual: dict[str, Any] = {"workers": 2, "reload_s": 0, "kind": KIND, "worker_rss_bytes": 600 * MIB}
    chosen = ServiceOptions(str(root), executor=executor, planner="priced", **(usual | options))
    factory = executor_factory(executor)
    service = Service(chosen, read_repository(chosen.repository), factory, simulator=simulator_ports())
    await service.start()
    try:
        await until(service.is_ready)
        await until(lambda: service.engine.crew.ready_count == chosen.worker_count)
        yield service
        assert conserved(service.engine)
    finally:
        await service.stop(0.5)
        assert service.engine.waiting == 0


def ask(service: Service, application: str = "good", value: float = 0.0, **wish: Any) -> Awaited:
    return asked(service.engine, np.full((1, 1, 4), value, np.float32), application, **wish)


def set_aside(service: Service) -> dict[str, Fault]:
    return {label_of(key).partition("/")[0]: each.fault for key, each in service.offer.quarantine.entries.items()}


class Traffic:
    """One query after the other for the sound application, for as long as it is open."""

    def __init__(self, service: Service):
        self._service, self._is_over = service, False
        self.ended: list[Request] = []

    async def __aenter__(self) -> Traffic:
        self._task = asyncio.create_task(self._go_on())
        return self

    async def __aexit__(self, *problem: object) -> None:
        self._is_over = True
        await self._task

    async def _go_on(self) -> None:
        while not self._is_over:
            self.ended.append(await ask(self._service))
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_at_start_what_is_sound_is_served_and_the_rest_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    """Each of these used to keep the sound application from ever being served; in a thread, the server from living."""
    monkeypatch.setattr(repairs, "FIRST_GRACE_S", FIRST_GRACE_S)
    root = tmp_path / "models"
    add(root, "good", "good")
    for name, (model, _) in BAD_LOADS.items():
        add(root, name, model)
    add(root, "hang", "HangAtLoad")

    async def work() -> None:
        async with service_of(root, executor) as service:
            assert service.is_ready() and service.is_ready("good")  # though one is still on its trial
            assert (await ask(service)).outcome is Outcome.ON_TIME
            assert not service.is_ready("hang") and set(service.files) == {"good"}
            await until(lambda: len(set_aside(service)) == len(BAD_LOADS))
            assert set_aside(service) == {name: fault for name, (_, fault) in BAD_LOADS.items()}
            assert service.engine.crew.restarts == 0

    within(LIMIT_S, work)


def test_at_start_an_application_that_is_known_does_not_wait_for_all_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials that ended one after the other, each within its grace, used to keep it waiting for all of them."""
    monkeypatch.setattr(repairs, "GRACE_S", LIMIT_S)
    monkeypatch.setattr(repairs, "FIRST_GRACE_S", FIRST_GRACE_S)
    root = tmp_path / "models"
    add(root, "good", "good")
    add(root, "half", "good", "HangAtLoad")
    add(root, "hang", "HangAtLoad")

    async def work() -> None:
        async with service_of(root) as service:
            assert (await ask(service)).outcome is Outcome.ON_TIME
            assert {label_of(key) for key in service.admission.trials} == {"half/hangatload", "hang/hangatload"}
            await until(lambda: service.is_ready("half"))  # what passed of it is served too

    within(LIMIT_S, work)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_bad_model_that_is_added_is_noticed_by_nobody_else(tmp_path: Path, executor: str) -> None:
    """It used to take every worker, again and again, or to keep management waiting for minutes."""
    root = tmp_path / "models"
    add(root, "good", "good")

    async def work() -> None:
        async with service_of(root, executor) as service, Traffic(service) as traffic:
            add(root, "hang", "HangAtLoad")
            hanging = asyncio.create_task(service.changes.load("hang"))
            for name, (model, fault) in BAD_LOADS.items():
                add(root, name, model)
                with pytest.raises(StrettoError, match=f"{name}/{model.lower()} is set aside"):
                    await service.changes.load(name)
                assert set_aside(service)[name] is fault and not service.is_ready(name)
            add(root, "later", "good")
            await service.changes.load("later")  # and management goes on meanwhile
            assert (await ask(service, "later")).outcome is Outcome.ON_TIME
            assert not hanging.done() and not service.is_ready("hang") and service.is_ready()
            hanging.cancel()
        assert service.engine.crew.restarts == 0
        assert {request.outcome for request in traffic.ended} == {Outcome.ON_TIME}

    within(LIMIT_S, work)


def test_one_that_hangs_at_load_is_given_up(tmp_path: Path) -> None:
    root = tmp_path / "models"
    add(root, "good", "good")
    add(root, "hang", "HangAtLoad")

    async def work() -> None:
        async with service_of(root, load_s=4.0) as service:
            with pytest.raises(StrettoError, match="did not load and run within 4 s"):
                await service.changes.load("hang")
            assert set_aside(service) == {"hang": Fault.LOAD_HUNG}

    within(LIMIT_S, work)


def test_a_server_that_can_serve_nothing_says_why(tmp_path: Path) -> None:
    root = tmp_path / "models"
    add(root, "crash", "CrashAtLoad")

    async def work() -> None:
        with pytest.raises(NothingToServe, match=r"crash/crashatload: .* signal 11"):
            async with service_of(root):
                pass

    within(LIMIT_S, work)


def test_one_bad_variant_of_an_application_is_left_out(tmp_path: Path) -> None:
    root = tmp_path / "models"
    add(root, "good", "good", "CrashAtLoad")

    async def work() -> None:
        async with service_of(root, "thread", ready_all=True) as service:
            assert service.is_ready() and service.is_ready("good", "good")
            assert not service.is_ready("good", "crashatload")
            assert (await ask(service)).variants == ["good"]

    within(LIMIT_S, work)


@pytest.mark.parametrize("model", ["CrashAtLoadOnceServed", "RaiseAtLoadOnceServed"])
def test_one_that_passes_and_fails_in_every_worker_all_the_same(tmp_path: Path, model: str) -> None:
    root = tmp_path / "models"
    add(root, "good", "good")

    async def work() -> None:
        async with service_of(root) as service:
            add(root, "sly", model)
            with pytest.raises(StrettoError, match="sly"):
                await service.changes.load("sly")
                await until(lambda: "sly" in set_aside(service))
                raise StrettoError("sly is set aside later")
            await until(lambda: set(service.engine.generation.numbers) == {"good"})
            await until(lambda: service.engine.crew.ready_count == 2)
            assert (await ask(service)).outcome is Outcome.ON_TIME

    within(LIMIT_S, work)


async def poisoned(service: Service, application: str) -> Fault:
    """Ask for what takes a worker down until the model is set aside for it; what it is set aside for."""
    while application not in set_aside(service):
        request = await ask(service, application, 1.0, slack_ms=1000)
        assert request.outcome is Outcome.FAILED
        await asyncio.sleep(0.02)
    return set_aside(service)[application]


@pytest.mark.parametrize(("model", "fault"), [("crash_at_run", Fault.CRASHED), ("exit_at_run", Fault.CRASHED)])
def test_one_that_takes_workers_down_is_set_aside_after_the_second(tmp_path: Path, model: str, fault: Fault) -> None:
    """It is tried again on demand; then one more loss is enough, and the pause is longer. Never does it take the last
    worker, so that the sound application is answered throughout.
    """
    root = tmp_path / "models"
    add(root, "good", "good")
    add(root, "bad", model)

    async def work() -> None:
        async with service_of(root) as service, Traffic(service) as traffic:
            assert await poisoned(service, "bad") is fault
            (entry,) = service.offer.quarantine.entries.values()
            assert "took down 2 workers" in entry.reason and service.engine.crew.restarts == 2
            await until(lambda: "bad" not in service.engine.generation.numbers)
            assert service.is_ready() and not service.is_ready("bad")
            await service.changes.load("bad")
            await until(lambda: service.engine.crew.ready_count == 2)
            assert service.is_ready("bad") and (await ask(service, "bad")).outcome is Outcome.ON_TIME
            assert await poisoned(service, "bad") is fault and service.engine.crew.restarts == 3
            (entry,) = service.offer.quarantine.entries.values()
            left_s = (entry.until_ns - service.engine.clock()) / 1e9
            assert quarantine.FIRST_PAUSE_S < left_s <= 2 * quarantine.FIRST_PAUSE_S
        assert {request.outcome for request in traffic.ended} == {Outcome.ON_TIME}

    within(LIMIT_S, work)


def test_one_that_is_set_aside_is_tried_again_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 0.5)
    root = tmp_path / "models"
    add(root, "good", "good")
    add(root, "bad", "crash_at_run")

    async def work() -> None:
        async with service_of(root) as service:
            await poisoned(service, "bad")
            await until(lambda: "bad" not in service.engine.generation.numbers)
            await until(lambda: service.is_ready("bad"))
            assert (await ask(service, "bad")).outcome is Outcome.ON_TIME

    within(LIMIT_S, work)


def test_a_client_of_a_worker_that_hangs_hears_so_at_its_deadline(tmp_path: Path) -> None:
    """It used to hear so when the worker was given up, and the query counted as expired."""
    root = tmp_path / "models"
    add(root, "good", "good")
    add(root, "hang", "hang_at_run")

    async def work() -> None:
        async with service_of(root, hang_s=3600.0) as service, Traffic(service) as traffic:
            began_s = time.monotonic()
            stuck = await ask(service, "hang", 1.0, slack_ms=500)
            assert (stuck.outcome, stuck.problem) == (Outcome.FAILED, NO_WORKER_ANSWERS)
            assert 0.45 < time.monotonic() - began_s < 30
            assert service.engine.crew.restarts == 0
        assert {request.outcome for request in traffic.ended} == {Outcome.ON_TIME}

    within(LIMIT_S, work)


def test_one_that_hangs_in_every_worker_at_once_keeps_others_waiting_for_a_second(tmp_path: Path) -> None:
    """They used to wait until the hang limit of the last one."""
    root = tmp_path / "models"
    add(root, "good", "good")
    add(root, "hang", "hang_at_run")

    async def work() -> None:
        async with service_of(root, hang_s=3600.0) as service:
            stuck = [ask(service, "hang", 1.0, slack_ms=1000) for _ in range(2)]
            for _ in range(4):
                stuck.append(ask(service, "hang", 1.0, slack_ms=1000))
                await asyncio.sleep(0.02)
            outcomes = [(await each).outcome for each in stuck]
            assert outcomes[:2] == [Outcome.FAILED] * 2 and not {Outcome.ON_TIME, Outcome.LATE} & set(outcomes)
            assert (await ask(service)).outcome is Outcome.ON_TIME
            await until(lambda: set_aside(service) == {"hang": Fault.HUNG})

    within(LIMIT_S, work)


def test_one_that_hangs_twice_is_set_aside(tmp_path: Path) -> None:
    root = tmp_path / "models"
    add(root, "good", "good")
    add(root, "hang", "hang_at_run")

    async def work() -> None:
        async with service_of(root, hang_s=0.5) as service:
            assert await poisoned(service, "hang") is Fault.HUNG
            await until(lambda: service.engine.crew.ready_count == 2)
            assert (await ask(service)).outcome is Outcome.ON_TIME

    within(LIMIT_S, work)


def test_a_worker_that_leaks_is_replaced_and_nobody_notices(tmp_path: Path) -> None:
    root = tmp_path / "models"
    add(root, "good", "good")
    add(root, "leak", "leak_at_run")

    async def work() -> None:
        async with service_of(root, workers=1, worker_rss_bytes=250 * MIB) as service, Traffic(service) as traffic:
            crew = service.engine.crew
            before = crew.members[0].executor
            while crew.members[0].successor is None and not crew.replaced:  # the next one is not to leak as well
                assert (await ask(service, "leak", 1.0)).outcome is Outcome.ON_TIME
                await asyncio.sleep(0.1)
            await until(lambda: crew.replaced == 1)
            assert crew.members[0].executor is not before and crew.restarts == 0
            assert (await ask(service, "leak")).outcome is Outcome.ON_TIME
        assert {request.outcome for request in traffic.ended} == {Outcome.ON_TIME}

    within(LIMIT_S, work)


def test_one_that_fills_memory_in_one_run_is_ended_and_set_aside(tmp_path: Path) -> None:
    root = tmp_path / "models"
    add(root, "good", "good")
    add(root, "fill", "fill_at_run")

    async def work() -> None:
        async with service_of(root, worker_rss_bytes=250 * MIB) as service:
            assert await poisoned(service, "fill") is Fault.MEMORY
            await until(lambda: service.engine.crew.ready_count == 2)
            assert (await ask(service)).outcome is Outcome.ON_TIME

    within(LIMIT_S, work)


def test_management_and_replans_under_traffic_do_not_hurt_each_other(tmp_path: Path, caplog: Any) -> None:
    """Loads and unloads of two applications, each in a loop of its own, while plans are made all the time."""
    root = tmp_path / "models"
    for name in ("good", "a", "b"):
        add(root, name, "good")

    async def turn(service: Service, name: str) -> None:
        for _ in range(12):
            await service.changes.unload(name)
            await service.changes.load(name)
            assert name in service.files

    async def work() -> None:
        async with service_of(root, "thread", replan_s=0.005) as service, Traffic(service) as traffic:
            await asyncio.gather(*(turn(service, name) for name in ("a", "b")), *(again(service) for _ in range(2)))
            assert set(service.files) == {"good", "a", "b"}
        assert {request.outcome for request in traffic.ended} == {Outcome.ON_TIME}
        assert "made no plan" not in caplog.text and "planner failed" not in caplog.text
        assert service.engine.meters.plans_failed == 0

    async def again(service: Service) -> None:
        for _ in range(12):
            await service.changes.load("good")

    within(LIMIT_S, work)
