"""Rooms for bodies: what is free goes back to the system but for what is kept; that stays, and costs no new pages."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from stretto.api.rooms import BLOCK_BYTES, Rooms
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


def test_a_block_is_free_when_its_last_view_is_gone() -> None:
    rooms = Rooms(BLOCK_BYTES)  # one is kept
    room = rooms.room(100)
    tensor = np.frombuffer(room[20:60], np.uint8).reshape(2, 20)[1]
    place = address(room)
    del room
    others = [rooms.room(100) for _ in range(3)]
    assert place not in map(address, others), "a tensor that waits keeps its memory"
    del tensor
    assert address(rooms.room(100)) == place


def test_what_is_larger_than_a_block_has_memory_of_its_own() -> None:
    rooms = Rooms(0)
    assert rooms.room(3 * BLOCK_BYTES).nbytes == 3 * BLOCK_BYTES
    assert rooms.room(BLOCK_BYTES).nbytes == BLOCK_BYTES


@pytest.mark.skipif(sys.platform != "linux", reason="memory without a name is Linux's")
def test_blocks_that_workers_see_are_kept_before_any_other() -> None:
    """Else one that was made in a rush would take their place, and they would be lost for good."""
    rooms = Rooms(2 * BLOCK_BYTES)
    rooms.take_ahead()
    held = [rooms.room(BLOCK_BYTES) for _ in range(4)]

    def are_lent() -> list[bool]:
        return [place_of(np.frombuffer(room, np.uint8)) is not None for room in held]

    assert are_lent() == [True, True, False, False]
    del held[3]
    del held[2]
    held.clear()
    held = [rooms.room(BLOCK_BYTES) for _ in range(3)]
    assert are_lent() == [True, True, False]
