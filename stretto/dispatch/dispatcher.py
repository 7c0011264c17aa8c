"""The dispatcher's face: what a driver sees. Time comes in, decisions come out, and the moment of the next call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.check import check_choices, check_plan, check_routes
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.estimates import Estimates
from stretto.core.outcome import OUTCOME_COUNT, Outcome
from stretto.core.plan import Plan, Route
from stretto.core.telemetry import Telemetry
from stretto.core.view import Lines, WaitingQuery
from stretto.dispatch import adoption, events
from stretto.dispatch.decisions import Decision, decisions_in
from stretto.dispatch.estimates import read_estimates, take_estimates
from stretto.dispatch.fleet import check_larger, enlarge, with_further_workers
from stretto.dispatch.layout import (
    Memory,
    fill_worker_memory,
    lay_out_choices,
    lay_out_deployment,
    lay_out_plan,
    lay_out_routes,
    lay_out_slots,
    lay_out_weights,
)
from stretto.dispatch.lines import read_lines
from stretto.dispatch.rates import dispersions
from stretto.dispatch.records import NEVER

FIRST_SLOTS = 1024
MAX_SLOTS = 2**26
WAITING_COLUMNS = (
    *("application", "arrival_ns", "deadline_ns", "client", "query_class", "priority", "demand"),
    "tag",
)  # as WaitingQuery has them, between its ticket and its theta
ThetaOf = Callable[[int, int], tuple[float, ...] | None]  # by ticket and tag
NOTHING_TOLD = np.zeros((0, 5), np.int64)  # of tag, client, class, demand and whether it was lost
# Plain numbers, because a member of an enum would be another type to Numba.
TIME_PASSED, FINISHED, WITHDRAWN, CLASSIFIED, WORKER_JOINED, WORKER_LEFT, LEARNED, LOADED, WORKER_LEAVING, ADOPTED = (
    event.value for event in events.Event
)


class Dispatcher:
    """Follows the plan it was given last. Not for use from two threads at once."""

    def __init__(
        self,
        deployment: Deployment,
        plan: Plan,
        *,
        correction: float = 0.0,
        now_ns: int = 0,
        slots: int = FIRST_SLOTS,
    ) -> None:
        """`correction` is the step with which measured latency corrects the profile; 0 leaves the profile as it is.
        `slots` is how many queries it has room for before it grows.
        """
        if not 0 <= correction < 1:
            raise StrettoError(f"the latency correction is a step between 0 and 1, not {correction}")
        check_plan(plan, deployment)
        self.deployment = deployment
        self.plan = plan
        self.memory = Memory()
        lay_out_deployment(self.memory, deployment, correction)
        lay_out_slots(self.memory, slots)
        self._undelivered: list[Decision] = []
        self._switches = {True: 0, False: 0}  # of the variants that workers hold, by whether it was in memory
        self._state = self.memory.state
        # Of one query: application, deadline, priority, ticket, what is told of it. Python writes them through views,
        # which is far quicker than writing into arrays.
        self._alone = [np.zeros(1, np.int64) for _ in range(4)]
        self._told_alone = np.zeros((1, NOTHING_TOLD.shape[1]), np.int64)
        self._alone_values = [array.data for array in (*self._alone, self._told_alone[0])]
        self._free_slots = self._state["free_slots"].data
        self._decision_count = self._state["decision_count"].data
        self._wake = self._state["wake_ns"].data
        self._applications = len(deployment.applications)
        self._install(now_ns, plan)

    # -- events -------------------------------------------------------------------------------------------------------

    def adopt(self, now_ns: int, plan: Plan) -> None:
        """Follow a new plan. Waiting queries move to their new lanes, running ones run on; lanes of one name keep λ."""
        check_plan(plan, self.deployment)
        adoption.check_works(self.memory, self.deployment, plan)
        self._install(now_ns, plan)

    def follow(self, now_ns: int, plan: Plan) -> None:
        """Adopt a plan; where nothing but the routes or the tables differs from the plan in force, those alone."""
        if replace(plan, routes=self.plan.routes) == self.plan:
            self.reroute(now_ns, plan.routes)
            self.plan = plan
        elif adoption.differs_in_tables_alone(self.plan, plan):
            self.choose_by(now_ns, plan)
        else:
            self.adopt(now_ns, plan)

    def choose_by(self, now_ns: int, plan: Plan) -> None:
        """The same lanes with other tables, floors and doors: who waits stays in its place, and rates go on."""
        check_choices(plan, self.deployment)
        self._empty_buffer()
        lay_out_choices(self.memory, self.deployment, plan)
        self.plan = plan
        events.report(self._state, LEARNED, now_ns, 0, 0, 0)  # other variants may be the quickest
        events.report(self._state, ADOPTED, now_ns, 0, 0, 0)

    def reroute(self, now_ns: int, routes: tuple[Route, ...]) -> None:
        """The same plan with other routes, one per application, for queries to come.

        For weights and targets that change often: lanes, queues, rates and caps are not touched, and who waits stays.
        """
        check_routes(routes, self.plan.lanes, self.deployment, self.plan.routes)
        self._empty_buffer()
        lay_out = lay_out_weights if all(map(Route.leads_as, routes, self.plan.routes)) else lay_out_routes
        lay_out(self.memory, routes)
        self.plan = replace(self.plan, routes=routes)
        events.report(self._state, TIME_PASSED, now_ns, 0, 0, 0)

    def enlarge(self, now_ns: int, deployment: Deployment) -> None:
        """The same deployment with further workers at its end, which are not there until they join.

        Nothing is lost of what waits, runs or was measured. The plan in force does not know the new workers; the next
        one may.
        """
        check_larger(self.deployment, deployment)
        self._empty_buffer()
        enlarge(self.memory, self.deployment, deployment, self.plan)
        self.deployment = deployment
        self.plan = replace(self.plan, **with_further_workers(self.plan, len(deployment.workers)))
        events.report(self._state, LEARNED, now_ns, 0, 0, 0)

    def inherit(self, now_ns: int, estimates: Estimates) -> None:
        """Begin with what another deployment's dispatcher learned, where names, window and profiles are the same."""
        if self.memory["submitted"].any():
            raise StrettoError("a dispatcher that has seen queries has estimates of its own")
        take_estimates(self.memory, self.deployment, self.plan, estimates)
        self._empty_buffer()
        events.report(self._state, LEARNED, now_ns, 0, 0, 0)

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
        """A query came; returns its ticket. `tag` is the driver's own number for it.

        `demand` is the number of a lane in its route's demands. `more`: another query follows at this very moment, and
        batches are formed when it is in. `was_lost`: it comes from another dispatcher, where it was lost with its
        worker; where it cannot be tried again in time, it failed.
        """
        numbers, deadlines, ranks, ticket, details = self._alone_values
        numbers[0], deadlines[0], ranks[0] = application, deadline_ns, priority
        details[0], details[1], details[2], details[3], details[4] = tag, client, query_class, demand, was_lost
        if self._free_slots[0] == 0:
            self.grow()
        if self._decision_count[0]:
            self._collect()
        applications, due_ns, rank, tickets = self._alone
        if events.submit_many(self._state, now_ns, applications, due_ns, rank, self._told_alone, more, tickets, 0) < 0:
            raise StrettoError(f"application number {application} is outside 0 … {self._applications - 1}")
        return ticket[0]

    def submit_many(
        self,
        now_ns: int,
        applications: NDArray[np.int64],
        deadlines_ns: NDArray[np.int64],
        priorities: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Queries that came together, with nothing else to be said of them; their tickets. Batches are formed by the
        next event.
        """
        tickets = np.empty(len(applications), np.int64)
        place = 0
        while place < len(tickets):
            if self._free_slots[0] == 0:
                self.grow()
            self._empty_buffer()
            place = events.submit_many(
                self._state, now_ns, applications, deadlines_ns, priorities, NOTHING_TOLD, True, tickets, place
            )
            if place < 0:
                raise StrettoError(f"application numbers lie in 0 … {self._applications - 1}")
        return tickets

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

    def loaded(self, now_ns: int, worker: int, variant: int, ok: bool = True) -> bool:
        """A load beside the worker's work ended; false where nobody waits for it any more, as after the worker left."""
        self._check_worker(worker)
        if not 0 <= variant < len(self.deployment.variants):
            raise StrettoError(f"variant number {variant} is outside 0 … {len(self.deployment.variants) - 1}")
        self._empty_buffer()
        return bool(events.report(self._state, LOADED, now_ns, worker, variant, int(ok)))

    def worker_joined(self, now_ns: int, worker: int) -> None:
        """A worker that had left is back, with its first memory; or one that was leaving stays."""
        self._check_worker(worker)
        record = self.memory["workers"][worker]
        if not record["alive"] and not record["depth"]:
            fill_worker_memory(self.memory, self.deployment, worker)
        self._empty_buffer()
        events.report(self._state, WORKER_JOINED, now_ns, worker, 0, -1)

    def worker_left(self, now_ns: int, worker: int) -> None:
        """A worker is lost. What ran there returns to its lane if it can still make it."""
        self._check_worker(worker)
        self._empty_buffer()
        events.report(self._state, WORKER_LEFT, now_ns, worker, 0, -1)

    def worker_leaving(self, now_ns: int, worker: int) -> None:
        """A worker is to go: it is given nothing more, and finishes what it was given. It counts as gone from now on;
        who loses it meanwhile says so with `worker_left`.
        """
        self._check_worker(worker)
        self._empty_buffer()
        events.report(self._state, WORKER_LEAVING, now_ns, worker, 0, -1)

    def advance(self, now_ns: int) -> None:
        """Let due timers act."""
        self._empty_buffer()
        events.report(self._state, TIME_PASSED, now_ns, -1, 0, -1)

    # -- what comes out -----------------------------------------------------------------------------------------------

    def decisions(self) -> Sequence[Decision]:
        """Everything decided since the last call, in order."""
        if not self.has_decisions:
            return ()
        self._collect()
        decisions, self._undelivered = self._undelivered, []
        return decisions

    @property
    def has_decisions(self) -> bool:
        """Whether `decisions` would return any."""
        return bool(self._decision_count[0]) or bool(self._undelivered)

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
        submitted, outcomes = self.counts()
        is_measured = memory["rows"]["runs"].reshape(len(deployment.variants), -1) > 0
        return Telemetry(
            now_ns=now_ns,
            rates=rates[: self._applications] * 1e9,
            dispersion=dispersions(memory["meters"][: self._applications]),
            is_rated=counting_ns[: self._applications] >= self.plan.rate_window_ns,
            submitted=submitted,
            outcomes=outcomes,
            waiting=self.waiting_count,
            running=self.running,
            lane_names=tuple(lane.name for lane in self.plan.lanes),
            lane_lengths=memory["lanes"]["length"].copy(),
            lane_rates=rates[self._applications :] * 1e9,
            worker_busy_ns=self.busy_ns(),
            worker_free_ns=memory["workers"]["free_ns"].copy(),
            worker_alive=memory["workers"]["alive"] != 0,
            worker_holds=memory["resident"]["loaded"].reshape(len(deployment.workers), -1) != 0,
            latency_ratio=self.latency_ratio(),
            is_measured=is_measured,
            switch_hits=self._switches[True],
            switch_misses=self._switches[False],
        )

    @property
    def switches(self) -> tuple[int, int]:
        """How often a plan placed another variant on a worker that had it in memory already, and that had not."""
        return self._switches[True], self._switches[False]

    def estimates(self) -> Estimates:
        """What was learned so far: rates, adaptive caps and corrected latencies."""
        return read_estimates(self.memory, self.deployment, self.plan)

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Submitted by application, and ended by application and Outcome, since the dispatcher was made."""
        outcomes = self.memory["outcomes"].reshape(self._applications, OUTCOME_COUNT)
        return self.memory["submitted"].copy(), outcomes.copy()

    def busy_ns(self) -> NDArray[np.int64]:
        """How long each worker was busy with batches that have ended."""
        return self.memory["workers"]["busy_ns"].copy()

    def latency_ratio(self) -> NDArray[np.float64]:
        """Measured over profiled latency, by variant and kind of worker."""
        return self.memory["rows"]["ratio"].reshape(len(self.deployment.variants), -1).copy()

    @property
    def now_ns(self) -> int:
        """The latest time that it was given."""
        return int(self._state["now_ns"][0])

    @property
    def running(self) -> int:
        """Queries in batches given to workers."""
        return int(self._state["running"][0])

    @property
    def waiting_count(self) -> int:
        """Queries in lanes."""
        return int(self._state["waiting"][0])

    def lane_length(self, lane: int) -> int:
        """Queries that wait in a lane."""
        return int(self.memory["lanes"]["length"][lane])

    def waiting(self, theta_of: ThetaOf | None = None) -> tuple[WaitingQuery, ...]:
        """The queued queries, oldest first. `theta_of` tells what evidence the driver has of a query's class."""
        slots = adoption.oldest_first(self.memory, adoption.slots_by_lane(self.memory))
        queries = self.memory["queries"][slots]
        tickets = ((queries["generation"] << 32) | slots).tolist()
        columns = (queries[name].tolist() for name in WAITING_COLUMNS)
        thetas = [None] * len(tickets) if theta_of is None else map(theta_of, tickets, queries["tag"].tolist())
        return tuple(WaitingQuery(*row) for row in zip(tickets, *columns, thetas, strict=True))

    def is_waiting(self, ticket: int) -> bool:
        """Whether this query is in a lane: it has not ended, and no batch has it."""
        return bool(adoption.slots_of(self.memory, np.array([ticket]))[0] >= 0)

    def lines(self, depth: int) -> Lines:
        """What each lane holds, with the arrivals of its `depth` oldest queries."""
        count = len(self.plan.lanes)
        length, running, started_ns = (np.zeros(count, np.int64) for _ in range(3))
        lines = Lines(length, running, started_ns, np.zeros((count, depth), np.int64))
        read_lines(self._state, lines.length, lines.running, lines.started_ns, lines.arrival_ns)
        return lines

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
        named = adoption.NamedQueries.of(memory, plan)
        by_lane = adoption.slots_by_lane(memory)
        if len(named.answered):
            by_lane = by_lane[~np.isin(by_lane, named.answered)]
        slots = adoption.oldest_first(memory, by_lane)
        staying = adoption.staying_lanes(memory, slots, self.plan, plan)
        memory.state["waiting"] = 0
        if before is not None:
            self._count_switches(plan)
        lay_out_plan(memory, self.deployment, plan)
        if before is not None:
            adoption.carry_over(memory, before, self.plan, plan)
        self.plan = plan
        adoption.mark_works(memory, slots, named)
        events.move_in(self._state, now_ns, slots, staying, by_lane, named.answered)
        events.report(self._state, ADOPTED, now_ns, 0, 0, 0)

    def _count_switches(self, plan: Plan) -> None:
        """Of each worker that the plan places another variant on: whether that is in its memory already."""
        if plan.placement is None or self.plan.placement is None:
            return
        holds = self.memory["resident"]["loaded"].reshape(len(self.deployment.workers), -1)
        for worker in np.flatnonzero(self.memory["workers"]["alive"]).tolist():
            for variant in set(plan.placement[worker]) - set(self.plan.placement[worker]):
                self._switches[bool(holds[worker, variant])] += 1

    def _check_worker(self, worker: int) -> None:
        if not 0 <= worker < len(self.deployment.workers):
            raise StrettoError(f"worker number {worker} is outside 0 … {len(self.deployment.workers) - 1}")

    def _empty_buffer(self) -> None:
        """One event decides at most as much as the buffer holds, so it starts empty."""
        if self._decision_count[0]:
            self._collect()

    def _collect(self) -> None:
        """Turn the decision records into objects and empty the buffer."""
        count = int(self._decision_count[0])
        self._undelivered += decisions_in(self.memory["decisions"][:count], self.memory["decided"])
        self._state["decision_count"] = 0
        self._state["tickets_named"] = 0
