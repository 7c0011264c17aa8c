"""Memory of this process that its worker processes see too: bodies of requests are read into it, so that a batch is
told by the places of its rows, and nobody here copies them.

It is known by its addresses, for what comes to an executor is an array like any other. Its numbers go down from the
largest, those of front ends up from the first.
"""

from __future__ import annotations

import itertools
import weakref

from stretto.backends.model import Array
from stretto.live.face.memory import FrontMemory

FIRST = 2**32 - 1
LAST = 2**31  # numbers from here on are lent memory's

_numbers = itertools.count(FIRST, -1)
_lent: weakref.WeakValueDictionary[int, FrontMemory] = weakref.WeakValueDictionary()


def lend(memory: FrontMemory) -> FrontMemory:
    """For as long as somebody here refers to it."""
    _lent[next(_numbers)] = memory
    return memory


def lent() -> list[tuple[int, FrontMemory]]:
    """All that there is, with their numbers."""
    return list(_lent.items())


def place_of(array: Array) -> tuple[int, FrontMemory, int] | None:
    """In which memory all of it lies, and where; None: in none."""
    if not _lent or not array.flags.c_contiguous:
        return None
    address = int(array.__array_interface__["data"][0])
    for number, memory in _lent.items():
        place = address - memory.address
        if place >= 0 and place + array.nbytes <= memory.size:
            return number, memory, place
    return None
