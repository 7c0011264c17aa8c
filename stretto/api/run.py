"""Serves a repository until it is told to stop: what `stretto serve` does after its options are read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from stretto.api.beginning import COMPILED, begun_service
from stretto.api.heap import TIDY_S, give_back, keep_heap, tidy
from stretto.api.plane import Plane
from stretto.api.reload import Reload
from stretto.api.rooms import FOR_A_GPU
from stretto.api.serve_options import Fronts, Reread, ServeOptions, share_of
from stretto.api.server import Listeners
from stretto.api.stopping import Stop
from stretto.api.tracing import Tracing
from stretto.core.errors import StrettoError
from stretto.live.children import end_started_by_models

if TYPE_CHECKING:
    from stretto.live.crew import Factory
    from stretto.live.service import Service

log = logging.getLogger("stretto.api")

T = TypeVar("T")
LOADING = "loading models"
LOOK_S = 0.2  # at how far they are
STOP_S = 10.0  # for workers to end by themselves
SWITCH_S = 0.0005  # how long a thread may keep Python's lock while another wants it; a worker must not wait 5 ms


class Console(Protocol):
    """Who started it, and wants to know how far it is."""

    def listening(self, listeners: Listeners) -> None:
        """There are more addresses than before, perhaps; clients can connect to each of them now."""

    def progress(self, step: str, share: float) -> None: ...

    def serving(self, service: Service, listeners: Listeners) -> None: ...

    def started(self) -> None:
        """The start is over, one way or the other."""


@dataclass(frozen=True)
class Elsewhere:
    """Where front ends and workers are not this server's own: what makes the former, and what waits for the latter."""

    fronts: Callable[[Plane], Fronts]
    factory: Factory


async def serve(
    options: ServeOptions,
    console: Console,
    reread: Reread | None = None,
    elsewhere: Elsewhere | None = None,
    asked: asyncio.Event | None = None,
) -> bool:
    """Until SIGTERM or SIGINT, or until it is `asked`; a second signal ends it at once. True: every query that was
    taken in had its end.

    Listeners open first, so that a balancer sees at once that the server lives and is not ready yet. `reread` has the
    options as they are stated now, for SIGHUP.
    """
    keep_heap()
    listen = share_of(options.listen, options.front_ends)
    plane = Plane(limits=listen.limits, shared_memory=listen.shared_memory)
    fronts = _fronts(options, plane, elsewhere)
    if fronts is not None:
        listen = replace(listen, http_port=None, grpc_port=None)
    else:
        has_gpu = any(spec.is_gpu for spec in options.service.fleet())
        plane.rooms.take_ahead(FOR_A_GPU if has_gpu else 1)
    listeners = Listeners(plane, listen)
    loop = asyncio.get_running_loop()
    stop = Stop(loop, asked)
    reload = Reload(options, listeners, reread, stop.signalled, fronts)
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # in another thread they are not ours
        loop.add_signal_handler(signal.SIGTERM, stop.signalled, True)
        loop.add_signal_handler(signal.SIGINT, stop.signalled)
        if reread is not None:
            loop.add_signal_handler(signal.SIGHUP, reload.signalled)
    life = _Life(console, plane, listeners, fronts, stop)
    if options.traces:
        plane.tracing = Tracing()
        life.stack.callback(plane.tracing.close)
    try:
        await life.open()
        if not await life.start(options, None if elsewhere is None else elsewhere.factory):
            return True
        await stop.asked.wait()
        return await life.leave(reload.options)
    finally:
        await life.end()


def _fronts(options: ServeOptions, plane: Plane, elsewhere: Elsewhere | None) -> Fronts | None:
    """Front ends, where the server has any."""
    if elsewhere is not None:
        return elsewhere.fronts(plane)
    if options.front_ends > 1:
        from stretto.api.front_ends import FrontEnds

        return FrontEnds(options, plane)
    return None


class _Life:
    """One server, from its listeners to its end."""

    def __init__(self, console: Console, plane: Plane, listeners: Listeners, fronts: Fronts | None, stop: Stop):
        self._console, self._plane, self._listeners = console, plane, listeners
        self._fronts, self._stop = fronts, stop
        self._service: Service | None = None
        self._patience_s = STOP_S
        self._opening: asyncio.Task[None] | None = None
        self.stack = contextlib.ExitStack()  # closed last

    async def open(self) -> None:
        """Clients are told where to go; where there are front ends, when every one of them is there."""
        await self._listeners.start()
        self._console.listening(self._listeners)
        if self._fronts is None:
            return
        await self._fronts.start()
        self._opening = asyncio.get_running_loop().create_task(self._open_fronts(self._fronts))
        self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())  # the start may fail first

    async def _open_fronts(self, fronts: Fronts) -> None:
        await fronts.opened_all()
        self._fronts_listen(fronts)

    def _fronts_listen(self, fronts: Fronts) -> None:
        self._listeners.addresses = fronts.addresses | self._listeners.addresses
        self._console.listening(self._listeners)

    async def start(self, options: ServeOptions, factory: Factory | None) -> bool:
        """Until something can be served. False where it was told to stop before there was a service."""
        plane, stop = self._plane, self._stop
        try:
            service = await stop.unless_asked(begun_service(options, self._progress, self.stack, factory))
            if service is None:
                return False
            self._service = stop.service = service
            if options.front_ends > 1:
                service.loops += options.front_ends
            await asyncio.to_thread(give_back)  # what the start needed and requests do not, before any comes
            if self._fronts is not None and self._opening is not None:
                await stop.unless_asked(self._opening)
                self._fronts.serve(service)
                self._fronts_listen(self._fronts)
            plane.serve(service)
            await self._can_serve(service)
        finally:
            self._console.started()
        await plane.control.settled()
        self.stack.callback(asyncio.get_running_loop().create_task(tidy(plane.budget, TIDY_S)).cancel)
        if not stop.asked.is_set():
            self._console.serving(service, self._listeners)
        return True

    def _progress(self, step: str, share: float) -> None:
        self._plane.starts(step, share)
        self._console.progress(step, share)
        if self._fronts is not None:
            self._fronts.progress(step, share)

    async def _can_serve(self, service: Service) -> None:
        """A worker is there, or it was told to stop. StrettoError where nothing ever can be served."""
        watch = asyncio.get_running_loop().create_task(self._watch_loads(service))
        try:
            if await self._stop.unless_asked(service.readiness.can_serve) is False:
                raise StrettoError("nothing can be served; the messages above say why")
        finally:
            watch.cancel()

    async def _watch_loads(self, service: Service) -> None:
        """How far the workers are with their models, until somebody ends it."""
        while True:
            self._console.progress(LOADING, COMPILED + (1 - COMPILED) * service.engine.crew.share_loaded())
            await asyncio.sleep(LOOK_S)

    async def leave(self, options: ServeOptions) -> bool:
        """Nothing new is taken, and what waits is finished; true where all of it was."""
        service = self._service
        assert service is not None
        if self._stop.is_graceful and options.drain_grace_s > 0:
            self._plane.wants_to_leave = True
            if self._fronts is not None:
                self._fronts.leave()
            log.info("not ready any more; queries are taken for another %g s", options.drain_grace_s)
            await asyncio.sleep(options.drain_grace_s)
        log.info("going down: nothing new is taken, what waits is finished")
        is_clean = await service.drain(options.drain_s)
        if not is_clean:
            log.warning("%d queries had not ended after %.0f s", service.engine.waiting, options.drain_s)
            service.engine.end_all()  # while their clients can still be told
            self._patience_s = 0.0
        return is_clean

    async def end(self) -> None:
        if self._fronts is not None:
            await self._fronts.stop()
        await self._listeners.stop()
        if self._service is not None:
            await self._service.stop(self._patience_s)
        self.stack.close()


def run(options: ServeOptions, console: Console, reread: Reread | None = None) -> bool:
    """`serve` in an event loop of its own, uvloop's where it is there."""
    sys.setswitchinterval(SWITCH_S)
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) <= options.service.worker_count:
        # The loop has no core of its own. A request that comes shall not interrupt the batch that runs there: what
        # comes in a few milliseconds is then read together, and neither loses its caches to the other every time.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        return in_own_loop(serve(options, console, reread))
    finally:
        end_started_by_models()


def in_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """uvloop's where it is there."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        from asyncio import new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)
