"""A front end of several schedulers: requests go to one that serves their application; each is lost by itself."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from stretto.core.outcome import Outcome
from stretto.live.face.desk import Desk
from stretto.live.face.front import Directory
from stretto.live.face.front_end import FrontEnd
from stretto.live.face.front_service import FrontService
from stretto.live.face.link import StreamLink
from stretto.live.face.memory import FrontMemory
from stretto.live.face.routed import merged
from stretto.live.face.shared_store import SharedStore
from stretto.live.options import ServiceOptions
from stretto.live.requests import Request
from stretto.live.service import Service
from stretto.repository.read import read_repository
from tests.live.face.paired import linked
from tests.live.real import asked, conserved, sample, until, within
from tests.live.test_service import service_of

MEMORY = 1 << 20
ZOO = {"kind": None}


@asynccontextmanager
async def routed(*services: Service) -> AsyncIterator[tuple[FrontService, list[Desk], list[StreamLink]]]:
    """A front end of the zoo, with a link to each of these."""
    memories = [FrontMemory.made(MEMORY) for _ in services]
    stores = [SharedStore(FrontMemory(os.dup(memory.descriptor), MEMORY)) for memory in memories]
    front = FrontService(ServiceOptions("zoo"), read_repository("zoo"), *stores)
    desks, links = [], []
    for service, memory, engine in zip(services, memories, front.engines, strict=True):
        ours, theirs = socket.socketpair()
        link = await linked(ours, None)
        desk = Desk(service)
        there: FrontEnd = desk.connect(link, memory)
        link.peer = there
        engine.linked(await linked(theirs, engine), "front end")
        desks.append(desk)
        links.append(link)
    front.start()
    try:
        yield front, desks, links
    finally:
        front.stop()
        for desk, link in zip(desks, links, strict=True):
            desk.stop()
            link.close()
        await until(lambda: not front.engine.is_linked)


def test_each_application_is_answered_by_its_own_scheduler() -> None:
    async def work() -> None:
        async with (
            service_of("zoo", only=("fashion/linear",), **ZOO) as one,
            service_of("zoo", only=("mnist/*",), **ZOO) as other,
            routed(one, other) as (front, _, links),
        ):
            await until(lambda: front.is_ready("fashion") and front.is_ready("mnist"))
            assert set(front.files) == {"fashion", "mnist"} and front.engine.directory.workers == 2
            images = sample("fashion", 1)
            answered = [await asked(front.engine, images, "fashion") for _ in range(3)]
            answered.append(await asked(front.engine, sample("mnist", 1), "mnist"))
            assert {each.outcome for each in answered} == {Outcome.ON_TIME}
            assert answered[0].variants == ["linear"]
            counts = [service.engine.books.totals(service.engine.generations()) for service in (one, other)]
            assert counts[0]["fashion"][0] == 3 and counts[1]["mnist"][0] == 1
            with pytest.raises(KeyError):
                front.engine.submit(Request("activity", images, 10**9, lambda ended: None))
            links[0]._transport.abort()  # type: ignore[union-attr]
            await until(lambda: not front.is_ready("fashion"))
            assert front.is_ready() and front.is_ready("mnist") and set(front.files) == {"mnist"}
            assert (await asked(front.engine, sample("mnist", 1), "mnist")).outcome is Outcome.ON_TIME
            assert conserved(one.engine) and conserved(other.engine)
            assert sum(front.engine.outcomes.values()) == sum(front.engine.submitted.values()) == 5

    within(90, work)


def test_two_that_serve_the_same_share_it_and_one_is_enough() -> None:
    async def work() -> None:
        only = {"only": ("fashion/linear",), **ZOO}
        async with (
            service_of("zoo", **only) as one,
            service_of("zoo", **only) as other,
            routed(one, other) as (front, _, links),
        ):
            await until(lambda: front.engine.directory.workers == 2)
            two = [Request("fashion", sample("fashion", 1), 10**10, lambda ended: None) for _ in range(2)]
            for engine, request in zip(front.engines, two, strict=True):
                engine.submit(request)
            assert two[0].number == two[1].number
            front.engine.cancel(two[1])  # who has another one of that number leaves it alone
            await until(lambda: all(request.outcome is not None for request in two))
            assert two[0].outcome is Outcome.ON_TIME
            requests = [asked(front.engine, sample("fashion", 1), "fashion") for _ in range(40)]
            assert {(await each).outcome for each in requests} == {Outcome.ON_TIME}
            shares = [
                service.engine.books.totals(service.engine.generations())["fashion"][0] for service in (one, other)
            ]
            assert sum(shares) == 42 and min(shares) >= 10
            gone = asked(front.engine, np.zeros((1, 1, 28, 28), np.float32), "fashion")
            front.engine.cancel(gone.request)
            assert (await gone).outcome in (Outcome.DROPPED_CANCELLED, Outcome.ON_TIME)
            links[1]._transport.abort()  # type: ignore[union-attr]
            await until(lambda: front.engine.directory.workers == 1)
            assert (await asked(front.engine, sample("fashion", 1), "fashion")).outcome is Outcome.ON_TIME

    within(90, work)


def test_whoever_is_ready_and_stays_goes_first_and_then_the_latest_partition() -> None:
    def directory(tensors: str, partition: int, is_ready: bool = True, leaves: bool = False) -> Directory:
        served = {"a": {"variants": ["v"], "is_ready": is_ready, "tensors": tensors}}
        return Directory({"served": served, "partition": partition, "leaving": ["a", "b"] if leaves else []})

    best_last = [
        directory("not ready", 9, is_ready=False),
        directory("leaving", 8, leaves=True),
        directory("older", 2),
        directory("newer", 3),
    ]
    for count in range(1, len(best_last) + 1):
        for order in (best_last[:count], best_last[:count][::-1]):
            assert merged(order).tensors["a"] == best_last[count - 1].tensors["a"]
    assert best_last[1].leaving == {"a"}, "what is not served cannot leave"
