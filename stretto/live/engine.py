"""The engine: wall-clock time and events into the dispatcher, decisions out to the workers, answers to the requests.

It decides nothing itself. All of it runs on the event loop's thread; workers report there too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from stretto.alarm import Alarm
from stretto.core.conditions import Conditions
from stretto.core.errors import PlanError
from stretto.core.outcome import Outcome
from stretto.dispatch.decisions import Answer, Drop, Load, Run
from stretto.live.answers import answer_batch, answer_by_evidence
from stretto.live.beginning import fitting
from stretto.live.books import Books
from stretto.live.crew import LOAD_S, Crew, Factory
from stretto.live.delays import DelayMeter
from stretto.live.executor import Job
from stretto.live.face.remote import RemoteQuery
from stretto.live.failure_log import FailureLog
from stretto.live.gathering import Gathering
from stretto.live.generation import Generation, Served
from stretto.live.holding import Holding
from stretto.live.judging import Twin
from stretto.live.lag import LoopLag
from stretto.live.loads import Loads
from stretto.live.lookout import AT_RISK, NEW, SET_ASIDE, Clock
from stretto.live.losses import NO_WORKER_LEFT, Losses
from stretto.live.meters import Meters
from stretto.live.quarantine import Fault, label_of
from stretto.live.recorder import Journal
from stretto.live.requests import NoSuchVariant, Query, Request
from stretto.live.shelf import NO_ANSWER, NO_TENSORS, NOT_LOADED, ModelSpec, Report
from stretto.live.witness import Witness, class_of
from stretto.planning.left import after_waiting
from stretto.planning.session import InForce, Session

log = logging.getLogger("stretto.live")

CORRECTION = 0.02  # step with which measured latency corrects the profile
WATCH_S = 0.25
STOPPED = "the server stopped before it was answered"
# Ours, and not of the inside of a model.
OWN_REASONS = frozenset({NO_ANSWER, NOT_LOADED, NO_TENSORS, SET_ASIDE, AT_RISK, NEW})


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
        self.failures = FailureLog()
        self._tells_failures = tells_failures  # clients hear what a model raised, not only that it failed
        self.left_ns: tuple[int, ...] | None = None  # of its SLO, when a query comes; by application; None: all
        self.on_fleet: Callable[[], None] = lambda: None  # a worker joined or left
        # Variants that cannot be loaded; true where a generation without them will follow.
        self.on_broken: Callable[[dict[str, str]], bool] = lambda broken: False
        # A model that took a worker down, or hangs at its load: its key, what it did, in words, and whether that is
        # certain.
        self.on_blamed: Callable[[str, Fault, str, bool], None] = lambda key, fault, reason, is_certain: None
        self.witness: Witness | None = None  # where a planner looks at evidence
        self.twin: Twin | None = None  # where a planner has candidates judged
        self._correction = correction
        self.journal = journal or Journal()
        self._alarm = Alarm(self.loop, self._rang)
        self.gathering = Gathering(self, self._rang)
        self._old: list[Generation] = []
        self._worker_count = len(served.deployment.workers)
        if first is None:
            first = session.first(served.deployment, clock(), Conditions(delays=self.delays.delays))
        self.generation = self._generation(served, first)
        self.crew = Crew(self._worker_count, factory, self, clock, hang_s, load_s, memory_bytes)
        self._look_at(served)
        self.losses = Losses(self)
        self._loads = Loads(self)
        self._holding = Holding(self.crew, load_s)
        self._watcher: asyncio.Task[None] | None = None

    def _look_at(self, served: Served) -> None:
        keys = frozenset(spec.key for spec in served.specs)
        self.crew.lookout.serve(keys, len(served.deployment.applications) > 1)

    def _generation(self, served: Served, in_force: InForce) -> Generation:
        """With every worker away; each joins when it is ready and free."""
        now_ns = self.clock()
        dispatcher = self.journal.dispatcher(in_force, correction=self._correction, now_ns=now_ns)
        generation = Generation(served, dispatcher, self.session, in_force, self.journal)
        for worker in range(self._worker_count):
            dispatcher.worker_left(now_ns, worker)
        dispatcher.decisions()  # loads for workers that are away again; they are asked for anew when those join
        return generation

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
        self._forget_old()

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
                self._enter(query, generation, now_ns, application, demand, query is not last)
        if not gathers:
            self.act(generation)
        if self.witness is not None and request.outcome is None:
            self.witness.ask(request)

    def classified(self, requests: Sequence[Request | RemoteQuery]) -> None:
        """Evidence came: the dispatcher hears the class of what has not ended."""
        now_ns = self.clock()
        touched: dict[int, Generation] = {}
        for query in (query for request in requests for query in request.queries):
            generation = query.generation
            if generation is not None and query.theta is not None:
                generation.dispatcher.classified(now_ns, query.ticket, class_of(query.theta))
                touched[id(generation)] = generation
        for generation in touched.values():
            self.act(generation)

    @staticmethod
    def _enter(
        query: Query | RemoteQuery,
        generation: Generation,
        now_ns: int,
        application: int,
        demand: int,
        more: bool = False,
    ) -> None:
        request = query.request
        query.generation = generation
        query_class = -1 if query.theta is None else class_of(query.theta)
        given = application, request.deadline_ns, -1, request.client, query_class, request.priority, demand
        query.ticket = ticket = generation.dispatcher.submit(now_ns, *given, more, query.is_ending)
        generation.queries[ticket] = query

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
        return len(self.gathering.queries) + len(self.generation.queries) + sum(len(old.queries) for old in self._old)

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
                self._loads.begin(generation, decision)
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
            if reason is Outcome.FAILED and not request.problem:
                request.problem = NO_WORKER_LEFT
            request.end(reason, self.clock())
            if request.rows > 1:  # the whole request ends with its first row that has no answer
                self.loop.call_soon(self._withdraw, request, reason)

    # -- what the workers tell ---------------------------------------------------------------------------------------

    def first_models(self, worker: int) -> Sequence[ModelSpec]:
        return [spec for spec in self.generation.first_models(worker) if spec.key not in self.crew.lookout.set_aside]

    def joined(self, worker: int, broken: dict[str, str]) -> None:
        if broken and self.on_broken(broken):
            return  # it joins the generation that follows, where nothing is broken
        self.generation.dispatcher.worker_joined(self.clock(), worker)
        self.act(self.generation)
        self.on_fleet()

    def let_go(self, worker: int) -> None:
        """It finishes what it was given, and is given nothing more."""
        generation = self.generation
        self.act(generation)  # what was decided for it goes there first
        generation.dispatcher.worker_leaving(self.clock(), worker)
        self.act(generation)
        self.crew.retire(worker)

    def leaving(self, worker: int) -> None:
        self.let_go(worker)
        self.on_fleet()

    def left(self, worker: int, reason: str, jobs: Sequence[Job]) -> None:
        """Queries that were lost with a worker are tried again, or end."""
        self._loads.left(worker)
        self._holding.left(worker)
        self.losses.left(worker, jobs)
        self._forget_old()
        self.on_fleet()

    def blamed(self, key: str, fault: Fault, reason: str, is_certain: bool) -> None:
        self.on_blamed(key, fault, reason, is_certain)

    def proven(self) -> None:
        self.loop.call_soon(self._trials_changed)  # when the batch that proved it has ended

    def _trials_changed(self) -> None:
        """Other applications than before are on trial: the plan in force says so at once."""
        with contextlib.suppress(PlanError):  # whoever completes it next meets that too, and says so
            self.adopt(self.generation)

    def ended(self, job: Job, report: Report) -> None:
        """A batch is done: the worker goes on first, then its queries are answered; what is noted of it can wait."""
        now_ns = self.clock()
        generation: Generation = job.generation
        dispatcher = generation.dispatcher
        if report.answers is None and len(report.failures) < job.count:
            report.failures = dict.fromkeys(range(job.count), NO_ANSWER) | report.failures
        if report.failures:
            self._fail(job, report.failures, now_ns)
        run_ns = max(0, report.ended_ns - report.started_ns)
        dispatcher.finished(now_ns, job.worker, report.answers is not None, run_ns)
        if generation is not self.generation and self.crew.is_ready(job.worker) and not self.crew.is_busy(job.worker):
            self.generation.dispatcher.worker_joined(now_ns, job.worker)
            self.act(self.generation)
        self.act(generation)
        if report.answers is not None:
            answer_batch(job, report, report.answers, now_ns, self.meters)
        self._note(job, report, run_ns, now_ns)
        if self._old:
            self._forget_old()

    def _note(self, job: Job, report: Report, run_ns: int, now_ns: int) -> None:
        """For planners, the twin and the metrics."""
        generation: Generation = job.generation
        handoff_ns = now_ns - job.decided_ns - run_ns
        self.delays.ended(job.expected_ns, now_ns)
        if job.was_alone:
            self.delays.handed_over(handoff_ns)
        if self.twin is not None and report.answers is not None:
            kind = generation.deployment.workers[job.worker].kind
            self.twin.ran(generation.deployment, job.variant, kind, job.count, run_ns)
            self.twin.ended(now_ns - job.expected_ns)
            if job.was_alone:
                self.twin.handed_over(handoff_ns)
        self.meters.batch(generation.label(job.variant), job.count, report)

    def _fail(self, job: Job, failures: dict[int, str], now_ns: int) -> None:
        """These queries of a batch have no answer. Their clients hear no more of the model than that it failed."""
        model = label_of(job.key)
        for reason, count in Counter(failures.values()).items():
            self.failures.add(model, reason, count)
        for position, reason in failures.items():
            query = job.entries[position]
            if query.generation is not None:
                told = reason if self._tells_failures or reason in OWN_REASONS else NO_ANSWER
                query.request.problem = query.request.problem or told
                job.generation.dispatcher.cancel(now_ns, query.ticket, Outcome.FAILED)

    def loaded(self, worker: int, key: str, problem: str | None, alone: bool) -> None:
        self._loads.ended(worker, key, problem, alone)

    # -- plans and generations ---------------------------------------------------------------------------------------

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
        found = replace(generation.conditions(self.delays.delays), left_ns=left_ns)
        return self.crew.lookout.with_trials(found, generation.numbers)

    async def hold(self, served: Served, at_once: int | None = None) -> dict[str, str]:
        """Every worker that is there loads what is new beside its work, as far as it has room, so many of them at a
        time (None: all); those that cannot be, with the reason.
        """
        now = self.generation
        known = {spec.key for spec in now.served.specs}
        new = [variant for variant, spec in enumerate(served.specs) if spec.key not in known]
        models: dict[int, list[ModelSpec]] = {}
        for worker in filter(self.crew.is_ready, range(self._worker_count)):
            held = [now.deployment.variants[variant] for variant in now.dispatcher.resident(worker)]
            both = [*held, *(served.deployment.variants[variant] for variant in new)]
            fits = fitting(both, now.deployment.workers[worker].memory_bytes)
            models[worker] = [served.spec(worker, new[place - len(held)]) for place in fits if place >= len(held)]
        return await self._holding.hold(models, at_once)

    def enlarge(self, served: Served) -> None:
        """The same applications on more workers: nothing that was measured is lost. The new ones join when they are
        ready, and serve from the next plan on.
        """
        first, count = self._worker_count, len(served.deployment.workers)
        self.crew.add(count - first)
        self.generation.enlarge(self.clock(), served)
        self._worker_count = count
        self.crew.start(first)
        self.act(self.generation)

    def replace(self, served: Served, in_force: InForce) -> None:
        """Serve a new deployment from now on. Waiting queries move; batches on their way end where they began."""
        self.gathering.enter()
        now_ns = self.clock()
        old = self.generation
        self.left_ns = None  # of the applications that were
        self.generation = self._generation(served, in_force)
        self.generation.dispatcher.inherit(now_ns, old.dispatcher.estimates())
        self._old.append(old)
        self._look_at(served)
        self._trials_changed()  # what is new is on trial before its first query comes
        self._move_waiting(old, now_ns)
        for worker in range(self._worker_count):
            if self.crew.is_ready(worker):
                self.crew.hold_only(worker, self.generation.first_models(worker))
        self.join_ready()
        self._forget_old()

    def join_ready(self) -> None:
        """Every worker that can serve and runs nothing for an earlier generation is there."""
        now_ns = self.clock()
        for worker in range(self._worker_count):
            if self.crew.is_ready(worker) and not self.crew.is_busy(worker):
                self.generation.dispatcher.worker_joined(now_ns, worker)
        self.act(self.generation)

    def _move_waiting(self, old: Generation, now_ns: int) -> None:
        """Each is looked at when it is its turn: while others leave, the old dispatcher may start a batch, which ends
        where it began, or drop what became late.
        """
        waiting = old.dispatcher.waiting()
        self.move((old.queries[each.ticket] for each in waiting if old.dispatcher.is_waiting(each.ticket)), old, now_ns)

    def move(self, queries: Iterable[Query | RemoteQuery], old: Generation, now_ns: int) -> None:
        """Into the generation that serves now; a query that it has no variant for ends as failed."""
        new = self.generation
        for query in queries:
            request = query.request
            application = new.numbers.get(request.application)
            demand = -1
            try:
                if application is None:
                    raise NoSuchVariant("the application is no longer served")
                if not new.takes(application, request):
                    raise NoSuchVariant("the application takes or gives other tensors by now")
                demand = new.demand_of(now_ns, application, request)
            except NoSuchVariant as error:
                request.problem = str(error)
                old.dispatcher.cancel(now_ns, query.ticket, Outcome.FAILED)
                continue
            del old.queries[query.ticket]
            old.dispatcher.cancel(now_ns, query.ticket)
            old.moved[old.numbers[request.application]] += 1
            self._enter(query, new, now_ns, application, demand, more=True)
        new.dispatcher.advance(now_ns)
        self.act(old)
        self.act(new)

    def _forget_old(self) -> None:
        for old in [old for old in self._old if old.is_idle]:
            self.books.close(old)
            self._old.remove(old)

    def generations(self) -> Sequence[Generation]:
        """Those whose counts are not yet in the books, the serving one last."""
        return (*self._old, self.generation)
