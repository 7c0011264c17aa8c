"""A real service and its listeners, inside the process of the fuzz: engine, dispatcher and a worker thread."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz.corpus import IMAGES, ROWS
from benchmarks.small_models import write_application
from stretto.api.bounds import rehearse_bounds
from stretto.api.limits import Limits
from stretto.api.plane import Plane
from stretto.api.server import Listen, Listeners
from stretto.live.executors import executor_factory
from stretto.live.options import ServiceOptions
from stretto.live.rehearsal import rehearse
from stretto.live.service import Service
from stretto.repository.read import read_repository, zoo_folder

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Target:
    """Where to send, and what to look at afterwards."""

    service: Service
    plane: Plane
    listeners: Listeners

    def address(self, name: str) -> tuple[str, int]:
        return self.listeners.addresses[name]

    def missing(self) -> int:
        """Queries in no count: submitted, and neither ended nor waiting nor running."""
        engine = self.service.engine
        telemetry = engine.generation.dispatcher.telemetry(engine.clock())
        totals = engine.books.totals(engine.generations()).values()
        without_end = sum(int(submitted) - int(outcomes.sum()) for submitted, outcomes in totals)
        return without_end - int(telemetry.lane_lengths.sum()) - telemetry.running

    async def calm(self) -> bool:
        """Whether every request had its end within the patience that a fuzz has."""
        end = time.monotonic() + PATIENCE_S
        while self.plane.open_requests or self.service.engine.waiting:
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.001)
        return True


def fuzzed_repository(folder: Path) -> Path:
    """Rows of four numbers, answered by a callable; and images of several sizes and encodings."""
    kind = read_repository(f"zoo:{IMAGES}").kind_in_use()
    write_application(folder, ROWS, kind=kind, slo_ms=20_000.0)
    shutil.copytree(zoo_folder() / IMAGES, folder / IMAGES)
    return folder


@contextlib.asynccontextmanager
async def target() -> AsyncIterator[Target]:
    rehearse()
    rehearse_bounds()
    with tempfile.TemporaryDirectory() as folder:
        repository = read_repository(fuzzed_repository(Path(folder)))
        options = ServiceOptions(
            folder, workers=1, reload_s=0, hang_s=2 * PATIENCE_S, only=("only", "px08"), planner="priced"
        )
        service = Service(options, repository, executor_factory("thread"))
        limits = Limits()
        plane = Plane(service, limits)
        listeners = Listeners(
            plane, Listen(http_port=0, grpc_port=0, management_port=None, management_grpc_port=None, limits=limits)
        )
        await service.start()
        await listeners.start()
        try:
            end = time.monotonic() + PATIENCE_S
            while not service.is_ready():
                assert time.monotonic() < end, "the server does not become ready"
                await asyncio.sleep(0.01)
            yield Target(service, plane, listeners)
        finally:
            await listeners.stop()
            await service.stop()
