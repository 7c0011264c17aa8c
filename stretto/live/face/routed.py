"""A front end of several schedulers, one for each sub-cluster (Symphony 4.1): a request goes to one that serves its
application. To the front end's service they are one engine; what they serve together is what is served.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.core.outcome import Outcome
from stretto.live.face.front import Crowd, Directory, FrontEngine
from stretto.live.face.messages import Kind
from stretto.live.lag import LoopLag
from stretto.live.requests import Request
from stretto.live.state import State
from stretto.repository.application import ApplicationFiles


class Routed:
    """Each of the engines has a link of its own, and is lost and found again by itself."""

    def __init__(self, engines: Sequence[FrontEngine]):
        self.engines = tuple(engines)
        self.loop, self.clock = engines[0].loop, engines[0].clock
        self.lag = LoopLag()
        self.crew = Crowd()
        self.directory = Directory()
        self._routes: dict[str, tuple[FrontEngine, ...]] = {}  # by application: those that it may go to
        self.said: Mapping[str, Any] | None = None
        self.on_directory: Any = lambda directory: None
        for engine in engines:
            engine.on_directory = self._directed

    @property
    def files(self) -> Mapping[str, ApplicationFiles]:
        return self.engines[0].files

    @files.setter
    def files(self, files: Mapping[str, ApplicationFiles]) -> None:
        for engine in self.engines:
            engine.files = files

    @property
    def is_linked(self) -> bool:
        return any(engine.is_linked for engine in self.engines)

    @property
    def waiting(self) -> int:
        return sum(engine.waiting for engine in self.engines)

    @property
    def submitted(self) -> Counter[str]:
        return sum((Counter(engine.submitted) for engine in self.engines), Counter())

    @property
    def outcomes(self) -> Counter[tuple[str, Outcome]]:
        return sum((engine.outcomes for engine in self.engines), Counter())

    @property
    def statistics(self) -> dict[str, Any]:
        """Of all: each counts what it served."""
        return {"model_stats": [each for engine in self.engines for each in engine.statistics.get("model_stats", [])]}

    def _directed(self, directory: Directory) -> None:
        """One of them serves something else, or is gone."""
        there = [engine for engine in self.engines if engine.is_linked]
        self.directory = merged([engine.directory for engine in there])
        self._routes = {name: self._serving(name, there) for name in self.directory.served}
        self.on_directory(self.directory)
        for engine in there:
            if engine.directory.leaving:
                ready = (name for name in engine.directory.leaving if self.directory.served[name][1])
                engine.elsewhere(name for name in ready if engine not in self._routes[name])

    def submit(self, request: Request, gathers: bool = False) -> None:
        """KeyError where none of them serves the application."""
        said, self.said = self.said, None
        routes = self._routes[request.application]
        # Of several, the one with the least to do for each of its workers.
        engine = routes[0] if len(routes) == 1 else min(routes, key=_busy)
        engine.said = said
        engine.submit(request, gathers)

    def _serving(self, application: str, there: Sequence[FrontEngine]) -> tuple[FrontEngine, ...]:
        """Those that serve it best: ready, not about to give it up, and by the latest partition."""
        tensors = self.directory.tensors[application]  # that requests are checked by
        serving = [engine for engine in there if engine.directory.tensors.get(application) == tensors]
        best = max(_standing(application, engine.directory) for engine in serving)
        return tuple(engine for engine in serving if _standing(application, engine.directory) == best)

    def cancel(self, request: Request) -> None:
        for engine in self.engines:
            engine.cancel(request)  # those that do not know it do nothing

    def tell(self, kind: Kind, payload: bytes = b"") -> None:
        for engine in self.engines:
            engine.tell(kind, payload)

    async def ask(self) -> None:
        await asyncio.gather(*(engine.ask() for engine in self.engines if engine.is_linked))

    def known(self, edition: int) -> None:
        """All that they serve is served here."""
        for engine in self.engines:
            engine.known(engine.directory.edition)


def _standing(application: str, directory: Directory) -> tuple[bool, bool, int]:
    """How good it is to ask this scheduler for it, beside others."""
    return directory.served[application][1], application not in directory.leaving, directory.partition


def _busy(engine: FrontEngine) -> float:
    return engine.waiting / max(1, engine.directory.workers)


def merged(directories: Sequence[Directory]) -> Directory:
    """What is served by any of them. Numbers in it mean nothing: each has its own."""
    whole, best = Directory(), dict[str, tuple[bool, bool, int]]()
    if not directories:
        return whole
    whole.version = max(each.version for each in directories)
    states = [each.state for each in directories]
    whole.state = State.SERVING.value if State.SERVING.value in states else states[0]
    whole.is_ready = any(each.is_ready for each in directories)
    whole.is_leaving = all(each.is_leaving for each in directories)
    whole.workers = sum(each.workers for each in directories)
    for each in directories:
        for name, served in each.served.items():
            standing = _standing(name, each)
            if name not in best or standing > best[name]:
                best[name], whole.served[name], whole.tensors[name] = standing, served, each.tensors[name]
    whole.unloaded = frozenset.intersection(*(each.unloaded for each in directories))
    return whole
