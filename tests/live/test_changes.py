"""A change that fails half way, at each of its steps: what was served before is served on, and the same change can be
made again.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.core.outcome import Outcome
from stretto.core.partition import Partition, Share
from stretto.live.fleet import WorkerSpec
from stretto.live.service import Service
from tests.live.real import conserved, until, within
from tests.live.test_service import ask, built, service_of
from tests.repository.build import KIND, Built

__all__ = ["built"]
LIMIT_S = 60.0


class HalfWay(Exception):
    """What a step raises in these tests."""


# Each step of a change, in order: whose method it is.
STEPS: dict[str, Callable[[Service], tuple[Any, str]]] = {
    "what could be served is looked at": lambda service: (service.offer, "everything"),
    "what may be served is put together": lambda service: (service.offer, "served"),
    "workers load what is new": lambda service: (service.engine.succession, "hold"),
    "the plan is made": lambda service: (service.session, "first"),
    "the engine moves over": lambda service: (service.engine.succession, "replace"),
}


async def failing(service: Service, step: str, change: Awaitable[None], error: type[BaseException] = HalfWay) -> None:
    """The change fails at this step, and only now."""
    owner, name = STEPS[step](service)
    real, calls = getattr(owner, name), 0

    def broken(*values: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        raise error(step)

    setattr(owner, name, broken)
    try:
        with pytest.raises(error):
            await change
    finally:
        setattr(owner, name, real)
    assert calls >= 1, "the change did not come that far"


def two(built: Built) -> None:
    shutil.copytree(built.app, built.root / "other")


async def is_served(service: Service, *applications: str) -> bool:
    """These answer, and no other does."""
    assert set(service.files) == set(applications) == set(service.engine.generation.numbers)
    ends = [(await ask(service, name)).outcome for name in applications]
    return set(ends) == {Outcome.ON_TIME} and all(map(service.is_ready, applications)) and conserved(service.engine)


@pytest.mark.parametrize("step", STEPS)
def test_an_application_whose_unload_fails_is_served_on(built: Built, step: str) -> None:
    two(built)

    async def work() -> None:
        async with service_of(built.root, reload_s=0) as service:
            await failing(service, step, service.changes.unload("other"))
            assert service.offer.unloaded == set() and await is_served(service, "rows", "other")
            await service.changes.unload("other")
            assert service.offer.unloaded == {"other"} and await is_served(service, "rows")

    within(LIMIT_S, work)


@pytest.mark.parametrize("step", STEPS)
def test_an_application_whose_load_fails_stays_unloaded(built: Built, step: str) -> None:
    """And is not served by whatever change comes next."""
    two(built)

    async def work() -> None:
        async with service_of(built.root, reload_s=0) as service:
            await service.changes.unload("other")
            await failing(service, step, service.changes.load("other"))
            assert service.offer.unloaded == {"other"} and await is_served(service, "rows")
            built.metrics("fast", accuracy=0.99)
            assert await service.changes.take_up(await service.changes.read_anew())
            assert await is_served(service, "rows") and max(service.engine.generation.accuracy) == 0.99
            await service.changes.load("other")
            assert service.offer.unloaded == set() and await is_served(service, "rows", "other")

    within(LIMIT_S, work)


def test_a_load_that_is_cancelled_half_way_leaves_it_unloaded(built: Built) -> None:
    """As by a caller of management that hangs up."""
    two(built)

    async def work() -> None:
        async with service_of(built.root, reload_s=0) as service:
            await service.changes.unload("other")
            holds = asyncio.Event()

            async def for_ever(*values: Any, **named: Any) -> dict[str, str]:
                holds.set()
                await asyncio.sleep(LIMIT_S)
                return {}

            real, service.engine.succession.hold = service.engine.succession.hold, for_ever  # type: ignore[method-assign]
            loading = asyncio.create_task(service.changes.load("other"))
            await holds.wait()
            assert service.offer.unloaded == set()
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            service.engine.succession.hold = real  # type: ignore[method-assign]
            assert service.offer.unloaded == {"other"} and await is_served(service, "rows")
            await service.changes.load("other")
            assert await is_served(service, "rows", "other")

    within(LIMIT_S, work)


@pytest.mark.parametrize("step", STEPS)
def test_what_could_not_be_let_go_stays_in_the_share(built: Built, tmp_path: Path, step: str) -> None:
    two(built)
    share = Share(Partition({"rows": 0, "other": 0}, 2), 0, None)

    async def work() -> None:
        async with service_of(built.root, reload_s=0, share=share) as service:
            await until(lambda: set(service.files) == {"rows", "other"})
            await failing(service, step, service.changes.let_go({"other"}))
            assert service.offer.share == {"rows", "other"} and await is_served(service, "rows", "other")
            await service.changes.let_go({"other"})
            assert service.offer.share == {"rows"} and await is_served(service, "rows")

    within(LIMIT_S, work)


@pytest.mark.parametrize("step", ["served", "enlarge"])
def test_workers_that_could_not_be_added_are_not_there(built: Built, step: str) -> None:
    """The fleet of the next change would have workers that nobody started."""

    async def work() -> None:
        async with service_of(built.root, reload_s=0) as service:
            before = service.offer.fleet
            owner = service.offer if step == "served" else service.engine.succession
            real = getattr(owner, step)

            def broken(*values: Any) -> Any:
                raise HalfWay(step)

            setattr(owner, step, broken)
            with pytest.raises(HalfWay):
                await service.changes.add(WorkerSpec(count=2, kind=KIND))
            setattr(owner, step, real)
            assert service.offer.fleet == before and await is_served(service, "rows")
            built.metrics("fast", accuracy=0.99)
            await service.changes.load("rows")
            assert len(service.engine.generation.deployment.workers) == 1 and await is_served(service, "rows")
            await service.changes.add(WorkerSpec(count=2, kind=KIND))
            await until(lambda: service.engine.crew.ready_count == 3)
            assert await is_served(service, "rows")

    within(LIMIT_S, work)
