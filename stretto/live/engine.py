"""The engine: wall-clock time and events into the dispatcher, decisions out to the workers, answers to the requests.

It decides nothing itself. All of it runs on the event loop's thread. What workers report is reports.py's, what changes
with the deployment succession.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from stretto.alarm import Alarm
from stretto.core.conditions import Conditions
from stretto.core.errors import PlanError
from stretto.core.outcome import Outcome
from stretto.dispatch.decisions import Answer, Drop, Load, Run
from stretto.live.answers import answer_by_evidence
from stretto.live.books import Books
from stretto.live.crew import LOAD_S, Crew, Factory
from stretto.live.delays import DelayMeter
from stretto.live.executor import Job
from stretto.live.face.remote import RemoteQuery
from stretto.live.failures import Failures
from stretto.live.gathering import Gathering
from stretto.live.generation import Generation, GenerationMaker, Served
from stretto.live.holding import Holding
from stretto.live.judging import Twin
from stretto.live.lag import LoopLag
from stretto.live.loads import Loads
from stretto.live.lookout import Clock
from stretto.live.losses import NO_WORKER_LEFT, Losses
from stretto.live.meters import Meters
from stretto.live.quarantine import Fault
from stretto.live.recorder import Journal
from stretto.live.reports import Reports
from stretto.live.requests import Request
from stretto.live.succession import Succession
from stretto.live.witness import Witness, class_of
from stretto.planning.left import after_waiting
from stretto.planning.session import InForce, Session

log = logging.getLogger("stretto.live")

CORRECTION = 0.02  # step with which measured latency corrects the profile
WATCH_S = 0.25
STOPPED = "the server stopped before it was answered"


class Engine:
    """Serves one generation at a time; earlier ones only finish what runs."""

    def __init__(
        self,
        served: Served,
        session: Session,
        factory: Factory,
        *,
        first: InForce | None = None,
        clock: Clock = time.monotonic_ns,
        hang_s: float = 10.0,
        load_s: float = LOAD_S,
        memory_bytes: int = 0,
        tells_failures: bool = False,
        correction: float = CORRECTION,
        delays: DelayMeter | None = None,
        journal: Journal | None = None,
    ):
        self.session = session
        self.delays = delays or DelayMeter()
        self.loop = asyncio.get_running_loop()
        self.clock = clock
        self.lag = LoopLag()
        self.meters = Meters()
        self.books = Books()
        self.left_ns: tuple[int, ...] | None = None  # of its SLO, when a query comes; by application; None: all
        self.on_fleet: Callable[[], None] = lambda: None  # a worker joined or left
        # Variants that cannot be loaded; true where a generation without them will follow.
        self.on_broken: Callable[[dict[str, str]], bool] = lambda broken: False
        # A model that took a worker down, or hangs at its load: its key, what it did, in words, and whether that is
        # certain.
        self.on_blamed: Callable[[str, Fault, str, bool], None] = lambda key, fault, reason, is_certain: None
        # A model that failed on queries that no other variant could try: its key.
        self.on_doubted: Callable[[str], None] = lambda key: None
        self.witness: Witness | None = None  # where a planner looks at evidence
        self.twin: Twin | None = None  # where a planner has candidates judged
        self.journal = journal or Journal()
        self._alarm = Alarm(self.loop, self._rang)
        self.gathering = Gathering(self, self._rang)
        if first is None:
            first = session.first(served.deployment, clock(), Conditions(delays=self.delays.delays))
        make_generation = GenerationMaker(session, self.journal, correction)
        self.generation = make_generation(served, first, clock())
        self.ending: list[Generation] = []  # earlier ones, that finish what runs
        self.reports = Reports(self)
        workers = len(served.deployment.workers)
        self.crew = Crew(workers, factory, self.reports, clock, hang_s, load_s, memory_bytes)
        self.crew.lookout.serve(served.keys, served.has_several)
        self.holding = Holding(self.crew, load_s)
        self.succession = Succession(self, make_generation, self.holding)
        self.losses = Losses(self, self.succession.move)
        self.failures = Failures(self, tells_failures)
        self.loads = Loads(self)
        self._watcher: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Workers begin; `ready_count` of the crew tells how many can serve."""
        self.crew.start()
        self.lag.start()
        self._watcher = self.loop.create_task(self._watch())

    async def stop(self, patience_s: float = 10.0) -> None:
        """The workers finish what they were given, and end."""
        self.lag.stop()
        if self._watcher is not None:
            self._watcher.cancel()
        if self.witness is not None:
            self.witness.close()
        await self.crew.stop(patience_s)
        self.end_all()
        self._alarm.close()

    def end_all(self) -> None:
        """Whatever is left has its end too, without an answer."""
        self.gathering.enter()
        now_ns = self.clock()
        for generation in self.generations():
            for ticket, query in list(generation.queries.items()):
                query.request.problem = query.request.problem or STOPPED
                generation.dispatcher.cancel(now_ns, ticket, Outcome.FAILED)
            self.act(generation)
        self.succession.forget_ended()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                self.crew.watch()
                self.losses.watch()
            except Exception:  # what hangs must be found the next time, whatever it was
                log.exception("the workers could not be looked at")

    # -- requests ----------------------------------------------------------------------------------------------------

    def submit(self, request: Request, gathers: bool = False) -> None:
        """Its rows become queries. NoSuchVariant where its demand cannot be met; KeyError: no such application.

        `gathers`: queries enter, and batches are formed, when this turn of the event loop is over. What is read in one
        turn came together; else a free worker would be given the first query alone.
        """
        generation = self.generation
        now_ns = self.clock()
        application = generation.numbers[request.application]
        has_demand = request.pinned or request.min_accuracy > 0
        demand = generation.demand_of(now_ns, application, request) if has_demand else -1
        request.arrival_ns = now_ns - request.spent_ns
        slack_ns = request.deadline_ns
        request.deadline_ns += now_ns
        if gathers and request.rows == 1 and demand < 0 and request.client < 0:
            self.gathering.add(request.queries[0], application, request.deadline_ns, request.priority)
        else:
            if gathers:
                self.gathering.begin()
            if self.twin is not None:
                client, priority = request.client, request.priority
                self.twin.arrived(now_ns, request.application, request.rows, slack_ns, client, priority)
            last = None if gathers else request.queries[-1]
            for query in request.queries:
                generation.enter(query, now_ns, application, demand, query is not last)
        if not gathers:
            self.act(generation)
        if self.witness is not None and request.outcome is None and self.wants_evidence(application, now_ns):
            self.witness.ask(request)

    def wants_evidence(self, application: int, now_ns: int) -> bool:
        """True of all queries while a plan heeds their classes, else of some a second."""
        heeded = self.generation.dispatcher.plan.heeds_classes_of
        if self.session.looks_at_evidence or application in heeded:
            return True
        return self.witness is not None and self.witness.may_sample(now_ns)

    def classified(self, requests: Sequence[Request | RemoteQuery]) -> None:
        """Evidence came: the dispatcher hears the class of what has not ended."""
        now_ns = self.clock()
        touched: dict[int, Generation] = {}
        for query in (query for request in requests for query in request.queries):
            generation = query.generation
            if query.theta is not None:
                self.delays.told(now_ns - query.request.arrival_ns)
            if generation is not None and query.theta is not None:
                query_class = class_of(query.theta)
                generation.dispatcher.classified(now_ns, query.ticket, query_class)
                if self.twin is not None:
                    self.twin.classified(query.request.application, query_class)
                touched[id(generation)] = generation
        for generation in touched.values():
            self.act(generation)

    def cancel(self, request: Request | RemoteQuery) -> None:
        """Its client is gone: whatever of it waits or runs ends."""
        self._withdraw(request, Outcome.DROPPED_CANCELLED)

    def _withdraw(self, request: Request | RemoteQuery, reason: Outcome) -> None:
        self.gathering.enter()  # it may be among them
        now_ns = self.clock()
        for query in request.queries:
            generation = query.generation
            if generation is not None:
                generation.dispatcher.cancel(now_ns, query.ticket, reason)
                self.act(generation)
        if isinstance(request, Request) and request.outcome is not None:
            request.queries = ()  # see Request.end

    @property
    def waiting(self) -> int:
        """Queries that have not ended."""
        return len(self.gathering.queries) + len(self.generation.queries) + sum(len(old.queries) for old in self.ending)

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _rang(self) -> None:
        self.generation.dispatcher.advance(self.clock())
        self.act(self.generation)

    def act(self, generation: Generation) -> None:
        """Carry out what was decided, and come back when the dispatcher wants."""
        dispatcher = generation.dispatcher
        for decision in dispatcher.decisions():
            if isinstance(decision, Run):
                self._run(generation, decision)
            elif isinstance(decision, Drop):
                self._drop(generation, decision.ticket, decision.reason)
            elif isinstance(decision, Answer):
                answer_by_evidence(generation, decision.ticket, self.clock(), self.meters)
            elif isinstance(decision, Load):
                self.loads.begin(generation, decision)
            else:
                self.crew.unload(decision.worker, generation.served.specs[decision.variant].key)
        if generation is self.generation:
            self._alarm.set(dispatcher.wake_at_ns())

    def _run(self, generation: Generation, run: Run) -> None:
        if not self.crew.is_ready(run.worker):
            return  # it was lost a moment ago, and the dispatcher hears of that next
        queries = generation.queries.entries(run.tickets)
        spec = generation.served.specs[run.variant]
        now_ns = self.clock()
        count, expected_ns = len(queries), max(run.expected_ns, now_ns)
        self.crew.run(Job(run.worker, run.variant, spec.key, count, queries, generation, now_ns, expected_ns))

    def _drop(self, generation: Generation, ticket: int, reason: Outcome) -> None:
        query = generation.queries.pop(ticket, None)
        if query is None or query.generation is not generation:
            return  # it moved on
        query.generation = None
        request = query.request
        if request.outcome is None:
            if reason is Outcome.FAILED:
                if not request.problem:
                    request.problem = NO_WORKER_LEFT if query.mishap is None else query.mishap.problem
                self.failures.told(request)
            request.end(reason, self.clock())
            if request.rows > 1:  # the whole request ends with its first row that has no answer
                self.loop.call_soon(self._withdraw, request, reason)

    # -- plans -------------------------------------------------------------------------------------------------------

    def adopt(self, generation: Generation, in_force: InForce | None = None) -> None:
        """A new plan for this generation, or the one in force under the delays as they are now; forgotten where a
        later generation serves by now.
        """
        is_stale = in_force is not None and in_force.deployment is not generation.deployment
        if generation is self.generation and not is_stale:
            conditions = self.conditions(generation)
            generation.follow(self.clock(), in_force or generation.in_force, conditions)
            self.act(generation)

    def conditions(self, generation: Generation) -> Conditions:
        """As they are now."""
        left_ns = after_waiting(generation.deployment, self.left_ns, self.lag.tell_ns())
        conditions = replace(generation.conditions(self.delays.delays), left_ns=left_ns)
        return self.crew.lookout.with_trials(conditions, generation.numbers)

    def trials_changed(self) -> None:
        """Other applications than before are on trial: the plan in force says so at once."""
        with contextlib.suppress(PlanError):  # whoever completes it next meets that too, and says so
            self.adopt(self.generation)

    def generations(self) -> Sequence[Generation]:
        """Those whose counts are not yet in the books, the serving one last."""
        return (*self.ending, self.generation)
