"""Calls the planner now and then with what was measured, and hands its plan to the engine.

Planners may take long, so they run in a thread of their own; the dispatcher goes on following the plan it has. Between
two calls, and for planners that plan only once, the plan in force is brought in line with the delays measured.
"""

from __future__ import annotations

import asyncio
import logging

from stretto.core.client import Clients
from stretto.core.errors import StrettoError
from stretto.core.view import Lines, WaitingQuery
from stretto.live.engine import Engine
from stretto.live.generation import Generation

log = logging.getLogger("stretto.live")

COMPLETE_S = 0.25  # how often measured delays are brought into the plan


class Replanner:
    """For the life of the server, whatever the generation. `period_s` 0: the planner is asked no more."""

    def __init__(self, engine: Engine, period_s: float, clients: Clients):
        self._engine = engine
        self._clients = clients.all
        self.period_s = period_s
        self.turn = asyncio.Lock()  # held while a plan is made and adopted, and by whoever changes what is planned for
        self._is_due = False
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        while True:
            pause_s = COMPLETE_S
            if self.period_s:
                pause_s = min(pause_s, max(asked_s + self.period_s - loop.time(), 0.001))
            await asyncio.sleep(pause_s)
            is_time = self.period_s and loop.time() >= asked_s + self.period_s
            if is_time or self._is_failing or self._is_due:
                asked_s, self._is_due = loop.time(), False
                await self.replan()
            else:
                self._complete()

    def hurry(self) -> None:
        """The fleet changed: a planner that follows the load is asked at the next look, whatever its period."""
        self._is_due = self.period_s > 0

    def _complete(self) -> None:
        """The plan in force under the delays measured now."""
        try:
            self._engine.adopt(self._engine.generation)
        except StrettoError as error:
            if not self._is_failing:
                log.warning("the plan in force cannot be completed, and is planned anew: %s", error)
            self._is_failing = True

    async def replan(self) -> None:
        """Once; a failing planner is logged, and the plan in force stays until it is asked again."""
        async with self.turn:
            await self._replan()

    async def _replan(self) -> None:
        engine, generation = self._engine, self._engine.generation
        telemetry = generation.dispatcher.telemetry(engine.clock())
        conditions = generation.conditions(engine.delays.delays)
        queue = _Queue(generation, engine.loop)
        try:
            planned = await asyncio.to_thread(
                engine.session.next,
                generation.in_force,
                telemetry,
                conditions,
                clients=self._clients,
                waiting=queue.read,
                lines=queue.read_lines,
            )
            engine.journal.planned(generation.dispatcher, telemetry, planned, queue.seen, queue.seen_lines)
            engine.adopt(generation, planned)
            self._is_failing = False
        except Exception as error:  # a planner's bug must not end the planning
            if not self._is_failing and isinstance(error, StrettoError):
                log.warning("the planner made no plan, and the one in force stays: %s", error)
            elif not self._is_failing:
                log.exception("the planner failed, and the plan in force stays")
            self._is_failing = True


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
