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
# By number: the first address, the one behind the last, and the memory. Looked at for every large body, so no weak
# dictionary: to go through one takes longer than all the rest.
_lent: dict[int, tuple[int, int, weakref.ref[FrontMemory]]] = {}


def lend(memory: FrontMemory) -> FrontMemory:
    """For as long as somebody here refers to it."""
    number = next(_numbers)
    gone = weakref.ref(memory, lambda _: _lent.pop(number, None))
    _lent[number] = memory.address, memory.address + memory.size, gone
    return memory


def lent() -> list[tuple[int, FrontMemory]]:
    """All that there is, with their numbers."""
    memories = [(number, reference()) for number, (_, _, reference) in list(_lent.items())]
    return [(number, memory) for number, memory in memories if memory is not None]


def place_of(array: Array) -> tuple[int, FrontMemory, int] | None:
    """In which memory all of it lies, and where; None: in none."""
    if not _lent or not array.flags.c_contiguous:
        return None
    address = int(array.__array_interface__["data"][0])
    for number, (first, end, reference) in tuple(_lent.items()):
        if first <= address and address + array.nbytes <= end and (memory := reference()) is not None:
            return number, memory, address - first
    return None
