"""A scheduler and front ends in one loop, workers as real processes, all joined over sockets of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stretto.live.cluster.joining import Joining
from stretto.live.cluster.keys import keys_from
from stretto.live.cluster.remote import RemoteExecutor
from stretto.live.cluster.roster import Roster
from stretto.live.cluster.scheduling import Scheduling
from stretto.live.cluster.wire import Wires
from stretto.live.face.front_service import FrontService
from stretto.live.options import ServiceOptions
from stretto.live.requests import Request
from stretto.live.service import Service
from stretto.repository.read import read_repository
from tests.live.real import ROOT, Awaited, asked, until
from tests.live.test_service import service_of
from tests.repository.build import KIND

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def free_endpoint() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def ports_of(pid: int) -> list[int]:
    """Where a process listens."""
    inodes = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            inodes.add(os.readlink(each))
    tables = [Path(f"/proc/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    return [
        int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in inodes
    ]


@dataclass
class Scheduler:
    service: Service
    roster: Roster
    scheduling: Scheduling

    def pids(self) -> set[int]:
        """Of the workers that are here, from their names."""
        return {int(worker.hello.name.split("/")[1]) for worker in self.roster.workers.values()}


@asynccontextmanager
async def scheduler(
    root: Path, endpoint: str, workers: int = 1, key: bytes | None = None, **options: Any
) -> AsyncIterator[Scheduler]:
    roster = Roster(tuple)
    asking: dict[str, Any] = {"worker_rss_bytes": 0, "workers": workers} | options
    async with service_of(root, factory=partial(RemoteExecutor, roster=roster), is_ready=False, **asking) as service:
        wires = Wires(keys_from(key))
        made = Scheduling(service, roster, wires, endpoint)
        try:
            yield Scheduler(service, roster, made)
        finally:
            made.close()
            wires.close()


@dataclass
class Front:
    service: FrontService
    ended: list[Request] = field(default_factory=list)

    def ask(self, inputs: np.ndarray, application: str = "rows", **wish: Any) -> Awaited:
        return asked(self.service.engine, inputs, application, **wish)

    async def ready(self, workers: int = 1) -> None:
        await until(lambda: self.service.is_ready() and self.service.engine.directory.workers == workers)


@asynccontextmanager
async def front_end(root: Path, endpoint: str, key: bytes | None = None) -> AsyncIterator[Front]:
    wires = Wires(keys_from(key))
    joining = Joining(wires, "front end")
    service = FrontService(ServiceOptions(str(root), workers=1), read_repository(str(root)), joining.store)
    service.start()
    joining.join(endpoint, service.engine, service.engine)
    try:
        yield Front(service)
    finally:
        joining.close()
        service.stop()
        wires.close()
        assert service.engine.waiting == 0


@contextmanager
def worker_processes(endpoint: str, count: int = 1, *more: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "stretto", "worker", "--scheduler", endpoint, "--kind", KIND, *more]
    made = [subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield made
    finally:
        for process in made:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in made:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


async def load(front: Front, inputs: np.ndarray, seconds: float, pause_s: float = 0.004, **wish: Any) -> list[Request]:
    """Asks for so long, whatever becomes of it; all of them as they ended."""
    loop = asyncio.get_running_loop()
    end, waiting, engine = loop.time() + seconds, [], front.service.engine
    while loop.time() < end:
        if engine.directory.served:
            waiting.append(front.ask(inputs, **wish))
        await asyncio.sleep(pause_s)
    return [await each for each in waiting]
