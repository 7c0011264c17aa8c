"""The benchmark's claim that no frame is without an outcome."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.jellyfish_clients import Books
from benchmarks.jellyfish_live import without_outcome
from tests.client.network.results import made_up

MADE, SENT = 40, 39
BEFORE = Books(submitted=100, ended=98, refused=7, inside=2, clients=0, plans=0, planning_s=0, within={})


def missing(submitted: int, refused: int = 0, arrived: int = SENT, ended: int | None = None, made: int = MADE) -> float:
    """Of a run in which clients were refused once, while the server counted so many queries and refusals more."""
    after = replace(
        BEFORE,
        submitted=BEFORE.submitted + submitted,
        ended=BEFORE.ended + (submitted if ended is None else ended),
        refused=BEFORE.refused + refused,
    )
    return without_outcome(replace(made_up(), arrived=arrived), made, BEFORE, after)


def test_every_frame_is_a_query_or_refused_before_it_is_one() -> None:
    assert missing(SENT) == missing(SENT - 1, refused=1) == 0


def test_a_frame_that_is_lost_does_not_hide_behind_one_that_was_taken_in_and_dropped() -> None:
    """The client's refusals count both kinds, and were added to what the server had taken in."""
    assert missing(SENT - 1) == 1


def test_what_was_given_up_on_its_way_may_have_been_taken_in_or_not() -> None:
    assert missing(SENT - 1, arrived=SENT - 1) == missing(SENT, arrived=SENT - 1) == 0
    assert missing(SENT - 2, arrived=SENT - 1) == 1


def test_queries_that_nobody_sent_or_that_never_end_and_frames_without_an_end_are_missing_too() -> None:
    assert missing(SENT + 1) == missing(SENT, ended=SENT - 1) == missing(SENT, made=MADE + 1) == 1
