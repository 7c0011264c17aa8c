"""Models that workers load beside their work: real threads and processes serve on meanwhile; logs replay the same."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stretto.backends.model import Array
from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import Eager, Fixed, Missing, Plan
from stretto.core.worker import Worker
from stretto.live import crew
from stretto.live.crew import Factory
from stretto.live.engine import Engine
from stretto.live.generation import Served
from stretto.live.processes import ProcessExecutor
from stretto.live.recorder import recording
from stretto.live.threads import ThreadExecutor
from stretto.sim.replay import replay
from tests.live.conftest import Staging
from tests.live.real import ROOT, asked, code, conserved, of_models, planned, until, within
from tests.live.real import serving as really_serving
from tests.live.scripted import MS, Stage, plan_for, serving, variant
from tests.live.test_recorder import kinds_in

LIMIT_S = 90
FACTORIES = [
    pytest.param(ThreadExecutor, id="thread"),
    pytest.param(
        ProcessExecutor,
        id="process",
        marks=pytest.mark.skipif(sys.platform != "linux", reason="worker processes share memory as Linux has it"),
    ),
]


@pytest.fixture(autouse=True)
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def short_of_memory(*names: str, room: int = 2) -> Served:
    """One worker with room for so many models; it begins with the first."""
    served = of_models(**{name.lower(): code(name) for name in names})
    (application,) = served.deployment.applications
    models = tuple(replace(model, memory_bytes=1, load_ns=700 * MS) for model in application.variants)
    worker = Worker("w", memory_bytes=room, resident=(f"app/{models[0].name}",))
    return replace(served, deployment=Deployment((replace(application, variants=models),), (worker,)))


def holding(served: Served, chosen: int, *near: int) -> Plan:
    lanes = plan_for(served, select=Fixed(chosen), release=Eager(1), missing=Missing.STAND_IN)
    return replace(lanes, placement=((chosen,),), prefetch=(near,))


def one(value: float = 1.0) -> Array:
    return np.full((1, 2), value, np.float32)


def holds(engine: Engine, number: int) -> bool:
    return number in engine.generation.dispatcher.resident(0)


@pytest.mark.parametrize("factory", FACTORIES)
def test_the_old_model_answers_until_the_new_one_is_there(factory: Factory) -> None:
    served = short_of_memory("double", "HeavyToLoad")

    async def work() -> None:
        async with really_serving(served, factory, holding(served, 0)) as engine:
            assert (await asked(engine, one())).answers.tolist() == [[2.0, 2.0]]
            engine.adopt(engine.generation, planned(engine, served, holding(served, 1)))
            meanwhile = 0
            while not holds(engine, 1):
                request = await asked(engine, one())
                if not holds(engine, 1):
                    assert request.outcome is Outcome.ON_TIME and request.answers.tolist() == [[2.0, 2.0]]
                    meanwhile += 1
            assert meanwhile > 20, "the worker stood still while it loaded"
            assert (await asked(engine, one())).answers.tolist() == [[4.0, 4.0]]
            assert engine.generation.dispatcher.switches == (0, 1) and conserved(engine)

    within(LIMIT_S, work)


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_prefetched_model_is_there_when_it_is_wanted(factory: Factory) -> None:
    served = short_of_memory("double", "HeavyToLoad")

    async def work() -> None:
        async with really_serving(served, factory, holding(served, 0, 1)) as engine:
            await until(lambda: holds(engine, 1))
            engine.adopt(engine.generation, planned(engine, served, holding(served, 1, 0)))
            assert (await asked(engine, one())).answers.tolist() == [[4.0, 4.0]]
            assert engine.generation.dispatcher.switches == (1, 0)

    within(LIMIT_S, work)


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_model_that_cannot_be_loaded_leaves_the_old_one_answering(factory: Factory) -> None:
    served = short_of_memory("double", "CannotBeLoaded")
    told: dict[str, str] = {}

    def hear(broken: dict[str, str]) -> bool:
        told.update(broken)
        return False

    async def work() -> None:
        async with really_serving(served, factory, holding(served, 0)) as engine:
            engine.on_broken = hear
            engine.adopt(engine.generation, planned(engine, served, holding(served, 1)))
            await until(lambda: bool(told))
            assert (await asked(engine, one())).answers.tolist() == [[2.0, 2.0]]
            assert not holds(engine, 1) and "damaged" in told["app/cannotbeloaded@1"]

    within(LIMIT_S, work)


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_generation_may_follow_while_a_model_is_on_its_way(factory: Factory) -> None:
    """What the new generation starts with is there when it serves, and what it does not want is let go."""
    before = short_of_memory("double", "HeavyToLoad", "fussy")
    after = replace(before, deployment=_beginning_with(before.deployment, "app/fussy", "app/double"))

    async def work() -> None:
        async with really_serving(before, factory, holding(before, 0)) as engine:
            engine.adopt(engine.generation, planned(engine, before, holding(before, 1)))
            engine.succession.replace(after, planned(engine, after, holding(after, 0, 2)))
            assert (await asked(engine, one())).answers.tolist() == [[2.0, 2.0]]
            member = engine.crew.members[0]
            await until(lambda: not member.coming)
            await asyncio.sleep(0)
            assert "app/heavytoload@1" not in member.held
            assert (await asked(engine, one(9.0), pinned="fussy")).answers.tolist() == [[3.0, 3.0]]
            assert conserved(engine)

    within(LIMIT_S, work)


def _beginning_with(deployment: Deployment, *resident: str) -> Deployment:
    return Deployment(deployment.applications, (replace(deployment.workers[0], resident=resident),))


def test_a_load_whose_worker_was_lost_is_begun_again_when_it_is_back(stage: Staging) -> None:
    models = tuple(variant(name, memory_bytes=1, load_ns=50 * MS) for name in ("a", "b", "c"))
    served = serving(*models, memory_bytes=2)
    made = stage(served, replace(plan_for(served), placement=((0,),), prefetch=((1,),)))
    made.prepares = False
    made.adopt(replace(plan_for(served), placement=((0,),), prefetch=((2,),)))
    assert made.prepared == [(0, ["app/c@1"])]
    made.lose()
    made.prepares = True
    made.wait(200)
    assert made.prepared == [(0, ["app/c@1"])] * 2
    assert made.engine.generation.dispatcher.resident(0) == (0, 2)


def test_loads_beside_the_work_are_written_down_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    models = tuple(
        variant(name, 0.5 + place / 10, memory_bytes=1, load_ns=30 * MS) for place, name in enumerate("abcd")
    )
    served = serving(*models, crew=2, memory_bytes=2)
    random = np.random.default_rng(3)
    with recording(path) as journal:
        made = Stage(served, plan_for(served), journal=journal)
        for _ in range(120):
            dice = random.random()
            if dice < 0.5:
                made.request(int(random.integers(1, 3)), float(random.choice([20, 200])))
            elif dice < 0.75 and made.busy():
                made.finish(int(random.choice(made.busy())))
            elif dice < 0.8 and made.busy():
                made.lose(made.busy()[0])
            elif dice < 0.9:
                chosen, near = random.permutation(4)[:2].tolist()
                lanes = plan_for(served, select=Fixed(chosen), missing=Missing.STAND_IN)
                made.adopt(replace(lanes, placement=((chosen,),) * 2, prefetch=((near,),) * 2))
            else:
                made.wait(float(random.choice([1, 40])))
        made.finish_all()
        made.close()
    result = replay(path)
    assert result.is_identical, result.differences
    assert "loaded" in kinds_in(path) and result.submitted > 50
