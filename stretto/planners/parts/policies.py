"""The policies of one planner: those stored, those made before, and a way to have more of them made.

They are remembered by what they are for, not by the deployment they were asked for in: a worker that is lost and comes
back, or a change of another application, finds them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.planners.parts.library import Library, Recipe
from stretto.planners.parts.policy import Policy, Stored
from stretto.planners.parts.store import matching
from stretto.planners.parts.task import Task, task_of
from stretto.planners.ports import MadePolicy, MakePolicy, PolicyPort

MOST_LIBRARIES = 256  # the one that was not used for longest gives way


@dataclass(eq=False)
class Policies:
    """`port`: where missing policies are made; without one they are made on the spot."""

    options: Recipe
    make: MakePolicy
    port: PolicyPort | None = None
    stored: Sequence[Stored] = ()
    _libraries: dict[tuple[str, ...], Library] = field(default_factory=dict, init=False)  # the last one used last
    _asked: set[tuple[tuple[str, ...], float]] = field(default_factory=set, init=False)
    _deployment: Deployment | None = field(default=None, init=False)
    _tasks: dict[tuple[int, str, int], Task] = field(default_factory=dict, init=False)  # of that deployment

    @property
    def uses_stored(self) -> bool:
        """Whether any of the stored policies is for what was planned."""
        return any(library.complete_to > 0 for library in self._libraries.values())

    def collect(self) -> None:
        """Take what was made since the last plan."""
        for made in () if self.port is None else self.port.collect():
            self.take(made)

    def take(self, made: MadePolicy) -> None:
        """Keep what was made, or remember that it may be asked for again."""
        self._asked.discard((made.task.key, made.load))
        if made.policy is not None:
            self._keep(self.library(made.task).added(made.policy))

    def task(self, deployment: Deployment, application: int, kind: str, workers: int) -> Task:
        """As `task_of`, made once for a deployment."""
        if deployment is not self._deployment:
            self._deployment = deployment
            self._tasks.clear()
        key = (application, kind, workers)
        if key not in self._tasks:
            self._tasks[key] = task_of(deployment, application, kind, workers)
        return self._tasks[key]

    def library(self, task: Task, *, must_match: bool = False) -> Library:
        """What there is for a task. `must_match`: stored policies that are for something else are a mistake."""
        library = self._libraries.pop(task.key, None)
        if library is None:
            library = Library(task, self.options)
            if self.stored:
                try:
                    library = matching(self.stored, task, self.options)
                except StrettoError:
                    if must_match:
                        raise
        self._keep(library)
        return library

    def made(self, task: Task, load: float) -> Policy:
        """Made on the spot."""
        policy = self.make(task, self.options, load)
        self._keep(self.library(task).added(policy))
        return policy

    def ask(self, task: Task, load: float) -> None:
        """Have it made by the port, once."""
        assert self.port is not None
        if (task.key, load) not in self._asked:
            self._asked.add((task.key, load))
            self.port.ask(task, self.options, load, self.make)

    def _keep(self, library: Library) -> None:
        self._libraries.pop(library.task.key, None)
        self._libraries[library.task.key] = library
        if len(self._libraries) > MOST_LIBRARIES:
            del self._libraries[next(iter(self._libraries))]
