"""What a front end tells of requests that ended without the scheduler: once, whatever link breaks."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.live.face import closed as closing
from stretto.live.face.closed import REMEMBERED_NS, Closed, Said, corrections
from stretto.live.face.messages import ENDED, Kind, packed, plain

FAILED, ON_TIME, LATE, CANCELLED = Outcome.FAILED, Outcome.ON_TIME, Outcome.LATE, Outcome.DROPPED_CANCELLED


class Kept:
    """A link that keeps what is sent."""

    transit_ns = 0

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []

    def send(self, kind: int, payload: bytes = b"") -> None:
        assert kind == Kind.CLOSED
        self.reports.append(plain(payload))

    def close(self) -> None: ...


def said(*outcomes: tuple[int, Outcome], now_ns: int = 0) -> Said:
    made = Said()
    made.add(now_ns, packed(ENDED, [(number, 0, 0, 0.0, 1, 0, int(outcome)) for number, outcome in outcomes]))
    return made


def test_what_the_scheduler_never_heard_of_is_counted_and_the_rest_named() -> None:
    link, closed = Kept(), Closed()
    for number, rows in ((1, 1), (2, 3), (3, 2)):
        closed.add(number, "a", FAILED, rows)
    closed.tell_again(link, known=1, booked=0)
    failed = int(FAILED)
    assert link.reports == [{"report": 1, "unknown": {"a": {str(failed): 5}}, "counted": {"a": [[1, failed, 1]]}}]


def test_a_report_is_told_again_until_it_is_known_to_have_come() -> None:
    closed = Closed()
    closed.add(7, "a", FAILED, 1)
    links = [Kept() for _ in range(4)]
    closed.tell_again(links[0], -1, 0)
    closed.tell_again(links[1], -1, 0)  # the first was lost with its link
    closed.add(8, "a", LATE, 1)
    closed.tell_again(links[2], -1, 2)  # the second came, but not the word that it did
    assert [each["report"] for link in links[:3] for each in link.reports] == [1, 2, 3]
    assert links[1].reports[0]["unknown"] == links[0].reports[0]["unknown"]
    assert links[2].reports[0]["unknown"] == {"a": {str(int(LATE)): 1}}
    closed.came(3)
    closed.tell_again(links[3], -1, 0)  # another scheduler, which knows of nothing
    assert not links[3].reports


def test_large_reports_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "MOST_TOLD", 2)
    link, closed = Kept(), Closed()
    for number in range(5):
        closed.add(number, "a", FAILED, 1)
    closed.tell(link, -1)
    assert [sum(each["unknown"]["a"].values()) for each in link.reports] == [2, 2, 1]


def test_counts_are_put_right_where_it_is_known_how_they_are_wrong() -> None:
    before, now = said((1, ON_TIME), (2, CANCELLED), (3, FAILED)), said((4, LATE), (5, ON_TIME), (6, LATE))
    told = [
        (1, FAILED, 1),
        (2, ON_TIME, 1),
        (3, FAILED, 1),
        (4, FAILED, 1),
        (5, FAILED, 8),
        (6, FAILED, 8),
        (9, LATE, 1),
    ]
    content = {"a": [[number, int(outcome), rows] for number, outcome, rows in told]}
    assert list(corrections(content, (now, before))) == [
        ("a", ON_TIME, FAILED, 1),
        ("a", CANCELLED, ON_TIME, 1),
        ("a", LATE, FAILED, 1),
        ("a", ON_TIME, FAILED, 8),  # of 6 some rows may have been on time, and of 9 nothing is remembered
    ]


def test_what_was_said_is_not_remembered_for_ever() -> None:
    made = said((1, ON_TIME))
    made.add(REMEMBERED_NS + 1, packed(ENDED, [(2, 0, 0, 0.0, 1, 0, int(LATE))]))
    assert made.outcomes() == {2: int(LATE)}


@pytest.mark.parametrize(
    "content", [{"a": 1}, {"a": [1]}, {"a": [[1, 2]]}, {"a": [[1, 99, 1]]}, {"a": [[1, "x", 1]]}, [1]]
)
def test_nonsense_is_refused(content: Any) -> None:
    with pytest.raises(StrettoError):
        list(corrections(content, (said((1, ON_TIME)),)))
