"""A repository on disk, served: starting, changes without a pause, unload and load, drain and the end."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plan import Plan
from stretto.core.view import View
from stretto.live.crew import Factory
from stretto.live.options import ServiceOptions
from stretto.live.quarantine import Fault, label_of
from stretto.live.recorder import Journal
from stretto.live.requests import NoSuchApplication, NoSuchVariant, Request
from stretto.live.service import Service
from stretto.live.snapshots import snapshot
from stretto.live.state import State
from stretto.live.threads import ThreadExecutor
from stretto.repository import reread
from stretto.repository.read import read_repository, zoo_folder
from stretto.repository.signature import signature
from stretto.sim.ports import simulator_ports
from tests.live.real import Awaited, asked, conserved, sample, until, within
from tests.repository.build import APP, KIND, Built, build

ROWS = np.array([[[0.1, 0.2, 0.3, 0.4]]], np.float32)
RELOAD_S = 0.05


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return build(tmp_path / "models")


@asynccontextmanager
async def service_of(
    root: Path | str,
    *,
    factory: Factory = ThreadExecutor,
    is_ready: bool = True,
    journal: Journal | None = None,
    **options: Any,
) -> AsyncIterator[Service]:
    chosen = ServiceOptions(str(root), **({"workers": 1, "reload_s": RELOAD_S, "kind": KIND} | options))
    service = Service(chosen, read_repository(chosen.repository), factory, journal=journal, simulator=simulator_ports())
    await service.start()
    try:
        if is_ready:
            await until(service.is_ready)
        yield service
    finally:
        await service.stop()
        assert service.engine.waiting == 0 and service.state is State.STOPPED


def ask(service: Service, application: str = "rows", inputs: np.ndarray = ROWS, **wish: Any) -> Awaited:
    return asked(service.engine, inputs, application, **wish)


def variants(service: Service, application: str = "rows") -> set[str]:
    generation = service.engine.generation
    number = generation.numbers.get(application)
    return set() if number is None else {generation.names[v] for v in generation.deployment.variants_of(number)}


def test_what_is_removed_is_known_until_it_is_not_served_any_more(built: Built) -> None:
    """Front ends are told of all that is served, at any moment: between the two a traceback was all that was told."""
    shutil.copytree(built.root / "rows", built.root / "other")

    async def work() -> None:
        async with service_of(built.root) as service:
            assert service.is_ready("other", "good")
            shutil.rmtree(built.root / "other")
            moments = 0
            while "other" in service.files:
                service.is_ready("other", "good")
                moments += "other" not in service.offer.known
                await asyncio.sleep(0)
            assert moments and service.is_ready("rows")
            with pytest.raises(KeyError):
                service.is_ready("other")

    within(60, work)


def test_it_begins_serves_and_drains(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root, is_ready=False) as service:
            assert not service.is_ready() and service.state is State.SERVING
            await until(service.is_ready)
            assert service.is_ready("rows") and service.is_ready("rows", "good")
            for name, variant in (("none", ""), ("rows", "none")):
                with pytest.raises(KeyError):
                    service.is_ready(name, variant)
            request = await ask(service)
            assert request.outcome is Outcome.ON_TIME and request.variants == ["good"]
            waiting = [ask(service) for _ in range(20)]
            assert await service.drain(20) is True
            assert service.state is State.DRAINING and not service.is_ready() and not service.is_ready("rows")
            assert {(await each).outcome for each in waiting} <= {Outcome.ON_TIME, Outcome.DROPPED_OVERLOAD}
            assert conserved(service.engine)

    within(60, work)


def test_two_who_look_do_not_disturb_each_other(built: Built) -> None:
    """Each look used to be what had happened since the last one, whoever had looked."""

    async def work() -> None:
        async with service_of(built.root) as service:
            for _ in range(3):
                await ask(service)
            first, second = snapshot(service), snapshot(service)
            (seen,), (seen_again,) = first.applications, second.applications
            assert sum(seen.outcomes) == seen.submitted == 3 and first.variants == second.variants
            assert (seen.outcomes, seen.stages, seen.batch_sizes) == (
                seen_again.outcomes,
                seen_again.stages,
                seen_again.batch_sizes,
            )
            await ask(service)
            assert snapshot(service).applications[0].submitted == 4 and first.applications[0].submitted == 3
            with pytest.raises(ValueError, match="read-only"):
                first.telemetry.outcomes[0] = 0

    within(60, work)


def test_a_drain_that_does_not_end_in_time(built: Built) -> None:
    ended: list[Request] = []

    async def work() -> None:
        async with service_of(built.root, factory=Silent, is_ready=False) as service:
            service.engine.submit(Request("rows", ROWS, 60_000_000_000, ended.append))
            assert await service.drain(0.05) is False
        assert [request.outcome for request in ended] == [Outcome.FAILED]

    within(60, work)


class Silent(ThreadExecutor):
    """A worker that never gets ready."""

    def start(self, specs: object) -> None:
        pass


@pytest.mark.parametrize("workers", [1, 2])
def test_variants_come_go_and_change_under_load(built: Built, workers: int) -> None:
    async def work() -> None:
        async with service_of(built.root, workers=workers) as service:
            sent: list[Awaited] = []
            going = True

            async def load() -> None:
                while going:
                    sent.append(ask(service))
                    await asyncio.sleep(0.002)

            loading = asyncio.create_task(load())
            built.add("best", 0.95, latency_ms=1.0, seed=2)
            await until(lambda: variants(service) == {"fast", "good", "best"})
            assert (await ask(service)).variants == ["best"]
            shutil.rmtree(built.variant("best"))
            await until(lambda: variants(service) == {"fast", "good"})
            built.metrics("fast", accuracy=0.99)
            await until(lambda: max(service.engine.generation.accuracy) == 0.99)
            assert (await ask(service, pinned="fast")).accuracy_sum == 0.99
            before = (await ask(service, pinned="fast")).answers
            old_key = next(spec.key for spec in service.engine.generation.served.specs if "/fast@" in spec.key)
            built.add("fast", 0.99, seed=9)
            await until(lambda: all(spec.key != old_key for spec in service.engine.generation.served.specs))
            after = (await ask(service, pinned="fast")).answers
            assert before is not None and after is not None and not np.allclose(before, after)
            going = False
            await loading
            outcomes = [(await each).outcome for each in sent]
            lost = {Outcome.FAILED, Outcome.DROPPED_CANCELLED}
            assert not lost & set(outcomes) and outcomes.count(Outcome.ON_TIME) > len(outcomes) / 2
            await until(lambda: len(service.engine.generations()) == 1)
            assert conserved(service.engine)
            assert service.engine.crew.members[0].held == {s.key for s in service.engine.generation.served.specs}

    within(60, work)


def test_a_change_that_cannot_be_read_leaves_all_as_it_was(built: Built, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with service_of(built.root) as service:
            generation = service.engine.generation
            for spoil in (lambda: built.write_app("slo_ms = -3"), lambda: shutil.rmtree(built.root)):
                caplog.clear()
                spoil()
                await until(lambda: "served on" in caplog.text)
                assert service.engine.generation is generation and service.is_ready()
                assert (await ask(service)).outcome is Outcome.ON_TIME
            mended = build(built.root)
            mended.write_app(APP.replace("slo_ms = 50", "slo_ms = 80"))
            await until(lambda: service.engine.generation.deployment.applications[0].slo_ns == 80_000_000)
            assert (await ask(service)).outcome is Outcome.ON_TIME

    within(60, work)


def spoiled(built: Built, name: str, seed: int = 5) -> None:
    """A model whose file can be read, but which no runtime can load."""
    import onnx

    built.add(name, 0.97, seed=seed)
    path = built.variant(name) / "model.onnx"
    model = onnx.load(str(path))
    model.graph.node[1].op_type = "NoSuchOperator"
    onnx.save(model, str(path))
    built.profile(name)


def test_loading_what_is_served_already_changes_nothing(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every load made a new deployment: what had been judged of the old one was lost, and queries had to move."""
    monkeypatch.setattr(reread, "SETTLED_NS", 0)

    async def work() -> None:
        async with service_of(built.root, reload_s=0) as service:
            await service.changes.load("rows")  # read for the first time
            before = service.engine.generation
            await service.changes.load("rows")
            assert service.engine.generation is before
            built.metrics("fast", accuracy=0.99)
            await service.changes.load("rows")
            assert service.engine.generation is not before and max(service.engine.generation.accuracy) == 0.99

    within(60, work)


def test_a_model_that_cannot_be_loaded_is_left_out_from_the_start(built: Built) -> None:
    spoiled(built, "bad")

    async def work() -> None:
        async with service_of(built.root, is_ready=False, workers=2) as service:
            early = [ask(service) for _ in range(3)]
            await until(lambda: variants(service) == {"fast", "good"})
            assert {(await each).outcome for each in early} == {Outcome.ON_TIME}  # nobody met the broken one
            assert service.is_ready() and not service.is_ready("rows", "bad")
            assert [label_of(key) for key in service.offer.quarantine.entries] == ["rows/bad"]
            assert (await ask(service)).variants == ["good"]
            with pytest.raises(NoSuchVariant):
                ask(service, pinned="bad")

    within(60, work)


def test_an_application_of_which_nothing_can_be_loaded_is_missed(built: Built) -> None:
    shutil.copytree(built.app, built.root / "other")
    built_other = Broken(built.root)
    shutil.rmtree(built_other.app / "variants")
    spoiled(built_other, "bad")

    async def work() -> None:
        async with service_of(built.root, is_ready=False) as service:
            await until(lambda: set(service.engine.generation.numbers) == {"rows"})
            assert service.offer.missing(service.engine.generation.served) == ["other"]
            await until(service.is_ready)
            service.options = replace(service.options, ready_all=True)
            assert not service.is_ready()
            assert service.is_ready("rows") and not service.is_ready("other")
            assert (await ask(service)).outcome is Outcome.ON_TIME

    within(60, work)


class Broken(Built):
    @property
    def app(self) -> Path:
        return self.root / "other"


def test_a_model_that_cannot_be_loaded_later_leaves_the_others_serving(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root) as service:
            spoiled(built, "good")
            await until(lambda: variants(service) == {"fast"})
            assert (await ask(service)).variants == ["fast"]
            built.add("good", 0.9, seed=1)
            await until(lambda: variants(service) == {"fast", "good"})
            assert (
                service.offer.quarantine.entries == {}
                and (await ask(service, pinned="good")).outcome is Outcome.ON_TIME
            )

    within(60, work)


def test_applications_are_unloaded_and_loaded(built: Built) -> None:
    shutil.copytree(built.app, built.root / "other")

    async def work() -> None:
        async with service_of(built.root, reload_s=0, ready_all=True) as service:
            assert set(service.files) == {"rows", "other"}
            waiting = [ask(service, "other") for _ in range(5)]
            await service.changes.unload("other")
            assert {(await each).outcome for each in waiting} == {Outcome.ON_TIME}
            assert set(service.files) == {"rows"} and set(service.offer.known) == {"rows", "other"}
            assert service.is_ready() and service.is_ready("rows") and not service.is_ready("other")
            with pytest.raises(KeyError):
                ask(service, "other")
            await service.changes.unload("other")
            with pytest.raises(StrettoError, match="the only application"):
                await service.changes.unload("rows")
            with pytest.raises(NoSuchApplication):
                await service.changes.unload("none")
            with pytest.raises(StrettoError):
                await service.changes.load("none")
            await service.changes.load("other")
            assert service.is_ready("other") and (await ask(service, "other")).outcome is Outcome.ON_TIME
            shutil.rmtree(built.app)
            with pytest.raises(StrettoError):
                await service.changes.load("rows")
            assert (await ask(service)).outcome is Outcome.ON_TIME
            assert conserved(service.engine)

    within(60, work)


def test_an_application_whose_folder_is_gone_is_unloaded(built: Built) -> None:
    """Another could not be unloaded either: what was served could not be read again."""
    shutil.copytree(built.app, built.root / "other")
    shutil.copytree(built.app, built.root / "third")

    async def work() -> None:
        async with service_of(built.root, reload_s=0, ready_all=True) as service:
            shutil.rmtree(built.root / "other")
            await service.changes.unload("other")
            assert set(service.files) == {"rows", "third"} and (await ask(service)).outcome is Outcome.ON_TIME
            shutil.rmtree(built.root / "third")
            shutil.copytree(built.app, built.root / "other")
            await service.changes.load("other")
            assert set(service.files) == set(service.offer.known) == {"rows", "other"}
            shutil.copytree(built.app, built.root / "third")
            await service.changes.load("third")
            shutil.rmtree(built.root / "third")
            await service.changes.unload("other")
            assert set(service.files) == {"rows"} and (await ask(service)).outcome is Outcome.ON_TIME
            assert conserved(service.engine)

    within(60, work)


def test_an_application_that_is_read_anew_may_have_changed(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root, reload_s=0) as service:
            built.add("best", 0.95, seed=2)
            assert variants(service) == {"fast", "good"}
            await service.changes.load("rows")
            assert variants(service) == {"fast", "good", "best"}

    within(60, work)


def test_only_some_variants(built: Built) -> None:
    async def work() -> None:
        for only in (("fast",), ("rows/fast",)):
            async with service_of(built.root, only=only) as service:
                assert variants(service) == {"fast"}
                assert (await ask(service)).variants == ["fast"]
        shutil.copytree(built.app, built.root / "other")
        async with service_of(built.root, only=("rows/fast",)) as service:  # ready, though nothing of the other is
            assert set(service.files) == {"rows"}
            assert not service.is_ready("other") and not service.is_ready("rows", "good")
        with pytest.raises(StrettoError, match="has no variant 'none'; it has"):
            async with service_of(built.root, only=("fast", "none")):
                pass

    within(60, work)


def test_the_planner_is_told_the_load_when_the_repository_changes(built: Built) -> None:
    """It used to plan for no load at all until the next measurement."""
    views: list[View] = []

    async def work() -> None:
        async with service_of(built.root, reload_s=0) as service:
            planner: Callable[[View], Plan] = service.session.planner

            def watched(view: View) -> Plan:
                views.append(view)
                return planner(view)

            service.session.planner = watched
            for _ in range(40):
                await ask(service)
            await service.changes.load("rows")
            assert views and views[-1].rates is not None and float(views[-1].rates[0]) > 10

    within(60, work)


def test_a_change_whose_plan_failed_is_tried_again(built: Built, caplog: pytest.LogCaptureFixture) -> None:
    """It was lost: the next look saw no change."""

    async def work() -> None:
        async with service_of(built.root) as service:
            planner: Callable[[View], Plan] = service.session.planner
            failed = 0

            def unsure(view: View) -> Plan:
                nonlocal failed
                if failed < 3 and len(view.deployment.variants) == 3:
                    failed += 1
                    raise ZeroDivisionError("not the first times")
                return planner(view)

            service.session.planner = unsure
            generation = service.engine.generation
            built.add("best", 0.95, latency_ms=1.0, seed=2)
            for variant in ("fast", "good"):
                built.add(variant, 0.6, seed=7)  # other models than are served
            await until(lambda: failed >= 2)
            assert service.engine.generation is generation and service.is_ready()
            assert (await ask(service)).outcome is Outcome.ON_TIME
            await until(lambda: variants(service) == {"fast", "good", "best"})
            assert failed == 3 and (await ask(service)).variants == ["best"]
            errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
            assert errors.count("the change could not be taken up") == 1
            before = service.engine.generation
            await asyncio.sleep(3 * RELOAD_S)
            assert service.engine.generation is before  # it is taken up once

    within(60, work)


def test_a_model_that_passed_while_the_planner_failed_is_served(built: Built) -> None:
    """Also where it took long on probation, so that the repository had been taken up without it."""

    async def work() -> None:
        async with service_of(built.root, reload_s=0) as service:
            planner: Callable[[View], Plan] = service.session.planner
            failed = 0

            def unsure(view: View) -> Plan:
                nonlocal failed
                if not failed and len(view.deployment.variants) == 2:
                    failed += 1
                    raise ZeroDivisionError("not the first time")
                return planner(view)

            key = next(spec.key for spec in service.engine.generation.served.specs if "/good@" in spec.key)
            service.admission.set_aside(key, Fault.LOAD_FAILED, "for this test")
            service.repairs.look()
            await until(lambda: variants(service) == {"fast"})
            service.session.planner = unsure
            service.admission.try_again([key])
            await until(lambda: variants(service) == {"fast", "good"})
            assert failed == 1

    within(60, work)


def test_a_copy_of_the_zoo_and_a_new_application_in_it(tmp_path: Path) -> None:
    root = tmp_path / "models"
    shutil.copytree(zoo_folder() / "mnist", root / "mnist")
    images = sample("mnist", 4)

    async def work() -> None:
        async with service_of(root, kind=None) as service:
            everything = variants(service, "mnist")
            assert len(everything) == 4
            shutil.rmtree(root / "mnist" / "variants" / "resnet")
            await until(lambda: variants(service, "mnist") == everything - {"resnet"})
            request = await ask(service, "mnist", images)
            assert request.outcome is Outcome.ON_TIME and "resnet" not in request.variants
            shutil.copytree(zoo_folder() / "fashion", tmp_path / "beside")
            (tmp_path / "beside").rename(root / "fashion")
            await until(lambda: "fashion" in service.engine.generation.numbers)
            assert service.is_ready("fashion") and set(service.files) == {"mnist", "fashion"}
            assert (await ask(service, "fashion", sample("fashion", 2), pinned="linear")).outcome is Outcome.ON_TIME
            shutil.rmtree(root / "mnist")
            await until(lambda: set(service.engine.generation.numbers) == {"fashion"})
            with pytest.raises(KeyError):
                ask(service, "mnist", images)

    within(90, work)


def test_signatures_change_with_any_file(built: Built) -> None:
    repository = read_repository(built.root)
    seen = {signature(repository)}
    assert signature(repository) in seen
    for change in (
        lambda: built.metrics("fast", accuracy=0.71),
        lambda: (built.app / "notes.txt").write_text("x"),
        lambda: (built.app / "notes.txt").rename(built.app / "words.txt"),
        lambda: (built.app / "words.txt").unlink(),
    ):
        change()
        seen.add(signature(repository))
    assert len(seen) == 4  # in the end it is as after the first change


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"executor": "cloud"}, "there is no executor 'cloud'; there are thread, process"),
        ({"workers": -1}, "workers is -1"),
        ({"workers": 2000}, "workers is 2000"),
        ({"threads": 0}, "threads is 0"),
        ({"hang_s": 0.0}, "hang_s must be above 0"),
        ({"hang_s": float("nan")}, "hang_s must be above 0"),
        ({"reload_s": -1.0}, "reload_s must not be negative"),
        ({"reload_s": float("nan")}, "reload_s must not be negative"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(StrettoError, match=words):
        ServiceOptions("zoo", **options)


@pytest.mark.parametrize("planner", ["shared_queue", "nexus", "ramsis", "symphony"])
def test_workers_are_added_while_serving(built: Built, planner: str) -> None:
    """Regression: readings of the smaller fleet did not fit the larger one, and planning stopped for good."""

    async def work() -> None:
        async with service_of(built.root, workers=2, planner=planner, replan_s=0.02) as service:
            for _ in range(10):
                await ask(service, slack_ms=300)
            await service.changes.add_workers(f"cpu*2,kind={KIND}")
            await until(lambda: service.engine.crew.ready_count == 4)
            generation = service.engine.generation
            await until(lambda: any({2, 3} & set(lane.workers) for lane in generation.dispatcher.plan.lanes))
            reading = generation.dispatcher.telemetry(service.engine.clock())
            assert reading.worker_alive.tolist() == [True] * 4 and len(service.engine.generations()) == 1
            assert reading.submitted[0] == 10  # what was counted is not lost
            assert all([(await ask(service, slack_ms=300)).outcome is not None for _ in range(20)])
            assert not service.replanner._is_failing
            with pytest.raises(StrettoError, match="there is no device 'tpu'"):
                await service.changes.add_workers("tpu")
            assert len(service.engine.generation.deployment.workers) == 4
            await service.changes.load("rows")  # a new generation on the larger fleet
            assert (await ask(service, slack_ms=300)).outcome is not None

    within(60, work)


def test_workers_by_default_are_the_cores_but_one() -> None:
    assert ServiceOptions("zoo").worker_count >= 1
    assert replace(ServiceOptions("zoo"), workers=3).worker_count == 3
