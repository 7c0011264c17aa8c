"""The real server behind real front-end processes: its scheduler in a thread of the test, as in serving.py."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stretto.api.front_counts import FrontCounts
from stretto.api.front_ends import FrontEnds, Slot
from stretto.api.handover import OPEN
from stretto.api.plane import Plane
from stretto.api.serve_options import ServeOptions, share_of
from stretto.api.server import Listeners
from tests.api.serving import Running, Wire

FRONT_ENDS = 2
MEMORY = "memfd:stretto-front"


class RunningFronts(Running):
    """`fronts` are its front ends; `listeners` has management only, and the addresses of all."""

    fronts: FrontEnds

    def __init__(self, repository: Path | str, count: int = FRONT_ENDS, **options: Any):
        super().__init__(repository, **options)
        self._count = count
        self.front_repository = ""  # where front ends find another one

    async def _start(self) -> None:
        self.service = self._service()
        service = replace(self.service.options, repository=self.front_repository or self._repository)
        options = ServeOptions(service, self._listen, front_ends=self._count)
        listen = share_of(self._listen, self._count)
        plane = Plane(limits=listen.limits)
        self.fronts = FrontEnds(options, plane)
        self.listeners = Listeners(plane, replace(listen, http_port=None, grpc_port=None))
        await self.listeners.start()
        await self.fronts.start()
        await self.service.start()
        await self.fronts.opened_all()
        self.fronts.serve(self.service)
        plane.serve(self.service)
        self.listeners.addresses |= self.fronts.addresses

    async def _stop(self) -> None:
        await self.fronts.stop()
        await super()._stop()

    def _is_settled(self) -> bool:
        desk = self.fronts.desk
        if desk is None or not super()._is_settled():
            return False
        desk.look()
        return desk.is_known and all(slot.is_listening and slot.front is not None for slot in self.fronts.slots)

    def counts_of(self) -> list[FrontCounts]:
        return self.call(lambda: [slot.counts for slot in self.fronts.slots])

    def wires(self, *wanted: int) -> list[Wire]:
        """So many connections to each front end (one, where nothing is said), in order. The system chooses which one
        gets a connection, and front ends hand them over with an answer; so it takes a few tries.
        """
        wanted = wanted or (1,) * len(self.fronts.slots)
        wires: list[Wire] = []
        found: dict[int, list[Wire]] = {}
        while any(len(found.get(number, ())) < count for number, count in enumerate(wanted)):
            assert len(wires) < 200, "the system gives all connections to one front end"
            wires.append(self.wire())
            assert wires[-1].ask("GET", "/v2/health/live").status == 200
            self.wait_until(lambda: None not in self.owners(wires), "every connection is somebody's")
            found = {number: [] for number in range(len(wanted))}
            for wire, owner in zip(wires, self.owners(wires), strict=True):
                found[owner or 0].append(wire)
        chosen = [wire for number, count in enumerate(wanted) for wire in found[number][:count]]
        for wire in wires:
            if wire not in chosen:
                wire.socket.close()
        rows = self.fronts._handovers.counts.rows
        self.wait_until(lambda: rows[:, OPEN].sum() == sum(wanted), "the others are closed")
        return chosen

    def owners(self, wires: Sequence[Wire]) -> list[int | None]:
        """The front end that has the other end of each; None: it is on its way."""
        inodes = {slot.number: sockets_of(pid_of(slot)) for slot in self.fronts.slots}
        by_port = server_sockets(self.address()[1])
        there = [f"socket:[{by_port.get(wire.socket.getsockname()[1])}]" for wire in wires]
        return [next((number for number, theirs in inodes.items() if each in theirs), None) for each in there]

    def kill(self, number: int) -> None:
        os.kill(pid_of(self.fronts.slots[number]), signal.SIGKILL)

    def wait_until_back(self, number: int, restarts: int = 1) -> None:
        slot = self.fronts.slots[number]
        self.wait_until(lambda: slot.restarts == restarts and slot.is_listening, "it was started again, and serves")


def pid_of(slot: Slot) -> int:
    assert slot.process is not None
    return slot.process.pid


def server_sockets(port: int) -> dict[int, str]:
    """The inodes of this machine's connections to a port, by the client's port."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {int(at[2].rpartition(":")[2], 16): at[9] for at in lines if int(at[1].rpartition(":")[2], 16) == port}


def sockets_of(pid: int) -> set[str]:
    """Of a process, as the system knows them."""
    folder = f"/proc/{pid}/fd"
    found = set()
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def mapped(pid: int | str = "self") -> int:
    """Memories of front ends that a process sees."""
    if pid == "self":
        gc.collect()  # what a test before held in circles
    return Path(f"/proc/{pid}/maps").read_text().count(MEMORY)
