"""The scheduler's side of the face: front ends come and go, and are told what is served.

What they are told of what is served is the directory.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stretto.live.face.front_end import FrontEnd
from stretto.live.face.link import Link
from stretto.live.face.memory import FrontMemory
from stretto.live.face.messages import Kind, text
from stretto.live.face.numbering import Numbering
from stretto.live.moves import NO_FRONT_END

if TYPE_CHECKING:
    from stretto.live.service import Service
    from stretto.repository.application import ApplicationFiles

log = logging.getLogger("stretto.live")

LOOK_S = 0.05  # at what the directory says
SETTLE_S = 2.0  # at most, for front ends to take up a change
SETTLE_STEP_S = 0.002


def tensors_digest(files: ApplicationFiles) -> str:
    """What a front end and the scheduler must agree on before tensors of an application are sent."""
    return hashlib.sha256(repr((files.input, files.output)).encode()).hexdigest()[:16]


class Desk:
    """All front ends of one scheduler. On the loop's thread."""

    def __init__(self, service: Service, statistics: Callable[[], dict[str, Any]] = dict):
        """`statistics` is the document of all applications that front ends answer with."""
        self.service = service
        self.loop = asyncio.get_running_loop()
        self.clock = service.engine.clock
        self.fronts: dict[int, FrontEnd] = {}
        self.numbering = Numbering()
        self.is_leaving = False  # they serve on for a while, but clients should go elsewhere
        self._digests: dict[str, tuple[ApplicationFiles, str]] = {}
        self._directory: dict[str, Any] = {}
        self.statistics = statistics
        self._edition = 0
        self._leaving: dict[str, int] = {}  # by application: the edition since which it leaves
        if service.moves is not None:
            service.moves.fronts = self
        self.on_gone: Callable[[FrontEnd], None] = lambda front: None
        self._next = 0
        self._task = self.loop.create_task(self._work())

    def connect(self, link: Link, memory: FrontMemory | None = None, number: int | None = None) -> FrontEnd:
        """A front end is there; it is told what is served. `number` is its own where its memory is known by it."""
        if number is None:
            number, self._next = self._next, self._next + 1
        front = FrontEnd(self.service, self.numbering, number, link, memory, self.statistics, self._gone)
        self.fronts[number] = front
        self.look(front)
        return front

    def _gone(self, front: FrontEnd) -> None:
        if self.fronts.get(front.number) is front:
            del self.fronts[front.number]
            self.on_gone(front)

    def stop(self) -> None:
        self._task.cancel()
        for front in list(self.fronts.values()):
            front.link.close()
            front.memory = None

    def look(self, *new: FrontEnd) -> None:
        """Whoever is new is told what is served, and everybody where that has changed."""
        directory = self._as_of_now()
        if directory != self._directory:
            self._directory, self._edition = directory, self._edition + 1
            self._leaving = {name: self._leaving.get(name, self._edition) for name in directory["leaving"]}
            new = tuple(self.fronts.values())
        if new:
            content = text(self._directory | {"version": self.numbering.version, "edition": self._edition})
            for front in new:
                front.link.send(Kind.DIRECTORY, content)

    async def settled(self) -> None:
        """Until every front end serves what is served now; one that hangs is not waited for."""
        self.look()
        end = self.loop.time() + SETTLE_S
        while not self.is_known and self.loop.time() < end:
            await asyncio.sleep(SETTLE_STEP_S)

    @property
    def is_known(self) -> bool:
        """Every front end serves what was served at the last look."""
        return all(front.known >= self._edition for front in self.fronts.values())

    def waited_for(self, application: str) -> list[str]:
        """As Moves asks. Where no front end is here, one that comes is waited for: it may be away for a moment only."""
        since, fronts = self._leaving.get(application, math.inf), self.fronts.values()
        waited = [front.name for front in fronts if front.elsewhere[0] < since or application not in front.elsewhere[1]]
        return waited if fronts else [NO_FRONT_END]

    def _as_of_now(self) -> dict[str, Any]:
        service, served, moves = self.service, {}, self.service.moves
        for name, files in service.files.items():
            self.numbering.take(name, files)
            variants = service.variants_of(name)
            for variant in variants:
                self.numbering.take_variant(name, variant)
            served[name] = {
                "variants": list(variants),
                "is_ready": service.is_ready(name),
                "tensors": self._digest(name, files),
            }
        return {
            "state": service.state.value,
            "is_ready": service.is_ready() and not self.is_leaving,
            "is_leaving": self.is_leaving,
            "workers": service.engine.crew.ready_count,
            "applications": list(self.numbering.applications),
            "variants": list(self.numbering.variants),
            "served": served,
            "unloaded": sorted(service.offer.unloaded),
            "leaving": [] if moves is None else sorted(moves.leaving & served.keys()),
            "partition": 0 if moves is None else moves.share.partition.version,
        }

    def _digest(self, name: str, files: ApplicationFiles) -> str:
        known = self._digests.get(name)
        if known is None or known[0] is not files:
            known = self._digests[name] = files, tensors_digest(files)
        return known[1]

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self.look()
            except Exception:  # whatever it is, front ends are told again at the next look
                log.exception("front ends could not be told")
