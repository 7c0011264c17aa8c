"""Policies made beside the serving, in a process of their own."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from stretto.core.errors import StrettoError
from stretto.core.view import View
from stretto.live import aside
from stretto.live.options import ServiceOptions
from stretto.live.policies import PolicyMaker
from stretto.live.recorder import Journal, recording
from stretto.live.service import Service
from stretto.planners.parts.store import save_libraries
from stretto.planners.shared_queue.planner import SharedQueue
from stretto.sim.ports import simulator_ports
from stretto.sim.replay import replay
from tests.live.real import until, within
from tests.live.test_service import ask, built, service_of
from tests.repository.build import KIND, Built, build

__all__ = ["built"]
pytestmark = pytest.mark.usefixtures("work_beside_takes_turns")
STEP_BACK = aside._step_back  # tests here do not
QUICK = {"queries": 1000, "slack_steps": 20}


def make(task: Any, options: Any, load: float) -> Any:
    """What stands for a policy: who made it, for which load."""
    if load == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    if load < 0:
        raise StrettoError("no policy for such a load")
    return (os.getpid(), load)


class Asker:
    """A planner's side of the port."""

    def __init__(self, maker: PolicyMaker) -> None:
        self.maker = maker
        self._added: list[Any] = []
        self._not_made: list[float] = []

    def request(self, load: float) -> None:
        self.maker.ask(Task(), None, load, make)  # type: ignore[arg-type]

    def collect(self) -> None:
        for made in self.maker.collect():
            if made.policy is None:
                self._not_made.append(made.load)
            else:
                self._added.append(made.policy)

    @property
    def added(self) -> list[Any]:
        self.collect()
        return self._added

    @property
    def not_made(self) -> list[float]:
        self.collect()
        return self._not_made


class Task:
    application, kind, workers = "app", "default", 1


def test_everything_else_goes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "_step_back", STEP_BACK)
    with ProcessPoolExecutor(1, get_context("spawn"), aside._step_back) as pool:
        assert pool.submit(os.nice, 0).result() >= aside.NICENESS
        if sys.platform == "linux":
            assert pool.submit(os.sched_getscheduler, 0).result() == os.SCHED_IDLE


def test_the_load_asked_for_last_is_made_first() -> None:
    async def work() -> None:
        maker = PolicyMaker(asyncio.get_running_loop())
        planner = Asker(maker)
        for load in (1.0, 2.0, 3.0):
            planner.request(load)
        await until(lambda: len(planner.added) == 3)
        made = planner.added
        assert [load for _, load in made][1:] == [3.0, 2.0]  # the first one began before the others were asked for
        assert len({pid for pid, _ in made}) == 1 and made[0][0] != os.getpid()
        assert (maker.made, maker.waiting) == (3, 0) and not maker.collect()
        maker.close()
        await until(lambda: not alive(made[0][0]))
        planner.request(5.0)  # too late, and no harm
        assert maker.waiting == 0

    within(60, work)


def test_what_is_forgotten_may_be_asked_for_again() -> None:
    async def work() -> None:
        maker = PolicyMaker(asyncio.get_running_loop())
        planner = Asker(maker)
        for load in (1.0, 2.0, 3.0):
            planner.request(load)
        await until(lambda: maker.waiting == 3)
        maker.forget()
        assert planner.not_made == [2.0, 3.0]  # the first one is being made
        await until(lambda: len(planner.added) == 1)
        maker.close()

    within(60, work)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


def test_one_that_cannot_be_made_is_told_once_and_others_follow(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        maker = PolicyMaker(asyncio.get_running_loop())
        planner = Asker(maker)
        planner.request(-1.0)
        await until(lambda: planner.not_made == [-1.0])
        planner.request(13.0)  # its process is lost
        await until(lambda: planner.not_made == [-1.0, 13.0])
        planner.request(4.0)
        await until(lambda: len(planner.added) == 1)
        os.kill(planner.added[0][0], signal.SIGKILL)  # while it has nothing to do
        await until(lambda: not alive(planner.added[0][0]))
        while len(planner.added) < 2:  # the first time it may not be known yet; a planner asks again
            planner.request(5.0)
            await until(lambda: len(planner.added) == 2 or 5.0 in planner.not_made)
            planner.not_made.clear()
        maker.close()

    with caplog.at_level(logging.WARNING, "stretto.live"):
        within(60, work)
    told = ["could not be made" in record.getMessage() for record in caplog.records]
    assert 1 <= sum(told) <= 2  # once for each time that it fails after it worked


def test_an_idle_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "IDLE_S", 0.01)

    async def work() -> None:
        maker = PolicyMaker(asyncio.get_running_loop())
        planner = Asker(maker)
        planner.request(1.0)
        await until(lambda: len(planner.added) == 1)
        await until(lambda: not alive(planner.added[0][0]))
        planner.request(2.0)  # starts another
        await until(lambda: len(planner.added) == 2)
        maker.close()

    within(60, work)


async def asked_until(service: Service, condition: Callable[[], bool]) -> None:
    """Policies are made for what is asked for."""
    while not condition():
        await ask(service)
        await asyncio.sleep(0.02)


def test_the_shared_queue_takes_up_what_is_made(built: Built) -> None:
    built.add("better")

    async def work() -> None:
        async with service_of(
            built.root, planner="shared_queue", planner_options={"queries": 1000, "slack_steps": 20}
        ) as service:
            planner = service.session.planner
            assert isinstance(planner, SharedQueue) and service.maker is not None
            assert service.engine.generation.in_force.plan.planner == "shared_queue"
            assert (await ask(service)).outcome is not None  # served at once, by the table that stands in
            await asked_until(service, lambda: bool(planner.in_force()))
            assert service.maker.made > 0 and (await ask(service)).answers is not None

    within(120, work)


@pytest.fixture(scope="module")
def with_policies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Path]:
    """A repository, and a file of the policies with which a server of it begins."""
    folder = tmp_path_factory.mktemp("stored")
    built, path = build(folder / "models"), folder / "policies.npz"
    built.add("better")

    planner = SharedQueue(queries=1000, slack_steps=20, trial=simulator_ports().trial)

    async def store() -> None:
        async with service_of(built.root, planner="priced") as service:
            planner(View(service.engine.generation.deployment))
            save_libraries(path, [library for library in planner._policies._libraries.values() if library.policies])

    within(60, store)
    return built, path


def test_stored_policies_are_refused_where_they_do_not_match(with_policies: tuple[Built, Path]) -> None:
    built, policies = with_policies

    async def serve(**options: Any) -> None:
        async with service_of(built.root, policies=policies, **{"planner": "shared_queue", **options}) as service:
            assert service.engine.generation.in_force.plan.planner == "shared_queue"
            planner = service.session.planner
            assert isinstance(planner, SharedQueue) and planner.in_force()  # from the first plan on

    within(60, lambda: serve(planner_options=QUICK))
    with pytest.raises(StrettoError, match=r"policies\.npz: these policies are for slack steps 20, not 30"):
        within(60, lambda: serve(planner_options=QUICK | {"slack_steps": 30}))
    with pytest.raises(StrettoError, match="follows no policies"):
        within(60, lambda: serve(planner="priced"))
    with pytest.raises(StrettoError, match=r"nowhere\.npz: cannot be read"):
        asyncio.run(_begin(ServiceOptions(str(built.root), kind=KIND, policies=policies.parent / "nowhere.npz")))


async def _begin(options: ServiceOptions) -> None:
    async with service_of(options.repository, planner="shared_queue", policies=options.policies):
        pass


def test_a_recording_is_replayed_with_the_policies_that_the_server_was_given(
    with_policies: tuple[Built, Path], tmp_path: Path
) -> None:
    """The replayed planner waited for policies that nobody made: every plan was another one than live."""
    built, stored = with_policies
    policies, events = Path(shutil.copy(stored, tmp_path)), tmp_path / "events.jsonl"

    async def work(journal: Journal) -> None:
        asked_for = {"planner": "shared_queue", "planner_options": QUICK, "policies": policies}
        async with service_of(built.root, journal=journal, **asked_for) as service:
            planner = service.session.planner
            assert isinstance(planner, SharedQueue) and planner.in_force()
            for _ in range(10):
                await ask(service)
            await service.replanner.replan()

    with recording(events) as journal:
        within(60, lambda: work(journal))
    result = replay(events)
    assert result.is_identical and result.plans >= 2, result.differences
    policies.write_bytes(stored.read_bytes() + b" ")
    with pytest.raises(StrettoError, match=r"policies\.npz is another file of policies than the server followed"):
        replay(events)
    policies.unlink()
    with pytest.raises(StrettoError, match=r"policies of .*policies\.npz, which is not there"):
        replay(events)
