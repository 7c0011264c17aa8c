"""Engines with real workers and real models, for tests with `asyncio.run`. Deadlines are generous."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stretto.backends.model import Array, TensorSpec
from stretto.backends.source import ModelSource
from stretto.core.application import Application, Variant
from stretto.core.conditions import Conditions
from stretto.core.deployment import Deployment
from stretto.core.plan import Plan
from stretto.core.profile import LatencyProfile
from stretto.core.worker import workers
from stretto.live.crew import Factory
from stretto.live.engine import Engine
from stretto.live.fleet import WorkerSpec
from stretto.live.generation import Served, served
from stretto.live.requests import Request
from stretto.live.shelf import ModelSpec
from stretto.live.threads import ThreadExecutor
from stretto.planning.session import InForce, Session
from stretto.repository.read import read_repository
from tests.live.scripted import MS, plan_for

LONG_MS = 60_000.0
ROOT = Path(__file__).resolve().parents[2]


def within(seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a test's coroutine; one that hangs is ended."""

    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await work()

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    """Looks again and again; `within` bounds it."""
    while not condition():
        await asyncio.sleep(0.002)


def of_zoo(name: str, crew: int = 1) -> Served:
    """An application of the zoo, with so many workers; its profiles are those of whatever machine it was made on."""
    repository = read_repository(f"zoo:{name}")
    deployment, _ = repository.deployment(crew)
    return served(deployment, {files.name: files for files in repository.applications}, (WorkerSpec(count=crew),))


def sample(name: str, count: int = 8) -> Array:
    files = read_repository(f"zoo:{name}").applications[0]
    with np.load(files.folder / "sample.npz") as stored:
        return stored["inputs"][:count].astype(np.float32) / np.float32(255)


def of_models(crew: int = 1, **sources: ModelSource) -> Served:
    """One application, app, with a variant for each of these models, the most accurate last."""
    profile = LatencyProfile.linear(0.1, 1.0, 8)
    variants = tuple(Variant(name, 0.5 + place / 10, (profile,)) for place, name in enumerate(sources))
    deployment = Deployment((Application("app", 10_000 * MS, variants),), workers(crew))
    specs = []
    for name, source in sources.items():
        (takes,), (gives,) = source.inputs, source.outputs
        specs.append(
            ModelSpec(f"app/{name}@1", source, takes.name, takes.dtype, whole(takes), *_output(gives), max_batch=8)
        )
    return Served(deployment, (), tuple(specs))


def _output(gives: TensorSpec) -> tuple[str, str, tuple[int, ...]]:
    return gives.name, gives.dtype, whole(gives)


def whole(spec: TensorSpec) -> tuple[int, ...]:
    assert spec.is_fixed
    return tuple(size or 0 for size in spec.shape)


def code(name: str, size: int = 2) -> ModelSource:
    """A model that is a function in tests/live/models.py."""
    tensors = (TensorSpec("x", "float32", (size,)),), (TensorSpec("y", "float32", (size,)),)
    return ModelSource("callable", code=f"tests.live.models:{name}", inputs=tensors[0], outputs=tensors[1])


@asynccontextmanager
async def serving(
    what: Served, factory: Factory = ThreadExecutor, plan: Plan | None = None, *, ready: int | None = None, **more: Any
) -> AsyncIterator[Engine]:
    """An engine whose workers are there."""

    session = Session(lambda view: plan or plan_for(what))
    engine = Engine(what, session, factory, **more)
    engine.start()
    try:
        await until(lambda: engine.crew.ready_count == (len(what.deployment.workers) if ready is None else ready))
        yield engine
    finally:
        await engine.stop()
        assert engine.waiting == 0


def planned(engine: Engine, what: Served, plan: Plan) -> InForce:
    """A plan, completed as the engine's session does it."""
    return Session(lambda view: plan).first(what.deployment, engine.clock(), Conditions(delays=engine.delays.delays))


def asked(engine: Engine, inputs: Array, application: str = "app", slack_ms: float = LONG_MS, **wish: Any) -> Awaited:
    """Submits at once; await it for the request as it ended."""
    future: asyncio.Future[Request] = asyncio.get_running_loop().create_future()
    request = Request(application, inputs, round(slack_ms * MS), future.set_result, **wish)
    engine.submit(request)
    return Awaited(request, future)


class Awaited:
    def __init__(self, request: Request, future: Awaitable[Request]):
        self.request = request
        self._future = future

    def __await__(self) -> Any:
        return self._future.__await__()


def conserved(engine: Engine) -> bool:
    """Submitted = outcomes + what is open, by application."""
    open_ones = sum(len(generation.queries) for generation in engine.generations())
    totals = engine.books.totals(engine.generations())
    return sum(submitted - int(outcomes.sum()) for submitted, outcomes in totals.values()) == open_ones
