"""Processes that models start, and processes that are stopped: nothing is kept waiting by them, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.core.outcome import Outcome
from stretto.core.profile import Quantile
from stretto.live.fleet import WorkerSpec
from stretto.live.offer import Offer
from stretto.live.probation import Probation
from stretto.repository.read import read_repository
from tests.live.bad_models import HELPER_S
from tests.live.bad_repository import add
from tests.live.real import ROOT, until, within
from tests.live.test_bad_models import ask, service_of
from tests.repository.build import KIND

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
LIMIT_S = 90
SOON_S = HELPER_S / 2  # far less than a helper lives, with room for a busy machine
FORKING = ["ForkAtLoad", "ForkInCAtLoad"]


def state_of(process: int) -> str:
    """As in /proc; nothing where it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def lives(process: int) -> bool:
    return state_of(process) not in ("", "Z", "X")


class Helpers:
    """What models started, told in a file."""

    def __init__(self, file: Path):
        self._file = file

    @property
    def all(self) -> list[int]:
        return [int(line) for line in self._file.read_text().split()]

    @property
    def alive(self) -> list[int]:
        return [helper for helper in self.all if lives(helper)]


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Helpers]:
    file = tmp_path / "helpers"
    file.touch()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("STRETTO_TEST_HELPERS", str(file))
    found = Helpers(file)
    yield found
    for helper in found.alive:
        os.kill(helper, signal.SIGKILL)


@pytest.mark.parametrize("has_descriptors", [True, False], ids=["pidfd", "thread"])
@pytest.mark.parametrize("model", FORKING)
def test_a_worker_whose_model_forked_is_missed_at_once(
    tmp_path: Path, helpers: Helpers, monkeypatch: pytest.MonkeyPatch, model: str, has_descriptors: bool
) -> None:
    """Its end used to be seen when the helper had ended, too: until then nothing at all was served."""
    if not has_descriptors:
        monkeypatch.delattr(os, "pidfd_open")
    root = tmp_path / "models"
    add(root, "good", "good")
    add(root, "forks", model)

    async def work() -> None:
        async with service_of(root, workers=1) as service:
            assert (await ask(service, "forks")).outcome is Outcome.ON_TIME
            began_s = time.monotonic()
            assert (await ask(service, "forks", 1.0, slack_ms=1000.0)).outcome is Outcome.FAILED
            assert (await ask(service)).outcome is Outcome.ON_TIME
            assert time.monotonic() - began_s < SOON_S
            assert service.engine.crew.restarts >= 1
            await until(service.is_ready)
        await until(lambda: not helpers.alive)  # those that the server itself stopped, too

    within(LIMIT_S, work)
    assert len(helpers.all) >= 2


@pytest.mark.parametrize("model", FORKING)
def test_a_model_that_forks_on_probation_keeps_no_other_from_it(tmp_path: Path, helpers: Helpers, model: str) -> None:
    """Its process used to count as one that tries models until the helper had ended."""
    root = tmp_path / "models"
    add(root, "forks", model)
    add(root, "later", "good")
    specs = {
        spec.key.partition("/")[0]: spec
        for spec in Offer(read_repository(root), (WorkerSpec(kind=KIND),), Quantile.MEAN)
        .everything(read_repository(root))
        .specs
    }

    async def work() -> None:
        probation = Probation(asyncio.get_running_loop(), load_s=60.0)
        try:
            began_s = time.monotonic()
            assert (await probation.verdict(specs["forks"])).fault is None
            await asyncio.sleep(0.1)  # nobody waits, and its process is told to end
            assert (await probation.verdict(specs["later"])).fault is None
            assert time.monotonic() - began_s < SOON_S
        finally:
            probation.close()
        await until(lambda: not helpers.alive)

    within(LIMIT_S, work)


def test_a_process_on_probation_that_does_not_end_is_given_up(
    tmp_path: Path, helpers: Helpers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason. Here: it is not killed at all."""
    root = tmp_path / "models"
    add(root, "hang", "HangAtLoad")
    add(root, "later", "good")
    repository = read_repository(root)
    specs = Offer(repository, (WorkerSpec(kind=KIND),), Quantile.MEAN).everything(repository).specs
    kills: list[object] = []
    real = "stretto.live.processes.ProcessExecutor.kill"
    from stretto.live.processes import ProcessExecutor

    kill = ProcessExecutor.kill
    monkeypatch.setattr(real, lambda executor: kills.append(executor))

    async def work() -> None:
        probation = Probation(asyncio.get_running_loop(), load_s=1.0)
        try:
            hung = await probation.verdict(specs[0])
            assert hung.fault is not None and "did not load" in hung.reason
            monkeypatch.setattr(real, kill)
            probation.load_s = 60.0
            assert (await probation.verdict(specs[1])).fault is None
        finally:
            probation.close()
            for executor in kills:
                kill(executor)  # type: ignore[arg-type]
            await asyncio.sleep(0.2)

    within(LIMIT_S, work)


def test_a_helper_holds_nothing_of_its_worker_and_can_be_told_to_end(tmp_path: Path, helpers: Helpers) -> None:
    """A pool of multiprocessing ends its processes with SIGTERM and waits for them, which a worker ignores."""
    root = tmp_path / "models"
    add(root, "forks", "ForkAtLoad")

    def sockets(process: int) -> set[str]:
        found = set()
        for descriptor in os.listdir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{process}/fd/{descriptor}"))
        return {each for each in found if each.startswith("socket:")}

    def parent_of(process: int) -> int:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])

    async def work() -> None:
        async with service_of(root, workers=1):
            await until(lambda: bool(helpers.alive) and "probation" not in arguments(parent_of(helpers.all[-1])))
            helper = helpers.all[-1]
            assert sockets(parent_of(helper)) and not sockets(parent_of(helper)) & sockets(helper)
            os.kill(helper, signal.SIGTERM)
            await until(lambda: not lives(helper))

    within(LIMIT_S, work)


def arguments(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return "probation"


SERVER = """
import asyncio, time
from functools import partial
from stretto.live.aside import Aside

async def main():
    aside = Aside(asyncio.get_running_loop(), has_spare_core=lambda: False)
    aside.order(partial(time.sleep, 60), print)
    while not (processes := aside._processes()):
        await asyncio.sleep(0.001)
    print(*processes, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_judge_that_is_stopped_ends_with_a_server_that_is_killed() -> None:
    """It used to be stopped before it had said to the system that it wants to end with its parent."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # as under a supervisor: no shell's hang-up reaches the judge
    )
    assert server.stdout is not None
    judge = int(server.stdout.readline())
    try:
        end_s = time.monotonic() + LIMIT_S
        while state_of(judge) != "T":
            assert time.monotonic() < end_s and lives(judge)
            time.sleep(0.001)
        server.kill()
        server.wait()
        end_s = time.monotonic() + 10
        while lives(judge) and time.monotonic() < end_s:
            time.sleep(0.01)
        assert not lives(judge)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(judge, signal.SIGKILL)
