"""Sub-clusters with a scheduler each: applications move from one to the other while both serve, and nobody notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.config.partition import read_partition
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.partition import Partition, Share, partition_text
from stretto.live import lookout
from stretto.live.face.front_service import FrontService
from stretto.live.lookout import PROVEN
from stretto.live.service import Service
from stretto.planners.parts.choose import choose_variants
from stretto.repository.read import read_repository
from tests.live.face.test_routed import routed
from tests.live.real import Awaited, asked, conserved, sample, until, within
from tests.live.test_service import service_of

FIRST = Partition({"fashion": 0, "mnist": 0, "activity": 1}, 2)
IMAGE = sample("mnist", 1)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that a busy machine gives no processor time for a quarter of a second is none whose model hangs."""
    monkeypatch.setattr(lookout, "SUSPICION_NS", 20_000_000_000)


def after(partition: Partition, **homes: int) -> Partition:
    return replace(partition, homes={**partition.homes, **homes}, version=partition.version + 1)


@asynccontextmanager
async def sub_clusters(file: Path | None = None, **options: Any) -> AsyncIterator[tuple[Service, Service]]:
    """Of two workers each; `options` are those of the second."""
    shares = [Share(FIRST, number, file) for number in (0, 1)]
    async with (
        service_of("zoo", share=shares[0], kind=None, workers=2) as one,
        service_of("zoo", share=shares[1], kind=None, workers=2, **options) as other,
    ):
        await until(lambda: other.engine.crew.ready_count == 2)
        yield one, other


async def take_up(service: Service, partition: Partition) -> None:
    assert service.moves is not None
    await service.moves.take_up(partition)


async def asked_until_over(front: FrontService, moving: asyncio.Task[None]) -> list[Awaited]:
    """Queries of all the time, and some after it."""
    sent: list[Awaited] = []
    while not moving.done() or len(sent) < 20:
        sent.append(asked(front.engine, IMAGE, "mnist"))
        await asyncio.sleep(0.005)
    await moving
    return sent + [asked(front.engine, IMAGE, "mnist") for _ in range(20)]


def submitted(service: Service, application: str) -> int:
    totals = service.engine.books.totals(service.engine.generations())
    return totals[application][0] if application in totals else 0


def loads_noted(service: Service) -> list[int]:
    """How many workers load beside their work, as of each time that one begins."""
    crew, busy, noted = service.engine.crew, set[int](), list[int]()
    prepare = crew.prepare

    def noting(worker: int, specs: Any, done: Callable[[dict[str, str]], None]) -> None:
        busy.add(worker)
        noted.append(len(busy))

        def ended(broken: dict[str, str]) -> None:
            busy.discard(worker)
            done(broken)

        prepare(worker, specs, ended)

    crew.prepare = noting  # type: ignore[method-assign]
    return noted


TIGHT = 8_500_000  # bytes: not all variants of mnist and activity together, but the largest of each


@pytest.mark.parametrize(
    ("order", "options"),
    [((0, 1), {}), ((1, 0), {}), ((1, 0), {"worker_memory_bytes": TIGHT})],
    ids=["old-first", "new-first", "short-of-memory"],
)
def test_an_application_moves_under_load_whoever_hears_of_it_first(
    order: tuple[int, int], options: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "parts.json"
    file.write_text(partition_text(FIRST))
    second = after(FIRST, mnist=1)

    async def work() -> None:
        async with sub_clusters(file, **options) as services, routed(*services) as (front, _, _):
            one, other = services
            loads = loads_noted(other)
            assert set(one.files) == {"fashion", "mnist"} and set(other.files) == {"activity"}
            await until(lambda: front.is_ready("mnist") and front.is_ready("activity"))
            for _ in range(PROVEN):
                assert (await asked(front.engine, sample("activity", 1), "activity")).outcome is Outcome.ON_TIME
            assert not other.engine.crew.lookout.on_trial

            async def move() -> None:
                await asyncio.sleep(0.1)
                for number in order:
                    await take_up(services[number], second)
                    assert not other.engine.crew.lookout.on_trial, "it has proven itself elsewhere"
                await until(lambda: "mnist" not in one.files)

            sent = await asked_until_over(front, asyncio.create_task(move()))
            ended = [await request for request in sent]
            assert {(each.outcome, each.problem) for each in ended} == {(Outcome.ON_TIME, "")}
            assert all(np.isfinite(each.answers).all() for each in ended)
            assert submitted(one, "mnist") + submitted(other, "mnist") == len(sent)
            assert submitted(other, "mnist") >= 20 and submitted(one, "mnist") > 0
            assert conserved(one.engine) and conserved(other.engine)
            assert front.engine.submitted["mnist"] == front.engine.outcomes["mnist", Outcome.ON_TIME] == len(sent)
            await until(lambda: one.moves is not None and not one.moves.leaving)
            assert set(one.files) == {"fashion"} and set(other.files) == {"activity", "mnist"}
            assert loads == [1, 1], "one worker after the other"
            held = one.engine.generation.deployment.applications
            assert [application.name for application in held] == ["fashion"]

    within(90, work)
    assert read_partition(file) == second, "the next start serves the same"


CLUSTERED = Partition({"fashion": 0, "mnist": 1, "activity": 2}, 4, 2)


def crews(service: Service) -> dict[str, set[int]]:
    """Who serves what, as the planner made it."""
    return {lane.name: set(lane.workers) for lane in service.engine.generation.in_force.made.lanes}


def room_of(*names: str) -> int:
    """That one of these models needs, and not two of them."""
    zoo = read_repository("zoo").deployment(1)[0]
    chosen = [zoo.variants[each] for each in choose_variants(zoo)]
    by_name = {application.name: variant for application, variant in zip(zoo.applications, chosen, strict=True)}
    return max(by_name[name].memory_bytes + by_name[name].dynamic_memory_bytes for name in names)


@pytest.mark.parametrize("is_tight", [False, True], ids=["room", "short-of-memory"])
def test_an_application_moves_between_clusters_that_are_split_themselves(is_tight: bool) -> None:
    """The upper level is told, the lower one is each scheduler's own (Symphony 4.7)."""
    options = {"kind": None, "workers": 2, "planner": "symphony_eager", "planner_options": {"sub_clusters": 2}}
    memory = {"worker_memory_bytes": room_of("mnist", "activity")} if is_tight else {}
    shares = [Share(CLUSTERED, number, is_cluster=True) for number in (0, 1)]

    async def work() -> None:
        async with (
            service_of("zoo", share=shares[0], **options) as one,
            service_of("zoo", share=shares[1], **options, **memory) as other,
            routed(one, other) as (front, _, _),
        ):
            await until(lambda: all(service.engine.crew.ready_count == 2 for service in (one, other)))
            await until(lambda: front.is_ready("mnist") and front.is_ready("activity"))
            assert set(one.files) == {"fashion", "mnist"} and set(other.files) == {"activity"}
            assert not crews(one)["fashion"] & crews(one)["mnist"], "a sub-cluster each"
            loads = loads_noted(other)

            async def move() -> None:
                await asyncio.sleep(0.1)
                for service in (one, other):
                    await take_up(service, after(CLUSTERED, mnist=3))
                await until(lambda: "mnist" not in one.files)

            moving, ended = asyncio.create_task(move()), list[Outcome]()  # one at a time: doors are narrow here
            while not moving.done() or submitted(other, "mnist") < 20:
                asking = asked(front.engine, IMAGE, "mnist"), asked(front.engine, sample("activity", 1), "activity")
                ended += [(await each).outcome for each in asking]
            await moving
            assert set(ended) == {Outcome.ON_TIME}
            assert submitted(one, "mnist") + submitted(other, "mnist") == len(ended) // 2
            assert submitted(one, "mnist") > 0
            await until(lambda: not crews(other)["mnist"] & crews(other)["activity"])
            assert set(other.files) == {"activity", "mnist"} and conserved(one.engine) and conserved(other.engine)
            assert set(loads) <= {1}, "one worker after the other"

    within(90, work)


def test_nothing_leaves_before_every_front_end_has_it_elsewhere() -> None:
    async def work() -> None:
        async with sub_clusters() as (one, other):
            assert one.moves is not None
            moves = one.moves
            await take_up(one, after(FIRST, mnist=1))
            assert moves.waiting() == {"mnist": ["front ends (none is there)"]}
            async with routed(one, other) as (front, _, links):
                await until(lambda: front.is_ready("mnist") and moves.waiting() == {"mnist": ["front end"]})
                assert (await asked(front.engine, IMAGE, "mnist")).outcome is Outcome.ON_TIME
                links[1]._transport.abort()  # type: ignore[union-attr]
                await until(lambda: not front.engines[1].is_linked)
                await take_up(other, after(FIRST, mnist=1))
                await asyncio.sleep(0.2)
                assert "mnist" in one.files and (await asked(front.engine, IMAGE, "mnist")).outcome is Outcome.ON_TIME
                back = replace(FIRST, version=3)  # it stays after all
                for service in (one, other):
                    await take_up(service, back)
                assert not moves.leaving and set(one.files) == {"fashion", "mnist"}
                assert submitted(one, "mnist") == 2

    within(90, work)


def test_what_cannot_be_is_refused_with_its_reason_and_changes_nothing() -> None:
    second = after(FIRST, mnist=1)

    async def refused(service: Service, partition: Partition, told: str) -> None:
        assert service.moves is not None
        before = set(service.files), service.offer.share, service.moves.share
        with pytest.raises(StrettoError, match=told):
            await take_up(service, partition)
        assert (set(service.files), service.offer.share, service.moves.share) == before

    async def work() -> None:
        room = room_of("fashion", "mnist", "activity")
        async with service_of("zoo", share=Share(FIRST, 1), kind=None, worker_memory_bytes=room) as service:
            await refused(service, after(FIRST, mnist=1, fashion=1), "the sub-cluster of model fashion needs")
        async with service_of("zoo", share=Share(FIRST, 1), kind=None) as service:
            await refused(service, after(FIRST, activity=0), "has no applications")
            await refused(service, replace(second, version=1), "version 1 of the partition is in force")
            await refused(service, after(FIRST, unknown=1), "no application 'unknown'")
            await refused(service, replace(second, sub_clusters=3), "sub-cluster 1 of 2")
            await take_up(service, FIRST)  # it is in force already
        async with service_of("zoo", share=Share(CLUSTERED, 1, is_cluster=True), kind=None) as service:
            await refused(service, replace(after(CLUSTERED), clusters=4), "cluster 1 of 2, and the partition has 4")

    within(90, work)
