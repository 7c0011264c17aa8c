"""The workers as they come and go: started, lost, started again after a growing pause, replaced, and watched.

A worker whose process holds too much memory is replaced: another is started beside it, takes over between two batches,
and only then does the first one go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from stretto.live.executor import Executor, Job, Listener, Loss
from stretto.live.lookout import Blames, Clock, Lookout
from stretto.live.members import FIRST_PAUSE_S, Ear, Member, Successor
from stretto.live.quarantine import Fault, label_of
from stretto.live.shelf import ModelSpec, Report, failed

log = logging.getLogger("stretto.live")

LONGEST_PAUSE_S = 10.0
HEALTHY_S = 5.0  # a worker that lived so long starts again after the first pause
LOAD_S = 60.0  # a model that takes longer to load hangs
RETRY_S = 10.0  # after a successor that could not start
RETIRE_S = 5.0

Factory = Callable[[int, asyncio.AbstractEventLoop, Listener], Executor]


class Owner(Blames, Protocol):
    """The engine, as the crew sees it."""

    def first_models(self, worker: int) -> Sequence[ModelSpec]: ...

    def joined(self, worker: int, broken: dict[str, str]) -> None: ...

    def leaving(self, worker: int) -> None: ...

    def left(self, worker: int, reason: str, jobs: Sequence[Job]) -> None: ...

    def ended(self, job: Job, report: Report) -> None: ...

    def loaded(self, worker: int, key: str, problem: str | None, alone: bool) -> None: ...


class Crew:
    """Listens to the executors for the engine. `memory_bytes` is what a worker's process may hold; 0: anything."""

    def __init__(
        self,
        count: int,
        factory: Factory,
        owner: Owner,
        clock: Clock,
        hang_s: float = 10.0,
        load_s: float = LOAD_S,
        memory_bytes: int = 0,
    ):
        self._loop = asyncio.get_running_loop()
        self._factory = factory
        self._owner = owner
        self._clock = clock
        self._is_stopping = False
        self.ready_count = 0
        self.replaced = 0  # workers that held too much memory
        self.members = [Member(self._executor(worker)) for worker in range(count)]
        self._pauses: dict[int, asyncio.TimerHandle] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self.lookout = Lookout(self, owner, clock, round(hang_s * 1e9), round(load_s * 1e9), memory_bytes)

    def _executor(self, worker: int) -> Executor:
        ear = Ear(self, worker)
        ear.executor = self._factory(worker, self._loop, ear)
        return ear.executor

    def start(self, first: int = 0) -> None:
        """Those from this number on."""
        for worker in range(first, len(self.members)):
            self._start(worker)

    def share_loaded(self) -> float:
        """Of the models that workers hold or are about to; 1 where there are none."""
        wanted = sum(len(member.specs) for member in self.members)
        lacking = sum(
            sum(1 - load.share for load in each.executor.loading()) or len(each.specs)
            for each in self.members
            if not each.is_ready
        )
        return 1 - lacking / wanted if wanted else 1.0

    def add(self, count: int) -> None:
        """Further workers; they are started when the engine knows them."""
        first = len(self.members)
        self.members += [Member(self._executor(first + n)) for n in range(count)]

    def _start(self, worker: int) -> None:
        self._pauses.pop(worker, None)
        member, models = self.members[worker], self._owner.first_models(worker)
        member.begin({spec.key: spec for spec in models}, self._clock())
        member.executor.start(models)

    # -- what the engine asks ----------------------------------------------------------------------------------------

    def run(self, job: Job) -> None:
        member = self.members[job.worker]
        job.was_alone = not member.jobs
        if job.was_alone:
            member.began_ns = self._clock()
        member.jobs.append(job)
        self._feed(job.worker, member)

    def _feed(self, worker: int, member: Member) -> None:
        """Give the executor what it can be given."""
        while member.given < len(member.jobs):
            job = member.jobs[member.given]
            refusal = self.lookout.refusal(member, job.key) if job.key in self.lookout.wanted else ""
            if refusal:
                if member.given == 0:  # else it ends in its turn
                    member.given = 1
                    self._loop.call_soon(self.job_ended, job, failed(job.count, refusal))
                return
            if member.successor is not None and member.successor.is_ready:
                if member.given:
                    return  # what comes next is the successor's
                self._take_over(worker)
            member.given += 1
            member.executor.run(job)

    def load(self, worker: int, spec: ModelSpec, alone: bool) -> None:
        member = self.members[worker]
        if member.is_ready:
            member.held.add(spec.key)
            member.specs[spec.key] = spec
            if alone:
                member.ordered.add(spec.key)
            member.executor.load(spec, alone)

    def unload(self, worker: int, key: str) -> None:
        member = self.members[worker]
        if member.is_ready:
            member.held.discard(key)
            member.executor.unload(key)

    def prepare(self, worker: int, specs: Sequence[ModelSpec], done: Callable[[dict[str, str]], None]) -> None:
        """Hold these too; `done` gets those that cannot be, with reasons, unless the worker is lost before."""
        member, executor = self.members[worker], self.members[worker].executor
        member.held.update(spec.key for spec in specs)
        member.specs.update((spec.key, spec) for spec in specs)
        member.coming.update(spec.key for spec in specs)

        def held(broken: dict[str, str]) -> None:
            if member.executor is not executor:
                return
            for spec in specs:
                member.coming.discard(spec.key)
                if spec.key not in broken and spec.key not in member.held:
                    executor.unload(spec.key)  # it was told to go while it came
            member.held -= broken.keys()
            done(broken)

        executor.prepare(specs, held)

    def hold_only(self, worker: int, specs: Sequence[ModelSpec]) -> None:
        """After what it runs, before what it is told next: these models and no others."""
        wanted = {spec.key for spec in specs}
        for key in self.members[worker].held - wanted:
            self.unload(worker, key)
        for spec in specs:
            if spec.key not in self.members[worker].held - self.members[worker].coming:
                self.load(worker, spec, False)

    def is_ready(self, worker: int) -> bool:
        return self.members[worker].is_ready and not self.members[worker].is_retired

    def is_paused(self, worker: int) -> bool:
        """Nobody is there: it was lost and is started again soon, or it was let go."""
        member = self.members[worker]
        return worker in self._pauses or (member.is_retired and not member.is_ready)

    def is_busy(self, worker: int) -> bool:
        return bool(self.members[worker].jobs)

    def busy_here(self) -> list[int]:
        """Workers that run or load something on this machine."""
        return [
            worker
            for worker, member in enumerate(self.members)
            if member.executor.is_here and (member.jobs or member.executor.loading())
        ]

    @property
    def restarts(self) -> int:
        return sum(member.restarts for member in self.members)

    async def stop(self, patience_s: float = 10.0) -> None:
        self._is_stopping = True
        for pause in self._pauses.values():
            pause.cancel()
        successors = [member.successor.executor for member in self.members if member.successor is not None]
        for executor in successors:
            executor.kill()
        executors = [*(member.executor for member in self.members), *successors]
        await asyncio.gather(*(executor.stop(patience_s) for executor in executors), *self._retiring)
        for member in self.members:
            self._mark(member, is_ready=False)
            member.jobs, member.given = [], 0

    def kill(self) -> None:
        """All of them, at once."""
        self._is_stopping = True
        for member in self.members:
            member.executor.kill()
            if member.successor is not None:
                member.successor.executor.kill()

    def watch(self) -> None:
        """Called now and then: a worker that hangs is ended, and one that holds too much memory replaced."""
        self.lookout.watch()

    def end(self, worker: int, fault: Fault | None, reason: str) -> None:
        """At once, for what the model that it is at did; None: no model is to blame."""
        log.error("worker %d is ended: %s", worker, reason)
        self.members[worker].ended_for = fault, reason
        self.members[worker].executor.kill()

    # -- letting them go ---------------------------------------------------------------------------------------------

    def retire(self, worker: int) -> None:
        """It ends when it has done what it was given, and its slot stays empty until it is called back. The dispatcher
        knows, and gives it nothing more.
        """
        member = self.members[worker]
        self._mark(member, is_retired=True)
        if (pause := self._pauses.pop(worker, None)) is not None:
            pause.cancel()
        if member.successor is not None:
            self._give_up_successor(worker, "it is let go")
        if not member.jobs:
            self._let_go(worker)

    def call_back(self, worker: int) -> bool:
        """One that was let go is wanted again; true where it was still at work, and stays."""
        member = self.members[worker]
        if member.is_leaving:
            return False  # its place is filled again in any case
        self._mark(member, is_retired=False)
        if not member.is_ready:
            self._start(worker)
        return member.is_ready

    def _let_go(self, worker: int) -> None:
        member = self.members[worker]
        old, member.executor = member.executor, self._executor(worker)
        self._mark(member, is_ready=False)
        member.begin({}, self._clock())
        self._retire(old)
        self._owner.left(worker, "it was let go", ())
        self._wait_for_another(worker)

    def _wait_for_another(self, worker: int) -> None:
        """Where the one that is gone went by itself."""
        member = self.members[worker]
        if member.is_leaving:
            member.is_leaving = False
            self.call_back(worker)

    # -- replacing them ----------------------------------------------------------------------------------------------

    def replace(self, worker: int, why: str) -> None:
        """Start another beside it, with the models that it holds."""
        member = self.members[worker]
        is_too_soon = self._clock() < member.no_successor_before_ns
        if member.successor is not None or self._is_stopping or is_too_soon or member.is_retired:
            return
        log.warning("worker %d is replaced: %s", worker, why)
        held = {key for key in member.held - member.coming if key not in self.lookout.set_aside}
        member.successor = Successor(self._executor(worker), held, self._clock())
        member.successor.executor.start([member.specs[key] for key in sorted(held)])

    def successor_ready(self, worker: int, executor: Executor, broken: dict[str, str]) -> None:
        member = self.members[worker]
        successor = member.successor
        if successor is None or successor.executor is not executor:
            return
        if broken:
            self._give_up_successor(worker, f"{label_of(next(iter(broken)))} cannot be loaded")
            return
        successor.is_ready = True
        if not member.given:
            self._take_over(worker)

    def successor_lost(self, worker: int, executor: Executor, reason: str) -> None:
        successor = self.members[worker].successor
        if successor is not None and successor.executor is executor:
            self._give_up_successor(worker, reason)

    def _give_up_successor(self, worker: int, reason: str) -> None:
        member = self.members[worker]
        if member.successor is None:
            return
        log.warning("worker %d is not replaced yet: %s", worker, reason)
        executor, member.successor = member.successor.executor, None
        member.no_successor_before_ns = self._clock() + round(RETRY_S * 1e9)
        executor.kill()
        self._feed(worker, member)

    def _take_over(self, worker: int) -> bool:
        """The successor is in charge from now on; false where it cannot be yet. Nothing is given to the old one."""
        member = self.members[worker]
        successor = member.successor
        if successor is None or not successor.is_ready or member.coming or member.ordered:
            return False
        lacking = [member.specs[key] for key in sorted(member.held - successor.held - self.lookout.set_aside)]
        if lacking:  # the old one was told to load more meanwhile
            successor.is_ready = False
            successor.held |= {spec.key for spec in lacking}
            executor = successor.executor
            executor.prepare(lacking, lambda broken: self.successor_ready(worker, executor, broken))
            return False
        for key in successor.held - member.held:
            successor.executor.unload(key)
        old, member.executor, member.successor = member.executor, successor.executor, None
        member.started_ns, member.ready_ns = successor.started_ns, self._clock()
        member.loading, member.memory_bytes, member.resting_bytes = None, 0, 0
        self.replaced += 1
        self._retire(old)
        return True

    def _retire(self, executor: Executor) -> None:
        task = self._loop.create_task(executor.stop(RETIRE_S))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    # -- what the executors tell -------------------------------------------------------------------------------------

    def worker_ready(self, worker: int, broken: dict[str, str]) -> None:
        member = self.members[worker]
        member.held -= broken.keys()
        if self.lookout.ends_at_fault(worker, broken):
            return
        models = self._owner.first_models(worker)
        lacking = [spec for spec in models if spec.key not in member.held and spec.key not in broken]
        if lacking:  # what is served has changed since it was told to start
            self.prepare(worker, lacking, lambda more: self.worker_ready(worker, broken | more))
            return
        self._mark(member, is_ready=True)
        member.ready_ns = self._clock()
        self.hold_only(worker, [spec for spec in models if spec.key not in broken])
        self._owner.joined(worker, broken)

    def job_ended(self, job: Job, report: Report) -> None:
        member = self.members[job.worker]
        if job not in member.jobs:
            return  # it was given up while this was on its way
        member.jobs.remove(job)
        member.given -= 1
        member.began_ns = self._clock()
        if job.key in self.lookout.wanted and report.answers is not None:
            self.lookout.answered(job.key)
        if member.given < len(member.jobs):
            self._feed(job.worker, member)
        elif member.successor is not None:
            self._take_over(job.worker)
        self._owner.ended(job, report)
        if member.is_retired and member.is_ready and not member.jobs:
            self._let_go(job.worker)

    def load_ended(self, worker: int, key: str, problem: str | None, alone: bool) -> None:
        member = self.members[worker]
        member.ordered.discard(key)
        if problem is not None:
            member.held.discard(key)
        self._owner.loaded(worker, key, problem, alone)

    def worker_leaving(self, worker: int) -> None:
        member = self.members[worker]
        if not member.is_retired and not self._is_stopping:
            member.is_leaving = True
            self._owner.leaving(worker)

    def worker_lost(self, worker: int, reason: str, loss: Loss = Loss.OWN) -> None:
        member = self.members[worker]
        jobs, member.jobs, member.given = member.jobs, [], 0
        was_ready = member.is_ready
        self._mark(member, is_ready=False)
        if self._is_stopping:
            return
        self.lookout.blame(member, jobs, reason, loss)
        if member.is_retired:
            member.executor = self._executor(worker)
            member.begin({}, self._clock())
            self._owner.left(worker, reason, jobs)
            self._wait_for_another(worker)
            return
        successor, member.successor = member.successor, None
        if successor is not None:  # it was to follow in any case
            held = {key: member.specs[key] for key in successor.held}
            member.executor = successor.executor
            member.restarts += 1
            log.warning("worker %d is lost (%s); its successor takes over", worker, reason)
            member.begin(held, successor.started_ns)
            self._owner.left(worker, reason, jobs)
            if successor.is_ready:
                self.worker_ready(worker, {})
            return
        lived_ns = self._clock() - member.started_ns
        pause_s = FIRST_PAUSE_S if was_ready and lived_ns > HEALTHY_S * 1e9 else member.pause_s
        log.warning("worker %d is lost (%s); it is started again in %.1f s", worker, reason, pause_s)
        member.pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        member.restarts += 1
        member.executor = self._executor(worker)
        member.ended_for = None
        self._pauses[worker] = self._loop.call_later(pause_s, self._start, worker)
        self._owner.left(worker, reason, jobs)

    def _mark(self, member: Member, is_ready: bool | None = None, is_retired: bool | None = None) -> None:
        """And count those that can serve."""
        self.ready_count -= member.is_ready and not member.is_retired
        member.is_ready = member.is_ready if is_ready is None else is_ready
        member.is_retired = member.is_retired if is_retired is None else is_retired
        self.ready_count += member.is_ready and not member.is_retired
