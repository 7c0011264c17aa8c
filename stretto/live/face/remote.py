"""Requests whose clients are at a front end, as the scheduler's engine knows them: like any other, but without tensors.

Their answers go to the front end's memory, or a worker has sent them there itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.backends.model import Array
from stretto.core.outcome import Outcome
from stretto.live.face.memory import FrontMemory, aligned
from stretto.live.mishap import Mishap
from stretto.live.requests import NONE_YET, Request
from stretto.live.rows import Lying
from stretto.live.shelf import ModelSpec


class Sized(NamedTuple):
    """One of the shapes that a row of an application may have."""

    number: int  # among them
    shape: tuple[int, ...]
    dtype: str
    row_bytes: int
    answer_bytes: int

    def needs(self, rows: int) -> int:
        """Of a front end's memory: the rows, and their answers behind them."""
        return aligned(rows * self.row_bytes) + rows * self.answer_bytes


class Origin(Protocol):
    """The front end that a request came from: what is asked of it by whoever holds, runs and answers the request."""

    number: int
    memory: FrontMemory | None
    open: dict[int, RemoteRequest | RemoteQuery]  # by its number; those that are not rows

    def sized(self, application: int, size: int) -> tuple[Sized, str]:
        """By the directory: the shape, and the application's name."""

    def first_size(self, application: int, spec: ModelSpec) -> int:
        """The first of the shapes that its rows have at present; -1 where a model takes others."""

    def variant_number(self, label: tuple[str, str]) -> int:
        """By the directory."""

    def write(self, place: int, answer: Array) -> None: ...

    def answered(self, ended: NDArray[Any], rows: NDArray[Any], answers: NDArray[np.uint8]) -> None:
        """Queries of one batch, as rows of numbers with their positions in it; `answers` are the bytes of all of it."""

    def ended_query(self, query: RemoteQuery) -> None: ...

    def ended(self, request: RemoteRequest | RemoteQuery) -> None: ...


def lying(front: Origin, number: int, place: int, rows: int, each: Sized) -> Lying:
    shape = (rows, *each.shape)
    return Lying(front.number, number, 0, shape, each.dtype, each.number, front.memory, place)


class RemoteRequest(Request):
    """Of several rows, or with something to be said of it."""

    front: Origin
    number: int
    place: int  # where the first answer goes; -1: not here

    def answer(self, row: int, answer: Array, variant: str, accuracy: float) -> bool:
        if self.place >= 0:
            self.front.write(self.place + row * answer.nbytes, answer)
        if variant not in self.variants:
            self.variants = [*self.variants, variant]
        self.accuracy_sum += accuracy
        self.left -= 1
        return self.left == 0


class RemoteQuery:
    """A request that is one query, and both at once: most are, and there may be a hundred thousand a second.

    What it does not have of its own is the class's until it has.
    """

    row, rows, left = 0, 1, 1
    ticket = -1
    tries = 0
    is_ending = is_told = False
    mishap: Mishap | None = None
    theta: tuple[float, ...] | None = None
    outcome: Outcome | None = None
    problem = refusal = pinned = ""
    client = -1
    asker: Any = None
    min_accuracy = accuracy_sum = 0.0
    batch = queue_ns = run_ns = ended_ns = spent_ns = 0
    variant = ""
    short_circuited = NONE_YET

    def __init__(
        self,
        front: Origin,
        number: int,
        place: int,
        each: Sized,
        application: str,
        arrival_ns: int,
        deadline_ns: int,
        priority: int,
        generation: Any,
    ):
        self.front = front
        self.number = number
        self.place = place  # of its row; -1: not here
        self.each = each
        self.application = application
        self.arrival_ns = arrival_ns
        self.deadline_ns = deadline_ns
        self.priority = priority
        self.generation = generation  # whose dispatcher holds it; None once it ended

    @property
    def request(self) -> RemoteQuery:
        return self

    @property
    def queries(self) -> tuple[RemoteQuery]:
        return (self,)

    @property
    def inputs(self) -> Lying:
        return lying(self.front, self.number, self.place, 1, self.each)

    @property
    def variants(self) -> list[str]:
        return [self.variant] if self.variant else []

    def answer(self, row: int, answer: Array, variant: str, accuracy: float) -> bool:
        if self.place >= 0:
            self.front.write(self.place + aligned(self.each.row_bytes), answer)
        self.variant, self.accuracy_sum = variant, accuracy
        return True

    def end(self, outcome: Outcome, now_ns: int) -> None:
        if self.outcome is None:
            self.outcome, self.ended_ns = outcome, now_ns
            self.front.ended_query(self)
