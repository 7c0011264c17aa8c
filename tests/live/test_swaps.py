"""Workers that hold few variants at a time: the default has evidence computed, and its judge hears of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from stretto.core.plan import Delays
from stretto.core.verdict import Candidate
from stretto.core.view import View
from stretto.live.options import ServiceOptions
from stretto.live.service import Service
from stretto.live.threads import ThreadExecutor
from stretto.planners.data_aware import DataAware
from stretto.planners.judged.planner import Judged
from stretto.planners.priced import Priced
from stretto.repository.read import read_repository
from stretto.sim.ports import simulator_ports
from stretto.twin.live import LiveTwin
from tests.live.real import asked, sample, until, within

pytest.importorskip("faiss", reason="evidence needs Faiss: pip install 'stretto[evidence]'")

TIGHT = 8_000_000  # bytes, which hold some of the zoo's variants


@asynccontextmanager
async def zoo_service(**options: Any) -> AsyncIterator[Service]:
    chosen = ServiceOptions("zoo", **({"workers": 1, "reload_s": 0.0} | options))
    twin = LiveTwin(time.monotonic_ns())
    service = Service(chosen, read_repository("zoo"), ThreadExecutor, simulator=simulator_ports(), twin=twin)
    await service.start()
    try:
        await until(service.is_ready)
        yield service
    finally:
        await service.stop()


def test_the_judge_hears_what_evidence_says_of_samples_and_what_queries_are_taken_for() -> None:
    async def work() -> None:
        async with zoo_service(worker_memory_bytes=TIGHT, judges=False) as service:
            witness, deployment = service.engine.witness, service.engine.generation.deployment
            assert witness is not None and service.session.uses_evidence(deployment)
            assert service.replanner.period_s < 0.05, "a window is a part of the shortest SLO"
            for inputs in sample("mnist", 20):
                await asked(service.engine, inputs[None], "mnist")
            await until(lambda: witness.seen > 0)
            telemetry = service.engine.generation.dispatcher.telemetry(service.engine.clock())
            assert service.judging is not None
            case: Any = service.judging.twin.case(deployment, telemetry, Delays())
            said = case.setting.evidence["mnist"]
            assert set(case.setting.evidence) >= {"mnist", "activity", "fashion"} and len(said.labels) >= 100
            right = np.average(said.theta.argmax(axis=1) == said.labels, weights=said.weights)
            assert right == pytest.approx(0.955, abs=0.01), "θ goes with its label, right as often as profiled"
            service.engine.twin.classified("mnist", 3)
            case = service.judging.twin.case(deployment, telemetry, Delays())
            assert case.setting.arrivals["mnist"].class_shares[3] > 0

    within(120, work)


def test_while_no_plan_heeds_classes_evidence_is_computed_of_some_queries_a_second() -> None:
    """They tell how frequent classes are, so that the judge knows what a plan that heeds them would be worth."""

    async def work() -> None:
        async with zoo_service(judges=False) as service:
            witness, dispatcher = service.engine.witness, service.engine.generation.dispatcher
            assert witness is not None and service.replanner.period_s == pytest.approx(0.1)
            assert isinstance(service.session.planner, Judged)
            service.session.planner.start = Candidate("priced")  # as a verdict may have it
            await until(lambda: not dispatcher.plan.heeds_classes_of)
            began, inputs = time.monotonic(), sample("mnist", 1)
            for _ in range(100):
                await asked(service.engine, inputs, "mnist")
            await until(lambda: witness.seen > 0)
            assert witness.seen <= 2 + 20 * (time.monotonic() - began)
            application = service.engine.generation.deployment.applications[service.engine.generation.numbers["mnist"]]
            assert sum(application.class_shares) == pytest.approx(1) and application.variants[0].accuracy_by_class
            deployment = service.engine.generation.deployment
            count = len(deployment.applications)
            plan = DataAware(Priced())(View(deployment, expected_rates=(9.0,) * count))
            assert plan.heeds_classes_of == set(range(count))

    within(120, work)
