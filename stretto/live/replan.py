"""Calls the planner now and then with what was measured, and hands its plan to the engine.

Planners may take long, so they run in a thread of their own; the dispatcher goes on following the plan it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from stretto.core.errors import StrettoError
from stretto.core.view import Planner, WaitingQuery
from stretto.live.engine import Engine
from stretto.live.generation import Generation
from stretto.planning.readings import Readings

log = logging.getLogger("stretto.live")


class Replanner:
    """One planner for the life of the server, whatever the generation."""

    def __init__(self, engine: Engine, planner: Planner, period_s: float):
        self._engine = engine
        self._planner = planner
        self.period_s = period_s
        self._task: asyncio.Task[None] | None = None
        self._readings = Readings(engine.generation.deployment)
        self._is_failing = False

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.period_s)
            await self.replan()

    async def replan(self) -> None:
        """Once; a planner that fails is told of, and the plan in force stays."""
        generation = self._engine.generation
        now_ns = self._engine.clock()
        if self._readings.deployment is not generation.deployment:
            self._readings = Readings(generation.deployment)
        telemetry = generation.dispatcher.telemetry(now_ns)
        view = self._readings.view(telemetry, plan=generation.plan, waiting=self._waiting_of(generation))
        try:
            plan = await asyncio.to_thread(self._planner, view)
            self._engine.adopt(generation, plan)
            self._is_failing = False
        except StrettoError as error:
            if not self._is_failing:
                log.warning("the planner made no plan, and the one in force stays: %s", error)
            self._is_failing = True
        except Exception:  # a planner's bug must not end the planning
            if not self._is_failing:
                log.exception("the planner failed, and the plan in force stays")
            self._is_failing = True

    def _waiting_of(self, generation: Generation) -> Callable[[], tuple[WaitingQuery, ...]]:
        """The planner asks from its own thread; the dispatcher may be read only on the loop's."""
        loop = self._engine.loop

        async def read() -> tuple[WaitingQuery, ...]:
            return generation.dispatcher.waiting(generation.theta_of)

        return lambda: asyncio.run_coroutine_threadsafe(read(), loop).result(timeout=10)
