"""Planning goes on, whatever goes wrong on the way to the plan in force; and what was refused is replayed so."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from stretto.core import journal
from stretto.core.client import Client, Clients, Place
from stretto.core.conditions import Conditions
from stretto.core.errors import StrettoError
from stretto.live.recorder import Journal, recording
from stretto.live.replan import Replanner
from stretto.planning.served import served_session
from stretto.planning.session import InForce, Session
from stretto.sim.replay import replay
from tests.live.conftest import Staging
from tests.live.real import code, of_models, until, within
from tests.live.real import serving as really_serving
from tests.live.scripted import Stage, plan_for, serving, variant

Begin = Callable[[Journal, str, str], tuple[Stage, Replanner]]
FAST, GOOD = variant("fast", 0.6), variant("good", 0.8, 2, 10)


class Unreliable(Session):
    """Completes no plan while there is an `error`."""

    error: Exception | None = None

    def under(self, current: InForce, conditions: Conditions) -> InForce:
        if self.error is not None:
            raise self.error
        return super().under(current, conditions)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "stretto.live"]


@pytest.mark.parametrize("error", [KeyError(140), StrettoError("not now")])
def test_a_plan_that_cannot_be_completed_does_not_end_the_planning(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that was no StrettoError ended it for good, uncounted and untold."""
    served = of_models(fast=code("double"))

    async def work() -> None:
        async with really_serving(served) as engine:
            engine.session = engine.generation._session = session = Unreliable(lambda view: plan_for(served))
            replanner = Replanner(engine, 0.0, Clients())
            session.error = error
            replanner.start()
            await until(lambda: engine.meters.plans_failed >= 3)
            assert len(told(caplog)) == 1 and "cannot be completed" in told(caplog)[0]
            assert sum(engine.meters.planning.counts) == 0
            session.error = None
            await until(lambda: sum(engine.meters.planning.counts) == 1)  # it is planned anew
            replanner.stop()

    within(60, work)


class Deaf(Clients):
    """Nobody of them can be told anything while `is_deaf`."""

    is_deaf, heard = True, 0

    def placed(self, seen: Sequence[Client], places: Mapping[int, Place]) -> None:
        if self.is_deaf:
            raise ZeroDivisionError("no network")
        super().placed(seen, places)
        self.heard += 1


def test_clients_that_cannot_be_told_do_not_end_the_planning(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with really_serving(of_models(fast=code("double"))) as engine:
            clients = Deaf()
            clients.slot_of(engine.clock(), "camera", "fast")
            replanner = Replanner(engine, 0.0, clients)
            replanner.start()
            await until(lambda: engine.meters.plans_failed >= 2)
            assert len(told(caplog)) == 1 and "told" in told(caplog)[0]
            clients.is_deaf = False
            await until(lambda: clients.heard >= 1)
            replanner.stop()

    within(60, work)


PLANNER = """
from stretto.core.plan import Eager, Fixed, Lane, Late, by_application

RULES = {"release": Eager(floor_rates=(0.0,)), "late": Late.DROP_WHEN_INFEASIBLE}  # those of scripted plans

def plan(view):
    # Between 1.1 and 1.3 s it takes a name that a lane for a demand may need as well.
    name = "app by good" if 1_100_000_000 <= view.now_ns < 1_300_000_000 else "app"
    return by_application((Lane(name, (0,), Fixed(0), **RULES),))
"""


@pytest.fixture
def begin(stage: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """begin(journal, name, code): an engine that a planner of the user's own plans for, named as MODULE:ATTRIBUTE."""

    def begun(into: Journal, name: str, code: str) -> tuple[Stage, Replanner]:
        (tmp_path / f"{name.partition(':')[0]}.py").write_text(code)
        monkeypatch.syspath_prepend(str(tmp_path))
        into.began(name, {}, False)
        made = stage(serving(FAST, GOOD), journal=into)
        made.engine.session.planner = planner = served_session(name).planner
        if name.endswith(":Plans"):
            planner._planner.calls = 1  # type: ignore[attr-defined]  # the first plan is the stage's own
        return made, Replanner(made.engine, 1.0, Clients())

    return begun


def test_a_plan_that_the_dispatcher_refuses_is_not_followed_in_a_replay(begin: Begin, tmp_path: Path) -> None:
    """The replay went on from the plan that was refused, and every one after it was another than live."""
    path = tmp_path / "events.jsonl"
    with recording(path) as into:
        made, replanner = begin(into, "refused_planner:plan", PLANNER)

        def replan() -> None:
            made.loop.run_until_complete(replanner.replan())

        made.request(pinned="good")
        replan()
        made.wait(150)
        before = made.engine.generation.in_force
        replan()
        assert made.engine.meters.plans_failed == 1 and made.engine.generation.in_force is before
        made.request(pinned="fast")  # a demand more, for the plan that stayed
        made.wait(150)
        replan()
        assert made.engine.meters.plans_failed == 1
        made.request()
        made.finish_all()
    kinds = [json.loads(text)[0] for text in path.read_text().splitlines()]
    assert kinds.count(journal.PLANNED) == 3 and kinds.count(journal.REFUSED) == 1
    result = replay(path)
    assert result.is_identical, result.differences


FORGETFUL = """
from stretto.core.plan import Eager, Fixed, Lane, Late, by_application

RULES = {"release": Eager(floor_rates=(0.0,)), "late": Late.DROP_WHEN_INFEASIBLE}  # those of scripted plans

class Plans:
    calls = 0

    def __call__(self, view):
        self.calls += 1
        if self.calls == 2:
            raise ValueError("it is the second time")
        variant = Fixed(1 if self.calls > 2 else 0)
        return by_application((Lane("app", (0,), variant, **RULES),))
"""


def test_a_call_that_failed_is_made_again_in_a_replay(begin: Begin, tmp_path: Path) -> None:
    """A planner remembers what it saw also where it failed; the log did not say that it had been asked."""
    path = tmp_path / "events.jsonl"
    with recording(path) as into:
        made, replanner = begin(into, "forgetful_planner:Plans", FORGETFUL)
        for _ in range(2):
            made.loop.run_until_complete(replanner.replan())
            made.request()
            made.wait(150)
        assert made.engine.meters.plans_failed == 1
        made.finish_all()
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert [line[-1] is None for line in lines if line[0] == journal.PLANNED] == [True, False]
    result = replay(path)
    assert result.is_identical, result.differences
    without = [line for line in lines if line[0] != journal.PLANNED or line[-1] is not None]
    path.write_text("".join(json.dumps(line) + "\n" for line in without))
    assert not replay(path).is_identical


SLOW = """
import threading
from stretto.core.plan import Eager, Fixed, Lane, Late, by_application

RULES = {"release": Eager(floor_rates=(0.0,)), "late": Late.DROP_WHEN_INFEASIBLE}  # those of scripted plans

may_go_on = threading.Event()

class Plans:
    calls = 0

    def __call__(self, view):
        self.calls += 1
        if self.calls > 1:
            may_go_on.wait(10)
        return by_application((Lane("app", (0,), Fixed(0), **RULES),))
"""


def test_a_server_that_stops_while_its_planner_plans_leaves_a_recording_that_replays(
    begin: Begin, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    with recording(path) as into:
        made, replanner = begin(into, "slow_planner:Plans", SLOW)

        async def cancelled() -> None:
            task = asyncio.create_task(replanner.replan())
            for _ in range(5):  # until its planner is asked; the stage's clock stands still
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        made.loop.run_until_complete(cancelled())
        importlib.import_module("slow_planner").may_go_on.set()
    assert replay(path).is_identical
