"""Front ends' plain queries as rows of numbers: the same counts, answers and histograms as objects have."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from stretto.core.outcome import Outcome
from stretto.live.face.columns import FRONTS, NOBODY, Queries, Rows
from stretto.live.face.remote import RemoteQuery, Sized
from stretto.live.meters import Meters
from stretto.live.requests import Request
from stretto.live.snapshots import snapshot
from tests.live.face.paired import paired
from tests.live.real import conserved, until, within
from tests.live.test_service import ROWS, service_of
from tests.repository.build import Built, build


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return build(tmp_path / "models")


class Front:
    """As much of a front end as rows know of it."""

    def __init__(self, number: int = 3):
        self.number = number
        self.open: dict[int, object] = {}

    def sized(self, application: int, size: int) -> tuple[None, str]:
        return None, "abc"[application]


def held(count: int = 5, first_slot: int = 0) -> tuple[Queries, Front, np.ndarray]:
    queries, front = Queries("the generation"), Front()
    tickets = (np.int64(7) << 32) | np.arange(first_slot, first_slot + count)
    columns = {name: np.arange(count) for name in ("number", "arrival_ns", "deadline_ns", "place", "application")}
    columns |= {"size": np.zeros(count, int), "priority": np.full(count, 2)}
    columns["deadline_ns"] = columns["deadline_ns"] * 10
    columns["application"] = columns["application"] % 3
    queries.enter(front, tickets, **columns)  # type: ignore[arg-type]
    return queries, front, tickets


def test_a_slot_that_was_given_on_at_once_loses_nobody() -> None:
    """Of queries that are dropped at the door, each may have the slot of the one before."""
    queries, front, tickets = held(2)
    columns = {name: np.arange(10, 14) for name in ("number", "arrival_ns", "deadline_ns", "place")}
    columns |= {name: np.zeros(4, int) for name in ("application", "size", "priority")}
    again = np.array([(8 << 32) | 1, (9 << 32) | 1, (9 << 32) | 2, (10 << 32) | 1])
    queries.enter(front, again, **columns)  # type: ignore[arg-type]
    assert len(queries) == 6
    found = {int(ticket): queries[int(ticket)].number for ticket in (*tickets, *again)}
    assert list(found.values()) == [0, 1, 10, 11, 12, 13] and len(found) == len(queries) == 6


def test_queries_that_are_refused_at_the_door_all_end(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root) as service, paired(service) as pair:
            many = [pair.ask("rows", np.repeat(ROWS, 4, axis=0)) for _ in range(40)]
            ended = [await each for each in [*many, *(pair.ask("rows", ROWS) for _ in range(60))]]
            assert Outcome.DROPPED_OVERLOAD in {each.outcome for each in ended}
            assert service.engine.waiting == 0 and pair.there.open == {} and conserved(service.engine)

    within(60, work)


def test_a_row_becomes_an_object_once_it_is_asked_for() -> None:
    queries, front, tickets = held(5, first_slot=5000)  # more slots than there were
    assert len(queries) == 5 and queries and front.open == {}
    query = queries[int(tickets[2])]
    assert isinstance(query, RemoteQuery) and queries[int(tickets[2])] is query and front.open == {2: query}
    assert (query.number, query.deadline_ns, query.application, query.priority) == (2, 20, "c", 2)
    assert query.ticket == tickets[2] and query.generation == "the generation"
    assert len(queries) == 5
    assert queries.pop(int(tickets[2])) is query and len(queries) == 4
    assert queries.get(int(tickets[2])) is None and queries.pop(int(tickets[2]), None) is None
    with pytest.raises(KeyError):
        queries[int(tickets[0]) - (1 << 32)]  # of another query that had the slot before
    assert {each.number for each in queries.values()} == {0, 1, 3, 4} and len(queries) == 4


def test_a_batch_ends_as_rows_and_leaves_out_what_became_an_object() -> None:
    queries, _, tickets = held()
    entries = queries.entries(tickets.tolist())
    assert isinstance(entries, Rows) and entries.last_deadline_ns() == 40
    queries[int(tickets[1])]
    meters = Meters()
    taken, ended = entries.end(100, 7, 30, meters.many("a"))
    assert taken["ticket"].tolist() == [0, 2, 3, 4] and len(queries) == 1
    assert ended["number"].tolist() == [0, 2, 3, 4] and set(ended["run_ns"].tolist()) == {7}
    assert ended["outcome"].tolist() == [Outcome.LATE, Outcome.LATE, Outcome.ON_TIME, Outcome.ON_TIME]
    assert ended["queue_ns"].tolist() == [100, 98, 97, 96]
    assert not isinstance(queries.entries(tickets.tolist()[1:2]), Rows)


def test_a_batch_that_is_given_late_asks_for_nobody_in_the_place_of_one_that_ended() -> None:
    queries, front, tickets = held(3)
    front.memory = None  # type: ignore[attr-defined]
    front.sized = lambda application, size: (Sized(0, (4,), "float32", 16, 4), "a")  # type: ignore[method-assign, assignment]
    entries = queries.entries(tickets.tolist())
    assert isinstance(entries, Rows)
    queries.pop(int(tickets[1]))
    other = tickets[1:2] + (1 << 32)  # its slot, given to another request
    rest = {
        name: np.zeros(1, int) for name in ("arrival_ns", "deadline_ns", "place", "application", "size", "priority")
    }
    queries.enter(front, other, number=np.array([777]), **rest)  # type: ignore[arg-type]
    assert [(part.front, part.number) for part in entries.parts()] == [(3, 0), (NOBODY, 0), (3, 2)]
    assert {part.shape for part in entries.parts()} == {(1, 4)}


def test_front_ends_that_come_and_go_are_forgotten() -> None:
    """Each that comes back has another number. One that has a query here stays."""
    queries, front, tickets = held(1)
    kept = {"application": np.zeros(1, int), "size": np.zeros(1, int), "priority": np.zeros(1, int)}
    for number in range(100, 400):
        ticket = np.array([(number << 32) | 9])
        columns = {name: np.array([number]) for name in ("number", "arrival_ns", "deadline_ns", "place")}
        queries.enter(Front(number), ticket, **columns, **kept)  # type: ignore[arg-type]
        queries.pop(int(ticket[0]))
    assert len(queries._fronts) <= 2 * FRONTS and queries.front(front.number) is front
    assert queries[int(tickets[0])].front is front


def test_who_is_refused_at_the_door_keeps_its_end_though_its_slot_is_given_away() -> None:
    queries, front, tickets = held(3)
    numbers = np.array([10, 11, 12])
    same_slot = (
        np.arange(8, 11, dtype=np.int64) << 32
    ) | 1  # three more in the slot of the second, one after the other
    rest = {
        name: np.zeros(3, int) for name in ("arrival_ns", "deadline_ns", "place", "application", "size", "priority")
    }
    queries.enter(front, same_slot, number=numbers, **rest)  # type: ignore[arg-type]
    assert len(queries) == 6
    found = [queries.pop(int(ticket)).number for ticket in (*tickets, *same_slot)]
    assert found == [0, 1, 2, 10, 11, 12] and len(queries) == 0


def test_rows_are_counted_as_objects_are() -> None:
    rng = np.random.default_rng(5)
    arrivals, deadlines = rng.integers(0, 10**9, 500), rng.integers(0, 3 * 10**9, 500)
    queries, one, many = Queries(), Meters(), Meters()
    tickets = np.arange(500)
    rest = {name: np.zeros(500, int) for name in ("number", "place", "application", "size", "priority")}
    queries.enter(Front(), tickets, arrival_ns=arrivals, deadline_ns=deadlines, **rest)  # type: ignore[arg-type]
    queries.end(tickets, 10**9, 5 * 10**6, 15 * 10**8, many.many("a"))
    one.queries("a", arrivals.tolist(), deadlines.tolist(), 10**9, 5 * 10**6, 15 * 10**8)
    for expected, found in zip(one.stages["a"], many.stages["a"], strict=True):
        assert found.counts == expected.counts and found.sum == expected.sum and sum(found.counts) == 500


def test_served_as_rows_and_as_objects_at_once(built: Built) -> None:
    """Some are cancelled while they wait or run, some demand a variant; everything ends once and is counted once."""

    async def work() -> None:
        async with service_of(built.root) as service, paired(service) as pair:
            engine, ended = pair.front.engine, []
            for turn in range(40):
                for number in range(8):
                    wish = {"pinned": "good"} if number == 0 else {}
                    request = Request("rows", ROWS, 10**10, ended.append, **wish)
                    engine.submit(request)
                    if number == 1 and turn % 2:
                        engine.loop.call_later(0.001, engine.cancel, request)
                await asyncio.sleep(0.002)
            await until(lambda: len(ended) == 320)
            outcomes = [each.outcome for each in ended]
            assert outcomes.count(Outcome.ON_TIME) > 100
            assert all(each.answers is not None for each in ended if each.outcome is Outcome.ON_TIME)
            (state,) = snapshot(service).applications
            assert state.submitted == sum(state.outcomes) == 320
            assert state.outcomes[Outcome.ON_TIME] == outcomes.count(Outcome.ON_TIME)
            assert sum(state.stages["total"].counts) == state.outcomes[Outcome.ON_TIME] + state.outcomes[Outcome.LATE]
            assert pair.there.open == {} and conserved(service.engine) and len(service.engine.generation.queries) == 0

    within(60, work)


def test_a_flood_is_refused_at_the_door_and_everything_ends(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root) as service, paired(service, memory=1 << 22) as pair:
            ended: list[Request] = []
            for _ in range(5):
                for _ in range(600):
                    pair.front.engine.submit(Request("rows", ROWS, 10**9, ended.append))
                await asyncio.sleep(0.01)
            await until(lambda: len(ended) == 3000)
            assert Outcome.DROPPED_OVERLOAD in {each.outcome for each in ended}
            assert conserved(service.engine) and service.engine.waiting == 0 and pair.there.open == {}

    within(60, work)
