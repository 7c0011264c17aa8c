"""Loads that the placement asks for, of which no batch waits: with a worker to themselves, or beside its work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from stretto.dispatch.decisions import Load
from stretto.live.generation import Generation
from stretto.live.quarantine import label_of
from stretto.live.serving import Serving

log = logging.getLogger("stretto.live")


class Loader(Serving, Protocol):
    """The engine whose workers load."""

    on_broken: Callable[[dict[str, str]], bool]


class Loads:
    """The engine's: all of it on the loop's thread."""

    def __init__(self, engine: Loader):
        self._engine = engine
        self._alone: dict[tuple[int, str], Generation] = {}  # under way, by worker and key, and who asked for them

    def begin(self, generation: Generation, load: Load) -> None:
        """The dispatcher decided it."""
        spec = generation.served.spec(load.worker, load.variant)
        if load.beside:
            self._begin_beside(generation, load)
            return
        if load.alone:
            self._alone[load.worker, spec.key] = generation
        self._engine.crew.load(load.worker, spec, load.alone)

    def _begin_beside(self, generation: Generation, load: Load) -> None:
        """The worker runs its batches on meanwhile. Nobody waits for it once the worker is lost or another generation
        serves.
        """
        engine, spec = self._engine, generation.served.spec(load.worker, load.variant)

        def ended(broken: dict[str, str]) -> None:
            problem = broken.get(spec.key)
            if problem is not None:
                self._tell(load.worker, spec.key, problem)
            if generation is engine.generation:
                generation.dispatcher.loaded(engine.clock(), load.worker, load.variant, problem is None)
                engine.act(generation)

        if engine.crew.is_ready(load.worker):  # else it was lost a moment ago, and the dispatcher hears of that next
            engine.crew.prepare(load.worker, (spec,), ended)

    def ended(self, worker: int, key: str, problem: str | None, alone: bool) -> None:
        """A load that the placement asked for ended, or one that a batch needs failed, as the batch will."""
        engine = self._engine
        if problem is not None:
            self._tell(worker, key, problem)
        if alone and self._alone.pop((worker, key), None) is engine.generation:
            engine.generation.dispatcher.finished(engine.clock(), worker, problem is None)
            engine.act(engine.generation)

    def left(self, worker: int) -> None:
        """It is lost, and what it was loading with it."""
        self._alone = {which: asked for which, asked in self._alone.items() if which[0] != worker}

    def _tell(self, worker: int, key: str, problem: str) -> None:
        log.error("worker %d cannot hold %s: %s", worker, label_of(key), problem)
        if not self._engine.crew.lookout.ends_at_fault(worker, {key: problem}):
            self._engine.on_broken({key: problem})
