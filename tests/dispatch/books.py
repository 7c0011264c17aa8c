"""What the honest driver writes down: one entry per query, and what each worker does and holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from stretto.core.outcome import Outcome
from stretto.core.plan import Order


class Stage(Enum):
    """Where a query is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    RETURNING = "returning"  # its worker was just lost
    ENDED = "ended"


@dataclass
class Entry:
    """What the books say about one query."""

    number: int
    application: int
    deadline_ns: int
    priority: int
    demand: int = -1
    stage: Stage = Stage.WAITING
    outcome: Outcome | None = None
    times_run: int = 0
    times_lost: int = 0


@dataclass
class Job:
    """What a worker does or will do next: a batch, or (without tickets) a load."""

    variant: int
    tickets: tuple[int, ...]
    start_ns: int
    expected_ns: int


@dataclass
class Crew:
    """One worker as its driver knows it."""

    alive: bool = True
    jobs: list[Job] = field(default_factory=list)
    loaded: set[int] = field(default_factory=set)
    arriving: Job | None = None  # a load beside the work


def order_key(order: Order, entry: Entry) -> tuple[int, int]:
    """Smallest first; equal keys in the order of arrival."""
    if order is Order.EARLIEST_DEADLINE:
        return entry.deadline_ns, entry.number
    if order is Order.PRIORITY:
        return -entry.priority, entry.number
    return entry.number, entry.number
