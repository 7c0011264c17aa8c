"""A service from its options to its start: the repository is read, compiled code loaded, the first plan made."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from stretto.api.serve_options import ServeOptions
from stretto.live.options import ServiceOptions
from stretto.planners.registry import planner_entry

if TYPE_CHECKING:
    from stretto.live.crew import Factory
    from stretto.live.service import Service
    from stretto.repository.repository import Repository

COMPILING = "compiling"
READING = "reading the repository"
COMPILED = 0.9  # of the start
# Pauses grow with what is young or in the middle, by a microsecond for each object and more: of 10,000 connections that
# came just now there are 400,000.
GC_THRESHOLDS = 2_000, 4, 2_000


async def begun_service(
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

        def on_share(share: float) -> None:
            loop.call_soon_threadsafe(progress, COMPILING, COMPILED * share)

        rehearse(on_share, has_fronts=factory is not None or options.front_ends > 1)
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

    backends = {variant.backend for application in repository.applications for variant in application.variants}
    is_torch_on_gpu = "torch" in backends and any(spec.is_gpu for spec in asked.fleet())
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
