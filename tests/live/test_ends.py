"""What is left at the end is told, what goes is finished first, and what is broken is not ready."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stretto.core.outcome import Outcome
from stretto.live.executors import executor_factory
from stretto.live.options import ServiceOptions
from stretto.live.quarantine import Fault
from stretto.live.requests import Request
from stretto.live.service import Service
from stretto.repository.read import read_repository, zoo_folder

PATIENCE_S = 60.0


def repository(folder: Path, *names: str) -> str:
    for name in names:
        shutil.copytree(zoo_folder() / name, folder / name)
    return str(folder)


def serving(reference: str, scene: Callable[[Service], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def play() -> None:
        asked = ServiceOptions(reference, workers=1, reload_s=0, ready_all=True, **options)
        service = Service(asked, read_repository(reference), executor_factory(asked.executor_kind))
        await service.start()
        try:
            await until(service.is_ready)
            await scene(service)
        finally:
            await service.stop()

    asyncio.run(asyncio.wait_for(play(), PATIENCE_S))


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


def query(service: Service, application: str, ended: list[Request], slack_s: float = 30.0, **more: Any) -> Request:
    request = Request(application, np.zeros((1, 1, 28, 28), np.float32), round(slack_s * 1e9), ended.append, **more)
    service.engine.submit(request)
    return request


def test_an_application_goes_when_its_queries_have_ended(tmp_path: Path) -> None:
    """Regression: queries with long deadlines failed when the application was unloaded."""

    async def scene(service: Service) -> None:
        ended: list[Request] = []
        for _ in range(4):
            query(service, "fashion", ended, pinned="resnet_l")
        await service.changes.unload("fashion")
        assert [request.outcome for request in ended] == [Outcome.ON_TIME] * 4
        assert "fashion" not in service.engine.generation.numbers and not service.is_ready("fashion")

    serving(repository(tmp_path, "fashion", "mnist"), scene)


def test_what_is_left_is_told_before_the_end(tmp_path: Path) -> None:
    async def scene(service: Service) -> None:
        ended: list[Request] = []
        for _ in range(4):
            query(service, "fashion", ended, pinned="resnet_l")
        assert not await service.drain(0.0)
        service.engine.end_all()
        assert {request.outcome for request in ended} <= {Outcome.FAILED, Outcome.ON_TIME}
        assert len(ended) == 4 and service.engine.waiting == 0

    serving(repository(tmp_path, "fashion"), scene)


def test_an_application_whose_models_are_all_broken_is_not_ready(tmp_path: Path) -> None:
    """Regression: it reported ready, and every query failed."""
    reference = repository(tmp_path, "mnist")
    for name in ("cnn", "mlp", "resnet"):
        shutil.rmtree(tmp_path / "mnist" / "variants" / name)

    async def scene(service: Service) -> None:
        assert service.is_ready("mnist") and service.is_ready()
        (key,) = [spec.key for spec in service.engine.generation.served.specs]
        service.offer.quarantine.put(service.engine.clock(), key, Fault.LOAD_FAILED, "it cannot be loaded")
        assert not service.is_ready("mnist") and not service.is_ready()

    serving(reference, scene)


def test_a_model_is_loaded_beside_the_batches_of_a_process(tmp_path: Path) -> None:
    """Regression: a load that took long held up every batch behind it."""

    async def scene(service: Service) -> None:
        ended: list[Request] = []
        served = service.engine.generation.served
        again = replace(served, specs=tuple(replace(spec, key=f"{spec.key}-again") for spec in served.specs))
        loading = asyncio.ensure_future(service.engine.succession.hold(again))
        query(service, "mnist", ended)
        await until(lambda: len(ended) == 1)
        assert await loading == {} and ended[0].outcome is Outcome.ON_TIME

    serving(repository(tmp_path, "mnist"), scene, executor="process")
