"""Worklists: batches formed by a planner, taken by each worker in their order."""

from __future__ import annotations

from stretto.core.outcome import Outcome
from stretto.core.plan import Eager, Late, Plan, Route, RouteRule, Work, Worklist
from stretto.dispatch.decisions import Answer
from tests.dispatch.driver import Driver
from tests.dispatch.models import FAST, MIDDLE, MODELS, SLOW
from tests.dispatch.small import GATHER, deployed, driver, lane, planned


def gathered(count: int, crew: int = 1) -> tuple[Driver, list[int]]:
    """So many queries waiting in a lane that starts nothing."""
    made = driver(lane(crew=tuple(range(crew)), release=GATHER), on=deployed(*MODELS, crew=crew))
    return made, [made.query(100 + number) for number in range(count)]


def test_a_worklist_is_taken_as_it_was_formed() -> None:
    made, tickets = gathered(6, crew=2)
    works = (
        Work(0, MIDDLE, (tickets[4], tickets[1])),
        Work(1, FAST, (tickets[5],)),
        Work(0, FAST, (tickets[0],)),
    )
    made.adopt(planned(lane(crew=(0, 1), select=Worklist(works))))
    assert made.batches() == [(0, MIDDLE, [4, 1]), (1, FAST, [5])]
    made.at(50).finish(1)  # nothing more for worker 1
    made.finish(0)
    assert made.batches() == [(0, FAST, [0])]
    made.at(100).finish(0)
    assert (made.batches(), made.lengths(), made.wake()) == ([], [2], None)  # in no batch: the next plan may take them


def test_a_worklist_goes_on_without_those_that_have_gone() -> None:
    made, tickets = gathered(4)
    made.adopt(planned(lane(select=Worklist((Work(0, FAST, (tickets[0],)), Work(0, SLOW, tuple(tickets[1:])))))))
    made.cancel(tickets[2])
    made.taken()
    made.at(12).finish(0)
    assert made.batches() == [(0, SLOW, [1, 3])]


def test_a_work_larger_than_a_batch_may_be_is_run_in_parts() -> None:
    made, tickets = gathered(5)
    made.adopt(planned(lane(select=Worklist((Work(0, FAST, tuple(tickets)),)), release=Eager(2))))
    for now in (14, 28, 40):
        made.at(now).finish(0)
    assert made.batches() == [(0, FAST, [0, 1]), (0, FAST, [2, 3]), (0, FAST, [4])]


def test_late_queries_of_a_work_are_dropped_only_where_the_lane_says_so() -> None:
    """Regression: queries beyond the first part were counted off the batch, and the rest was never run."""
    for late, parts in ((Late.KEEP, [[0, 1], [2, 3], [4]]), (Late.DROP_WHEN_DISPATCHED, [[3, 4]])):
        made = driver(lane(release=GATHER), on=deployed(*MODELS))
        tickets = [made.query(slack) for slack in (15, 15, 15, 100, 100)]
        made.at(2).adopt(planned(lane(select=Worklist((Work(0, FAST, tuple(tickets)),)), late=late, release=Eager(2))))
        for now in (20, 40, 60):
            if made.crew[0].jobs:
                made.at(now).finish(0)
        assert [numbers for _, _, numbers in made.batches()] == parts


def test_a_work_drops_no_more_than_it_must() -> None:
    """Two fit together where three do not: the most pressing one goes, and the others are in time."""
    made = driver(lane(release=GATHER))
    tickets = [made.query(slack) for slack in (15, 14, 15)]
    made.adopt(planned(lane(select=Worklist((Work(0, 0, tuple(tickets)),)), late=Late.DROP_WHEN_DISPATCHED)))
    assert made.batches() == [(0, 0, [0, 2])]


def test_answers_end_at_once_and_need_no_worker() -> None:
    made, tickets = gathered(4)
    late = made.query(5)
    made.at(50).adopt(planned(lane(select=Worklist((Work(0, FAST, (tickets[1],)),), (tickets[0], late, tickets[0])))))
    answers = [decision for decision in made.taken() if isinstance(decision, Answer)]
    assert sorted(answer.ticket for answer in answers) == sorted((tickets[0], late))
    assert (made.outcome(tickets[0]), made.outcome(late)) == (Outcome.ON_TIME, Outcome.LATE)
    assert made.lengths() == [2]
    made.adopt(planned(lane(select=Worklist((), (tickets[0],)))))  # it has ended, and its ticket says so
    assert not any(isinstance(decision, Answer) for decision in made.taken())


def test_an_answered_query_is_not_run_even_if_a_work_names_it() -> None:
    made, tickets = gathered(2)
    made.adopt(planned(lane(select=Worklist((Work(0, FAST, tuple(tickets)),), (tickets[0],)))))
    assert made.batches() == [(0, FAST, [1])]


def test_a_running_query_is_not_answered_by_its_evidence() -> None:
    made = driver(lane())
    ticket = made.query(1000)
    made.adopt(planned(lane(select=Worklist((), (ticket,)))))
    assert made.outcome(ticket) is None
    made.at(20).finish(0)
    assert made.outcome(ticket) is Outcome.ON_TIME


def test_a_query_whose_work_is_lost_waits_where_its_route_leads() -> None:
    """Not in the lane of the works, which starts nothing more before the next plan."""
    made = driver(lane(crew=(1,)), on=deployed(crew=3))
    made.query(1000)
    ticket = made.query(1000)
    made.taken()
    works = lane("works", crew=(0, 2), select=Worklist((Work(0, 0, (ticket,)),)))
    made.adopt(Plan((lane(crew=(1,)), works), (Route(RouteRule.BY_APPLICATION, (0,)),)))
    assert made.batches() == [(0, 0, [1])]
    made.leave(0)
    assert made.lengths() == [1, 0]
    made.at(50).finish(1)
    assert made.batches() == [(1, 0, [1])]
