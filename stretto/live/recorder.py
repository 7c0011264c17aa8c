"""Tells a recording what the dispatchers that serve were told and decided, and how plans came about, so that the
simulator can replay both (core/journal.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core import journal
from stretto.core.client import Client
from stretto.core.conditions import Conditions
from stretto.core.deployment import Deployment
from stretto.core.estimates import Estimates
from stretto.core.outcome import Outcome
from stretto.core.plain import to_plain
from stretto.core.plan import Plan, Route
from stretto.core.snapshot import RecordingState
from stretto.core.telemetry import Telemetry
from stretto.core.verdict import GivenValue
from stretto.core.view import Lines, WaitingQuery
from stretto.dispatch.decisions import Decision, decision_as_list
from stretto.dispatch.dispatcher import Dispatcher
from stretto.live.recording import Recording, RecordOptions
from stretto.planning.session import InForce

DEFAULT_OPTIONS = RecordOptions()


class RecordedDispatcher(Dispatcher):
    """Does what it is told and writes it down; what is refused is not written."""

    def __init__(
        self,
        recording: Recording,
        number: int,
        in_force: InForce,
        policies: list[Any],
        *,
        correction: float,
        now_ns: int,
    ) -> None:
        super().__init__(in_force.deployment, in_force.plan, correction=correction, now_ns=now_ns)
        self._recording = recording
        self._write = recording.write
        self.number = number

        def made() -> list[Any]:
            view, seen = in_force.first_view, None
            if view is not None:  # what was collected is plain already
                shown = None if view.deployment is in_force.deployment else view.deployment
                seen = [*to_plain([view.now_ns, view.rates, view.alive, in_force.conditions, shown]), policies]
            deployment, plan = to_plain(in_force.deployment), recording.number_of(in_force.plan)
            return [journal.MADE, number, now_ns, correction, deployment, plan, seen]

        recording.tell(made)

    def adopt(self, now_ns: int, plan: Plan) -> None:
        super().adopt(now_ns, plan)
        self._recording.tell(lambda: [journal.ADOPT, self.number, now_ns, self._recording.number_of(plan)])

    def choose_by(self, now_ns: int, plan: Plan) -> None:
        super().choose_by(now_ns, plan)
        self._recording.tell(lambda: [journal.CHOOSE, self.number, now_ns, self._recording.number_of(plan)])

    def reroute(self, now_ns: int, routes: tuple[Route, ...]) -> None:
        super().reroute(now_ns, routes)
        self._recording.tell(lambda: [journal.REROUTE, self.number, now_ns, to_plain(routes)])

    def enlarge(self, now_ns: int, deployment: Deployment) -> None:
        super().enlarge(now_ns, deployment)
        self._recording.tell(lambda: [journal.ENLARGE, self.number, now_ns, to_plain(deployment)])

    def inherit(self, now_ns: int, estimates: Estimates) -> None:
        super().inherit(now_ns, estimates)
        self._recording.tell(lambda: [journal.INHERIT, self.number, now_ns, to_plain(estimates)])

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
        was_lost: bool = False,
    ) -> int:
        query = (application, deadline_ns, tag, client, query_class, priority, demand, more, was_lost)
        ticket = super().submit(now_ns, *query)
        self._write([journal.SUBMIT, self.number, now_ns, query, ticket])
        return ticket

    def submit_many(
        self,
        now_ns: int,
        applications: NDArray[np.int64],
        deadlines_ns: NDArray[np.int64],
        priorities: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """One by one, as they are written down."""
        given = zip(applications.tolist(), deadlines_ns.tolist(), priorities.tolist(), strict=True)
        tickets = [
            self.submit(now_ns, application, deadline_ns, priority=priority, more=True)
            for application, deadline_ns, priority in given
        ]
        return np.array(tickets, np.int64)

    def cancel(self, now_ns: int, ticket: int, reason: Outcome = Outcome.DROPPED_CANCELLED) -> bool:
        was_live = super().cancel(now_ns, ticket, reason)
        self._write([journal.CANCEL, self.number, now_ns, ticket, int(reason)])
        return was_live

    def finished(self, now_ns: int, worker: int, ok: bool = True, took_ns: int = -1) -> None:
        super().finished(now_ns, worker, ok, took_ns)
        self._write([journal.FINISHED, self.number, now_ns, worker, ok, took_ns])

    def loaded(self, now_ns: int, worker: int, variant: int, ok: bool = True) -> bool:
        was_awaited = super().loaded(now_ns, worker, variant, ok)
        self._write([journal.LOADED, self.number, now_ns, worker, variant, ok])
        return was_awaited

    def classified(self, now_ns: int, ticket: int, query_class: int) -> None:
        super().classified(now_ns, ticket, query_class)
        self._write([journal.CLASSIFIED, self.number, now_ns, ticket, query_class])

    def worker_joined(self, now_ns: int, worker: int) -> None:
        super().worker_joined(now_ns, worker)
        self._write([journal.JOINED, self.number, now_ns, worker])

    def worker_left(self, now_ns: int, worker: int) -> None:
        super().worker_left(now_ns, worker)
        self._write([journal.LEFT, self.number, now_ns, worker])

    def worker_leaving(self, now_ns: int, worker: int) -> None:
        super().worker_leaving(now_ns, worker)
        self._write([journal.LEAVING, self.number, now_ns, worker])

    def advance(self, now_ns: int) -> None:
        super().advance(now_ns)
        self._write([journal.ADVANCE, self.number, now_ns])

    def decisions(self) -> Sequence[Decision]:
        decided = super().decisions()
        if decided:
            self._write([journal.DECIDED, self.number, [decision_as_list(decision) for decision in decided]])
        return decided


class Journal:
    """Makes the dispatchers that serve and hears of the planning; without a recording it keeps nothing."""

    def __init__(self, recording: Recording | None = None) -> None:
        self._recording = recording
        self._made = 0
        # Policies by name, and verdicts, that the planner was given since the last call.
        self.collected: Callable[[], list[Any]] = list

    @property
    def state(self) -> RecordingState | None:
        """Of the recording; None where nothing is recorded."""
        return None if self._recording is None else self._recording.state

    def began(
        self, planner: str, options: Mapping[str, GivenValue], data_aware: bool, stored: tuple[str, str] | None = None
    ) -> None:
        """Who plans, and with which file of policies: its path and its digest."""
        if self._recording is not None:
            self._recording.write([journal.SESSION, planner, dict(options), data_aware, stored])

    def dispatcher(self, in_force: InForce, *, correction: float, now_ns: int) -> Dispatcher:
        policies = self.collected()
        if self._recording is None:
            return Dispatcher(in_force.deployment, in_force.plan, correction=correction, now_ns=now_ns)
        self._made += 1
        number = self._made - 1
        return RecordedDispatcher(self._recording, number, in_force, policies, correction=correction, now_ns=now_ns)

    def planned(
        self,
        dispatcher: Dispatcher,
        telemetry: Telemetry,
        conditions: Conditions,
        plan: Plan | None,
        waiting: Sequence[WaitingQuery] | None,
        lines: Lines | None,
        clients: Sequence[Client] | None = None,
    ) -> None:
        """The planner was asked, with this, and the plan came out; None: it failed. `waiting` and `lines` are what it
        saw of the queues, where it looked, and `clients` are those that it saw.
        """
        policies = self.collected()  # also where nobody wants them: they would pile up
        recording = self._recording
        if recording is None or not isinstance(dispatcher, RecordedDispatcher):
            return
        number = dispatcher.number

        def line() -> list[Any]:
            seen = None if waiting is None else to_plain(list(waiting))
            met = None if clients is None else to_plain(list(clients))
            given = [to_plain(telemetry), to_plain(conditions), seen, to_plain(lines), met]
            made = None if plan is None else recording.number_of(plan)
            return [journal.PLANNED, number, telemetry.now_ns, *given, policies, made]

        recording.tell(line)

    def under(self, now_ns: int, dispatcher: Dispatcher, conditions: Conditions) -> None:
        """The plan in force was completed for other conditions."""
        if self._recording is not None and isinstance(dispatcher, RecordedDispatcher):
            number = dispatcher.number
            self._recording.tell(lambda: [journal.UNDER, number, now_ns, to_plain(conditions)])

    def refused(self, now_ns: int, dispatcher: Dispatcher) -> None:
        """What was planned last cannot be followed: the plan before it stays in force."""
        if self._recording is not None and isinstance(dispatcher, RecordedDispatcher):
            self._recording.write([journal.REFUSED, dispatcher.number, now_ns])


@contextmanager
def recording(path: Path | None, options: RecordOptions = DEFAULT_OPTIONS) -> Iterator[Journal]:
    """A journal that keeps nothing, or one that records into files that begin at `path`."""
    if path is None:
        yield Journal()
        return
    files = Recording(path, options)
    try:
        yield Journal(files)
    finally:
        files.close()
