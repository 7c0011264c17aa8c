"""A client's call, and the queries that its rows are. It ends once: answered, or not and with a reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from stretto.backends.model import Array
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.live.mishap import Mishap
from stretto.live.rows import Inputs

NONE_YET: Mapping[int, tuple[float, ...]] = MappingProxyType({})


class NoSuchApplication(StrettoError):
    """The repository holds none of that name."""


class NotServed(StrettoError):
    """The repository holds it, and this is why it is not served."""


class NoSuchVariant(Exception):
    """A demand that no variant of the application can meet."""


class Query:
    """One row of a request, as the dispatcher knows it."""

    __slots__ = ("generation", "is_ending", "mishap", "request", "row", "theta", "ticket", "tries")

    def __init__(self, request: Request, row: int):
        self.request = request
        self.row = row
        self.ticket = -1
        self.generation: Any = None  # whose dispatcher holds it; None once it ended
        self.tries = 0
        self.is_ending = False  # it ends at its deadline, answered or not, for its worker was lost or its batch failed
        self.mishap: Mishap | None = None  # a model could not answer it
        self.theta: tuple[float, ...] | None = None  # posterior of its class, once there is evidence


class Request:
    """`done` is called once, with the request. By then `outcome` and, where it has one, `answers` are set.

    `done` must not call the engine, which may be half way through what was decided; let the loop call it soon. What a
    request does not have of its own is the class's until it has.
    """

    asker: Any = None  # what the registry of clients knows it by; None: nobody that is known
    arrival_ns = ended_ns = 0
    answers: Array | None = None
    variants: Sequence[str] = ()  # that answered, each once
    accuracy_sum = 0.0
    batch = queue_ns = run_ns = 0
    short_circuited: Mapping[int, tuple[float, ...]] = NONE_YET  # posterior by row, where that is the answer
    outcome: Outcome | None = None
    problem = ""  # why it failed, in words for the client
    is_told = False  # the log has said why it failed
    refusal = ""  # where it was never taken: unavailable, or not_found
    number = -1  # by its front end, where that is no part of the engine

    def __init__(
        self,
        application: str,
        inputs: Inputs,
        slack_ns: int,
        done: Callable[[Request], None],
        *,
        client: int = -1,
        priority: int = 0,
        pinned: str = "",
        min_accuracy: float = 0.0,
        spent_ns: int = 0,
    ):
        self.application = application
        self.inputs = inputs  # the first axis counts the queries
        self.done = done
        self.client = client
        self.priority = priority
        self.pinned = pinned  # the only variant that may answer; "": any
        self.min_accuracy = min_accuracy
        self.spent_ns = spent_ns  # since it came, before the engine takes it
        self.deadline_ns = slack_ns  # from arrival, until the engine takes it and adds its clock
        self.rows = len(inputs)
        self.queries: Sequence[Query] = (
            (Query(self, 0),) if self.rows == 1 else [Query(self, row) for row in range(self.rows)]
        )
        self.left = self.rows

    def answer(self, row: int, answer: Array, variant: str, accuracy: float) -> bool:
        """One row is answered; true when that was the last."""
        if self.rows == 1:
            self.answers, self.variants, self.accuracy_sum, self.left = answer, [variant], accuracy, 0
            return True
        if self.answers is None:
            self.answers = np.zeros((self.rows, *answer.shape[1:]), answer.dtype)
        self.answers[row] = answer[0]
        if variant not in self.variants:
            self.variants = [*self.variants, variant]
        self.accuracy_sum += accuracy
        self.left -= 1
        return self.left == 0

    def end(self, outcome: Outcome, now_ns: int) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self.ended_ns = now_ns
            self.done(self)
            if self.left == 0 or self.rows == 1:  # else the others are withdrawn first
                self.queries = ()  # a cycle of references would wait for the collector, and its body with it


def rows_of(queries: Sequence[Query]) -> list[Inputs]:
    """The queries' inputs in order; neighbouring rows of one request come as one part."""
    parts: list[Inputs] = []
    first = 0
    while first < len(queries):
        request, row = queries[first].request, queries[first].row
        end = first + 1
        while end < len(queries) and queries[end].request is request and queries[end].row == row + end - first:
            end += 1
        inputs = request.inputs
        parts.append(inputs if len(inputs) == end - first else inputs[row : row + end - first])
        first = end
    return parts
