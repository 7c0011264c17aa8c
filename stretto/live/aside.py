"""Work beside the serving: in one process of low priority, one order at a time, the one that was given last first.

A process of its own, because such work takes seconds of a core, and compiling what does it takes more, under the
interpreter's lock. It ends when it has had nothing to do for a while; the next order starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from stretto.core.errors import StrettoError
from stretto.live.children import end_with_parent
from stretto.live.pace import Pace

IDLE_S = 30.0
NICENESS = 15

Work = Callable[[], Any]  # goes to the process: a functools.partial of a function of a module
Done = Callable[[Any], None]  # what came of it, or the Exception; None: it was not begun
Order = tuple[Work, Done]


class Aside:
    """All of it is called on the loop. At most `most` orders wait; the oldest gives way. `has_spare_core`: whether the
    serving leaves one for it at this moment.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        most: int = 1_000,
        has_spare_core: Callable[[], bool] = lambda: True,
    ):
        self._loop, self._most = loop, most
        self._orders: list[Order] = []  # the last one is next
        self._pool: ProcessPoolExecutor | None = None
        self._has_guard = False  # the pool's process ends with this one
        self._pace = Pace(loop, has_spare_core)
        self._is_running = self._is_closed = False
        self._idle: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Orders that are not done."""
        return len(self._orders) + self._is_running

    def order(self, work: Work, done: Done) -> None:
        if self._is_closed:
            return
        self._orders.append((work, done))
        if len(self._orders) > self._most:
            self._orders.pop(0)[1](None)
        self._next()

    def forget(self) -> None:
        """Nobody wants what was not begun any more."""
        orders, self._orders = self._orders, []
        for _, done in orders:
            done(None)

    def close(self) -> None:
        self._is_closed = True
        self._orders.clear()
        self._rest()

    def _next(self) -> None:
        if self._is_running or self._is_closed:
            return
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self._orders:
            if self._pool is not None:
                self._idle = self._loop.call_later(IDLE_S, self._rest)
            return
        work, done = self._orders.pop()
        self._is_running = True
        self._begun(work).add_done_callback(lambda future: self._call(self._ended, done, future))

    def _begun(self, work: Work) -> Future[Any]:
        """In the process; one that died while it had nothing to do is replaced."""
        for _ in range(2):
            try:
                if self._pool is None:
                    self._start()
                assert self._pool is not None
                future = self._pool.submit(work)
                self._begin_pace()
                return future
            except BrokenProcessPool:
                self._rest()
        lost: Future[Any] = Future()
        lost.set_exception(StrettoError("its process ended at once"))
        return lost

    def _start(self) -> None:
        """A process that is of low priority from its first moment on, and is stopped only when it has said that it ends
        with this one: one that is stopped before that would be left behind.
        """
        self._has_guard = False
        self._pool = pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _step_back)
        _pools.add(pool)
        guarded = pool.submit(os.getpid)
        for process in self._processes():
            _lower(process)
        guarded.add_done_callback(lambda future: self._call(self._guarded, pool))

    def _guarded(self, pool: ProcessPoolExecutor) -> None:
        if pool is self._pool:
            self._has_guard = True
            self._begin_pace()

    def _begin_pace(self) -> None:
        if self._has_guard and self._is_running:
            for process in self._processes():
                self._pace.begin(process)

    def _call(self, *what: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(*what)

    def _ended(self, done: Done, future: Future[Any]) -> None:
        self._is_running = False
        self._pace.end()
        if self._is_closed:
            return
        problem = None if future.cancelled() else future.exception()
        if isinstance(problem, BrokenProcessPool):
            self._rest()
        done(None if future.cancelled() else problem or future.result())
        self._next()

    def _rest(self) -> None:
        """End the process; what it computes is not waited for."""
        self._pace.end()
        processes = self._processes()
        pool, self._pool = self._pool, None
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if pool is not None:
            _pools.discard(pool)
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM)

    def _processes(self) -> list[int]:
        """The one of the pool, if it was started."""
        return [] if self._pool is None else list(self._pool._processes or {})


_pools: set[ProcessPoolExecutor] = set()  # whose processes were not ended yet


def _end_all() -> None:
    """The interpreter ends, and waits for its processes: one that is stopped would not end, not by SIGTERM either."""
    for pool in tuple(_pools):
        for process in tuple((pool._processes or {}).values()):
            process.kill()


# `atexit` comes too late: pools wait for their processes before, from a list of their own, whose last entry goes first.
threading._register_atexit(_end_all)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_pools.clear)  # a copy of this process does not own them


def _lower(process: int) -> None:
    """Everything else goes before it. 0: this process."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, NICENESS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))  # niceness counts in one session only


def _step_back() -> None:
    """In the process, first of all: it ends with the server whatever happens, and everything else goes before it."""
    end_with_server()
    _lower(0)


def end_with_server() -> None:
    """A terminal's Ctrl-C is for the server, which ends this process; where the server dies, the kernel does."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    parent = multiprocessing.parent_process()
    if sys.platform == "linux" and parent is not None and os.getppid() != parent.pid:  # it was gone before that
        os._exit(1)
