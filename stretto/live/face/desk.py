"""The scheduler's side of the face: front ends come and go, and are told what is served.

What they are told of what is served is the directory. Applications and variants keep the numbers in it for good.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.live.face.batch import NO_SUCH_SIZE
from stretto.live.face.front_end import FrontEnd
from stretto.live.face.link import Link
from stretto.live.face.memory import FrontMemory, aligned
from stretto.live.face.messages import (
    NONSENSE,
    Kind,
    text,
)
from stretto.live.face.remote import Sized
from stretto.live.moves import NO_FRONT_END

if TYPE_CHECKING:
    from stretto.live.generation import Generation
    from stretto.live.service import Service
    from stretto.live.shelf import ModelSpec
    from stretto.repository.application import ApplicationFiles

log = logging.getLogger("stretto.live")

LOOK_S = 0.05  # at what the directory says
SETTLE_S = 2.0  # at most, for front ends to take up a change
SETTLE_STEP_S = 0.002
MOST_ENDED = 10**9  # queries that may have ended without a scheduler


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
        self.applications: list[str] = []  # by number
        self.variant_numbers: dict[tuple[str, str], int] = {}
        self.changed: dict[str, int] = {}  # by application: the version since which its tensors are as they are
        self.changed_last = 0
        self.sized: list[list[Sized]] = []  # the shapes that a row may have, by application
        # Shapes of earlier descriptions stay: queries that came with them may still run. The current ones come last.
        self.first_sizes: NDArray[np.int64] = np.zeros(0, np.int64)  # of the current ones, by application
        self.behind: list[NDArray[np.int64]] = []  # how far behind a row its answer goes, by application and size
        self.needs: NDArray[np.int64] = np.zeros((0, 1), np.int64)  # of one row and its answer, by application and size
        self._numbers: tuple[Any, NDArray[np.int64]] = (None, np.zeros(0, np.int64))
        self.is_leaving = False  # they serve on for a while, but clients should go elsewhere
        self._tensors: dict[str, Any] = {}
        self._digests: dict[str, tuple[ApplicationFiles, str]] = {}
        self._version = 0
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
        front = FrontEnd(self, number, link, memory)
        self.fronts[number] = front
        self.look(told=(front,))
        return front

    def gone(self, front: FrontEnd) -> None:
        if self.fronts.get(front.number) is front:
            del self.fronts[front.number]
            self.on_gone(front)

    def counts_in(self, content: Mapping[str, Any]) -> dict[str, dict[Outcome, int]]:
        """Queries that ended at a front end, by application and outcome."""
        try:
            return {
                str(name): {
                    Outcome(int(outcome)): min(max(0, int(count)), MOST_ENDED) for outcome, count in by_outcome.items()
                }
                for name, by_outcome in content.items()
                if name in self.service.offer.known
            }
        except (ValueError, TypeError, AttributeError):
            raise StrettoError(NONSENSE) from None

    def stop(self) -> None:
        self._task.cancel()
        for front in list(self.fronts.values()):
            front.link.close()
            front.memory = None

    def look(self, told: tuple[FrontEnd, ...] = ()) -> None:
        """Whoever is new is told what is served, and everybody where that has changed."""
        found = self._found()
        if found != self._directory:
            self._directory, self._edition = found, self._edition + 1
            self._leaving = {name: self._leaving.get(name, self._edition) for name in found["leaving"]}
            told = tuple(self.fronts.values())
        if told:
            content = text(self._directory | {"version": self._version, "edition": self._edition})
            for front in told:
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

    def _found(self) -> dict[str, Any]:
        service, served, moves = self.service, {}, self.service.moves
        for name, files in service.files.items():
            self._number(name, files)
            variants = service.variants_of(name)
            for variant in variants:
                self.variant_numbers.setdefault((name, variant), len(self.variant_numbers))
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
            "applications": list(self.applications),
            "variants": list(self.variant_numbers),
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

    def numbers_in(self, generation: Generation) -> NDArray[np.int64]:
        """The applications' numbers there, by those of the directory; -1: it has none of that name."""
        known, numbers = self._numbers
        if known is not generation or len(numbers) != len(self.applications):
            numbers = np.array([generation.numbers.get(name, -1) for name in self.applications], np.int64)
            self._numbers = generation, numbers
        return numbers

    def first_size(self, application: int, spec: ModelSpec) -> int:
        """The first of the shapes that a row may have at present; -1 where a model takes others."""
        takes = self._tensors[self.applications[application]][0]
        is_alike = takes.shapes == spec.shapes and takes.dtype == spec.input_dtype
        return int(self.first_sizes[application]) if is_alike else -1

    def _number(self, name: str, files: ApplicationFiles) -> None:
        tensors = files.input, files.output
        if self._tensors.get(name) == tensors:
            return
        if name not in self._tensors:
            self.applications.append(name)
            self.sized.append([])
            self.behind.append(np.zeros(0, np.int64))
            self.first_sizes = np.append(self.first_sizes, 0)
        self._tensors[name] = tensors
        self._version += 1
        self.changed[name] = self.changed_last = self._version
        takes, width = files.input, np.dtype(files.input.dtype).itemsize
        sizes = [
            Sized(number, shape, takes.dtype, math.prod(shape) * width, files.output.row_bytes)
            for number, shape in enumerate(takes.shapes)
        ]
        place = self.applications.index(name)
        self.first_sizes[place] = len(self.sized[place])
        self.sized[place] += sizes
        self.behind[place] = np.array([aligned(each.row_bytes) for each in self.sized[place]])
        current = [known[first:] for known, first in zip(self.sized, self.first_sizes.tolist(), strict=True)]
        self.needs = np.full((len(current), max(map(len, current))), NO_SUCH_SIZE)
        for number, sizes in enumerate(current):
            self.needs[number, : len(sizes)] = [each.needs(1) for each in sizes]

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self.look()
            except Exception:  # whatever it is, front ends are told again at the next look
                log.exception("front ends could not be told")
