"""Tickets, withdrawal at any moment, capacity, and a clock that never runs backwards."""

from __future__ import annotations

import pytest

from stretto.core.outcome import Outcome
from stretto.core.plan import Deferred, Eager, Late, RouteRule
from tests.dispatch import promises
from tests.dispatch.books import Stage
from tests.dispatch.small import FAR, GATHER, driver, lane, planned

CANCELLED, OVERLOAD = Outcome.DROPPED_CANCELLED, Outcome.DROPPED_OVERLOAD


def test_a_waiting_query_is_withdrawn() -> None:
    made = driver(lane(release=GATHER))
    first, second = made.query(500), made.query(500)
    assert made.cancel(first)
    assert made.outcome(first) is CANCELLED
    assert made.book[second].stage is Stage.WAITING


def test_a_running_query_is_withdrawn_and_its_batch_runs_on() -> None:
    made = driver(lane(release=GATHER))
    first, second = made.query(500), made.query(500)
    made.adopt(planned(lane()))
    assert made.cancel(first)
    made.at(14).finish(0)
    assert (made.outcome(first), made.outcome(second)) == (CANCELLED, Outcome.ON_TIME)
    assert made.dispatcher.telemetry(14).running == 0


def test_a_query_in_a_committed_batch_is_withdrawn() -> None:
    made = driver(lane(release=Eager(1), ahead_ns=100))
    made.query(500)
    committed = made.query(500)
    assert len(made.crew[0].jobs) == 2
    assert made.cancel(committed)
    made.at(12).finish(0)
    made.at(24).finish(0)
    assert made.outcome(committed) is CANCELLED
    promises.slots_are_those_in_use(made)


def test_withdrawn_once_is_enough() -> None:
    made = driver(lane())
    running, waiting = made.query(500), made.query(500)
    for ticket in (running, waiting):
        assert made.cancel(ticket)
        assert not made.cancel(ticket)
    made.at(12).finish(0)
    assert not made.cancel(running)


def test_an_old_ticket_cannot_withdraw_the_query_that_has_its_slot_now() -> None:
    made = driver(lane())
    old = made.query(500)
    made.at(12).finish(0)
    new = made.query(500)
    assert (old ^ new) & 0xFFFFFFFF == 0, "the slot was used again"
    assert not made.cancel(old)
    assert made.book[new].stage is Stage.RUNNING
    made.at(24).finish(0)
    assert made.outcome(new) is Outcome.ON_TIME


@pytest.mark.parametrize("ticket", [-1, 0, 5, 2**40, 2**62, -(2**63)])
def test_a_ticket_that_was_never_given_is_nobodys(ticket: int) -> None:
    made = driver(lane(release=GATHER))
    made.query(500)
    assert not made.cancel(ticket)
    assert made.lengths() == [1]


def test_withdrawing_the_head_renews_the_start() -> None:
    made = driver(lane(release=Deferred(when_gathered=False)))
    head = made.query(100)
    made.query(200)
    assert made.wake() == 100 - 16
    made.cancel(head)
    assert made.wake() == 200 - 14


def test_withdrawing_the_last_silences_the_lane() -> None:
    made = driver(lane(release=Deferred(when_gathered=False), late=Late.DROP_WHEN_INFEASIBLE))
    made.cancel(made.query(100))
    assert made.wake() is None


def test_a_full_lane_admits_nobody() -> None:
    made = driver(lane(capacity=3))
    running, *waiting = [made.at(number).query(500) for number in range(3)]
    refused = made.query(500)
    assert made.outcome(refused) is OVERLOAD
    assert [made.outcome(ticket) for ticket in (running, *waiting)] == [None] * 3
    made.cancel(waiting[0])
    assert made.outcome(made.query(500)) is None


def test_capacity_counts_what_runs() -> None:
    made = driver(lane(capacity=2, release=Eager(1)))
    assert [made.outcome(made.at(number).query(500)) for number in range(3)] == [None, None, OVERLOAD]
    made.at(12).finish(0)
    assert made.outcome(made.query(500)) is None


def test_a_batch_that_is_half_done_counts_as_half() -> None:
    made = driver(lane(capacity=5, release=Eager(8), late=Late.DROP_WHEN_INFEASIBLE))
    made.query(500)
    made.at(1).submit_together(4)
    made.at(12).finish(0)  # four run until 30
    assert [made.outcome(made.at(now_ns).query(500)) for now_ns in (13, 14)] == [None, OVERLOAD]
    assert [made.outcome(made.at(22).query(500)) for _ in range(3)] == [None, None, OVERLOAD]


def test_a_lane_that_keeps_all_has_so_many_places() -> None:
    made = driver(lane(capacity=5, release=Eager(8), late=Late.KEEP))
    made.query(500)
    made.at(1).submit_together(4)
    made.at(12).finish(0)  # four run until 30
    assert [made.outcome(made.at(now_ns).query(500)) for now_ns in (13, 14, 22, 29)] == [None, *[OVERLOAD] * 3]


def test_what_runs_counts_in_the_lane_of_that_name_when_another_plan_comes() -> None:
    made = driver(lane("a", capacity=2, release=Eager(1)))
    made.query(500)
    made.adopt(planned(lane("b", release=Eager(1)), lane("a", release=Eager(1)), rule=RouteRule.ROUND_ROBIN))
    assert made.dispatcher.memory["lanes"]["running"].tolist() == [0, 1]
    made.adopt(planned(lane("c", release=Eager(1))))
    made.at(12).finish(0)
    assert made.dispatcher.memory["lanes"]["running"].tolist() == [0]


def test_time_never_runs_backwards() -> None:
    made = driver(lane())
    made.at(100).query(500)
    made.taken()
    late = made.dispatcher.submit(40, 0, 600)
    waiting = made.dispatcher.waiting()
    assert [(query.ticket, query.arrival_ns) for query in waiting] == [(late, 100)]
    made.dispatcher.finished(50, 0)
    (run,) = made.dispatcher.decisions()
    assert getattr(run, "start_ns", None) == 100


def test_a_timer_that_was_missed_acts_at_the_next_event_whatever_it_is() -> None:
    """Regression: events that changed nothing left a moment to wake at that had long passed."""
    for event in ("cancel", "finished", "left", "joined", "advance"):
        made = driver(lane(crew=(0, 1), release=Deferred(when_gathered=False)))
        made.leave(1)
        made.query(100)
        made.taken()
        made.at(500)
        dispatcher = made.dispatcher
        if event == "cancel":
            dispatcher.cancel(500, 12345)
        elif event == "finished":
            dispatcher.finished(500, 0)
        elif event == "left":
            dispatcher.worker_left(500, 1)
        elif event == "joined":
            dispatcher.worker_joined(500, 0)
        else:
            dispatcher.advance(500)
        assert dispatcher.wake_at_ns() is None, event
        assert len(dispatcher.decisions()) == 1, event


@pytest.mark.parametrize("deadline", [FAR, 2**62, 2**63 - 1])
def test_a_query_without_a_real_deadline_is_served_like_any_other(deadline: int) -> None:
    """Regression: beyond 2^62 a lane was never picked by a worker that became free."""
    dispatcher = driver(lane(crew=(0,), release=Eager(1))).dispatcher
    for _ in range(3):
        dispatcher.submit(0, 0, deadline)
    for now in (12, 24, 36):
        dispatcher.finished(now, 0)
    assert dispatcher.telemetry(36).outcomes[0, Outcome.ON_TIME] == 3


def test_decisions_are_given_once_and_in_order() -> None:
    dispatcher = driver(lane(release=Eager(1), capacity=2)).dispatcher
    tickets = [dispatcher.submit(number, 0, FAR) for number in range(3)]
    dispatcher.finished(12, 0)
    first, second, third = dispatcher.decisions()
    assert getattr(first, "tickets", None) == (tickets[0],)
    assert getattr(second, "reason", None) is OVERLOAD
    assert getattr(third, "tickets", None) == (tickets[1],)
    assert dispatcher.decisions() == ()
