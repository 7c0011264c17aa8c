"""Light and heavy workers of one machine, served: each loads and runs what it is named for, and queries are dealt."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from stretto.core.errors import StrettoError
from stretto.live.service import Service
from stretto.live.slots import LocalSlots
from tests.live.real import conserved, until, within
from tests.live.test_service import ask, service_of
from tests.repository.build import KIND, Built, build

LIGHT_AND_HEAVY = (f"cpu,kind={KIND},variant=fast", f"cpu,kind={KIND},variant=rows/good")
PLANNERS = ("edge_rl", "stationary", "single_queue", "leave_it")
BOTH = {"fast", "good"}
LIMIT_S = 150  # the first start on a machine compiles the dispatcher


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return build(tmp_path / "models")


def names_of(service: Service, worker: int) -> set[str]:
    """The variants that a worker loads when it joins."""
    return {spec.key.split("@")[0].split("/")[1] for spec in service.engine.generation.first_models(worker)}


async def answered_by(service: Service, count: int = 100) -> set[str]:
    """The variants that answered, of queries that come together."""
    requests = await asyncio.gather(*(ask(service) for _ in range(count)))
    return {variant for request in requests for variant in request.variants}


@pytest.mark.parametrize("planner", PLANNERS)
def test_queries_are_dealt_to_both(built: Built, planner: str) -> None:
    """Once every worker was given the most accurate variant, and there was nothing to deal."""

    async def work() -> None:
        async with service_of(built.root, workers=0, worker=LIGHT_AND_HEAVY, planner=planner) as service:
            deployment = service.engine.generation.deployment
            assert [worker.kind for worker in deployment.workers] == [f"{KIND}:fast", f"{KIND}:rows.good"]
            assert [names_of(service, worker) for worker in range(2)] == [{"fast"}, {"good"}]
            lanes = service.engine.generation.dispatcher.plan.lanes
            assert {worker for lane in lanes for worker in lane.workers} == {0, 1}
            seen: set[str] = set()
            while seen != BOTH:
                seen |= await answered_by(service)
            assert conserved(service.engine)

    within(LIMIT_S, work)


def test_what_is_removed_and_comes_back(built: Built) -> None:
    """The light worker has nothing to run meanwhile, and the heavy one answers everything."""
    kept = built.root.parent / "kept"

    async def work() -> None:
        async with service_of(built.root, workers=0, worker=LIGHT_AND_HEAVY, planner="single_queue") as service:
            await until(lambda: names_of(service, 0) == {"fast"} and names_of(service, 1) == {"good"})
            shutil.move(built.variant("fast"), kept)
            await until(lambda: names_of(service, 0) == set())
            assert await answered_by(service) == {"good"}
            loading: list[dict[int, list[str]]] = []
            hold = service.engine.succession._holding.hold

            async def held(models: Any, at_once: int | None = None) -> dict[str, str]:
                loading.append({worker: [spec.key for spec in specs] for worker, specs in models.items()})
                return await hold(models, at_once)

            service.engine.succession._holding.hold = held  # type: ignore[method-assign]
            shutil.move(kept, built.variant("fast"))
            await until(lambda: names_of(service, 0) == {"fast"})
            assert any(keys for each in loading for keys in each.values())
            assert not any(each.get(1) for each in loading), "the heavy worker has no use for it"
            seen: set[str] = set()
            while seen != BOTH:
                seen |= await answered_by(service)
            assert names_of(service, 1) == {"good"} and conserved(service.engine)

    within(LIMIT_S, work)


def test_further_workers_may_be_named_too(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root, workers=0, worker=LIGHT_AND_HEAVY, planner="single_queue") as service:
            with pytest.raises(StrettoError, match="there is no variant 'fats'; there are rows/fast, rows/good"):
                await service.changes.add_workers(f"cpu,kind={KIND},variant=fats")
            await service.changes.add_workers(f"cpu,kind={KIND},variant=fast")
            await until(lambda: service.engine.crew.ready_count == 3)
            assert [names_of(service, worker) for worker in range(3)] == [{"fast"}, {"good"}, {"fast"}]

    within(LIMIT_S, work)


def test_each_kind_of_instance_is_scaled_by_itself(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root, workers=0, worker=LIGHT_AND_HEAVY, planner="single_queue") as service:
            slots = LocalSlots(service, service.changes)
            await slots.scale_to(f"{KIND}:fast", 2)
            await until(lambda: service.engine.crew.ready_count == 3)
            assert names_of(service, 2) == {"fast"}
            await slots.scale_to(f"{KIND}:rows.good", 0)
            await until(lambda: service.engine.crew.ready_count == 2)
            assert await answered_by(service) == {"fast"}

    within(LIMIT_S, work)


def test_an_application_whose_last_worker_has_nothing_is_no_longer_served(built: Built) -> None:
    """The others are."""
    shutil.copytree(built.root / "rows", built.root / "other")
    named = (*LIGHT_AND_HEAVY[1:], f"cpu,kind={KIND},variant=other/fast")

    async def work() -> None:
        async with service_of(built.root, workers=0, worker=named, planner="single_queue") as service:
            assert set(service.files) == {"rows", "other"}
            shutil.rmtree(built.root / "other" / "variants" / "fast")
            await until(lambda: set(service.files) == {"rows"})
            assert await answered_by(service) == {"good"}

    within(LIMIT_S, work)


def test_an_application_that_no_worker_runs_is_refused_at_the_start(built: Built) -> None:
    shutil.copytree(built.root / "rows", built.root / "other")

    async def work() -> None:
        with pytest.raises(StrettoError, match="no worker runs application other; name one of fast, good for a worker"):
            async with service_of(built.root, workers=0, worker=(f"cpu,kind={KIND},variant=rows/fast",)):
                pass

    within(LIMIT_S, work)
