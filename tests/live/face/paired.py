"""A scheduler and front ends in one loop, joined by real sockets and real shared memory."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.live.face.desk import Desk
from stretto.live.face.front_end import FrontEnd
from stretto.live.face.front_service import FrontService
from stretto.live.face.link import Peer, StreamLink
from stretto.live.face.memory import FrontMemory
from stretto.live.face.shared_store import SharedStore
from stretto.live.requests import Request
from stretto.live.service import Service
from stretto.repository.read import read_repository
from tests.live.real import Awaited, asked, until

MEMORY = 1 << 20


async def linked(sock: socket.socket, peer: Peer | None) -> StreamLink:
    _, link = await asyncio.get_running_loop().create_connection(lambda: StreamLink(peer), sock=sock)
    return link


@dataclass
class Pair:
    """`front` as clients meet it, `there` as the scheduler knows it."""

    desk: Desk
    front: FrontService
    there: FrontEnd
    link: StreamLink  # the scheduler's end

    def ask(self, application: str, inputs: np.ndarray, **wish: Any) -> Awaited:
        return asked(self.front.engine, inputs, application, **wish)


@asynccontextmanager
async def paired(service: Service, desk: Desk | None = None, memory: int = MEMORY) -> AsyncIterator[Pair]:
    """A front end of this service; ready when it knows that something is served."""
    own = desk is None
    desk = desk or Desk(service)
    ours, theirs = socket.socketpair()
    scheduler_memory = FrontMemory.made(memory)
    front_memory = FrontMemory(os.dup(scheduler_memory.descriptor), memory)
    front = FrontService(service.options, read_repository(service.options.repository), SharedStore(front_memory))
    link = await linked(ours, None)
    there = desk.connect(link, scheduler_memory)
    link.peer = there
    front.engine.linked(await linked(theirs, front.engine), "front end 0")
    front.start()
    try:
        await until(front.is_ready)
        yield Pair(desk, front, there, link)
    finally:
        front.stop()
        if own:
            desk.stop()
        link.close()
        await until(lambda: not front.engine.is_linked)


def total(front: FrontService) -> int:
    return sum(front.engine.outcomes.values())


def settled(request: Request) -> bool:
    return request.outcome is not None
