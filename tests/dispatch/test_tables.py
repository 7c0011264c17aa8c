"""Tables: a cell for (queued, slack of the head) says what to run, or to wait."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.application import Application
from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import GIVE_UP, Deferred, Eager, Fixed, Late, Table, Tables
from stretto.core.worker import Worker, workers
from tests.dispatch.driver import Driver
from tests.dispatch.models import FAST, MIDDLE, MODELS, SLOW, cells
from tests.dispatch.small import GATHER, deployed, driver, lane, on_kinds, planned, straight, variant


def with_table(table: Table, **rules: Any) -> Driver:
    return driver(lane(select=table, **rules), on=deployed(*MODELS))


def test_a_cell_is_found_by_queue_and_slack_and_the_last_ones_hold_on() -> None:
    table = cells([[SLOW, SLOW], [FAST, SLOW], [MIDDLE, SLOW]])
    for queued, slack, chosen in (
        (1, 19, FAST),
        (1, 20, SLOW),
        (1, 5000, SLOW),
        (1, -3, FAST),
        (2, 19, MIDDLE),
        (5, 19, MIDDLE),
    ):
        made = driver(lane(release=GATHER), on=deployed(*MODELS))
        for _ in range(queued):
            made.query(slack)
        made.adopt(planned(lane(select=table)))
        assert made.batches() == [(0, chosen, list(range(queued)))], (queued, slack)


def test_a_wait_cell_waits_until_the_slack_falls_into_the_next_column() -> None:
    made = with_table(cells([[FAST, -1, -1]]))
    made.query(50)
    assert (made.batches(), made.wake()) == ([], 11)  # slack 39 is the first of the middle column: wait on
    made.at(11).advance()
    assert (made.batches(), made.wake()) == ([], 31)
    made.at(31).advance()  # slack 19
    assert made.batches() == [(0, FAST, [0])]


def test_a_lane_in_need_goes_first_though_it_would_run_something_quick() -> None:
    """Both could still start with the quick variant, this one until 1290 and the other one until 1490. Ranked by what
    they would run now, the other had to start by 1000: the more a lane was in need, the later it came.
    """
    ladder = variant("quick", straight(0, 10)), variant("slow", straight(0, 500))
    hold = Application("hold", 2000, (variant("hold", straight(0, 900)),))
    on = Deployment((hold, Application("plenty", 2000, ladder), Application("need", 2000, ladder)), workers(1))
    lanes = [lane("hold", select=Fixed(0))]
    lanes += [lane(name, select=cells([[quick, quick + 1]], step=500)) for name, quick in (("plenty", 1), ("need", 3))]
    made = driver(*lanes, on=on)
    made.submit(0, 2000)  # the worker is busy until 900
    made.taken()
    made.at(890).submit(1, 1500)  # enough for the slow one
    made.submit(2, 1300)  # not here
    made.at(900).finish(0)
    assert made.batches() == [(0, 3, [2])]


def test_edges_make_columns_of_unequal_width() -> None:
    """Slack 0 … 29, 30 … 89, 90 and more; the step of 1 is not read."""
    row = np.array([[FAST, MIDDLE, SLOW]], dtype=np.int32)
    table = Table(1, row, np.zeros_like(row), edges_ns=(30, 90))
    for slack, chosen in ((-3, FAST), (0, FAST), (29, FAST), (30, MIDDLE), (89, MIDDLE), (90, SLOW), (10**6, SLOW)):
        made = with_table(table)
        made.query(slack)
        assert made.batches() == [(0, chosen, [0])], slack


def test_a_wait_cell_between_edges_ends_at_the_very_moment() -> None:
    row = np.array([[FAST, MIDDLE, -1]], dtype=np.int32)
    table = Table(1, row, np.zeros_like(row), edges_ns=(30, 31))
    made = with_table(table)
    made.query(1000)
    assert (made.batches(), made.wake()) == ([], 970)
    made.at(969).advance()
    assert made.batches() == []
    made.at(970).advance()  # slack 30, the only one of its column
    assert made.batches() == [(0, MIDDLE, [0])]
    early = with_table(table, timer_ns=7)
    early.query(1000)
    assert early.wake() == 963
    early.at(963).advance()
    assert early.batches() == [(0, MIDDLE, [0])]


def test_a_wait_cell_ends_when_enough_are_queued() -> None:
    made = with_table(cells([[FAST, -1], [FAST, -1], [MIDDLE, MIDDLE]]))
    made.at(5).query(500)
    assert made.batches() == []
    made.at(6).query(500)
    assert made.batches() == [(0, MIDDLE, [0, 1])]


def test_a_lane_whose_cell_turns_to_wait_while_it_waits_for_a_worker_looks_again() -> None:
    """Regression: the worker that came found nothing to take, and nobody set the lane's timer."""
    made = with_table(cells([[FAST, -1, SLOW]]))
    made.query(50)
    assert made.batches() == [(0, SLOW, [0])]
    made.query(70)  # would start at once if a worker were free
    made.at(40).finish(0)  # slack 30: wait
    assert (made.batches(), made.wake()) == ([], 51)
    made.at(51).advance()
    assert made.batches() == [(0, FAST, [1])]


def test_where_late_ones_are_dropped_a_coarse_table_saves_the_head_on_the_fastest() -> None:
    kept, dropping = (with_table(cells([[FAST], [SLOW]]), late=late) for late in (Late.KEEP, Late.DROP_WHEN_DISPATCHED))
    for made in (kept, dropping):
        made.query(59)
    assert kept.batches() == [(0, SLOW, [0])]
    assert dropping.batches() == [(0, FAST, [0])]


def test_a_table_has_one_speaker_per_kind() -> None:
    crew = (Worker("a", "a"), Worker("b", "b"))
    both = on_kinds("x", straight(2, 10, kind="a"), straight(2, 10, kind="b"))
    other = on_kinds("y", straight(2, 20, kind="a"), straight(2, 20, kind="b"))
    for tables, chosen in (
        ((cells([[0]], kind="a"), cells([[1]], kind="b")), [0, 1]),
        ((cells([[1]]), cells([[0]], kind="b")), [1, 0]),
    ):
        made = driver(lane(crew=(0, 1), select=Tables(tables), release=Eager(1)), on=deployed(both, other, crew=crew))
        made.submit()
        made.submit()
        assert [(worker, model) for worker, model, _ in made.batches()] == list(enumerate(chosen))


def test_a_deferred_table_starts_when_the_cell_is_full() -> None:
    """Two rules at once: the table names a batch, and what it leaves waiting cannot join."""
    made = with_table(cells([[FAST]], batch=2), release=Deferred(when_gathered=False))
    for _ in range(3):
        made.query(500)
    assert made.batches() == [(0, FAST, [0, 1])]


def giving_up_below(slack_column: int) -> Table:
    """Two columns of 20 ns: heads of less slack than the second's are given up, others run on the fast variant."""
    variant = np.full((5, 3), FAST, dtype=np.int32)
    batch = np.zeros_like(variant)
    batch[:, :slack_column] = GIVE_UP
    return Table(20, variant, batch)


def test_a_cell_that_gives_up_the_head_drops_it_for_those_behind_it() -> None:
    made = driver(lane(release=GATHER, late=Late.DROP_WHEN_INFEASIBLE), on=deployed(*MODELS))
    pressing = made.query(30)  # it could still be answered: the fast variant takes 12
    made.query(500)
    made.query(500)
    made.adopt(planned(lane(select=giving_up_below(2), late=Late.DROP_WHEN_INFEASIBLE)))
    assert made.outcome(pressing) == Outcome.DROPPED_OVERLOAD
    assert made.batches() == [(0, FAST, [1, 2])]


def test_nobody_is_given_up_while_every_worker_is_busy() -> None:
    made = with_table(giving_up_below(2), late=Late.DROP_WHEN_INFEASIBLE)
    made.query(500)
    made.taken()
    pressing = made.query(30)
    assert made.outcome(pressing) is None
    made.at(12).finish(0)  # slack 18: still possible, but given up
    assert made.outcome(pressing) == Outcome.DROPPED_OVERLOAD


def test_another_kind_takes_what_one_would_give_up() -> None:
    crew = (Worker("a", "a"), Worker("b", "b"))
    both = on_kinds("both", straight(2, 10, kind="a"), straight(2, 10, kind="b"))
    run = np.zeros((2, 3), dtype=np.int32)
    tables = Tables((Table(20, run, np.full_like(run, GIVE_UP), "a"), Table(20, run, run, "b")))
    made = driver(lane(crew=(0, 1), select=tables, late=Late.DROP_WHEN_INFEASIBLE), on=deployed(both, crew=crew))
    made.query(50)
    second = made.query(50)
    assert made.batches() == [(1, 0, [0])]
    assert made.outcome(second) == Outcome.DROPPED_OVERLOAD
