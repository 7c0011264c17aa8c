"""Serves a repository until it is told to stop: what `stretto serve` does after its options are read."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from stretto.api.heap import TIDY_S, give_back, keep_heap, tidy
from stretto.api.plane import Plane
from stretto.api.reload import Reload
from stretto.api.serve_options import Fronts, Reread, ServeOptions, share_of
from stretto.api.server import Listeners
from stretto.api.tracing import Tracing
from stretto.core.errors import StrettoError
from stretto.live.options import ServiceOptions
from stretto.planners.registry import planner_entry

if TYPE_CHECKING:
    from stretto.live.crew import Factory
    from stretto.live.service import Service
    from stretto.repository.repository import Repository

log = logging.getLogger("stretto.api")

T = TypeVar("T")
COMPILING = "compiling"
READING = "reading the repository"
COMPILED = 0.9  # of the start
LOADING = "loading models"
LOOK_S = 0.2  # at how far they are
INSIST_S = 1.0
STOP_S = 10.0  # for workers to end by themselves
# Pauses grow with what is young or in the middle, by a microsecond for each object and more: of 10,000 connections that
# came just now there are 400,000.
GC_THRESHOLDS = 2_000, 4, 2_000
SWITCH_S = 0.0005  # how long a thread may keep Python's lock while another wants it; a worker must not wait 5 ms


class Console(Protocol):
    """Who started it, and wants to know how far it is."""

    def listening(self, listeners: Listeners) -> None: ...

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
    fronts: Fronts | None = None
    if elsewhere is not None:
        fronts = elsewhere.fronts(plane)
    elif options.front_ends > 1:
        from stretto.api.front_ends import FrontEnds

        fronts = FrontEnds(options, plane)
    if fronts is not None:
        listen = replace(listen, http_port=None, grpc_port=None)
    else:
        plane.rooms.take_ahead()
    listeners = Listeners(plane, listen)
    loop = asyncio.get_running_loop()
    stop = _Stop(loop, asked)
    reload = Reload(options, listeners, reread, stop.signalled, fronts)
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # in another thread they are not ours
        loop.add_signal_handler(signal.SIGTERM, stop.signalled, True)
        loop.add_signal_handler(signal.SIGINT, stop.signalled)
        if reread is not None:
            loop.add_signal_handler(signal.SIGHUP, reload.signalled)
    service: Service | None = None
    patience_s, is_clean = STOP_S, True
    stack = contextlib.ExitStack()  # closed last
    if options.traces:
        plane.tracing = Tracing()
        stack.callback(plane.tracing.close)
    try:
        await listeners.start()
        if fronts is not None:
            await fronts.start()
            opening = loop.create_task(_open(fronts, listeners, console))
            opening.add_done_callback(lambda done: done.cancelled() or done.exception())  # the start may fail first
        else:
            console.listening(listeners)

        def progress(step: str, share: float) -> None:
            plane.starts(step, share)
            console.progress(step, share)
            if fronts is not None:
                fronts.progress(step, share)

        try:
            factory = None if elsewhere is None else elsewhere.factory
            service = await stop.unless_asked(_begun(options, progress, stack, factory))
            if service is None:
                return True
            stop.service = service
            await asyncio.to_thread(give_back)  # what the start needed and requests do not, before any comes
            if fronts is not None:
                await stop.unless_asked(opening)
                fronts.serve(service)
            plane.serve(service)
            watch = loop.create_task(_tell_loads(service, console))
            try:
                if await stop.unless_asked(service.readiness.can_serve) is False:
                    raise StrettoError("nothing can be served; the messages above say why")
            finally:
                watch.cancel()
        finally:
            console.started()
        await plane.control.settled()
        stack.callback(loop.create_task(tidy(plane.budget, TIDY_S)).cancel)
        if not stop.asked.is_set():
            console.serving(service, listeners)
        await stop.asked.wait()
        options = reload.options
        if stop.is_graceful and options.drain_grace_s > 0:
            plane.wants_to_leave = True
            if fronts is not None:
                fronts.leave()
            log.info("not ready any more; queries are taken for another %g s", options.drain_grace_s)
            await asyncio.sleep(options.drain_grace_s)
        log.info("going down: nothing new is taken, what waits is finished")
        is_clean = await service.drain(options.drain_s)
        if not is_clean:
            log.warning("%d queries had not ended after %.0f s", service.engine.waiting, options.drain_s)
            service.engine.end_all()  # while their clients can still be told
            patience_s = 0.0
    finally:
        if fronts is not None:
            await fronts.stop()
        await listeners.stop()
        if service is not None:
            await service.stop(patience_s)
        stack.close()
    return is_clean


async def _open(fronts: Fronts, listeners: Listeners, console: Console) -> None:
    """Clients are told where to go when every front end is there."""
    await fronts.opened_all()
    listeners.addresses = fronts.addresses | listeners.addresses
    console.listening(listeners)


async def _tell_loads(service: Service, console: Console) -> None:
    """How far the workers are with their models, until somebody ends it."""
    while True:
        console.progress(LOADING, COMPILED + (1 - COMPILED) * service.engine.crew.share_loaded())
        await asyncio.sleep(LOOK_S)


async def _begun(
    options: ServeOptions,
    progress: Callable[[str, float], None],
    stack: contextlib.ExitStack,
    factory: Factory | None,
) -> Service:
    """Compiled code loaded, or made on the first start of all; then the repository read, planned for and started."""
    loop = asyncio.get_running_loop()

    def compile_all() -> None:
        """Here also what takes long to import; the loop answers meanwhile."""
        from stretto.api.bounds import rehearse_bounds
        from stretto.live.rehearsal import rehearse

        def told(share: float) -> None:
            loop.call_soon_threadsafe(progress, COMPILING, COMPILED * share)

        rehearse(told, has_fronts=factory is not None or options.front_ends > 1)
        rehearse_bounds()

    progress(READING, 0.0)
    asked = options.service
    repository = await asyncio.to_thread(_repository, asked.repository)
    make_worker = factory or _factory(asked, repository, stack)
    await asyncio.to_thread(_import_what_serves)
    service = _service(options, repository, stack, make_worker)
    try:
        await service.enlist()  # models that are new here are tried while the rest is made ready
        progress(COMPILING, 0.0)
        await asyncio.to_thread(compile_all)
        progress("planning", COMPILED)
        await service.start()
    except BaseException:
        service.close_asides()
        raise
    # What is there by now stays: the collector need not look at it again, nor run for every few requests.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    return service


def _service(options: ServeOptions, repository: Repository, stack: contextlib.ExitStack, factory: Factory) -> Service:
    from stretto.live.recorder import recording
    from stretto.live.service import Service
    from stretto.sim.autoscale import accuracy_floor
    from stretto.sim.ports import simulator_ports

    asked = options.service
    journal = stack.enter_context(recording(options.record, options.record_options))
    twin = memory = None
    if "judge" in planner_entry(asked.planner).ports:
        from stretto.api.known import verdict_memory
        from stretto.twin.live import LiveTwin

        twin, memory = LiveTwin(time.monotonic_ns()), verdict_memory(asked, repository)
    return Service(asked, repository, factory, journal, simulator_ports(), twin, memory, make_floor=accuracy_floor)


def _factory(asked: ServiceOptions, repository: Repository, stack: contextlib.ExitStack) -> Factory:
    """What makes workers. The first one on a GPU starts at once, where it has PyTorch to import."""
    from stretto.live.executors import executor_factory

    variants = [variant for application in repository.applications for variant in application.variants]
    is_torch_on_gpu = any(spec.is_gpu for spec in asked.fleet()) and any(one.backend == "torch" for one in variants)
    if asked.executor_kind != "process" or not is_torch_on_gpu:
        return executor_factory(asked.executor_kind)
    from stretto.live.ahead import WorkerAhead

    try:
        ahead = WorkerAhead()
    except OSError:  # the worker that is asked for later says why
        return executor_factory(asked.executor_kind)
    stack.callback(ahead.close)
    return ahead.executor


def _import_what_serves() -> None:
    """It takes long, and the loop answers meanwhile."""
    import stretto.live.service  # noqa: F401


def _repository(reference: str) -> Repository:
    from stretto.repository.read import read_repository

    return read_repository(reference)


class _Stop:
    """The first signal asks; a later one insists. Two at once are one: a shell and its child may both pass it on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, asked: asyncio.Event | None = None):
        self.asked = asked or asyncio.Event()
        self.is_graceful = False  # it was not a person who waits
        self.service: Service | None = None
        self._loop = loop
        self._asked_s = 0.0

    async def unless_asked(self, work: Awaitable[T]) -> T | None:
        """What the work brings; None where the signal comes first."""
        task, asked = asyncio.ensure_future(work), asyncio.ensure_future(self.asked.wait())
        done, _ = await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if task in done:
            return task.result()
        task.cancel()
        return None

    def signalled(self, is_graceful: bool = False) -> None:
        if not self.asked.is_set():
            self.is_graceful = is_graceful
            self._asked_s = self._loop.time()
            self.asked.set()
        elif self._loop.time() - self._asked_s > INSIST_S:
            log.warning("told twice; ending at once")
            if self.service is not None:
                self.service.engine.crew.kill()
            logging.shutdown()
            os._exit(1)  # whatever else would wait for something


def run(options: ServeOptions, console: Console, reread: Reread | None = None) -> bool:
    """`serve` in an event loop of its own, uvloop's where it is there."""
    sys.setswitchinterval(SWITCH_S)
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) <= options.service.worker_count:
        # The loop has no core of its own. A request that comes shall not interrupt the batch that runs there: what
        # comes in a few milliseconds is then read together, and neither loses its caches to the other every time.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    return in_own_loop(serve(options, console, reread))


def in_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """uvloop's where it is there."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        from asyncio import new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)
