"""Workers that do what the test says, under a clock that the test moves: for what depends on time.

The engine, its crew and its dispatcher are the real ones. A scripted worker holds them to their side of the contract: a
batch only for a worker that is there, holds the model and has at most one batch before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stretto.backends.source import ModelSource
from stretto.core.application import Application, Variant
from stretto.core.conditions import Conditions
from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import Delays, Eager, Fixed, Lane, Late, Plan, by_application
from stretto.core.profile import LatencyProfile
from stretto.core.worker import workers
from stretto.live.delays import DelayMeter
from stretto.live.engine import Engine
from stretto.live.executor import Job, Listener, Loading, Loss
from stretto.live.generation import Served
from stretto.live.requests import Request
from stretto.live.shelf import ModelSpec, Report
from stretto.planning.session import InForce, Session

MS = 1_000_000
SHAPE = (2,)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its timers follow `now_ns`, which only the test moves."""

    now_ns = 1_000 * MS

    def time(self) -> float:
        return self.now_ns / 1e9

    def clock(self) -> int:
        return self.now_ns


class ScriptedExecutor:
    """One worker: it answers when the test lets it. The answer to a row is its sum times 1 + the variant's number."""

    is_awaited, is_here = False, True

    def __init__(self, worker: int, loop: asyncio.AbstractEventLoop, listener: Listener, stage: Stage):
        self.worker, self.loop, self.listener, self.stage = worker, loop, listener, stage
        self.jobs: list[Job] = []
        self.held: set[str] = set()
        self.alone: list[str] = []  # loads that no job waits for
        self.killed = self.started = self.is_gone = False
        self.specs: Sequence[ModelSpec] = ()
        self.at_load: list[Loading] = []
        self.memory = 0
        self.grown: dict[str, int] = {}

    def start(self, specs: Sequence[ModelSpec]) -> None:
        assert not self.started, "an executor is started once"
        self.started, self.specs = True, specs
        if self.stage.starts:
            self.loop.call_soon(self.ready)

    def ready(self, broken: dict[str, str] | None = None) -> None:
        """It has loaded its first models, but these."""
        self.held |= {spec.key for spec in self.specs} - (broken or {}).keys()
        self.listener.worker_ready(self.worker, broken or {})

    def run(self, job: Job) -> None:
        assert self.started and not self.is_gone, "a batch for a worker that is not there"
        assert len(self.jobs) < 2, "a third batch for one worker"
        assert job.key in self.held, "a batch of a model that the worker was not told to hold"
        assert job.count == sum(map(len, job.parts)) == len(job.entries)
        self.jobs.append(job)

    def load(self, spec: ModelSpec, alone: bool) -> None:
        assert self.started and not self.is_gone
        self.held.add(spec.key)
        if alone:
            self.alone.append(spec.key)

    def prepare(self, specs: Sequence[ModelSpec], done: Callable[[dict[str, str]], None]) -> None:
        assert self.started and not self.is_gone
        broken = {spec.key: "it is broken" for spec in specs if spec.key in self.stage.broken}
        self.held |= {spec.key for spec in specs} - broken.keys()
        self.stage.prepared.append((self.worker, [spec.key for spec in specs]))
        if self.stage.prepares:
            self.loop.call_soon(lambda: None if self.is_gone else done(broken))

    def unload(self, key: str) -> None:
        assert self.started and not self.is_gone
        assert all(job.key != key for job in self.jobs) or self.stage.may_unload_in_use
        self.held.discard(key)

    def loading(self) -> Sequence[Loading]:
        return self.at_load

    def memory_bytes(self) -> int:
        return self.memory

    def growth(self) -> Mapping[str, int]:
        return self.grown

    def kill(self) -> None:
        if not self.killed:
            self.killed = True
            self.loop.call_soon(self.lose, "it did not answer in time")

    async def stop(self, patience_s: float = 10.0) -> None:
        self.is_gone = True

    def finish(self, failures: dict[int, str] | None = None, answers: bool = True) -> Job:
        """The first of its batches ended, with these queries failing, or with no answer at all."""
        job = self.jobs.pop(0)
        now_ns = self.stage.loop.now_ns
        rows = np.concatenate([np.asarray(part) for part in job.parts])
        made = rows.sum(axis=1, keepdims=True) * (1 + job.variant) if answers else None
        self.listener.job_ended(job, Report(made, failures or {}, job.decided_ns, now_ns))
        return job

    def loaded(self, problem: str | None = None) -> None:
        key = self.alone.pop(0)
        self.listener.load_ended(self.worker, key, problem, True)

    def lose(self, reason: str = "signal 9", loss: Loss = Loss.OWN) -> None:
        self.is_gone = True
        self.jobs.clear()
        self.listener.worker_lost(self.worker, reason, loss)


class Stage:
    """An engine with scripted workers. Every request is checked to end once, and the books after every step.

    Unless told otherwise a decision reaches its worker in no time, so that a busy one is given nothing ahead.
    """

    def __init__(
        self,
        served: Served,
        plan: Plan,
        *,
        starts: bool = True,
        correction: float = 0.0,
        hang_s: float = 10.0,
        handoff_ns: int = 0,
        **engine: Any,
    ):
        self.loop = VirtualLoop()
        self.plan = plan  # what its planner makes
        self.starts, self.prepares = starts, True
        self.may_unload_in_use = True  # the order of a worker's commands takes care of it
        self.broken: set[str] = set()
        self.prepared: list[tuple[int, list[str]]] = []
        self.workers: dict[int, ScriptedExecutor] = {}
        self.every: list[ScriptedExecutor] = []
        self.requests: list[Request] = []
        self.ended: list[Request] = []

        async def make() -> Engine:
            delays = Delays(control_ns=handoff_ns)
            return Engine(
                served,
                Session(lambda view: self.plan),
                self._executor,
                clock=self.loop.clock,
                hang_s=hang_s,
                correction=correction,
                delays=DelayMeter(delays, delays),
                **engine,
            )

        self.engine = self.loop.run_until_complete(make())
        self.call(self.engine.start)

    def _executor(self, worker: int, loop: asyncio.AbstractEventLoop, listener: Listener) -> ScriptedExecutor:
        self.workers[worker] = made = ScriptedExecutor(worker, loop, listener, self)
        self.every.append(made)
        return made

    # -- what a test does --------------------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """On the loop, with everything that follows from it."""

        async def inside() -> Any:
            result = function(*values, **named)
            for _ in range(4):
                await asyncio.sleep(0)
            return result

        result = self.loop.run_until_complete(inside())
        self.check()
        return result

    def wait(self, milliseconds: float) -> None:
        """Time goes by; timers ring in between."""
        end_ns = self.loop.now_ns + round(milliseconds * MS)
        while self.loop.now_ns < end_ns:
            self.loop.now_ns = min(end_ns, self.loop.now_ns + max(MS, (end_ns - self.loop.now_ns) // 64))
            self.call(self.engine._rang)

    def made_request(
        self, rows: int = 1, slack_ms: float = 100, application: str = "app", fill: float | None = None, **wish: Any
    ) -> Request:
        """One more request, to be submitted by the test; its inputs count up, so that every answer is another."""
        first = float(len(self.requests)) if fill is None else fill
        inputs = np.full((rows, *SHAPE), first, np.float32) + np.arange(rows, dtype=np.float32)[:, None] / 16
        request = Request(application, inputs, round(slack_ms * MS), self._done, **wish)
        self.requests.append(request)
        return request

    def request(self, *asked: Any, **wish: Any) -> Request:
        """One more request, submitted."""
        request = self.made_request(*asked, **wish)
        try:
            self.call(self.engine.submit, request)
        except Exception:
            self.requests.remove(request)
            raise
        return request

    def cancel(self, request: Request) -> None:
        self.call(self.engine.cancel, request)

    def finish(self, worker: int = 0, **how: Any) -> Job:
        job: Job = self.call(self.workers[worker].finish, **how)
        return job

    def lose(self, worker: int = 0) -> None:
        self.call(self.workers[worker].lose)

    def planned(self, served: Served, plan: Plan) -> InForce:
        """A plan as the session has it made and completed, under the conditions of now."""
        self.plan = plan
        generation = self.engine.generation
        is_same = served.deployment is generation.deployment
        conditions = generation.in_force.conditions if is_same else Conditions(delays=self.engine.delays.delays)
        return self.engine.session.first(served.deployment, self.loop.now_ns, conditions)

    def adopt(self, plan: Plan) -> None:
        """The planner made another plan."""
        generation = self.engine.generation
        self.call(self.engine.adopt, generation, self.planned(generation.served, plan))

    def replace(self, served: Served, plan: Plan) -> None:
        """As the service does it: new models first, then the move."""
        assert self.loop.run_until_complete(self.engine.succession.hold(served)) == {}
        self.call(self.engine.succession.replace, served, self.planned(served, plan))

    def busy(self) -> list[int]:
        return [worker for worker, executor in self.workers.items() if executor.jobs]

    def finish_all(self) -> None:
        """Every batch ends, also those that follow."""
        for _ in range(10_000):
            busy = self.busy()
            if not busy:
                return
            self.finish(busy[0])
        raise AssertionError("there is always another batch")

    def close(self) -> None:
        self.loop.run_until_complete(self.engine.stop())
        self.check()
        assert self.engine.waiting == 0
        assert len(self.ended) == len(self.requests), "a request has no end"
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    # -- what must hold ----------------------------------------------------------------------------------------------

    def _done(self, request: Request) -> None:
        assert all(request is not other for other in self.ended), "a request ended twice"
        assert request.outcome is not None
        self.ended.append(request)

    def check(self) -> None:
        """Conservation, by application and by query."""
        open_ones: dict[str, int] = {}
        for each in self.engine.generations():
            for ticket, query in each.queries.items():
                assert query.ticket == ticket and query.generation is each
                name = query.request.application
                open_ones[name] = open_ones.get(name, 0) + 1
            reading = each.dispatcher.telemetry(self.loop.now_ns)
            assert reading.waiting + reading.running == len(each.queries)
        asked: dict[str, int] = {}
        for request in self.requests:
            if request.arrival_ns:
                asked[request.application] = asked.get(request.application, 0) + request.rows
        totals = self.engine.books.totals(self.engine.generations())
        for name, rows in asked.items():
            submitted, outcomes = totals[name]
            assert submitted == rows, "a query was counted twice or not at all"
            assert submitted == outcomes.sum() + open_ones.get(name, 0)
            assert (outcomes >= 0).all()
        assert self.engine.waiting == sum(open_ones.values())

    def outcomes(self, application: str = "app") -> dict[Outcome, int]:
        _, outcomes = self.engine.books.totals(self.engine.generations())[application]
        return {outcome: int(outcomes[outcome]) for outcome in Outcome if outcomes[outcome]}


# -- what is served --------------------------------------------------------------------------------------------------


def variant(name: str, accuracy: float = 0.5, alpha_ms: float = 1, beta_ms: float = 4, **more: Any) -> Variant:
    return Variant(name, accuracy, (LatencyProfile.linear(alpha_ms, beta_ms, 8),), **more)


def serving(*variants: Variant, crew: int = 1, slo_ms: float = 100, version: str = "1", **more: Any) -> Served:
    """One application, app, with these variants; `version` tells models of one name apart."""
    return serving_apps({"app": variants or (variant("v"),)}, crew, slo_ms, version, **more)


def serving_apps(
    apps: dict[str, tuple[Variant, ...]], crew: int = 1, slo_ms: float = 100, version: str = "1", **worker: Any
) -> Served:
    applications = tuple(Application(name, round(slo_ms * MS), variants) for name, variants in apps.items())
    deployment = Deployment(applications, workers(crew, **worker))
    specs = tuple(
        ModelSpec(
            f"{deployment.variant_label(number)}@{version}",
            ModelSource(),
            "x",
            "float32",
            SHAPE,
            "y",
            "float32",
            (1,),
            8,
        )
        for number in range(len(deployment.variants))
    )
    return Served(deployment, (), specs)


def plan_for(served: Served, late: Late = Late.DROP_WHEN_INFEASIBLE, **rules: Any) -> Plan:
    """A lane for each application, on its first variant unless told otherwise, served by all. A batch of one is always
    worth a worker (the floors), so that none waits for more queries.
    """
    deployment = served.deployment
    drops = late in (Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE)
    at_once = Eager(floor_rates=(0.0,) if drops else ())
    return by_application(
        tuple(
            Lane(
                application.name,
                tuple(range(len(deployment.workers))),
                **({"select": Fixed(deployment.first_variant[number]), "release": at_once} | rules),
                late=late,
            )
            for number, application in enumerate(deployment.applications)
        )
    )
