"""Deferred release, at exact nanoseconds: Symphony section 4.3 and figure 16. l(b) = 2·b + 10."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import Deferred, Fixed, Late, Order
from stretto.core.worker import Worker, workers
from stretto.dispatch.decisions import Drop, Run
from tests.dispatch.driver import Driver
from tests.dispatch.small import PROFILE, deployed, driver, lane, on_kinds, straight, variant


def deferred(crew: tuple[int, ...] = (0,), *, gathered: bool = False, max_batch: int = 4096, **rules: Any) -> Driver:
    release = Deferred(max_batch, when_gathered=gathered)
    return driver(lane(crew=crew, release=release, **({"late": Late.DROP_WHEN_INFEASIBLE} | rules)))


def runs(made: Driver) -> list[Run]:
    return [decision for decision in made.taken() if isinstance(decision, Run)]


def test_one_query_starts_when_a_second_could_not_join_any_more() -> None:
    made = deferred()
    made.query(100)
    assert made.wake() == 100 - PROFILE.latency_ns(2) == 86
    made.at(85).advance()
    assert runs(made) == []
    made.at(86).advance()
    (run,) = runs(made)
    assert (run.start_ns, run.expected_ns) == (86, 98)


def test_each_query_that_joins_moves_the_start_forward() -> None:
    made = deferred()
    for number in range(4):
        made.at(number).submit(0, 100 + number)
        assert made.wake() == 100 - PROFILE.latency_ns(number + 2)
    made.at(80).advance()
    (run,) = runs(made)
    assert (len(run.tickets), run.expected_ns) == (4, 98)


def test_a_query_that_comes_at_the_very_moment_of_the_start_joins() -> None:
    made = deferred()
    made.query(100)
    made.at(86).submit(0, 200)
    (run,) = runs(made)
    assert (run.start_ns, len(run.tickets), run.expected_ns) == (86, 2, 100)


def test_an_earlier_deadline_that_joins_sets_the_start() -> None:
    made = deferred()
    made.query(100)
    made.at(1).submit(0, 60)
    assert made.wake() == 60 - PROFILE.latency_ns(3)


def test_a_full_batch_starts_at_once() -> None:
    by_cap = deferred(max_batch=3)
    by_profile = driver(
        lane(release=Deferred(when_gathered=False)), on=deployed(variant("v", straight(2, 10, max_batch=3)))
    )
    for made in (by_cap, by_profile):
        made.query(500)
        made.query(500)
        assert runs(made) == []
        made.query(500)
        assert [len(run.tickets) for run in runs(made)] == [3]


def test_a_batch_that_one_more_would_make_late_starts_at_once() -> None:
    made = deferred()
    made.query(17)
    assert made.wake() == 3
    made.at(2).query(500)  # two end at 16; three would end at 18
    (run,) = runs(made)
    assert (run.start_ns, len(run.tickets)) == (2, 2)


@pytest.mark.parametrize("gathered", [True, False])
def test_more_than_beta_lambda_start_at_once_only_where_the_plan_says_so(gathered: bool) -> None:
    """β is 10 ns. At one query per 20 ns, βλ is 0.5: one is enough. At one per 4 ns it is 2.5: three are."""
    made = deferred(crew=(0, 1, 2), gathered=gathered)
    made.query(5000)
    assert bool(runs(made)) == gathered  # λ is not known yet, so βλ is 0
    made.at(20).query(5000)
    assert bool(runs(made)) == gathered
    fast = deferred(crew=tuple(range(8)), gathered=gathered)
    sizes = []
    for number in range(7):
        fast.at(4 * number).query(5000)
        sizes.append([len(run.tickets) for run in runs(fast)])
    # The estimate is 1/4 from the second query on.
    expected: list[list[int]] = [[1], [], [], [3], [], [], [3]]
    assert sizes == (expected if gathered else [[]] * 7)


def test_an_infeasible_query_is_dropped_on_the_nanosecond_even_while_every_worker_is_busy() -> None:
    made = deferred()
    made.query(20)
    made.at(6).advance()
    assert len(runs(made)) == 1  # busy until 18
    lost = made.at(7).submit(0, 25)
    made.at(11).advance()  # due, but there is no worker
    assert made.wake() == 25 - PROFILE.latency_ns(1) + 1 == 14
    made.at(13).advance()
    assert made.outcome(lost) is None
    made.at(14).advance()
    assert made.taken() == [Drop(lost, Outcome.DROPPED_INFEASIBLE)]


def test_control_and_data_delay_come_off_the_start() -> None:
    """d_ctrl + d_data·b: the decision falls that much earlier, and the batch starts when it would have."""
    made = deferred(control_ns=5, data_ns=3)
    made.query(100)
    assert made.wake() == 86 - 8
    made.query(100)
    assert made.wake() == 84 - 11
    made.at(73).advance()
    (run,) = runs(made)
    assert (run.start_ns, run.expected_ns) == (84, 98)


def test_with_delays_the_infeasible_timer_leaves_time_for_them() -> None:
    made = deferred(control_ns=5, data_ns=3)
    lost = made.query(19)  # 8 + 12 do not fit
    assert made.outcome(lost) is Outcome.DROPPED_INFEASIBLE
    made.query(60)
    made.at(38).advance()
    assert [(run.start_ns, run.expected_ns) for run in runs(made)] == [(46, 58)]
    late = made.submit(0, 62)
    made.at(40).advance()  # due, but there is no worker
    assert made.wake() == 62 - 12 - 8 + 1
    made.at(43).advance()
    assert made.outcome(late) is Outcome.DROPPED_INFEASIBLE


def test_a_busy_worker_is_granted_as_long_before_it_is_free_as_the_batch_is_on_its_way() -> None:
    made = deferred(control_ns=5, data_ns=1, max_batch=1)
    made.query(500)  # decided at 0, starts at 6, ends at 18
    made.query(500)
    assert [run.expected_ns for run in runs(made)] == [18]
    assert made.wake() == 18 - 6
    made.at(11).advance()
    assert runs(made) == []
    made.at(12).advance()
    (run,) = runs(made)
    assert (run.start_ns, run.expected_ns) == (18, 30)
    made.query(500)  # one runs and one is committed, so the third waits
    assert (runs(made), made.lengths()) == ([], [1])


def test_look_ahead_commits_the_next_batch_without_any_delay() -> None:
    made = deferred(max_batch=1, ahead_ns=4)
    made.query(500)
    made.query(500)
    runs(made)
    assert made.wake() == 12 - 4
    made.at(8).advance()
    assert [(run.start_ns, run.expected_ns) for run in runs(made)] == [(12, 24)]


def test_a_batch_is_pruned_to_the_earliest_deadlines_that_fit_together() -> None:
    made = deferred(max_batch=8)
    made.query(30)
    made.at(16).advance()
    runs(made)  # busy until 28
    tickets = [made.at(16).submit(0, deadline) for deadline in (48, 44, 46, 50, 52)]
    made.at(28).finish(0)  # 44 leaves 16 ns: three fit together
    (run,) = runs(made)
    assert run.tickets == (tickets[1], tickets[2], tickets[0])
    assert run.expected_ns == 44
    assert made.lengths() == [2]  # the rest forms a later candidate


def test_pruning_gives_up_a_head_that_does_not_fit_alone() -> None:
    """Regression: the worker that came free found the rest not yet due, and nobody set the lane's timer again."""
    made = deferred(late=Late.DROP_WHEN_DISPATCHED)
    made.query(30)
    made.at(16).advance()
    lost, kept = made.submit(0, 39), made.submit(0, 60)
    made.at(23).advance()  # due, but the worker is busy until 28
    runs(made)
    made.at(28).finish(0)
    assert made.outcome(lost) is Outcome.DROPPED_INFEASIBLE
    assert runs(made) == []
    assert made.wake() == 60 - 14
    made.at(46).advance()
    assert [run.tickets for run in runs(made)] == [(kept,)]


def test_where_late_ones_are_kept_a_late_batch_starts_at_once() -> None:
    made = deferred(late=Late.KEEP)
    made.query(5)
    (run,) = runs(made)
    assert run.expected_ns == 12


@pytest.mark.parametrize("late", [Late.KEEP, Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE])
def test_the_earliest_deadline_sets_the_start_whatever_the_order(late: Late) -> None:
    """Regression: in a lane of first come, the head's deadline set it, and a tighter one behind was forgotten."""
    made = deferred(order=Order.FIRST_COME, late=late)
    made.query(200)
    made.query(100)
    assert made.wake() == 100 - PROFILE.latency_ns(3)
    made.at(84).advance()
    assert [(len(run.tickets), run.expected_ns) for run in runs(made)] == [(2, 98)]


def test_of_two_kinds_of_worker_the_second_gets_its_own_moment() -> None:
    """Regression: a candidate that waited for the slow kind forgot to start on the quick one, which stood idle."""
    both = on_kinds("v", straight(0, 40, kind="slow"), straight(0, 10, kind="quick"))
    on = deployed(both, crew=(Worker("s", "slow"), Worker("q", "quick")))
    made = driver(lane(crew=(0, 1), release=Deferred(when_gathered=False), late=Late.DROP_WHEN_INFEASIBLE), on=on)
    made.query(60)
    made.at(20).advance()  # 60 - 40: the slow worker takes it
    assert [run.worker for run in runs(made)] == [0]
    made.query(60)  # due on the slow kind at 40, on the quick one at 70
    assert made.wake() == 40
    made.at(40).advance()
    assert made.wake() == 70
    made.at(70).advance()
    assert [(run.worker, run.expected_ns) for run in runs(made)] == [(1, 80)]


def test_a_lane_that_waits_for_a_worker_is_ranked_by_all_that_have_joined_it() -> None:
    """Figure 16 informs of dl − l(|queue| + 1) at every request, so two that join make a lane the more urgent one.

    These lanes start as soon as they get a worker, as in the work-conserving twin, so they wait from their first query.
    """
    steep = Variant("steep", 0.5, (straight(20, 10),))
    models = (Variant("busy", 0.5, (straight(1, 899),)), steep, replace(steep, name="other"))
    on = Deployment(tuple(Application(model.name, 2000, (model,)) for model in models), workers(1))
    made = driver(*(lane(model.name, select=Fixed(number)) for number, model in enumerate(models)), on=on)
    made.query(2000)  # the worker is busy until 900
    made.taken()
    made.submit(1, 1000)  # 1000 − l(2) = 950
    made.submit(2, 995)  # 995 − l(2) = 945, so this lane is first
    made.at(890).submit(1, 3000)
    made.submit(1, 3000)  # 1000 − l(4) = 910: now the other one is
    made.at(900).finish(0)
    (run,) = runs(made)
    assert (run.variant, len(run.tickets)) == (1, 3)
