"""The engine with thread workers and real models."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from stretto.backends.load import load_model
from stretto.backends.model import TensorSpec
from stretto.backends.source import ModelSource
from stretto.core.outcome import Outcome
from stretto.core.plan import Fixed, MostAccurate
from stretto.live.shelf import NOT_LOADED
from tests.live.real import asked, code, conserved, of_models, of_zoo, planned, sample, serving, until, within
from tests.live.scripted import plan_for

pytest.importorskip("onnx", reason="models for the tests are made with onnx, an extra for development")
from tests.backends.onnx_models import lookup


def expected(what: str, variant: int, rows: np.ndarray) -> np.ndarray:
    """What the model itself says, one row at a time."""
    spec = of_zoo(what).specs[variant]
    model = load_model(spec.source)
    return np.concatenate([np.array(model.run({spec.input: rows[n : n + 1]})[spec.output]) for n in range(len(rows))])


def test_digits_are_answered_as_the_model_itself_does() -> None:
    served = of_zoo("mnist", 2)
    names = [variant.name for variant in served.deployment.variants]
    images = sample("mnist", 12)

    async def work() -> None:
        async with serving(served, plan=plan_for(served, select=Fixed(0))) as engine:
            one = await asked(engine, images[:1], "mnist")
            many = await asked(engine, images, "mnist")
            several = [asked(engine, images[n : n + 1], "mnist") for n in range(8)]
            pinned = [asked(engine, images[:3], "mnist", pinned=name) for name in names]
            for waiting in (*several, *pinned):
                await waiting
            np.testing.assert_allclose(one.answers, expected("mnist", 0, images[:1]), atol=1e-5)
            np.testing.assert_allclose(many.answers, expected("mnist", 0, images), atol=1e-5)
            for number, request in enumerate(several):
                np.testing.assert_allclose(request.request.answers, many.answers[number : number + 1], atol=1e-5)
            for number, request in enumerate(pinned):
                assert request.request.variants == [names[number]]
                np.testing.assert_allclose(request.request.answers, expected("mnist", number, images[:3]), atol=1e-5)
            assert conserved(engine) and engine.waiting == 0

    within(60, work)


def test_an_image_is_fitted_to_a_variant_of_another_size() -> None:
    served = of_zoo("fashion_resolution")
    smallest = next(n for n, v in enumerate(served.deployment.variants) if v.name == "px08")
    images = sample("fashion_resolution", 40)
    with np.load(Path(served.files[0].folder) / "sample.npz") as stored:
        made_small = stored["inputs_px08"][:40].astype(np.float32) / np.float32(255)
    model = load_model(served.specs[smallest].source)
    by_hand = np.array(model.run({served.specs[smallest].input: made_small})[served.specs[smallest].output])

    async def work() -> None:
        async with serving(served) as engine:
            request = await asked(engine, images, "fashion_resolution", pinned="px08")
            assert request.answers is not None
            agreeing = (request.answers.argmax(axis=1) == by_hand.argmax(axis=1)).mean()
            assert agreeing > 0.9  # the stored images are rounded to bytes

    within(60, work)


def test_the_most_accurate_that_fits() -> None:
    served = of_models(good=code("slow"), fast=code("double"))
    rows = np.ones((1, 2), np.float32)

    async def work() -> None:
        async with serving(served, plan=plan_for(served, select=MostAccurate((0, 1)))) as engine:
            answer = await asked(engine, rows)
            assert answer.variants == ["good"] and answer.outcome is Outcome.ON_TIME
            assert answer.run_ns >= 0.45e9

    within(30, work)


def test_a_query_at_fault_fails_and_the_rest_of_its_batch_is_answered(tmp_path: Path) -> None:
    """A model that looks up rows by number, in one batch with numbers that it has no row for."""
    tensors = (TensorSpec("number", "int64", ()),), (TensorSpec("row", "float32", (2,)),)
    source = ModelSource("onnx", lookup(tmp_path / "lookup.onnx"), inputs=tensors[0], outputs=tensors[1])
    served = of_models(lookup=source, slow=code("slow"))

    async def work() -> None:
        async with serving(served) as engine:
            block = asked(engine, np.array([0]))
            requests = [asked(engine, np.array([number])) for number in (0, 1, 9, 2, -7, 4)]
            await block
            ended = [await request for request in requests]
            outcomes = [request.outcome for request in ended]
            failed = [number for number, outcome in enumerate(outcomes) if outcome is Outcome.FAILED]
            assert failed == [2, 4], outcomes
            assert all(ended[number].problem for number in failed)
            for place, number in ((0, 0), (1, 1), (3, 2), (5, 4)):
                np.testing.assert_array_equal(ended[place].answers, [[2 * number, 2 * number + 1]])
            mixed = await asked(engine, np.array([1, 99, 2]))  # one row of a request takes it along
            assert mixed.outcome is Outcome.FAILED
            assert conserved(engine)

    within(30, work)


@pytest.mark.parametrize("tells", [False, True])
def test_a_model_that_raises(tells: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Its client used to hear whatever the exception said; and the log had a traceback for each batch."""
    served = of_models(fussy=code("fussy"))

    async def work() -> None:
        async with serving(served, tells_failures=tells) as engine:
            good, bad = (
                await asked(engine, np.full((1, 2), 4, np.float32)),
                await asked(engine, np.full((1, 2), -4, np.float32)),
            )
            assert good.answers is not None and good.answers.tolist() == [[2.0, 2.0]]
            assert bad.outcome is Outcome.FAILED and ("negative numbers" in bad.problem) is tells
            for _ in range(11):
                await asked(engine, np.full((1, 2), -4, np.float32))
            told = [record.getMessage() for record in caplog.records if "negative numbers" in record.getMessage()]
            assert len(told) == 2 and "app/fussy failed on 1 queries" in told[0] and "10 queries by now" in told[1]
            again = await asked(engine, np.full((1, 2), 9, np.float32))
            assert again.outcome is Outcome.ON_TIME  # the worker goes on
            assert engine.crew.restarts == 0

    within(30, work)


def test_a_model_that_cannot_be_loaded_is_told_of_and_fails_its_queries() -> None:
    served = of_models(double=code("double"), missing=code("there_is_none"), wrong=code("wrong"))
    told: dict[str, str] = {}

    async def work() -> None:
        async with serving(served, ready=0) as engine:
            engine.on_broken = lambda broken: bool(told.update(broken))
            await until(lambda: engine.crew.ready_count == 1)
            assert set(told) >= {"app/missing@1"} and "there_is_none" in told["app/missing@1"]
            request = await asked(engine, np.ones((1, 2), np.float32), pinned="missing")
            assert (request.outcome, request.problem) == (Outcome.FAILED, NOT_LOADED)
            fine = await asked(engine, np.ones((1, 2), np.float32), pinned="double")
            assert fine.outcome is Outcome.ON_TIME

    within(30, work)


def test_cancelling_while_it_runs() -> None:
    served = of_models(slow=code("slow"))

    async def work() -> None:
        async with serving(served) as engine:
            running, waiting = asked(engine, np.ones((1, 2), np.float32)), asked(engine, np.ones((2, 2), np.float32))
            engine.cancel(running.request)
            engine.cancel(waiting.request)
            assert (await running).outcome is (await waiting).outcome is Outcome.DROPPED_CANCELLED
            assert engine.waiting == 0 and conserved(engine)
            after = await asked(engine, np.ones((1, 2), np.float32))
            assert after.outcome is Outcome.ON_TIME

    within(30, work)


def test_a_thread_that_hangs_is_left_to_itself() -> None:
    served = of_models(hang=code("hang"))

    async def work() -> None:
        async with serving(served, hang_s=0.3) as engine:
            stuck = asked(engine, np.full((1, 2), 1, np.float32))
            fine = asked(engine, np.full((1, 2), 0, np.float32))
            assert (await fine).outcome is Outcome.ON_TIME
            ended = await stuck  # it hung twice, and is not tried a third time
            assert ended.outcome is Outcome.FAILED and "lost" in ended.problem
            assert engine.crew.restarts == 2 and conserved(engine)

    within(30, work)


def test_many_requests_at_once_each_get_their_own_answer() -> None:
    served = of_models(2, double=code("double"))
    random = np.random.default_rng(3)

    async def work() -> None:
        async with serving(served) as engine:
            sent = [asked(engine, random.random((1 + n % 5, 2), np.float32)) for n in range(20)]
            await asyncio.gather(*(_ended(each) for each in sent))
            for each in sent:
                if each.request.outcome is Outcome.ON_TIME:
                    np.testing.assert_array_equal(each.request.answers, each.request.inputs * 2)
            assert sum(each.request.outcome is Outcome.ON_TIME for each in sent) == 20
            assert conserved(engine)

    async def _ended(each: object) -> None:
        await each  # type: ignore[misc]

    within(30, work)


def test_the_engine_takes_new_models_beside_its_work() -> None:
    first, second = of_models(2, double=code("double")), of_models(2, double=code("double"), fussy=code("fussy"))

    async def work() -> None:
        async with serving(first) as engine:
            before = asked(engine, np.full((1, 2), 4, np.float32))
            assert await engine.succession.hold(second) == {}
            engine.succession.replace(second, planned(engine, second, plan_for(second, select=Fixed(1))))
            after = await asked(engine, np.full((1, 2), 4, np.float32))
            assert (await before).variants == ["double"] and after.variants == ["fussy"]
            broken = await engine.succession.hold(of_models(missing=code("none_such")))
            assert list(broken) == ["app/missing@1"]

    within(30, work)
