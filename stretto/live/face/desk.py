"""The scheduler's side of the face: front ends come and go, submit, cancel and hear how their requests ended.

What they are told of what is served is the directory. Applications and variants keep the numbers in it for good.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from stretto.backends.model import Array
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.live.face.link import Link
from stretto.live.face.memory import FrontMemory, aligned
from stretto.live.face.messages import ENDED, MAX_ROWS, NO_VARIANT, NUMBER, SUBMIT, Kind, packed, plain, text, unpacked
from stretto.live.requests import NoSuchVariant, Request
from stretto.live.rows import Lying
from stretto.live.state import BEYOND_SHARE, State

if TYPE_CHECKING:
    from stretto.live.service import Service
    from stretto.repository.application import ApplicationFiles

log = logging.getLogger("stretto.live")

LOOK_S = 0.05  # at what the directory says
BEAT_S = 0.2
SETTLE_S = 2.0  # at most, for front ends to take up a change
SETTLE_STEP_S = 0.002
MAX_LEFT_NS = 3_600 * 10**9
MAX_PRIORITY = 2**31 - 1
NOT_SERVED = "the application is not served at present"


class RemoteRequest(Request):
    """A request whose client is at a front end. Its answers go where its rows lie, or the worker sends them itself."""

    __slots__ = ("front", "number", "place")

    front: FrontEnd
    number: int
    place: int  # where the first answer goes in the front end's memory; -1: not here

    def answer(self, row: int, answer: Array, variant: str, accuracy: float) -> bool:
        if self.place >= 0:
            memory = self.front.memory
            assert memory is not None
            row_bytes = answer.nbytes
            memory.array(self.place + row * row_bytes, answer.dtype.str, answer.shape)[:] = answer
        if variant not in self.variants:
            self.variants.append(variant)
        self.accuracy_sum += accuracy
        self.left -= 1
        return self.left == 0


class FrontEnd:
    """One of them, as the scheduler knows it. A Peer of its link."""

    def __init__(self, desk: Desk, number: int, link: Link, memory: FrontMemory | None):
        self.number = number
        self.memory = memory  # where its tensors can be read, on one machine
        self.link = link
        self.name = ""
        self.counts: Mapping[str, Any] = {}  # what it counted itself
        self.heard_ns = desk.clock()
        self.known = 0  # edition of the directory that it serves
        self.open: dict[int, RemoteRequest] = {}
        self._desk = desk
        self._ended: list[tuple[Any, ...]] = []
        self._extras: dict[int, dict[str, Any]] = {}

    def heard(self, kind: int, payload: memoryview) -> None:
        self.heard_ns = self._desk.clock()
        if kind == Kind.SUBMIT:
            self._submitted(payload)
        elif kind == Kind.CANCEL:
            for number in unpacked(NUMBER, payload)[1].tolist():
                request = self.open.get(number)
                if request is not None:
                    self._desk.service.engine.cancel(request)
        elif kind == Kind.HELLO:
            self.name = str(plain(payload).get("name", ""))[:80]
        elif kind == Kind.COUNTS:
            self.counts = plain(payload)
        elif kind == Kind.KNOWN:
            self.known = int(unpacked(NUMBER, payload)[1][-1])
        elif kind == Kind.ASK:
            self.link.send(Kind.STATISTICS, text(self._desk.statistics()))
        elif kind == Kind.CLOSED:
            self._desk.closed_elsewhere(plain(payload))
        elif kind != Kind.BEAT:
            raise StrettoError("a front end spoke nonsense")

    def lost(self) -> None:
        """Nobody waits for what it asked any more."""
        self._desk.gone(self)
        for request in list(self.open.values()):
            self._desk.service.engine.cancel(request)
        self.memory = None  # batches that run may still look at it

    def _submitted(self, payload: memoryview) -> None:
        version, records, extras = unpacked(SUBMIT, payload)
        engine = self._desk.service.engine
        for position, record in enumerate(records.tolist()):
            request = self._request(version, record, extras.get(position))
            if request is None:
                continue
            try:
                engine.submit(request, gathers=True)
            except NoSuchVariant as error:
                self._refuse(request, "not_found", str(error))
            except KeyError:
                self._refuse(request, "unavailable", NOT_SERVED)

    def _request(self, version: int, record: tuple[int, ...], extra: Mapping[str, Any] | None) -> RemoteRequest | None:
        """None where it is refused at once."""
        number, left_ns, spent_ns, place, application, rows, size, priority = record
        if number in self.open or not 0 < rows <= MAX_ROWS:
            raise StrettoError("a front end spoke nonsense")
        desk, service = self._desk, self._desk.service
        name = desk.applications[application] if application < len(desk.applications) else ""
        files = service.files.get(name)
        is_served = files is not None and version >= desk.changed.get(name, 0) and service.state is State.SERVING
        if files is None or not is_served or (service.offer.quarantine.entries and not service.is_ready(name)):
            self._tell(number, Outcome.FAILED, {"refusal": "unavailable", "problem": NOT_SERVED})
            return None
        takes = files.input
        if size >= len(takes.shapes) or not 0 <= priority <= MAX_PRIORITY:
            raise StrettoError("a front end spoke nonsense")
        shape = (rows, *takes.shapes[size])
        lying = Lying(self.number, number, 0, shape, takes.dtype, size, self.memory, place)
        answers = -1
        if self.memory is not None:
            answers = place + aligned(lying.nbytes)
            self.memory.array(place, "uint8", (aligned(lying.nbytes) + rows * files.output.row_bytes,))  # all inside
        request = RemoteRequest(
            name,
            lying,
            min(max(left_ns, 1), MAX_LEFT_NS),
            _ended,
            priority=priority,
            spent_ns=min(max(spent_ns, 0), MAX_LEFT_NS),
            pinned="" if extra is None else str(extra.get("pinned", "")),
            min_accuracy=0.0 if extra is None else float(extra.get("min_accuracy", 0.0)),
        )
        request.front, request.number, request.place = self, number, answers
        self.open[number] = request
        if extra is not None and "client" in extra and not self._knows_client(request, extra):
            self._refuse(request, "overloaded", BEYOND_SHARE)
            return None
        return request

    def _knows_client(self, request: RemoteRequest, extra: Mapping[str, Any]) -> bool:
        """False where it asks beyond its share."""
        service = self._desk.service
        client = service.clients.slot_of(service.engine.clock(), str(extra["client"]))
        said = {what: extra.get(what) for what in ("bytes_per_s", "delay_ns", "slo_ns", "said_rate")}
        sent_bytes = int(extra.get("sent_bytes", 0))
        request.client = client
        if not service.heard_from(client, request.application, request.inputs.shape, sent_bytes, **said):
            return False
        request.asker = service.clients.began(client, request.rows)
        return True

    # -- what it is told ---------------------------------------------------------------------------------------------

    def _refuse(self, request: RemoteRequest, refusal: str, problem: str) -> None:
        """It was never taken, and nothing of it is counted here."""
        del self.open[request.number]
        request.done = _ignore
        self._desk.service.engine.cancel(request)
        if request.asker is not None:
            self._desk.service.clients.ended(request.asker, request.rows)
        extra = {"refusal": refusal, "problem": problem}
        self._tell(request.number, Outcome.FAILED, extra | self._told(request))

    def ended(self, request: RemoteRequest) -> None:
        self.open.pop(request.number, None)
        if request.left:  # it and its queries refer to each other, and are kept until the collector comes
            request.inputs = replace(request.inputs, memory=None)  # type: ignore[type-var]
        clients, desk = self._desk.service.clients, self._desk
        extra: dict[str, Any] = {}
        if request.asker is not None:
            clients.ended(request.asker, request.rows)
            extra = self._told(request)
        variant = NO_VARIANT
        if len(request.variants) == 1:
            variant = desk.variant_numbers.get((request.application, request.variants[0]), NO_VARIANT)
        if request.variants and variant == NO_VARIANT:
            extra["variants"] = request.variants
        if request.problem:
            extra["problem"] = request.problem
        if request.short_circuited:
            extra["posterior"] = request.short_circuited
        assert request.outcome is not None
        numbers = request.queue_ns, request.run_ns, request.accuracy_sum, request.batch, variant
        self._tell(request.number, request.outcome, extra, *numbers)

    def _told(self, request: RemoteRequest) -> dict[str, Any]:
        place = None if request.client < 0 else self._desk.service.clients.place_of(request.client)
        return {} if place is None or not place.told.input_size else {"told": asdict(place.told)}

    def _tell(
        self,
        number: int,
        outcome: Outcome,
        extra: dict[str, Any],
        queue_ns: int = 0,
        run_ns: int = 0,
        accuracy: float = 0.0,
        batch: int = 0,
        variant: int = NO_VARIANT,
    ) -> None:
        if extra:
            self._extras[len(self._ended)] = extra
        if not self._ended:
            self._desk.loop.call_soon(self._flush)
        self._ended.append((number, queue_ns, run_ns, accuracy, batch, variant, int(outcome)))

    def _flush(self) -> None:
        """What ended in one turn of the loop is one message."""
        ended, self._ended = self._ended, []
        extras, self._extras = self._extras, {}
        self.link.send(Kind.ENDED, packed(ENDED, ended, extras=extras))


def _ended(request: Request) -> None:
    assert isinstance(request, RemoteRequest)
    request.front.ended(request)


def _ignore(request: Request) -> None: ...


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
        self.is_leaving = False  # they serve on for a while, but clients should go elsewhere
        self._tensors: dict[str, Any] = {}
        self._version = 0
        self._directory: dict[str, Any] = {}
        self.statistics = statistics
        self._edition = 0
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

    def closed_elsewhere(self, content: Mapping[str, Any]) -> None:
        """Queries that ended at a front end because there was no scheduler: they are counted here, once."""
        try:
            counts = {
                str(name): {Outcome(int(outcome)): max(0, int(count)) for outcome, count in by_outcome.items()}
                for name, by_outcome in content.items()
                if name in self.service.offer.known
            }
        except (ValueError, TypeError, AttributeError):
            raise StrettoError("a front end spoke nonsense") from None
        self.service.engine.books.add_closed(counts)

    def stop(self) -> None:
        self._task.cancel()
        for front in list(self.fronts.values()):
            front.link.close()

    def look(self, told: tuple[FrontEnd, ...] = ()) -> None:
        """Whoever is new is told what is served, and everybody where that has changed."""
        found = self._found()
        if found != self._directory:
            self._directory, self._edition = found, self._edition + 1
            told = tuple(self.fronts.values())
        if told:
            content = text(self._directory | {"version": self._version, "edition": self._edition})
            for front in told:
                front.link.send(Kind.DIRECTORY, content)

    async def settled(self) -> None:
        """Until every front end serves what is served now; one that hangs is not waited for."""
        self.look()
        end = self.loop.time() + SETTLE_S
        while any(front.known < self._edition for front in self.fronts.values()) and self.loop.time() < end:
            await asyncio.sleep(SETTLE_STEP_S)

    def _found(self) -> dict[str, Any]:
        service, served = self.service, {}
        for name, files in service.files.items():
            self._number(name, files)
            variants = service.from_fast_to_accurate(name)
            for variant in variants:
                self.variant_numbers.setdefault((name, variant), len(self.variant_numbers))
            served[name] = {
                "variants": list(variants),
                "is_ready": service.is_ready(name),
                "tensors": tensors_digest(files),
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
        }

    def _number(self, name: str, files: ApplicationFiles) -> None:
        if name not in self._tensors:
            self.applications.append(name)
        if self._tensors.get(name) != (files.input, files.output):
            self._version += 1
            self._tensors[name] = files.input, files.output
            self.changed[name] = self._version

    async def _work(self) -> None:
        beat_ns = self.clock()
        while True:
            await asyncio.sleep(LOOK_S)
            now_ns = self.clock()
            try:
                self.look()
                if now_ns - beat_ns >= BEAT_S * 1e9:
                    beat_ns = now_ns
                    for front in self.fronts.values():
                        front.link.send(Kind.BEAT)
            except Exception:  # whatever it is, front ends are told again at the next look
                log.exception("front ends could not be told")
