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
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Protocol

from stretto.core.errors import StrettoError
from stretto.planners.ramsis.store import load_libraries

log = logging.getLogger("stretto.live")

IDLE_S = 30.0  # then the process ends; the next policy starts another
MAX_ASKED = 1_000
NICENESS = 15
DEATH_SIGNAL = 1  # of prctl: what a child gets when its parent dies


class PolicyKeeper(Protocol):
    """A planner that remembers policies and can do without one for a while."""

    stored: Sequence[Any]
    request: Any

    def add(self, task: Any, policy: Any) -> None: ...

    def missed(self, task: Any, load: float) -> None:
        """It was not made, and may be asked for again."""
        ...

    @staticmethod
    def make(task: Any, options: Any, load: float) -> Any: ...


class PolicyMaker:
    """Serves one planner. Everything but `ask` runs on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, planner: PolicyKeeper, stored: Path | None = None):
        if stored is not None:
            planner.stored = load_libraries(stored)
        planner.request = self.ask
        self.made = 0
        self._loop = loop
        self._planner = planner
        self._asked: list[tuple[Any, Any, float]] = []  # the last one is made next
        self._pool: ProcessPoolExecutor | None = None
        self._running = False
        self._is_closed = False
        self._idle: asyncio.TimerHandle | None = None
        self._is_failing = False

    @property
    def waiting(self) -> int:
        """Policies that were asked for and are not there yet."""
        return len(self._asked) + self._running

    def ask(self, task: Any, options: Any, load: float) -> None:
        """From any thread; each load is asked for once."""
        if not self._is_closed:
            self._loop.call_soon_threadsafe(self._note, task, options, load)

    def close(self) -> None:
        self._is_closed = True
        self._asked.clear()
        self._rest()

    def _note(self, task: Any, options: Any, load: float) -> None:
        self._asked.append((task, options, load))
        if len(self._asked) > MAX_ASKED:
            forgotten, _, at_load = self._asked.pop(0)
            self._planner.missed(forgotten, at_load)
        self._next()

    def forget(self) -> None:
        """What was asked for belongs to a deployment that is no longer served."""
        self._asked.clear()

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
        task, options, load = self._asked.pop()
        made = self._submitted(task, options, load)
        self._running = True
        made.add_done_callback(lambda done: self._call(self._made, task, load, done))

    def _submitted(self, task: Any, options: Any, load: float) -> Future[Any]:
        """To the process; one that died while it had nothing to do is replaced."""
        for _ in range(2):
            if self._pool is None:
                self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _step_back)
            try:
                return self._pool.submit(self._planner.make, task, options, load)
            except BrokenProcessPool:
                self._rest()
        lost: Future[Any] = Future()
        lost.set_exception(StrettoError("its process ended at once"))
        return lost

    def _call(self, *what: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(*what)

    def _made(self, task: Any, load: float, done: Future[Any]) -> None:
        self._running = False
        if self._is_closed:
            return
        try:
            if not done.cancelled():
                self._planner.add(task, done.result())
                self.made += 1
                self._is_failing = False
        except (StrettoError, BrokenProcessPool, ArithmeticError, ValueError, MemoryError, OSError) as error:
            if not self._is_failing:
                log.warning("a policy for %s could not be made (%s); others serve", task.application, error)
            self._is_failing = True
            self._planner.missed(task, load)
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
