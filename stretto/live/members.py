"""One worker as its crew knows it: its executor, what it was given, what it holds, and who will follow it.

Batches are given to the executor in order. One may be held back: for a successor that takes over when what runs has
ended, or because its model is set aside, so that it ends without being run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from stretto.live.executor import Executor, Job, Listener, Loading, Loss
from stretto.live.quarantine import Fault
from stretto.live.shelf import ModelSpec, Report

FIRST_PAUSE_S = 0.1


class Hearer(Listener, Protocol):
    """The crew, as it hears its executors."""

    members: list[Member]

    def successor_ready(self, worker: int, executor: Executor, broken: dict[str, str]) -> None: ...

    def successor_lost(self, worker: int, executor: Executor, reason: str) -> None: ...


class Ear:
    """What one executor tells, for the crew: only as long as that executor is in charge, or is to follow."""

    def __init__(self, crew: Hearer, worker: int):
        self._crew, self._worker = crew, worker
        self.executor: Executor | None = None

    @property
    def _is_in_charge(self) -> bool:
        return self._crew.members[self._worker].executor is self.executor

    def worker_ready(self, worker: int, broken: dict[str, str]) -> None:
        if self._is_in_charge:
            self._crew.worker_ready(worker, broken)
        elif self.executor is not None:
            self._crew.successor_ready(worker, self.executor, broken)

    def worker_leaving(self, worker: int) -> None:
        if self._is_in_charge:
            self._crew.worker_leaving(worker)
        elif self.executor is not None:
            self._crew.successor_lost(worker, self.executor, "it is leaving")

    def worker_lost(self, worker: int, reason: str, loss: Loss = Loss.OWN) -> None:
        if self._is_in_charge:
            self._crew.worker_lost(worker, reason, loss)
        elif self.executor is not None:
            self._crew.successor_lost(worker, self.executor, reason)

    def job_ended(self, job: Job, report: Report) -> None:
        if self._is_in_charge:
            self._crew.job_ended(job, report)

    def load_ended(self, worker: int, key: str, problem: str | None, alone: bool) -> None:
        if self._is_in_charge:
            self._crew.load_ended(worker, key, problem, alone)


@dataclass
class Successor:
    """Started beside the worker that it is to replace, with the models that that one holds."""

    executor: Executor
    held: set[str]
    started_ns: int
    is_ready: bool = False


@dataclass
class Member:
    """`jobs` were decided for it and have not ended, in order; the executor has the first `given` of them."""

    executor: Executor
    is_ready: bool = False
    jobs: list[Job] = field(default_factory=list)
    given: int = 0
    held: set[str] = field(default_factory=set)  # keys of the models that it was told to hold
    specs: dict[str, ModelSpec] = field(default_factory=dict)  # of these, how they are loaded
    coming: set[str] = field(default_factory=set)  # of these, what is loaded beside its work and not there yet
    ordered: set[str] = field(default_factory=set)  # loads that no job waits for, and that have not ended
    began_ns: int = 0  # when the first of its jobs became the first
    started_ns: int = 0
    ready_ns: int = 0
    pause_s: float = FIRST_PAUSE_S
    is_retired: bool = False  # it is to go, or gone, and is not started again until it is called back
    is_leaving: bool = False  # whoever has its place ends by itself; the place waits for another then
    restarts: int = 0
    successor: Successor | None = None
    no_successor_before_ns: int = 0
    loading: tuple[Loading, int] | None = None  # what it was seen to load last, and since when
    memory_bytes: int = 0  # when last looked at
    resting_bytes: int = 0  # soon after it was ready
    ended_for: tuple[Fault | None, str] | None = None  # why the crew itself ended it; None: for no model's fault
    culprit: str | None = None  # and the model that filled its memory, where that is why

    def begin(self, specs: dict[str, ModelSpec], now_ns: int) -> None:
        """Its executor starts with these models."""
        self.held, self.specs, self.coming, self.ordered = set(specs), specs, set(), set()
        self.started_ns, self.ready_ns = now_ns, 0
        self.loading, self.ended_for, self.culprit = None, None, None
        self.memory_bytes = self.resting_bytes = 0

    def serves_with(self, key: str) -> bool:
        """It can serve, and this model is there and not only on its way."""
        coming = self.coming.union(self.ordered, (each.key for each in self.executor.loading()))
        return self.is_ready and not self.is_retired and key in self.held and key not in coming

    def look_at_memory(self) -> None:
        self.memory_bytes = self.executor.memory_bytes()
        self.resting_bytes = self.resting_bytes or self.memory_bytes

    def grown_by(self) -> str | None:
        """The model that its memory grew most with; None where nobody is known to be at fault."""
        grown = dict(self.executor.growth())
        if self.jobs:  # what no ended batch took is its who runs now
            rest = self.memory_bytes - self.resting_bytes - sum(grown.values())
            grown[self.jobs[0].key] = grown.get(self.jobs[0].key, 0) + max(0, rest)
        return max(grown, key=grown.__getitem__, default=None)
