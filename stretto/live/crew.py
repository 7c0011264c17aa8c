"""The workers as they come and go: started, lost, started again after a growing pause, and watched while they run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stretto.live.executor import Executor, Job, Listener
from stretto.live.shelf import ModelSpec, Report

log = logging.getLogger("stretto.live")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
HEALTHY_S = 5.0  # a worker that lived so long starts again after the first pause
LATENESS = 20  # a batch that takes so many times what was expected, and at least hang_s, hangs

Factory = Callable[[int, asyncio.AbstractEventLoop, Listener], Executor]
Clock = Callable[[], int]


class Owner(Protocol):
    """The engine, as the crew sees it."""

    def first_models(self, worker: int) -> Sequence[ModelSpec]: ...

    def joined(self, worker: int, broken: dict[str, str]) -> None: ...

    def left(self, worker: int, reason: str, jobs: Sequence[Job]) -> None: ...

    def ended(self, job: Job, report: Report) -> None: ...

    def loaded(self, worker: int, key: str, problem: str | None, alone: bool) -> None: ...


@dataclass
class _Member:
    executor: Executor
    is_ready: bool = False
    jobs: list[Job] = field(default_factory=list)  # given to it and not ended, in order
    held: set[str] = field(default_factory=set)  # keys of the models that it was told to hold
    coming: set[str] = field(default_factory=set)  # of these, what is loaded beside its work and not there yet
    began_ns: int = 0  # when the first of them became the first
    started_ns: int = 0
    pause_s: float = FIRST_PAUSE_S
    restarts: int = 0


class Crew:
    """Listens to the executors for the engine."""

    def __init__(self, count: int, factory: Factory, owner: Owner, clock: Clock, hang_s: float = 10.0):
        self._loop = asyncio.get_running_loop()
        self._factory = factory
        self._owner = owner
        self._clock = clock
        self._hang_ns = round(hang_s * 1e9)
        self._is_stopping = False
        self.ready_count = 0
        self._members = [_Member(factory(worker, self._loop, self)) for worker in range(count)]
        self._pauses: dict[int, asyncio.TimerHandle] = {}

    def start(self, first: int = 0) -> None:
        """Those from this number on."""
        for worker in range(first, len(self._members)):
            self._start(worker)

    def add(self, count: int) -> None:
        """Further workers; they are started when the engine knows them."""
        first = len(self._members)
        self._members += [_Member(self._factory(first + n, self._loop, self)) for n in range(count)]

    def _start(self, worker: int) -> None:
        self._pauses.pop(worker, None)
        member = self._members[worker]
        member.started_ns = self._clock()
        models = self._owner.first_models(worker)
        member.held, member.coming = {spec.key for spec in models}, set()
        member.executor.start(models)

    # -- what the engine asks ----------------------------------------------------------------------------------------

    def run(self, job: Job) -> None:
        member = self._members[job.worker]
        job.was_alone = not member.jobs
        if job.was_alone:
            member.began_ns = self._clock()
        member.jobs.append(job)
        member.executor.run(job)

    def load(self, worker: int, spec: ModelSpec, alone: bool) -> None:
        member = self._members[worker]
        if member.is_ready:
            member.held.add(spec.key)
            member.executor.load(spec, alone)

    def unload(self, worker: int, key: str) -> None:
        member = self._members[worker]
        if member.is_ready:
            member.held.discard(key)
            member.executor.unload(key)

    def prepare(self, worker: int, specs: Sequence[ModelSpec], done: Callable[[dict[str, str]], None]) -> None:
        """Hold these too; `done` gets those that cannot be, with reasons, unless the worker is lost before."""
        member = self._members[worker]
        member.held.update(spec.key for spec in specs)
        member.coming.update(spec.key for spec in specs)

        def held(broken: dict[str, str]) -> None:
            for spec in specs:
                member.coming.discard(spec.key)
                if spec.key not in broken and spec.key not in member.held:
                    member.executor.unload(spec.key)  # it was told to go while it came
            member.held -= broken.keys()
            done(broken)

        member.executor.prepare(specs, held)

    def hold_only(self, worker: int, specs: Sequence[ModelSpec]) -> None:
        """After what it runs, before what it is told next: these models and no others."""
        wanted = {spec.key for spec in specs}
        for key in self._members[worker].held - wanted:
            self.unload(worker, key)
        for spec in specs:
            if spec.key not in self._members[worker].held - self._members[worker].coming:
                self.load(worker, spec, False)

    def is_ready(self, worker: int) -> bool:
        return self._members[worker].is_ready

    def is_busy(self, worker: int) -> bool:
        return bool(self._members[worker].jobs)

    @property
    def restarts(self) -> int:
        return sum(member.restarts for member in self._members)

    def watch(self) -> None:
        """Called now and then: a worker that hangs is ended."""
        now_ns = self._clock()
        for worker, member in enumerate(self._members):
            if member.jobs and member.is_ready:
                job = member.jobs[0]
                patience = max(self._hang_ns, LATENESS * (job.expected_ns - job.decided_ns))
                if now_ns - member.began_ns > patience:
                    log.error("worker %d has run a batch for %.1f s and is ended", worker, patience / 1e9)
                    member.executor.kill()

    async def stop(self, patience_s: float = 10.0) -> None:
        self._is_stopping = True
        for pause in self._pauses.values():
            pause.cancel()
        await asyncio.gather(*(member.executor.stop(patience_s) for member in self._members))
        for member in self._members:
            member.is_ready, member.jobs = False, []
        self._count_ready()

    def kill(self) -> None:
        """All of them, at once."""
        self._is_stopping = True
        for member in self._members:
            member.executor.kill()

    # -- what the executors tell -------------------------------------------------------------------------------------

    def worker_ready(self, worker: int, broken: dict[str, str]) -> None:
        member = self._members[worker]
        member.held -= broken.keys()
        models = self._owner.first_models(worker)
        lacking = [spec for spec in models if spec.key not in member.held and spec.key not in broken]
        if lacking:  # what is served has changed since it was told to start
            self.prepare(worker, lacking, lambda more: self.worker_ready(worker, broken | more))
            return
        member.is_ready = True
        self._count_ready()
        self.hold_only(worker, [spec for spec in models if spec.key not in broken])
        self._owner.joined(worker, broken)

    def job_ended(self, job: Job, report: Report) -> None:
        member = self._members[job.worker]
        if job not in member.jobs:
            return  # it was given up while this was on its way
        member.jobs.remove(job)
        member.began_ns = self._clock()
        self._owner.ended(job, report)

    def load_ended(self, worker: int, key: str, problem: str | None, alone: bool) -> None:
        if problem is not None:
            self._members[worker].held.discard(key)
        self._owner.loaded(worker, key, problem, alone)

    def worker_lost(self, worker: int, reason: str) -> None:
        member = self._members[worker]
        jobs, member.jobs = member.jobs, []
        was_ready, member.is_ready = member.is_ready, False
        self._count_ready()
        if self._is_stopping:
            return
        lived_ns = self._clock() - member.started_ns
        pause_s = FIRST_PAUSE_S if was_ready and lived_ns > HEALTHY_S * 1e9 else member.pause_s
        log.warning("worker %d is lost (%s); it is started again in %.1f s", worker, reason, pause_s)
        member.pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        member.restarts += 1
        member.executor = self._factory(worker, self._loop, self)
        self._owner.left(worker, reason, jobs)
        self._pauses[worker] = self._loop.call_later(pause_s, self._start, worker)

    def _count_ready(self) -> None:
        self.ready_count = sum(member.is_ready for member in self._members)
