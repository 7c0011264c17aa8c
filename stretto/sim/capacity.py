"""How many workers an application needs, by what its policy promises for each number of them.

Accuracy rises with the workers, so the fewest that are accurate enough are bisected for. Violations do not simply fall:
a policy with room to spare trades some for accuracy. So the number goes up from there, in growing steps, until they are
few enough, and is bisected between the last two. The numbers just below the answer are looked at in any case.

A promise alone is not enough where it can be checked: a number whose promise a simulation refutes is not the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from stretto.core.errors import StrettoError
from stretto.planners.parts.task import Task

LOOK_BELOW = 2  # how far below an answer a smaller one is looked for
MAX_LOAD = 1e9
ROUNDING = 1e-9


class Promised(Protocol):
    """What so many workers are expected to give: accuracy of answers, and the share of queries not on time."""

    @property
    def workers(self) -> int: ...

    @property
    def accuracy(self) -> float: ...

    @property
    def violation(self) -> float: ...


Promise = TypeVar("Promise", bound=Promised)


@dataclass(frozen=True)
class Seen:
    """What a simulation of so many workers showed."""

    workers: int
    accuracy: float
    violation: float


@dataclass(frozen=True)
class Requirement:
    """At this load (queries/s), answers at least so accurate, and at most this share of queries not on time."""

    load: float
    min_accuracy: float
    max_violation: float

    def __post_init__(self) -> None:
        if not 0 < self.load <= MAX_LOAD:
            raise StrettoError(f"the load is {self.load:g} queries/s; it must be above 0 and at most {MAX_LOAD:g}")
        for what, value in (("accuracy", self.min_accuracy), ("share of violations", self.max_violation)):
            if not 0 <= value <= 1:
                raise StrettoError(f"the {what} asked for is {value:g}; it must be a fraction from 0 to 1")

    def is_met(self, promise: Promised | Seen) -> bool:
        """But for what rounding takes from a mean, as from that of a million queries with the same accuracy."""
        return promise.accuracy >= self.min_accuracy - ROUNDING and promise.violation <= self.max_violation + ROUNDING


@dataclass(frozen=True, eq=False)
class Capacity(Generic[Promise]):
    """The fewest workers whose promise meets the requirement and is confirmed, and every number that was tried, in
    order.
    """

    workers: int
    tried: tuple[Promise, ...]

    @property
    def promise(self) -> Promise:
        return next(promise for promise in self.tried if promise.workers == self.workers)


def workers_needed(
    promise: Callable[[int], Promise],
    requirement: Requirement,
    *,
    least: int = 1,
    most: int = 4096,
    step: int | None = None,
    confirms: Callable[[Promise], bool] = lambda promise: True,
    progress: Callable[[int], None] | None = None,
) -> Capacity[Promise]:
    """Search from `least` to `most` workers, in steps that grow from `step`, or from `least`. `confirms` is asked about
    each promise that meets the requirement, and may be asked again. `progress` hears how many numbers were tried.
    """
    known: dict[int, Promise] = {}

    def promised(count: int) -> Promise:
        if count not in known:
            known[count] = promise(count)
            if progress is not None:
                progress(len(known))
        return known[count]

    def is_accurate(count: int) -> bool:
        return promised(count).accuracy >= requirement.min_accuracy - ROUNDING

    def meets(count: int) -> bool:
        return requirement.is_met(promised(count)) and confirms(promised(count))

    if least > most:
        raise StrettoError(_too_few(requirement, most, f"at least {least} could answer so many in time"))
    step, below, enough = step or least, least - 1, least
    while not is_accurate(enough) and enough < most:
        below, enough, step = enough, min(enough + step, most), 2 * step
    accurate = _bisected(is_accurate, below, enough)
    step, below, enough = 1, accurate - 1, accurate
    while not meets(enough):
        if enough == most:
            last = known[most]
            seen = f"they promise accuracy {last.accuracy:.4f} and {last.violation:.3%} not on time"
            if requirement.is_met(last):
                seen += ", and a simulation of them falls short of that"
            raise StrettoError(_too_few(requirement, most, seen))
        below, enough, step = enough, min(enough + step, most), 2 * step
    enough = _bisected(meets, below, enough)
    lower = enough - 1
    while lower >= max(least, enough - LOOK_BELOW):
        if meets(lower):
            enough = lower
        lower -= 1
    return Capacity(enough, tuple(known[count] for count in sorted(known)))


def _bisected(holds: Callable[[int], bool], below: int, enough: int) -> int:
    """The lowest number above `below` that holds; `enough` holds, or is all there is."""
    while enough - below > 1:
        middle = (below + enough) // 2
        if holds(middle):
            enough = middle
        else:
            below = middle
    return enough


def least_workers(task: Task, requirement: Requirement) -> int:
    """Fewer cannot answer the load in time, whatever the policy. StrettoError where no number would do.

    A worker answers at most its best batch within the SLO, over and over.
    """
    in_time = task.latency_ns[:, 1] <= task.slo_ns
    best = int(np.argmax(np.where(in_time, task.accuracy, -1.0)))
    if task.accuracy[best] < requirement.min_accuracy:
        message = (
            f"no number of workers is enough: {task.variants[best]} is the most accurate variant that answers within"
            f" the SLO of {task.slo_ns / 1e6:g} ms, with {task.accuracy[best]:.4f} where {requirement.min_accuracy:g}"
            " is asked for"
        )
        slow = [m for m in np.argsort(task.latency_ns[:, 1]) if task.accuracy[m] >= requirement.min_accuracy]
        if slow:
            taken_ms = task.latency_ns[slow[0], 1] / 1e6
            raise StrettoError(f"{message}; {task.variants[slow[0]]} would do with an SLO above {taken_ms:.3g} ms")
        raise StrettoError(f"{message}; ask for less, or add a more accurate variant")
    each = task.capacity() / task.workers
    return max(1, math.ceil(requirement.load * (1 - requirement.max_violation) / each - 1e-9))


def _too_few(requirement: Requirement, most: int, why: str) -> str:
    return (
        f"{most} workers are not enough for {requirement.load:g} queries/s with accuracy {requirement.min_accuracy:g}"
        f" and at most {requirement.max_violation:.3%} not on time: {why}; ask for less, or allow more workers"
    )
