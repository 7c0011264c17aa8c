"""Writes the event log of the dispatchers that serve, so that the simulator can replay it (core/journal.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from stretto.core import journal
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.estimates import Estimates
from stretto.core.outcome import Outcome
from stretto.core.plain import to_plain
from stretto.core.plan import Plan, Route
from stretto.dispatch.dispatcher import Decision, Dispatcher, decision_as_list
from stretto.live.engine import MakeDispatcher

Write = Callable[[list[Any]], None]


class RecordedDispatcher(Dispatcher):
    """Does what it is told and writes it down; what is refused is not written."""

    def __init__(
        self, write: Write, number: int, deployment: Deployment, plan: Plan, *, correction: float = 0.0, now_ns: int = 0
    ) -> None:
        super().__init__(deployment, plan, correction=correction, now_ns=now_ns)
        self._write = write
        self._number = number
        write([journal.MADE, number, now_ns, correction, to_plain(deployment), to_plain(plan)])

    def adopt(self, now_ns: int, plan: Plan) -> None:
        super().adopt(now_ns, plan)
        self._write([journal.ADOPT, self._number, now_ns, to_plain(plan)])

    def reroute(self, now_ns: int, routes: tuple[Route, ...]) -> None:
        super().reroute(now_ns, routes)
        self._write([journal.REROUTE, self._number, now_ns, to_plain(routes)])

    def enlarge(self, now_ns: int, deployment: Deployment) -> None:
        super().enlarge(now_ns, deployment)
        self._write([journal.ENLARGE, self._number, now_ns, to_plain(deployment)])

    def inherit(self, now_ns: int, estimates: Estimates) -> None:
        super().inherit(now_ns, estimates)
        self._write([journal.INHERIT, self._number, now_ns, to_plain(estimates)])

    def submit(
        self,
        now_ns: int,
        application: int,
        deadline_ns: int,
        tag: int = -1,
        client: int = -1,
        query_class: int = -1,
        priority: int = 0,
        demand: int = -1,
        more: bool = False,
    ) -> int:
        ticket = super().submit(now_ns, application, deadline_ns, tag, client, query_class, priority, demand, more)
        query = [application, deadline_ns, tag, client, query_class, priority, demand, more]
        self._write([journal.SUBMIT, self._number, now_ns, query, ticket])
        return ticket

    def cancel(self, now_ns: int, ticket: int, reason: Outcome = Outcome.DROPPED_CANCELLED) -> bool:
        was_live = super().cancel(now_ns, ticket, reason)
        self._write([journal.CANCEL, self._number, now_ns, ticket, int(reason)])
        return was_live

    def finished(self, now_ns: int, worker: int, ok: bool = True, took_ns: int = -1) -> None:
        super().finished(now_ns, worker, ok, took_ns)
        self._write([journal.FINISHED, self._number, now_ns, worker, ok, took_ns])

    def classified(self, now_ns: int, ticket: int, query_class: int) -> None:
        super().classified(now_ns, ticket, query_class)
        self._write([journal.CLASSIFIED, self._number, now_ns, ticket, query_class])

    def worker_joined(self, now_ns: int, worker: int) -> None:
        super().worker_joined(now_ns, worker)
        self._write([journal.JOINED, self._number, now_ns, worker])

    def worker_left(self, now_ns: int, worker: int) -> None:
        super().worker_left(now_ns, worker)
        self._write([journal.LEFT, self._number, now_ns, worker])

    def advance(self, now_ns: int) -> None:
        super().advance(now_ns)
        self._write([journal.ADVANCE, self._number, now_ns])

    def decisions(self) -> Sequence[Decision]:
        decided = super().decisions()
        if decided:
            self._write([journal.DECIDED, self._number, [decision_as_list(decision) for decision in decided]])
        return decided


@contextmanager
def recording(path: Path | None) -> Iterator[MakeDispatcher]:
    """What makes dispatchers: plain ones, or such that write into the file."""
    if path is None:
        yield Dispatcher
        return
    try:
        file = path.open("wb", buffering=1 << 20)
    except OSError as error:
        raise StrettoError(f"{path} cannot be written ({error.strerror})") from None
    with file:

        def write(line: list[Any]) -> None:
            file.write(orjson.dumps(line) + b"\n")

        write([journal.TITLE, journal.VERSION])
        made = 0

        def make(deployment: Deployment, plan: Plan, **rest: Any) -> Dispatcher:
            nonlocal made
            made += 1
            return RecordedDispatcher(write, made - 1, deployment, plan, **rest)

        yield make
