"""Evidence beside the serving: it tells classes and may be the answer; late or broken, it costs a query nothing."""

from __future__ import annotations

import asyncio
import logging
import threading

import numpy as np
import pytest
from numpy.typing import NDArray

from stretto.backends.model import Array
from stretto.core.outcome import Outcome
from stretto.core.plan import Lane, Plan, Route, RouteRule, Worklist
from stretto.live import witness as module
from stretto.live.engine import Engine
from stretto.live.witness import Witness, class_of
from stretto.repository.tensors import InputTensor
from tests.live.real import asked, code, conserved, of_models, of_zoo, planned, sample, serving, until, within
from tests.live.scripted import plan_for

ROW = np.array([[1.0, 2.0]], np.float32)


class Told:
    """Evidence as the test says: θ by row, when it is let."""

    def __init__(self, theta: tuple[float, ...] = (0.1, 0.9), is_broken: bool = False):
        self.theta, self.is_broken = theta, is_broken
        self.gate = threading.Event()
        self.gate.set()
        self.asked: list[int] = []
        self.takes = InputTensor("input", "float32", ())

    def posterior(self, inputs: Array) -> NDArray[np.float64]:
        self.asked.append(len(inputs))
        assert self.gate.wait(30)
        if self.is_broken:
            raise RuntimeError("no evidence today")
        return np.tile(self.theta, (len(inputs), 1))


def witnessed(engine: Engine, evidence: Told, application: str = "app") -> Witness:
    evidence.takes = InputTensor("input", "float32", ROW.shape[1:] if application == "app" else (1, 28, 28))
    engine.witness = Witness(engine.loop, engine.classified)
    engine.witness.use({application: evidence})
    engine.session.looks_at_evidence = True  # as for a planner that looks at the evidence of every query
    return engine.witness


def held(plan: Plan, **worklist: tuple[int, ...]) -> Plan:
    """A plan that starts nothing by itself."""
    lane = Lane("window", plan.lanes[0].workers, Worklist(**worklist))
    return Plan((lane,), (Route(RouteRule.BY_APPLICATION, (0,)),))


def test_an_answer_says_the_accuracy_that_evidence_gives_it() -> None:
    """θ_k × recall_k summed over the classes (equation 9); without evidence, the profiled accuracy."""

    async def work() -> None:
        what, theta = of_zoo("mnist"), (0.0, 0.0, 0.7, 0.3, *[0.0] * 6)
        async with serving(what, plan=held(plan_for(what))) as engine:
            witness = witnessed(engine, Told(theta), "mnist")
            query = asked(engine, sample("mnist", 1), "mnist")
            await until(lambda: witness.seen == 1)
            engine.adopt(engine.generation, planned(engine, what, plan_for(what)))
            request = await query
            variants = {variant.name: variant for variant in engine.generation.deployment.variants}
            recall = variants[request.variants[0]].recall
            assert request.accuracy_sum == pytest.approx(0.7 * recall[2] + 0.3 * recall[3])
            assert request.accuracy_sum != variants[request.variants[0]].accuracy
            engine.witness = None
            request = await asked(engine, sample("mnist", 1), "mnist")
            assert request.accuracy_sum == variants[request.variants[0]].accuracy

    within(60, work)


def test_evidence_is_the_answer_where_the_plan_says_so() -> None:
    async def work() -> None:
        what = of_zoo("mnist")
        async with serving(what, plan=held(plan_for(what))) as engine:
            witness = witnessed(engine, Told((0.0, 0.0, 0.7, 0.3, *[0.0] * 6)), "mnist")
            query = asked(engine, sample("mnist", 1), "mnist")
            await until(lambda: witness.seen == 1)
            generation = engine.generation
            (waiting,) = generation.dispatcher.waiting(generation.theta_of)
            assert waiting.theta is not None and waiting.theta[2] == 0.7 and waiting.query_class == 2
            engine.adopt(generation, planned(engine, what, held(plan_for(what), answers=(waiting.ticket,))))
            request = await query
            assert request.outcome is Outcome.ON_TIME and request.variants == ["evidence"]
            assert request.answers is not None and request.answers.dtype == np.float32
            assert request.answers.shape == (1, 10) and request.answers.argmax() == 2
            assert request.short_circuited == {0: waiting.theta}
            assert engine.meters.short_circuited == {"mnist": 1} and conserved(engine)

    within(60, work)


def test_late_evidence_delays_nothing() -> None:
    async def work() -> None:
        async with serving(of_models(double=code("double"))) as engine:
            evidence = Told()
            evidence.gate.clear()
            witness = witnessed(engine, evidence)
            request = await asked(engine, ROW)  # answered while its evidence is still being made
            assert request.outcome is Outcome.ON_TIME and evidence.asked == [1]
            evidence.gate.set()
            await until(lambda: witness.seen == 1)
            assert (await asked(engine, ROW)).outcome is Outcome.ON_TIME and conserved(engine)

    within(60, work)


def test_broken_evidence_is_told_once_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with serving(of_models(double=code("double"))) as engine:
            evidence = Told(is_broken=True)
            witnessed(engine, evidence)
            while len(evidence.asked) < 3:  # a query that ends before its turn comes is passed over
                assert (await asked(engine, ROW)).outcome is Outcome.ON_TIME

    with caplog.at_level(logging.WARNING, "stretto.live"):
        within(60, work)
    told = [record for record in caplog.records if "go without" in record.getMessage()]
    assert len(told) == 1 and "no evidence today" not in told[0].getMessage()  # nothing of the inside


def test_what_comes_faster_than_evidence_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_ROWS", 3)

    async def work() -> None:
        async with serving(of_models(double=code("double"))) as engine:
            evidence = Told()
            evidence.gate.clear()
            witness = witnessed(engine, evidence)
            queries = [asked(engine, ROW) for _ in range(8)]
            assert [(await query).outcome for query in queries] == [Outcome.ON_TIME] * 8
            assert witness.skipped == 4  # one is being looked at, three wait
            evidence.gate.set()
            await until(lambda: evidence.asked == [1] and not witness._is_busy)  # those that ended are passed over

    within(60, work)


def test_rows_of_a_request_have_each_their_own_and_pinned_ones_none() -> None:
    async def work() -> None:
        what = of_models(double=code("double"))
        async with serving(what, plan=held(plan_for(what))) as engine:
            evidence = Told()
            witness = witnessed(engine, evidence)
            three = asked(engine, np.zeros((3, 2), np.float32))
            pinned = asked(engine, ROW, pinned="double")
            await until(lambda: witness.seen == 3)
            assert [query.theta for query in three.request.queries] == [(0.1, 0.9)] * 3
            assert (await pinned).outcome is Outcome.ON_TIME and evidence.asked == [3]
            engine.cancel(three.request)
            await asyncio.sleep(0)

    within(60, work)


def test_a_class_is_told_where_it_is_likelier_than_all_others() -> None:
    assert [class_of(theta) for theta in ((0.2, 0.8), (0.5, 0.5), (0.3, 0.4, 0.3), (1.0,))] == [1, 0, 1, 0]


def test_images_of_other_sizes_are_made_what_evidence_was_built_for() -> None:
    shapes: list[tuple[int, ...]] = []

    class Seen(Told):
        def posterior(self, inputs: Array) -> NDArray[np.float64]:
            shapes.append(inputs.shape)
            return super().posterior(inputs)

    evidence = Seen()
    evidence.takes = InputTensor("input", "float32", (1, 8, 8))
    theta = module._posterior(evidence, [np.zeros((2, 1, size, size), np.float32) for size in (4, 8, 12)])
    assert shapes == [(6, 1, 8, 8)] and theta.shape == (6, 2)
