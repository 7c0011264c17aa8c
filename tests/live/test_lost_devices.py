"""A worker whose device fails, or that alone cannot load a model, is a lost worker: no model is set aside for it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from stretto.core.outcome import Outcome
from stretto.core.profile import Quantile
from stretto.live.admission import Admission
from stretto.live.fleet import WorkerSpec
from stretto.live.offer import Offer
from stretto.live.probation import Probation
from stretto.live.processes import ProcessExecutor
from stretto.live.quarantine import label_of
from stretto.live.remembered import Remembered
from stretto.live.service import Service
from stretto.repository.read import read_repository
from tests.live.bad_repository import add
from tests.live.real import ROOT, until, within
from tests.live.test_bad_models import Traffic, ask, service_of, set_aside
from tests.repository.build import KIND

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
LIMIT_S = 60


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("STRETTO_TEST_MARKS", str(tmp_path))
    return tmp_path


def kill_worker(service: Service, worker: int) -> None:
    process = cast(ProcessExecutor, service.engine.crew.members[worker].executor)._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("mark", ["raise", "device"])
def test_a_worker_that_cannot_load_what_another_serves_with_is_lost_alone(marks: Path, mark: str) -> None:
    """Its model used to be taken from the other worker too, and every request refused for half a minute."""
    add(marks / "models", "good", "FailOnMark")

    async def work() -> None:
        async with service_of(marks / "models") as service, Traffic(service) as traffic:
            crew = service.engine.crew
            (marks / mark).touch()
            kill_worker(service, 0)
            await until(lambda: crew.restarts == 2 and crew.ready_count == 2)
            assert not (marks / mark).exists() and set_aside(service) == {}
            assert not service.offer.quarantine.times
        assert {request.outcome for request in traffic.ended} == {Outcome.ON_TIME}

    within(LIMIT_S, work)


@pytest.mark.parametrize("mark", ["raise", "device"])
def test_a_new_model_that_one_worker_cannot_load_is_served_by_the_other(marks: Path, mark: str) -> None:
    add(marks / "models", "good", "good")

    async def work() -> None:
        async with service_of(marks / "models") as service:
            add(marks / "models", "later", "FailOnMark")
            (marks / mark).touch()
            await service.changes.load("later")
            assert not (marks / mark).exists() and set_aside(service) == {}
            assert (await ask(service, "later")).outcome is Outcome.ON_TIME
            await until(lambda: service.engine.crew.ready_count == 2)
            assert service.engine.crew.restarts == 1

    within(LIMIT_S, work)


def test_a_device_that_fails_under_a_model_is_never_held_against_it(marks: Path) -> None:
    """It was set aside after the second time, though it was the device that failed."""
    add(marks / "models", "good", "lose_device_at_run")

    async def work() -> None:
        async with service_of(marks / "models") as service:
            for restarts in (2, 4):
                poison = await ask(service, "good", 1.0)
                assert poison.outcome is Outcome.FAILED and service.engine.crew.restarts == restarts
            assert set_aside(service) == {} and not service.offer.quarantine.losses
            assert (await ask(service)).outcome is Outcome.ON_TIME

    within(LIMIT_S, work)


@pytest.mark.parametrize(
    ("other", "was_sound", "is_served"),
    [
        ("RaiseAtLoad", True, True),
        ("RaiseAtLoad", False, False),  # a new model must be sound wherever it is to run
        ("LoseDeviceAtLoad", False, True),
    ],
)
def test_a_model_that_is_tried_again_need_load_on_one_device(
    marks: Path, caplog: pytest.LogCaptureFixture, other: str, was_sound: bool, is_served: bool
) -> None:
    """What another device of the fleet cannot load used to keep it from all of them for good."""
    add(marks / "models", "good", "good")
    caplog.set_level(logging.ERROR, "stretto.live")

    async def work() -> None:
        repository = read_repository(str(marks / "models"))
        offer = Offer(repository, (WorkerSpec(count=2, kind=KIND),), Quantile.P95)
        everything = offer.everything(repository)
        (sound,) = everything.specs
        source = replace(sound.source, code=f"tests.live.bad_models:{other}")
        two = replace(everything, by_slot=((replace(sound, source=source),), (sound,)))
        probation = Probation(asyncio.get_running_loop(), LIMIT_S)
        admission = Admission(offer, probation, Remembered(), time.monotonic_ns, lambda: None)
        try:
            if was_sound:
                offer.passed.add(sound.key)
            admission.enlist(two)
            admission.try_again([sound.key])
            await admission.settled([sound.key])
        finally:
            admission.close()
        assert offer.may_serve(sound.key) == is_served
        assert ("without the workers on cpu" in caplog.text) == was_sound
        assert (f"{label_of(sound.key)} is left out" in caplog.text) != is_served

    within(LIMIT_S, work)
