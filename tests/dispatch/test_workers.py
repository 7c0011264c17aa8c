"""Workers that leave, with what ran on them, and come back."""

from __future__ import annotations

import pytest

from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plan import Eager, Fixed, Late, Plan, Route, RouteRule
from stretto.core.worker import Worker
from stretto.dispatch.decisions import Drop, Load, Run
from tests.dispatch import promises
from tests.dispatch.driver import Driver
from tests.dispatch.small import GATHER, deployed, driver, lane, variant

INFEASIBLE = Outcome.DROPPED_INFEASIBLE


def test_the_queries_of_a_lost_worker_run_on_another() -> None:
    made = driver(lane(crew=(0, 1), release=Eager(2)))
    for _ in range(4):
        made.query(500)
    assert [worker for worker, _, _ in made.batches()] == [0, 1]
    made.at(5).leave(0)
    assert made.batches() == []
    made.at(12).finish(1)
    assert made.batches() == [(1, 0, [0, 2])]


def test_they_return_to_their_old_place_in_the_lane() -> None:
    made = driver(lane(crew=(0, 1), release=Eager(1)))
    for slack in (300, 200, 400, 250):
        made.query(slack)
    made.taken()
    made.at(5).leave(1)  # it ran the query with 200
    found = []
    for end in (12, 24, 36):
        made.at(end).finish(0)
        found.extend(made.batches())
    assert [numbers for _, _, numbers in found] == [[1], [3], [2]]


@pytest.mark.parametrize(
    ("late", "moment", "outcome"),
    [
        (Late.KEEP, 8, None),
        (Late.KEEP, 9, Outcome.FAILED),
        (Late.REFUSE, 9, Outcome.FAILED),
        (Late.DROP_WHEN_DISPATCHED, 8, None),
        (Late.DROP_WHEN_DISPATCHED, 9, Outcome.FAILED),
        (Late.DROP_WHEN_DISPATCHED, 20, Outcome.FAILED),
        (Late.DROP_WHEN_DISPATCHED, 21, Outcome.FAILED),
        (Late.DROP_WHEN_INFEASIBLE, 9, Outcome.FAILED),
    ],
)
def test_those_that_cannot_make_it_any_more_failed(late: Late, moment: int, outcome: Outcome | None) -> None:
    """Deadline 20, alone 12 ns: from 9 on it is too late to begin again."""
    made = driver(lane(crew=(0, 1), late=late))
    ticket = made.query(20)
    made.at(moment).leave(0)
    assert made.outcome(ticket) is outcome
    if outcome is None:
        assert made.crew[1].jobs


def test_with_no_worker_left_what_ran_waits_with_the_rest_for_one_to_come() -> None:
    made = driver(lane())
    made.query(500)
    made.query(400)
    made.at(3).leave(0)
    assert (made.lengths(), made.wake()) == ([2], None)
    made.at(90).join(0)
    assert made.batches()[-1] == (0, 0, [1, 0])


def test_one_that_waits_once_more_and_becomes_infeasible_failed_and_was_not_late() -> None:
    """It used to count as infeasible, as though its client had come too late."""
    made = driver(lane(late=Late.DROP_WHEN_INFEASIBLE))
    lost = made.query(40)
    made.at(3).leave(0)
    late = made.query(40)
    assert made.lengths() == [2]
    made.at(35).advance()
    assert (made.outcome(lost), made.outcome(late)) == (Outcome.FAILED, INFEASIBLE)


def test_with_no_worker_left_what_cannot_make_it_fails() -> None:
    made = driver(lane())
    ticket = made.query(13)
    made.at(3).leave(0)
    assert made.outcome(ticket) is Outcome.FAILED


def test_a_query_returns_to_another_lane_of_its_route_if_its_own_has_nobody_left() -> None:
    lanes = tuple(lane(f"lane-{number}", (number,)) for number in range(2))
    made = driver(*lanes, rule=RouteRule.BY_CLIENT, targets=(0, 1))
    made.query(500, client=0)
    made.taken()
    made.leave(0)
    assert made.batches() == [(1, 0, [0])]


def test_what_is_committed_behind_a_running_batch_returns_too() -> None:
    made = driver(lane(crew=(0, 1), release=Eager(1), ahead_ns=100))
    for _ in range(4):
        made.query(500)
    assert [len(crew.jobs) for crew in made.crew] == [2, 2]
    made.at(3).leave(0)
    assert made.lengths() == [2]
    for end in (12, 24, 36, 48):
        made.at(end).finish(1)
    assert made.outcomes[0, Outcome.ON_TIME] == 4


def test_a_cancelled_query_of_a_lost_worker_stays_cancelled() -> None:
    made = driver(lane(crew=(0, 1)))
    ticket = made.query(500)
    made.cancel(ticket)
    made.leave(0)
    assert made.outcome(ticket) is Outcome.DROPPED_CANCELLED
    assert made.lengths() == [0]
    promises.slots_are_those_in_use(made)


def test_a_failed_batch_fails_its_queries_and_frees_the_worker() -> None:
    made = driver(lane(release=Eager(2)))
    first, second, third = made.query(500), made.query(500), made.query(500)
    made.at(12).finish(0, ok=False)
    assert made.outcome(first) is Outcome.FAILED
    assert made.batches() == [(0, 0, [0]), (0, 0, [1, 2])]
    made.at(50).finish(0)
    assert made.outcome(second) is made.outcome(third) is Outcome.ON_TIME


def test_a_returning_query_may_stand_above_the_capacity() -> None:
    """Capacity is a rule of the door: who was admitted once is not turned away."""
    made = driver(lane(crew=(0, 1), capacity=3, release=Eager(1)))
    for _ in range(3):
        made.query(500)
    assert made.outcome(made.query(500)) is Outcome.DROPPED_OVERLOAD
    made.leave(0)
    assert made.lengths() == [2]
    assert made.outcome(made.query(500)) is Outcome.DROPPED_OVERLOAD


def test_leaving_and_coming_twice_is_nothing_new() -> None:
    made = driver(lane(crew=(0, 1)))
    made.leave(1)
    made.leave(1)
    made.join(1)
    made.join(1)
    made.leave(0)
    made.query(500)
    assert made.batches() == [(1, 0, [0])]


def test_a_batch_reported_by_a_worker_that_has_none_is_ignored() -> None:
    made = driver(lane())
    made.dispatcher.finished(5, 0)
    made.leave(0)
    made.dispatcher.finished(6, 0)
    assert made.dispatcher.decisions() == ()


def test_a_worker_that_comes_back_holds_what_it_held_first() -> None:
    on = deployed(variant("a", load_ns=10), variant("b", load_ns=10), crew=(Worker("w", resident=("app/a",)),))
    lanes = (lane("a", select=Fixed(0)), lane("b", select=Fixed(1)))
    made = Driver(on, Plan(lanes, (Route(RouteRule.BY_CLIENT, (0, 1), targets=(0, 1)),)))
    made.query(500, client=1)
    made.at(22).finish(0)
    assert made.crew[0].loaded == {0, 1}
    made.leave(0)
    made.join(0)
    made.taken()
    made.query(500, client=1)
    assert [type(decision) for decision in made.taken()] == [Load, Run]


def test_a_worker_that_comes_back_is_given_its_placement_again() -> None:
    """Regression: the count of missing loads was not taken anew, and the worker stayed without them."""
    on = deployed(variant("a", load_ns=10), variant("b", load_ns=10), crew=(Worker("w", resident=()),))
    made = Driver(on, Plan((lane(),), (Route(RouteRule.BY_APPLICATION, (0,)),), placement=((1,),)))
    made.at(10).finish(0)
    made.leave(0)
    made.taken()
    made.at(20).join(0)
    assert made.taken() == [Load(0, 1, 20, 30, alone=True)]


def test_a_lane_waits_while_nobody_serves_it_but_still_drops_what_is_lost() -> None:
    made = driver(lane(late=Late.DROP_WHEN_INFEASIBLE, release=GATHER))
    made.leave(0)
    ticket = made.query(50)
    assert made.wake() == 39
    made.at(39).advance()
    assert made.taken() == [Drop(ticket, INFEASIBLE)]


def test_worker_numbers_are_checked() -> None:
    made = driver(lane()).dispatcher
    for call in (made.worker_left, made.worker_joined, made.finished):
        for number in (-1, 1):
            with pytest.raises(StrettoError, match=r"worker number -?1 is outside 0 … 0"):
                call(0, number)
    with pytest.raises(StrettoError, match="application number 1 is outside 0 … 0"):
        made.submit(0, 1, 100)


def test_a_worker_that_is_to_go_finishes_what_it_has_and_is_given_nothing_more() -> None:
    """Also the batch that it was given ahead."""
    made = driver(lane(crew=(0, 1), release=Eager(1), ahead_ns=5))
    for _ in range(6):
        made.query(500)
    assert [worker for worker, _, _ in made.batches()] == [0, 1]
    made.at(9).advance()
    assert [worker for worker, _, _ in made.batches()] == [0, 1]
    made.retire(0)
    assert made.dispatcher.telemetry(9).worker_alive.tolist() == [False, True]
    made.at(12).finish(0)
    made.at(12).finish(1)
    made.at(24).finish(0)
    assert {worker for worker, _, _ in made.batches()} == {1}
    assert made.dispatcher.telemetry(24).worker_busy_ns.tolist()[0] == 24  # what it did still counts
    made.drain()
    assert {entry.outcome for entry in made.book.values()} == {Outcome.ON_TIME}
    made.replay()


def test_one_that_is_to_go_and_is_lost_before_returns_what_it_had() -> None:
    made = driver(lane(crew=(0, 1), release=Eager(1)))
    for _ in range(2):
        made.query(500)
    made.retire(0)
    made.at(5).leave(0)
    made.taken()
    made.at(12).finish(1)
    assert made.batches() == [(1, 0, [0])]


def test_one_that_was_to_go_may_stay() -> None:
    made = driver(lane(crew=(0,), release=Eager(1)))
    for _ in range(3):
        made.query(500)
    made.retire(0)
    made.at(4).join(0)
    assert made.batches() == [(0, 0, [0])]  # nothing starts beside what runs
    made.at(12).finish(0)
    assert made.batches() == [(0, 0, [1])]
    made.retire(0)
    made.at(24).finish(0)
    assert made.batches() == []
    made.at(30).join(0)
    assert made.batches() == [(0, 0, [2])]


def test_a_lane_whose_last_worker_goes_is_left_out_by_its_route() -> None:
    lanes = (lane("a", (0,), release=Eager(1)), lane("b", (1,), release=Eager(1)))
    plan = Plan(lanes, (Route(RouteRule.ROUND_ROBIN, (0, 1)),))
    made = Driver(deployed(variant(), crew=2), plan)
    made.retire(0)
    for _ in range(3):
        made.query(500)
    assert made.lengths() == [0, 2]
