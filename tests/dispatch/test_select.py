"""Select: what to run when a worker could take a batch. Each rule gives the same queue another answer."""

from __future__ import annotations

import pytest

from stretto.core.plan import (
    ByLoad,
    Eager,
    Fixed,
    MostAccurate,
    Select,
    Tables,
)
from stretto.core.worker import Worker
from tests.dispatch.models import FAST, MIDDLE, MODELS, SLOW, cells
from tests.dispatch.small import FAR, GATHER, deployed, driver, lane, on_kinds, planned, straight, variant


def after_two(select: Select) -> tuple[int, int, list[int]]:
    """What a worker that becomes free at 20 runs when two queries with 50 ns left wait in the lane."""
    made = driver(lane(select=Fixed(FAST), release=GATHER), on=deployed(*MODELS))
    made.query(70)
    made.query(70)
    made.at(20).adopt(planned(lane(select=select)))
    (batch,) = made.batches()
    return batch


EXPECTED: dict[str, tuple[Select, tuple[int, int, list[int]]]] = {
    "fixed": (Fixed(SLOW), (0, SLOW, [0, 1])),
    "by load": (ByLoad((1.0, FAR), (SLOW, FAST)), (0, FAST, [0, 1])),
    "most accurate": (MostAccurate((SLOW, MIDDLE, FAST)), (0, MIDDLE, [0, 1])),
    "table": (cells([[SLOW] * 3, [SLOW] * 3, [FAST, FAST, MIDDLE]], batch=1), (0, MIDDLE, [0])),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_each_rule_has_its_own_answer(name: str) -> None:
    select, batch = EXPECTED[name]
    assert after_two(select) == batch


def test_by_load_goes_to_the_next_variant_as_the_rate_rises() -> None:
    """λ in the first window is the gaps over the time they took."""
    select = ByLoad((0.5e8, 1.5e8), (SLOW, MIDDLE))
    found = []
    for gap in (40, 10, 2):  # 0.25e8, 1e8 and 5e8 queries/s
        made = driver(lane(select=select, release=Eager(1)), on=deployed(*MODELS))
        for number in range(10):
            made.at(number * gap).submit()
        made.taken()
        made.at(1000).finish(0)
        (batch,) = made.batches()
        found.append(batch[1])
    assert found == [SLOW, MIDDLE, MIDDLE]  # beyond the last rate the last holds on


def test_most_accurate_wants_the_whole_batch_in_by_the_first_deadline() -> None:
    for slack, chosen in ((100, SLOW), (80, SLOW), (79, MIDDLE), (40, MIDDLE), (39, FAST), (5, FAST)):
        made = driver(lane(select=Fixed(FAST), release=GATHER), on=deployed(*MODELS))
        made.query(slack)
        made.query(slack + 1000)
        made.adopt(planned(lane(select=MostAccurate((SLOW, MIDDLE, FAST)))))
        assert made.batches() == [(0, chosen, [0, 1])], slack


def test_select_is_asked_per_kind_of_worker() -> None:
    """The slow kind cannot run the accurate variant, and takes the other; each kind has a table of its own."""
    crew = (Worker("a", "a"), Worker("b", "b"))
    models = (
        variant("both", straight(2, 10, kind="a")),
        variant("large", straight(2, 20, kind="a")),
    )
    both = on_kinds("both", straight(2, 10, kind="a"), straight(2, 30, kind="b"))
    on = deployed(both, models[1], crew=crew)
    for select in (
        MostAccurate((1, 0)),
        ByLoad((FAR, 2.0 * FAR), (1, 0)),
        Tables((cells([[1]], kind="a"), cells([[0]], kind="b"))),
    ):
        made = driver(lane(crew=(0, 1), select=select, release=Eager(1)), on=on)
        made.submit()
        made.submit()
        assert made.batches() == [(0, 1, [0]), (1, 0, [1])], select


def test_a_table_for_every_kind_passes_by_workers_that_cannot_run_its_variant() -> None:
    """The candidate of a kind that cannot run the variant does not hide the idle worker that can."""
    crew = (Worker("b", "b"), Worker("a", "a"))
    both = on_kinds("both", straight(2, 10, kind="a"), straight(2, 30, kind="b"))
    on = deployed(both, variant("large", straight(2, 20, kind="a")), crew=crew)
    made = driver(lane(crew=(0, 1), select=cells([[1], [1], [0]])), on=on)
    made.submit()
    assert made.batches() == [(1, 1, [0])]
