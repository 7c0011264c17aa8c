"""Requests that ended for their clients otherwise than the scheduler knows, because a link broke or answers were lost.

A front end tells of them in numbered reports, again on the next link until it hears that they came. The scheduler has
counted most of them already: it remembers for a while what it said of each, and puts its count right.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.live.face.link import Link
from stretto.live.face.messages import ENDED, MAX_ROWS, NONSENSE, Kind, text, unpacked

MOST_TOLD = 100_000  # requests of one report
REMEMBERED_NS = 5 * 10**9  # longer than a front end waits for answers, or is silent before it is lost


class Ended(NamedTuple):
    number: int
    application: str
    outcome: Outcome
    rows: int


class Closed:
    """A front end's."""

    def __init__(self) -> None:
        self._new: list[Ended] = []  # not told to a scheduler yet
        self._told: dict[int, list[Ended]] = {}  # by report; whether it came is not known
        self._report = 0

    def add(self, number: int, application: str, outcome: Outcome, rows: int) -> None:
        self._new.append(Ended(number, application, outcome, rows))

    def came(self, report: int) -> None:
        """The scheduler has this one, and those before it."""
        self._told = {number: ended for number, ended in self._told.items() if number > report}

    def tell_again(self, link: Link, known: int, booked: int) -> None:
        """On a new link: also what was told on an earlier one and never came."""
        self.came(booked)
        self._new = [*(each for ended in self._told.values() for each in ended), *self._new]
        self._told = {}
        self.tell(link, known)

    def tell(self, link: Link, known: int) -> None:
        """Requests up to the number `known` came to this scheduler; the others it never heard of."""
        while self._new:
            ended, self._new = self._new[:MOST_TOLD], self._new[MOST_TOLD:]
            unknown: dict[str, Counter[int]] = {}
            counted: dict[str, list[tuple[int, int, int]]] = {}
            for number, application, outcome, rows in ended:
                if number > known:
                    unknown.setdefault(application, Counter())[int(outcome)] += rows
                else:
                    counted.setdefault(application, []).append((number, int(outcome), rows))
            self._report += 1
            self._told[self._report] = ended
            link.send(Kind.CLOSED, text({"report": self._report, "unknown": unknown, "counted": counted}))


class Said:
    """The scheduler's: how requests of one front end ended, as it told it lately."""

    def __init__(self) -> None:
        self._messages: deque[tuple[int, bytes]] = deque()

    def add(self, now_ns: int, message: bytes) -> None:
        """One of ENDED, as it is sent."""
        self._messages.append((now_ns, message))
        while now_ns - self._messages[0][0] > REMEMBERED_NS:
            self._messages.popleft()

    def outcomes(self) -> dict[int, int]:
        """By request."""
        outcomes: dict[int, int] = {}
        for _, message in self._messages:
            records = unpacked(ENDED, message)[1]
            outcomes.update(zip(records["number"].tolist(), records["outcome"].tolist(), strict=True))
        return outcomes


def corrections(content: Mapping[str, Any], said: Sequence[Said]) -> Iterator[tuple[str, Outcome, Outcome, int]]:
    """Application, as it was counted, as its client heard, and how many queries; for what CLOSED tells as counted.

    Rows of one request may have ended differently, unless all were on time; then what it counts is left as it is.
    """
    if not content:
        return
    outcomes: dict[int, int] = {}
    for each in said:
        outcomes |= each.outcomes()
    try:
        for name, requests in content.items():
            for number, heard, rows in requests:
                counted = outcomes.get(number, heard)
                if counted != heard and (rows == 1 or counted == Outcome.ON_TIME):
                    yield str(name), Outcome(counted), Outcome(heard), min(max(0, int(rows)), MAX_ROWS)
    except (ValueError, TypeError, AttributeError):
        raise StrettoError(NONSENSE) from None
