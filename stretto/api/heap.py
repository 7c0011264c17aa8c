"""What the C library keeps of the memory that requests took, when they are gone: some of it, and not for ever.

A little is kept, so that it need not be asked for and touched anew for every answer. More than that goes back, also
from between what is still in use: where ten thousand clients were at once, the end of the heap alone says nothing.
Large bodies have memory of their own (rooms.py).
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import sys

from stretto.api.budget import Budget

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
KEPT_BYTES = 32 << 20  # at the end of the heap
LARGEST_BYTES = 1 << 20  # what is larger has memory of its own, which goes back at once; a heap would have holes
GROWN_BYTES = 64 << 20  # that a process may hold more than after the last look, before it gives back what it can
CALM_PART = 16  # of the budget: while more is in flight, what is free now is wanted soon

_library = ctypes.CDLL(None) if sys.platform == "linux" else None
TIDY_S = 5.0


def keep_heap() -> None:
    """From now on; nothing where the C library is another one."""
    mallopt = getattr(_library, "mallopt", None)
    if mallopt is not None and mallopt(MMAP_THRESHOLD, LARGEST_BYTES):
        mallopt(TRIM_THRESHOLD, KEPT_BYTES)


def give_back() -> None:
    """All free pages of the heap, to the system. Other threads run meanwhile, but wait where they want memory."""
    trim = getattr(_library, "malloc_trim", None)
    if trim is not None:
        trim(KEPT_BYTES)


async def tidy(budget: Budget, period_s: float) -> None:
    """Gives back what a crowd left behind, once it is gone; for ever. Of the heap nothing, where the system is another
    one. What is held when it begins is not a crowd's: requests would stand still while all of a start's is looked at.
    """
    left_bytes = _held_bytes()  # after the last time
    while True:
        await asyncio.sleep(period_s)
        is_calm = budget.used < budget.limit // CALM_PART
        held_bytes = _held_bytes()
        if held_bytes > left_bytes + GROWN_BYTES and is_calm:
            await asyncio.to_thread(give_back)
            held_bytes = left_bytes = _held_bytes()
        left_bytes = min(left_bytes, held_bytes)


def _held_bytes() -> int:
    """Of this process alone, in memory: not what it shares with workers. 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
            return (int(resident) - int(shared)) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0
