"""Calls the planner now and then with what was measured, and hands its plan to the engine.

Planners may take long, so they run in a thread of their own; the dispatcher goes on following the plan it has. Between
two calls, and for planners that plan only once, the plan in force is brought in line with the delays measured, and
clients hear what their networks leave room for. A planner that looks at clients is also asked when one comes or goes,
or when its bandwidth moves by much.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection
from dataclasses import replace

from stretto.core.client import Client, Clients, Place
from stretto.core.errors import StrettoError
from stretto.core.view import Lines, WaitingQuery
from stretto.live.engine import Engine
from stretto.live.generation import Generation
from stretto.planning.session import InForce
from stretto.planning.telling import GATHER_S, TELL_S, places, tell_all

log = logging.getLogger("stretto.live")

COMPLETE_S = 0.25  # how often measured delays are brought into the plan


class Replanner:
    """For the life of the server, whatever the generation. `period_s` 0: the planner is asked no more."""

    def __init__(self, engine: Engine, period_s: float, clients: Clients):
        self._engine = engine
        self._clients = clients
        self.period_s = period_s
        self.turn = asyncio.Lock()  # held while a plan is made and adopted, and by whoever changes what is planned for
        self._is_due = False
        self._without: set[int] = set()  # workers that were planned without, as they were to go
        self._looks_at_clients = False  # the planner did, when it was last asked
        self._clients_changed = asyncio.Event()
        self._changed_s = 0.0  # when that was first said
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False  # there was no plan the last time
        self._cannot_tell = False  # clients what to send, the last time
        clients.on_change = self._prod

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        asked_s = told_s = loop.time()
        took_s = 0.0  # of the last planning
        while True:
            pause_s = COMPLETE_S
            if self.period_s:
                pause_s = min(pause_s, max(asked_s + self.period_s - loop.time(), 0.001))
            again_s = asked_s + took_s + max(GATHER_S, took_s)  # planning for clients takes half the time at most
            await self._pause(pause_s, again_s)
            self._clients.forget_gone(self._engine.clock())
            is_time = self.period_s and loop.time() >= asked_s + self.period_s
            are_changed = self._clients_changed.is_set() and loop.time() >= max(again_s, self._changed_s + GATHER_S)
            if is_time or self._is_failing or self._is_due or are_changed:
                asked_s, self._is_due = loop.time(), False
                self._clients_changed.clear()
                await self.replan()
                took_s = loop.time() - asked_s
            else:
                self._complete()
            if loop.time() >= told_s + TELL_S:
                told_s = loop.time()
                self._tell_all()

    async def _pause(self, pause_s: float, not_before_s: float) -> None:
        """Cut short when clients change; not before a moment, and so that those who change together count together."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._clients_changed.wait()
                await asyncio.sleep(max(self._changed_s + GATHER_S, not_before_s) - loop.time())

    def hurry(self) -> None:
        """The fleet changed: a planner that follows the load is asked at the next look, whatever its period, and any
        other when a worker is back that it planned without.
        """
        back = {worker for worker in self._without if self._engine.crew.is_ready(worker)}
        self._without -= back
        self._is_due |= self.period_s > 0 or bool(back)

    def _prod(self) -> None:
        """Clients changed: a planner that looks at them is asked soon."""
        if self._looks_at_clients and self.period_s > 0 and not self._clients_changed.is_set():
            self._clients_changed.set()
            self._changed_s = self._engine.loop.time()

    def _tell_all(self) -> None:
        """Clients that cannot be told now are told the next time; the planning goes on."""
        try:
            self._tell()
            self._cannot_tell = False
        except Exception as error:
            self._engine.meters.plans_failed += 1
            if not self._cannot_tell:
                _log_failure("clients cannot be told what to send", error)
            self._cannot_tell = True

    def _tell(self) -> None:
        engine, generation = self._engine, self._engine.generation
        dispatcher = generation.dispatcher
        telemetry = dispatcher.telemetry(engine.clock())
        left_ns = tell_all(self._clients, dispatcher.plan, generation.deployment, telemetry, engine.left_ns)
        engine.left_ns = None if engine.session.knows_networks else left_ns

    def _complete(self) -> None:
        """The plan in force under the delays measured now."""
        try:
            self._engine.adopt(self._engine.generation)
        except Exception as error:
            self._failed("the plan in force cannot be completed, and is planned anew", error)

    def _failed(self, what: str, error: Exception) -> None:
        """There is no plan; counted each time, and told the first time of several."""
        self._engine.meters.plans_failed += 1
        if not self._is_failing:
            _log_failure(what, error)
        self._is_failing = True

    async def replan(self, leaving: Collection[int] = ()) -> None:
        """Once; a failing planner is logged, and the plan in force stays until it is asked again. `leaving`: workers
        that are there, and are planned without.
        """
        async with self.turn:
            try:
                await self._replan(leaving)
                self._is_failing = False
            except Exception as error:  # a planner's bug must not end the planning
                self._failed("the planner made no plan, and the one in force stays", error)
            self._without |= set(leaving)

    async def _replan(self, leaving: Collection[int]) -> None:
        engine, generation = self._engine, self._engine.generation
        begun_ns = engine.clock()
        telemetry = generation.dispatcher.telemetry(engine.clock())
        if leaving:
            alive = telemetry.worker_alive.copy()
            alive[list(leaving)] = False
            telemetry = replace(telemetry, worker_alive=alive)
        conditions = engine.conditions(generation)
        queue = _Queue(generation, engine.loop)
        clients = _SeenClients(self._clients, engine)

        planned: InForce | None = None

        def planned_and_placed() -> tuple[InForce, dict[int, Place]]:
            nonlocal planned
            planned = engine.session.next(
                generation.in_force,
                telemetry,
                conditions,
                clients=clients.read,
                waiting=queue.read,
                lines=queue.read_lines,
            )
            return planned, places(planned.plan, planned.deployment, clients.seen or (), telemetry.latency_ratio)

        def tell_journal() -> None:
            plan, looks = None if planned is None else planned.plan, (queue.seen, queue.seen_lines, clients.seen)
            engine.journal.planned(generation.dispatcher, telemetry, conditions, plan, *looks)

        try:
            made, placed = await asyncio.to_thread(planned_and_placed)
        except Exception:
            tell_journal()  # a planner may remember what it saw also where it failed
            if planned is not None:
                engine.journal.refused(engine.clock(), generation.dispatcher)
            raise
        tell_journal()
        engine.adopt(generation, made)
        self._looks_at_clients = clients.seen is not None
        self._clients.planned(clients.seen or (), placed)
        if self._clients.is_changed:  # while the planner planned
            self._prod()
        if engine.twin is not None and clients.seen:
            engine.twin.clients(telemetry.now_ns, clients.seen)
        engine.meters.planning.add(engine.clock() - begun_ns)


def _log_failure(what: str, error: Exception) -> None:
    """A StrettoError is a sentence for the operator; any other is a bug, and its traceback is wanted."""
    if isinstance(error, StrettoError):
        log.warning("%s: %s", what, error)
    else:
        log.error(what, exc_info=error)


class _SeenClients:
    """The clients as of now, for a planner that asks from its own thread."""

    def __init__(self, clients: Clients, engine: Engine):
        self._clients, self._engine = clients, engine
        self.seen: tuple[Client, ...] | None = None  # None: the planner did not look

    def read(self) -> tuple[Client, ...]:
        async def on_loop() -> tuple[Client, ...]:
            return self._clients.to_plan_for(self._engine.clock())

        if self.seen is None:
            self.seen = asyncio.run_coroutine_threadsafe(on_loop(), self._engine.loop).result(timeout=10)
        return self.seen


class _Queue:
    """What waits, for a planner that asks from its own thread: the dispatcher may be read only on the loop's."""

    def __init__(self, generation: Generation, loop: asyncio.AbstractEventLoop):
        self._generation, self._loop = generation, loop
        self.seen: tuple[WaitingQuery, ...] | None = None  # None: the planner did not look
        self.seen_lines: Lines | None = None

    def read(self) -> tuple[WaitingQuery, ...]:
        async def on_loop() -> tuple[WaitingQuery, ...]:
            return self._generation.dispatcher.waiting(self._generation.theta_of)

        self.seen = asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(timeout=10)
        return self.seen

    def read_lines(self, depth: int) -> Lines:
        async def on_loop() -> Lines:
            return self._generation.dispatcher.lines(depth)

        self.seen_lines = asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(timeout=10)
        return self.seen_lines
