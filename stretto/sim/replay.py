"""Replays the event log of a live server: the same events into a fresh dispatcher, and the same telemetry into a fresh
planning session. Every decision and every plan is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stretto.core import journal
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plain import from_plain, to_plain
from stretto.core.verdict import Verdict
from stretto.dispatch.decisions import decision_as_list
from stretto.dispatch.dispatcher import Dispatcher
from stretto.planners.parts.policy import Stored
from stretto.planners.parts.store import digest_of, load_libraries
from stretto.planners.parts.task import Task
from stretto.planners.ports import MadePolicy, MakePolicy, policy_name
from stretto.planning.readings import unmeasured_view
from stretto.planning.served import served_session
from stretto.planning.session import InForce, Session, on_larger_fleet
from stretto.sim.event_log import event_lines
from stretto.sim.ports import simulator_ports

MAX_DIFFERENCES = 20


@dataclass
class Replay:
    """What came of it. `differences` are the first ones found, in words."""

    events: int = 0
    decisions: int = 0
    plans: int = 0
    dispatchers: int = 0
    submitted: int = 0
    span_ns: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    difference_count: int = 0

    @property
    def is_identical(self) -> bool:
        return self.difference_count == 0

    def differ(self, text: str) -> None:
        self.difference_count += 1
        if len(self.differences) < MAX_DIFFERENCES:
            self.differences.append(text)


@dataclass
class _Served:
    """A dispatcher of the log, and the plan that the session here has in force for it."""

    dispatcher: Dispatcher
    in_force: InForce | None
    decided: list[list[Any]] = field(default_factory=list)  # since the log's last line of decisions
    before_planned: InForce | None = None  # was in force before the last planning, and is again where that was refused


class ReplayedPolicies:
    """A PolicyPort whose policies come when the log says that they came; they are made anew here."""

    def __init__(self) -> None:
        self._asked: dict[tuple[Any, ...], tuple[Task, Any, MakePolicy]] = {}
        self._arrived: list[MadePolicy] = []

    def ask(self, task: Task, options: Any, load: float, make: MakePolicy) -> None:
        self._asked[policy_name(task, options, load)] = (task, options, make)

    def collect(self) -> Sequence[MadePolicy]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def arrive(self, *name: Any) -> None:
        """What the live planner collected. One that was not asked for here shows as a plan that differs."""
        *named, was_made = name
        if tuple(named) in self._asked:
            task, options, make = self._asked[tuple(named)]
            load = named[3]
            self._arrived.append(MadePolicy(task, load, make(task, options, load) if was_made else None, options))


class ReplayedVerdicts:
    """A JudgePort whose verdicts come when the log says that they came, as they were. The log has those that were known
    at the start like all others.
    """

    def __init__(self) -> None:
        self._arrived: list[Verdict] = []

    def known(self, deployment: Deployment) -> Sequence[Verdict]:
        return ()

    def ask(self, deployment: Deployment, rates: tuple[float, ...]) -> None:
        pass

    def follows(self, rates: tuple[float, ...]) -> None:
        pass

    def broken(self, verdict: Verdict, late: float) -> None:
        pass

    def collect(self, deployment: Deployment) -> Sequence[Verdict]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def arrive(self, verdict: Verdict) -> None:
        self._arrived.append(verdict)


class _Replayer:
    def __init__(self, result: Replay) -> None:
        self.result = result
        self.served: dict[int, _Served] = {}
        self.session: Session | None = None
        self.policies, self.verdicts = ReplayedPolicies(), ReplayedVerdicts()
        self.plans: dict[int, Any] = {}  # as plain data, by the number that lines refer to them by

    def begin(self, planner: str, options: dict[str, Any], data_aware: bool, stored: tuple[str, str] | None) -> None:
        libraries = () if stored is None else _libraries(*stored)
        ports = replace(simulator_ports(), policies=self.policies, judge=self.verdicts, stored=libraries)
        self.session = served_session(planner, options, ports=ports, data_aware=data_aware)

    def apply(self, kind: str, which: int, rest: list[Any], number: int) -> None:
        now_ns = _whole(rest[0])
        if kind == journal.MADE:
            self._make(which, rest, number)
            return
        served = self.served[which]
        dispatcher = served.dispatcher
        if kind == journal.SUBMIT:
            *numbers, more, was_lost = rest[1]
            application, deadline_ns, tag, client, query_class, priority, demand = map(_whole, numbers)
            query = application, deadline_ns, tag, client, query_class, priority, demand
            ticket = dispatcher.submit(now_ns, *query, _truth(more), _truth(was_lost))
            self.result.submitted += 1
            if ticket != rest[2]:
                self.result.differ(f"line {number}: ticket {ticket} here, {rest[2]} live")
        elif kind == journal.CANCEL:
            dispatcher.cancel(now_ns, _whole(rest[1]), Outcome(rest[2]))
        elif kind == journal.CLASSIFIED:
            dispatcher.classified(now_ns, _whole(rest[1]), _whole(rest[2]))
        elif kind == journal.FINISHED:
            dispatcher.finished(now_ns, _whole(rest[1]), _truth(rest[2]), _whole(rest[3]))
        elif kind == journal.LOADED:
            dispatcher.loaded(now_ns, _whole(rest[1]), _whole(rest[2]), _truth(rest[3]))
        elif kind == journal.JOINED:
            dispatcher.worker_joined(now_ns, _whole(rest[1]))
        elif kind == journal.LEFT:
            dispatcher.worker_left(now_ns, _whole(rest[1]))
        elif kind == journal.LEAVING:
            dispatcher.worker_leaving(now_ns, _whole(rest[1]))
        elif kind == journal.ADVANCE:
            dispatcher.advance(now_ns)
        elif kind == journal.REROUTE:
            dispatcher.reroute(now_ns, from_plain(rest[1]))
        elif kind == journal.ENLARGE:
            deployment = from_plain(rest[1])
            dispatcher.enlarge(now_ns, deployment)
            if served.in_force is not None:
                served.in_force = on_larger_fleet(served.in_force, deployment, dispatcher.plan)
        elif kind == journal.INHERIT:
            dispatcher.inherit(now_ns, from_plain(rest[1]))
        elif kind == journal.PLANNED:
            self._plan(served, rest, number)
        elif kind == journal.REFUSED:
            served.in_force = served.before_planned or served.in_force
        elif kind == journal.UNDER:
            if self.session is not None and served.in_force is not None:
                served.in_force = self.session.under(served.in_force, from_plain(rest[1]))
        else:
            plan = self.plans[_whole(rest[1])]
            self._compare_plan(served, plan, number)
            take = dispatcher.choose_by if kind == journal.CHOOSE else dispatcher.adopt
            take(now_ns, from_plain(plan))
        served.decided += [decision_as_list(decision) for decision in dispatcher.decisions()]

    def compare_decisions(self, which: int, live: list[Any], number: int) -> None:
        served = self.served[which]
        here, served.decided = served.decided, []
        self.result.decisions += len(live)
        if here != live:
            self.result.differ(f"line {number}: decided {str(here)[:200]} here, {str(live)[:200]} live")

    def _make(self, which: int, rest: list[Any], number: int) -> None:
        now_ns, correction, deployment, plan = rest[0], rest[1], from_plain(rest[2]), self.plans[_whole(rest[3])]
        dispatcher = Dispatcher(deployment, from_plain(plan), correction=correction, now_ns=now_ns)
        decided = [decision_as_list(decision) for decision in dispatcher.decisions()]
        served = self.served[which] = _Served(dispatcher, self._first(deployment, from_plain(rest[4])), decided)
        if served.in_force is not None:
            self._compare_plan(served, plan, number)

    def _arrive(self, given: Sequence[Any]) -> None:
        """Policies by name, and verdicts."""
        for each in given:
            if isinstance(each, list | tuple):
                self.policies.arrive(*each)
            else:
                self.verdicts.arrive(each if isinstance(each, Verdict) else from_plain(each))

    def _first(self, deployment: Deployment, seen: Any) -> InForce | None:
        if self.session is None or seen is None:
            return None
        now_ns, rates, alive, conditions, other, policies = seen
        self._arrive(policies)
        shown = other or deployment
        view = unmeasured_view(shown, now_ns, conditions.delays, rates, alive)
        return replace(self.session.first(shown, now_ns, conditions, view=view), deployment=deployment)

    def _plan(self, served: _Served, rest: list[Any], number: int) -> None:
        """The planner is asked with what the log says it saw."""
        telemetry, conditions, waiting, lines, clients, policies, plan = rest[1:]
        if self.session is None or served.in_force is None:
            return
        seen = () if waiting is None else from_plain(waiting)
        self._arrive(policies)
        seen_lines = from_plain(lines)
        seen_clients = () if clients is None else from_plain(clients)
        seen_telemetry, given = from_plain(telemetry), from_plain(conditions)
        served.before_planned = served.in_force
        try:
            served.in_force = self.session.next(
                served.in_force,
                seen_telemetry,
                given,
                clients=lambda: seen_clients,
                waiting=lambda: seen,
                lines=lambda depth: seen_lines,
            )
        except Exception as error:  # a planner's own, which live left the plan before in force
            if plan is not None:
                self.result.differ(f"line {number}: the planner fails here, and did not live: {error}")
            return
        if plan is None:
            self.result.differ(f"line {number}: the planner made a plan here, and failed live")
            served.in_force = served.before_planned
            return
        self._compare_plan(served, self.plans[_whole(plan)], number)

    def _compare_plan(self, served: _Served, live: Any, number: int) -> None:
        if served.in_force is None:
            return
        self.result.plans += 1
        if to_plain(served.in_force.plan) != live:
            self.result.differ(f"line {number}: the plan made here is another one than live")


def replay(path: Path, progress: Callable[[float], None] | None = None) -> Replay:
    """StrettoError where the file is no event log; a line cut off at its end is left out. Further parts of a recording
    are found beside the first.
    """
    result = Replay()
    replayer = _Replayer(result)
    first_ns: int | None = None
    for line in event_lines(path):
        with line.explained():
            kind, which, *rest = line.content
            if kind == journal.DECIDED:
                replayer.compare_decisions(which, rest[0], line.number)
                continue
            if kind == journal.SESSION:
                replayer.begin(which, *rest)
                continue
            if kind == journal.PLAN:
                replayer.plans[_whole(which)] = rest[0]
                continue
            now_ns = _whole(rest[0])
            first_ns = now_ns if first_ns is None else first_ns
            result.span_ns = max(result.span_ns, now_ns - first_ns)
            replayer.apply(kind, which, rest, line.number)
        result.events += 1
        if progress is not None and result.events % 1000 == 0:
            progress(line.share)
    for served in replayer.served.values():
        _, outcomes = served.dispatcher.counts()
        for outcome in Outcome:
            name = outcome.name.lower()
            result.outcomes[name] = result.outcomes.get(name, 0) + int(outcomes[:, outcome].sum())
    result.dispatchers = len(replayer.served)
    return result


def _libraries(path: str, digest: str) -> tuple[Stored, ...]:
    """The policies that the server was given; without them another plan would come out."""
    if not Path(path).is_file():
        raise StrettoError(f"the server followed policies of {path}, which is not there; put the file back to replay")
    if digest_of(path) != digest:
        raise StrettoError(f"{path} is another file of policies than the server followed; put that one back to replay")
    return load_libraries(path)


def _whole(value: Any) -> int:
    """Another type would make Numba compile the dispatcher once more."""
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise TypeError(value)
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(value)
    return value
