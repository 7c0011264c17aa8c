"""How a server is told to stop: a first signal asks, a later one insists."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from stretto.live.service import Service

log = logging.getLogger("stretto.api")

T = TypeVar("T")
INSIST_S = 1.0


class Stop:
    """The first signal asks; a later one insists. Two at once are one: a shell and its child may both pass it on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, asked: asyncio.Event | None = None):
        self.asked = asked or asyncio.Event()
        self.is_graceful = False  # it was not a person who waits
        self.service: Service | None = None
        self._loop = loop
        self._asked_s = 0.0

    async def unless_asked(self, work: Awaitable[T]) -> T | None:
        """What the work brings; None where the signal comes first."""
        task, asked = asyncio.ensure_future(work), asyncio.ensure_future(self.asked.wait())
        done, _ = await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if task in done:
            return task.result()
        task.cancel()
        return None

    def signalled(self, is_graceful: bool = False) -> None:
        if not self.asked.is_set():
            self.is_graceful = is_graceful
            self._asked_s = self._loop.time()
            self.asked.set()
        elif self._loop.time() - self._asked_s > INSIST_S:
            log.warning("told twice; ending at once")
            if self.service is not None:
                self.service.engine.crew.kill()
            logging.shutdown()
            os._exit(1)  # whatever else would wait for something
