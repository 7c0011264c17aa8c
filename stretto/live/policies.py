"""Policies made beside the serving: in one process of low priority, the load that was asked for last first.

A planner asks for a policy that it misses and goes on with what it has. A process of its own, because making policies
takes seconds of a core, and compiling what makes them takes more, under the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from stretto.core.errors import StrettoError
from stretto.planners.parts.task import Task
from stretto.planners.ports import MadePolicy, MakePolicy

log = logging.getLogger("stretto.live")

IDLE_S = 30.0  # then the process ends; the next policy starts another
MAX_ASKED = 1_000
NICENESS = 15
DEATH_SIGNAL = 1  # of prctl: what a child gets when its parent dies


@dataclass(frozen=True, eq=False)
class _Order:
    task: Task
    options: Any
    load: float
    make: MakePolicy


class PolicyMaker:
    """A planner's PolicyPort. `ask` and `collect` may be called from any thread; everything else runs on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.made = 0
        self._loop = loop
        self._asked: list[_Order] = []  # the last one is made next
        self._lock = threading.Lock()
        self._done: list[MadePolicy] = []  # not yet collected
        self._collected: list[MadePolicy] = []  # for the journal
        self._pool: ProcessPoolExecutor | None = None
        self._running = False
        self._is_closed = False
        self._idle: asyncio.TimerHandle | None = None
        self._is_failing = False

    @property
    def waiting(self) -> int:
        """Policies that were asked for and are not there yet."""
        return len(self._asked) + self._running

    def ask(self, task: Task, options: Any, load: float, make: MakePolicy) -> None:
        """The planner asks for each load once."""
        if not self._is_closed:
            self._loop.call_soon_threadsafe(self._note, _Order(task, options, load, make))

    def collect(self) -> Sequence[MadePolicy]:
        with self._lock:
            done, self._done = self._done, []
            self._collected += done
        return done

    def collected(self) -> list[list[Any]]:
        """Of what was collected since the last call: application, kind, workers, load, and whether it was made."""
        with self._lock:
            collected, self._collected = self._collected, []
        return [
            [made.task.application, made.task.kind, made.task.workers, made.load, made.policy is not None]
            for made in collected
        ]

    def close(self) -> None:
        self._is_closed = True
        self._asked.clear()
        self._rest()

    def forget(self) -> None:
        """What was asked for belongs to a deployment that is no longer served; it may be asked for again."""
        asked, self._asked = self._asked, []
        for order in asked:
            self._deliver(order, None)

    def _note(self, order: _Order) -> None:
        self._asked.append(order)
        if len(self._asked) > MAX_ASKED:
            self._deliver(self._asked.pop(0), None)
        self._next()

    def _deliver(self, order: _Order, policy: Any) -> None:
        with self._lock:
            self._done.append(MadePolicy(order.task, order.load, policy))

    def _next(self) -> None:
        if self._running or self._is_closed:
            return
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self._asked:
            if self._pool is not None:
                self._idle = self._loop.call_later(IDLE_S, self._rest)
            return
        order = self._asked.pop()
        made = self._submitted(order)
        self._running = True
        made.add_done_callback(lambda done: self._call(self._made, order, done))

    def _submitted(self, order: _Order) -> Future[Any]:
        """To the process; one that died while it had nothing to do is replaced."""
        for _ in range(2):
            if self._pool is None:
                self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _step_back)
            try:
                return self._pool.submit(order.make, order.task, order.options, order.load)
            except BrokenProcessPool:
                self._rest()
        lost: Future[Any] = Future()
        lost.set_exception(StrettoError("its process ended at once"))
        return lost

    def _call(self, *what: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(*what)

    def _made(self, order: _Order, done: Future[Any]) -> None:
        self._running = False
        if self._is_closed:
            return
        try:
            if not done.cancelled():
                self._deliver(order, done.result())
                self.made += 1
                self._is_failing = False
        except Exception as error:  # whatever it is, others are made after it
            if not self._is_failing:
                log.warning("a policy for %s could not be made (%s); others serve", order.task.application, error)
            self._is_failing = True
            self._deliver(order, None)
            if isinstance(error, BrokenProcessPool):
                self._rest()
        self._next()

    def _rest(self) -> None:
        """End the process; what it computes is not waited for."""
        pool, self._pool = self._pool, None
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if pool is not None:
            processes = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()


def _step_back() -> None:
    """In the process, first of all: everything else goes before it, and it ends with the server whatever happens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the server, which ends this one
    os.nice(NICENESS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # niceness counts among one session's only
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)
