"""The engine under random orders of everything that can happen to it; the books must agree after every step.

CI walks the same paths every time. To look further by hand: STRETTO_FUZZ=2000 pytest tests/live -k machine
"""

from __future__ import annotations

import os
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from stretto.core.outcome import Outcome
from stretto.core.plan import Accumulate, Deferred, Eager, Fixed, Late, MostAccurate, Plan
from stretto.live.generation import Served
from stretto.live.requests import NoSuchVariant
from tests.live.scripted import MS, Stage, plan_for, serving_apps, variant

EXAMPLES = int(os.environ.get("STRETTO_FUZZ", "25"))
NAMES = ("fast", "good", "best")
ACCURACY = {"fast": 0.6, "good": 0.8, "best": 0.9}
BETA_MS = {"fast": 2, "good": 10, "best": 30}
pauses = st.sampled_from([0.0, 0.3, 1.0, 4.0, 20.0])


@st.composite
def services(draw: st.DrawFn, crew: int, memory: int) -> Served:
    """One or two applications; the first is always there."""
    apps = {}
    for name in ("app", *(["other"] if draw(st.booleans()) else [])):
        names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
        apps[name] = tuple(
            variant(each, ACCURACY[each], 1, BETA_MS[each], memory_bytes=40, load_ns=2 * MS) for each in names
        )
    version = draw(st.sampled_from("12"))
    return serving_apps(apps, crew, version=version, memory_bytes=memory)


@st.composite
def plans(draw: st.DrawFn, served: Served) -> Plan:
    deployment = served.deployment
    plan = plan_for(served, draw(st.sampled_from(Late)))
    release = draw(st.sampled_from([Eager(), Eager(2), Accumulate(3, 5 * MS), Deferred()]))
    lanes = []
    for number, lane in enumerate(plan.lanes):
        among = list(deployment.variants_of(number))
        ranked = tuple(sorted(among, key=lambda v: -deployment.variants[v].accuracy))
        select = draw(st.sampled_from([MostAccurate(ranked), Fixed(among[0]), Fixed(among[-1])]))
        capacity = draw(st.sampled_from([3, 100]))
        lanes.append(replace(lane, select=select, release=release, capacity=capacity))
    placement = None
    if draw(st.booleans()):
        placement = tuple((draw(st.integers(0, len(deployment.variants) - 1)),) for _ in deployment.workers)
    return replace(plan, lanes=tuple(lanes), placement=placement)


class EngineMachine(RuleBasedStateMachine):
    """Steps of a server's life. `Stage` checks conservation after each, and that no request ends twice."""

    stage: Stage

    @initialize(
        data=st.data(),
        crew=st.integers(1, 3),
        memory=st.sampled_from([10**6, 100]),
        handoff_ms=st.sampled_from([0.0, 0.3]),
        correction=st.sampled_from([0.0, 0.2]),
    )
    def open(self, data: st.DataObject, crew: int, memory: int, handoff_ms: float, correction: float) -> None:
        self.crew, self.memory = crew, memory
        served = data.draw(services(crew, memory))
        plan = data.draw(plans(served))
        self.stage = Stage(served, plan, handoff_ns=round(handoff_ms * MS), correction=correction, hang_s=1.0)

    @rule(
        rows=st.sampled_from([1, 1, 1, 2, 5]),
        slack_ms=st.sampled_from([-1.0, 3.0, 15.0, 60.0, 500.0]),
        application=st.sampled_from(["app", "app", "other"]),
        pinned=st.sampled_from(["", "", "", *NAMES]),
        min_accuracy=st.sampled_from([0.0, 0.0, 0.7, 0.95]),
        copies=st.sampled_from([1, 3]),
    )
    def submit(
        self, rows: int, slack_ms: float, application: str, pinned: str, min_accuracy: float, copies: int
    ) -> None:
        for _ in range(copies):
            try:
                self.stage.request(rows, slack_ms, application, pinned=pinned, min_accuracy=min_accuracy)
            except KeyError:
                assert application not in self.stage.engine.generation.numbers
            except NoSuchVariant:
                assert pinned or min_accuracy > 0.6

    @rule(pause=pauses)
    def wait(self, pause: float) -> None:
        self.stage.wait(pause)

    @rule(pick=st.integers(0, 10_000), opened=st.booleans())
    @precondition(lambda self: self.stage.requests)
    def cancel(self, pick: int, opened: bool) -> None:
        among = [each for each in self.stage.requests if not opened or each.outcome is None]
        if among:
            request = among[pick % len(among)]
            was_open = request.outcome is None
            self.stage.cancel(request)
            assert not was_open or request.outcome is Outcome.DROPPED_CANCELLED

    @rule(pick=st.integers(0, 2), pause=pauses, how=st.sampled_from(["ok", "ok", "ok", "one fails", "none"]))
    @precondition(lambda self: self.stage.busy())
    def finish(self, pick: int, pause: float, how: str) -> None:
        self.stage.wait(pause)
        busy = self.stage.busy()
        if busy:  # it may have hung meanwhile
            failures = {0: "no such row"} if how == "one fails" else {}
            self.stage.finish(busy[pick % len(busy)], failures=failures, answers=how != "none")

    @rule(pick=st.integers(0, 2), problem=st.sampled_from([None, None, "no such file"]))
    def loaded(self, pick: int, problem: str | None) -> None:
        loading = [executor for executor in self.stage.workers.values() if executor.alone and not executor.is_gone]
        if loading:
            self.stage.call(loading[pick % len(loading)].loaded, problem)

    @rule(pick=st.integers(0, 2), is_busy=st.booleans())
    def lose(self, pick: int, is_busy: bool) -> None:
        among = self.stage.busy() if is_busy else [w for w, each in self.stage.workers.items() if each.started]
        if among:
            self.stage.lose(among[pick % len(among)])

    @rule()
    def rejoin(self) -> None:
        """Long enough for any pause between two starts."""
        self.stage.wait(10_500)

    @rule(data=st.data())
    def replan(self, data: st.DataObject) -> None:
        generation = self.stage.engine.generation
        self.stage.adopt(data.draw(plans(generation.served)))

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        served = data.draw(services(self.crew, self.memory))
        self.stage.replace(served, data.draw(plans(served)))

    def teardown(self) -> None:
        """Whatever happened: once its workers are back and all has run, nothing is left anywhere."""
        if not hasattr(self, "stage"):
            return
        stage = self.stage
        for _ in range(200):
            for executor in list(stage.workers.values()):
                while executor.alone and not executor.is_gone:
                    stage.call(executor.loaded)
            stage.finish_all()
            if stage.engine.waiting == 0:
                break
            stage.wait(100)
        assert stage.engine.waiting == 0, "a query is left behind"
        assert len(stage.ended) == len(stage.requests)
        assert [len(generation.queries) for generation in stage.engine.generations()] == [0]
        stage.close()


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    deadline=None,
    derandomize="STRETTO_FUZZ" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
