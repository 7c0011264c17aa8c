"""Sub-clusters, live: a load that moves has models of the zoo change their workers, and nobody notices."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from stretto.core.outcome import Outcome
from stretto.dispatch.decisions import Load
from stretto.live.crew import Factory
from stretto.live.generation import Generation
from stretto.live.loads import Loads
from stretto.live.options import ServiceOptions
from stretto.live.processes import ProcessExecutor
from stretto.live.recorder import Journal, recording
from stretto.live.service import Service
from stretto.live.threads import ThreadExecutor
from stretto.repository.read import read_repository, zoo_folder
from stretto.sim.ports import simulator_ports
from stretto.sim.replay import replay
from tests.live.real import Awaited, asked, conserved, sample, until, within

NAMES = ("one", "two", "three", "four", "five", "six")
WORKERS = 4
FACTORIES = [
    pytest.param(ThreadExecutor, id="thread"),
    pytest.param(
        ProcessExecutor,
        id="process",
        marks=pytest.mark.skipif(sys.platform != "linux", reason="worker processes share memory as Linux has it"),
    ),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Six applications, each with one trained model of the zoo."""
    source = zoo_folder() / "mnist"
    for name in NAMES:
        shutil.copytree(source, tmp_path / "models" / name, ignore=shutil.ignore_patterns("variants", "judged"))
        shutil.copytree(source / "variants" / "cnn", tmp_path / "models" / name / "variants" / "cnn")
    return tmp_path / "models"


@asynccontextmanager
async def service_of(root: Path, factory: Factory, journal: Journal) -> AsyncIterator[Service]:
    """Workers with room for four models, in two sub-clusters that follow the load each second."""
    repository = read_repository(root)
    model = repository.deployment(1)[0].variants[0]
    room = 4 * model.memory_bytes + model.dynamic_memory_bytes
    options = ServiceOptions(
        str(root),
        workers=WORKERS,
        worker_memory_bytes=room,
        planner="symphony_eager",
        planner_options={"sub_clusters": 2, "epoch_s": 1, "max_moves": 1},
        replan_s=0.1,
        reload_s=0,
        is_fresh=True,
    )
    service = Service(options, repository, factory, journal, simulator=simulator_ports())
    await service.start()
    try:
        await until(lambda: service.engine.crew.ready_count == WORKERS)
        yield service
    finally:
        await service.stop()


def holders(service: Service) -> dict[str, list[int]]:
    """The workers that could answer each application now."""
    dispatcher = service.engine.generation.dispatcher
    return {
        lane.name: [worker for worker in lane.workers if number in dispatcher.resident(worker)]
        for number, lane in enumerate(dispatcher.plan.lanes)
    }


def holding(service: Service, application: str) -> list[int]:
    """The workers that have its model in memory, whether or not they serve it."""
    generation = service.engine.generation
    number = generation.deployment.first_variant[generation.numbers[application]]
    return [worker for worker in range(WORKERS) if number in generation.dispatcher.resident(worker)]


def loading(service: Service) -> int:
    return int((service.engine.generation.dispatcher.memory["workers"]["arriving"] >= 0).sum())


def parts(service: Service) -> dict[str, tuple[int, ...]]:
    """As the planner made them; an application on trial has one worker alone."""
    return {lane.name: lane.workers for lane in service.engine.generation.in_force.made.lanes}


@pytest.mark.parametrize("factory", FACTORIES)
def test_models_follow_the_load_one_worker_at_a_time(
    root: Path, factory: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    image = sample("mnist", 1)

    async def work() -> None:
        async with service_of(root, factory, journal) as service:
            assert all(holders(service).values()) and not loading(service), "workers begin as planned"
            before = parts(service)
            together = [name for name in NAMES if set(before[name]) == set(before["one"])]
            assert len(together) == 3
            # Workers have room for one more than they need. What the others hold by chance could move without a load.
            busy = [name for name in together if not set(holding(service, name)) - set(before[name])]
            assert len(busy) == 2
            sent: list[Awaited] = []
            at_once: list[int] = []

            def began(loads: Loads, generation: Generation, load: Load) -> None:
                at_once.append(loading(service))
                begin(loads, generation, load)

            begin = Loads.begin
            monkeypatch.setattr(Loads, "begin", began)

            async def ask() -> None:
                """A burst of each, those that are busy five times as often."""
                for name in NAMES:
                    for _ in range(5 if name in busy else 1):
                        sent.append(asked(service.engine, image, name))
                await asyncio.sleep(0.02)
                assert all(holders(service).values()), "an application was left without a worker"

            while parts(service) == before:
                await ask()
            while True:  # until the change is over
                await ask()
                if not loading(service) and len(set(parts(service).values())) == 2:
                    break
            assert any(set(parts(service)[name]) != set(before[name]) for name in busy)
            outcomes = [(await request).outcome for request in sent]
            assert set(outcomes) == {Outcome.ON_TIME}
            assert at_once and max(at_once) == 1
            answer = await asked(service.engine, image, together[0])
            assert np.isfinite(answer.answers).all()
            assert conserved(service.engine)

    with recording(tmp_path / "events.jsonl") as journal:
        within(120, work)
    result = replay(tmp_path / "events.jsonl")
    assert result.is_identical, result.differences


def test_a_change_of_the_repository_and_further_workers_leave_nobody_out(root: Path, tmp_path: Path) -> None:
    image = sample("mnist", 1)

    async def work() -> None:
        async with service_of(root, ThreadExecutor, Journal()) as service:
            before = parts(service)
            shutil.copytree(root / "one", root / "seven")
            asking = asyncio.create_task(_asked_until(service, image, lambda: "seven" in service.files))
            await service.changes.take_up(read_repository(root))
            assert set(await asking) == {Outcome.ON_TIME}
            await until(lambda: all(holders(service).values()))
            assert {name: crew for name, crew in parts(service).items() if name in before} == before
            assert (await asked(service.engine, image, "seven")).outcome is Outcome.ON_TIME
            await service.changes.add_workers("cpu*1")
            asking = asyncio.create_task(_asked_until(service, image, lambda: service.engine.crew.ready_count == 5))
            assert set(await asking) == {Outcome.ON_TIME}
            await until(lambda: {worker for crew in parts(service).values() for worker in crew} == set(range(5)))
            assert conserved(service.engine)

    within(120, work)


async def _asked_until(service: Service, image: np.ndarray, is_over: Callable[[], bool]) -> list[Outcome]:
    """Queries of all applications until then, and how they ended."""
    sent: list[Awaited] = []
    while not is_over() or not sent:
        sent += [asked(service.engine, image, name) for name in NAMES]
        await asyncio.sleep(0.01)
    return [outcome for outcome in [(await request).outcome for request in sent] if outcome is not None]
