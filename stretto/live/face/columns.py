"""The queries that one generation holds, by ticket: objects, and for front ends' plain ones a row of numbers each.

Most queries of front ends only come, run and end. For them nothing is made in Python; a batch is answered as arrays.
Whoever asks for one by its ticket, because something else became of it, gets an object: the row becomes one then.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.live.face.batch import SLOT, are_rows, end_rows, enter_rows, place_rows
from stretto.live.face.messages import ENDED
from stretto.live.face.remote import Origin, RemoteQuery, lying
from stretto.live.frames import PLACE
from stretto.live.meters import Many
from stretto.live.requests import Query
from stretto.live.rows import Lying
from stretto.live.shelf import ModelSpec

COLUMNS = np.dtype(
    [
        ("ticket", "i8"),  # -1: nobody
        ("number", "u8"),  # of the request, by its front end
        ("arrival_ns", "i8"),
        ("deadline_ns", "i8"),
        ("place", "i8"),
        ("front", "i4"),  # number of the front end
        ("application", "i4"),  # by the directory
        ("size", "i4"),
        ("priority", "i4"),
    ]
)
FIRST = 1024
FRONTS = 16  # that are kept at least, whether they have anything here or not
NOBODY = -1  # the front end of a query that has ended
SHAPED = "front", "application", "size"  # columns that tell of a row's shape
Held = Query | RemoteQuery
Run = tuple[int, int, int, int, int]  # rows of one request: front end, request, the first, how many, and their shape
Ended = tuple[NDArray[Any], NDArray[Any], list[int]]


class Queries(dict[int, Held]):
    """By ticket. Rows count as entries of the dictionary, and become such when they are asked for."""

    def __init__(self, generation: Any = None) -> None:
        super().__init__()
        # Not held: generations go with the last reference to them, not when cycles are looked for minutes later.
        self._generation: Callable[[], Any] = (lambda: None) if generation is None else weakref.ref(generation)
        self.table = np.zeros(FIRST, COLUMNS)  # by the slots of tickets
        self.table["ticket"] = -1
        self._fronts: dict[int, Origin] = {}
        self._most_fronts = FRONTS  # before those that have nothing here any more are forgotten
        self._count = 0

    # -- rows --------------------------------------------------------------------------------------------------------

    def enter(self, front: Origin, tickets: NDArray[np.int64], rows: NDArray[Any]) -> None:
        """Queries of a front end, as rows without their tickets."""
        if front.number not in self._fronts:
            self._meet(front)
        self._count += len(tickets)
        place = 0
        while (place := enter_rows(self.table, tickets, rows, place)) < len(tickets):
            slot = int(tickets[place]) & SLOT
            if slot >= len(self.table):
                more = np.zeros(max(slot + 1 - len(self.table), len(self.table)), COLUMNS)
                more["ticket"] = -1
                self.table = np.concatenate((self.table, more))
            else:  # its query was refused at the door, and has not heard of it; the slot is another's by now
                self[int(self.table["ticket"][slot])]

    def entries(self, tickets: Sequence[int]) -> Sequence[Held]:
        """Of a batch: rows together where all are such, else objects."""
        if self._count >= len(tickets):
            given = np.array(tickets)
            if are_rows(self.table, given):
                return Rows(self, given)
        return [self[ticket] for ticket in tickets]

    def end(
        self, tickets: NDArray[np.int64], started_ns: int, run_ns: int, now_ns: int, many: Many, accuracy: float
    ) -> Ended:
        """Those of a batch that are rows still, with their positions for tickets, and what is told of them, one front
        end after the other, with the places where the rows of each end. They are rows no more. `accuracy`: expected of
        their answers.
        """
        count = len(tickets)
        taken, ended, ends = np.empty(count, COLUMNS), np.zeros(count, ENDED), np.empty(count, np.int64)
        times = np.array((started_ns, run_ns, now_ns, 0, 0, 0))
        fronts = end_rows(self.table, tickets, taken, ended, ends, times, many.books)
        by_front: list[int] = ends[:fronts].tolist()
        count = by_front[-1] if by_front else 0
        self._count -= count
        many.add(count, run_ns, times[3:].tolist(), accuracy)
        return taken[:count], ended[:count], by_front

    def of_front(self, front: Origin) -> dict[int, int]:
        """The tickets of its queries that are rows, by the numbers of its requests."""
        rows = self.table[(self.table["ticket"] >= 0) & (self.table["front"] == front.number)]
        return dict(zip(rows["number"].tolist(), rows["ticket"].tolist(), strict=True))

    def seen(self, tickets: NDArray[np.int64]) -> NDArray[Any]:
        """The rows as they are; for tickets that are rows."""
        return self.table[tickets & SLOT]

    def _meet(self, front: Origin) -> None:
        """Each that comes back is another one; those that are gone and have nothing here are forgotten now and then."""
        if len(self._fronts) >= self._most_fronts:
            have_rows = set(self.table["front"][self.table["ticket"] >= 0].tolist())
            self._fronts = {number: each for number, each in self._fronts.items() if number in have_rows}
            self._most_fronts = max(FRONTS, 2 * len(self._fronts))
        self._fronts[front.number] = front

    def front(self, number: int) -> Origin:
        """Of a row. Where that has ended and its front end is gone, any: all know the shapes of rows."""
        return self._fronts.get(number) or next(iter(self._fronts.values()))

    def __missing__(self, ticket: int) -> Held:
        """KeyError where it is no row either."""
        slot = ticket & SLOT
        if ticket < 0 or slot >= len(self.table) or self.table["ticket"][slot] != ticket:
            raise KeyError(ticket)
        _, number, arrival_ns, deadline_ns, place, front_number, application, size, priority = self.table[slot].tolist()
        self.table["ticket"][slot] = -1
        self._count -= 1
        front = self._fronts[front_number]
        each, name = front.sized(application, size)
        query = RemoteQuery(front, number, place, each, name, arrival_ns, deadline_ns, priority, self._generation())
        query.ticket = ticket
        front.open[number] = query
        self[ticket] = query
        return query

    # -- as a dictionary of all --------------------------------------------------------------------------------------

    def _as_objects(self) -> None:
        if self._count:
            for ticket in self.table["ticket"][self.table["ticket"] >= 0].tolist():
                self[ticket]

    def get(self, ticket: int, default: Any = None) -> Any:
        try:
            return self[ticket]
        except KeyError:
            return default

    def pop(self, ticket: int, *default: Any) -> Any:
        if self._count:
            self.get(ticket)  # a row becomes an object
        return super().pop(ticket, *default)

    def values(self) -> Any:
        self._as_objects()
        return super().values()

    def items(self) -> Any:
        self._as_objects()
        return super().items()

    def __len__(self) -> int:
        return super().__len__() + self._count

    def __bool__(self) -> bool:
        return len(self) > 0


class Rows(Sequence[Held]):
    """The queries of a batch that were rows when it was decided; objects to whoever looks at one."""

    def __init__(self, queries: Queries, tickets: NDArray[np.int64]):
        self.queries = queries
        self.tickets = tickets
        self._objects: list[Held] | None = None

    @property
    def are_untouched(self) -> bool:
        """Nobody looked."""
        return self._objects is None

    def _made(self) -> list[Held]:
        """Those that ended meanwhile are nobody's any more."""
        if self._objects is None:
            self._objects = [self.queries.get(ticket) or _gone() for ticket in self.tickets.tolist()]
        return self._objects

    def end(self, started_ns: int, run_ns: int, now_ns: int, many: Many, accuracy: float) -> Ended:
        return self.queries.end(self.tickets, started_ns, run_ns, now_ns, many, accuracy)

    def places(self, spec: ModelSpec) -> NDArray[Any] | None:
        """Where each lies, for a worker of this machine; asked when the batch is given to it. None where only `parts`
        can tell: one is no row any more, or they are not as the model takes them.
        """
        table, places = self.queries.table, np.empty(len(self.tickets), PLACE)
        _, _, _, _, _, front, application, *_ = table[int(self.tickets[0]) & SLOT].tolist()
        first_size = self.queries.front(front).first_size(application, spec)
        return places if first_size >= 0 and place_rows(table, self.tickets, first_size, places) else None

    def parts(self) -> list[Lying]:
        """The same, one by one. Of one that ended before that nothing is: its slot may be another's by now."""
        rows = self.queries.seen(self.tickets)
        are_here = rows["ticket"] == self.tickets
        columns = (rows[name].tolist() for name in ("front", "number", "place", "application", "size"))
        parts = []
        for front_number, number, place, application, size in zip(*columns, strict=True):
            front = self.queries.front(front_number)
            parts.append(lying(front, number, place, 1, front.sized(application, size)[0]))
        if not are_here.all():
            first = int(are_here.argmax())  # whose shape they have, where there is one
            nobody = replace(parts[first], front=NOBODY, number=0, memory=None, place=-1)
            parts = [part if is_here else nobody for part, is_here in zip(parts, are_here.tolist(), strict=True)]
        return parts

    def runs(self) -> list[Run]:
        """What `parts` tells of each, where nobody here reads them."""
        rows = self.queries.seen(self.tickets)
        are_here = rows["ticket"] == self.tickets
        numbers = {
            (application, size): self.queries.front(front).sized(application, size)[0].number
            for front, application, size in set(zip(*(rows[name].tolist() for name in SHAPED), strict=True))
        }
        first = numbers[rows["application"][are_here.argmax()].item(), rows["size"][are_here.argmax()].item()]
        columns = (rows[name].tolist() for name in (*SHAPED, "number"))
        return [
            (front, number, 0, 1, numbers[application, size]) if is_here else (NOBODY, 0, 0, 1, first)
            for front, application, size, number, is_here in zip(*columns, are_here.tolist(), strict=True)
        ]

    def last_deadline_ns(self) -> int:
        """Asked for when the batch is given to its worker, too."""
        return int(self.queries.seen(self.tickets)["deadline_ns"].max())

    def __len__(self) -> int:
        return len(self.tickets)

    def __getitem__(self, position: Any) -> Any:
        return self._made()[position]

    def __iter__(self) -> Iterator[Held]:
        return iter(self._made())


def _gone() -> RemoteQuery:
    """Stands where a query was that has ended."""
    return RemoteQuery(None, -1, -1, None, "", 0, 0, 0, None)  # type: ignore[arg-type]
