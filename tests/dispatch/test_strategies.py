"""Strategies: of all sizes, the batch that must start soonest, against the rule written out over every size.

l(b) = 2·b + 10.
"""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stretto.core.outcome import Outcome
from stretto.core.plan import Eager, Late, Strategies
from tests.dispatch.small import PROFILE, driver, lane

FREE_NS = 12  # when the worker looks


def soonest(slacks: list[int], largest: int, margin: int) -> tuple[int, int] | None:
    """(heads that are given up, size) for queries with these slacks when the worker is free, by rising deadline."""
    best = None
    for size in range(1, largest + 1):
        latency = PROFILE.latency_ns(size)
        first = next((place for place, slack in enumerate(slacks) if slack >= latency + margin), len(slacks))
        if len(slacks) - first < size:
            continue  # too few are left of those that such a batch could answer
        start = slacks[first] - margin - latency
        if best is None or start < best[0]:
            best = (start, first, size)
    return None if best is None else best[1:]


@settings(deadline=None)
@given(
    st.lists(st.integers(5, 60), min_size=1, max_size=8),
    st.integers(1, 8),
    st.sampled_from([0, 1, 3, 10]),
)
def test_the_batch_that_must_start_soonest_runs_and_the_heads_before_it_are_given_up(
    slacks: list[int], largest: int, margin: int
) -> None:
    slacks.sort()
    expected = soonest(slacks, min(largest, len(slacks)), margin)
    assume(expected is not None)
    assert expected is not None
    heads, size = expected
    rules = {"select": Strategies(0, margin), "late": Late.DROP_WHEN_DISPATCHED, "release": Eager(largest)}
    made = driver(lane(**rules))
    made.query(1000)
    tickets = [made.submit(0, FREE_NS + slack) for slack in slacks]
    made.taken()
    made.at(FREE_NS).finish(0)
    assert made.batches() == [(0, 0, list(range(1 + heads, 1 + heads + size)))]
    given_up = [made.outcome(ticket) is Outcome.DROPPED_OVERLOAD for ticket in tickets]
    assert given_up == [place < heads for place in range(len(slacks))]


def test_a_query_whose_deadline_is_just_met_begins_a_batch() -> None:
    """Three end at 28, which is 16 after the worker is free: the first query has just that, and a margin of 2."""
    for slack, size in ((18, 3), (17, 2)):
        made = driver(lane(select=Strategies(0, 2), late=Late.DROP_WHEN_DISPATCHED))
        made.query(1000)
        for each in (slack, 18, 18):
            made.submit(0, FREE_NS + each)
        made.taken()
        made.at(FREE_NS).finish(0)
        ((_, _, numbers),) = made.batches()
        assert len(numbers) == size
