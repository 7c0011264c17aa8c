"""The dispatcher's face: what a driver sees. Time comes in, decisions come out, and the moment of the next call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import PlanError, StrettoError
from stretto.core.outcome import OUTCOME_COUNT, Outcome
from stretto.core.plan import Plan, RouteRule, Worklist
from stretto.core.telemetry import Telemetry
from stretto.core.view import WaitingQuery
from stretto.dispatch import events
from stretto.dispatch.layout import Memory, fill_worker_memory, lay_out_deployment, lay_out_plan, lay_out_slots
from stretto.dispatch.records import NEVER, RATE_BUCKETS, DecisionKind, Status

FIRST_SLOTS = 1024
MAX_SLOTS = 2**26
DEALING = (RouteRule.ROUND_ROBIN, RouteRule.SHORTEST, RouteRule.WEIGHTED)
WAITING_COLUMNS = (
    *("application", "arrival_ns", "deadline_ns", "client", "query_class", "priority", "demand"),
    "tag",
)  # as WaitingQuery has them, between its ticket and its theta
ThetaOf = Callable[[int, int], tuple[float, ...] | None]  # by ticket and tag
# Plain numbers, because a member of an enum would be another type to Numba.
TIME_PASSED, FINISHED, WITHDRAWN, CLASSIFIED, WORKER_JOINED, WORKER_LEFT = (event.value for event in events.Event)


@dataclass(frozen=True, slots=True)
class Run:
    """Start this batch on this worker at `start_ns`, not before; it should end at `expected_ns`."""

    worker: int
    variant: int
    tickets: tuple[int, ...]
    start_ns: int
    expected_ns: int


@dataclass(frozen=True, slots=True)
class Drop:
    """This query ends without an answer."""

    ticket: int
    reason: Outcome


@dataclass(frozen=True, slots=True)
class Answer:
    """This query ends now with its evidence as the answer; no worker is asked."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Load:
    """Bring the variant into the worker's memory. `alone`: no Run waits for it, and its end is reported as finished.

    Otherwise the next decision is the Run that needs it, and only the end of that is reported.
    """

    worker: int
    variant: int
    start_ns: int
    expected_ns: int
    alone: bool


@dataclass(frozen=True, slots=True)
class Unload:
    """Free the worker's memory of the variant."""

    worker: int
    variant: int


Decision = Run | Drop | Answer | Load | Unload


class Dispatcher:
    """Follows the plan it was given last. Not for use from two threads at once."""

    def __init__(self, deployment: Deployment, plan: Plan, *, correction: float = 0.0, now_ns: int = 0) -> None:
        """`correction` is the step with which measured latency corrects the profile; 0 leaves the profile as it is."""
        if not 0 <= correction < 1:
            raise StrettoError(f"the latency correction is a step between 0 and 1, not {correction}")
        check_plan(plan, deployment)
        self.deployment = deployment
        self.plan = plan
        self.memory = Memory()
        lay_out_deployment(self.memory, deployment, correction)
        lay_out_slots(self.memory, FIRST_SLOTS)
        self._kept: list[Decision] = []
        self._state = self.memory.state
        self._free_slots = self._state["free_slots"]
        self._decision_count = self._state["decision_count"]
        self._wake = self._state["wake_ns"]
        self._applications = len(deployment.applications)
        self._install(now_ns, plan)

    # -- events -------------------------------------------------------------------------------------------------------

    def adopt(self, now_ns: int, plan: Plan) -> None:
        """Follow a new plan. Waiting queries move to their new lanes, running ones run on; lanes of one name keep λ."""
        check_plan(plan, self.deployment)
        self._check_works(plan)
        self._install(now_ns, plan)

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
        """A query came; returns its ticket. `tag` is the driver's own number for it.

        `demand` is the number of a lane in its route's demands. `more`: another query follows at this very moment, and
        batches are formed when it is in.
        """
        if not 0 <= application < self._applications:
            raise StrettoError(f"application number {application} is outside 0 … {self._applications - 1}")
        if self._free_slots[0] == 0:
            self.grow()
        self._empty_buffer()
        return events.submit(
            self._state, now_ns, application, deadline_ns, tag, client, query_class, priority, demand, more
        )

    def cancel(self, now_ns: int, ticket: int, reason: Outcome = Outcome.DROPPED_CANCELLED) -> bool:
        """Withdraw a query, waiting or running; false if it has already ended.

        `reason` FAILED is for a query that its model cannot answer, while the rest of its batch can.
        """
        self._empty_buffer()
        return bool(events.report(self._state, WITHDRAWN, now_ns, ticket, int(reason), -1))

    def classified(self, now_ns: int, ticket: int, query_class: int) -> None:
        """The class of a query became known; one that has ended, or runs, stays where it is."""
        self._empty_buffer()
        events.report(self._state, CLASSIFIED, now_ns, ticket, query_class, -1)

    def finished(self, now_ns: int, worker: int, ok: bool = True, took_ns: int = -1) -> None:
        """The worker's running batch, or its load, ended.

        `took_ns` is the time of the run as the worker saw it, for the correction of latencies; where it is not known,
        the time since the batch was to start, which the way to the worker and back makes longer.
        """
        self._check_worker(worker)
        self._empty_buffer()
        events.report(self._state, FINISHED, now_ns, worker, int(ok), took_ns)

    def worker_joined(self, now_ns: int, worker: int) -> None:
        """A worker that had left is back, with its first memory."""
        self._check_worker(worker)
        if not self.memory["workers"][worker]["alive"]:
            fill_worker_memory(self.memory, self.deployment, worker)
        self._empty_buffer()
        events.report(self._state, WORKER_JOINED, now_ns, worker, 0, -1)

    def worker_left(self, now_ns: int, worker: int) -> None:
        """A worker is lost. What ran there returns to its lane if it can still make it."""
        self._check_worker(worker)
        self._empty_buffer()
        events.report(self._state, WORKER_LEFT, now_ns, worker, 0, -1)

    def advance(self, now_ns: int) -> None:
        """Let due timers act."""
        self._empty_buffer()
        events.report(self._state, TIME_PASSED, now_ns, -1, 0, -1)

    # -- what comes out -----------------------------------------------------------------------------------------------

    def decisions(self) -> Sequence[Decision]:
        """Everything decided since the last call, in order."""
        if self._decision_count[0] == 0 and not self._kept:
            return ()
        self._collect()
        kept, self._kept = self._kept, []
        return kept

    def wake_at_ns(self) -> int | None:
        """When `advance` is next wanted; None: not before another event."""
        at_ns = int(self._wake[0])
        return None if at_ns >= NEVER else at_ns

    def telemetry(self, now_ns: int) -> Telemetry:
        """A reading for planners."""
        memory, deployment = self.memory, self.deployment
        rates = np.zeros(len(memory["meters"]))
        events.read_rates(self._state, now_ns, rates)
        counting_ns = np.where(memory["meters"]["first_ns"] < 0, 0, now_ns - memory["meters"]["first_ns"])
        rows = memory["rows"].reshape(len(deployment.variants), len(deployment.kinds))
        return Telemetry(
            now_ns=now_ns,
            rates=rates[: self._applications] * 1e9,
            is_rated=counting_ns[: self._applications] >= self.plan.rate_window_ns,
            submitted=memory["submitted"].copy(),
            outcomes=memory["outcomes"].reshape(self._applications, OUTCOME_COUNT).copy(),
            waiting=int(self._state["waiting"][0]),
            running=int(self._state["running"][0]),
            lane_names=tuple(lane.name for lane in self.plan.lanes),
            lane_lengths=memory["lanes"]["length"].copy(),
            lane_rates=rates[self._applications :] * 1e9,
            worker_busy_ns=memory["workers"]["busy_ns"].copy(),
            worker_free_ns=memory["workers"]["free_ns"].copy(),
            worker_alive=memory["workers"]["alive"] != 0,
            worker_holds=memory["resident"]["loaded"].reshape(len(deployment.workers), -1) != 0,
            latency_ratio=rows["ratio"].copy(),
            is_measured=rows["runs"] > 0,
        )

    def waiting(self, theta_of: ThetaOf | None = None) -> tuple[WaitingQuery, ...]:
        """The queued queries, oldest first. `theta_of` tells what evidence the driver has of a query's class."""
        slots = self._waiting_slots()
        queries = self.memory["queries"][slots]
        tickets = ((queries["generation"] << 32) | slots).tolist()
        columns = (queries[name].tolist() for name in WAITING_COLUMNS)
        thetas = [None] * len(tickets) if theta_of is None else map(theta_of, tickets, queries["tag"].tolist())
        return tuple(WaitingQuery(*row) for row in zip(tickets, *columns, thetas, strict=True))

    def resident(self, worker: int) -> tuple[int, ...]:
        """The variants that the worker holds, as the dispatcher knows it."""
        self._check_worker(worker)
        count = len(self.deployment.variants)
        entries = self.memory["resident"][worker * count : (worker + 1) * count]
        return tuple(np.flatnonzero(entries["loaded"]).tolist())

    def grow(self) -> None:
        """Room for twice as many waiting and running queries."""
        slots = len(self.memory["queries"])
        if slots >= MAX_SLOTS:
            raise StrettoError(f"more than {MAX_SLOTS} queries are waiting and running")
        lay_out_slots(self.memory, 2 * slots)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _install(self, now_ns: int, plan: Plan) -> None:
        memory = self.memory
        before = dict(memory.arrays) if "lanes" in memory.arrays else None
        if before is None or plan.seed != self.plan.seed:  # else the draws go on where they were
            memory.state["random"] = np.uint64(plan.seed)
        self._empty_buffer()
        slots = self._waiting_slots()
        answered = self._answered_slots(plan)
        if len(answered):
            slots = slots[~np.isin(slots, answered)]
        kept = self._kept_lanes(slots, plan)
        memory.state["waiting"] = 0
        lay_out_plan(memory, self.deployment, plan)
        if before is not None:
            self._carry_over(before, self.plan, plan)
        self.plan = plan
        self._mark_works(plan)
        events.adopted(self._state, now_ns, slots, kept, answered)

    def _carry_over(self, before: dict[str, Any], old: Plan, new: Plan) -> None:
        """Rates go on where the window is the same, of applications and of lanes that keep their name; so do caps."""
        memory, first = self.memory, self._applications
        numbers = {lane.name: number for number, lane in enumerate(old.lanes)}
        pairs = [(numbers[lane.name], number) for number, lane in enumerate(new.lanes) if lane.name in numbers]
        source, target = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        capped = (before["lanes"]["cap_target_ns"][source] > 0) & (memory["lanes"]["cap_target_ns"][target] > 0)
        memory["lanes"]["cap"][target[capped]] = before["lanes"]["cap"][source[capped]]
        if old.rate_window_ns != new.rate_window_ns:
            return
        source = np.concatenate([np.arange(first), first + source])
        target = np.concatenate([np.arange(first), first + target])
        memory["meters"][target] = before["meters"][source]
        counts = memory["rate_counts"].reshape(-1, RATE_BUCKETS)
        counts[target] = before["rate_counts"].reshape(-1, RATE_BUCKETS)[source]

    def _answered_slots(self, plan: Plan) -> Any:
        """The slots of waiting queries that the plan answers from their evidence, each once."""
        worklists = [lane.select for lane in plan.lanes if isinstance(lane.select, Worklist)]
        slots = [self._slot_of(ticket) for worklist in worklists for ticket in worklist.answers]
        return np.unique(np.array([slot for slot in slots if slot >= 0], dtype=np.int64))

    def _kept_lanes(self, slots: Any, plan: Plan) -> Any:
        """For each waiting query the lane of the new plan that has the name of its lane, where its route still leads
        there by turns or by chance; -1 where it must be routed anew. Dealing all of them out again would mix queues.
        """
        kept = np.full(len(slots), -1, dtype=np.int64)
        if not len(slots):
            return kept
        numbers = {lane.name: number for number, lane in enumerate(plan.lanes)}
        by_lane = [numbers.get(lane.name, -1) for lane in self.plan.lanes]
        doors = [set(route.lanes) if route.rule in DEALING else set() for route in plan.routes]
        queries = self.memory["queries"]
        for place, slot in enumerate(slots):
            lane, application = int(queries[slot]["lane"]), int(queries[slot]["application"])
            if queries[slot]["demand"] < 0 and by_lane[lane] in doors[application]:
                kept[place] = by_lane[lane]
        return kept

    def _check_works(self, plan: Plan) -> None:
        """Refuses a pre-formed batch that would answer a query with another application's variant."""
        queries, deployment = self.memory["queries"], self.deployment
        for lane in plan.lanes:
            for work in lane.select.works if isinstance(lane.select, Worklist) else ():
                for ticket in work.tickets:
                    slot = self._slot_of(ticket)
                    if slot >= 0 and queries[slot]["application"] != deployment.application_of[work.variant]:
                        name = deployment.applications[int(queries[slot]["application"])].name
                        raise PlanError(
                            f"lane {lane.name} puts a query of {name} into a batch of "
                            f"{deployment.variant_label(work.variant)}"
                        )

    def _slot_of(self, ticket: int) -> int:
        """The slot of a ticket whose query still waits, or -1."""
        queries, slot = self.memory["queries"], ticket & 0xFFFFFFFF
        if ticket < 0 or slot >= len(queries) or queries[slot]["generation"] != ticket >> 32:
            return -1
        return slot if queries[slot]["status"] == Status.WAITING else -1

    def _mark_works(self, plan: Plan) -> None:
        """Write into each query which work holds it; a query named twice belongs to the last."""
        queries = self.memory["queries"]
        queries["work"] = -1
        number = 0
        for lane in plan.lanes:
            for work in lane.select.works if isinstance(lane.select, Worklist) else ():
                for ticket in work.tickets:
                    slot = self._slot_of(ticket)
                    if slot >= 0:
                        queries[slot]["work"] = number
                number += 1

    def _waiting_slots(self) -> Any:
        queries = self.memory["queries"]
        slots = np.flatnonzero(queries["status"] == Status.WAITING)
        return slots[np.argsort(queries["sequence"][slots], kind="stable")].astype(np.int64)

    def _check_worker(self, worker: int) -> None:
        if not 0 <= worker < len(self.deployment.workers):
            raise StrettoError(f"worker number {worker} is outside 0 … {len(self.deployment.workers) - 1}")

    def _empty_buffer(self) -> None:
        """One event decides at most as much as the buffer holds, so it starts empty."""
        if self._decision_count[0]:
            self._collect()

    def _collect(self) -> None:
        """Turn the decision records into objects and empty the buffer."""
        decided = self.memory["decided"]
        for record in self.memory["decisions"][: int(self._decision_count[0])]:
            kind, worker, variant = int(record["kind"]), int(record["worker"]), int(record["variant"])
            first = int(record["first"])
            if kind == DecisionKind.RUN:
                tickets = tuple(decided[first : first + int(record["count"])].tolist())
                self._kept.append(Run(worker, variant, tickets, int(record["start_ns"]), int(record["expected_ns"])))
            elif kind == DecisionKind.DROP:
                self._kept.append(Drop(int(decided[first]), Outcome(int(record["reason"]))))
            elif kind == DecisionKind.ANSWER:
                self._kept.append(Answer(int(decided[first])))
            elif kind == DecisionKind.LOAD:
                start_ns, expected_ns = int(record["start_ns"]), int(record["expected_ns"])
                self._kept.append(Load(worker, variant, start_ns, expected_ns, bool(record["alone"])))
            else:
                self._kept.append(Unload(worker, variant))
        self._state["decision_count"] = 0
        self._state["tickets_named"] = 0


def decision_as_list(decision: Decision) -> list[Any]:
    """As it stands in an event log (core/journal.py)."""
    if isinstance(decision, Run):
        numbers = [decision.worker, decision.variant, list(decision.tickets), decision.start_ns, decision.expected_ns]
        return ["run", *numbers]
    if isinstance(decision, Drop):
        return ["drop", decision.ticket, int(decision.reason)]
    if isinstance(decision, Answer):
        return ["answer", decision.ticket]
    if isinstance(decision, Load):
        times = [decision.start_ns, decision.expected_ns]
        return ["load", decision.worker, decision.variant, *times, decision.alone]
    return ["unload", decision.worker, decision.variant]
