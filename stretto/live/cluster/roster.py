"""The workers that a scheduler knows: who said hello, what each can do, and whose place in the fleet each has.

A place of the fleet waits until a worker of its device comes; a worker without a place stands by until one is free.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from stretto.core.errors import StrettoError
from stretto.live.cluster.messages import NUMBER, Order
from stretto.live.face.messages import Kind, text
from stretto.live.fleet import WorkerSpec, slot_specs

if TYPE_CHECKING:
    from stretto.live.face.desk import Desk
    from stretto.live.face.front_end import FrontEnd
    from stretto.live.face.link import Link

log = logging.getLogger("stretto.cluster")

MAX_KEYS = 100_000


@dataclass(frozen=True)
class Hello:
    """What a worker says of itself."""

    name: str
    device: str
    threads: int
    kind: str
    endpoint: str  # where it takes tensors
    holds: frozenset[str]  # keys of models that it has already

    @staticmethod
    def read(opening: Mapping[str, Any]) -> Hello:
        try:
            texts = [str(opening[what])[:200] for what in ("name", "device", "kind", "endpoint")]
            holds = frozenset(map(str, list(opening["holds"])[:MAX_KEYS]))
            return Hello(texts[0], texts[1], int(opening["threads"]), texts[2], texts[3], holds)
        except (KeyError, TypeError, ValueError):
            raise StrettoError("a worker spoke nonsense") from None

    def fits(self, place: WorkerSpec) -> bool:
        """Whether it can take that place of the fleet. Which GPU of its machine it has does not matter."""
        is_of_kind = place.kind is None or place.kind == self.kind
        return _family(place.device) == _family(self.device) and place.threads == self.threads and is_of_kind


def _family(device: str) -> str:
    return device.partition(":")[0]


class Taker(Protocol):
    """Who waits for a worker of its place in the fleet, has it, and hears it: the executor of that place."""

    place: int
    wanted: frozenset[str]  # keys of the models that it needs

    def take(self, remote: RemoteWorker) -> None:
        """It has this worker from now on."""

    def heard(self, kind: int, payload: memoryview) -> None: ...

    def leaving(self) -> None: ...

    def gone(self, reason: str) -> None: ...


class RemoteWorker:
    """One that said hello. A Peer of its link."""

    def __init__(self, roster: Roster, number: int, link: Link, hello: Hello):
        self.number = number
        self.link = link
        self.hello = hello
        self.executor: Taker | None = None  # whose it is
        self.is_ending = False  # it was told to kill what it runs, and has not said that it did
        self.is_leaving = False  # it wants nothing more
        self._roster = roster

    def heard(self, kind: int, payload: memoryview) -> None:
        if kind == Order.LEAVING:
            self._leave()
        elif self.executor is not None:
            self.executor.heard(kind, payload)
        elif kind == Order.LOST and self.is_ending:
            self.is_ending = False
            self._roster.assign()

    def _leave(self) -> None:
        log.info("worker %s is leaving", self.hello.name)
        self.is_leaving = True
        if self.executor is not None:
            self.executor.leaving()
        else:
            self.let_go()

    def let_go(self) -> None:
        """It is nobody's from now on."""
        self.executor = None
        if self.is_leaving:
            self.link.send(Order.GO)

    def lost(self) -> None:
        self._roster.gone(self)

    @property
    def is_free(self) -> bool:
        return self.executor is None and not self.is_ending and not self.is_leaving


class Roster:
    """On the loop's thread. `fleet` is asked anew each time, for places may be added."""

    def __init__(self, fleet: Callable[[], Sequence[WorkerSpec]]):
        self.desk: Desk | None = None  # once there is one
        self.workers: dict[int, RemoteWorker] = {}
        self.clock = time.monotonic_ns
        self.fleet = fleet
        self._waiting: list[Taker] = []
        self._is_due = False  # front ends are told of workers when this turn of the loop is over
        self._last = 0

    # -- workers -----------------------------------------------------------------------------------------------------

    def came(self, link: Link, hello: Hello) -> RemoteWorker:
        for old in [each for each in self.workers.values() if each.hello.endpoint == hello.endpoint]:
            old.link.close()  # it came back before its silence was noticed
        self._last += 1
        self.workers[self._last] = worker = RemoteWorker(self, self._last, link, hello)
        log.info("worker %s is here (%s, %d models held)", hello.name, hello.device, len(hello.holds))
        self._tell_soon()
        self.assign()
        if worker.is_free:
            log.info("worker %s stands by: no place for it is free", hello.name)
        return worker

    def gone(self, worker: RemoteWorker) -> None:
        del self.workers[worker.number]
        self._tell_soon()
        executor, worker.executor = worker.executor, None
        if executor is not None:
            executor.gone(f"{worker.hello.name} cannot be reached any more")

    def _tell_soon(self) -> None:
        """Once for all that come and go in one turn of the loop."""
        if not self._is_due and self.desk is not None:
            self._is_due = True
            self.desk.loop.call_soon(self.tell_fronts)

    def tell_fronts(self, fronts: Sequence[FrontEnd] | None = None) -> None:
        """Where tensors can be sent; everybody, or these."""
        if fronts is None:
            self._is_due = False
        if self.desk is not None:
            content = text({str(number): worker.hello.endpoint for number, worker in self.workers.items()})
            for front in self.desk.fronts.values() if fronts is None else fronts:
                front.link.send(Kind.WORKERS, content)

    def front_gone(self, front: FrontEnd) -> None:
        """Nobody need wait for its tensors."""
        for worker in self.workers.values():
            worker.link.send(Order.GONE, NUMBER.pack(front.token))

    # -- places ------------------------------------------------------------------------------------------------------

    def wait(self, executor: Taker) -> None:
        """It gets a worker when there is one for its place."""
        self._waiting.append(executor)
        self.assign()

    def leave(self, executor: Taker) -> None:
        if executor in self._waiting:
            self._waiting.remove(executor)

    def assign(self) -> None:
        """Whoever waits gets, of the workers that fit, the one that has most of what it needs."""
        if not self.workers or not self._waiting:
            return
        places = slot_specs(self.fleet())
        free = [worker for worker in self.workers.values() if worker.is_free]
        for executor in list(self._waiting):
            if not free:
                return
            fitting = [worker for worker in free if worker.hello.fits(places[executor.place])]
            if fitting:
                self._waiting.remove(executor)
                chosen = max(fitting, key=lambda worker: len(worker.hello.holds & executor.wanted))
                free.remove(chosen)
                executor.take(chosen)
