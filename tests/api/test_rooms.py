"""Rooms for bodies: what is free goes back to the system but for what is kept; that stays, and costs no new pages."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from stretto.api.rooms import MOST_BYTES, Rooms
from stretto.backends.resident import resident_bytes
from stretto.live.lent import place_of
from tests.api.apart import run_apart

FAULTS = """
import resource
from stretto.api.rooms import Rooms

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

rooms = Rooms(16 << 20)
rooms.take_ahead()
content = bytes(600_000)
before = faults()
for _ in range(50):
    held = [rooms.room(600_000) for _ in range(8)]
    for room in held:
        room[:] = content
    del held, room
print(faults() - before)
"""


def address(room: memoryview) -> int:
    return int(np.frombuffer(room, np.uint8).__array_interface__["data"][0])


def test_bodies_touch_no_new_pages() -> None:
    assert run_apart(FAULTS) < 200, "fifty times eight bodies of 147 pages each"


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_bodies_that_never_come_leave_nothing_behind() -> None:
    """Each states 900 kB and sends a little of it. In a heap what was touched stayed, and every round touched more."""
    rooms = Rooms(4 << 20)
    before = resident_bytes()
    for sent in (16_000, 100_000, 300_000, 30_000):
        held = [rooms.room(900_000) for _ in range(300)]
        for room in held:
            room[:sent] = bytes(sent)
        most = resident_bytes() - before
        assert 300 * sent * 0.9 < most < 300 * (sent + 8192) + (24 << 20)
        del held, room
        assert resident_bytes() - before < 24 << 20


def kept(kept_bytes: int) -> Rooms:
    rooms = Rooms(kept_bytes)
    rooms.take_ahead()
    return rooms


def test_a_room_is_free_when_its_last_view_is_gone() -> None:
    rooms = kept(MOST_BYTES)
    room = rooms.room(100)
    tensor = np.frombuffer(room[20:60], np.uint8).reshape(2, 20)[1]
    place = address(room)
    del room
    others = [rooms.room(100) for _ in range(3)]
    assert place not in map(address, others), "a tensor that waits keeps its memory"
    del tensor
    assert address(rooms.room(100)) == place


def test_rooms_of_two_bodies_never_overlap() -> None:
    """Sizes that differ, let go of in any order: what is written into one is found there unchanged."""
    rooms, random = kept(4 << 20), np.random.default_rng(1)
    held: dict[int, memoryview] = {}
    for number in range(600):
        size = int(random.integers(1, 400_000))
        held[number % 251] = room = rooms.room(size)
        room[:] = bytes([number % 251]) * size
        for gone in random.choice(list(held), len(held) // 3, replace=False).tolist():
            del held[gone]
    assert held and all(room.tobytes() == bytes([number]) * room.nbytes for number, room in held.items())
    held.clear()
    del room
    assert address(rooms.room(MOST_BYTES)) == address(kept_at(rooms)), "all of it is one piece again"


def kept_at(rooms: Rooms) -> memoryview:
    assert rooms._kept is not None
    return rooms._kept.data


def test_a_room_may_be_let_go_of_while_another_is_looked_for() -> None:
    """On any thread: whoever has the last view of it is not asked where."""
    rooms = kept(8 << 20)

    def use() -> None:
        for _ in range(2_000):
            del waiting[:2]

    waiting: list[memoryview] = []
    with ThreadPoolExecutor(1) as pool:
        using = pool.submit(use)
        while not using.done():
            waiting.append(rooms.room(3_000))
    waiting.clear()
    assert address(rooms.room(MOST_BYTES)) == address(kept_at(rooms))


def test_what_is_larger_than_a_room_has_memory_of_its_own() -> None:
    rooms = Rooms(0)
    rooms.take_ahead()
    assert rooms.room(3 * MOST_BYTES).nbytes == 3 * MOST_BYTES
    assert rooms.room(MOST_BYTES).nbytes == MOST_BYTES


@pytest.mark.skipif(sys.platform != "linux", reason="memory without a name is Linux's")
def test_as_many_bodies_as_fit_lie_where_workers_see_them() -> None:
    """However much smaller they are than the largest room; more of them have memory of their own."""
    rooms = kept(2 << 20)
    held = [rooms.room(400_000) for _ in range(6)]

    def are_lent() -> list[bool]:
        return [place_of(np.frombuffer(room, np.uint8)) is not None for room in held]

    assert are_lent() == [True] * 5 + [False]
    del held[0]
    held.append(rooms.room(400_000))
    assert are_lent() == [True] * 4 + [False, True]


@pytest.mark.skipif(sys.platform != "linux", reason="memory without a name is Linux's")
def test_where_bodies_are_many_there_is_more_room() -> None:
    rooms = Rooms(1 << 20)
    rooms.take_ahead(3)
    held = [rooms.room(500_000) for _ in range(7)]
    assert sum(place_of(np.frombuffer(room, np.uint8)) is not None for room in held) == 6


@pytest.mark.skipif(sys.platform != "linux", reason="memory without a name is Linux's")
def test_who_states_much_leaves_half_to_others() -> None:
    rooms = kept(16 << 20)
    held = [rooms.room(4_000_000) for _ in range(5)]
    usual = rooms.room(900_000)
    are_lent = [place_of(np.frombuffer(room, np.uint8)) is not None for room in (*held, usual)]
    assert are_lent == [True] * 3 + [False] * 2 + [True]
