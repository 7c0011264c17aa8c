"""A worker of a cluster: it keeps a process that holds models and runs batches, and speaks for it.

Orders are done as they come. A batch waits for the tensors that front ends bring, as long as its queries have time, and
goes on without those that do not come. The process and its models outlive the scheduler: the next one is told what is
held, and nothing is loaded twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from stretto.backends.model import Array
from stretto.core.errors import StrettoError
from stretto.live.arena import SLOTS
from stretto.live.cluster.messages import ENDED, LOAD, NUMBER, Batch, Order, head
from stretto.live.cluster.tensors import Brought, TensorDoor
from stretto.live.executor import Job, Loss
from stretto.live.face.link import Link
from stretto.live.face.messages import NONSENSE, plain, text
from stretto.live.frames import failures_as_text, spec_from_text
from stretto.live.processes import ProcessExecutor
from stretto.live.shelf import NO_TENSORS, NOT_LOADED, ModelSpec, Report, failed

log = logging.getLogger("stretto.cluster")

MOST_WAIT_S = 0.75  # for tensors: the worker stands still meanwhile, and shall not be taken to hang
TELL_S = 0.5  # how much memory it holds
STEP_S = 0.01
ROOM = 1.25  # beyond its limit by this, the process is ended


@dataclass
class Pending:
    """A batch on its way: what of it was brought, in its order."""

    batch: Batch
    spec: ModelSpec | None
    missing: set[int]  # tokens of front ends that have brought nothing yet
    arrays: dict[int, Array] = field(default_factory=dict)  # by part
    callers: dict[int, bytes] = field(default_factory=dict)  # by token: where its answers go
    timer: asyncio.TimerHandle | None = None

    @property
    def rows(self) -> int:
        return sum(rows for _, rows, _ in self.batch.parts)

    def parts_of(self, front: int) -> list[int]:
        return [part for part, (token, _, _) in enumerate(self.batch.parts) if token == front]

    def put(self, front: int, brought: Brought) -> None:
        """StrettoError where it is not what was announced."""
        self.missing.discard(front)
        self.callers[front] = brought.caller
        if self.spec is None:
            return
        parts, shapes = self.parts_of(front), self.spec.shapes
        try:
            wanted = [shapes[self.batch.parts[part][2]] for part in parts]
        except IndexError:
            raise StrettoError(NONSENSE) from None
        for part, array in zip(parts, brought.arrays(self.spec.input_dtype, wanted), strict=True):
            if array is not None and len(array) == self.batch.parts[part][1]:
                self.arrays[part] = array


class Agent:
    """A Peer of the line to the scheduler, and the listener of the process. On the loop's thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, device: str, threads: int, memory_bytes: int, root: Path | None
    ):
        self.door: TensorDoor  # set by whoever makes it
        self._loop = loop
        self._device, self._threads, self._memory_bytes, self._root = device, threads, memory_bytes, root
        self._their_root: Path | None = None
        self._link: Link | None = None
        self._executor: ProcessExecutor | None = None
        self._number = 0  # of the process; what an earlier one says is not heard
        self._is_up = False
        self._specs: dict[str, ModelSpec] = {}  # of what the process was told to hold
        self._held: set[str] = set()  # of these, what it does hold
        self._loads: dict[str, list[int]] = {}  # numbers of orders whose load is under way, by key
        self._queue: deque[Callable[[], bool]] = deque()  # orders in turn; each says whether it is done
        self._pending: dict[int, Pending] = {}
        self._running = 0
        self._told_bytes = 0
        self._is_leaving = self._may_go = False
        self.is_hurried = False  # it was told to end twice
        self._timer = loop.call_later(TELL_S, self._watch)

    @property
    def holds(self) -> list[str]:
        """Keys of models that are ready."""
        return sorted(self._held)

    def linked(self, link: Link, welcome: Mapping[str, Any]) -> None:
        """There is a scheduler; its files are below the folder that it names."""
        self._link = link
        folder = welcome.get("repository")
        self._their_root = None if not isinstance(folder, str) else Path(folder)
        self._told_bytes = 0
        if self._is_leaving:
            self._say(Order.LEAVING)

    def lost(self) -> None:
        """There is none. What runs ends, and its answers go to the front ends; what is held is kept."""
        self._link = None
        self._forget_orders()

    def _forget_orders(self) -> None:
        self._queue.clear()
        self._loads.clear()
        for pending in self._pending.values():
            if pending.timer is not None:
                pending.timer.cancel()
        self._pending.clear()

    async def leave(self, patience_s: float) -> None:
        """Until what it was given is done and the scheduler, where there is one, gives it nothing more."""
        self._is_leaving = True
        self._say(Order.LEAVING)
        end = self._loop.time() + patience_s
        while self._running or (self._link is not None and not self._may_go):
            if self.is_hurried or self._loop.time() > end:
                log.warning("it ends with %d batches unfinished", self._running + len(self._pending))
                return
            await asyncio.sleep(STEP_S)

    async def stop(self) -> None:
        self._timer.cancel()
        self._forget_orders()
        executor, self._executor = self._executor, None
        if executor is not None:
            await executor.stop(1.0)

    # -- what the scheduler says -------------------------------------------------------------------------------------

    def heard(self, kind: int, payload: memoryview) -> None:
        if kind == Order.RUN:
            self._announced(Batch.read(payload))
        elif kind == Order.LOAD:
            number, is_beside = head(LOAD, payload)
            spec = self._as_here(payload[LOAD.size :])
            self._in_turn(lambda: self._load(number, bool(is_beside), spec))
        elif kind == Order.UNLOAD:
            key = bytes(payload).decode("utf-8", "replace")
            self._in_turn(lambda: self._unload(key))
        elif kind == Order.HOLD:
            self._adopted({str(key) for key in plain(payload).get("keys", ())})
        elif kind == Order.KILL:
            self._end("it was told to")
        elif kind == Order.GO:
            self._may_go = True
        elif kind == Order.GONE:
            (front,) = head(NUMBER, payload)
            for pending in self._pending.values():
                pending.missing.discard(front)
            self._go_on()
        else:
            raise StrettoError(NONSENSE)

    def _as_here(self, content: memoryview) -> ModelSpec:
        """On the device of this worker, from the files of this machine."""
        try:
            spec = spec_from_text(bytes(content))
        except (ValueError, KeyError, TypeError):
            raise StrettoError(NONSENSE) from None
        source = spec.source
        source = replace(source, device=self._device, threads=self._threads)
        if self._root is not None and self._their_root is not None:
            source = replace(source, file=self._moved(source.file), folder=self._moved(source.folder))
        return replace(spec, source=source)

    def _moved(self, path: Path | None) -> Path | None:
        assert self._root is not None and self._their_root is not None
        if path is None or not path.is_relative_to(self._their_root):
            return path
        return self._root / path.relative_to(self._their_root)

    def _adopted(self, keys: set[str]) -> None:
        """This scheduler has it from here on: what else it holds goes."""
        self._forget_orders()
        for key in self._specs.keys() - keys:
            self._unload(key)
        if self._executor is None:
            self._number += 1
            self._executor = ProcessExecutor(self._number, self._loop, self)
            self._executor.start(())
        elif self._is_up:
            self._say(Order.UP)

    def _load(self, number: int, is_beside: bool, spec: ModelSpec) -> bool:
        executor = self._executor
        if executor is None:
            self._loaded(number, "the process that holds models is gone")
        elif spec.key in self._held:
            self._loaded(number, "")
        elif spec.key in self._loads:
            self._loads[spec.key].append(number)
        else:
            self._loads[spec.key] = [number]
            self._specs[spec.key] = spec
            if is_beside:
                worker = self._number
                executor.prepare((spec,), lambda broken: self.load_ended(worker, spec.key, broken.get(spec.key), True))
            else:
                executor.load(spec, True)
        return True

    def _unload(self, key: str) -> bool:
        self._specs.pop(key, None)
        self._held.discard(key)
        if self._executor is not None:
            self._executor.unload(key)
        return True

    # -- batches -----------------------------------------------------------------------------------------------------

    def _announced(self, batch: Batch) -> None:
        missing = {front for front, _, _ in batch.parts if front}
        pending = Pending(batch, None, missing)
        self._pending[batch.number] = pending
        wait_s = min(max(batch.wait_ns / 1e9, 0.0), MOST_WAIT_S)
        pending.timer = self._loop.call_later(wait_s, self._waited, pending)
        self._in_turn(lambda: self._run(pending))

    def brought(self, batch: int, front: int) -> None:
        """Somebody brought tensors."""
        if batch in self._pending:
            self._go_on()

    def _waited(self, pending: Pending) -> None:
        pending.missing.clear()
        self._go_on()

    def _in_turn(self, order: Callable[[], bool]) -> None:
        self._queue.append(order)
        if len(self._queue) == 1:
            self._go_on()

    def _go_on(self) -> None:
        while self._queue and self._queue[0]():
            self._queue.popleft()

    def _run(self, pending: Pending) -> bool:
        """True where that batch is given to the process, or has ended."""
        batch, executor = pending.batch, self._executor
        pending.spec = self._specs.get(batch.key)
        for front in list(pending.missing):
            brought = self.door.take(batch.number, front)
            if brought is not None:
                try:
                    pending.put(front, brought)
                except StrettoError as error:
                    log.warning("tensors of a batch are not what was announced: %s", error)
        if pending.missing or self._running >= SLOTS:
            return False
        if pending.timer is not None:
            pending.timer.cancel()
        del self._pending[batch.number]
        if pending.spec is None or executor is None:
            self._tell_end(pending, failed(pending.rows, NOT_LOADED))
        elif not pending.arrays or pending.rows > pending.spec.max_batch:
            self._tell_end(pending, failed(pending.rows, NO_TENSORS))
        else:
            parts = [pending.arrays[part] for part in sorted(pending.arrays)]
            count, now_ns = sum(map(len, parts)), time.monotonic_ns()
            self._running += 1
            executor.run(Job(self._number, -1, batch.key, count, (pending,), self, now_ns, now_ns, rows=parts))
        return True

    def _tell_end(self, pending: Pending, report: Report) -> None:
        """Answers go first: the scheduler's word shall not be quicker."""
        for front, caller in pending.callers.items():
            self._answer(pending, front, caller, report)
        run_ns = report.ended_ns - report.started_ns
        self._say(Order.ENDED, ENDED.pack(pending.batch.number, run_ns) + failures_as_text(report.failures))

    def _answer(self, pending: Pending, front: int, caller: bytes, report: Report) -> None:
        rows, first = list[int](), 0
        for token, count, _ in pending.batch.parts:
            if token == front:
                rows += range(first, first + count)
            first += count
        bad = [place for place, row in enumerate(rows) if row in report.failures] if report.failures else []
        answers = report.answers
        if answers is not None and len(rows) < len(answers):
            answers = answers[rows]
        self.door.answer(caller, pending.batch.number, len(rows), answers, bad)

    # -- what the process tells --------------------------------------------------------------------------------------

    def worker_ready(self, worker: int, broken: dict[str, str]) -> None:
        if worker == self._number:
            self._is_up = True
            self._say(Order.UP)

    def job_ended(self, job: Job, report: Report) -> None:
        if job.worker != self._number:
            return
        (pending,) = job.entries
        self._running -= 1
        self._go_on()  # what comes next need not wait for what is told
        self._tell_end(pending, _with_gaps(pending, report))
        self._tell_growth(job.key)

    def load_ended(self, worker: int, key: str, problem: str | None, alone: bool) -> None:
        if worker != self._number:
            return
        if problem is None and key in self._specs:
            self._held.add(key)
        else:
            self._specs.pop(key, None)
        for number in self._loads.pop(key, ()):
            self._loaded(number, problem or "")

    def worker_leaving(self, worker: int) -> None: ...  # whoever tells it is this one

    def worker_lost(self, worker: int, reason: str, loss: Loss = Loss.OWN) -> None:
        if worker == self._number:
            self._end(reason, loss)

    def _end(self, reason: str, loss: Loss = Loss.OWN) -> None:
        """The process is gone, or goes now, with all that it holds. The next is started when a scheduler says so."""
        executor, self._executor = self._executor, None
        self._number += 1
        if executor is not None:
            executor.kill()
        self._forget_orders()
        self._specs, self._held, self._running = {}, set(), 0
        self._is_up = False
        self._say(Order.LOST, text({"reason": reason, "loss": loss}))

    # -- what it tells -----------------------------------------------------------------------------------------------

    def _say(self, order: Order, payload: bytes = b"") -> None:
        if self._link is not None:
            self._link.send(order, payload)

    def _loaded(self, number: int, problem: str) -> None:
        self._say(Order.LOADED, NUMBER.pack(number) + problem.encode())

    def _tell_growth(self, key: str) -> None:
        grown = 0 if self._executor is None else self._executor.growth().get(key, 0)
        if grown > 0:
            self._say(Order.GREW, NUMBER.pack(grown) + key.encode())

    def _watch(self) -> None:
        self._timer = self._loop.call_later(TELL_S, self._watch)
        self.door.forget_old()
        executor = self._executor
        if executor is None:
            return
        held_bytes = executor.memory_bytes()
        if held_bytes != self._told_bytes:
            self._told_bytes = held_bytes
            self._say(Order.HOLDS, NUMBER.pack(held_bytes))
        if 0 < ROOM * self._memory_bytes < held_bytes:
            self._end(f"its process held {held_bytes >> 20} MiB, more than the {self._memory_bytes >> 20} that it may")


def _with_gaps(pending: Pending, report: Report) -> Report:
    """As if the rows that did not come had been in the batch."""
    parts = pending.batch.parts
    if len(pending.arrays) == len(parts):
        return report
    failures: dict[int, str] = {}
    rows, first = list[int](), 0
    for part, (_, count, _) in enumerate(parts):
        places = range(first, first + count)
        if part in pending.arrays:
            rows += places
        else:
            failures |= dict.fromkeys(places, NO_TENSORS)
        first += count
    failures |= {rows[place]: why for place, why in report.failures.items()}
    answers = None
    if report.answers is not None:
        answers = np.zeros((first, *report.answers.shape[1:]), report.answers.dtype)
        answers[rows] = report.answers
    return Report(answers, failures, report.started_ns, report.ended_ns)
