"""What workers report, passed on: the dispatcher hears who came, left and finished, and queries get their answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from stretto.core.outcome import Outcome
from stretto.live.answers import answer_batch
from stretto.live.delays import DelayMeter
from stretto.live.executor import Job
from stretto.live.face.remote import RemoteQuery
from stretto.live.failure_log import FailureLog
from stretto.live.generation import Generation
from stretto.live.holding import Holding
from stretto.live.judging import Twin
from stretto.live.loads import Loads
from stretto.live.lookout import AT_RISK, NEW, SET_ASIDE
from stretto.live.losses import Losses
from stretto.live.meters import Meters
from stretto.live.quarantine import Fault, label_of
from stretto.live.requests import Request
from stretto.live.serving import Serving
from stretto.live.shelf import NO_ANSWER, NO_TENSORS, NOT_LOADED, ModelSpec, Report
from stretto.live.succession import Succession

# Ours, and not of the inside of a model.
OWN_REASONS = frozenset({NO_ANSWER, NOT_LOADED, NO_TENSORS, SET_ASIDE, AT_RISK, NEW})


class Reported(Serving, Protocol):
    """The engine whose workers report."""

    ending: list[Generation]
    delays: DelayMeter
    meters: Meters
    twin: Twin | None
    losses: Losses
    loads: Loads
    holding: Holding
    succession: Succession
    on_fleet: Callable[[], None]
    on_broken: Callable[[dict[str, str]], bool]
    on_blamed: Callable[[str, Fault, str, bool], None]

    def trials_changed(self) -> None: ...


class Reports:
    """The owner of the engine's crew. `tells_failures`: clients hear what a model raised, not only that it failed."""

    def __init__(self, engine: Reported, tells_failures: bool = False):
        self._engine, self._tells_failures = engine, tells_failures
        self._failures = FailureLog()

    def first_models(self, worker: int) -> Sequence[ModelSpec]:
        set_aside = self._engine.crew.lookout.set_aside
        return [spec for spec in self._engine.generation.first_models(worker) if spec.key not in set_aside]

    def joined(self, worker: int, broken: dict[str, str]) -> None:
        engine = self._engine
        if broken and engine.on_broken(broken):
            return  # it joins the generation that follows, where nothing is broken
        engine.generation.dispatcher.worker_joined(engine.clock(), worker)
        engine.act(engine.generation)
        engine.on_fleet()

    def let_go(self, worker: int) -> None:
        """It finishes what it was given, and is given nothing more."""
        engine, generation = self._engine, self._engine.generation
        engine.act(generation)  # what was decided for it goes there first
        generation.dispatcher.worker_leaving(engine.clock(), worker)
        engine.act(generation)
        engine.crew.retire(worker)

    def leaving(self, worker: int) -> None:
        self.let_go(worker)
        self._engine.on_fleet()

    def left(self, worker: int, reason: str, jobs: Sequence[Job]) -> None:
        """Queries that were lost with a worker are tried again, or end."""
        engine = self._engine
        engine.loads.left(worker)
        engine.holding.left(worker)
        engine.losses.left(worker, jobs)
        engine.succession.forget_ended()
        engine.on_fleet()

    def blamed(self, key: str, fault: Fault, reason: str, is_certain: bool) -> None:
        self._engine.on_blamed(key, fault, reason, is_certain)

    def proven(self) -> None:
        self._engine.loop.call_soon(self._engine.trials_changed)  # when the batch that proved it has ended

    def loaded(self, worker: int, key: str, problem: str | None, alone: bool) -> None:
        self._engine.loads.ended(worker, key, problem, alone)

    def ended(self, job: Job, report: Report) -> None:
        """A batch is done: the worker goes on first, then its queries are answered; what is noted of it can wait."""
        engine = self._engine
        now_ns = engine.clock()
        generation: Generation = job.generation
        if report.answers is None and len(report.failures) < job.count:
            report.failures = dict.fromkeys(range(job.count), NO_ANSWER) | report.failures
        if report.failures:
            self._fail(job, report.failures, now_ns)
        run_ns = max(0, report.ended_ns - report.started_ns)
        generation.dispatcher.finished(now_ns, job.worker, report.answers is not None, run_ns)
        crew = engine.crew
        if generation is not engine.generation and crew.is_ready(job.worker) and not crew.is_busy(job.worker):
            engine.generation.dispatcher.worker_joined(now_ns, job.worker)
            engine.act(engine.generation)
        engine.act(generation)
        if report.answers is not None:
            answer_batch(job, report, report.answers, now_ns, engine.meters)
        self._note(job, report, run_ns, now_ns)
        if engine.ending:
            engine.succession.forget_ended()

    def _note(self, job: Job, report: Report, run_ns: int, now_ns: int) -> None:
        """For planners, the twin and the metrics."""
        engine, generation, twin = self._engine, job.generation, self._engine.twin
        handoff_ns = now_ns - job.decided_ns - run_ns
        engine.delays.ended(job.expected_ns, now_ns)
        if job.was_alone:
            engine.delays.handed_over(handoff_ns)
        if twin is not None and report.answers is not None:
            kind = generation.deployment.workers[job.worker].kind
            twin.ran(generation.deployment, job.variant, kind, job.count, run_ns)
            twin.ended(now_ns - job.expected_ns)
            if job.was_alone:
                twin.handed_over(handoff_ns)
        engine.meters.batch(generation.label(job.variant), job.count, report)

    def failed(self, request: Request | RemoteQuery) -> None:
        """One that no model failed on: its reason is in the log, too."""
        if not request.is_told:
            request.is_told = True
            self._failures.add(request.application, request.problem, request.rows)

    def _fail(self, job: Job, failures: dict[int, str], now_ns: int) -> None:
        """These queries of a batch have no answer. Their clients hear no more of the model than that it failed."""
        model = label_of(job.key)
        for reason, count in Counter(failures.values()).items():
            self._failures.add(model, reason, count)
        for position, reason in failures.items():
            query = job.entries[position]
            if query.generation is not None:
                problem = reason if self._tells_failures or reason in OWN_REASONS else NO_ANSWER
                query.request.problem = query.request.problem or problem
                query.request.is_told = True
                job.generation.dispatcher.cancel(now_ns, query.ticket, Outcome.FAILED)
