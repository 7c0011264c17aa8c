"""How much of a machine's time went elsewhere: a neighbour on the same host, or another program on the same cores.

A live measurement of deadlines means nothing while the machine is taken away. What is repeated is chosen by that share
alone, never by what was measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

Measured = TypeVar("Measured")

QUIET = 0.01  # of a core: stolen by the host
TRIES = 4


def stolen_s() -> float:
    """Seconds that the host took from all cores since the machine started; 0 where the system does not tell."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def when_quiet(measure: Callable[[], Measured], tries: int = TRIES) -> tuple[Measured, float, int]:
    """What was measured in the first try that was quiet, else in the quietest; its share of a core that was stolen; and
    how many tries there were.
    """
    best: tuple[Measured, float] | None = None
    for attempt in range(1, tries + 1):
        began, before = time.perf_counter(), stolen_s()
        result = measure()
        share = (stolen_s() - before) / (time.perf_counter() - began)
        if best is None or share < best[1]:
            best = (result, share)
        if share <= QUIET:
            break
    assert best is not None
    return *best, attempt
