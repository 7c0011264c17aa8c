"""An honest driver with its own books: it carries decisions out, and holds every decision against what it knows itself.

Each worker runs one batch (or load) and holds at most one more. The books never read a counter of the dispatcher to
decide what should be; only the lane in which a query waits is looked up, because the face does not show it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from stretto.core.check import selected_variants
from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import Fixed, Lane, Late, Order, Plan, Worklist
from stretto.core.profile import LatencyProfile
from stretto.dispatch.dispatcher import Decision, Dispatcher, Drop, Load, Run, Unload
from stretto.dispatch.records import Status

DROPPING = (Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE)
LATENESS = (Outcome.DROPPED_INFEASIBLE, Outcome.DROPPED_EXPIRED)


class Stage(Enum):
    """Where a query is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    RETURNING = "returning"  # its worker was just lost
    ENDED = "ended"


@dataclass
class Entry:
    """What the books say about one query."""

    number: int
    application: int
    deadline_ns: int
    priority: int
    stage: Stage = Stage.WAITING
    outcome: Outcome | None = None
    times_run: int = 0
    times_lost: int = 0


@dataclass
class Job:
    """What a worker does or will do next: a batch, or (without tickets) a load."""

    variant: int
    tickets: tuple[int, ...]
    start_ns: int
    expected_ns: int


@dataclass
class Crew:
    """One worker as its driver knows it."""

    alive: bool = True
    jobs: list[Job] = field(default_factory=list)
    loaded: set[int] = field(default_factory=set)


class Driver:
    """Feeds a dispatcher, carries out what it decides, and checks."""

    def __init__(self, deployment: Deployment, plan: Plan, *, correction: float = 0.0, now_ns: int = 0) -> None:
        self.deployment, self.plan, self.now_ns = deployment, plan, now_ns
        self.book: dict[int, Entry] = {}
        self.crew = [Crew(loaded=self.first_memory(number)) for number in range(len(deployment.workers))]
        self.submitted: Counter[int] = Counter()
        self.outcomes: Counter[tuple[int, Outcome]] = Counter()
        self.newest: int | None = None
        self.cancelling: int | None = None
        self.losing = False
        self.made: list[Decision] = []
        self.first_plan, self.correction, self.first_ns = plan, correction, now_ns
        self.calls: list[tuple[str, int, tuple[Any, ...]]] = []
        self.every: list[Decision] = []  # that was ever made
        self.dispatcher = Dispatcher(deployment, plan, correction=correction, now_ns=now_ns)
        self.settle()

    def submit(
        self,
        application: int = 0,
        deadline_ns: int = 10**15,
        *,
        client: int = -1,
        query_class: int = -1,
        priority: int = 0,
    ) -> int:
        number = len(self.book)
        lengths = self.dispatcher.telemetry(self.now_ns).lane_lengths
        ticket = int(self._call("submit", application, deadline_ns, number, client, query_class, priority))
        assert ticket not in self.book, "a ticket was given twice"
        self.book[ticket] = Entry(number, application, deadline_ns, priority)
        self.submitted[application] += 1
        self.newest = ticket
        self.settle()
        doors = self.plan.routes[application].lanes
        if self.book[ticket].outcome is Outcome.DROPPED_OVERLOAD:
            pruning = any(self.plan.lanes[lane].floor_rates for lane in doors)
            full = any(lengths[lane] >= self.plan.lanes[lane].capacity for lane in doors)
            assert full or pruning, "turned away by lanes that were not full"
        elif self.book[ticket].stage is not Stage.ENDED:
            joined = self.lane_number(ticket)
            assert lengths[joined] < self.plan.lanes[joined].capacity, "a full lane admitted a query"
        self.newest = None
        return ticket

    def query(self, slack_ns: int, **more: int) -> int:
        """One query of the first application that must end within `slack_ns`; its ticket."""
        return self.submit(0, self.now_ns + slack_ns, **more)

    def at(self, now_ns: int) -> Driver:
        """Time goes on, and nobody is called."""
        assert now_ns >= self.now_ns
        self.now_ns = now_ns
        return self

    def advance(self) -> None:
        self._call("advance")
        self.settle()

    def wake(self) -> int | None:
        return self.dispatcher.wake_at_ns()

    def cancel(self, ticket: int) -> bool:
        entry = self.book.get(ticket)
        live = entry is not None and entry.stage is not Stage.ENDED
        self.cancelling = ticket if live else None
        told = bool(self._call("cancel", ticket))
        assert told == live, "cancel told a lie"
        self.settle()
        if entry is not None and live:
            assert entry.outcome is Outcome.DROPPED_CANCELLED
        self.cancelling = None
        return told

    def finish(self, worker: int, ok: bool = True) -> None:
        """The job at the front of the worker ended now."""
        job = self.crew[worker].jobs.pop(0)
        for ticket in job.tickets:
            entry = self.book[ticket]
            if entry.stage is Stage.RUNNING:
                answered = Outcome.ON_TIME if self.now_ns <= entry.deadline_ns else Outcome.LATE
                self._end(ticket, answered if ok else Outcome.FAILED)
        self._call("finished", worker, ok)
        self.settle()

    def leave(self, worker: int) -> None:
        crew = self.crew[worker]
        for job in crew.jobs:
            for ticket in job.tickets:
                entry = self.book[ticket]
                if entry.stage is Stage.RUNNING:
                    entry.stage = Stage.RETURNING
                    entry.times_lost += 1
        crew.alive, crew.jobs = False, []
        self.losing = True
        self._call("worker_left", worker)
        self.settle()
        self.losing = False

    def join(self, worker: int) -> None:
        if not self.crew[worker].alive:
            self.crew[worker] = Crew(loaded=self.first_memory(worker))
        self._call("worker_joined", worker)
        self.settle()

    def adopt(self, plan: Plan) -> None:
        self.plan = plan
        self._call("adopt", plan)
        self.settle()

    def taken(self) -> list[Decision]:
        """Everything decided since this was last asked."""
        made, self.made = self.made, []
        return made

    def batches(self) -> list[tuple[int, int, list[int]]]:
        """Of everything decided since this was last asked, the batches: worker, variant, queries by number from 0."""
        runs = [decision for decision in self.taken() if isinstance(decision, Run)]
        return [(run.worker, run.variant, [self.book[ticket].number for ticket in run.tickets]) for run in runs]

    def outcome(self, ticket: int) -> Outcome | None:
        return self.book[ticket].outcome

    def lengths(self) -> list[int]:
        """Waiting queries by lane."""
        return [int(length) for length in self.dispatcher.telemetry(self.now_ns).lane_lengths]

    def _call(self, event: str, *arguments: Any) -> Any:
        self.calls.append((event, self.now_ns, arguments))
        return getattr(self.dispatcher, event)(self.now_ns, *arguments)

    def replay(self) -> None:
        """The same events, without anybody looking in between, lead to the same decisions."""
        again = Dispatcher(self.deployment, self.first_plan, correction=self.correction, now_ns=self.first_ns)
        decisions = list(again.decisions())
        for event, now_ns, arguments in self.calls:
            getattr(again, event)(now_ns, *arguments)
            decisions.extend(again.decisions())
        assert decisions == self.every
        assert again.wake_at_ns() == self.wake()

    def settle(self) -> list[Decision]:
        """Carry out what was decided, then hold the books against the dispatcher."""
        made = list(self.dispatcher.decisions())
        self.made.extend(made)
        self.every.extend(made)
        for place, decision in enumerate(made):
            following = made[place + 1] if place + 1 < len(made) else None
            match decision:
                case Run():
                    before = made[place - 1] if place else None
                    self._run(decision, before if isinstance(before, Load) and not before.alone else None)
                case Drop():
                    self._drop(decision)
                case Load():
                    self._load(decision, following)
                case Unload():
                    self._unload(decision)
        for entry in self.book.values():
            if entry.stage is Stage.RETURNING:
                entry.stage = Stage.WAITING
        self.check()
        for decision in made:
            if isinstance(decision, Run):
                self._check_order(decision)
            elif isinstance(decision, Drop):
                self._check_drop_was_needed(decision)
        return made

    def _run(self, run: Run, load: Load | None) -> None:
        crew = self.crew[run.worker]
        assert crew.alive, "a batch for a worker that is not there"
        assert len(crew.jobs) < 2, "a third batch for one worker"
        assert run.variant in crew.loaded, "a batch on a variant that is not in memory"
        assert run.tickets and len(set(run.tickets)) == len(run.tickets)
        if load is not None:
            assert (load.worker, load.variant) == (run.worker, run.variant)
            assert run.start_ns >= load.expected_ns, "a batch starts before its variant is loaded"
        for ticket in run.tickets:
            entry = self.book[ticket]
            assert entry.stage in (Stage.WAITING, Stage.RETURNING), f"a query that is {entry.stage.value} was started"
            entry.times_run += 1
            assert entry.times_run <= 1 + entry.times_lost, "a query ran twice"
            entry.stage = Stage.RUNNING
        self._check_batch(run)
        crew.jobs.append(Job(run.variant, run.tickets, run.start_ns, run.expected_ns))

    def _drop(self, drop: Drop) -> None:
        entry = self.book.get(drop.ticket)
        assert entry is not None, "a drop of a query that never came"
        assert entry.stage is not Stage.ENDED, "a query ended twice"
        if drop.reason is Outcome.DROPPED_CANCELLED:
            assert drop.ticket == self.cancelling
        else:
            assert entry.stage in (Stage.WAITING, Stage.RETURNING), "a running query was dropped"
        if drop.reason is Outcome.FAILED:
            assert self.losing and entry.stage is Stage.RETURNING
        if drop.reason in LATENESS:
            assert (drop.reason is Outcome.DROPPED_EXPIRED) == (entry.deadline_ns < self.now_ns)
        self._end(drop.ticket, drop.reason)

    def _load(self, load: Load, following: Decision | None) -> None:
        crew = self.crew[load.worker]
        assert crew.alive and len(crew.jobs) < 2
        assert load.variant not in crew.loaded, "a variant was loaded twice"
        assert load.expected_ns - load.start_ns == self.deployment.variants[load.variant].load_ns
        assert load.start_ns >= self.now_ns
        crew.loaded.add(load.variant)
        assert self.memory_needed(crew) <= self.deployment.workers[load.worker].memory_bytes, "memory is exceeded"
        if load.alone:
            assert not crew.jobs
            crew.jobs.append(Job(load.variant, (), load.start_ns, load.expected_ns))
        else:
            assert isinstance(following, Run)
            assert (following.worker, following.variant) == (load.worker, load.variant)

    def _unload(self, unload: Unload) -> None:
        crew = self.crew[unload.worker]
        assert unload.variant in crew.loaded
        assert all(job.variant != unload.variant for job in crew.jobs), "a variant in use was unloaded"
        crew.loaded.remove(unload.variant)

    def _end(self, ticket: int, outcome: Outcome) -> None:
        entry = self.book[ticket]
        assert entry.stage is not Stage.ENDED
        entry.stage, entry.outcome = Stage.ENDED, outcome
        self.outcomes[entry.application, outcome] += 1

    def check(self) -> None:
        """After every event: conservation by count and by query, capacity, and a wake-up that is still to come."""
        stages = Counter(entry.stage for entry in self.book.values())
        reading = self.dispatcher.telemetry(self.now_ns)
        for application in range(len(self.deployment.applications)):
            assert reading.submitted[application] == self.submitted[application]
            for outcome in Outcome:
                assert reading.outcomes[application, outcome] == self.outcomes[application, outcome], outcome
        assert reading.waiting == stages[Stage.WAITING]
        assert reading.running == stages[Stage.RUNNING]
        assert reading.submitted.sum() == reading.outcomes.sum() + reading.waiting + reading.running
        assert reading.lane_lengths.sum() == reading.waiting
        assert (reading.lane_rates >= 0).all()
        assert reading.lane_names == tuple(lane.name for lane in self.plan.lanes)
        assert reading.worker_alive.tolist() == [crew.alive for crew in self.crew]
        waiting = self.dispatcher.waiting()
        assert {query.ticket for query in waiting} == {t for t, e in self.book.items() if e.stage is Stage.WAITING}
        for query in waiting:
            entry = self.book[query.ticket]
            assert (query.application, query.priority) == (entry.application, entry.priority)
            assert query.deadline_ns == entry.deadline_ns
        wake = self.dispatcher.wake_at_ns()
        assert wake is None or wake > self.now_ns, f"wake at {wake}, but it is {self.now_ns}"
        for number, lane in enumerate(self.plan.lanes):
            self._check_not_stuck(lane, int(reading.lane_lengths[number]))

    def _check_not_stuck(self, lane: Lane, length: int) -> None:
        """Where queries wait, either a worker that could take them is busy or a timer is set."""
        if length == 0 or isinstance(lane.select, Worklist):
            return
        able = [worker for worker in lane.workers if self.crew[worker].alive and self._can_run(lane, worker)]
        if able and all(not self.crew[worker].jobs for worker in able):
            assert self.dispatcher.wake_at_ns() is not None, "queries wait, workers are idle, and nothing will happen"

    def _can_run(self, lane: Lane, worker: int) -> bool:
        """The worker holds every variant of the lane, so nothing about memory stands in the way."""
        return set(selected_variants(lane)) <= self.crew[worker].loaded

    def _check_batch(self, run: Run) -> None:
        entries = [self.book[ticket] for ticket in run.tickets]
        size = len(entries)
        profile = self.profile(run.variant, run.worker)
        assert size <= profile.max_batch
        owner = self.deployment.application_of[run.variant]
        assert all(entry.application == owner for entry in entries), "a query ran on another application's variant"
        if self.correction == 0:
            assert run.expected_ns - run.start_ns == profile.latency_ns(size, self.deployment.quantile)
        faults = [self._fault(run, lane) for lane in self._lanes_that_may_have_run(run)]
        assert None in faults, faults
        crew = self.crew[run.worker]
        assert not crew.jobs or run.start_ns >= crew.jobs[0].expected_ns, "two batches at once on one worker"
        assert not crew.jobs or self._somebody_looks_ahead(run.worker), "a batch for a busy worker"

    def _fault(self, run: Run, lane: Lane) -> str | None:
        """What the lane would not have allowed about this batch."""
        size = len(run.tickets)
        late = [ticket for ticket in run.tickets if run.expected_ns > self.book[ticket].deadline_ns]
        if run.worker not in lane.workers:
            return "a worker that does not serve the lane"
        if run.variant not in selected_variants(lane):
            return "a variant that the plan does not allow"
        if size > lane.release.max_batch:
            return "a batch larger than the plan allows"
        if run.start_ns < self.now_ns + lane.delay_ns(size):
            return "a batch starts before its queries can be there"
        if late and lane.late in DROPPING:
            return "an infeasible query was started"
        return None

    def _somebody_looks_ahead(self, worker: int) -> bool:
        lanes = [lane for lane in self.plan.lanes if worker in lane.workers]
        return any(lane.ahead_ns + lane.control_ns + lane.data_ns > 0 for lane in lanes)

    def _lanes_that_may_have_run(self, run: Run) -> list[Lane]:
        """The lane in which the queries waited, and those that have them in a pre-formed batch."""
        waited = {self.lane_number(ticket) for ticket in run.tickets}
        found = [self.plan.lanes[number] for number in waited] if len(waited) == 1 else []
        for lane in self.plan.lanes:
            for work in lane.select.works if isinstance(lane.select, Worklist) else ():
                if (work.worker, work.variant) == (run.worker, run.variant) and {*run.tickets} <= {*work.tickets}:
                    found.append(lane)
        return found

    def _check_order(self, run: Run) -> None:
        """Nobody who still waits in the lane stands before one that was started."""
        lanes = self._lanes_that_may_have_run(run)
        if len(lanes) > 1 or isinstance(lanes[0].select, Worklist):
            return
        number = self.plan.lanes.index(lanes[0])
        last = max(order_key(lanes[0].order, self.book[ticket]) for ticket in run.tickets)
        for query in self.dispatcher.waiting():
            if self.lane_number(query.ticket) == number:
                key = order_key(lanes[0].order, self.book[query.ticket])
                assert key > last, "a query was overtaken in its own lane"

    def _check_drop_was_needed(self, drop: Drop) -> None:
        """Nobody is given up as infeasible while an idle worker that holds the variant could still answer in time."""
        if self.losing or drop.ticket in (self.newest, self.cancelling):
            return  # it need not have been in a lane
        lane = self.lane_of(drop.ticket)
        works = [work for other in self.plan.lanes if isinstance(other.select, Worklist) for work in other.select.works]
        if any(drop.ticket in work.tickets for work in works):
            return  # a pre-formed batch follows the rules of its own lane, wherever its queries wait
        if drop.reason is Outcome.DROPPED_OVERLOAD:
            assert lane.floor_rates, "overload, but the lane gives nobody up"
        if drop.reason not in LATENESS:
            return
        entry = self.book[drop.ticket]
        assert lane.late in DROPPING, "a lane that keeps late queries dropped one"
        if not isinstance(lane.select, Fixed) or self.correction > 0:
            return
        for worker in lane.workers:
            crew = self.crew[worker]
            if crew.alive and not crew.jobs and lane.select.variant in crew.loaded:
                alone_ns = self.profile(lane.select.variant, worker).latency_ns(1, self.deployment.quantile)
                ends_ns = self.now_ns + lane.delay_ns(1) + alone_ns
                assert ends_ns > entry.deadline_ns, "dropped, but an idle worker could have answered in time"

    def check_slots(self) -> None:
        """Memory is bounded by what waits and runs: a slot for each, and for each cancelled query still in a batch."""
        statuses = Counter(Status(int(status)) for status in self.dispatcher.memory["queries"]["status"])
        in_batches = sum(len(job.tickets) for crew in self.crew for job in crew.jobs)
        stages = Counter(entry.stage for entry in self.book.values())
        assert statuses[Status.WAITING] == stages[Stage.WAITING]
        assert statuses[Status.RUNNING] == stages[Stage.RUNNING]
        assert statuses[Status.RUNNING] + statuses[Status.GONE] == in_batches
        assert int(self.dispatcher.memory.state["free_slots"][0]) == statuses[Status.FREE]

    def drain(self) -> None:
        """Let everything end that can end by itself: jobs when expected, timers when asked for."""
        for _ in range(10_000):
            ends = [(max(crew.jobs[0].expected_ns, self.now_ns), n) for n, crew in enumerate(self.crew) if crew.jobs]
            wake = self.dispatcher.wake_at_ns()
            if ends and (wake is None or min(ends)[0] <= wake):
                self.now_ns, worker = min(ends)
                self.finish(worker)
            elif wake is not None:
                self.now_ns = wake
                self.advance()
            else:
                return
        raise AssertionError("the dispatcher asks to be called for ever")

    def lane_number(self, ticket: int) -> int:
        return int(self.dispatcher.memory["queries"][ticket & 0xFFFFFFFF]["lane"])

    def lane_of(self, ticket: int) -> Lane:
        return self.plan.lanes[self.lane_number(ticket)]

    def profile(self, variant: int, worker: int) -> LatencyProfile:
        return self.deployment.profile(variant, self.deployment.workers[worker].kind)

    def memory_needed(self, crew: Crew) -> int:
        """Everything that is loaded, and room for the hungriest of it to run."""
        held = [self.deployment.variants[variant] for variant in crew.loaded]
        return sum(v.memory_bytes for v in held) + max((v.dynamic_memory_bytes for v in held), default=0)

    def first_memory(self, worker: int) -> set[int]:
        """What the dispatcher takes to be loaded when the worker appears; it must fit."""
        owner = self.deployment.workers[worker]
        crew = Crew()
        for number, variant in enumerate(self.deployment.variants):
            named = owner.resident is None or self.deployment.variant_label(number) in owner.resident
            if named and variant.profile_on(owner.kind) is not None:
                crew.loaded.add(number)
                if self.memory_needed(crew) > owner.memory_bytes:
                    crew.loaded.remove(number)
        return crew.loaded


def order_key(order: Order, entry: Entry) -> tuple[int, int]:
    """Smallest first; equal keys in the order of arrival."""
    if order is Order.EARLIEST_DEADLINE:
        return entry.deadline_ns, entry.number
    if order is Order.PRIORITY:
        return -entry.priority, entry.number
    return entry.number, entry.number
