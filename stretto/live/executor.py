"""The contract of an executor: what a worker is told, and what it tells.

A worker is told to hold models, to run a job, and to stop. It tells that it is ready, that a job or a load ended, and
that it is lost. Everything it tells comes on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from stretto.live.face.columns import Rows, Run
from stretto.live.requests import rows_of
from stretto.live.rows import Inputs, Lying
from stretto.live.shelf import ModelSpec, Report


@dataclass(eq=False, slots=True)
class Job:
    """One batch on its way: who waits for it is `entries`, the engine's own."""

    worker: int
    variant: int
    key: str
    count: int
    entries: Sequence[Any]
    generation: Any  # of the engine: whose dispatcher decided it
    decided_ns: int
    expected_ns: int
    was_alone: bool = True  # when it was given to the worker, nothing else ran there
    rows: Sequence[Inputs] | None = None  # where they are not those of its entries

    @property
    def parts(self) -> Sequence[Inputs]:
        """The queries' rows, in order; to be asked for when it is given to the worker, on the loop's thread."""
        if self.rows is not None:
            return self.rows
        return self.entries.parts() if isinstance(self.entries, Rows) else rows_of(self.entries)

    @property
    def runs(self) -> Sequence[Run]:
        """The same where rows lie elsewhere, and are to be sent from there."""
        if isinstance(self.entries, Rows):
            return self.entries.runs()
        parts = [part for part in self.parts if isinstance(part, Lying)]
        return [(part.front, part.number, part.row, len(part), part.size) for part in parts]

    @property
    def last_deadline_ns(self) -> int:
        """Of its queries; nobody waits for it behind that."""
        if isinstance(self.entries, Rows):
            return self.entries.last_deadline_ns()
        return max(query.request.deadline_ns for query in self.entries)


@dataclass(frozen=True)
class Loading:
    """A load that a worker is at."""

    number: int  # tells one order from the next
    key: str
    is_beside: bool  # its batches go on meanwhile
    share: float = field(default=0.0, compare=False)  # of it that is done, as far as is known


class Loss(StrEnum):
    """Why a worker is lost."""

    OWN = "own"  # something that happened in it
    KILLED = "killed"  # somebody else ended its process
    DEVICE = "device"  # its device failed or is gone, which is no model's fault


class Listener(Protocol):
    """The engine, as an executor sees it."""

    def worker_ready(self, worker: int, broken: dict[str, str]) -> None:
        """All models of its first memory are held, but those in `broken`, with the reason."""

    def job_ended(self, job: Job, report: Report) -> None: ...

    def load_ended(self, worker: int, key: str, problem: str | None, alone: bool) -> None:
        """`alone`: no job waits for it."""

    def worker_leaving(self, worker: int) -> None:
        """It was told to end, by others: it finishes what it has, and wants nothing more."""

    def worker_lost(self, worker: int, reason: str, loss: Loss = Loss.OWN) -> None:
        """What it ran is lost with it; it can be started again."""


class Executor(Protocol):
    """One worker."""

    is_here: bool  # it takes a core of this machine while it runs

    @property
    def is_awaited(self) -> bool:
        """It was started, but somebody else brings it; nobody here can say when."""

    def start(self, specs: Sequence[ModelSpec]) -> None:
        """Begin, with these models; answers with worker_ready or worker_lost."""

    def run(self, job: Job) -> None:
        """After whatever it was told before."""

    def load(self, spec: ModelSpec, alone: bool) -> None:
        """After whatever it was told before. The end is reported where no job waits for it, or where it failed."""

    def prepare(self, specs: Sequence[ModelSpec], done: Callable[[dict[str, str]], None]) -> None:
        """Hold these too, beside its work as far as it can; `done` gets those that cannot be held, with reasons."""

    def unload(self, key: str) -> None: ...

    def loading(self) -> Sequence[Loading]:
        """What it loads at this moment, the oldest order first; also after it was lost, as of then."""

    def memory_bytes(self) -> int:
        """What it alone holds in memory; 0 where that is not known."""

    def growth(self) -> Mapping[str, int]:
        """By key: bytes that its memory grew by while that model ran, in batches that ended, as far as it is known."""

    def kill(self) -> None:
        """End it at once, where that can be done; answers with worker_lost."""

    async def stop(self, patience_s: float = 10.0) -> None:
        """End it when it has done what it was told, or when patience is over."""
