"""Serves a repository until it is told to stop: what `stretto serve` does after its options are read."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from stretto.api.bounds import rehearse_bounds
from stretto.api.server import Listen, Listeners
from stretto.api.tracing import tracer_of
from stretto.dispatch.dispatcher import Dispatcher
from stretto.live.engine import MakeDispatcher
from stretto.live.executors import executor_factory
from stretto.live.rehearsal import rehearse
from stretto.live.service import Service, ServiceOptions
from stretto.repository.read import read_repository

log = logging.getLogger("stretto.api")

TELL_AFTER_S = 4.0
INSIST_S = 1.0
STOP_S = 10.0  # for workers to end by themselves
GC_THRESHOLD = 20_000
SWITCH_S = 0.0005  # how long a thread may keep Python's lock while another wants it; a worker must not wait 5 ms


@dataclass(frozen=True)
class ServeOptions:
    """All of it."""

    service: ServiceOptions
    listen: Listen = field(default_factory=Listen)
    drain_s: float = 30.0
    traces: bool = False  # OpenTelemetry spans


Started = Callable[[Service, Listeners], None]


async def serve(options: ServeOptions, started: Started, make_dispatcher: MakeDispatcher = Dispatcher) -> bool:
    """Until SIGTERM or SIGINT; a second signal ends it at once. True: every query that was taken in had its end."""
    loop = asyncio.get_running_loop()
    await _prepare()
    repository = await asyncio.to_thread(read_repository, options.service.repository)
    service = Service(options.service, repository, executor_factory(options.service.executor), make_dispatcher)
    listeners = Listeners(service, options.listen)
    if options.traces:
        listeners.plane.trace = tracer_of()
    stop = _Stop(loop, service)
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.signalled)
    patience_s = STOP_S
    await service.start()
    # What is there by now stays: the collector need not look at it again, nor run for every few requests.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    try:
        await listeners.start()
        started(service, listeners)
        await stop.asked.wait()
        log.info("going down: nothing new is taken, what waits is finished")
        is_clean = await service.drain(options.drain_s)
        if not is_clean:
            log.warning("%d queries had not ended after %.0f s", service.engine.waiting, options.drain_s)
            service.engine.end_all()  # while their clients can still be told
            patience_s = 0.0
    finally:
        await listeners.stop()
        await service.stop(patience_s)
    return is_clean


async def _prepare() -> None:
    """Compiled code is loaded, or made on the first start of all; who waits is told why."""

    def compile_all() -> None:
        rehearse()
        rehearse_bounds()

    work = asyncio.ensure_future(asyncio.to_thread(compile_all))
    done, _ = await asyncio.wait({work}, timeout=TELL_AFTER_S)
    if not done:
        log.warning("compiling the dispatcher, which the first start on a machine needs; it takes about a minute")
    await work


class _Stop:
    """The first signal asks; a later one insists. Two at once are one: a shell and its child may both pass it on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, service: Service):
        self.asked = asyncio.Event()
        self._loop = loop
        self._service = service
        self._asked_s = 0.0

    def signalled(self) -> None:
        if not self.asked.is_set():
            self._asked_s = self._loop.time()
            self.asked.set()
        elif self._loop.time() - self._asked_s > INSIST_S:
            log.warning("told twice; ending at once")
            self._service.engine.crew.kill()
            logging.shutdown()
            os._exit(1)  # whatever else would wait for something


def run(options: ServeOptions, started: Started, make_dispatcher: MakeDispatcher = Dispatcher) -> bool:
    """`serve` in an event loop of its own, uvloop's where it is there."""
    sys.setswitchinterval(SWITCH_S)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serve(options, started, make_dispatcher))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(options, started, make_dispatcher))
