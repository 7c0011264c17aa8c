"""Front ends' plain queries as rows of numbers: the same counts, answers and histograms as objects have."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from stretto.core.application import Penalty
from stretto.core.outcome import Outcome
from stretto.live.face.columns import COLUMNS, FRONTS, NOBODY, Queries, Rows
from stretto.live.face.remote import RemoteQuery, Sized
from stretto.live.frames import places_as_text, places_in
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


class Nothing:
    """In place of a generation."""


GENERATION = Nothing()


def rows_of(numbers: np.ndarray, **columns: np.ndarray) -> np.ndarray:
    rows = np.zeros(len(numbers), COLUMNS)
    rows["front"], rows["number"] = 3, numbers
    for name, values in columns.items():
        rows[name] = values
    return rows


def held(count: int = 5, first_slot: int = 0) -> tuple[Queries, Front, np.ndarray]:
    queries, front = Queries(GENERATION), Front()
    tickets = (np.int64(7) << 32) | np.arange(first_slot, first_slot + count)
    numbers = np.arange(count)
    rows = rows_of(numbers, deadline_ns=10 * numbers, arrival_ns=numbers, application=numbers % 3, priority=2)
    queries.enter(front, tickets, rows)  # type: ignore[arg-type]
    return queries, front, tickets


def test_a_slot_that_was_given_on_at_once_loses_nobody() -> None:
    """Of queries that are dropped at the door, each may have the slot of the one before."""
    queries, front, tickets = held(2)
    again = np.array([(8 << 32) | 1, (9 << 32) | 1, (9 << 32) | 2, (10 << 32) | 1])
    queries.enter(front, again, rows_of(np.arange(10, 14)))  # type: ignore[arg-type]
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
    assert query.ticket == tickets[2] and query.generation is GENERATION
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
    taken, ended, ends = entries.end(100, 7, 30, meters.many("a"), 0.5)
    assert ends == [4] and taken["ticket"].tolist() == [0, 2, 3, 4] and len(queries) == 1
    assert ended["number"].tolist() == [0, 2, 3, 4] and set(ended["run_ns"].tolist()) == {7}
    assert ended["outcome"].tolist() == [Outcome.LATE, Outcome.LATE, Outcome.ON_TIME, Outcome.ON_TIME]
    assert ended["queue_ns"].tolist() == [100, 98, 97, 96]
    assert not isinstance(queries.entries(tickets.tolist()[1:2]), Rows)


def test_those_of_one_front_end_follow_each_other_at_the_end_of_a_batch() -> None:
    queries, tickets = Queries(), np.arange(12)
    rows = rows_of(np.arange(100, 112))
    rows["front"] = [5, 2, 5, 9, 2, 9, 9, 5, 2, 5, 5, 2]
    queries.enter(Front(5), tickets, rows)  # type: ignore[arg-type]
    entries = queries.entries(tickets.tolist())
    assert isinstance(entries, Rows)
    queries.table["ticket"][[0, 11]] = -1, 11 + (1 << 32)  # ended, and another's by now
    taken, ended, ends = entries.end(0, 0, 0, Meters().many("a"), 0.5)
    assert ends == [3, 7, 10]
    assert taken["front"].tolist() == [2, 2, 2, 5, 5, 5, 5, 9, 9, 9]
    assert taken["ticket"].tolist() == [1, 4, 8, 2, 7, 9, 10, 3, 5, 6]
    assert ended["number"].tolist() == (100 + taken["ticket"]).tolist()
    assert queries.table["ticket"][:12].tolist() == [-1] * 11 + [11 + (1 << 32)]


def test_places_are_those_of_the_rows_while_all_are_there_as_the_model_takes_them() -> None:
    queries, front, tickets = held(3)
    queries.table["place"][:3], queries.table["size"][:3] = [64, 0, 128], [4, 5, 4]
    front.first_size = lambda application, spec: spec  # type: ignore[attr-defined]
    entries = queries.entries(tickets.tolist())
    assert isinstance(entries, Rows)
    places = entries.places(4)  # type: ignore[arg-type]
    assert places is not None and places.tolist() == [(3, 0, 1, 64), (3, 1, 1, 0), (3, 0, 1, 128)]
    assert places_in(places_as_text("key", places.tobytes())) == places.tolist()
    assert entries.places(5) is None and entries.places(-1) is None  # type: ignore[arg-type]
    queries[int(tickets[1])]
    assert entries.places(4) is None  # type: ignore[arg-type]


def test_a_batch_that_is_given_late_asks_for_nobody_in_the_place_of_one_that_ended() -> None:
    queries, front, tickets = held(3)
    front.memory = None  # type: ignore[attr-defined]
    front.sized = lambda application, size: (Sized(0, (4,), "float32", 16, 4), "a")  # type: ignore[method-assign, assignment]
    entries = queries.entries(tickets.tolist())
    assert isinstance(entries, Rows)
    queries.pop(int(tickets[1]))
    other = tickets[1:2] + (1 << 32)  # its slot, given to another request
    queries.enter(front, other, rows_of(np.array([777])))  # type: ignore[arg-type]
    assert [(part.front, part.number) for part in entries.parts()] == [(3, 0), (NOBODY, 0), (3, 2)]
    assert {part.shape for part in entries.parts()} == {(1, 4)}
    assert entries.runs() == [(part.front, part.number, part.row, 1, part.size) for part in entries.parts()]


def test_runs_are_what_parts_tell() -> None:
    queries, front, tickets = held(4)
    front.memory = None  # type: ignore[attr-defined]
    sizes = Sized(0, (4,), "float32", 16, 4), Sized(1, (9,), "float32", 36, 4)
    front.sized = lambda application, size: (sizes[size], "a")  # type: ignore[method-assign, assignment]
    queries.table["size"][:4] = [1, 0, 1, 0]
    entries = queries.entries(tickets.tolist())
    assert isinstance(entries, Rows)
    for ended in (None, 0, 2, 1, 3):
        if ended is not None:
            queries.pop(int(tickets[ended]))
        assert entries.runs() == [(part.front, part.number, part.row, 1, part.size) for part in entries.parts()]
    assert {front for front, *_ in entries.runs()} == {NOBODY}


def test_front_ends_that_come_and_go_are_forgotten() -> None:
    """Each that comes back has another number. One that has a query here stays."""
    queries, front, tickets = held(1)
    for number in range(100, 400):
        ticket = np.array([(number << 32) | 9])
        row = rows_of(np.array([number]), front=np.array([number]))
        queries.enter(Front(number), ticket, row)  # type: ignore[arg-type]
        queries.pop(int(ticket[0]))
    assert len(queries._fronts) <= 2 * FRONTS and queries.front(front.number) is front
    assert queries[int(tickets[0])].front is front


def test_who_is_refused_at_the_door_keeps_its_end_though_its_slot_is_given_away() -> None:
    queries, front, tickets = held(3)
    numbers = np.array([10, 11, 12])
    same_slot = (
        np.arange(8, 11, dtype=np.int64) << 32
    ) | 1  # three more in the slot of the second, one after the other
    queries.enter(front, same_slot, rows_of(numbers))  # type: ignore[arg-type]
    assert len(queries) == 6
    found = [queries.pop(int(ticket)).number for ticket in (*tickets, *same_slot)]
    assert found == [0, 1, 2, 10, 11, 12] and len(queries) == 0


def test_rows_are_counted_as_objects_are() -> None:
    rng = np.random.default_rng(5)
    arrivals, deadlines = rng.integers(0, 10**9, 500), rng.integers(0, 3 * 10**9, 500)
    queries, one, many = Queries(), Meters(), Meters()
    tickets = np.arange(500)
    rows = rows_of(np.arange(500), arrival_ns=arrivals, deadline_ns=deadlines)
    queries.enter(Front(), tickets, rows)  # type: ignore[arg-type]
    queries.end(tickets, 10**9, 5 * 10**6, 15 * 10**8, many.many("a"), 0.5)
    one.queries("a", arrivals.tolist(), deadlines.tolist(), 10**9, 5 * 10**6, 15 * 10**8, 0.5, Penalty.LINEAR)
    late = np.maximum(0, 15 * 10**8 - deadlines) / np.maximum(1, deadlines - arrivals)
    on_time = deadlines >= 15 * 10**8
    assert many.worth("a") == 0.5 * on_time.sum() and many.worth("another") == 0
    assert one.worth("a") == pytest.approx(0.5 * np.where(on_time, 1, np.maximum(0, 1 - late)).sum())
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
