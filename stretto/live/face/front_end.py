"""One front end as the scheduler knows it: what it submits enters the engine, and it hears how each request ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.model import Array
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.live.face.batch import MAX_LEFT_NS, read_submitted, write_answers
from stretto.live.face.closed import Said, corrections
from stretto.live.face.columns import COLUMNS
from stretto.live.face.link import Link
from stretto.live.face.memory import ALIGNMENT, FrontMemory, aligned
from stretto.live.face.messages import (
    DECISION,
    ENDED_RECORD,
    MAX_ROWS,
    NO_VARIANT,
    NONSENSE,
    NUMBER,
    SUBMIT,
    Kind,
    joined,
    packed,
    plain,
    text,
    unpacked,
)
from stretto.live.face.numbering import Numbering
from stretto.live.face.remote import RemoteQuery, RemoteRequest, Sized, lying
from stretto.live.requests import NoSuchVariant, Request
from stretto.live.rows import Lying
from stretto.live.state import BEYOND_SHARE, State

if TYPE_CHECKING:
    from stretto.live.service import Service
    from stretto.live.shelf import ModelSpec

MOST_ENDED = 10**9  # queries that may have ended without a scheduler
NOT_SERVED = "the application is not served at present"


class FrontEnd:
    """One of them, as the scheduler knows it. A Peer of its link."""

    def __init__(
        self,
        service: Service,
        numbering: Numbering,
        number: int,
        link: Link,
        memory: FrontMemory | None,
        statistics: Callable[[], dict[str, Any]],
        on_lost: Callable[[FrontEnd], None],
    ):
        """`statistics` is the document of all applications; `on_lost` is called when its link is lost."""
        self.number = number
        self.memory = memory  # where its tensors can be read, on one machine
        self.link = link
        self.name = ""
        self.counts: Mapping[str, Any] = {}  # what it counted itself
        self.open: dict[int, RemoteRequest | RemoteQuery] = {}  # by its number; those that are not rows
        self.known = 0  # edition of the directory that it serves
        self.elsewhere: tuple[int, frozenset[str]] = 0, frozenset()  # by an edition: what leaves and it has elsewhere
        self._service, self._numbering = service, numbering
        self._loop, self._clock = service.engine.loop, service.engine.clock
        self._statistics, self._on_lost = statistics, on_lost
        self._ended: list[bytes] = []  # records, until this turn of the loop is over
        self._count = 0  # of these
        self._extras: dict[int, dict[str, Any]] = {}
        self._decided: list[tuple[int, ...]] = []
        self.token = 0  # what workers know it by, where it is on another machine
        self.last = -1  # number of its requests that came
        self.booked = 0  # number of its reports that came
        self.said = [Said()]  # on this link, and on the one before it

    def heard(self, kind: int, payload: memoryview) -> None:
        if kind == Kind.SUBMIT:
            self._submitted(payload)
        elif kind == Kind.CANCEL:
            self._cancel(set(unpacked(NUMBER, payload)[1].tolist()))
        elif kind == Kind.HELLO:
            self.name = str(plain(payload).get("name", ""))[:80]
        elif kind == Kind.COUNTS:
            self.counts = plain(payload)
        elif kind == Kind.KNOWN:
            self.known = int(unpacked(NUMBER, payload)[1][-1])
        elif kind == Kind.ELSEWHERE:
            self.elsewhere = _elsewhere(plain(payload))
        elif kind == Kind.ASK:
            self.link.send(Kind.STATISTICS, text(self._statistics()))
        elif kind == Kind.CLOSED:
            self._book(plain(payload))
        else:
            raise StrettoError(NONSENSE)

    def _book(self, content: Mapping[str, Any]) -> None:
        """What its clients heard is what counts."""
        service, report = self._service, content.get("report")
        if not isinstance(report, int) or not 0 < report < 1 << 63:
            raise StrettoError(NONSENSE)
        if report > self.booked:
            self.booked = report
            service.engine.books.add_closed(_closed_counts(content.get("unknown", {}), service.offer.known))
            for name, counted, heard, count in corrections(content.get("counted", {}), self.said):
                if name in service.offer.known:
                    service.engine.books.correct(name, counted, heard, count)
        self.link.send(Kind.BOOKED, packed(NUMBER, [report]))

    def lost(self) -> None:
        """Nobody waits for what it asked any more."""
        self._on_lost(self)
        self._cancel(None)
        self.memory = None  # batches that run may still look at it

    def _cancel(self, numbers: Collection[int] | None) -> None:
        """These requests, where they have not ended; None: all of them."""
        engine = self._service.engine
        for generation in engine.generations():
            for number, ticket in generation.queries.of_front(self).items():
                if numbers is None or number in numbers:
                    generation.queries[ticket]  # it is among the open ones now
        for number in list(self.open if numbers is None else numbers):
            if (request := self.open.get(number)) is not None:
                engine.cancel(request)

    def sized(self, application: int, size: int) -> tuple[Sized, str]:
        """By the directory: the shape, and the application's name."""
        return self._numbering.sized[application][size], self._numbering.applications[application]

    def first_size(self, application: int, spec: ModelSpec) -> int:
        """The first of the shapes that its rows have at present; -1 where a model takes others."""
        return self._numbering.first_size(application, spec)

    def write(self, place: int, answer: Array) -> None:
        if self.memory is not None:  # else it is gone, and nobody waits
            self.memory.write(place, answer)

    def _submitted(self, payload: memoryview) -> None:
        """Requests of one row each that nothing else is said of go all together, the others one by one."""
        version, records, extras = unpacked(SUBMIT, payload)
        if not len(records):
            return
        numbering, service, engine = self._numbering, self._service, self._service.engine
        is_usual = version >= numbering.changed_last and service.state is State.SERVING
        is_plain = np.ones(len(records), np.bool_)
        if not is_usual or service.offer.quarantine.entries:
            is_plain[:] = False  # each is looked at
        elif extras:
            is_plain[list(extras)] = False
        rows, entering = np.empty(len(records), COLUMNS), np.empty((3, len(records)), np.int64)
        now_ns, size = engine.clock(), -1 if self.memory is None else self.memory.size
        limits = np.array((now_ns, self.link.transit_ns, size, self.number, self.last))
        numbers = numbering.in_generation(engine.generation)
        count = read_submitted(
            records, is_plain, numbers, numbering.needs, numbering.first_sizes, limits, rows, entering
        )
        if count < 0:
            raise StrettoError(NONSENSE)
        self.last = int(records[-1]["number"])
        if count < len(records):
            for position in np.flatnonzero(~is_plain).tolist():
                self._submit(version, records[position].tolist(), extras.get(position))
        if count:
            engine.gathering.enter_rows(self, now_ns, rows[:count], tuple(entering[:, :count]))

    def _submit(self, version: int, record: tuple[int, ...], extra: Mapping[str, Any] | None) -> None:
        """One request, whatever is said of it."""
        request = self._request(version, record, extra)
        if request is None:
            return
        try:
            self._service.engine.submit(request, gathers=True)
        except NoSuchVariant as error:
            self._refuse(request, "not_found", str(error))
        except KeyError:
            self._refuse(request, "unavailable", NOT_SERVED)

    def _request(self, version: int, record: tuple[int, ...], extra: Mapping[str, Any] | None) -> RemoteRequest | None:
        """None where it is refused at once."""
        number, left_ns, spent_ns, place, application, rows, size, priority = record
        numbering, service, memory = self._numbering, self._service, self.memory
        if not 0 < rows <= MAX_ROWS or priority < 0:
            raise StrettoError(NONSENSE)
        name = numbering.applications[application] if application < len(numbering.applications) else ""
        is_current = version >= numbering.changed.get(name, 0) and service.state is State.SERVING
        is_set_aside = service.offer.quarantine.entries and not service.is_ready(name)
        if name not in service.files or not is_current or is_set_aside:
            self._tell(number, Outcome.FAILED, {"refusal": "unavailable", "problem": NOT_SERVED})
            return None
        size += int(numbering.first_sizes[application])
        if size >= len(numbering.sized[application]):
            raise StrettoError(NONSENSE)
        each = numbering.sized[application][size]
        if memory is not None and (place < 0 or place % ALIGNMENT or place + each.needs(rows) > memory.size):
            raise StrettoError("a front end named memory that it does not have")
        extra = extra or {}
        request = RemoteRequest(
            name,
            lying(self, number, place, rows, each),
            min(max(left_ns - self.link.transit_ns, 1), MAX_LEFT_NS),
            _ended,
            priority=priority,
            spent_ns=min(max(spent_ns, 0), MAX_LEFT_NS) + self.link.transit_ns,
            pinned=str(extra.get("pinned", "")),
            min_accuracy=float(extra.get("min_accuracy", 0.0)),
        )
        request.front, request.number = self, number
        request.place = -1 if memory is None else place + aligned(rows * each.row_bytes)
        self.open[number] = request
        if "client" in extra and not self._knows_client(request, extra):
            self._refuse(request, "overloaded", BEYOND_SHARE)
            return None
        return request

    def _knows_client(self, request: RemoteRequest, extra: Mapping[str, Any]) -> bool:
        """False where it asks beyond its share."""
        service = self._service
        client = service.clients.slot_of(service.engine.clock(), str(extra["client"]), request.application)
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
        self._service.engine.cancel(request)
        if request.asker is not None:
            self._service.clients.ended(request.asker, request.rows)
        extra = {"refusal": refusal, "problem": problem}
        self._tell(request.number, Outcome.FAILED, extra | self._what_to_send(request))

    def variant_number(self, label: tuple[str, str]) -> int:
        """By the directory."""
        return self._numbering.variants.get(label, NO_VARIANT)

    def answered(self, ended: NDArray[Any], rows: NDArray[Any], answers: NDArray[np.uint8]) -> None:
        """Queries of one batch, as rows of numbers with their positions in it; `answers` are the bytes of all of it."""
        if self.memory is not None:
            behind = self._numbering.behind[int(rows["application"][0])]
            if not write_answers(self.memory.bytes, rows, behind, answers):
                raise StrettoError("a front end named memory that it does not have")
        if not self._ended:
            self._loop.call_soon(self._flush)
        self._ended.append(ended.tobytes())
        self._count += len(ended)

    def ended_query(self, query: RemoteQuery) -> None:
        """Nothing but numbers, as a rule."""
        variant = self.variant_number((query.application, query.variant))
        if query.problem or query.short_circuited or (query.variant and variant == NO_VARIANT):
            self.ended(query)
            return
        self.open.pop(query.number, None)
        if not self._ended:
            self._loop.call_soon(self._flush)
        self._count += 1
        self._ended.append(
            ENDED_RECORD.pack(
                query.number, query.queue_ns, query.run_ns, query.accuracy_sum, query.batch, variant, query.outcome
            )
        )

    def ended(self, request: RemoteRequest | RemoteQuery) -> None:
        self.open.pop(request.number, None)
        if request.left and isinstance(request, RemoteRequest) and isinstance(request.inputs, Lying):
            # It and its queries refer to each other, and are kept until the collector comes.
            request.inputs = replace(request.inputs, memory=None)
        extra: dict[str, Any] = {}
        if request.asker is not None:
            self._service.clients.ended(request.asker, request.rows)
            extra = self._what_to_send(request)
        variants, variant = request.variants, NO_VARIANT
        if variants:
            if len(variants) == 1:
                variant = self.variant_number((request.application, variants[0]))
            if variant == NO_VARIANT:
                extra["variants"] = variants
        if request.problem:
            extra["problem"] = request.problem
        if request.short_circuited:
            extra["posterior"] = request.short_circuited
        assert request.outcome is not None
        numbers = request.queue_ns, request.run_ns, request.accuracy_sum, request.batch, variant
        self._tell(request.number, request.outcome, extra, *numbers)

    def _what_to_send(self, request: RemoteRequest | RemoteQuery) -> dict[str, Any]:
        """Next, by its client."""
        place = None if request.client < 0 else self._service.clients.place_of(request.client)
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
            self._extras[self._count] = extra
        if not self._ended:
            self._loop.call_soon(self._flush)
        self._count += 1
        self._ended.append(ENDED_RECORD.pack(number, queue_ns, run_ns, accuracy, batch, variant, outcome))

    def decide(self, record: tuple[int, ...]) -> None:
        """Rows of it, as DECISION has them, are to go to a worker."""
        if not self._decided:
            self._loop.call_soon(self._flush_decided)
        self._decided.append(record)

    def _flush_decided(self) -> None:
        decided, self._decided = self._decided, []
        self.link.send(Kind.DECISION, packed(DECISION, decided))

    def _flush(self) -> None:
        """What ended in one turn of the loop is one message."""
        ended, self._ended, count, self._count = self._ended, [], self._count, 0
        extras, self._extras = self._extras, {}
        message = joined(ended, count, extras=extras)
        if self.memory is None:  # on one machine it ends with its link
            self.said[0].add(self._clock(), message)
        self.link.send(Kind.ENDED, message)


def _elsewhere(content: Mapping[str, Any]) -> tuple[int, frozenset[str]]:
    try:
        return int(content["edition"]), frozenset(map(str, content["applications"]))
    except (KeyError, TypeError, ValueError):
        raise StrettoError(NONSENSE) from None


def _closed_counts(content: Mapping[str, Any], known: Collection[str]) -> dict[str, dict[Outcome, int]]:
    """Queries that ended at a front end, by application and outcome."""
    try:
        return {
            str(name): {
                Outcome(int(outcome)): min(max(0, int(count)), MOST_ENDED) for outcome, count in by_outcome.items()
            }
            for name, by_outcome in content.items()
            if name in known
        }
    except (ValueError, TypeError, AttributeError):
        raise StrettoError(NONSENSE) from None


def _ended(request: Request) -> None:
    assert isinstance(request, RemoteRequest)
    request.front.ended(request)


def _ignore(request: Request) -> None: ...
