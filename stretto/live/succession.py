"""One generation follows another: new models are loaded beside the work, waiting queries move, batches end where they
began.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from stretto.core.outcome import Outcome
from stretto.live.beginning import fitting
from stretto.live.books import Books
from stretto.live.face.remote import RemoteQuery
from stretto.live.gathering import Gathering
from stretto.live.generation import NOTHING, Generation, GenerationMaker, Served
from stretto.live.holding import Holding
from stretto.live.requests import NoSuchVariant, Query
from stretto.live.serving import Serving
from stretto.live.shelf import ModelSpec
from stretto.planning.session import InForce


class Succeeding(Serving, Protocol):
    """The engine whose generations follow each other."""

    ending: list[Generation]
    left_ns: tuple[int, ...] | None
    gathering: Gathering
    books: Books

    def trials_changed(self) -> None: ...


class Succession:
    """The engine's: all of it on the loop's thread."""

    def __init__(self, engine: Succeeding, make: GenerationMaker, holding: Holding):
        self._engine, self._make, self._holding = engine, make, holding

    async def hold(self, served: Served, at_once: int | None = None) -> dict[str, str]:
        """Every worker that is there loads what is new beside its work, as far as it has room, so many of them at a
        time (None: all); those that cannot be, with the reason.
        """
        now, crew = self._engine.generation, self._engine.crew
        new = [variant for variant, spec in enumerate(served.specs) if spec.key not in now.served.keys]
        models: dict[int, list[ModelSpec]] = {}
        for worker in filter(crew.is_ready, range(len(crew.members))):
            held = [now.deployment.variants[variant] for variant in now.dispatcher.resident(worker)]
            slot, variants = now.deployment.workers[worker], served.deployment.variants
            wanted = [variant for variant in new if variants[variant].profile_on(slot.kind) is not None]
            fits = fitting([*held, *(variants[variant] for variant in wanted)], slot.memory_bytes)
            models[worker] = [served.spec(worker, wanted[place - len(held)]) for place in fits if place >= len(held)]
        return await self._holding.hold(models, at_once)

    def enlarge(self, served: Served) -> None:
        """The same applications on more workers: nothing that was measured is lost. The new ones join when they are
        ready, and serve from the next plan on.
        """
        engine, crew = self._engine, self._engine.crew
        first = len(crew.members)
        crew.add(len(served.deployment.workers) - first)
        engine.generation.enlarge(engine.clock(), served)
        crew.start(first)
        engine.act(engine.generation)

    def replace(self, served: Served, in_force: InForce) -> None:
        """Serve a new deployment from now on. Waiting queries move; batches on their way end where they began."""
        engine, crew = self._engine, self._engine.crew
        engine.gathering.enter()
        now_ns = engine.clock()
        old = engine.generation
        engine.left_ns = None  # of the applications that were
        engine.generation = self._make(served, in_force, now_ns)
        engine.generation.dispatcher.inherit(now_ns, old.dispatcher.estimates())
        engine.ending.append(old)
        crew.lookout.serve(served.keys, served.has_several)
        engine.trials_changed()  # what is new is on trial before its first query comes
        self._move_waiting(old, now_ns)
        for worker in range(len(crew.members)):
            if crew.is_ready(worker):
                crew.hold_only(worker, engine.generation.first_models(worker))
        self.join_ready()
        self.forget_ended()

    def join_ready(self) -> None:
        """Every worker that can serve and runs nothing for an earlier generation is there."""
        engine, crew = self._engine, self._engine.crew
        now_ns = engine.clock()
        for worker in range(len(crew.members)):
            if crew.is_ready(worker) and not crew.is_busy(worker):
                engine.generation.dispatcher.worker_joined(now_ns, worker)
        engine.act(engine.generation)

    def _move_waiting(self, old: Generation, now_ns: int) -> None:
        """Each is looked at when it is its turn: while others leave, the old dispatcher may start a batch, which ends
        where it began, or drop what became late.
        """
        waiting = old.dispatcher.waiting()
        self.move((old.queries[each.ticket] for each in waiting if old.dispatcher.is_waiting(each.ticket)), old, now_ns)

    def move(self, queries: Iterable[Query | RemoteQuery], old: Generation, now_ns: int) -> None:
        """Into the generation that serves now, which may be the same; a query that it has no variant for ends as
        failed. Models that could not answer a query do not get it again.
        """
        new = self._engine.generation
        for query in queries:
            request = query.request
            application = new.numbers.get(request.application)
            demand = -1
            try:
                if application is None:
                    raise NoSuchVariant("the application is no longer served")
                if not new.takes(application, request):
                    raise NoSuchVariant("the application takes or gives other tensors by now")
                avoids = query.mishap.avoids if query.mishap is not None else NOTHING
                demand = new.demand_of(now_ns, application, request, avoids)
            except NoSuchVariant as error:
                request.problem = str(error) if query.mishap is None else query.mishap.problem
                old.dispatcher.cancel(now_ns, query.ticket, Outcome.FAILED)
                continue
            del old.queries[query.ticket]
            old.dispatcher.cancel(now_ns, query.ticket)
            old.moved[old.numbers[request.application]] += 1
            new.enter(query, now_ns, application, demand, more=True)
        new.dispatcher.advance(now_ns)
        self._engine.act(old)
        self._engine.act(new)

    def forget_ended(self) -> None:
        """Generations in which nothing waits or runs any more: their counts go to the books."""
        ending = self._engine.ending
        for old in [old for old in ending if old.is_idle]:
            self._engine.books.close(old)
            ending.remove(old)
