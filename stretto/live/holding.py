"""Workers that load new models beside their work, before the engine moves over to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from stretto.live.crew import Crew
from stretto.live.shelf import ModelSpec

log = logging.getLogger("stretto.live")

MARGIN_S = 0.5  # in which the crew finds out about a load that hangs, and says so

Answer = asyncio.Future[dict[str, str]]


class Holding:
    """`load_s` is how long one model may take."""

    def __init__(self, crew: Crew, load_s: float):
        self._crew, self._load_s = crew, load_s
        self._waiting: list[tuple[int, Answer]] = []

    async def hold(self, models: Mapping[int, Sequence[ModelSpec]], at_once: int | None = None) -> dict[str, str]:
        """These, by worker, on so many of them at a time (None: all); those that cannot be held, with the reason."""
        failed: list[tuple[int, dict[str, str]]] = []
        workers = list(models)
        step = at_once or max(1, len(workers))
        for first in range(0, len(workers), step):
            failed += await self._hold({worker: models[worker] for worker in workers[first : first + step]})
        broken: dict[str, str] = {}
        for worker, theirs in failed:  # now that it is known who holds them
            if not self._crew.lookout.ends_at_fault(worker, theirs):
                broken |= theirs
        return broken

    async def _hold(self, models: Mapping[int, Sequence[ModelSpec]]) -> list[tuple[int, dict[str, str]]]:
        """Of each worker what it cannot hold."""
        loop = asyncio.get_running_loop()
        waiting: list[tuple[int, Answer]] = []
        for worker, specs in models.items():
            if specs:
                answer: Answer = loop.create_future()
                waiting.append((worker, answer))
                self._crew.prepare(worker, specs, _setter(answer))
        self._waiting += waiting
        failed: list[tuple[int, dict[str, str]]] = []
        end = loop.time() + MARGIN_S + self._load_s * max(map(len, models.values()), default=0)
        try:
            for worker, answer in waiting:
                try:
                    failed.append((worker, await asyncio.wait_for(answer, max(0.0, end - loop.time()))))
                except TimeoutError:
                    log.warning("worker %d has not loaded all that is new; it loads what it lacks when it can", worker)
        finally:
            self._waiting = [pair for pair in self._waiting if pair not in waiting]
        return failed

    def left(self, worker: int) -> None:
        """It never tells; it loads anew when it starts."""
        for holder, answer in self._waiting:
            if holder == worker and not answer.done():
                answer.set_result({})


def _setter(answer: Answer) -> Callable[[dict[str, str]], None]:
    def set_once(broken: dict[str, str]) -> None:
        if not answer.done():
            answer.set_result(broken)

    return set_once
