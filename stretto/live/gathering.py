"""Queries that come in one turn of the event loop enter the dispatcher together; batches are formed when it is over.

What is read in one turn came together: else a free worker would be given the first query alone, and one by one they
would cost the dispatcher's time tenfold.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.live.face.remote import Origin
from stretto.live.generation import Generation
from stretto.live.judging import Twin
from stretto.live.requests import Query
from stretto.live.serving import Serving
from stretto.live.witness import Witness

Entering = Sequence[NDArray[np.int64]]  # applications, deadlines and priorities


class Gathered(Serving, Protocol):
    """The engine that queries enter."""

    twin: Twin | None
    witness: Witness | None

    def wants_evidence(self, application: int, now_ns: int) -> bool: ...


class Gathering:
    """Of one engine. `form_batches` is called when a turn is over in which queries came."""

    def __init__(self, engine: Gathered, form_batches: Callable[[], None]):
        self._engine = engine
        self._form_batches = form_batches
        self._has_begun = False  # in this turn
        self.queries: list[Query] = []
        self._columns = _columns()  # of these
        self._arrived: list[tuple[Generation, int, Entering]] = []  # what the twin is to be told of this turn

    def add(self, query: Query, application: int, deadline_ns: int, priority: int) -> None:
        """One that nothing else is to be said of."""
        self.queries.append(query)
        applications, deadlines_ns, priorities = self._columns
        applications.append(application)
        deadlines_ns.append(deadline_ns)
        priorities.append(priority)
        if not self._has_begun:
            self.begin()

    def begin(self) -> None:
        """Queries come in this turn."""
        if not self._has_begun:
            self._has_begun = True
            self._engine.loop.call_soon(self._turn_ended)

    def _turn_ended(self) -> None:
        self._has_begun = False
        self.enter()
        self._form_batches()
        if self._arrived:
            self._tell_arrivals()  # after the workers, who wait

    def enter(self) -> None:
        """Those that were gathered until now."""
        if not self.queries:
            return
        queries, self.queries = self.queries, []
        columns, self._columns = self._columns, _columns()
        generation = self._engine.generation
        entering: Entering = tuple(np.frombuffer(column, np.int64) for column in columns)
        tickets = self._submitted(self._engine.clock(), entering).tolist()
        generation.queries.update(zip(tickets, queries, strict=True))
        for query, ticket in zip(queries, tickets, strict=True):
            query.ticket, query.generation = ticket, generation

    def enter_rows(self, front: Origin, now_ns: int, rows: NDArray[Any], entering: Entering) -> None:
        """Queries of a front end, each a request by itself that nothing is demanded of, as rows of numbers; `entering`
        are their applications (numbers of the generation that serves), deadlines and priorities.
        """
        engine = self._engine
        generation = engine.generation
        tickets = self._submitted(now_ns, entering)
        generation.queries.enter(front, tickets, rows)
        self.begin()
        if engine.witness is not None:
            for ticket, application in zip(tickets.tolist(), entering[0].tolist(), strict=True):
                if engine.wants_evidence(application, now_ns):  # else it stays a row of numbers
                    engine.witness.ask(generation.queries[ticket].request)

    def _submitted(self, now_ns: int, entering: Entering) -> NDArray[np.int64]:
        """Their tickets."""
        engine = self._engine
        generation = engine.generation
        if engine.twin is not None:
            self._arrived.append((generation, now_ns, entering))
        return generation.dispatcher.submit_many(now_ns, *entering)

    def _tell_arrivals(self) -> None:
        arrived, self._arrived = self._arrived, []
        twin = self._engine.twin
        assert twin is not None
        for generation, now_ns, (applications, deadlines_ns, priorities) in arrived:
            slacks_ns, called = deadlines_ns - now_ns, set(applications.tolist())
            for number in called:
                name = generation.deployment.applications[number].name
                if len(called) == 1:  # as mostly, and always where there is no other
                    twin.arrived_many(now_ns, name, slacks_ns, priorities)
                else:
                    theirs = applications == number
                    twin.arrived_many(now_ns, name, slacks_ns[theirs], priorities[theirs])


def _columns() -> tuple[array[int], array[int], array[int]]:
    """Application, deadline and priority, of no query yet."""
    return array("q"), array("q"), array("q")
