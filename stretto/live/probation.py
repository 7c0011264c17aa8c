"""Models that nobody knows yet are tried in a process of their own: loaded, run, and their memory looked at.

A model must answer a query of its application's sample; where there is none, one of zeros. One that failed while it was
served must answer many in a row. Whatever such a model does there, crash, exit, hang or fill memory, it does to nobody
else. One process tries many models, one after the other; it is lost with a model that takes it down, and the rest go on
in the next. While one model takes long, another process takes those behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from stretto.backends.model import Array
from stretto.backends.resident import total_bytes
from stretto.live.executor import Job, Loss
from stretto.live.processes import ProcessExecutor
from stretto.live.quarantine import Fault, label_of
from stretto.live.shelf import NOT_A_NUMBER, ModelSpec, Report
from stretto.live.worker_process import PROBATION
from stretto.repository.machine import accelerator_count

log = logging.getLogger("stretto.live")

LOOK_S = 0.05  # how often a model that is tried is looked at
PATIENCE_S = 1.0  # one that takes longer keeps nobody waiting
MOST = 8  # processes at once
START_S = 60.0  # for a process to start
RUNS = 20  # of a model that failed before, as far as half of its time allows: one that fails now and then must not pass
END_S = 2.0  # for one that was told to end; then it is given up
SHARE = 0.5  # of the machine's memory that a model may take where no limit is set
MIB = 1 << 20


@dataclass(frozen=True)
class Verdict:
    """What came of a trial; `fault` None: it passed."""

    fault: Fault | None = None
    reason: str = ""
    was_tried: bool = True  # else nobody here can, for want of its device
    memory_bytes: int = 0  # that the process grew by


@dataclass(frozen=True, eq=False)
class Trial:
    """A model, and queries that it should be able to answer; None: nobody knows any."""

    spec: ModelSpec
    sample: Array | None
    runs: int
    future: asyncio.Future[Verdict]


class Probation:
    """`load_s` is how long a model may take, `memory_bytes` what its process may hold (0: half of the machine's)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, load_s: float, memory_bytes: int = 0):
        self.loop = loop
        self.load_s = load_s
        self.memory_bytes = memory_bytes or round(SHARE * total_bytes())
        self._waiting: deque[Trial] = deque()
        self._code: deque[Trial] = deque()  # that waits: a program may do anything, so files of numbers go first
        self._benches: set[Bench] = set()
        self._is_closed = False

    async def verdict(self, spec: ModelSpec, sample: Array | None = None, runs: int = 1) -> Verdict:
        """Of one model; takes its turn. It must answer queries of this sample, one in each run. A model for a GPU
        passes where this process may use none, or it fails: whoever has one finds out.
        """
        if spec.source.device != "cpu" and not accelerator_count():
            return Verdict(was_tried=False)
        future: asyncio.Future[Verdict] = self.loop.create_future()
        (self._waiting if spec.source.code is None else self._code).append(Trial(spec, sample, runs, future))
        self._open_bench()
        return await future

    def close(self) -> None:
        """Every process is ended; nobody hears of what it tried."""
        self._is_closed = True
        for bench in list(self._benches):
            bench.end()

    def next(self) -> Trial | None:
        while (self._waiting or self._code) and not self._is_closed:
            trial = (self._waiting or self._code).popleft()
            if not trial.future.done():
                return trial
        return None

    def ended(self, bench: Bench) -> None:
        self._benches.discard(bench)
        self._open_bench()

    def look(self) -> None:
        """Called by each bench now and then."""
        self._open_bench()

    def _open_bench(self) -> None:
        """Another process, where somebody waits and all that there are take long."""
        is_wanted = (self._waiting or self._code) and not self._is_closed and len(self._benches) < MOST
        if is_wanted and all(bench.takes_long for bench in self._benches):
            bench = Bench(self)
            self._benches.add(bench)
            bench.start()


class Bench:
    """One process, and the model that it tries. Listens to its executor."""

    def __init__(self, probation: Probation):
        self._probation, self._loop = probation, probation.loop
        self._executor = ProcessExecutor(-1, self._loop, self, (PROBATION,))
        self._trial: Trial | None = None
        self._runs = 0  # of it, that ended
        self._began_s = self._loop.time()
        self._before_bytes = 0
        self._doom: Verdict | None = None  # why it was ended here
        self._is_up = self._is_over = False
        self._look: asyncio.TimerHandle | None = None

    @property
    def takes_long(self) -> bool:
        return self._is_up and self._trial is not None and self._loop.time() - self._began_s > PATIENCE_S

    def start(self) -> None:
        self._executor.start(())
        self._look = self._loop.call_later(LOOK_S, self._look_at)

    def end(self) -> None:
        if self._is_over:
            return
        if self._look is not None:
            self._look.cancel()
        self._executor.kill()
        self._look = self._loop.call_later(END_S, self._give_up)

    def _give_up(self) -> None:
        """Whatever holds its process up, models that wait are tried in another."""
        log.error("a process that tried models did not end within %g s, and is left to itself", END_S)
        self.worker_lost(-1, "its process does not end")

    # -- what the executor tells -------------------------------------------------------------------------------------

    def worker_ready(self, worker: int, broken: dict[str, str]) -> None:
        self._is_up = True
        self._next()

    def load_ended(self, worker: int, key: str, problem: str | None, alone: bool) -> None:
        if self._trial is None:
            return
        if problem is not None:
            self._say(Verdict(Fault.LOAD_FAILED, problem))
            self._next()
            return
        self._run(self._trial)

    def _run(self, trial: Trial) -> None:
        spec, sample = trial.spec, trial.sample
        if sample is None:
            rows = np.zeros((1, *spec.input_shape), spec.input_dtype)
        else:
            place = self._runs % len(sample)
            rows = sample[place : place + 1]
        self._executor.run(Job(-1, -1, spec.key, 1, (), None, 0, 0, rows=(rows,)))

    def job_ended(self, job: Job, report: Report) -> None:
        trial = self._trial
        if trial is None:
            return
        self._runs += 1
        reason = next(iter(report.failures.values()), "")
        has_time = self._loop.time() - self._began_s < self._probation.load_s / 2
        if reason and trial.sample is None and reason == NOT_A_NUMBER:  # as one that divides by the length of its input
            log.warning("%s, when it was tried on zeros: %s", label_of(job.key), reason)
        elif reason:
            self._say(Verdict(Fault.RAISED, _why_not(trial, reason)))
        if self._trial is not None and self._runs < trial.runs and has_time:
            self._run(trial)
            return
        self._say(Verdict(memory_bytes=max(0, self._executor.memory_bytes() - self._before_bytes)))
        self._executor.unload(job.key)
        self._next()

    def worker_leaving(self, worker: int) -> None: ...  # nobody else knows of it

    def worker_lost(self, worker: int, reason: str, loss: Loss = Loss.OWN) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._look is not None:
            self._look.cancel()
        verdict = self._doom or Verdict(Fault.LOAD_CRASHED, f"when it was tried, {reason}")
        if loss is Loss.DEVICE:
            verdict = Verdict(was_tried=False)
        if self._trial is None and not self._is_up:
            self._take(self._probation.next())  # no model was at it, but without a process none can be tried
            verdict = Verdict(Fault.LOAD_FAILED, f"it could not be tried: {reason}")
        self._say(verdict)
        self._probation.ended(self)

    # -- one after the other -----------------------------------------------------------------------------------------

    def _next(self) -> None:
        waiting = self._probation.next()
        if waiting is None:
            self.end()  # whoever comes later gets another process
            return
        self._take(waiting)
        spec = waiting.spec
        self._before_bytes = self._executor.memory_bytes()
        on_gpu = spec.source.device != "cpu"  # where every batch size more takes its time to be made ready
        self._executor.load(replace(spec, max_batch=1) if on_gpu else spec, True)

    def _take(self, waiting: Trial | None) -> None:
        self._began_s, self._runs = self._loop.time(), 0
        if waiting is not None:
            self._trial = waiting

    def _say(self, verdict: Verdict) -> None:
        if self._trial is not None and not self._trial.future.done():
            self._trial.future.set_result(verdict)
        self._trial = None

    def _look_at(self) -> None:
        """Whether it hangs or fills memory."""
        took_s = self._loop.time() - self._began_s
        held_bytes, most_bytes = self._executor.memory_bytes(), self._probation.memory_bytes
        if self._trial is not None and took_s > self._probation.load_s:
            self._doom = Verdict(Fault.LOAD_HUNG, f"it did not load and run within {self._probation.load_s:.0f} s")
        elif self._trial is not None and 0 < most_bytes < held_bytes:
            excess = f"{held_bytes / MIB:.0f} MiB, more than the {most_bytes / MIB:.0f} that it may take"
            self._doom = Verdict(Fault.MEMORY, f"when it was tried, its process held {excess}")
        elif not self._is_up and took_s > START_S:
            self._doom = Verdict(Fault.LOAD_FAILED, "no process for trying it started in time")
        if self._doom is not None:
            self.end()
            return
        self._probation.look()
        self._look = self._loop.call_later(LOOK_S, self._look_at)


def _why_not(trial: Trial, reason: str) -> str:
    """In words for an operator."""
    if trial.sample is not None:
        return f"it could not answer a query of its application's sample: {reason}"
    return (
        f"it could not answer a query of zeros: {reason}; where it rightly refuses zeros, put a sample.npz of queries "
        "that it can answer into the folder of its application"
    )
