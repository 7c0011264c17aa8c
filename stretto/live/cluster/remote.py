"""A worker on any machine, as the scheduler's crew knows it: an executor whose process says hello, some time.

What it runs it gets from front ends and answers to them; here only numbers pass. When it is lost, the next executor of
that place waits for the next worker.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from stretto.core.errors import StrettoError
from stretto.live.cluster.messages import ENDED, LOAD, NUMBER, Batch, Order, head, numbered
from stretto.live.cluster.roster import RemoteWorker, Roster
from stretto.live.executor import Job, Listener, Loading, Loss
from stretto.live.face.messages import NO_VARIANT, NONSENSE, plain, text
from stretto.live.frames import failures_in, spec_as_text
from stretto.live.orders import Orders
from stretto.live.shelf import NOT_LOADED, ModelSpec, Report, failed

STEP_S = 0.01
MOST_RUN_NS = 3_600 * 10**9
KILLED = "it did not answer in time"


class RemoteExecutor:
    """Started once: a lost worker gets a new executor. With its roster bound, the factory of a service."""

    is_here = False

    def __init__(self, worker: int, loop: asyncio.AbstractEventLoop, listener: Listener, roster: Roster):
        self.place = worker
        self.wanted: frozenset[str] = frozenset()
        self._loop, self._listener, self._roster = loop, listener, roster
        self._first: Sequence[ModelSpec] = ()
        self._remote: RemoteWorker | None = None
        self._orders = Orders(worker, listener, self._tell_load)
        self._jobs: dict[int, Job] = {}
        self._batches = secrets.randbits(31) << 32  # numbers of batches are never met again, after a restart neither
        self._growth: dict[str, int] = {}
        self._memory_bytes = 0
        self._is_up = self._is_over = False

    @property
    def is_awaited(self) -> bool:
        return self._remote is None and not self._is_over

    # -- what it is told ---------------------------------------------------------------------------------------------

    def start(self, specs: Sequence[ModelSpec]) -> None:
        self._first, self.wanted = specs, frozenset(spec.key for spec in specs)
        self._roster.wait(self)

    def take(self, remote: RemoteWorker) -> None:
        """There is a worker. What it has already and needs, it keeps."""
        self._remote, remote.executor = remote, self
        self._say(Order.HOLD, text({"keys": sorted(self.wanted)}))
        if self._first:
            self._orders.hold(self._first, self._ready)
        else:
            self._loop.call_soon(self._ready, {})

    def _ready(self, broken: dict[str, str]) -> None:
        if not self._is_over:
            self._listener.worker_ready(self.place, broken)

    def run(self, job: Job) -> None:
        """Who brings rows is told where to, and the worker what it gets from whom."""
        if job.key not in self._orders.specs or self._remote is None:
            self._loop.call_soon(self._listener.job_ended, job, failed(job.count, NOT_LOADED))
            return
        desk = self._roster.desk
        assert desk is not None
        order = self._orders.number()
        number = self._batches + order
        self._jobs[order] = job
        variant = desk.numbering.variants.get(job.generation.label(job.variant), NO_VARIANT)
        parts: list[tuple[int, int, int]] = []
        worker, count = self._remote.number, min(job.count, 0xFFFF)
        for front_number, request, row, rows, size in job.runs:
            front = desk.fronts.get(front_number)
            parts.append((0 if front is None else front.token, rows, size))
            if front is not None:
                front.decide((request, number, worker, row, rows, count, variant))
        left_ns = job.last_deadline_ns - desk.clock()
        self._say(Order.RUN, Batch(number, max(0, left_ns), job.key, parts).encoded())

    def load(self, spec: ModelSpec, alone: bool) -> None:
        self._orders.load(spec, alone)

    def prepare(self, specs: Sequence[ModelSpec], done: Callable[[dict[str, str]], None]) -> None:
        if specs:
            self._orders.hold(specs, done, is_beside=True)
        else:
            self._loop.call_soon(done, {})

    def unload(self, key: str) -> None:
        self._orders.specs.pop(key, None)
        self._say(Order.UNLOAD, key.encode())

    def loading(self) -> Sequence[Loading]:
        return self._orders.loading(self._jobs) if self._is_up else ()

    def memory_bytes(self) -> int:
        return self._memory_bytes

    def growth(self) -> Mapping[str, int]:
        return self._growth

    def kill(self) -> None:
        """What it holds and runs ends at once. Whether the worker hears of that, nobody here waits for."""
        if self._is_over:
            return
        self._roster.leave(self)
        self._say(Order.KILL)
        if self._remote is not None:
            self._remote.is_ending = True
        self._let_go()
        self._loop.call_soon(self._listener.worker_lost, self.place, KILLED)

    async def stop(self, patience_s: float = 10.0) -> None:
        """The worker lives on, with what it holds, for whoever comes next."""
        self._roster.leave(self)
        end = self._loop.time() + patience_s
        while self._jobs and not self._is_over and self._loop.time() < end:
            await asyncio.sleep(STEP_S)
        self._let_go()
        self._roster.assign()  # somebody may wait for it

    def _let_go(self) -> None:
        self._is_over = True
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.let_go()

    def _tell_load(self, number: int, spec: ModelSpec, is_beside: bool) -> None:
        source = spec.source
        source = replace(source, file=_absolute(source.file), folder=_absolute(source.folder))
        spec = replace(spec, source=source)  # a worker has a working folder of its own
        self._say(Order.LOAD, LOAD.pack(number, is_beside) + spec_as_text(spec))

    def _say(self, order: Order, payload: bytes = b"") -> None:
        if self._remote is not None:
            self._remote.link.send(order, payload)

    # -- what it tells -----------------------------------------------------------------------------------------------

    def heard(self, kind: int, payload: memoryview) -> None:
        if kind == Order.ENDED:
            (number, run_ns), failures = numbered(ENDED, payload)
            self._ended(number - self._batches, min(max(0, run_ns), MOST_RUN_NS), failures_in(failures.encode()))
        elif kind == Order.LOADED:
            (number,), problem = numbered(NUMBER, payload)
            self._orders.ended(number, problem)
        elif kind == Order.HOLDS:
            (self._memory_bytes,) = head(NUMBER, payload)
        elif kind == Order.GREW:
            (grown,), key = numbered(NUMBER, payload)
            self._growth[key] = grown
        elif kind == Order.UP:
            self._is_up = True
        elif kind == Order.LOST:
            content = plain(payload)
            loss = content.get("loss")
            self._lost(str(content.get("reason", ""))[:200], Loss(loss) if loss in set(Loss) else Loss.OWN)
            self._roster.assign()
        else:
            raise StrettoError(NONSENSE)

    def _ended(self, number: int, run_ns: int, failures: dict[int, str]) -> None:
        job = self._jobs.pop(number, None)
        if job is None:
            return
        if not all(0 <= position < job.count for position in failures):
            raise StrettoError(NONSENSE)
        now_ns = self._roster.clock()
        answers = np.empty((job.count, 0), np.uint8) if len(failures) < job.count else None  # they are elsewhere
        self._listener.job_ended(job, Report(answers, failures, now_ns - run_ns, now_ns))

    def leaving(self) -> None:
        """Its worker is to end, and wants nothing more."""
        if not self._is_over:
            self._listener.worker_leaving(self.place)

    def gone(self, reason: str) -> None:
        """Its link is lost. Nobody's model is to blame for that."""
        self._lost(reason, Loss.KILLED)

    def _lost(self, reason: str, loss: Loss) -> None:
        if not self._is_over:
            self._let_go()
            self._listener.worker_lost(self.place, reason, loss)


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()
