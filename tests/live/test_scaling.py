"""A server whose fleet is scaled: workers that go lose no query, slots are filled again, and who acts hears what is
wanted.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.core.advice import FleetNeeds, JudgedFleet
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plan import Delays, Fixed, Lane, Late, Plan, by_application
from stretto.core.telemetry import Telemetry
from stretto.core.verdict import Candidate, Verdict
from stretto.core.view import View
from stretto.live.crew import Factory
from stretto.live.executors import executor_factory
from stretto.live.options import ServiceOptions
from stretto.live.recorder import Journal, recording
from stretto.live.scaling import Actuator
from stretto.live.scaling_options import ScalingOptions, read_bounds
from stretto.live.service import Service
from stretto.live.slots import LocalSlots
from stretto.live.snapshots import snapshot
from stretto.live.threads import ThreadExecutor
from stretto.live.webhook import Webhook
from stretto.planning.autoscale import JUDGED
from stretto.planning.autoscale_options import AutoscaleOptions, Bounds
from stretto.repository.read import read_repository
from stretto.sim.autoscale import accuracy_floor
from stretto.sim.ports import simulator_ports
from stretto.sim.replay import replay
from stretto.twin import live as twin_live
from stretto.twin.live import Case, LiveTwin, judge_setting
from tests.live.real import ROOT, asked, conserved, until, within
from tests.repository.build import KIND, Built, build

ROWS = np.array([[[0.1, 0.2, 0.3, 0.4]]], np.float32)
SLACK_MS = 3_000.0
QUICK = AutoscaleOptions(period_s=0.05)


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return build(tmp_path / "models")


@pytest.fixture(autouse=True)
def found_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@asynccontextmanager
async def service_of(
    root: Path,
    *,
    factory: Factory = ThreadExecutor,
    actuator: Actuator | None = None,
    journal: Journal | None = None,
    twin: LiveTwin | None = None,
    **options: Any,
) -> AsyncIterator[Service]:
    chosen = ServiceOptions(str(root), **({"workers": 1, "reload_s": 0.0, "kind": KIND} | options))
    service = Service(
        chosen,
        read_repository(chosen.repository),
        factory,
        journal,
        simulator=simulator_ports(),
        twin=twin,
        actuator=actuator,
        make_floor=accuracy_floor,
    )
    await service.start()
    try:
        await until(lambda: service.engine.crew.ready_count == chosen.worker_count)
        yield service
    finally:
        await service.stop()
        assert service.engine.waiting == 0


def alive(service: Service) -> int:
    engine = service.engine
    return int(engine.generation.dispatcher.telemetry(engine.clock()).worker_alive.sum())


class Asking:
    """Queries without a pause, so that workers are always at work, until it is stopped."""

    def __init__(self, service: Service, at_once: int = 6) -> None:
        self.outcomes: list[Outcome | None] = []
        self._service, self._is_over = service, False
        self._tasks = [asyncio.ensure_future(self._ask()) for _ in range(at_once)]

    async def _ask(self) -> None:
        while not self._is_over:
            request = await asked(self._service.engine, ROWS, "rows", slack_ms=SLACK_MS)
            self.outcomes.append(request.outcome)

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def more(self, count: int) -> None:
        wanted = len(self.outcomes) + count
        await until(lambda: len(self.outcomes) >= wanted)


@pytest.mark.parametrize("planner", ["clockwork_filling", "nexus", "shared_queue", "ramsis"])
def test_workers_that_go_lose_no_query(built: Built, planner: str) -> None:
    """Under plans with one queue, and with one for each worker."""

    async def work() -> None:
        async with service_of(built.root, workers=3, planner=planner, replan_s=0.05) as service:
            slots = LocalSlots(service, service.changes)
            asking = Asking(service)
            for count in (1, 3, 2, 4, 1):
                await asking.more(20)
                await slots.scale_to(KIND, count)
                await until(lambda count=count: service.engine.crew.ready_count == alive(service) == count)  # type: ignore[misc]
            await asking.more(20)
            await asking.stop()
            assert set(asking.outcomes) == {Outcome.ON_TIME}
            assert conserved(service.engine) and len(service.engine.crew.members) == 4  # slots were filled again
            assert service.engine.crew.restarts == 0 and not service.replanner._is_failing

    within(120, work)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_processes_that_go_lose_no_query_and_are_gone(built: Built) -> None:
    def processes() -> int:
        found = 0
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and f"PPid:\t{os.getpid()}\n" in Path(f"/proc/{entry}/status").read_text():
                    found += "worker_process" in Path(f"/proc/{entry}/cmdline").read_text()
            except OSError:
                continue
        return found

    async def work() -> None:
        async with service_of(
            built.root, factory=executor_factory("process"), workers=2, planner="clockwork_filling"
        ) as service:
            slots, before = LocalSlots(service, service.changes), processes()
            asking = Asking(service)
            for _ in range(3):
                await asking.more(20)
                await slots.scale_to(KIND, 1)
                await until(lambda: processes() == before - 1)
                await asking.more(20)
                await slots.scale_to(KIND, 2)
                await until(lambda: service.engine.crew.ready_count == 2 and processes() == before)
            await asking.stop()
            assert set(asking.outcomes) == {Outcome.ON_TIME} and conserved(service.engine)
            assert service.engine.crew.restarts == 0

    within(180, work)


def test_a_life_of_workers_that_come_and_go_is_replayed(built: Built, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    async def work(journal: Journal) -> None:
        async with service_of(built.root, workers=2, planner="nexus", replan_s=0.05, journal=journal) as service:
            slots, asking = LocalSlots(service, service.changes), Asking(service)
            for count in (1, 3, 1):
                await asking.more(10)
                await slots.scale_to(KIND, count)
                await until(lambda count=count: service.engine.crew.ready_count == count)  # type: ignore[misc]
            await asking.stop()

    with recording(path) as journal:
        within(60, lambda: work(journal))
    result = replay(path)
    assert '["leaving",' in path.read_text() and result.is_identical, result.differences


def test_a_worker_that_is_called_back_before_it_went_stays(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root, workers=2, planner="clockwork_filling") as service:
            slots, crew = LocalSlots(service, service.changes), service.engine.crew
            first = crew.members[1].executor
            asking = Asking(service)
            await asking.more(10)
            await until(lambda: crew.is_busy(1))
            service.engine.generation.dispatcher.worker_leaving(service.engine.clock(), 1)
            crew.members[1].is_retired = True  # as `scale_to` does it, without the plan before that
            await slots.scale_to(KIND, 2)
            assert crew.members[1].executor is first and crew.is_ready(1)
            await asking.more(20)
            await asking.stop()
            assert set(asking.outcomes) == {Outcome.ON_TIME} and alive(service) == 2

    within(60, work)


LOOKS: list[tuple[int, ...]] = []  # of `by_present`


def by_present(view: View) -> Plan:
    """One queue for those who are there."""
    LOOKS.append(view.present)
    lane = Lane("rows", view.present, Fixed(0), late=Late.DROP_WHEN_INFEASIBLE)
    return by_application((lane,))


def test_one_that_plans_once_plans_again_for_a_worker_that_is_back(built: Built) -> None:
    """It planned without the worker when that was to go, and was not asked again."""

    async def work() -> None:
        planner = "tests.live.test_scaling:by_present"
        async with service_of(built.root, workers=2, planner=planner) as service:
            slots, engine = LocalSlots(service, service.changes), service.engine
            service.replanner.period_s = 0.0
            for count in (1, 2, 1, 2):
                await slots.scale_to(KIND, count)
                await until(lambda count=count: len(engine.generation.in_force.made.lanes[0].workers) == count)  # type: ignore[misc]
            looks = len(LOOKS)
            await asyncio.sleep(0.5)
            assert len(LOOKS) == looks, "and then no more"

    within(60, work)


def test_one_that_is_lost_while_it_goes_is_not_started_again(built: Built) -> None:
    class Stuck(ThreadExecutor):
        """Says nothing of the batches that it is given."""

        def run(self, job: Any) -> None:
            if self._worker == 0:
                super().run(job)

    async def work() -> None:
        async with service_of(built.root, factory=Stuck, workers=2, planner="clockwork_filling") as service:
            crew = service.engine.crew
            asking = Asking(service)
            await until(lambda: crew.is_busy(1))
            await LocalSlots(service, service.changes)._let_go([1])
            assert crew.is_busy(1) and crew.ready_count == 1
            crew.members[1].executor.kill()
            await until(lambda: not crew.is_busy(1))
            await asking.more(10)
            await asking.stop()
            assert set(asking.outcomes) == {Outcome.ON_TIME}  # what it had was tried again
            assert crew.is_paused(1) and crew.restarts == 0 and alive(service) == 1

    within(60, work)


def test_a_new_generation_leaves_empty_slots_empty(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root, workers=3, planner="clockwork_filling") as service:
            slots = LocalSlots(service, service.changes)
            await slots.scale_to(KIND, 1)
            await until(lambda: alive(service) == 1)
            await service.changes.load("rows")
            assert (await asked(service.engine, ROWS, "rows", slack_ms=SLACK_MS)).outcome is Outcome.ON_TIME
            assert alive(service) == 1 and service.engine.crew.ready_count == 1
            await slots.scale_to(KIND, 2)
            await until(lambda: alive(service) == 2)

    within(60, work)


def test_bounds_for_a_kind_that_is_not_there_are_refused_at_the_start(built: Built) -> None:
    async def work() -> None:
        chosen = ServiceOptions(str(built.root), workers=1, kind=KIND, autoscale=scaled("tpu=1:4"))
        service = Service(chosen, read_repository(chosen.repository), ThreadExecutor)
        with pytest.raises(StrettoError, match="'tpu' is not one of them"):
            await service.start()
        service.close_asides()

    within(60, work)


def test_what_cannot_be_scaled(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root) as service:
            with pytest.raises(StrettoError, match="no worker of kind gpu"):
                await LocalSlots(service, service.changes).scale_to("gpu", 2)

    within(60, work)


# -- who decides -----------------------------------------------------------------------------------------------------


class Noted:
    """An actuator that only writes down; it fails as often as it is told to."""

    def __init__(self, failures: int = 0, error: Exception | None = None) -> None:
        self.told: list[tuple[str, int]] = []
        self.failures, self.error = failures, error or StrettoError("not now")

    async def scale_to(self, kind: str, count: int) -> None:
        self.told.append((kind, count))
        if len(self.told) <= self.failures:
            raise self.error


def scaled(*bounds: str, **more: Any) -> ScalingOptions:
    return ScalingOptions(tuple(map(read_bounds, bounds)), options=QUICK, **more)


def test_it_shrinks_while_nobody_asks(built: Built) -> None:
    """With the workers of this machine, from the options that a user gives."""

    async def work() -> None:
        async with service_of(
            built.root, planner="clockwork_filling", workers=4, autoscale=scaled("1:4@0.5")
        ) as service:
            await until(lambda: alive(service) == 1)
            assert service.scaler is not None
            state = service.scaler.state
            assert state.actuator == "local" and state.bounds == {KIND: (1, 4)} and state.changes >= 1
            assert (await asked(service.engine, ROWS, "rows", slack_ms=SLACK_MS)).outcome is Outcome.ON_TIME
            shown = snapshot(service).scaling
            assert shown is not None and shown.advice.wanted == {KIND: 1} and shown.advice.cost == 0.5

    within(60, work)


def test_more_workers_are_started_for_queries_that_go_unanswered(built: Built) -> None:
    """So many at once that most are dropped."""

    async def work() -> None:
        async with service_of(built.root, planner="clockwork_filling", autoscale=scaled("1:3")) as service:
            tasks = []

            async def flood() -> None:
                while alive(service) < 2:
                    tasks.extend(asked(service.engine, ROWS, "rows", slack_ms=12) for _ in range(400))
                    await asyncio.sleep(0.01)

            await flood()
            ended = [await task for task in tasks]
            assert all(request.outcome is not None for request in ended) and conserved(service.engine)

    within(60, work)


def test_advice_alone_moves_nobody(built: Built) -> None:
    async def work() -> None:
        given = scaled("1:4", actuator="advice")
        async with service_of(built.root, planner="clockwork_filling", workers=4, autoscale=given) as service:
            assert service.scaler is not None
            await until(lambda: service.scaler.state.advice.wanted == {KIND: 1})  # type: ignore[union-attr]
            await asyncio.sleep(0.2)
            assert alive(service) == 4

    within(60, work)


class QuickCase(Case):
    """Judged for real, of a few candidates."""

    def judged(self, rates: tuple[float, ...]) -> Verdict:
        few = (Candidate("clockwork_filling"), Candidate("symphony_batch_aware"))
        return judge_setting(self.deployment, self.setting, rates, candidates=few)


class QuickTwin(LiveTwin):
    def case(self, deployment: Deployment, telemetry: Telemetry, delays: Delays) -> Case:
        case = super().case(deployment, telemetry, delays)
        return QuickCase(case.deployment, case.setting)


@pytest.mark.usefixtures("work_beside_takes_turns")
def test_the_judge_names_the_cheapest_fleet_for_what_it_measured(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its process beside the serving; a load that one worker carries."""
    monkeypatch.setattr(twin_live, "ENOUGH_NS", 10**9)

    async def work() -> None:
        given = scaled("1:2@0.5", actuator="advice")
        twin = QuickTwin(time.monotonic_ns())
        async with service_of(built.root, planner="judged", workers=2, autoscale=given, twin=twin) as service:
            assert service.scaler is not None and service.scaler.state.judged is None
            scaler, ended = service.scaler, list[Any]()
            while scaler.state.judged is None:
                ended.append(asked(service.engine, ROWS, "rows", slack_ms=SLACK_MS))
                await asyncio.sleep(0.01)
            found = scaler.state.judged
            assert found.wanted == {KIND: 1} and found.cost == 0.5 and found.is_enough and found.late <= QUICK.bad_rate
            assert 10 < found.load < 110 and found.accuracy > 0.6 and found.now_ns > 0
            assert {(await each).outcome for each in ended} == {Outcome.ON_TIME}
            assert scaler._judge_s > service.engine.loop.time() + 100  # it is asked at a slow pace

    within(120, work)


class WantsThree(QuickTwin):
    """Its judge names a fleet that no signal would."""

    @staticmethod
    def cheapest(deployment: Deployment, case: Case, needs: FleetNeeds, judged: Any) -> JudgedFleet:
        rates = case.setting.source().expected_rates(deployment, 1.0)
        return JudgedFleet({KIND: 3}, 1.5, float(sum(rates)), 0.0, 0.9, "a plan")


@pytest.mark.usefixtures("work_beside_takes_turns")
@pytest.mark.parametrize("follows", [True, False])
def test_actuators_follow_the_judge_where_that_is_asked_for(
    built: Built, monkeypatch: pytest.MonkeyPatch, follows: bool
) -> None:
    monkeypatch.setattr(twin_live, "ENOUGH_NS", 10**9)

    async def work() -> None:
        given = replace(scaled("1:4@0.5", follows_judge=follows), options=AutoscaleOptions(period_s=0.5))
        twin = WantsThree(time.monotonic_ns())
        async with service_of(built.root, planner="judged", workers=1, autoscale=given, twin=twin) as service:
            assert service.scaler is not None
            scaler, ended, heard_s = service.scaler, list[Any](), 0.0
            loop = service.engine.loop
            while not heard_s or (loop.time() < heard_s + 4 and not (follows and alive(service) == 3)):
                ended.append(asked(service.engine, ROWS, "rows", slack_ms=SLACK_MS))
                await asyncio.sleep(0.01)
                if scaler.state.judged is not None and not heard_s:
                    heard_s = loop.time()
            assert alive(service) == (3 if follows else 1)
            assert (scaler.state.advice.reason == JUDGED) is follows
            assert {(await each).outcome for each in ended} == {Outcome.ON_TIME}

    within(60, work)


def test_without_a_judge_there_is_nobody_to_follow(built: Built) -> None:
    with pytest.raises(StrettoError, match="no judge to follow"):
        ServiceOptions(str(built.root), planner="symphony", autoscale=scaled("1:4", follows_judge=True))


@pytest.mark.parametrize("error", [StrettoError("not now"), RuntimeError("a bug of somebody else")])
def test_an_actuator_that_fails_is_told_again(built: Built, error: Exception) -> None:
    async def work() -> None:
        actuator = Noted(2, error)
        async with service_of(
            built.root, planner="clockwork_filling", workers=3, autoscale=scaled(f"{KIND}=1:3"), actuator=actuator
        ) as service:
            await until(lambda: len(actuator.told) >= 3)
            assert service.scaler is not None
            await until(lambda: actuator.told[-1] == (KIND, 1))
            await until(lambda: service.scaler.state.problem == "")  # type: ignore[union-attr]
            assert service.scaler.state.failures == 2

    within(60, work)


def test_workers_that_do_not_come_are_asked_for_again(built: Built) -> None:
    """Not at every look, though: they take their time to start."""

    async def work() -> None:
        actuator = Noted()
        given = replace(scaled("2:4"), options=replace(QUICK, start_s=0.3))
        async with service_of(built.root, planner="clockwork_filling", autoscale=given, actuator=actuator) as service:
            await until(lambda: len(actuator.told) >= 1)
            began = service.engine.loop.time()
            await until(lambda: len(actuator.told) >= 2)
            assert actuator.told == [(KIND, 2)] * 2 and service.engine.loop.time() - began > 0.3

    within(60, work)


def test_accuracy_keeps_workers(built: Built) -> None:
    """The floor is asked with the rates; without queries there is nothing to keep them for."""

    async def work() -> None:
        given = scaled("1:3", accuracy=0.8)
        async with service_of(built.root, planner="clockwork_filling", workers=3, autoscale=given) as service:
            await until(lambda: alive(service) == 1)
            assert (await asked(service.engine, ROWS, "rows", slack_ms=SLACK_MS)).outcome is Outcome.ON_TIME

    within(60, work)


# -- options ---------------------------------------------------------------------------------------------------------


def test_bounds_as_they_are_written() -> None:
    assert read_bounds("1:8") == ("", Bounds(1, 8))
    assert read_bounds("cpu=0:4@0.1") == ("cpu", Bounds(0, 4, 0.1))
    for text in ("8", "1:", ":8", "a:b", "1:8@", "1:8@x", "=1:8", "1:8@inf", "1:²", "-1:4", "1:99999999"):
        with pytest.raises(StrettoError, match=r"from MIN to MAX|workers"):
            read_bounds(text)
    with pytest.raises(StrettoError, match="smaller number first"):
        read_bounds("8:1")


def test_memory_is_shared_out_among_all_that_may_come() -> None:
    alone = ServiceOptions("zoo", workers=2).process_bytes
    assert ServiceOptions("zoo", workers=2, autoscale=scaled("1:8")).process_bytes == pytest.approx(alone / 4, abs=1)
    advised = ServiceOptions("zoo", workers=2, autoscale=scaled("1:8", actuator="advice"))
    assert advised.process_bytes == alone  # others come elsewhere


def test_kinds_by_the_beginning_of_their_names() -> None:
    kinds = ("cpu-x86", "cpu-arm", "gpu-h200")
    assert set(scaled("gpu=0:2", "cpu-x=1:4").for_kinds(kinds).kinds) == {"gpu-h200", "cpu-x86"}
    assert set(scaled("1:4").for_kinds(("cpu-x86",)).kinds) == {"cpu-x86"}
    for wrong in (("1:4",), ("cpu=1:4",), ("tpu=1:4",), ("gpu=1:2", "gpu-h200=1:2")):
        with pytest.raises(StrettoError, match="workers here are of kind"):
            scaled(*wrong).for_kinds(kinds)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"actuator": "cloud"}, "no actuator 'cloud'"),
        ({"actuator": "webhook"}, "needs an address"),
        ({"webhook": "http://127.0.0.1/"}, "needs an address"),
        ({"actuator": "webhook", "webhook": "ftp://host/"}, "no address for a webhook"),
        ({"accuracy": 1.5}, "accuracy of 1.5"),
    ],
)
def test_options_that_make_no_sense(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(StrettoError, match=words):
        scaled("1:4", **wrong)
    with pytest.raises(StrettoError, match="at most 1024 workers"):
        scaled("1:2000")


# -- the webhook -----------------------------------------------------------------------------------------------------

Answer = Callable[[int], bytes | None]


@asynccontextmanager
async def listener(answer: Answer) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A real one on a free port: `answer` has what is said to each call, or None to say nothing."""
    calls: list[bytes] = []

    async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        calls.append(head + await reader.readexactly(length))
        said = answer(len(calls))
        if said is None:
            await reader.read()  # until the other side hangs up
        else:
            writer.write(said)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(called, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/scale?cluster=a", calls
    finally:
        server.close()
        await server.wait_closed()


OK, BUSY = b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 503 Busy\r\n\r\n"
MOVED = b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n"


def test_a_webhook_is_told_kind_and_number() -> None:
    async def work() -> None:
        async with listener(lambda call: OK) as (url, calls):
            await Webhook(url, "a-token-of-some-length").scale_to("cpu", 5)
            head, _, body = calls[0].partition(b"\r\n\r\n")
            assert head.startswith(b"POST /scale?cluster=a HTTP/1.1\r\n")
            assert b"Authorization: Bearer a-token-of-some-length" in head
            assert body == b'{"kind": "cpu", "workers": 5}'

    within(20, work)


def test_it_is_asked_again_when_it_is_busy() -> None:
    async def work() -> None:
        async with listener(lambda call: OK if call == 3 else BUSY) as (url, calls):
            await Webhook(url, pause_s=0.01).scale_to("cpu", 5)
            assert len(calls) == 3

    within(20, work)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (BUSY, "answered 503"),
        (MOVED, "answered 302; redirects are not followed"),
        (b"nonsense\r\n", "no HTTP answer"),
        (b"", "no HTTP answer"),
        (b"x" * 200_000, "cannot be reached|no HTTP answer"),
        (None, "did not answer within 0.05 s"),
    ],
)
def test_webhooks_that_do_not_do_it(said: bytes | None, words: str) -> None:
    async def work() -> None:
        async with listener(lambda call: said) as (url, calls):
            with pytest.raises(StrettoError, match=words):
                await Webhook(url, timeout_s=0.05 if said is None else 5.0, pause_s=0.01).scale_to("cpu", 5)
            assert len(calls) == 3

    within(20, work)


def test_a_webhook_that_is_not_there() -> None:
    async def work() -> None:
        async with listener(lambda call: OK) as (url, _):
            pass
        with pytest.raises(StrettoError, match="cannot be reached"):
            await Webhook(url, pause_s=0.01).scale_to("cpu", 5)

    within(20, work)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host",
        "ftp://host/",
        "file:///etc/passwd",
        "http://",
        "http://user:word@host/",
        "http://host/\r\nX: y",
        "http://host:port/",
        "http://[::1",
        "http://ho st/",
        "https://" + "h" * 5000,
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(StrettoError, match="no address for a webhook"):
        Webhook(url)


def test_a_token_that_cannot_be_sent() -> None:
    with pytest.raises(StrettoError, match="cannot be sent"):
        Webhook("http://host/", "a\r\nb")
