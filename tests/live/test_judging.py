"""The judge beside the serving: what is known at the start, what stands, and what is kept. Judging is scripted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import pytest

from stretto.core.advice import FleetNeeds, JudgedFleet
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plain import to_plain
from stretto.core.plan import Delays
from stretto.core.telemetry import Telemetry
from stretto.core.verdict import Verdict
from stretto.live import judging as module
from stretto.live.judging import Judging
from stretto.live.thrift import OWED_S, SAVED_S, SHARE, Thrift, weighed
from tests.live.real import until, within
from tests.planners.parts.tasks import small_deployment
from tests.twin.libraries import verdict

pytestmark = pytest.mark.usefixtures("work_beside_takes_turns")
BEYOND_IT = (13.0,)


@dataclass(frozen=True)
class ScriptedConditions:
    weather: str

    def changed_to(self, now: Any) -> str:
        return "" if self == now else f"the weather is {now.weather}"


@dataclass
class ScriptedCase:
    is_enough: bool = True
    weather: str = "fair"
    cpu_s: float = 0.0

    def judged(self, rates: tuple[float, ...]) -> Verdict:
        began_s = time.process_time()
        while time.process_time() - began_s < self.cpu_s:
            pass
        if rates == BEYOND_IT:
            raise StrettoError("it cannot be judged")
        return verdict(*rates)

    def conditions(self) -> ScriptedConditions:
        return ScriptedConditions(self.weather)


class ScriptedTwin:
    def __init__(self) -> None:
        self.cases = 0
        self.weather, self.cpu_s = "fair", 0.0

    def case(self, deployment: Deployment, telemetry: Telemetry, delays: Delays) -> ScriptedCase:
        self.cases += 1
        return ScriptedCase(self.cases > 1, self.weather, self.cpu_s)

    def serves(self, deployment: Deployment) -> None: ...

    def cheapest(self, deployment: Any, case: Any, needs: FleetNeeds, judged: Any) -> JudgedFleet:
        """As many as it takes until the judge has been asked three times."""
        loads = [judged(case, (rate,)).rates[0] for rate in (1.0, 2.0, 3.0)]
        return JudgedFleet({"default": 3}, 3.0, sum(loads), 0.0, 0.9, "scripted")


@dataclass
class ScriptedMemory:
    before: Sequence[Verdict] = ()
    stands: Verdict | None = None
    kept: list[Verdict] = field(default_factory=list)
    forgotten: list[Verdict] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)

    def known(self, deployment: Deployment) -> Sequence[Verdict]:
        return self.before

    def standing(self, deployment: Deployment, rates: tuple[float, ...], case: Any) -> Verdict | None:
        return None if self.stands is None else replace(self.stands, rates=rates)

    def keep(self, deployment: Deployment, verdict: Verdict, case: Any) -> None:
        self.kept.append(verdict)

    def forget(self, verdict: Verdict) -> None:
        self.forgotten.append(verdict)

    def save(self) -> None:
        self.saved.append(len(self.kept))


def begun(memory: ScriptedMemory | None, deployment: Deployment) -> Judging:
    telemetry: Any = None
    twin: Any = ScriptedTwin()
    return Judging(asyncio.get_running_loop(), twin, lambda: (deployment, telemetry, Delays()), memory)


async def judged_once(memory: ScriptedMemory, deployment: Deployment) -> Judging:
    judging = begun(memory, deployment)
    judging.ask(deployment, (11.0,))
    await until(lambda: judging.made == 1)
    return judging


def test_what_is_known_goes_into_the_journal_like_what_is_collected() -> None:
    async def work() -> None:
        deployment = small_deployment(2)
        judging = begun(ScriptedMemory((verdict(10.0), verdict(20.0))), deployment)
        assert judging.known(deployment) == (verdict(10.0), verdict(20.0))
        assert judging.collected() == [to_plain(verdict(10.0)), to_plain(verdict(20.0))]
        assert judging.collected() == []
        judging.close()
        without = begun(None, deployment)
        assert not without.known(deployment) and not without.collected()
        without.close()

    within(20, work)


def test_a_verdict_from_before_that_stands_is_not_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.01)

    async def work() -> None:
        deployment, memory = small_deployment(2), ScriptedMemory(stands=verdict(10.0))
        judging = begun(memory, deployment)
        judging.ask(deployment, (11.0,))
        found: list[Verdict] = []

        def is_there() -> bool:
            found.extend(judging.collect(deployment))
            return bool(found)

        await until(is_there)
        assert found == [verdict(11.0)] and judging.made == 0 and not memory.kept
        assert judging.twin.cases == 2, "the first look had not seen enough"  # type: ignore[attr-defined]
        judging.close()

    within(20, work)


def test_what_is_judged_is_kept_with_little_delay_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    monkeypatch.setattr(module, "SAVE_S", 0.05)

    async def work() -> None:
        deployment, memory = small_deployment(2), ScriptedMemory()
        judging = begun(memory, deployment)
        judging.ask(deployment, (11.0,))
        await until(lambda: memory.saved == [1])
        assert memory.kept == [verdict(11.0)] and judging.made == 1
        judging.close()
        assert memory.saved == [1, 1], "at the end once more, whatever is new"

    within(60, work)


def test_where_nothing_is_judged_what_is_known_serves() -> None:
    async def work() -> None:
        deployment, twin = small_deployment(2), ScriptedTwin()
        telemetry: Any = None
        loop, memory = asyncio.get_running_loop(), ScriptedMemory((verdict(10.0),))
        judging = Judging(loop, twin, lambda: (deployment, telemetry, Delays()), memory, judges=False)  # type: ignore[arg-type, return-value]
        assert judging.known(deployment) == (verdict(10.0),)
        judging.ask(deployment, (11.0,))
        await asyncio.sleep(0.02)
        assert twin.cases == 0 and not judging.waiting
        judging.close()

    within(20, work)


def test_what_is_asked_again_is_judged_once_and_after_a_failure_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.01)

    async def work() -> None:
        deployment, memory = small_deployment(2), ScriptedMemory()
        judging = begun(memory, deployment)
        for rates in ((11.0,), (11.0,), BEYOND_IT, (11.0,)):
            judging.ask(deployment, rates)
            await asyncio.sleep(0.02)
        await until(lambda: not judging.waiting)
        assert memory.kept == [verdict(11.0)], "the other one failed"
        judging.ask(deployment, BEYOND_IT)
        await asyncio.sleep(0.0)  # until the loop has heard of it, and long before it has failed
        assert judging.waiting == 1
        judging.close()

    within(60, work)


def test_the_load_in_force_is_judged_anew_when_the_conditions_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to be the one that was asked for last, which may be long past."""
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    monkeypatch.setattr(module, "CHECK_S", 0.05)

    async def work() -> None:
        deployment, memory = small_deployment(2), ScriptedMemory()
        judging = begun(memory, deployment)
        for rate in (11.0, 12.0):
            judging.ask(deployment, (rate,))
            await until(lambda rate=rate: verdict(rate) in memory.kept)  # type: ignore[misc]
        judging.follows((11.0,))
        judging.twin.weather = "foul"  # type: ignore[attr-defined]
        await until(lambda: len(memory.kept) == 3)
        await asyncio.sleep(0.2)
        assert memory.kept == [verdict(11.0), verdict(12.0), verdict(11.0)]
        judging.follows((12.0,))
        await until(lambda: len(memory.kept) == 4)
        assert memory.kept[3] == verdict(12.0), "it was judged in other weather"
        judging.close()

    within(60, work)


def test_drift_alone_does_not_keep_the_judge_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host that changed its own pace each minute a steady load was judged anew with 0.08 of a core."""
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    monkeypatch.setattr(module, "CHECK_S", 0.05)

    async def work() -> None:
        judging = await judged_once(ScriptedMemory(), small_deployment(2))
        judging.follows((11.0,))
        judging.twin.cpu_s = 0.2  # type: ignore[attr-defined]
        judging._thrift.took((11.0,), SAVED_S - 0.1)  # what is left is used up by one verdict
        for made, weather in ((2, "foul"), (2, "fair"), (2, "foul")):
            judging.twin.weather = weather  # type: ignore[attr-defined]
            await until(lambda made=made: judging.made == made)  # type: ignore[misc]
            await asyncio.sleep(0.2)
        assert judging.made == 2 and judging._thrift.left_s((11.0,)) < 0
        judging._thrift.passed((11.0,), SAVED_S / SHARE)
        judging.twin.weather = "stormy"  # type: ignore[attr-defined]
        await until(lambda: judging.made == 3)
        judging.close()

    within(60, work)


def test_a_load_earns_what_its_judging_may_take_while_it_is_in_force() -> None:
    thrift = Thrift()
    thrift.took((1.0,), SAVED_S + 1.0)
    assert thrift.left_s((1.0,)) == -1.0 and thrift.left_s((2.0,)) == SAVED_S
    thrift.passed((1.0,), 1.5 / SHARE)
    assert thrift.left_s((1.0,)) == pytest.approx(0.5)
    thrift.passed((1.0,), 1e6)
    assert thrift.left_s((1.0,)) == SAVED_S, "what is saved up is bounded"
    thrift.took((1.0,), 1e6)
    assert thrift.left_s((1.0,)) == -OWED_S, "and so is what is owed"


def test_the_first_order_of_a_process_pays_for_its_start() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        (_, first_s), (result, second_s) = (pool.submit(weighed, partial(sum, (1, 2))).result() for _ in range(2))
    assert result == 3 and first_s > 0.01 > second_s >= 0


def test_a_broken_promise_is_forgotten() -> None:
    async def work() -> None:
        deployment, memory = small_deployment(2), ScriptedMemory()
        judging = begun(memory, deployment)
        judging.broken(verdict(10.0), 0.3)
        assert memory.forgotten == [verdict(10.0)]
        judging.close()

    within(20, work)


NEEDS = FleetNeeds({"default": 1.0}, {"default": (1, 4)}, 0.01)


def test_a_fleet_is_looked_for_beside_and_verdicts_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.01)

    async def work() -> None:
        deployment = small_deployment(2)
        judging = begun(None, deployment)
        assert await judging.cheapest(NEEDS) is None, "the first look had not seen enough"
        looking = asyncio.ensure_future(judging.cheapest(NEEDS))
        judging.ask(deployment, (11.0,))
        found = await looking
        assert found is not None and found.load == 6.0 and found.wanted == {"default": 3}
        await until(lambda: judging.made == 1)
        judging.close()

    within(60, work)


def test_whoever_looks_for_a_fleet_is_not_left_waiting_when_it_closes() -> None:
    async def work() -> None:
        judging = begun(None, small_deployment(2))
        await judging.cheapest(NEEDS)
        looking = asyncio.ensure_future(judging.cheapest(NEEDS))
        await until(lambda: judging.waiting > 0)
        judging.close()
        with pytest.raises(StrettoError):
            await looking
        assert await judging.cheapest(NEEDS) is None

    within(60, work)
