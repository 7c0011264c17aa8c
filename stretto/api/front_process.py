"""A front-end process: `python -m stretto.api.front_process SOCKET MEMORY BYTES NUMBER HANDOVER…`, where a socket, its
memory and what `Handover.of` takes are descriptors.

It talks to the server that started it on one socket, and ends when that closes: a server that is gone leaves no front
ends behind. Its options come there first, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from typing import Any

from stretto.api.beginning import GC_THRESHOLDS
from stretto.api.bounds import rehearse_bounds
from stretto.api.front import FrontOptions, FrontServer
from stretto.api.handover import Handover
from stretto.api.logs import LogLines, set_up_logs
from stretto.api.run import SWITCH_S
from stretto.core.errors import StrettoError
from stretto.live.children import end_with_parent
from stretto.live.face.link import StreamLink
from stretto.live.face.memory import FrontMemory
from stretto.live.face.messages import NONSENSE, Kind, plain, text
from stretto.live.face.shared_store import SharedStore
from stretto.repository.read import read_repository

log = logging.getLogger("stretto.api")


class Ear:
    """What the server says: options first, and from then on what the front end is to know."""

    def __init__(self) -> None:
        self.options: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.front: FrontServer | None = None

    def heard(self, kind: int, payload: memoryview) -> None:
        if self.front is not None:
            self.front.heard(kind, payload)
        elif kind == Kind.OPTIONS and not self.options.done():
            self.options.set_result(plain(payload))
        else:
            raise StrettoError(NONSENSE)

    def lost(self) -> None:
        if self.front is None or self.front.plane.is_starting:
            os._exit(0)  # nothing was begun
        self.front.lost()
        self.front.asked.set()


async def work(channel: socket.socket, memory: FrontMemory, *handing_over: int) -> None:
    ear, handover = Ear(), Handover.of(*handing_over)
    _, link = await asyncio.get_running_loop().create_unix_connection(lambda: StreamLink(ear), sock=channel)
    lines: LogLines | None = None
    try:
        options = FrontOptions.from_json(await ear.options)
        lines = set_up_logs(options.log_format, options.log_level)
        repository = await asyncio.to_thread(read_repository, options.repository)
        await asyncio.to_thread(rehearse_bounds)  # compiled code, before the first request needs it
        front = ear.front = FrontServer(options, repository, SharedStore(memory), shares_ports=True, handover=handover)
        front.service.engines[0].linked(link, options.name)
        if options.is_later:
            await front.served.wait()
        await front.start()
    except (StrettoError, OSError) as error:
        link.send(Kind.PROBLEM, text({"problem": str(error)}))
        link.close()
        return
    front.engine.tell(Kind.LISTENS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    await front.asked.wait()
    await front.stop()
    lines.flush()


def main() -> None:
    # They may reach the whole group; the server ends its front ends itself.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    descriptor, memory_descriptor, size, *handing_over = map(int, sys.argv[1:])
    channel = socket.socket(fileno=descriptor)
    channel.setblocking(False)
    memory = FrontMemory(memory_descriptor, size)
    sys.setswitchinterval(SWITCH_S)
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=_loop) as runner:
        runner.run(work(channel, memory, *handing_over))


def _loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


if __name__ == "__main__":
    main()
