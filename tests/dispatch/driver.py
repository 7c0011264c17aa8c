"""An honest driver with its own books: it carries decisions out, and holds every decision against what it knows itself.

Each worker runs one batch (or load) and holds at most one more. The books never read a counter of the dispatcher to
decide what should be; only the lane in which a query waits is looked up, because the face does not show it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import Fixed, Lane, Late, Plan, Route, Worklist
from stretto.core.profile import LatencyProfile
from stretto.core.worker import Worker
from stretto.dispatch.decisions import Answer, Decision, Drop, Load, Run, Unload
from stretto.dispatch.dispatcher import Dispatcher
from tests.dispatch import promises
from tests.dispatch.books import Crew, Entry, Job, Stage


class Driver:
    """Feeds a dispatcher, carries out what it decides, and checks."""

    def __init__(self, deployment: Deployment, plan: Plan, *, correction: float = 0.0, now_ns: int = 0) -> None:
        self.deployment, self.plan, self.now_ns = deployment, plan, now_ns
        self.book: dict[int, Entry] = {}
        self.came_ns: dict[int, int] = {}
        self.crew = [Crew(loaded=self.first_memory(number)) for number in range(len(deployment.workers))]
        self.submitted: Counter[int] = Counter()
        self.outcomes: Counter[tuple[int, Outcome]] = Counter()
        self.newest: set[int] = set()
        self.cancelling: int | None = None
        self.cancel_reason = Outcome.DROPPED_CANCELLED
        self.losing = False
        self.made: list[Decision] = []
        self.first_plan, self.correction, self.first_ns = plan, correction, now_ns
        self.first_deployment = deployment
        self.rerouted: set[int] = set()  # queries that were there when routes changed; they stay where they were
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
        demand: int = -1,
    ) -> int:
        wish = {"client": client, "query_class": query_class, "priority": priority, "demand": demand}
        return self.submit_together(1, application, deadline_ns, **wish)[0]

    def submit_together(
        self,
        count: int,
        application: int = 0,
        deadline_ns: int = 10**15,
        *,
        client: int = -1,
        query_class: int = -1,
        priority: int = 0,
        demand: int = -1,
    ) -> list[int]:
        """So many queries at one moment, each but the last with word that another follows."""
        lengths = self.dispatcher.telemetry(self.now_ns).lane_lengths
        in_flight = sum(len(job.tickets) for crew in self.crew for job in crew.jobs)
        tickets = []
        for left in range(count - 1, -1, -1):
            number = len(self.book)
            wish = (number, client, query_class, priority, demand, left > 0)
            ticket = int(self._call("submit", application, deadline_ns, *wish))
            assert ticket not in self.book, "a ticket was given twice"
            self.book[ticket] = Entry(number, application, deadline_ns, priority, demand)
            self.came_ns[ticket] = self.now_ns
            self.submitted[application] += 1
            tickets.append(ticket)
        self.newest = set(tickets)
        self.settle()
        route = self.plan.routes[application]
        doors = (route.demands[demand],) if 0 <= demand < len(route.demands) else route.lanes
        for ticket in tickets:
            if self.book[ticket].outcome is Outcome.DROPPED_OVERLOAD:
                pruning = any(promises.gives_up(self.plan.lanes[lane]) for lane in doors)
                full = any(lengths[lane] + in_flight + count > self.plan.lanes[lane].capacity for lane in doors)
                assert full or pruning, "turned away by lanes that were not full"
            elif self.book[ticket].stage is not Stage.ENDED:
                joined = self.lane_number(ticket)
                is_full = lengths[joined] >= self.plan.lanes[joined].capacity
                assert not is_full or self._comes_with_all(joined), "a full lane admitted a query"
        self.newest = set()
        return tickets

    def _comes_with_all(self, number: int) -> bool:
        """Whether all who wait there came at this moment, and the lane does not divide these."""
        lane = self.plan.lanes[number]
        waiting = [query.ticket for query in self.dispatcher.waiting() if self.lane_number(query.ticket) == number]
        is_whole = isinstance(lane.select, Fixed) and lane.late is not Late.KEEP and lane.capacity > 0
        return is_whole and all(self.came_ns[ticket] == self.now_ns for ticket in waiting)

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

    def cancel(self, ticket: int, reason: Outcome = Outcome.DROPPED_CANCELLED) -> bool:
        entry = self.book.get(ticket)
        live = entry is not None and entry.stage is not Stage.ENDED
        self.cancelling = ticket if live else None
        self.cancel_reason = reason
        told = bool(self._call("cancel", ticket, reason))
        assert told == live, "cancel told a lie"
        self.settle()
        if entry is not None and live:
            assert entry.outcome is reason
        self.cancelling = None
        return told

    def classify(self, ticket: int, query_class: int) -> None:
        """Word of a query's class comes after the query."""
        self._call("classified", ticket, query_class)
        self.settle()

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

    def load_ended(self, worker: int, ok: bool = True) -> None:
        """The load beside the worker's work ended now."""
        crew = self.crew[worker]
        assert crew.arriving is not None
        variant, crew.arriving = crew.arriving.variant, None
        if ok:
            crew.loaded.add(variant)
        assert self._call("loaded", worker, variant, ok), "nobody waited for a load that was ordered"
        self.settle()

    def leave(self, worker: int) -> None:
        crew = self.crew[worker]
        for job in crew.jobs:
            for ticket in job.tickets:
                entry = self.book[ticket]
                if entry.stage is Stage.RUNNING:
                    entry.stage = Stage.RETURNING
                    entry.times_lost += 1
        crew.alive, crew.jobs, crew.arriving = False, [], None
        self.losing = True
        self._call("worker_left", worker)
        self.settle()
        self.losing = False

    def retire(self, worker: int) -> None:
        """It is to go, and finishes what it has."""
        self.crew[worker].alive, self.crew[worker].arriving = False, None
        self._call("worker_leaving", worker)
        self.settle()

    def join(self, worker: int) -> None:
        crew = self.crew[worker]
        if not crew.alive and not crew.jobs:
            self.crew[worker] = Crew(loaded=self.first_memory(worker))
        crew.alive = True  # one that was leaving stays
        self._call("worker_joined", worker)
        self.settle()

    def adopt(self, plan: Plan) -> None:
        self.plan = plan
        self.rerouted = {ticket for ticket, entry in self.book.items() if entry.stage is Stage.RUNNING}
        self._call("adopt", plan)
        self.settle()

    def reroute(self, *routes: Route) -> None:
        """Other routes over the lanes of the plan in force: nobody that waits moves."""
        lanes = {query.ticket: self.lane_number(query.ticket) for query in self.dispatcher.waiting()}
        self.plan = replace(self.plan, routes=routes)
        self.rerouted = {ticket for ticket, entry in self.book.items() if entry.stage is not Stage.ENDED}
        self._call("reroute", routes)
        assert self.dispatcher.plan == self.plan
        for query in self.dispatcher.waiting():
            assert self.lane_number(query.ticket) == lanes[query.ticket], "a query moved although only routes changed"
        self.settle()

    def enlarge(self, *further: Worker, deployment: Deployment | None = None) -> None:
        """Further workers behind those that are there; they come when they join."""
        before = self.deployment
        self.deployment = deployment or Deployment(before.applications, before.workers + further, before.quantile)
        for number in range(len(before.workers), len(self.deployment.workers)):
            self.crew.append(Crew(alive=False, loaded=self.first_memory(number)))
        self._call("enlarge", self.deployment)
        self.plan = self.dispatcher.plan
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
        again = Dispatcher(self.first_deployment, self.first_plan, correction=self.correction, now_ns=self.first_ns)
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
                    needed = isinstance(before, Load) and not before.alone and not before.beside
                    self._run(decision, before if needed else None)  # type: ignore[arg-type]
                case Drop():
                    self._drop(decision)
                case Answer():
                    self._answer(decision)
                case Load():
                    self._load(decision, following)
                case Unload():
                    self._unload(decision)
        for entry in self.book.values():
            if entry.stage is Stage.RETURNING:
                entry.stage = Stage.WAITING
        promises.hold(self)
        for decision in made:
            if isinstance(decision, Run):
                promises.order_was_kept(self, decision)
            elif isinstance(decision, Drop):
                promises.drop_was_needed(self, decision)
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
        promises.batch_is_allowed(self, run)
        crew.jobs.append(Job(run.variant, run.tickets, run.start_ns, run.expected_ns))

    def _drop(self, drop: Drop) -> None:
        entry = self.book.get(drop.ticket)
        assert entry is not None, "a drop of a query that never came"
        assert entry.stage is not Stage.ENDED, "a query ended twice"
        withdrawn = drop.ticket == self.cancelling and drop.reason is self.cancel_reason
        if not withdrawn:
            assert drop.reason is not Outcome.DROPPED_CANCELLED
            assert entry.stage in (Stage.WAITING, Stage.RETURNING), "a running query was dropped"
        if drop.reason is Outcome.FAILED and not withdrawn:
            assert entry.times_lost, "a query that no worker was lost with failed"
        if drop.reason in promises.LATENESS:
            assert not entry.times_lost, "a query that was lost with its worker is said to be late"
            assert (drop.reason is Outcome.DROPPED_EXPIRED) == (entry.deadline_ns < self.now_ns)
        self._end(drop.ticket, drop.reason)

    def _answer(self, answer: Answer) -> None:
        entry = self.book[answer.ticket]
        assert entry.stage is Stage.WAITING, f"a query that is {entry.stage.value} was answered by its evidence"
        selects = [lane.select for lane in self.plan.lanes]
        assert any(isinstance(select, Worklist) and answer.ticket in select.answers for select in selects)
        self._end(answer.ticket, Outcome.ON_TIME if self.now_ns <= entry.deadline_ns else Outcome.LATE)

    def _load(self, load: Load, following: Decision | None) -> None:
        crew = self.crew[load.worker]
        assert crew.alive
        assert load.variant not in crew.loaded, "a variant was loaded twice"
        assert crew.arriving is None or crew.arriving.variant != load.variant, "a variant on its way was loaded again"
        assert load.expected_ns - load.start_ns == self.deployment.variants[load.variant].load_ns
        assert load.start_ns >= self.now_ns
        if load.beside:
            assert not load.alone and crew.arriving is None, "two loads beside the work of one worker"
            assert load.start_ns == self.now_ns and self.plan.prefetch is not None
            crew.arriving = Job(load.variant, (), load.start_ns, load.expected_ns)
            assert self.memory_needed(crew) <= self.deployment.workers[load.worker].memory_bytes, "memory is exceeded"
            return
        assert len(crew.jobs) < 2
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

    def drain(self) -> None:
        """Let everything end that can end by itself: jobs when expected, timers when asked for."""
        for _ in range(10_000):
            ends = [(max(crew.jobs[0].expected_ns, self.now_ns), n) for n, crew in enumerate(self.crew) if crew.jobs]
            loads = [(max(c.arriving.expected_ns, self.now_ns), n) for n, c in enumerate(self.crew) if c.arriving]
            wake = self.dispatcher.wake_at_ns()
            if loads and (not ends or min(loads) < min(ends)) and (wake is None or min(loads)[0] <= wake):
                self.now_ns, worker = min(loads)
                self.load_ended(worker)
            elif ends and (wake is None or min(ends)[0] <= wake):
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
        """Everything that is loaded or on its way, and room for the hungriest of it to run."""
        numbers = crew.loaded | ({crew.arriving.variant} if crew.arriving is not None else set())
        held = [self.deployment.variants[variant] for variant in numbers]
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
