"""A front end's side of the face: the engine to whoever serves clients there. It speaks to the scheduler.

What came in one turn of the event loop goes as one message. Where there is no scheduler, requests end as unavailable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from stretto.core.client import Clients, Told
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.live.face.closed import Closed
from stretto.live.face.link import Link
from stretto.live.face.messages import (
    ENDED_RECORD,
    NO_VARIANT,
    NUMBER,
    SUBMIT_RECORD,
    Kind,
    joined,
    packed,
    plain,
    read_records,
    text,
    unpacked,
)
from stretto.live.failure_log import FailureLog
from stretto.live.lag import LoopLag
from stretto.live.requests import Request
from stretto.repository.application import ApplicationFiles

log = logging.getLogger("stretto.live")

NO_SCHEDULER = "the scheduler cannot be reached at present; try again shortly"
NO_ANSWERS = "the worker that ran it was lost before its answer came"
ANSWERS_S = 1.0  # for answers that the scheduler has heard of
ASK_S = 1.0
OUTCOMES = tuple(Outcome)  # by number
ON_TIME, LATE = Outcome.ON_TIME, Outcome.LATE  # asked for with every request
NOBODY = None, None  # a request that is not open, and its files
NO_ROOM = "too much is being sent at present; try again later"


class Store(Protocol):
    """Where the tensors of requests are while they wait, and where their answers come from."""

    def put(self, number: int, request: Request, files: ApplicationFiles) -> int | None:
        """Their place, -1 where they have none that others see; None where there is no room."""

    def answers(self, number: int, request: Request, files: ApplicationFiles) -> np.ndarray[Any, Any] | None:
        """All rows, the caller's own; None where they have not come."""

    def left_behind(self, number: int, request: Request, files: ApplicationFiles) -> np.ndarray[Any, Any] | None:
        """The answers of a request whose scheduler is gone, and who gave them; None where they are not known to be
        complete.
        """

    def told(self, kind: int, payload: memoryview, directory: Directory) -> None:
        """What the scheduler says about tensors: DECISION or WORKERS. StrettoError where that is nonsense."""

    def drop(self, number: int) -> None: ...


class Directory:
    """What the scheduler says is served. Empty until it has."""

    def __init__(self, content: Mapping[str, Any] | None = None):
        content = content or {}
        try:
            self.version = int(content.get("version", 0))
            self.edition = int(content.get("edition", 0))
            self.state = str(content.get("state", "starting"))
            self.is_ready = bool(content.get("is_ready", False))
            self.workers = int(content.get("workers", 0))
            self.applications = {str(name): n for n, name in enumerate(content.get("applications", ()))}
            self.variants = [(str(application), str(name)) for application, name in content.get("variants", ())]
            self.answering = [[name] for _, name in self.variants]  # as requests that one of them answered have it
            self.is_leaving = bool(content.get("is_leaving", False))
            self.tensors = {str(name): str(each["tensors"]) for name, each in content.get("served", {}).items()}
            self.served = {
                str(name): (tuple(map(str, each["variants"])), bool(each["is_ready"]))
                for name, each in content.get("served", {}).items()
            }
            self.unloaded = frozenset(map(str, content.get("unloaded", ())))
            leaving = frozenset(map(str, content.get("leaving", ())))
            self.leaving = leaving & self.served.keys()  # for another scheduler, once that is ready
            self.partition = int(content.get("partition", 0))  # its version
        except (KeyError, TypeError, ValueError, AttributeError):
            raise StrettoError("the scheduler spoke nonsense") from None


class Crowd:
    """The workers, as far as a front end knows them."""

    def __init__(self) -> None:
        self.ready_count = 0


class FrontEngine:
    """Takes requests as the engine does. A Peer of the link to the scheduler."""

    def __init__(self, files: Mapping[str, ApplicationFiles], store: Store, clients: Clients):
        self.loop = asyncio.get_running_loop()
        self.clock = time.monotonic_ns
        self.lag = LoopLag()
        self.files = files  # by application, as this front end has read them
        self.crew = Crowd()
        self.directory = Directory()
        self.statistics: dict[str, Any] = {}  # as the scheduler said last
        self._asking: asyncio.Future[None] | None = None  # for these
        self.submitted: defaultdict[str, int] = defaultdict(int)  # queries, by application
        self._ended: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(OUTCOMES))  # these, by outcome
        self.said: Mapping[str, Any] | None = None  # what the client of the next request said
        self.on_directory: Any = lambda directory: None
        self._clients = clients
        self._store = store
        self._link: Link | None = None
        self._open: dict[int, tuple[Request, ApplicationFiles]] = {}  # with the files that it was checked by
        self._next = 0
        self._new: list[bytes] = []  # records, until this turn of the loop is over
        self._extras: dict[int, Mapping[str, Any]] = {}
        self._gone: list[int] = []
        self._failures = FailureLog()
        self._closed = Closed()  # what ended without the scheduler's word
        self._late: dict[int, Outcome] = {}  # ended as answered, but their answers have not come yet

    # -- the link ----------------------------------------------------------------------------------------------------

    def linked(self, link: Link, name: str, known: int = -1, booked: int = 0) -> None:
        """There is a scheduler. Requests up to the number `known` reached it before, over an earlier link, and were
        counted there; so did reports up to the number `booked`.
        """
        self._link = link
        link.send(Kind.HELLO, text({"name": name}))
        self._closed.tell_again(link, known, booked)

    def lost(self) -> None:
        """There is none any more: whatever it had ends here."""
        self._link = None
        self.directory = Directory()
        self.on_directory(self.directory)
        self._new, self._extras, self._gone = [], {}, []
        for number, (request, files) in list(self._open.items()):
            try:
                self._end_alone(number, request, files)
            except Exception:  # the others have their end all the same
                log.exception("a request could not be ended as it should")
                self._end(number, request, Outcome.FAILED, self.clock())

    def _end_alone(self, number: int, request: Request, files: ApplicationFiles) -> None:
        """Without a word of the scheduler: it may be counted nowhere else."""
        now_ns = self.clock()
        request.answers = self._store.left_behind(number, request, files)
        if request.answers is not None:
            outcome = Outcome.ON_TIME if now_ns <= request.deadline_ns else Outcome.LATE
        else:
            outcome = Outcome.FAILED
            request.refusal, request.problem = "unavailable", NO_SCHEDULER
        self._closed.add(number, request.application, outcome, request.rows)
        self._end(number, request, outcome, now_ns)

    @property
    def is_linked(self) -> bool:
        return self._link is not None

    @property
    def waiting(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    @property
    def outcomes(self) -> Counter[tuple[str, Outcome]]:
        """Queries that ended, by application."""
        ended = self._ended.items()
        return Counter({(name, outcome): counts[outcome] for name, counts in ended for outcome in OUTCOMES})

    def tell(self, kind: Kind, payload: bytes = b"") -> None:
        """To the scheduler, where there is one."""
        if self._link is not None:
            self._link.send(kind, payload)

    async def ask(self) -> None:
        """Statistics as of now; what was said before where the scheduler does not answer."""
        if self._asking is None:
            self._asking = self.loop.create_future()
            self.tell(Kind.ASK)
        asking = self._asking
        try:
            await asyncio.wait_for(asyncio.shield(asking), ASK_S)
        except TimeoutError:
            if self._asking is asking:
                self._asking = None  # the next one asks again

    def known(self, edition: int) -> None:
        """A directory is served."""
        self.tell(Kind.KNOWN, packed(NUMBER, [edition]))

    def elsewhere(self, applications: Iterable[str]) -> None:
        """Of what leaves, these are ready at another scheduler, and nothing more for them goes to this one."""
        self._flush()
        content = {"edition": self.directory.edition, "applications": sorted(applications)}
        self.tell(Kind.ELSEWHERE, text(content))

    # -- requests ----------------------------------------------------------------------------------------------------

    def submit(self, request: Request, gathers: bool = False) -> None:
        """KeyError where no such application is served. The message goes when this turn of the loop is over."""
        name, link = request.application, self._link
        files, application = self.files[name], self.directory.applications[name]
        said, self.said = self.said, None
        request.number = number = self._next
        self._next = number + 1
        now_ns, left_ns, spent_ns = self.clock(), request.deadline_ns, request.spent_ns
        request.arrival_ns = now_ns - spent_ns
        request.deadline_ns = now_ns + left_ns
        place = None if link is None else self._store.put(number, request, files)
        self._open[number] = request, files
        if place is None:
            request.refusal = "unavailable" if link is None else "overloaded"
            request.problem = NO_SCHEDULER if link is None else NO_ROOM
            self.loop.call_soon(self._end, number, request, Outcome.FAILED, now_ns, False)
            return
        self.submitted[name] += request.rows
        new = self._new
        if said or request.pinned or request.min_accuracy > 0:
            self._extras[len(new)] = _extra(request, said or {})
        if not new:
            self.loop.call_soon(self._flush)
        size = 0 if not files.input.sizes else files.input.shapes.index(request.inputs.shape[1:])
        new.append(
            SUBMIT_RECORD.pack(number, left_ns, spent_ns, place, application, request.rows, size, request.priority)
        )

    def _flush(self) -> None:
        new, self._new = self._new, []
        extras, self._extras = self._extras, {}
        if self._link is not None and new:
            self._link.send(Kind.SUBMIT, joined(new, len(new), self.directory.version, extras))

    def cancel(self, request: Request) -> None:
        """Its client is gone. It ends when the scheduler says so, for that is where it is counted."""
        request_here, _ = self._open.get(request.number, NOBODY)
        if request_here is request and self._link is not None:
            if not self._gone:
                self.loop.call_soon(self._flush_gone)
            self._gone.append(request.number)

    def _flush_gone(self) -> None:
        self._flush()  # what is cancelled was submitted before
        gone, self._gone = self._gone, []
        if self._link is not None and gone:
            self._link.send(Kind.CANCEL, packed(NUMBER, gone))

    # -- what the scheduler says -------------------------------------------------------------------------------------

    def heard(self, kind: int, payload: memoryview) -> None:
        if kind == Kind.ENDED:
            self._hear_ends(payload)
        elif kind == Kind.DIRECTORY:
            self._flush()  # what came until now was checked by the one before
            self.directory = Directory(plain(payload))
            self.on_directory(self.directory)
        elif kind == Kind.STATISTICS:
            self.statistics = plain(payload)
            if self._asking is not None:
                self._asking.set_result(None)
                self._asking = None
        elif kind == Kind.BOOKED:
            self._closed.came(int(unpacked(NUMBER, payload)[1][-1]))
        elif kind == Kind.DECISION or kind == Kind.WORKERS:
            self._store.told(kind, payload, self.directory)
        else:
            raise StrettoError("the scheduler spoke nonsense")

    def _hear_ends(self, payload: memoryview) -> None:
        """Of requests, some hundred thousand a second where there are many front ends: what nearly all have in common
        is done here, without a call for each.
        """
        records, extras = read_records(ENDED_RECORD, payload)
        now_ns, answering = self.clock(), self.directory.answering
        for position, (number, queue_ns, run_ns, accuracy, batch, variant, outcome_number) in enumerate(records):
            request, files = self._open.get(number, NOBODY)
            if request is None or files is None:
                continue  # it ended here while this was on its way
            try:
                outcome = OUTCOMES[outcome_number]
                if variant != NO_VARIANT:
                    request.variants = answering[variant]
                if position in extras:
                    self._note(request, extras[position])
            except (ValueError, IndexError, TypeError, AttributeError, KeyError):
                raise StrettoError("the scheduler spoke nonsense") from None
            request.queue_ns, request.run_ns, request.accuracy_sum, request.batch = queue_ns, run_ns, accuracy, batch
            if outcome is ON_TIME or outcome is LATE:
                request.answers = self._store.answers(number, request, files)
                if request.answers is None:  # they come from a worker, which may be gone by now
                    self._late[number] = outcome
                    self.loop.call_later(ANSWERS_S, self._missed, number)
                    continue
            self._end(number, request, outcome, now_ns)

    def came(self, number: int) -> None:
        """All answers of a request are there."""
        if number in self._late:
            request, files = self._open[number]
            request.answers = self._store.answers(number, request, files)
            self._end(number, request, self._late[number], self.clock())

    def _missed(self, number: int) -> None:
        """The scheduler has counted it as answered, and hears that it was not."""
        if number in self._late:
            request, _ = self._open[number]
            request.problem = NO_ANSWERS
            self._failures.add(request.application, NO_ANSWERS, request.rows)
            self._closed.add(number, request.application, Outcome.FAILED, request.rows)
            if self._link is not None:
                self._closed.tell(self._link, number)
            self._end(number, request, Outcome.FAILED, self.clock())

    def _note(self, request: Request, extra: Mapping[str, Any]) -> None:
        request.problem = str(extra.get("problem", ""))
        request.refusal = str(extra.get("refusal", ""))
        if "variants" in extra:
            request.variants = [str(name) for name in extra["variants"]]
        if "posterior" in extra:
            request.short_circuited = {int(row): tuple(map(float, theta)) for row, theta in extra["posterior"].items()}
        if "told" in extra:
            instruction = extra["told"]
            self._clients.told(
                request.client, Told(str(instruction["variant"]), tuple(map(int, instruction["input_size"])))
            )

    def _end(self, number: int, request: Request, outcome: Outcome, now_ns: int, is_counted: bool = True) -> None:
        if self._open.pop(number, None) is None:
            return
        if self._late:
            self._late.pop(number, None)
        self._store.drop(number)
        request.left = 0
        if is_counted:
            self._ended[request.application][outcome] += request.rows
        request.end(outcome, now_ns)


def _extra(request: Request, said: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a request besides its numbers."""
    extra = dict(said)
    if request.pinned:
        extra["pinned"] = request.pinned
    if request.min_accuracy > 0:
        extra["min_accuracy"] = request.min_accuracy
    return extra
