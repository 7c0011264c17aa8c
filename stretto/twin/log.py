"""Listens to the event log of a server, line by line, and tells `Recent` what came and ran.

A log's stretch goes from its first request to its last: how long a server stood idle before anybody came, and after,
says nothing about its load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stretto.core import journal
from stretto.core.conditions import Conditions
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.fleet import Fleet
from stretto.core.outcome import Outcome
from stretto.core.plain import from_plain
from stretto.core.plan import Delays
from stretto.twin.recent import Recent, profiled_latencies_ns
from stretto.twin.setting import Setting


@dataclass(frozen=True)
class _Job:
    """What a worker was given: a batch, or (variant -1) the load of a model."""

    variant: int
    tickets: tuple[int, ...]
    decided_ns: int
    expected_ns: int
    was_alone: bool


@dataclass
class _Dispatcher:
    """One dispatcher of the log."""

    deployment: Deployment
    now_ns: int  # of its last event: when what follows was decided
    present: list[bool]
    jobs: list[deque[_Job]]  # by worker, in order
    request: tuple[int, str, int, int, int] | None = None  # (now, application, slack, client, priority) of the last row
    rows: int = 0  # that came of it
    application_of: dict[int, int] = field(default_factory=dict)  # by ticket, until it is classified or ends


class LogListener:
    """`deployment` is the one that served last; None until a dispatcher was made. `on_query` hears of every query: its
    application, its arrival, and how long after it the query is due.
    """

    def __init__(self, on_query: Callable[[str, int, int], None] | None = None) -> None:
        self._on_query = on_query
        self.deployment: Deployment | None = None
        self._recent: Recent | None = None  # from the first request on
        self._dispatchers: dict[int, _Dispatcher] = {}
        self._serving: _Dispatcher | None = None
        self._delays = Delays()
        self._last_ns = 0  # of the last request
        self._withdrawn: tuple[int, int] | None = None  # dispatcher and moment of the line before, if it was a cancel

    def hear(self, line: list[Any]) -> None:
        """One line; LookupError, TypeError or ValueError where it is no event."""
        kind, which, *rest = line
        withdrawn, self._withdrawn = self._withdrawn, None
        if kind in (journal.SESSION, journal.PLAN):
            return
        if kind == journal.MADE:
            self._made(which, _whole(rest[0]), from_plain(rest[2]), from_plain(rest[4]))
            return
        dispatcher = self._dispatchers[which]
        if kind != journal.SUBMIT:
            self._entered(dispatcher)
        if kind == journal.DECIDED:
            self._decided(dispatcher, rest[0])
            return
        dispatcher.now_ns = now_ns = _whole(rest[0])
        if kind == journal.SUBMIT:
            # A query that moves to a new deployment was withdrawn from the old one the moment before.
            has_moved = withdrawn is not None and withdrawn[0] != which and withdrawn[1] == now_ns
            self._submitted(dispatcher, now_ns, rest[1], _whole(rest[2]), has_moved)
        elif kind == journal.CANCEL:
            dispatcher.application_of.pop(_whole(rest[1]), None)
            if rest[2] == Outcome.DROPPED_CANCELLED:
                self._withdrawn = (which, now_ns)
        elif kind == journal.FINISHED:
            self._finished(dispatcher, now_ns, _whole(rest[1]), rest[2] is True, _whole(rest[3]))
        elif kind == journal.CLASSIFIED:
            application = dispatcher.application_of.pop(_whole(rest[1]), None)
            if application is not None:
                self._classified(dispatcher, application, _whole(rest[2]))
        elif kind in (journal.JOINED, journal.LEFT):
            worker = _place(rest[1], len(dispatcher.present))
            dispatcher.present[worker] = kind == journal.JOINED
            if kind == journal.LEFT:
                dispatcher.jobs[worker].clear()
        elif kind == journal.ENLARGE:
            self._enlarged(dispatcher, from_plain(rest[1]))
        elif kind == journal.PLANNED:
            self._under(from_plain(rest[2]))
        elif kind == journal.UNDER:
            self._under(from_plain(rest[1]))

    def setting(self) -> Setting:
        """As of the last line."""
        assert self._serving is not None
        self._entered(self._serving)
        serving, recent = self._serving, self._recent or Recent(0)
        present = Fleet(serving.deployment.workers, tuple(serving.present)).counts()
        return recent.setting(self._last_ns, serving.deployment, delays=self._delays, present=present)

    def _made(self, which: int, now_ns: int, deployment: Any, seen: Any) -> None:
        if not isinstance(deployment, Deployment):
            raise TypeError(deployment)
        workers = len(deployment.workers)
        made = _Dispatcher(deployment, now_ns, [True] * workers, [deque() for _ in range(workers)])
        self._dispatchers[which] = self._serving = made
        self.deployment = deployment
        if self._recent is not None:
            self._recent.serves(deployment)
        if seen is not None:
            self._under(seen[3])

    def _under(self, conditions: Any) -> None:
        if not isinstance(conditions, Conditions):
            raise TypeError(conditions)
        self._delays = conditions.delays

    def _enlarged(self, dispatcher: _Dispatcher, deployment: Any) -> None:
        if not isinstance(deployment, Deployment) or len(deployment.workers) < len(dispatcher.present):
            raise TypeError(deployment)
        further = len(deployment.workers) - len(dispatcher.present)
        dispatcher.present += [False] * further
        dispatcher.jobs += [deque() for _ in range(further)]
        dispatcher.deployment = deployment
        if dispatcher is self._serving:
            self.deployment = deployment

    def _submitted(self, dispatcher: _Dispatcher, now_ns: int, query: list[Any], ticket: int, has_moved: bool) -> None:
        *numbers, more, _ = query
        application, deadline_ns, _, client, query_class, priority, _ = map(_whole, numbers)
        name = dispatcher.deployment.applications[_place(application, len(dispatcher.deployment.applications))].name
        if has_moved:
            return
        if self._recent is None:
            self._recent = Recent(now_ns)
        self._last_ns = max(self._last_ns, now_ns)
        if self._on_query is not None:
            self._on_query(name, now_ns, deadline_ns - now_ns)
        request = (now_ns, name, deadline_ns - now_ns, client, priority)
        if request != dispatcher.request:
            self._entered(dispatcher)  # requests that come in one turn of the loop follow each other without an end
        dispatcher.request, dispatcher.rows = request, dispatcher.rows + 1
        if not more:
            self._entered(dispatcher)
        if query_class >= 0:
            self._classified(dispatcher, application, query_class)
        else:
            dispatcher.application_of[ticket] = application

    def _entered(self, dispatcher: _Dispatcher) -> None:
        """The request whose rows came last is complete."""
        if dispatcher.request is not None and self._recent is not None:
            now_ns, name, slack_ns, client, priority = dispatcher.request
            self._recent.arrived(now_ns, name, dispatcher.rows, slack_ns, client, priority)
        dispatcher.request, dispatcher.rows = None, 0

    def _classified(self, dispatcher: _Dispatcher, application: int, query_class: int) -> None:
        if self._recent is not None:
            self._recent.classified(dispatcher.deployment.applications[application].name, query_class)

    def _decided(self, dispatcher: _Dispatcher, decisions: list[Any]) -> None:
        for what, *fields in decisions:
            if what == "run":
                worker, variant, tickets, _, expected_ns = fields
                self._given(dispatcher, worker, _whole(variant), tuple(tickets), _whole(expected_ns))
            elif what == "load" and fields[4] is True:
                self._given(dispatcher, fields[0], -1, (), 0)
            elif what in ("drop", "answer"):
                dispatcher.application_of.pop(fields[0], None)

    @staticmethod
    def _given(dispatcher: _Dispatcher, worker: Any, variant: int, tickets: tuple[int, ...], expected_ns: int) -> None:
        worker = _place(worker, len(dispatcher.jobs))
        if variant >= 0:
            _place(variant, len(dispatcher.deployment.variants))
        if dispatcher.present[worker]:  # else it was decided before the worker left, and nobody carries it out
            jobs = dispatcher.jobs[worker]
            jobs.append(_Job(variant, tickets, dispatcher.now_ns, max(expected_ns, dispatcher.now_ns), not jobs))

    def _finished(self, dispatcher: _Dispatcher, now_ns: int, worker: int, ok: bool, took_ns: int) -> None:
        jobs = dispatcher.jobs[_place(worker, len(dispatcher.jobs))]
        job = jobs.popleft() if jobs else None
        if job is None:
            return
        for ticket in job.tickets:
            dispatcher.application_of.pop(ticket, None)
        if job.variant < 0 or took_ns < 0 or self._recent is None:
            return
        self._recent.ended(now_ns - job.expected_ns)
        if job.was_alone:
            self._recent.handed_over(max(0, now_ns - job.decided_ns - took_ns))
        if ok:
            deployment = dispatcher.deployment
            kind = deployment.workers[worker].kind
            profiled_ns = profiled_latencies_ns(deployment, job.variant, kind, len(job.tickets))
            self._recent.ran(deployment.variant_label(job.variant), kind, len(job.tickets), took_ns, *profiled_ns)


def _whole(value: Any) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise TypeError(value)
    return value


def _place(value: Any, count: int) -> int:
    if not 0 <= _whole(value) < count:
        raise StrettoError(f"number {value} is outside 0 … {count - 1}")
    return int(value)
