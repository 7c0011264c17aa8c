"""What a worker elsewhere was told to load and has not ended yet. Orders and jobs are numbered together, as they are
told: an order that stands behind a job has not begun.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from stretto.live.executor import Listener, Loading
from stretto.live.shelf import ModelSpec


class Orders:
    """Of one executor. `tell` sends an order: its number, the model, and whether it goes on beside the batches."""

    def __init__(self, worker: int, listener: Listener, tell: Callable[[int, ModelSpec, bool], None]):
        self.specs: dict[str, ModelSpec] = {}  # of what it was told to hold
        self._worker, self._listener, self._tell = worker, listener, tell
        self._pending: dict[int, tuple[Loading, Callable[[str], None]]] = {}
        self._last = 0

    def number(self) -> int:
        """The next, of an order or a job."""
        self._last += 1
        return self._last

    def load(self, spec: ModelSpec, alone: bool) -> None:
        def ended(problem: str) -> None:
            if alone or problem:
                self._listener.load_ended(self._worker, spec.key, problem or None, alone)

        self._order(spec, ended)

    def hold(self, specs: Sequence[ModelSpec], done: Callable[[dict[str, str]], None], is_beside: bool = False) -> None:
        """One or more; `done` after the last, with those that cannot be."""
        broken: dict[str, str] = {}
        left = len(specs)

        def ended_one(key: str, problem: str) -> None:
            nonlocal left
            if problem:
                broken[key] = problem
            left -= 1
            if left == 0:
                done(broken)

        self.specs.update((spec.key, spec) for spec in specs)  # so that there is room for all of them at once
        for spec in specs:
            self._order(spec, lambda problem, key=spec.key: ended_one(key, problem), is_beside)  # type: ignore[misc]

    def _order(self, spec: ModelSpec, ended: Callable[[str], None], is_beside: bool = False) -> None:
        self.specs[spec.key] = spec
        number = self.number()
        self._pending[number] = Loading(number, spec.key, is_beside), ended
        self._tell(number, spec, is_beside)

    def ended(self, number: int, problem: str) -> None:
        """The worker said so; one that nobody waits for is not heard."""
        if number in self._pending:
            self._pending.pop(number)[1](problem)

    def went_on(self, number: int, share: float) -> None:
        """The worker said how far it is."""
        if number in self._pending:
            loading, ended = self._pending[number]
            self._pending[number] = replace(loading, share=share), ended

    def loading(self, jobs: Collection[int]) -> Sequence[Loading]:
        """Those that have begun, while these jobs have not ended."""
        running = min(jobs, default=self._last + 1)
        return [each for number, (each, _) in self._pending.items() if each.is_beside or number < running]
